r"""Coding rates: how many nats it takes to describe features up to a distortion, for all of them, class by class, and in subspaces.

With rows :math:`x_i \in R^d`, :math:`X \in R^{n\times d}`, :math:`X_j` the :math:`n_j` rows of class j and distortion :math:`\epsilon`

.. math::
    R(X) &= \tfrac12 \log\det(I + \alpha X^\top X), \quad \alpha = d / (n\epsilon^2) \\
    R^c(X|y) &= \sum_j \tfrac{n_j}{n} R_j, \quad R_j = \tfrac12 \log\det(I + \alpha_j X_j^\top X_j), \quad \alpha_j = d / (n_j\epsilon^2) \\
    \Delta R &= R - R^c \ge 0, \quad \text{with equality iff all } X_j^\top X_j / n_j \text{ are equal} \\
    R^c(X; U_{[K]}) &= \tfrac12 \sum_k \log\det(I + \beta (XU_k)^\top XU_k), \quad \beta = p / (n\epsilon^2).

Rates are in nats per sample. ``eps`` is the distortion and is squared here (released code often calls the square "eps").
The rates grow with the norm of the features: normalise first if rates of different features are to be compared (:func:`unit_norm`).

Source: :cite:t:`ma2007segmentation`, :cite:t:`yu2020learning` (R, R^c, ΔR), :cite:t:`yu2023white` (subspaces). Notation: docs/notation.md.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..linalg import logdet, logdet_identity_plus


def coding_rate(features: Float[Tensor, "*batch n d"], *, eps: float) -> Float[Tensor, "*batch"]:
    r"""Coding rate of n vectors, :math:`\tfrac12\log\det(I + \frac{d}{n\epsilon^2}X^\top X)`.

    Args:
        features: rows are samples, ``[*batch, n, d]``.
        eps: distortion, > 0, in the unit of the features; squared inside.
    Returns:
        ``[*batch]``, nats per sample, >= 0, differentiable.
    Raises:
        ValueError: eps is not positive, there is no sample, or a feature is not finite.
    Source: :cite:t:`ma2007segmentation`, :cite:t:`yu2020learning`.
    """
    _check_features(features, eps)
    n, d = features.shape[-2:]
    return 0.5 * logdet_identity_plus(features, d / (n * eps**2))


def class_coding_rates(features: Float[Tensor, "n d"], labels: Int[Tensor, " n"], *, eps: float) -> Float[Tensor, " classes"]:
    r"""Coding rate of each class on its own, :math:`R_j = \tfrac12\log\det(I + \frac{d}{n_j\epsilon^2}X_j^\top X_j)`; 0 for an empty class.

    Samples are sorted by class and padded to blocks (classes of like size share a block), so that all Cholesky factors of a block are
    one batched call on the smaller side: memory O(n d + k min(d, n_j)^2), never k n^2.

    Args:
        features: rows are samples, ``[n, d]``.
        labels: class of each sample, integers >= 0, ``[n]``; gaps are allowed.
        eps: distortion, > 0; squared inside.
    Returns:
        one rate a class, ``[1 + largest label]``, nats per sample of that class, differentiable.
    Raises:
        ValueError: labels have the wrong length, type or sign, eps is not positive, there is no sample, or a feature is not finite.
    Source: :cite:t:`yu2020learning`.
    """
    _check_features(features, eps)
    counts = _check_labels(features, labels)
    d = features.shape[-1]
    order = torch.argsort(labels, stable=True)
    starts = counts.cumsum(0) - counts
    padded = torch.cat([features, features.new_zeros(1, d)])  # row n is the padding
    rates = features.new_zeros(len(counts))
    for classes in _like_sizes(counts):
        sizes = counts[classes]
        place = torch.arange(int(sizes.max()), device=labels.device)
        inside = place < sizes[:, None]
        rows = torch.where(inside, order[(starts[classes, None] + place).clamp(max=len(labels) - 1)], len(labels))
        scales = d / (sizes.to(torch.promote_types(features.dtype, torch.float32)) * eps**2)
        rates = rates.index_put((classes,), 0.5 * logdet_identity_plus(padded[rows], scales))
    return rates


def class_coding_rate(features: Float[Tensor, "n d"], labels: Int[Tensor, " n"], *, eps: float) -> Float[Tensor, ""]:
    r"""Mean coding rate within classes, :math:`R^c = \sum_j \frac{n_j}{n} R_j` with the rates of :func:`class_coding_rates`.

    Args, errors and units as there.

    Returns:
        scalar, nats per sample, differentiable.
    Raises:
        ValueError: see :func:`class_coding_rates`.
    Source: :cite:t:`yu2020learning`.
    """
    rates = class_coding_rates(features, labels, eps=eps)
    return (torch.bincount(labels).to(rates.dtype) / len(labels)) @ rates


def rate_reduction(features: Float[Tensor, "n d"], labels: Int[Tensor, " n"], *, eps: float) -> Float[Tensor, ""]:
    r"""What knowing the classes saves, :math:`\Delta R = R - R^c \ge 0`; zero iff all classes have the same second moment.

    Maximise it over *normalised* features to learn representations (it is unbounded in their norm).

    Args:
        features: rows are samples, ``[n, d]``.
        labels: class of each sample, integers >= 0, ``[n]``.
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
        ValueError: eps is not positive, there is no token, widths differ, or a value is not finite.
    Source: :cite:t:`yu2023white`.
    """
    _check_features(tokens, eps)
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
    Source: :cite:t:`yu2020learning`.
    """
    largest = features.abs().amax(-1, keepdim=True)
    scaled = features / torch.where(largest > 0, largest, 1)  # neither overflow nor underflow in the squares
    norms = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return scaled / torch.where(norms > 0, norms, 1)


