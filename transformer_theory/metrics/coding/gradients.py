r"""Gradients of coding rates in closed form, and the operators they are made of.

.. math::
    \nabla R &= X E, \quad E = \alpha (I + \alpha X^\top X)^{-1} \\
    \nabla R^c &= \sum_j \tfrac{n_j}{n} \Pi_j X C_j, \quad C_j = \alpha_j (I + \alpha_j X^\top \Pi_j X)^{-1} \\
    \nabla \Delta R &= \nabla R - \nabla R^c, \quad \alpha = d/(n\epsilon^2), \quad \alpha_j = d/(n_j\epsilon^2).

The factor one half of the rates cancels. Whichever Gram matrix is smaller is inverted: X E = :math:`\alpha(I + \alpha XX^\top)^{-1}X`.
Memberships are held fixed. Source: :cite:t:`chan2022redunet`; notation as in :mod:`.rates`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...maths.linalg import LARGEST_GRAM_CONDITION
from .checks import check_features
from .fused import rates_and_gradient
from .memberships import Memberships, class_shares, class_sizes, is_soft
from .resolvents import rate_and_inverse, smaller_gram, weighted_resolvent, widened


def expansion_operator(features: Float[Tensor, "n d"], *, eps: float) -> Float[Tensor, "d d"]:
    r"""The operator that spreads all features, :math:`E = \alpha(I + \alpha X^\top X)^{-1}`.

    Args:
        features: ``[n, d]``.
        eps: distortion, > 0; squared inside.
    Returns:
        ``[d, d]``, symmetric positive definite, eigenvalues at most :math:`\alpha`.
    Raises:
        ValueError: eps is not positive, there is no sample, or features are not finite or not float32 or float64.
    Source: :cite:t:`chan2022redunet`.
    """
    return compression_operators(features, torch.zeros(len(features), dtype=torch.int64, device=features.device), eps=eps)[0]


def compression_operators(features: Float[Tensor, "n d"], labels: Memberships, *, eps: float) -> Float[Tensor, "classes d d"]:
    r"""The operators that draw each class together, :math:`C_j = \alpha_j(I + \alpha_j X^\top\Pi_jX)^{-1}`.

    A class of fewer samples than dimensions is inverted on its own side, :math:`C_j = \alpha_j(I - \alpha_j X_j^\top(I + \alpha_j
    X_jX_j^\top)^{-1}X_j)`.

    Args:
        features: ``[n, d]``.
        labels: ``[n]`` or memberships ``[n, k]``.
        eps: distortion, > 0; squared inside.
    Returns:
        ``[classes, d, d]``, symmetric positive definite, eigenvalues at most :math:`\alpha_j`.
    Raises:
        ValueError: a class has no sample, or so little weight that its operator is not finite, or see :func:`.class_coding_rates`.
    Source: :cite:t:`chan2022redunet`.
    """
    check_features(features, eps)
    counts = class_sizes(features, labels)
    if not bool((counts > 0).all()):
        raise ValueError(f"each class needs a sample, class {int((counts <= 0).nonzero()[0, 0])} has none; relabel without gaps")
    own = labels if is_soft(labels) else torch.nn.functional.one_hot(labels.long(), len(counts)).to(features.dtype)
    ratio = features.shape[1] / eps**2
    weights = ratio * class_shares(own)
    X = widened(features, (features.square().sum(1).to(own.dtype) @ weights).amax())
    scales = ratio / counts.to(own.dtype)
    if not bool(torch.isfinite(scales).all()):
        least = int(counts.argmin())
        raise ValueError(f"each class needs weight for an operator, class {least} has {float(counts[least]):.1e} in all; leave it out")
    operators = [scale * _inverse(X, w) for scale, w in zip(scales.to(X.dtype), weights.to(X.dtype).mT)]
    return torch.stack(operators).to(features.dtype)


def _inverse(X: Float[Tensor, "n d"], weights: Float[Tensor, " n"]) -> Float[Tensor, "d d"]:
    r""":math:`(I + X^\top WX)^{-1}`."""
    rows = X[weights > 0] * weights[weights > 0].sqrt()[:, None]
    if bool(rows.square().sum() > LARGEST_GRAM_CONDITION):
        _, sizes, right = torch.linalg.svd(rows, full_matrices=True)
        squares = torch.nn.functional.pad(sizes.square(), (0, X.shape[1] - len(sizes)))
        return (right.mT / (1 + squares)) @ right
    inverse = rate_and_inverse(smaller_gram(rows), rows.new_ones(()))[1]
    if len(rows) > X.shape[1]:
        return inverse
    return torch.eye(X.shape[1], dtype=X.dtype, device=X.device) - rows.mT @ inverse @ rows


def coding_rate_gradient(features: Float[Tensor, "n d"], *, eps: float) -> Float[Tensor, "n d"]:
    r""":math:`\nabla R = XE = \alpha X (I + \alpha X^\top X)^{-1}`, without E where the features are fewer than the dimensions.

    Args:
        features: ``[n, d]``.
        eps: distortion, > 0; squared inside.
    Returns:
        ``[n, d]``.
    Raises:
        ValueError: see :func:`.coding_rate`.
    Source: :cite:t:`chan2022redunet`.
    """
    check_features(features, eps)
    alpha = features.shape[1] / (len(features) * eps**2)
    X = widened(features, alpha * features.square().sum())
    return weighted_resolvent(X, X.new_full((len(X),), alpha)).to(features.dtype)


def class_coding_rate_gradient(features: Float[Tensor, "n d"], labels: Memberships, *, eps: float) -> Float[Tensor, "n d"]:
    r""":math:`\nabla R^c = \sum_j \frac{n_j}{n}\Pi_j X C_j`; a class without samples adds nothing.

    Args:
        features: ``[n, d]``.
        labels: ``[n]``, or memberships ``[n, k]``, held fixed.
        eps: distortion, > 0; squared inside.
    Returns:
        ``[n, d]``.
    Raises:
        ValueError: see :func:`.class_coding_rates`.
    Source: :cite:t:`chan2022redunet`.
    """
    if not is_soft(labels):
        return -rates_and_gradient(features, labels, eps=eps, gamma2=0.0).gradient
    check_features(features, eps)
    counts = class_sizes(features, labels)
    weights = (features.shape[1] / eps**2) * class_shares(labels)
    X = widened(features, (features.square().sum(1).to(weights.dtype) @ weights).amax())
    total = torch.zeros_like(X)
    for size, w in zip(counts, weights.to(X.dtype).mT):
        total = total + (size / len(X)) * weighted_resolvent(X, w)
    return total.to(features.dtype)


def rate_reduction_gradient(features: Float[Tensor, "n d"], labels: Memberships, *, eps: float) -> Float[Tensor, "n d"]:
    r""":math:`\nabla\Delta R = \nabla R - \nabla R^c`: the direction in which a layer of ReduNet moves the features.

    Args, shapes and errors as in :func:`class_coding_rate_gradient`.

    Raises:
        ValueError: see :func:`.class_coding_rates`.
    Source: :cite:t:`chan2022redunet`.
    """
    if is_soft(labels):
        return coding_rate_gradient(features, eps=eps) - class_coding_rate_gradient(features, labels, eps=eps)
    return rates_and_gradient(features, labels, eps=eps).gradient
