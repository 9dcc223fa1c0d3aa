r"""Geometry of features and weights: alignment, neural collapse, rank collapse.

Ranks and angles are defined in :mod:`transformer_theory.maths.linalg`.

Rows are samples or tokens: features ``[n, d]``, tokens ``[*batch, n, d]``.

Source: :cite:t:`papyan2020prevalence` (neural collapse), :cite:t:`dong2021attention` (rank collapse).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.validation import converted, finite
from ..maths.linalg import (
    binary_scale,
    cosine,
    effective_rank,
    numerical_rank,
    principal_angles,
    stable_rank,
    vector_norm,
)

__all__ = [
    "Collapse",
    "alignment",
    "effective_rank",
    "neural_collapse",
    "numerical_rank",
    "principal_angles",
    "rank_collapse_residual",
    "stable_rank",
]


@converted(floats=("A", "B"))
def alignment(A: Float[Tensor, "*batch m n"], B: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch"]:
    r"""Computes the cosine of the angle between two matrices, :math:`\langle A, B\rangle_F / (\|A\|_F
    \|B\|_F)`.

    The chance level is not zero if B depends on A, for example if B is the max-margin direction of the tokens
    that A selects. Compare the cosine with that of a matrix with the singular values of A and random singular
    vectors.

    Args:
        A, B: matrices, ``[*batch, m, n]``.
    Returns:
        ``[*batch]``, in [-1, 1].
    Raises:
        ValueError: shapes differ, or a matrix is zero or not finite.
    """
    return cosine(A, B, dim=(-2, -1))


NEARLY_EQUAL = 1e-2  # residuals below it are of tokens whose mean has visible rounding errors


@dataclass(frozen=True)
class Collapse:
    r"""Distance of features from neural collapse; all numbers are 0 at collapse and have no unit.

    Attributes:
        nc1: variability within classes relative to variability between classes, :math:`\frac1C
            \operatorname{tr}(\Sigma_W \Sigma_B^+)`.
        nc2_norms: standard deviation of the norms of the centred class means, divided by their mean.
        nc2_angles: mean over pairs of classes of :math:`|\cos(m_c, m_{c'}) + \frac{1}{C-1}|`.
        nc3: squared distance between classifier and class means, :math:`\|W / \|W\|_F - M / \|M\|_F\|_F^2`;
            None without a classifier.
    """

    nc1: float
    nc2_norms: float
    nc2_angles: float
    nc3: float | None

    @property
    def nc2(self) -> float:
        """The larger of the two deviations from a simplex of equal norms and equal angles."""
        return max(self.nc2_norms, self.nc2_angles)


@converted(float64=("features", "classifier"), labels=("labels",))
def neural_collapse(
    features: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    *,
    classifier: Float[Tensor, "classes d"] | None = None,
) -> Collapse:
    r"""Measures neural collapse: classes shrink to points (NC1) that form a simplex (NC2), and the classifier
    aligns with them (NC3).

    With class means :math:`\mu_c`, their mean :math:`\mu`, :math:`m_c = \mu_c - \mu`, M their matrix,
    :math:`\Sigma_W = \frac1C\sum_c \frac1{n_c}\sum_{i \in c} (x_i - \mu_c)(x_i - \mu_c)^\top` and
    :math:`\Sigma_B = \frac1C\sum_c m_c m_c^\top`. For classes of equal size these are the definitions of the
    source.

    Args:
        features: features of the last layer, one row per sample, ``[n, d]``.
        labels: class of each sample, integers >= 0, ``[n]``; classes without samples are left out, and so
            are samples with negative labels.
        classifier: weights of the last linear layer, row c for label c, ``[classes, d]``.
    Returns:
        The distances from collapse, without unit.
    Raises:
        ValueError: the labels do not fit, fewer than two classes occur, values are not finite, class means
            coincide, or the classifier does not fit or is zero.
        TypeError: features are not real numbers.
    """
    if features.ndim != 2 or not features.shape[1] or labels.shape != features.shape[:1]:
        raise ValueError(
            f"features [n, d] with d >= 1 need one label each, labels [n]; got {list(features.shape)} and "
            f"{list(labels.shape)}"
        )
    features, labels = features[labels >= 0], labels[labels >= 0]
    finite(features=features)
    # the C labels that occur, and the index of each label among them
    present, member = labels.unique(return_inverse=True)
    C = len(present)
    if C < 2:
        raise ValueError(f"neural collapse needs at least two classes, got {C}")
    X = features.detach()
    X = X / binary_scale(X, (0, 1))  # all four distances are relative
    counts = torch.bincount(member, minlength=C).to(X)
    means = X.new_zeros(C, X.shape[1]).index_add(0, member, X) / counts[:, None]
    centred = means - means.mean(0)
    norms = torch.linalg.vector_norm(centred, dim=1)
    if not bool((norms > 1e-12 * X.abs().amax()).all()):
        raise ValueError(
            "neural collapse is undefined where a class mean equals the mean of all classes, got such a "
            "class; separate the classes"
        )
    # With the matrix M of the centred means Σ_B = M^T M / C, so tr(Σ_W Σ_B^+) = C tr(Σ_W M^+ (M^+)^T), a sum
    # over the deviations in C coordinates; neither Σ_W nor Σ_B is formed. After centring, M has rank C - 1 at
    # most; the tolerance of the pseudo-inverse removes directions that are only rounding errors.
    inverse = torch.linalg.pinv(centred, rtol=1e-5)
    deviations = (X - means[member]) @ inverse
    nc1 = float((deviations.square().sum(1) / (C * counts[member])).sum())
    cosines = (centred / norms[:, None]) @ (centred / norms[:, None]).T
    pairs = ~torch.eye(C, dtype=torch.bool, device=X.device)
    angles = float((cosines + 1 / (C - 1))[pairs].abs().mean())
    return Collapse(
        nc1, float(norms.std(correction=0) / norms.mean()), angles, _duality(centred, present, classifier)
    )


def _duality(centred: Tensor, present: Tensor, classifier: Tensor | None) -> float | None:
    """Computes NC3, the distance between the classifier and the centred class means; None without a
    classifier.
    """
    if classifier is None:
        return None
    if classifier.ndim != 2 or len(classifier) <= int(present[-1]) or classifier.shape[1] != centred.shape[1]:
        raise ValueError(
            f"classifier must have shape [classes, d], classes > {int(present[-1])}, d = "
            f"{centred.shape[1]}; got {list(classifier.shape)}"
        )
    W = classifier.detach()[present].to(centred)
    W = W / binary_scale(W, (-2, -1))
    size = torch.linalg.matrix_norm(W)
    if not (bool(torch.isfinite(size)) and float(size) > 0):
        raise ValueError("classifier must be finite and not zero, got one that is not; NC3 is undefined")
    return float((W / size - centred / torch.linalg.matrix_norm(centred)).square().sum())


@converted(floats=("tokens",))
def rank_collapse_residual(tokens: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    r"""Computes the relative distance of a sequence from equal tokens, :math:`\|X - 1\bar x^\top\|_F /
    \|X\|_F`; 0 if all are equal.

    The mean token :math:`\bar x` minimises the distance to matrices with equal rows. (The source bounds a
    composite norm of the same residual; the Frobenius norm is invariant under rotations.)

    Args:
        tokens: sequences, one row per token, ``[*batch, n, d]``.
    Returns:
        ``[*batch]``, in [0, 1], no unit.
    Raises:
        ValueError: there is no token, or a sequence is zero or not finite.
    """
    if tokens.ndim < 2 or 0 in tokens.shape[-2:]:
        raise ValueError(f"tokens must have shape [*batch, n, d] with n, d >= 1, got {list(tokens.shape)}")
    # sums and squares of scaled tokens are in range
    tokens = tokens / binary_scale(tokens, (-2, -1))
    size = torch.linalg.matrix_norm(tokens)
    if not bool((torch.isfinite(size) & (size > 0)).all()):
        raise ValueError(
            "the residual needs finite sequences that are not zero, got one that is zero, NaN or infinite; "
            "leave it out"
        )
    differences = tokens - tokens.mean(-2, keepdim=True)
    residual = vector_norm(differences, (-2, -1)) / size
    if bool((residual < NEARLY_EQUAL).any()):
        # the rounding error of the mean is visible next to small differences
        residual = vector_norm(differences - differences.mean(-2, keepdim=True), (-2, -1)) / size
    return residual.clamp(max=1)
