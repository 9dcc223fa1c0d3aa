r"""Coding rates: how many nats it takes to describe features up to a distortion, for all of them, class by class, and in subspaces.

With rows :math:`x_i \in R^d`, :math:`X \in R^{n\times d}`, diagonal memberships :math:`\Pi_j` (:math:`X^\top\Pi_jX = X_j^\top X_j` of
the :math:`n_j` rows of class j if each sample belongs to one class; see :mod:`.memberships`) and distortion :math:`\epsilon`

.. math::
    R(X) &= \tfrac12 \log\det(I + \alpha X^\top X), \quad \alpha = d / (n\epsilon^2) \\
    R^c(X|\Pi) &= \sum_j \tfrac{n_j}{n} R_j,
    \quad R_j = \tfrac12 \log\det(I + \alpha_j X^\top \Pi_j X), \quad \alpha_j = d / (n_j\epsilon^2) \\
    \Delta R &= R - R^c \ge 0, \quad \text{with equality iff all } X^\top \Pi_j X / n_j \text{ are equal} \\
    R^c(X; U_{[K]}) &= \tfrac12 \sum_k \log\det(I + \beta (XU_k)^\top XU_k), \quad \beta = p / (n\epsilon^2).

Rates are in nats per sample, computed in the dtype of the features (inside in float64 where float32 could not hold them). Half precision
is refused: ΔR is a difference of numbers of like size, of which three digits leave nothing. ``eps`` is the distortion and is squared
here (released code often calls the square "eps").
The rates grow with the norm of the features: normalise first if rates of different features are to be compared (:func:`unit_norm`).

Source: :cite:t:`ma2007segmentation`, :cite:t:`yu2020learning` (R, R^c, ΔR), :cite:t:`yu2023white` (subspaces). Notation: docs/notation.md.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...maths.linalg import logdet_identity_plus
from .checks import check_features, check_tensor
from .memberships import Memberships, blocks, class_shares, class_sizes, is_soft
from .resolvents import weighted_logdets


def coding_rate(features: Float[Tensor, "*batch n d"], *, eps: float) -> Float[Tensor, "*batch"]:
    r"""Coding rate of n vectors, :math:`\tfrac12\log\det(I + \frac{d}{n\epsilon^2}X^\top X)`.

    >>> from transformer_theory import metrics
    >>> spread, line = torch.eye(2), torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # two directions, or twice the same
    >>> print(f"{metrics.coding_rate(spread, eps=1.0):.3f} against {metrics.coding_rate(line, eps=1.0):.3f} nats")
    0.693 against 0.549 nats

    Args:
        features: rows are samples, ``[*batch, n, d]``.
        eps: distortion, > 0, in the unit of the features; squared inside.
    Returns:
        ``[*batch]``, nats per sample, >= 0, differentiable.
    Raises:
        ValueError: eps is not positive, there is no sample, or features are not finite or not float32 or float64.
    Source: :cite:t:`ma2007segmentation`, :cite:t:`yu2020learning`.
    """
    check_features(features, eps)
    n, d = features.shape[-2:]
    return 0.5 * logdet_identity_plus(features, d / (n * eps**2))


def class_coding_rates(features: Float[Tensor, "n d"], labels: Memberships, *, eps: float) -> Float[Tensor, " classes"]:
    r"""Coding rate of each class on its own, :math:`R_j = \tfrac12\log\det(I + \alpha_j X^\top \Pi_j X)`; 0 for an empty class.

    With labels, classes of like size are one batched call on the smaller side: memory O(n d + k min(d, n_j)^2), never k n^2.
    With soft memberships the classes are taken in turn, O(n (d + k) + min(d, n)^2), and gradients reach the memberships too.

    Args:
        features: rows are samples, ``[n, d]``.
        labels: class of each sample, integers >= 0, ``[n]``, gaps allowed; or memberships ``[n, k]``, rows summing to one.
        eps: distortion, > 0; squared inside.
    Returns:
        one rate a class, ``[1 + largest label]`` or ``[k]``, nats per sample of that class, twice differentiable.
    Raises:
        ValueError: labels have the wrong length, type or sign, memberships do not sum to one, eps is not positive, there is no sample, or
            features are not finite or not float32 or float64.
    Source: :cite:t:`ma2007segmentation` (soft), :cite:t:`yu2020learning`.
    """
    check_features(features, eps)
    counts = class_sizes(features, labels)
    d = features.shape[-1]
    if is_soft(labels):
        return 0.5 * weighted_logdets(features, (d / eps**2) * class_shares(labels))
    padded = torch.cat([features, features.new_zeros(1, d)])  # row n is the padding
    rates = features.new_zeros(len(counts))
    for classes, rows in blocks(labels, counts):
        scales = d / (counts[classes].to(features.dtype) * eps**2)
        rates = rates.index_put((classes,), 0.5 * logdet_identity_plus(padded[rows], scales))
    return rates


def class_coding_rate(features: Float[Tensor, "n d"], labels: Memberships, *, eps: float) -> Float[Tensor, ""]:
    r"""Mean coding rate within classes, :math:`R^c = \sum_j \frac{n_j}{n} R_j` with the rates of :func:`class_coding_rates`.

    Args, errors and units as there.

    Returns:
        scalar, nats per sample, differentiable.
    Raises:
        ValueError: see :func:`class_coding_rates`.
    Source: :cite:t:`yu2020learning`.
    """
    rates = class_coding_rates(features, labels, eps=eps)
    return (class_sizes(features, labels).to(rates.dtype) / len(labels)) @ rates


def rate_reduction(features: Float[Tensor, "n d"], labels: Memberships, *, eps: float) -> Float[Tensor, ""]:
    r"""What knowing the classes saves, :math:`\Delta R = R - R^c \ge 0`; zero iff all classes have the same second moment.

    Maximise it over *normalised* features to learn representations (it is unbounded in their norm).

    >>> from transformer_theory import metrics
    >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])  # rows are samples
    >>> apart, mixed = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])  # a class a direction, or half of each
    >>> print(f"{metrics.rate_reduction(features, apart, eps=0.5):.3f} nats")
    0.511 nats
    >>> print(f"{metrics.rate_reduction(features, mixed, eps=0.5):.3f} nats")
    0.000 nats

    Args:
        features: rows are samples, ``[n, d]``.
        labels: class of each sample, integers >= 0, ``[n]``, or memberships ``[n, k]``.
        eps: distortion, > 0; squared inside.
    Returns:
        scalar, nats per sample, differentiable.
    Raises:
        ValueError: see :func:`class_coding_rates`.
    Source: :cite:t:`yu2020learning`.
    """
    return coding_rate(features, eps=eps) - class_coding_rate(features, labels, eps=eps)


def subspace_coding_rate(tokens: Float[Tensor, "*batch n d"], bases: Float[Tensor, "K d p"], *, eps: float) -> Float[Tensor, "*batch"]:
    r"""Coding rate of tokens projected on K subspaces, :math:`\tfrac12\sum_k\log\det(I + \frac{p}{n\epsilon^2}(XU_k)^\top XU_k)`.

    Args:
        tokens: rows are tokens, ``[*batch, n, d]``.
        bases: K bases as columns, ``[K, d, p]`` (orthonormal in the theory; not required).
        eps: distortion, > 0; squared inside.
    Returns:
        ``[*batch]``, nats, differentiable in both.
    Raises:
        ValueError: eps is not positive, there is no token, widths or dtypes differ, or tokens are not finite or not float32 or float64.
    Source: :cite:t:`yu2023white`.
    """
    check_features(tokens, eps)
    check_tensor("bases", bases)
    if bases.dtype != tokens.dtype:
        raise ValueError(f"bases must have the dtype of the tokens, {tokens.dtype}, got {bases.dtype}; convert one with .to(dtype)")
    if bases.ndim != 3 or bases.shape[1] != tokens.shape[-1]:
        raise ValueError(f"bases must have shape [K, d, p] with d = {tokens.shape[-1]}, got {list(bases.shape)}")
    together = tokens @ bases.transpose(0, 1).flatten(1)  # one product for all subspaces: 4x faster than a batch of thin ones
    projected = together.unflatten(-1, (len(bases), bases.shape[-1])).movedim(-2, -3).contiguous()
    return 0.5 * logdet_identity_plus(projected, bases.shape[-1] / (tokens.shape[-2] * eps**2)).sum(-1)


def unit_norm(features: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Each vector divided by its Euclidean norm (zero vectors stay zero): the constraint under which rate reductions are compared.

    Args:
        features: ``[*batch, d]``.
    Returns:
        ``[*batch, d]``, norms 1 (or 0).
    Raises:
        ValueError: features are no tensor of floating-point numbers.
    Source: :cite:t:`yu2020learning`.
    """
    check_tensor("features", features)
    if not features.is_floating_point():
        raise ValueError(f"features must be floating-point numbers, got {features.dtype}; convert with .double()")
    largest = features.abs().amax(-1, keepdim=True)
    scaled = features / torch.where(largest > 0, largest, 1)  # neither overflow nor underflow in the squares
    norms = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return scaled / torch.where(norms > 0, norms, 1)
