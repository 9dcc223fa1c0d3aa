r"""Checks of the arguments of coding rates: features, distortion, and classes as labels or soft memberships.

The papers write a diagonal matrix for each class, :math:`\Pi_j \in R^{n\times n}`, :math:`\Pi_j \ge 0`,
:math:`\sum_j \Pi_j = I`. Here the diagonals are the columns of a matrix ``[n, k]``; a label corresponds to a
row with a single one. The size of a class is :math:`n_j = \mathrm{tr}\,\Pi_j`.

Source: :cite:t:`ma2007segmentation`, :cite:t:`yu2020learning`.
"""

import functools
import math
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ...core.validation import SHARES_ATOL, as_float, as_labels, as_tensor, full_precision
from ...maths.linalg import binary_scale

Memberships = Int[Tensor, " n"] | Float[Tensor, "n k"]
"""Labels ``[n]``, integers >= 0 (negative: unlabelled), booleans or words; or soft memberships ``[n, k]``,
float32 or float64, >= 0, rows summing to one.
"""

# smallest eps; the squares of eps and 1 / eps then neither underflow nor overflow in float64
EPS_MIN = 1e-100
# labels may exceed the number of samples by this much; a larger label is probably not a class
MAX_EMPTY = 100_000

P = ParamSpec("P")
T = TypeVar("T")


def labelled(function: Callable[P, T]) -> Callable[P, T]:
    """Returns the function with converted arguments ``features`` and ``labels``: these may be arrays or
    lists, and features integers. Autocast is off inside.

    Half precision becomes float32, integer features float64, labels int64; memberships keep their dtype.
    """
    exact = full_precision(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        values = dict(zip(("features", "labels"), args)) | kwargs
        if isinstance(values.get("eps"), np.number):
            values["eps"] = values["eps"].item()
        for name, convert in (("features", as_features), ("labels", as_classes)):
            if name in values:
                values[name] = convert(values[name])
        return exact(*args[2:], **values)  # pyright: ignore[reportCallIssue]

    return call  # pyright: ignore[reportReturnType]


def as_features(value: Any) -> Tensor:
    """Converts features as :func:`.as_float` does."""
    return as_float("features", value)


def as_classes(value: Any) -> Tensor:
    """Converts labels to int64 (:func:`.as_labels`), and memberships ``[n, k]`` to a tensor.
    :func:`class_sizes` refuses other values.

    Raises:
        ValueError: the value is neither.
    """
    if np.ndim(value) == 2:
        tensor = as_tensor("labels", value)
        if tensor.is_floating_point() or tensor.shape[1] != 1:
            return tensor
    return as_labels("labels", value)


def with_labels(
    features: Float[Tensor, "n d"], labels: Memberships
) -> tuple[Float[Tensor, "m d"], Int[Tensor, " m"] | Float[Tensor, "m k"]]:
    """Returns the samples that have a label, with their labels; all samples if none is negative.

    Raises:
        ValueError: no sample has a label.
    """
    if labels.is_floating_point() or labels.ndim != 1 or labels.shape != features.shape[:1]:
        return features, labels
    known = labels >= 0
    if bool(known.all()):
        return features, labels
    if not bool(known.any()):
        raise ValueError(f"labels must name a class, got {len(labels)} negative ones, which mean unlabelled")
    return features[known.to(features.device)], labels[known]


def check_eps(eps: float) -> None:
    """Raises ValueError unless the distortion is a positive number whose square and inverse square are
    positive and finite in float64.
    """
    if not (isinstance(eps, Real) and EPS_MIN <= float(eps) <= 1 / EPS_MIN):
        raise ValueError(
            f"eps must be a positive distortion (a number >= {EPS_MIN:g}; it is squared inside), got {eps!r}"
        )


def check_features(features: Shaped[Tensor, "..."], eps: float) -> None:
    """Raises ValueError unless features are ``[*batch, n, d]`` with n, d >= 1, in float32 or float64, and eps
    is a positive number.
    """
    check_eps(eps)
    if features.ndim < 2 or 0 in features.shape[-2:]:
        raise ValueError(
            f"features must have shape [*batch, n, d] with n, d >= 1, got {list(features.shape)}"
        )
    if features.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"features must be float32 or float64, got {features.dtype}; convert with .float(), also under "
            "autocast"
        )


def ordinary_scale(
    features: Float[Tensor, "*batch n d"], eps: float
) -> tuple[Float[Tensor, "*batch n d"], float, float]:
    """Divides features and distortion by one power of two, which changes no rate and rounds nothing, so that
    the squares of features are in range.

    Returns:
        The features, the distortion, and the power of two c: a gradient by the divided features is c times
        that by the features, an operator c^2 times.
    """
    exponent = math.frexp(float(binary_scale(features, tuple(range(features.ndim)))))[1] - 1
    # The distortion stays in the range in which its square is finite.
    middle, largest = math.frexp(eps)[1], int(math.log2(1 / EPS_MIN)) - 2
    c = 2.0 ** min(max(exponent, middle - largest), middle + largest)
    return features / c, eps / c, c


def largest_trace(features: Float[Tensor, "n d"], labels: Memberships, eps: float) -> float:
    r"""Computes the largest :math:`\mathrm{tr}(\alpha_j X^\top \Pi_j X)` of a class, which bounds that of all
    samples and the norm of each matrix that is added to an identity. As a number of Python it does not
    underflow.
    """
    squares = features.detach().square().sum(1)
    if is_soft(labels):
        means = squares.to(labels.dtype) @ class_shares(labels.detach())
    else:
        counts = torch.bincount(labels).clamp(min=1)
        means = squares.new_zeros(len(counts)).index_add(0, labels.long(), squares) / counts
    return features.shape[1] / eps**2 * float(means.amax())


