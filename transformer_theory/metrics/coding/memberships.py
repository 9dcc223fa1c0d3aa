r"""Which class a sample belongs to: integer labels, or soft memberships whose rows sum to one.

The papers write a diagonal matrix a class, :math:`\Pi_j \in R^{n\times n}`, :math:`\Pi_j \ge 0`, :math:`\sum_j \Pi_j = I`; here the
diagonals stand side by side as the columns of ``[n, k]``, and a label is a row with a single one. A class holds
:math:`n_j = \mathrm{tr}\,\Pi_j` samples.

Source: :cite:t:`ma2007segmentation`, :cite:t:`yu2020learning`.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .checks import check_integers, check_tensor

Memberships = Int[Tensor, " n"] | Float[Tensor, "n k"]
"""Labels ``[n]``, integers >= 0, or soft memberships ``[n, k]``, float32 or float64, >= 0, rows summing to one."""

SUM_TOLERANCE = 1e-4  # a softmax in float32 keeps its sums to 1e-6
MOST_EMPTY = 100_000  # classes beyond the number of samples, all empty: more are numbers that stand for something else


def is_soft(labels: Memberships) -> bool:
    """Whether classes are given as soft memberships ``[n, k]`` instead of labels ``[n]``."""
    check_tensor("labels", labels)
    return labels.ndim == 2 and labels.is_floating_point()


def class_sizes(features: Float[Tensor, "n d"], labels: Memberships) -> Int[Tensor, " classes"] | Float[Tensor, " classes"]:
    r"""Samples of each class, :math:`n_j`: integers for labels, sums of weights for soft memberships (differentiable).

    Args:
        features: ``[n, d]``, looked at for their number alone.
        labels: ``[n]`` or ``[n, k]``.
    Returns:
        ``[1 + largest label]`` or ``[k]``; zero for a class without samples.
    Raises:
        ValueError: lengths differ, there is no sample, labels are no integers >= 0 or exceed the number of samples by more than 100,000,
            or memberships are no float32 or float64 numbers >= 0 whose rows sum to one.
    """
    check_tensor("features", features)
    check_tensor("labels", labels)
    if labels.ndim == 2 and labels.shape[1] == 1 and not labels.is_floating_point():
        raise ValueError(f"labels must have shape [n], got {list(labels.shape)}; pass labels.squeeze(1)")
    if features.ndim != 2 or labels.ndim not in (1, 2) or len(features) != len(labels):
        raise ValueError(
            f"features [n, d] need one label each, labels [n], or memberships [n, k]; got {list(features.shape)} and {list(labels.shape)}"
        )
    if not len(labels):
        raise ValueError("features must hold at least one sample, got none")
    if labels.ndim == 2:
        return _weights(labels)
    check_integers(labels)
    if int(labels.min()) < 0:
        raise ValueError(f"labels must be 0, 1, ..., got {int(labels.min())}; relabel from zero")
    if int(labels.max()) >= len(labels) + MOST_EMPTY:
        raise ValueError(
            f"labels must be 0..k-1, got {int(labels.max())} for {len(labels)} samples; "
            "relabel with torch.unique(labels, return_inverse=True)[1]"
        )
    return torch.bincount(labels)


def class_shares(memberships: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    r"""What part of its class a sample is, :math:`\Pi_j / n_j`, columns summing to one; zeros for a class without samples.

    Each column is divided by its largest weight first. The quotient does not depend on that, but neither it nor its derivative then has an
    :math:`n_j^2` in it, which underflows for a class that hardly exists.

    Args:
        memberships: >= 0, ``[n, k]``.
    Returns:
        ``[n, k]``, in [0, 1], differentiable.
    """
    largest = memberships.detach().amax(0)
    relative = memberships / torch.where(largest > 0, largest, 1)
    return relative / torch.where(largest > 0, relative.sum(0), 1)


def _weights(memberships: Tensor) -> Tensor:
    if memberships.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"memberships [n, k] must be float32 or float64, got {memberships.dtype}; for labels pass integers [n]")
    if not bool((memberships >= 0).all()):  # NaN is refused too
        raise ValueError("memberships must be >= 0, got a negative or NaN weight; take a softmax of scores")
    error = float((memberships.detach().sum(1) - 1).abs().max()) if memberships.shape[1] else 1.0
    if not error <= SUM_TOLERANCE:
        raise ValueError(f"each row of the memberships [n, k] must sum to 1, got one that is {error:.2g} off; divide by memberships.sum(1)")
    return memberships.sum(0)


def blocks(labels: Int[Tensor, " n"], counts: Int[Tensor, " classes"]) -> Iterator[tuple[Int[Tensor, " c"], Int[Tensor, "c size"]]]:
    """Classes of like size together, so that each group is one batched call: sizes within a factor of two, empty classes left out.

    Args:
        labels: class of each sample.
        counts: samples of each class.
    Yields:
        the classes of a group ``[c]``, and the samples of each, ``[c, size of the largest]``, padded with the index n.
    """
    order = torch.argsort(labels, stable=True)
    starts = counts.cumsum(0) - counts
    for classes in _like_sizes(counts):
        place = torch.arange(int(counts[classes].max()), device=labels.device)
        inside = place < counts[classes, None]
        yield classes, torch.where(inside, order[(starts[classes, None] + place).clamp(max=len(labels) - 1)], len(labels))


def _like_sizes(counts: Tensor) -> list[Tensor]:
    """Groups of classes whose sizes are within a factor of two, so that padding at most doubles the memory."""
    present = counts.nonzero()[:, 0]
    octave = torch.floor(torch.log2(counts[present].double())).long()
    if int(counts.max()) < 2 * int(counts[present].min()):
        return [present]
    return [present[octave == o] for o in octave.unique()]
