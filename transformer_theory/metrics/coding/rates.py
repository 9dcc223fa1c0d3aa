r"""Coding rates and coding lengths: numbers of nats or bits that describe features up to a distortion.

Notation: :math:`X \in R^{n\times d}` has rows :math:`x_i`, :math:`\Pi_j` are diagonal memberships (see
:mod:`.memberships`), and
:math:`\epsilon` is the distortion. If each sample belongs to one class, :math:`X^\top\Pi_jX = X_j^\top X_j`,
where :math:`X_j` has the :math:`n_j` rows of class j.

.. math::
    R(X) &= \tfrac12 \log\det(I + \alpha X^\top X), \quad \alpha = d / (n\epsilon^2) \\
    R^c(X|\Pi) &= \sum_j \tfrac{n_j}{n} R_j,
    \quad R_j = \tfrac12 \log\det(I + \alpha_j X^\top \Pi_j X), \quad \alpha_j = d / (n_j\epsilon^2) \\
    \Delta R &= R - R^c \ge 0, \quad \text{with equality iff all } X^\top \Pi_j X / n_j \text{ are equal} \\
    R^c(X; U_{[K]}) &= \tfrac12 \sum_k \log\det(I + \beta (XU_k)^\top XU_k), \quad \beta = p / (n\epsilon^2).

Rates are in nats per sample, in the dtype of the features (computed in float64 where float32 is not precise
enough). ``eps`` is the distortion and is squared inside; released code often calls the square "eps". Rates
grow with the norm of the features, so normalise the features before you compare rates (:func:`unit_norm`).

A rate is a number of nats per sample. A length is a total number of bits: n code words for the samples and d
for their subspace,

.. math::
    L(X) &= \tfrac{n+d}{2} \log_2\det(I + \tfrac{d}{n\epsilon^2}X^\top X) = (n + d)\, R(X) / \ln 2 \\
    L^s(X, \Pi) &= \sum_j \big[\tfrac{n_j+d}{2} \log_2\det(I + \tfrac{d}{n_j\epsilon^2}X^\top\Pi_jX) -
    n_j\log_2\tfrac{n_j}{n}\big].

The last term encodes the group of each sample. Grouping samples by subspace shortens :math:`L^s`; splitting
one subspace into two groups lengthens it, because each group needs its own d code words. For samples with
mean :math:`\mu \ne 0`, the mean is coded with
:math:`\tfrac d2\log_2(1 + \|\mu\|^2/\epsilon^2)` bits, and the deviations are coded separately.

Source: :cite:t:`ma2007segmentation` (R, lengths), :cite:t:`yu2020learning` (R, R^c, ΔR),
:cite:t:`yu2023white` (subspaces). Notation: docs/notation.md.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import converted, finite, same_dtype
from ...maths.linalg import LARGEST_FLOAT32_CONDITION, binary_scale, logdet_identity_plus, smaller_gram
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
from .resolvents import weighted_logdets

SMALL_TRACE = 1e-2  # trace of matrices added to identities below which a difference of rates is a series


@converted(floats=("features",))
def coding_rate(features: Float[Tensor, "*batch n d"], *, eps: float) -> Float[Tensor, "*batch"]:
    r"""Computes the coding rate of n vectors, :math:`\tfrac12\log\det(I + \frac{d}{n\epsilon^2}X^\top X)`.

    >>> from transformer_theory import metrics
    >>> spread, line = torch.eye(2), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> rates = [metrics.coding_rate(features, eps=1.0) for features in (spread, line)]
    >>> print(f"{rates[0]:.3f} against {rates[1]:.3f} nats")
    0.693 against 0.549 nats

    Args:
        features: one row per sample, ``[*batch, n, d]``.
        eps: distortion, > 0, in the unit of the features; squared inside.
    Returns:
        ``[*batch]``, nats per sample, >= 0, differentiable.
    Raises:
        ValueError: eps is not positive, there is no sample, a feature is not finite, or d ||X||^2 / (n eps^2)
            exceeds 1e10 for features of less than full rank.
        TypeError: features are not real numbers.
    """
    check_features(features, eps)
    n, d = features.shape[-2:]
    return 0.5 * logdet_identity_plus(features, d / (n * eps**2))


@labelled
def class_coding_rates(
    features: Float[Tensor, "n d"], labels: Memberships, *, eps: float
) -> Float[Tensor, " classes"]:
    r"""Computes the coding rate of each class, :math:`R_j = \tfrac12\log\det(I + \alpha_j X^\top \Pi_j X)`; 0
    for an empty class.

    With labels, classes of similar size are computed in one batched call on the smaller Gram matrices, with
    O(n d + k min(d, n_j)^2) memory, never k n^2. With soft memberships, classes are computed one after the
    other with O(n (d + k) + min(d, n)^2) memory, and the rates are differentiable in the memberships too.

    Args:
        features: one row per sample, ``[n, d]``.
        labels: class of each sample, integers >= 0, booleans or words, ``[n]``, gaps allowed; samples with
            negative labels are left out, also in what follows from these rates. Or memberships ``[n, k]``,
            rows summing to one.
        eps: distortion, > 0; squared inside.
    Returns:
        One rate per class, ``[1 + largest label]`` or ``[k]``, nats per sample of that class, twice
        differentiable.
    Raises:
        ValueError: labels have the wrong length, type or sign, memberships do not sum to one, eps is not
            positive, there is no sample, a feature is not finite, or d ||X||^2 / (n eps^2) of a class exceeds
            1e10 for features of less than full rank.
        TypeError: features are not real numbers.
    """
    check_features(features, eps)
    features, labels = with_labels(features, labels)
    counts = class_sizes(features, labels)
    features, eps, _ = ordinary_scale(features, eps)
    d = features.shape[-1]
    if is_soft(labels):
        return 0.5 * weighted_logdets(features, (d / eps**2) * class_shares(labels))
    # Row n is zero and pads the classes of a group to one size: rows of zeros do not change the
    # log-determinant.
    padded = torch.cat([features, features.new_zeros(1, d)])
    rates = features.new_zeros(len(counts))
    for classes, rows in blocks(labels, counts):
        scales = d / (counts[classes].to(features.dtype) * eps**2)
        rates = rates.index_put((classes,), 0.5 * logdet_identity_plus(padded[rows], scales))
    return rates


@labelled
def class_coding_rate(
    features: Float[Tensor, "n d"], labels: Memberships, *, eps: float
) -> Float[Tensor, ""]:
    r"""Computes the mean coding rate within classes, :math:`R^c = \sum_j \frac{n_j}{n} R_j`.

    The arguments and the rates :math:`R_j` are those of :func:`class_coding_rates`.

    Returns:
        Scalar, nats per sample, differentiable.
    Raises:
        ValueError, TypeError: see :func:`class_coding_rates`.
    """
    features, labels = with_labels(features, labels)
    rates = class_coding_rates(features, labels, eps=eps)
    return (class_sizes(features, labels).to(rates.dtype) / len(labels)) @ rates


@labelled
def rate_reduction(features: Float[Tensor, "n d"], labels: Memberships, *, eps: float) -> Float[Tensor, ""]:
    r"""Computes the number of nats per sample that coding each class separately saves, :math:`\Delta R = R -
    R^c \ge 0`.

    It is 0 if and only if all classes have the same second moment. A difference of two rates may fall below
    zero by rounding, in float32 by about 6e-8 of a rate. As an
    objective it needs *normalised* features, because it grows with their norm without bound.

    >>> from transformer_theory import metrics
    >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])  # rows are samples
    >>> apart, mixed = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    >>> print(f"{metrics.rate_reduction(features, apart, eps=0.5):.3f} nats")
    0.511 nats
    >>> print(f"{metrics.rate_reduction(features, mixed, eps=0.5):.3f} nats")
    0.000 nats

    Args:
        features: one row per sample, ``[n, d]``.
        labels: class of each sample, integers >= 0, ``[n]``, or memberships ``[n, k]``.
        eps: distortion, > 0; squared inside.
    Returns:
        Scalar, nats per sample, differentiable, >= 0 up to rounding.
    Raises:
        ValueError, TypeError: see :func:`class_coding_rates`.
    """
    check_features(features, eps)
    features, labels = with_labels(features, labels)
    class_sizes(features, labels)
    scaled, distortion, _ = ordinary_scale(features, eps)
    trace, dtype = largest_trace(scaled, labels, distortion), features.dtype
    if trace < SMALL_TRACE:
        return _small_reduction(scaled, labels, eps=distortion)
    if LARGEST_FLOAT32_CONDITION < trace <= torch.finfo(dtype).max:
        features = features.double()  # as both rates are computed, so that their difference keeps its digits
    return (coding_rate(features, eps=eps) - class_coding_rate(features, labels, eps=eps)).to(dtype)


def _small_reduction(features: Tensor, labels: Memberships, *, eps: float) -> Tensor:
    r"""Computes :math:`\Delta R` of small features, in float64. The terms of first order in
    :math:`A_j = \alpha_j X^\top\Pi_jX` cancel if the memberships sum to one, and what remains would drown in
    their rounding errors.
    """
    (n, d), X = features.shape, features.double()
    ratio = d / eps**2
    value = _beyond_first_order(ratio / n * smaller_gram(X))
    if is_soft(labels):
        memberships = labels.double()
        value = value + ratio / n * (1 - memberships.sum(1)) @ X.square().sum(1)
        for size, w in zip(memberships.sum(0), class_shares(memberships).mT):
            value = value - size / n * _beyond_first_order(ratio * X.mT @ (w[:, None] * X))
        return (0.5 * value).to(features.dtype)
    counts = class_sizes(features, labels)
    padded = torch.cat([X, X.new_zeros(1, d)])
    for classes, rows in blocks(labels, counts):
        sizes = counts[classes].double()
        grams = (ratio / sizes)[:, None, None] * smaller_gram(padded[rows])
        value = value - (sizes / n) @ _beyond_first_order(grams)
    return (0.5 * value).to(features.dtype)


def _beyond_first_order(A: Float[Tensor, "*batch m m"]) -> Float[Tensor, "*batch"]:
    r"""Computes :math:`\log\det(I + A) - \mathrm{tr} A` by its series up to :math:`\mathrm{tr} A^7`, whose
    relative error is of the order of :math:`(\mathrm{tr} A)^6`.
    """
    A2 = A @ A
    A3, A4 = A2 @ A, A2 @ A2
    pairs = ((A, A), (A2, A), (A2, A2), (A2, A3), (A3, A3), (A3, A4))  # powers 2 to 7
    traces = [(left * right.mT).sum((-2, -1)) for left, right in pairs]
    return torch.stack([(-1) ** (k + 1) / k * trace for k, trace in enumerate(traces, 2)]).sum(0)


@converted(floats=("tokens", "bases"))
def subspace_coding_rate(
    tokens: Float[Tensor, "*batch n d"], bases: Float[Tensor, "K d p"], *, eps: float
) -> Float[Tensor, "*batch"]:
    r"""Computes the coding rate of tokens in K subspaces, :math:`\tfrac12\sum_k\log\det(I +
    \frac{p}{n\epsilon^2}(XU_k)^\top XU_k)`.

    Args:
        tokens: one row per token, ``[*batch, n, d]``.
        bases: K bases as columns, ``[K, d, p]`` (orthonormal in the theory; not required).
        eps: distortion, > 0; squared inside.
    Returns:
        ``[*batch]``, nats, differentiable in tokens and bases.
    Raises:
        ValueError: eps is not positive, there is no token, widths or dtypes differ, or a token is not finite.
    """
    check_features(tokens, eps)
    same_dtype(tokens=tokens, bases=bases)
    if bases.ndim != 3 or bases.shape[1] != tokens.shape[-1]:
        raise ValueError(
            f"bases must have shape [K, d, p] with d = {tokens.shape[-1]}, got {list(bases.shape)}"
        )
    return 0.5 * logdet_identity_plus(
        coordinates(tokens, bases), bases.shape[-1] / (tokens.shape[-2] * eps**2)
    ).sum(-1)


def coordinates(
    tokens: Float[Tensor, "*batch n d"], bases: Float[Tensor, "K d p"]
) -> Float[Tensor, "*batch K n p"]:
    r"""Computes the coordinates :math:`XU_k` of tokens in K subspaces by one product with :math:`[U_1 \dots
    U_K]`.
    """
    # This is four times as fast as a batch of K thin products. [*batch, n, K p] -> [*batch, K, n, p]
    products = tokens @ bases.transpose(0, 1).flatten(1)
    return products.unflatten(-1, (len(bases), bases.shape[-1])).movedim(-2, -3).contiguous()


@converted(floats=("features",))
def unit_norm(features: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Divides each vector by its Euclidean norm; zero vectors stay zero. Rate reductions of normalised
    features are comparable.

    Args:
        features: vectors, ``[*batch, d]``.
    Returns:
        ``[*batch, d]``, norms 1 (or 0).
    Raises:
        ValueError: there are no entries along the last axis, or a vector is not finite.
        TypeError: features are not real numbers.
    """
    if not features.ndim or not features.shape[-1]:
        raise ValueError(f"features must have shape [*batch, d] with d >= 1, got {list(features.shape)}")
    finite(features=features)
    return normalised(features)


