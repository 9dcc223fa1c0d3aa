"""Evaluation of features by simple classifiers, and by the agreement of k-means with the classes.

Source: :cite:t:`yu2020learning`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.validation import converted, finite, in_range, integers
from ...maths.linalg import binary_scale
from ...metrics.coding.memberships import with_labels

RANK, NEIGHBOURS = 30, 5  # settings of the published evaluation


@in_range
@converted(floats=("train", "test"), labels=("labels",))
def nearest_subspace(
    train: Float[Tensor, "n d"], labels: Int[Tensor, " n"], test: Float[Tensor, "m d"], *, rank: int
) -> Int[Tensor, " m"]:
    """Predicts the class j with the largest projection ``||x U_j||`` onto its principal subspace (through the
    origin).

    Args:
        train: training features, ``[n, d]``.
        labels: classes of the training features, ``[n]``; classes without samples are never predicted.
        test: test features, ``[m, d]``.
        rank: dimension of each subspace, below d, or the number of samples of the class if that is smaller.
    Returns:
        Predicted classes, ``[m]``.
    Raises:
        ValueError: a sample is not finite, rank is below 1, or the subspace of a class is the whole space.
        TypeError: rank is not an integer.
    """
    finite(train=train, test=test)
    test = test / binary_scale(test, -1)  # the largest projection does not depend on the scale
    bases = principal_subspaces(train, labels, rank=rank)
    inside = torch.stack([torch.linalg.vector_norm(test @ basis.mT, dim=-1) for basis in bases.values()])
    return torch.tensor([*bases], device=test.device)[inside.argmax(0)]


def principal_subspaces(
    train: Float[Tensor, "n d"], labels: Int[Tensor, " n"], *, rank: int
) -> dict[int, Float[Tensor, "r d"]]:
    """Returns orthonormal rows that span the principal subspace of each class: the first right singular
    vectors of its samples.

    Args:
        train: training features, ``[n, d]``.
        labels: classes of the training features, ``[n]``.
        rank: dimension of each subspace, below d, or the number of samples of the class if that is smaller.
    Returns:
        Rows ``[r, d]`` by class, for each class with samples.
    Raises:
        ValueError: rank is below 1, or the subspace of a class is the whole space.
        TypeError: rank is not an integer.
    """
    integers(rank=rank)
    train, labels = with_labels(train, labels)
    bases = {
        j: torch.linalg.svd(train[labels == j], full_matrices=False).Vh[:rank]
        for j in labels.unique().tolist()
    }
    d = train.shape[1]
    if whole := [j for j, basis in bases.items() if len(basis) == d > 1]:
        raise ValueError(
            f"rank must be below the dimension {d}, got {rank}: the subspace of class {whole[0]} would "
            f"contain every sample; pass a rank of at most {d - 1}"
        )
    return bases


@dataclass(frozen=True)
class Accuracies:
    """Share of test samples that each classifier assigns to the right class.

    Attributes:
        nearest_subspace: accuracy of the principal subspaces of the classes.
        neighbours: accuracy of the nearest training samples, by cosine.
        linear: accuracy of a linear support vector machine.
    """

    nearest_subspace: float
    neighbours: float
    linear: float


def accuracies(
    train: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    test: Float[Tensor, "m d"],
    truth: Int[Tensor, " m"],
    *,
    rank: int = RANK,
    neighbours: int = NEIGHBOURS,
) -> Accuracies:
    """Returns the accuracy of three classifiers of features: nearest subspace, nearest neighbours by cosine,
    linear SVM.

    Args:
        train, labels: training features, ``[n, d]``, and their labels, correct or corrupted, ``[n]``.
        test, truth: test features, ``[m, d]``, and their classes, ``[m]``.
        rank: dimension of the subspaces, below d, or the number of samples of a class if that is smaller.
        neighbours: number of neighbours that vote.
    Raises:
        ValueError: rank is below 1, the subspace of a class is the whole space, or there are fewer training
            samples than neighbours.
    """
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import LinearSVC

    subspaces = float((nearest_subspace(train, labels, test, rank=rank) == truth).double().mean())
    x, y, test_x, test_y = (part.detach().cpu().numpy() for part in (train, labels, test, truth))
    if not 1 <= neighbours <= len(x):
        raise ValueError(
            f"neighbours must be from 1 to the number of training samples, {len(x)}, got {neighbours}"
        )
    nearest = KNeighborsClassifier(neighbours, metric="cosine").fit(x, y)
    linear = LinearSVC(dual="auto", random_state=0).fit(x, y)
    return Accuracies(subspaces, *(float(model.score(test_x, test_y)) for model in (nearest, linear)))


@dataclass(frozen=True)
class Agreement:
    """Agreement of groups with classes; each number is 1 if they are equal up to names.

    Attributes:
        nmi: normalised mutual information (arithmetic mean of the entropies), in [0, 1].
        accuracy: share of samples in the correct group under the best naming of the groups, in (0, 1].
        ari: adjusted Rand index, 0 on average for random groups.
    """

    nmi: float
    accuracy: float
    ari: float


def agreement(truth: Int[np.ndarray, " n"], groups: Int[np.ndarray, " n"]) -> Agreement:
    """Measures the agreement of groups with classes.

    Args:
        truth, groups: class and group of each sample, ``[n]``. There may be more or fewer groups than
            classes.
    Raises:
        ValueError: lengths differ, or there is no sample.
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    accuracy = clustering_accuracy(truth, groups)
    return Agreement(
        float(normalized_mutual_info_score(truth, groups)),
        accuracy,
        float(adjusted_rand_score(truth, groups)),
    )


def k_means_agreement(
    features: Float[Tensor, "n d"], truth: Int[Tensor, " n"], *, seed: int = 0
) -> Agreement:
    """Measures the agreement of k-means (best of ten starts) with the classes; k is the number of classes.

    Args:
        features: samples to cluster, ``[n, d]``.
        truth: class of each sample, ``[n]``.
        seed: seed of the starts.
    """
    from sklearn.cluster import KMeans

    groups = KMeans(len(truth.unique()), n_init=10, random_state=seed)  # pyright: ignore[reportArgumentType]
    return agreement(
        truth.cpu().numpy(), groups.fit_predict(features.detach().cpu().numpy()).astype(np.int64)
    )


def clustering_accuracy(truth: Int[np.ndarray, " n"], groups: Int[np.ndarray, " n"]) -> float:
    """Returns the share of samples in the correct group under the best one-to-one naming of the groups.

    Args:
        truth, groups: class and group of each sample, ``[n]``. There may be more or fewer groups than
            classes.
    Returns:
        A share in (0, 1].
    Raises:
        ValueError: lengths differ, or there is no sample.
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    if len(truth) != len(groups) or not len(truth):
        raise ValueError(
            f"truth and groups must have one entry per sample, at least one, got {len(truth)} and "
            f"{len(groups)} entries"
        )
    table = contingency_matrix(truth, groups)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / len(truth))
