r"""Coding lengths: how many bits n samples take altogether, with the subspaces that they are coded in, up to a distortion.

Where a rate counts nats a sample, a length counts everything that must be sent: n coefficients and d more for the subspace,

.. math::
    L(X) &= \tfrac{n+d}{2} \log_2\det(I + \tfrac{d}{n\epsilon^2}X^\top X) = (n + d)\, R(X) / \ln 2 \\
    L^s(X, \Pi) &= \sum_j \big[\tfrac{n_j+d}{2} \log_2\det(I + \tfrac{d}{n_j\epsilon^2}X^\top\Pi_jX) - n_j\log_2\tfrac{n_j}{n}\big].

The last term names each sample's group. Grouping samples of different subspaces apart shortens :math:`L^s`; splitting one subspace
lengthens it, for each group pays for its own d. Samples with mean :math:`\mu \ne 0` are coded as the mean,
:math:`\tfrac d2\log_2(1 + \|\mu\|^2/\epsilon^2)` bits, and the deviations from it.

Source: :cite:t:`ma2007segmentation`; notation as in :mod:`.rates`.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from .checks import check_features, check_finite
from .memberships import Memberships, class_sizes
from .rates import class_coding_rates, coding_rate


def coding_length(features: Float[Tensor, "n d"], *, eps: float) -> Float[Tensor, ""]:
    r"""Bits for n samples and their subspace, :math:`L = \tfrac{n+d}{2}\log_2\det(I + \frac{d}{n\epsilon^2}X^\top X)`.

    Args:
        features: rows are samples, ``[n, d]``, taken to have mean zero (:func:`centred_coding_length` if not).
        eps: distortion, > 0; squared inside.
    Returns:
        scalar, bits, >= 0, differentiable.
    Raises:
        ValueError: see :func:`.coding_rate`.
    Source: :cite:t:`ma2007segmentation`.
    """
    return sum(features.shape) / math.log(2) * coding_rate(features, eps=eps)


def mean_coding_length(features: Float[Tensor, "n d"], *, eps: float) -> Float[Tensor, ""]:
    r"""Bits for the mean of the samples, :math:`\tfrac d2\log_2(1 + \|\mu\|^2/\epsilon^2)`.

    Args:
        features: rows are samples, ``[n, d]``.
        eps: distortion, > 0; squared inside.
    Returns:
        scalar, bits, >= 0, differentiable.
    Raises:
        ValueError: see :func:`.coding_rate`.
    Source: :cite:t:`ma2007segmentation`.
    """
    check_features(features, eps)
    check_finite(features)
    return features.shape[1] / (2 * math.log(2)) * torch.log1p((features.mean(0) / eps).square().sum())


def centred_coding_length(features: Float[Tensor, "n d"], *, eps: float) -> Float[Tensor, ""]:
    r"""Bits for samples whose mean is not zero: the mean, and L of the deviations from it.

    Args:
        features: rows are samples, ``[n, d]``.
        eps: distortion, > 0; squared inside.
    Returns:
        scalar, bits, >= 0, differentiable.
    Raises:
        ValueError: see :func:`.coding_rate`.
    Source: :cite:t:`ma2007segmentation`.
    """
    return mean_coding_length(features, eps=eps) + coding_length(features - features.mean(0), eps=eps)


def segmented_coding_length(features: Float[Tensor, "n d"], labels: Memberships, *, eps: float) -> Float[Tensor, ""]:
    r"""Bits for samples coded group by group, :math:`L^s`, with the bits that say which sample is in which group.

    Args:
        features: rows are samples, ``[n, d]``.
        labels: group of each, integers >= 0, ``[n]``, or memberships ``[n, k]``; an empty group costs nothing.
        eps: distortion, > 0; squared inside.
    Returns:
        scalar, bits, >= 0, differentiable.
    Raises:
        ValueError: see :func:`.class_coding_rates`.
    Source: :cite:t:`ma2007segmentation`.
    """
    rates = class_coding_rates(features, labels, eps=eps)
    sizes = class_sizes(features, labels).to(rates.dtype)
    n, d = features.shape
    return ((sizes + d) @ rates + n * torch.special.entr(sizes / n).sum()) / math.log(2)
