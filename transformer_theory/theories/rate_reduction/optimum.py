r"""The optimum of maximal coding rate reduction (MCR²), in closed form and by ascent.

Among features :math:`X \in R^{n\times d}` of k classes of sizes :math:`n_j`, each with a fixed scale,
maximise the rate reduction

.. math::
    \max_X \Delta R(X|y) = R(X) - R^c(X|y) \quad \text{subject to} \quad \|X_j\|_F^2 = n_j, \ \mathrm{rank}\,
    X_j \le r_j, \quad \textstyle\sum_j r_j \le d .

**Value.** By Fischer's inequality :math:`R(X) \le \sum_j R_\alpha(X_j)`, with equality iff the classes are
orthogonal, so
:math:`\Delta R \le \sum_j \sum_i f_j(\lambda_{ji})` over the squared singular values of the classes, with
:math:`\gamma_j = n_j/n`,
:math:`\alpha = d/(n\epsilon^2)` and :math:`f_j(\lambda) = \tfrac12\log(1 + \alpha\lambda) -
\tfrac{\gamma_j}2\log(1 + \alpha\lambda/\gamma_j)`. This :math:`f_j` is convex below some point and concave
beyond, so at a maximum on the simplex
:math:`\sum_i \lambda_i = n_j` all positive values are equal, except possibly one smaller value :math:`a`. An
intermediate a is never optimal: along :math:`(a, b, \dots, b)` the derivative has the sign of :math:`ab -
\gamma_j/\alpha^2`, where ab grows with a. So the sum falls, then rises, and is largest at an end, a = 0 or a
= b. Hence each class spreads evenly over s of its dimensions and contributes

.. math::
    h_j(s) = \tfrac s2 \log\big(1 + \tfrac{\alpha n_j}{s}\big) - \tfrac{\gamma_j s}{2} \log\big(1 +
    \tfrac{\alpha n_j}{\gamma_j s}\big),

and the best s under the budgets :math:`s \le r_j` and :math:`\sum_j s_j \le d` are found by dynamic
programming.

Source: :cite:t:`yu2020learning` (which leaves the smaller singular value open).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.threads import single_threaded
from ...core.validation import converted, integers, positive
from ...maths.linalg import orthonormalise
from ...metrics.coding import rate_reduction
from ...metrics.coding.memberships import check_eps, with_labels
from .problem import check_integers, check_ranks, sorted_labels

# largest rate reduction, relative to the coding rate, that may be rounding of logarithms in float64
ROUNDING = 1e-10
SERIES = 1e-2  # below it ten terms of the series of log(1 + x) - x are exact, and the difference is not
RANK_RTOL = 1e-3  # smallest singular value that `disorder` counts, relative to the largest one of the class


@dataclass(frozen=True)
class Optimum:
    """Value and shape of the MCR² optimum for given dimension, class sizes and distortion.

    Attributes:
        value: the largest rate reduction of orthogonal classes, nats per sample.
        rate: R at the optimum (R^c is ``rate - value``).
        ranks: dimension of each class, with sum at most d.
    """

    value: float
    rate: float
    ranks: tuple[int, ...]


def flat_reduction(sizes: Sequence[int], ranks: Sequence[int], dim: int, *, eps: float) -> float:
    r"""Returns ΔR of orthogonal classes with flat spectra, :math:`\sum_j h_j(r_j)`.

    Args:
        sizes: number of samples of each class.
        ranks: dimension of each class, >= 1, with sum at most ``dim``.
        dim: dimension d of the features.
        eps: distortion; squared inside.
    Returns:
        ΔR in nats per sample.
    Raises:
        ValueError: sizes or ranks are not integers, the ranks do not fit in the dimension or in the samples,
            or eps is not positive.
    """
    check_ranks(sizes, ranks, dim)
    positive(eps=eps)
    check_eps(eps)
    n = sum(sizes)
    return float(sum(_gain(np.array([r]), size, n, dim, eps)[0] for size, r in zip(sizes, ranks)))


def optimum(sizes: Sequence[int], dim: int, *, eps: float, budget: Sequence[int] | None = None) -> Optimum:
    r"""Finds the best ranks for the class sizes and their value, by dynamic programming over :math:`\sum_j
    s_j \le d`.

    >>> from transformer_theory import rate_reduction
    >>> best = rate_reduction.optimum([100, 100, 100], 3, eps=0.1**0.5)
    >>> best.ranks, round(best.value, 4)
    ((1, 1, 1), 1.8798)

    Args:
        sizes: number of samples of each class; empty classes get rank 0.
        dim: d, at least the number of classes with samples, because each needs its own direction.
        eps: distortion; squared inside.
        budget: largest rank r_j of each class, >= 1. None: its number of samples.
    Returns:
        The optimum; a single class has value 0.
    Raises:
        ValueError: eps is not positive, a size is not an integer >= 0, there is no sample, there are more
            classes than dimensions, or the budget is not one integer >= 1 for each class.
        TypeError: dim is not an integer.
    """
    positive(eps=eps)
    check_eps(eps)
    integers(dim=dim)
    if any(not isinstance(size, Integral) or size < 0 for size in sizes) or not sum(sizes):
        raise ValueError(f"class sizes must be integers >= 0 with at least one sample, got {list(sizes)}")
    if (classes := sum(size > 0 for size in sizes)) > dim:
        raise ValueError(
            f"orthogonal classes need a dimension each, got {classes} classes in {dim} dimensions"
        )
    if budget is not None and (
        len(budget) != len(sizes) or any(not isinstance(rank, Integral) or rank < 1 for rank in budget)
    ):
        raise ValueError(
            f"budget must be one integer >= 1 for each of {len(sizes)} classes, got {list(budget)}"
        )
    largest = sizes if budget is None else [min(size, rank) for size, rank in zip(sizes, budget)]
    return _optimum(tuple(int(s) for s in sizes), tuple(int(r) for r in largest), int(dim), float(eps))


@lru_cache(maxsize=256)
def _optimum(sizes: tuple[int, ...], largest: tuple[int, ...], dim: int, eps: float) -> Optimum:
    n = sum(sizes)
    # Dynamic programming over the classes: best[b] is the largest value so far with at most b dimensions, and
    # choices[j][b] is the rank of class j that attains it. An empty class gets rank 0, any other at least 1.
    best, choices = np.zeros(dim + 1), []
    budgets = np.arange(dim + 1)
    for size, rank in zip(sizes, largest):
        gains = np.concatenate(
            [[-np.inf if size else 0.0], _gain(np.arange(1, min(rank, dim) + 1), size, n, dim, eps)]
        )
        # budget of the earlier classes, [budget, rank of this class]
        remaining = budgets[:, None] - np.arange(len(gains))
        values = np.where(remaining >= 0, best[np.maximum(remaining, 0)] + gains, -np.inf)
        choices.append(values.argmax(1))
        best = values.max(1)
    ranks, budget = [], dim
    # Recover the ranks from the last class to the first: each choice reduces the budget of the classes before
    # it.
    for choice in reversed(choices):
        ranks.append(int(choice[budget]))
        budget -= ranks[-1]
    ranks = tuple(reversed(ranks))
    rate = sum(0.5 * r * np.log1p(dim * s / (n * eps**2 * r)) for r, s in zip(ranks, sizes) if r)
    return Optimum(float(best[dim]), float(rate), ranks)


def exact_reduction(reduction: float, rate: float) -> float:
    r"""Returns a measured :math:`\Delta R = R - R^c`, nats, or 0 if it is within rounding of :math:`R`.

    :math:`\Delta R` is never negative, and 0 iff all classes have equal second moments per sample. That is so
    at the neural collapse of two centred classes, features u and -u: both have the moment :math:`u u^\top`,
    so :math:`R = R_j = \tfrac12\log(1 + d/\epsilon^2)` whatever the labels, although the optimum, of
    orthogonal classes, is positive. A rate reduction does not see signs.
    """
    return reduction if reduction > ROUNDING * rate else 0.0


def _gain(ranks: np.ndarray, size: int, n: int, dim: int, eps: float) -> np.ndarray:
    """Returns h_j of the module docstring at each rank, in nats."""
    share, scale = size / n, dim * size / (n * eps**2)
    # The parts of first order cancel exactly, so they are left out of both logarithms.
    return 0.5 * ranks * (log1p_less(scale / ranks) - share * log1p_less(scale / (share * ranks)))


def log1p_less(x: np.ndarray) -> np.ndarray:
    """Computes log(1 + x) - x for x >= 0, to the relative precision of float64."""
    small = np.minimum(x, SERIES)
    series = sum((-1) ** (k + 1) * small**k / k for k in range(2, 11))
    return np.where(x < SERIES, series, np.log1p(x) - x)


def largest_rank(size: int, n: int, dim: int, *, eps: float) -> float:
    r"""Returns the rank below which the theorem's condition, :math:`\epsilon^4 < (n_j/n)\, d^2/r^2`, holds
    for a class.

    For a rank r below this bound, an even spread over r dimensions lies in the concave part of :math:`f_j`,
    so it is the best spread over these dimensions. The optimum need not use all r dimensions, however. For 43
    and 81 samples in 16 dimensions at ε = 0.648 the first class has the bound 22.4, but it contributes more
    at rank 10 than at rank 14. :func:`optimum` finds the best ranks for any distortion.

    Returns:
        :math:`\sqrt{n_j/n}\, d/\epsilon^2`.
    Raises:
        ValueError: a number of samples or a dimension is below 1, or eps is not positive.
    """
    integers(size=size, n=n, dim=dim)
    positive(eps=eps)
    check_eps(eps)
    return (size / n) ** 0.5 * dim / eps**2


@converted(float64=("features",), labels=("labels",))
def disorder(features: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> float:
    """Measures the distance from orthogonal classes with flat spectra.

    The distance is the maximum of two numbers: the largest cosine of a principal angle between two classes,
    and the largest relative spread of a class's singular values. Values below a thousandth of the largest
    count as zero.

    Args:
        features: features, ``[n, d]``.
        labels: classes, ``[n]``; no class consists of zeros only.
    Returns:
        A number between 0, attained at the optimum, and 1.
    """
    worst, bases = 0.0, []
    features, labels = with_labels(features, labels)
    for j in labels.unique():
        _, s, right = torch.linalg.svd(features[labels == j], full_matrices=False)
        rank = int((s > RANK_RTOL * s[0]).sum())
        worst = max(worst, float(1 - s[rank - 1] / s[0]))
        for basis in bases:
            worst = max(worst, float(torch.linalg.matrix_norm(basis @ right[:rank].mT, ord=2)))
        bases.append(right[:rank])
    return worst


@single_threaded
def maximise(
    sizes: Sequence[int],
    ranks: Sequence[int],
    dim: int,
    *,
    eps: float,
    generator: torch.Generator,
    steps: int = 200,
) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"], float]:
    r"""Ascends ΔR with L-BFGS under the theorem's constraints :math:`\|X_j\|_F^2 = n_j` and rank :math:`X_j
    \le r_j`.

    Each class starts in a random subspace, which it fills evenly; the subspaces overlap. Some starts end in a
    lower local maximum, where a class has lost a dimension: a zero singular value is stationary, and raising
    it does not increase ΔR. The caller should take the best of several starts.

    Args:
        sizes, ranks: sizes n_j and largest ranks r_j of the classes.
        dim: dimension d of the features.
        eps: distortion; squared inside.
        generator: random generator of the start.
        steps: largest number of iterations.
    Returns:
        The last features ``[n, d]`` float64 in the order of their classes, their labels, and the norm of the
        gradient (zero at a critical point).
    Raises:
        ValueError: sizes or ranks are not integers, there is not one rank for each class, between 1 and its
            samples and the dimension, or eps or steps is not positive.
    """
    check_integers(sizes, ranks)
    if not sizes or len(sizes) != len(ranks) or any(not 1 <= r <= min(n, dim) for n, r in zip(sizes, ranks)):
        raise ValueError(
            f"ranks must be between 1 and the samples of their class and dimension {dim}, got {list(ranks)} "
            f"for classes of {list(sizes)}"
        )
    positive(eps=eps)
    check_eps(eps)
    integers(steps=steps)
    labels = sorted_labels(sizes)
    # The product of an [n_j, r_j] and a transposed [d, r_j] factor has at most rank r_j, and rescaling fixes
    # its norm, so the ascent over the factors is unconstrained.
    shapes = [shape for n, r in zip(sizes, ranks) for shape in ((n, r), (dim, r))]
    factors = [
        orthonormalise(torch.randn(shape, dtype=torch.float64, generator=generator)) for shape in shapes
    ]
    factors = [factor.contiguous().requires_grad_() for factor in factors]
    solver = torch.optim.LBFGS(
        factors, max_iter=steps, tolerance_grad=1e-10, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def features() -> Tensor:
        classes = [left @ right.mT for left, right in zip(factors[::2], factors[1::2])]
        return torch.cat(
            [len(members) ** 0.5 * members / torch.linalg.matrix_norm(members) for members in classes]
        )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = -rate_reduction(features(), labels, eps=eps)
        loss.backward()
        return loss

    solver.step(closure)  # pyright: ignore[reportArgumentType]
    closure()
    gradient = sum(float(factor.grad.square().sum()) for factor in factors if factor.grad is not None) ** 0.5
    return features().detach(), labels, gradient
