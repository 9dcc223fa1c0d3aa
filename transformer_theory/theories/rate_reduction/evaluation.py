"""How features are judged: by classifiers that learn next to nothing, and by whether k-means finds the classes.

Source: :cite:t:`yu2020learning`.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from . import nearest_subspace

RANK, NEIGHBOURS = 30, 5  # of the published evaluation


@dataclass(frozen=True)
class Judged:
    """Share of unseen samples in the right class.

    Attributes:
        nearest_subspace: by the principal subspaces of the classes.
        neighbours: by the nearest training samples, by cosine.
        linear: by a linear support vector machine.
    """

    nearest_subspace: float
    neighbours: float
    linear: float


@dataclass(frozen=True)
class Clustered:
    """How well groups agree with classes, 1 if they are the same.

    Attributes:
        nmi: normalised mutual information (arithmetic mean of the entropies), in [0, 1].
        accuracy: share of samples in the right group under the best naming, in (0, 1].
        ari: adjusted Rand index, 0 on average for random groups.
    """

    nmi: float
    accuracy: float
    ari: float


def judge(
    train: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    test: Float[Tensor, "m d"],
    truth: Int[Tensor, " m"],
    *,
    rank: int = RANK,
    neighbours: int = NEIGHBOURS,
) -> Judged:
    """Accuracy of three classifiers of features: nearest subspace, nearest neighbours by cosine, linear SVM.

    Args:
        train, labels: features that the classifiers learn from, ``[n, d]``, and their classes, right or corrupted, ``[n]``.
        test, truth: features that they are measured on, ``[m, d]``, and their classes, ``[m]``.
        rank: dimensions of the subspaces, cut to what a class spans.
        neighbours: that vote.
    Returns:
        :class:`Judged`.
    Raises:
        ValueError: rank is below 1, or there are fewer training samples than neighbours.
    Source: :cite:t:`yu2020learning`.
    """
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import LinearSVC

    subspaces = float((nearest_subspace(train, labels, test, rank=rank) == truth).double().mean())
    x, y, unseen, right = (part.detach().cpu().numpy() for part in (train, labels, test, truth))
    if not 1 <= neighbours <= len(x):
        raise ValueError(f"neighbours must be from 1 to the number of training samples, {len(x)}, got {neighbours}")
    nearest = KNeighborsClassifier(neighbours, metric="cosine").fit(x, y)
    linear = LinearSVC(dual="auto", random_state=0).fit(x, y)
    return Judged(subspaces, *(float(model.score(unseen, right)) for model in (nearest, linear)))


def agreement(truth: Int[np.ndarray, " n"], found: Int[np.ndarray, " n"]) -> Clustered:
    """How well groups found agree with classes.

    Args:
        truth, found: class and group of each sample, ``[n]``; their numbers may differ.
    Returns:
        :class:`Clustered`.
    Raises:
        ValueError: lengths differ, or there is no sample.
    Source: :cite:t:`yu2020learning`.
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    from .clustering import clustering_accuracy

    accuracy = clustering_accuracy(truth, found)
    return Clustered(float(normalized_mutual_info_score(truth, found)), accuracy, float(adjusted_rand_score(truth, found)))


def k_means_agreement(features: Float[Tensor, "n d"], truth: Int[Tensor, " n"], *, seed: int = 0) -> Clustered:
    """Agreement of k-means with the classes, k of which it is told; the best of ten starts.

    Args:
        features: ``[n, d]``.
        truth: ``[n]``.
        seed: of the starts.
    Returns:
        :class:`Clustered`. Source: :cite:t:`yu2020learning`.
    """
    from sklearn.cluster import KMeans

    groups = KMeans(len(truth.unique()), n_init=10, random_state=seed)  # pyright: ignore[reportArgumentType]
    return agreement(truth.cpu().numpy(), groups.fit_predict(features.detach().cpu().numpy()).astype(np.int64))