class SecondMoments:
    r"""Per-class second moments :math:`X_j^\top X_j` and counts: all that coding rates need, streamed and mergeable by addition.

    Exact: the rates equal those of the functions on all samples at once, at a memory of O(k d^2) whatever n is. Sums are kept in float64.
    Classes and dimension are learned from the data; merging states of different numbers of classes pads with empty ones.

    Attributes:
        counts: samples of each class, ``[classes]``.
        moments: sums of outer products, ``[classes, d, d]`` float64.
    Source: :cite:t:`yu2020learning` (the rates).
    """

    counts: Int[Tensor, " classes"]
    moments: Float[Tensor, "classes d d"]

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.moments = torch.zeros(0, 0, 0, dtype=torch.float64)

    def update(self, features: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> None:
        """Adds samples (detached; the state lives on the device of the first ones).

        Args:
            features: rows are samples, ``[n, d]``.
            labels: class of each, integers >= 0, ``[n]``.
        Raises:
            ValueError: labels do not fit the features, a feature is not finite, or the dimension differs from before.
        """
        if not bool(torch.isfinite(features).all()):
            raise ValueError(f"features must be finite, got {int((~torch.isfinite(features)).sum())} NaN or infinite values; drop them")
        counts = _check_labels(features, labels).to(features.device)
        rows = features.detach().double()
        moments = rows.new_zeros(len(counts), rows.shape[1], rows.shape[1])
        for j in counts.nonzero()[:, 0].tolist():
            own = rows[labels == j]
            moments[j] = own.mT @ own
        self._add(counts, moments)

    def merge(self, other: "SecondMoments") -> None:
        """Adds another state: the result is the state of the union of the samples.

        Raises:
            ValueError: the dimensions differ.
        """
        if len(other.counts):
            self._add(other.counts, other.moments)

    def _add(self, counts: Tensor, moments: Tensor) -> None:
        if not len(self.counts):
            self.counts, self.moments = counts.clone(), moments.clone()
            return
        if moments.shape[-1] != self.moments.shape[-1]:
            raise ValueError(f"features must keep their dimension {self.moments.shape[-1]}, got {moments.shape[-1]}; use another state")
        classes, device = max(len(counts), len(self.counts)), self.counts.device
        self.counts = _grown(self.counts, classes) + _grown(counts.to(device), classes)
        self.moments = _grown(self.moments, classes) + _grown(moments.to(device), classes)

    def coding_rate(self, *, eps: float) -> Float[Tensor, ""]:
        """R of all samples seen, nats; see :func:`coding_rate`. Raises ValueError if nothing was seen or eps is not positive."""
        self._check(eps)
        return 0.5 * self._logdets(self.moments.sum(0), self.counts.sum(), eps)

    def class_coding_rates(self, *, eps: float) -> Float[Tensor, " classes"]:
        """R_j of each class, nats, 0 for empty ones; see :func:`class_coding_rates`. Raises ValueError as :meth:`coding_rate`."""
        self._check(eps)
        return 0.5 * self._logdets(self.moments, self.counts.clamp(min=1), eps)

    def class_coding_rate(self, *, eps: float) -> Float[Tensor, ""]:
        """R^c, nats; see :func:`class_coding_rate`. Raises ValueError as :meth:`coding_rate`."""
        rates = self.class_coding_rates(eps=eps)
        shares = self.counts.double() / self.counts.sum()
        return shares @ rates

    def rate_reduction(self, *, eps: float) -> Float[Tensor, ""]:
        """ΔR, nats; see :func:`rate_reduction`. Raises ValueError as :meth:`coding_rate`."""
        return self.coding_rate(eps=eps) - self.class_coding_rate(eps=eps)

    def _check(self, eps: float) -> None:
        _check_eps(eps)
        if not int(self.counts.sum()):
            raise ValueError("a coding rate needs at least one sample, the state is empty; call update first")

    @staticmethod
    def _logdets(moments: Tensor, counts: Tensor, eps: float) -> Tensor:
        d = moments.shape[-1]
        return logdet(
            torch.eye(d, dtype=moments.dtype, device=moments.device) + (d / (counts.double() * eps**2))[..., None, None] * moments
        )


def _grown(tensor: Tensor, classes: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(classes - len(tensor), *tensor.shape[1:])])


def _like_sizes(counts: Tensor) -> list[Tensor]:
    """Groups of classes whose sizes are within a factor of two, so that padding at most doubles the memory; empty classes are left out."""
    present = counts.nonzero()[:, 0]
    octave = torch.floor(torch.log2(counts[present].double())).long()
    if int(counts.max()) < 2 * int(counts[present].min()):
        return [present]
    return [present[octave == o] for o in octave.unique()]


def _check_eps(eps: float) -> None:
    if not 0 < eps < float("inf"):
        raise ValueError(f"eps must be a positive distortion (it is squared inside), got {eps}")


def _check_features(features: Tensor, eps: float) -> None:
    _check_eps(eps)
    if features.ndim < 2 or 0 in features.shape[-2:]:
        raise ValueError(f"features must have shape [*batch, n, d] with n, d >= 1, got {list(features.shape)}")


def _check_labels(features: Tensor, labels: Tensor) -> Tensor:
    """Samples per class."""
    if features.ndim != 2 or labels.ndim != 1 or len(features) != len(labels):
        raise ValueError(f"features [n, d] need one label each, labels [n]; got {list(features.shape)} and {list(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, got {labels.dtype}; convert with .long()")
    if not len(labels):
        raise ValueError("features must hold at least one sample, got none")
    if int(labels.min()) < 0:
        raise ValueError(f"labels must be 0, 1, ..., got {int(labels.min())}; relabel from zero")
    return torch.bincount(labels)