def normalised(features: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Computes :func:`unit_norm` without checks; a vector that is not finite becomes NaN."""
    largest = features.abs().amax(-1, keepdim=True)
    # The largest scaled entry is 1, so the sum of squares neither overflows nor underflows.
    scaled = features / torch.where(largest > 0, largest, 1)
    norms = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return scaled / torch.where(norms > 0, norms, 1)


@converted(floats=("features",))
def coding_length(features: Float[Tensor, "n d"], *, eps: float) -> Float[Tensor, ""]:
    r"""Computes the length of n samples and their subspace, :math:`L = \tfrac{n+d}{2}\log_2\det(I +
    \frac{d}{n\epsilon^2}X^\top X)`.

    Args:
        features: one row per sample, ``[n, d]``, with mean zero; for other samples use
            :func:`centred_coding_length`.
        eps: distortion, > 0; squared inside.
    Returns:
        Scalar, bits, >= 0, differentiable.
    Raises:
        ValueError, TypeError: see :func:`coding_rate`.
    """
    return sum(features.shape) / math.log(2) * coding_rate(features, eps=eps)


@converted(floats=("features",))
def mean_coding_length(features: Float[Tensor, "n d"], *, eps: float) -> Float[Tensor, ""]:
    r"""Computes the number of bits for the mean of the samples, :math:`\tfrac d2\log_2(1 +
    \|\mu\|^2/\epsilon^2)`.

    For arguments and errors (it raises ValueError or TypeError) see :func:`coding_length`.
    """
    check_features(features, eps)
    finite(features=features)
    # ||mean||^2 / eps^2 = square 4^exponent; powers of two are taken out of features, eps and quotient.
    mantissa, exponent = math.frexp(eps)
    inner = binary_scale(features, (0, 1))
    mean = (features / inner).mean(0) / mantissa
    outer = binary_scale(mean, 0)
    square = (mean / outer).square().sum()
    exponent = sum(math.frexp(float(scale))[1] - 1 for scale in (inner, outer)) - exponent
    # Beyond 4^30, adding 1 changes no digit.
    inside = min(exponent, 30)
    bits = torch.log1p(square * 4.0**inside) / math.log(2) + 2 * (exponent - inside)
    return features.shape[1] / 2 * bits


@converted(floats=("features",))
def centred_coding_length(features: Float[Tensor, "n d"], *, eps: float) -> Float[Tensor, ""]:
    r"""Computes the number of bits for samples with any mean: bits for the mean, plus L of the deviations
    from it.

    For arguments and errors (it raises ValueError or TypeError) see :func:`coding_length`.
    """
    return mean_coding_length(features, eps=eps) + coding_length(features - features.mean(0), eps=eps)


@labelled
def segmented_coding_length(
    features: Float[Tensor, "n d"], labels: Memberships, *, eps: float
) -> Float[Tensor, ""]:
    r"""Computes the number of bits for samples coded group by group, :math:`L^s`, including bits for the
    group of each sample.

    Args:
        features: one row per sample, ``[n, d]``.
        labels: group of each sample, integers >= 0, ``[n]``, or memberships ``[n, k]``; an empty group needs
            no bits.
        eps: distortion, > 0; squared inside.
    Returns:
        Scalar, bits, >= 0, differentiable.
    Raises:
        ValueError, TypeError: see :func:`class_coding_rates`.
    """
    features, labels = with_labels(features, labels)
    rates = class_coding_rates(features, labels, eps=eps)
    sizes = class_sizes(features, labels).to(rates.dtype)
    n, d = features.shape
    return ((sizes + d) @ rates + n * torch.special.entr(sizes / n).sum()) / math.log(2)