def check_integers(labels: Shaped[Tensor, "..."]) -> None:
    """Raises ValueError unless labels are integers."""
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, got {labels.dtype}; convert with .long()")


def is_soft(labels: Memberships) -> bool:
    """Returns whether classes are soft memberships ``[n, k]`` instead of labels ``[n]``."""
    return labels.ndim == 2 and labels.is_floating_point()


def class_sizes(
    features: Float[Tensor, "n d"], labels: Memberships
) -> Int[Tensor, " classes"] | Float[Tensor, " classes"]:
    r"""Computes the size of each class, :math:`n_j`: numbers of labels, or (differentiable) sums of soft
    memberships.

    Args:
        features: one row per sample, ``[n, d]``; only n is used.
        labels: class of each sample, ``[n]``, or memberships ``[n, k]``.
    Returns:
        ``[1 + largest label]`` or ``[k]``; zero for a class without samples.
    Raises:
        ValueError: the lengths differ, there is no sample, labels are not integers >= 0 or exceed the number
            of samples by 100,000 or more, or memberships are not float32 or float64 numbers >= 0 whose rows
            sum to one.
    """
    if (
        features.ndim != 2
        or labels.ndim not in (1, 2)
        or len(features) != len(labels)
        or not features.shape[1]
    ):
        raise ValueError(
            "features [n, d] with d >= 1 need one label each, labels [n], or memberships [n, k]; got "
            f"{list(features.shape)} and {list(labels.shape)}"
        )
    if not len(labels):
        raise ValueError("features must hold at least one sample, got none")
    if labels.ndim == 2:
        return _weights(labels)
    check_integers(labels)
    if int(labels.min()) < 0:
        raise ValueError(f"labels must be 0, 1, ..., got {int(labels.min())}; relabel from zero")
    if int(labels.max()) >= len(labels) + MAX_EMPTY:
        raise ValueError(
            f"labels must be 0..k-1, got {int(labels.max())} for {len(labels)} samples; relabel with "
            "torch.unique(labels, return_inverse=True)[1]"
        )
    return torch.bincount(labels)


def _weights(memberships: Tensor) -> Tensor:
    """Computes the sum of each column; raises ValueError unless the rows are distributions."""
    if memberships.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"memberships [n, k] must be float32 or float64, got {memberships.dtype}; for labels pass "
            "integers [n]"
        )
    if not bool((memberships >= 0).all()):  # NaN is refused too
        raise ValueError("memberships must be >= 0, got a negative or NaN weight; take a softmax of scores")
    error = float((memberships.detach().sum(1) - 1).abs().max()) if memberships.shape[1] else 1.0
    if not error <= SHARES_ATOL:
        raise ValueError(
            f"each row of the memberships [n, k] must sum to 1, got one that is {error:.2g} off; divide by "
            "memberships.sum(1, keepdim=True)"
        )
    return memberships.sum(0)


def class_shares(memberships: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    r"""Computes the share of each sample in each class, :math:`\Pi_j / n_j`. Columns sum to one; those of
    empty classes are zero.

    Args:
        memberships: soft memberships >= 0, ``[n, k]``.
    Returns:
        ``[n, k]``, in [0, 1], differentiable.
    """
    # Divide each column by its largest weight first. This does not change the shares, but otherwise their
    # derivative would contain n_j^2, which underflows for a class with almost no weight.
    largest = memberships.detach().amax(0)
    relative = memberships / torch.where(largest > 0, largest, 1)
    return relative / torch.where(largest > 0, relative.sum(0), 1)


def blocks(
    labels: Int[Tensor, " n"], counts: Int[Tensor, " classes"]
) -> Iterator[tuple[Int[Tensor, " c"], Int[Tensor, "c size"]]]:
    """Groups classes whose sizes differ by less than a factor of two, for one batched call per group; empty
    classes are left out.

    Args:
        labels: class of each sample.
        counts: number of samples per class.
    Yields:
        The classes of a group, ``[c]``, and the indices of their samples, ``[c, size of the largest class]``,
        padded with the index n.
    """
    # Sorted by class, the samples of class j are order[starts[j] : starts[j] + counts[j]].
    order = torch.argsort(labels, stable=True)
    starts = counts.cumsum(0) - counts
    for classes in _similar_sizes(counts):
        offsets = torch.arange(int(counts[classes].max()), device=labels.device)
        valid = offsets < counts[classes, None]
        yield (
            classes,
            torch.where(
                valid, order[(starts[classes, None] + offsets).clamp(max=len(labels) - 1)], len(labels)
            ),
        )


def _similar_sizes(counts: Tensor) -> list[Tensor]:
    """Returns the groups of :func:`blocks`. Sizes within a factor of two limit the padding: it at most
    doubles the memory.
    """
    present = counts.nonzero()[:, 0]
    # Powers of two separate the groups. If all sizes are within a factor of two, one group is faster than
    # two.
    octave = torch.floor(torch.log2(counts[present].double())).long()
    if int(counts.max()) < 2 * int(counts[present].min()):
        return [present]
    return [present[octave == power] for power in octave.unique()]
