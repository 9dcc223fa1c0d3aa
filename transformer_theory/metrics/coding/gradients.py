r"""Gradients of coding rates in closed form, and the operators from which they are built.

.. math::
    \nabla R &= X E, \quad E = \alpha (I + \alpha X^\top X)^{-1} \\
    \nabla R^c &= \sum_j \tfrac{n_j}{n} \Pi_j X C_j, \quad C_j = \alpha_j (I + \alpha_j X^\top \Pi_j X)^{-1}
    \\ \nabla \Delta R &= \nabla R - \nabla R^c, \quad \alpha = d/(n\epsilon^2), \quad \alpha_j =
    d/(n_j\epsilon^2).

The factor 1/2 of the rates cancels the 2 of the derivative. The smaller Gram matrix is inverted:
:math:`XE = \alpha(I + \alpha XX^\top)^{-1}X`. Memberships are treated as constants, and no function of this
module records an autograd graph. Notation: see :mod:`.rates`.

Source: :cite:t:`chan2022redunet` (gradients, operators), :cite:t:`yu2020learning` (gamma1 and gamma2 in
:func:`rates_and_gradient`).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.validation import converted, full_precision, in_range
from ...maths.linalg import SMALL, smaller_gram
from .memberships import (
    Memberships,
    blocks,
    check_features,
    class_shares,
    class_sizes,
    is_soft,
    labelled,
    largest_trace,
    ordinary_scale,
    with_labels,
)
from .resolvents import inverse, pulls_and_leverages, rate_and_inverse, widened


@in_range
@converted(floats=("features",))
def expansion_operator(features: Float[Tensor, "n d"], *, eps: float) -> Float[Tensor, "d d"]:
    r"""Computes the operator that spreads all features, :math:`E = \alpha(I + \alpha X^\top X)^{-1}`.

    Args:
        features: one row per sample, ``[n, d]``.
        eps: distortion, > 0; squared inside.
    Returns:
        ``[d, d]``, symmetric positive definite, eigenvalues at most :math:`\alpha`.
    Raises:
        ValueError: eps is not positive, there is no sample, or a feature is not finite.
    """
    return compression_operators(
        features, torch.zeros(len(features), dtype=torch.int64, device=features.device), eps=eps
    )[0]


@in_range
@labelled
@torch.no_grad()
def compression_operators(
    features: Float[Tensor, "n d"], labels: Memberships, *, eps: float
) -> Float[Tensor, "classes d d"]:
    r"""Computes the operators that compress each class, :math:`C_j = \alpha_j(I + \alpha_j
    X^\top\Pi_jX)^{-1}`.

    Args:
        features: one row per sample, ``[n, d]``.
        labels: class of each sample, ``[n]``, or memberships ``[n, k]``.
        eps: distortion, > 0; squared inside.
    Returns:
        ``[classes, d, d]``, symmetric positive definite, eigenvalues at most :math:`\alpha_j`.
    Raises:
        ValueError: a class has no sample, or so little weight that its operator is not finite; otherwise see
            :func:`.class_coding_rates`.
    """
    check_features(features, eps)
    features, labels = with_labels(features, labels)
    counts = class_sizes(features, labels)
    if not bool((counts > 0).all()):
        raise ValueError(
            f"each class must have a sample, got none for class {int((counts <= 0).nonzero()[0, 0])}; "
            "relabel without gaps"
        )
    features, eps, c = ordinary_scale(features, eps)
    memberships = (
        labels
        if is_soft(labels)
        else torch.nn.functional.one_hot(labels.long(), len(counts)).to(features.dtype)
    )
    ratio = features.shape[1] / eps**2
    X = widened(features, largest_trace(features, labels, eps))
    weights = ratio * class_shares(memberships).to(X.dtype)
    scales = ratio / counts.double()
    if not bool(torch.isfinite(scales.to(memberships.dtype)).all()):
        least = int(counts.argmin())
        raise ValueError(
            f"the weight of a class must allow a finite operator, got {float(counts[least]):.1e} in total "
            f"for class {least}; omit it, or take a larger eps"
        )
    # Numbers of Python do not underflow.
    operators = [scale / c / c * inverse(X, w) for scale, w in zip(scales.tolist(), weights.mT)]
    return torch.stack(operators).to(features.dtype)


@in_range
@converted(floats=("features",))
@torch.no_grad()
def coding_rate_gradient(features: Float[Tensor, "n d"], *, eps: float) -> Float[Tensor, "n d"]:
    r"""Computes :math:`\nabla R = XE = \alpha X (I + \alpha X^\top X)^{-1}`, without forming E if there are
    fewer samples than dimensions.

    Args:
        features: one row per sample, ``[n, d]``.
        eps: distortion, > 0; squared inside.
    Returns:
        ``[n, d]``.
    Raises:
        ValueError, TypeError: see :func:`.coding_rate`.
    """
    check_features(features, eps)
    features, eps, c = ordinary_scale(features, eps)
    alpha = features.shape[1] / (len(features) * eps**2)
    X = widened(features, alpha * float(features.square().sum()))
    return (pulls_and_leverages(X, X.new_full((len(X),), alpha))[0] / c).to(features.dtype)


@in_range
@labelled
@torch.no_grad()
def class_coding_rate_gradient(
    features: Float[Tensor, "n d"], labels: Memberships, *, eps: float
) -> Float[Tensor, "n d"]:
    r"""Computes :math:`\nabla R^c = \sum_j \frac{n_j}{n}\Pi_j X C_j`; a class without samples contributes
    nothing.

    Args:
        features: one row per sample, ``[n, d]``.
        labels: class of each sample, ``[n]``, or memberships ``[n, k]``, treated as constants.
        eps: distortion, > 0; squared inside.
    Returns:
        ``[n, d]``.
    Raises:
        ValueError, TypeError: see :func:`.class_coding_rates`.
    """
    if not is_soft(labels):
        # With gamma2 = 0, rates_and_gradient returns the gradient of -R^c.
        return -rates_and_gradient(features, labels, eps=eps, gamma2=0.0).gradient
    check_features(features, eps)
    counts = class_sizes(features, labels)
    features, eps, c = ordinary_scale(features, eps)
    X = widened(features, largest_trace(features, labels, eps))
    weights = (features.shape[1] / eps**2) * class_shares(labels).to(X.dtype)
    total = torch.zeros_like(X)
    for size, w in zip(counts, weights.mT):
        total = total + (size / len(X)) * pulls_and_leverages(X, w)[0]
    return (total / c).to(features.dtype)


@in_range
@labelled
def rate_reduction_gradient(
    features: Float[Tensor, "n d"], labels: Memberships, *, eps: float
) -> Float[Tensor, "n d"]:
    r"""Computes :math:`\nabla\Delta R = \nabla R - \nabla R^c`, the direction in which a layer of ReduNet
    moves the features.

    Arguments and shapes are those of :func:`class_coding_rate_gradient`.

    Raises:
        ValueError, TypeError: see :func:`.class_coding_rates`.
    """
    if not is_soft(labels):
        return rates_and_gradient(features, labels, eps=eps).gradient
    check_features(features, eps)
    class_sizes(features, labels)
    scaled, distortion, c = ordinary_scale(features, eps)
    if largest_trace(scaled, labels, distortion) >= SMALL:
        return coding_rate_gradient(features, eps=eps) - class_coding_rate_gradient(features, labels, eps=eps)
    # alpha X cancels in the difference; what remains would drown in its rounding errors
    (n, d), X, memberships = features.shape, scaled.double(), labels.double()
    ratio = d / distortion**2
    total = ratio / n * (1 - memberships.sum(1))[:, None] * X + _deviation(X, X.new_full((n,), ratio / n))
    for size, w in zip(memberships.sum(0), (ratio * class_shares(memberships)).mT):
        total = total - size / n * _deviation(X, w)
    return (total / c).to(features.dtype)


def _deviation(X: Float[Tensor, "n d"], weights: Float[Tensor, " n"]) -> Float[Tensor, "n d"]:
    r"""Computes :math:`WX(I + A)^{-1} - WX = -WX(I + A)^{-1} A` with :math:`A = X^\top WX`, for small A."""
    pulls, weighted = pulls_and_leverages(X, weights)[0], weights[:, None] * X
    return -(pulls @ X.mT) @ weighted if X.shape[0] < X.shape[1] else -pulls @ (X.mT @ weighted)


@dataclass(frozen=True)
class RatesAndGradient:
    r"""Rates in nats per sample, and the gradient of ``gamma2 * expansion - class_rate``.

    Attributes:
        expansion: :math:`R_{\gamma_1}`, the rate of all features with gamma1 inside the determinant.
        rate: R, the rate of all features (gamma1 = 1).
        class_rate: R^c, the mean rate within classes.
        gradient: gradient with respect to the features, ``[n, d]``.
    """

    expansion: Float[Tensor, ""]
    rate: Float[Tensor, ""]
    class_rate: Float[Tensor, ""]
    gradient: Float[Tensor, "n d"]


@full_precision
@torch.no_grad()
def rates_and_gradient(
    features: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    *,
    eps: float,
    gamma1: float = 1.0,
    gamma2: float = 1.0,
) -> RatesAndGradient:
    r"""Computes rates, and the gradient of :math:`\gamma_2 R_{\gamma_1} - R^c`, in one pass over labelled
    features, without a graph.

    If gamma1 = gamma2 = 1, the difference is ΔR. With :math:`R_{\gamma_1} = \tfrac12\log\det(I +
    \gamma_1\alpha X^\top X)`

    .. math::
        \nabla = \gamma_1\gamma_2\alpha\, X (I + \gamma_1\alpha X^\top X)^{-1}
        - \sum_j \tfrac{n_j}{n} \alpha_j X_j (I + \alpha_j X_j^\top X_j)^{-1}.

    The memory grows as n d + k min(d, n_j)^2, never as k n^2.

    Args:
        features: one row per sample, ``[n, d]``.
        labels: class of each sample, integers >= 0, ``[n]``; gaps are allowed.
        eps: distortion, > 0; squared inside.
        gamma1: factor inside the determinant of the expansion, > 0.
        gamma2: weight of the expansion, >= 0.
    Raises:
        ValueError: see :func:`.class_coding_rates`.
    """
    check_features(features, eps)
    counts = class_sizes(features, labels)
    features, eps, c = ordinary_scale(features, eps)
    largest = max(gamma1, 1.0) * largest_trace(features, labels, eps)
    expansion, rate, class_rate, gradient = _by_gram_matrices(
        widened(features, largest),
        labels,
        counts,
        eps=eps,
        gamma1=gamma1,
        gamma2=gamma2,
        is_small=largest < SMALL,
    )
    expansion, rate, class_rate = (each.to(features.dtype) for each in (expansion, rate, class_rate))
    return RatesAndGradient(expansion, rate, class_rate, (gradient / c).to(features.dtype))


def _by_gram_matrices(
    X: Tensor, labels: Tensor, counts: Tensor, *, eps: float, gamma1: float, gamma2: float, is_small: bool
) -> tuple[Tensor, ...]:
    def resolvent(gram: Tensor, scale: Tensor, inverse: Tensor) -> Tensor:
        # The gradients of small features are nearly alpha X, which cancels in their difference. Therefore
        # (I + sG)^-1 - I = -sG (I + sG)^-1 is computed, without a difference.
        return -scale[..., None, None] * gram @ inverse if is_small else inverse

    n, d = X.shape
    alpha = d / (n * eps**2)
    # Row n is zero. It pads the smaller classes of a group; zero rows change neither Gram matrices nor rates.
    padded = torch.cat([X, X.new_zeros(1, d)])
    # Each group of c classes of similar size needs one batched product and one batched Cholesky factorisation
    # of the smaller Gram matrices. A group consists of sizes [c], row indices [c, size] and features [c,
    # size, d].
    groups = [(counts[classes].to(X.dtype), rows, padded[rows]) for classes, rows in blocks(labels, counts)]
    grams = [smaller_gram(members) for _, _, members in groups]
    # The Gram matrices of groups with more samples than dimensions are second moments [d, d]. If all groups
    # are of this kind, their sum is X^T X, which saves one product over all samples.
    are_moments = [rows.shape[1] > d for _, rows, _ in groups]
    total_gram = torch.stack([gram.sum(0) for gram in grams]).sum(0) if all(are_moments) else smaller_gram(X)
    scale = X.new_tensor(gamma1 * alpha)
    expansion, total_inverse = rate_and_inverse(total_gram, scale)
    rate = expansion if gamma1 == 1 else rate_and_inverse(total_gram, X.new_tensor(alpha))[0]
    expansion_factor = gamma1 * gamma2 * alpha * resolvent(total_gram, scale, total_inverse)
    # If n <= d, the factor is [n, n] and acts from the left.
    expansion_gradient = expansion_factor @ X if n <= d else None
    class_rate = X.new_zeros(())
    gradient = torch.empty_like(padded)
    for (sizes, rows, members), gram, is_moment in zip(groups, grams, are_moments):
        scales = d / (sizes * eps**2)
        rates, inverses = rate_and_inverse(gram, scales)
        class_rate = class_rate + (sizes / n) @ rates
        # since (n_j / n) alpha_j = alpha
        class_factors = alpha * resolvent(gram, scales, inverses)
        if is_moment:
            gradient[rows] = members @ (expansion_factor - class_factors)
        else:
            # The class factors are [size, size] and act from the left. The padding index n is clamped for the
            # lookup only; row n is dropped at the end.
            expansion_rows = (
                members @ expansion_factor
                if expansion_gradient is None
                else expansion_gradient[rows.clamp(max=n - 1)]
            )
            gradient[rows] = expansion_rows - class_factors @ members
    gradient = gradient[:-1]
    if is_small and gamma1 * gamma2 != 1:
        gradient = gradient + (gamma1 * gamma2 - 1) * alpha * X
    return expansion, rate, class_rate, gradient
