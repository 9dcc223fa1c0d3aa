r"""Maximal coding rate reduction (MCR²): the problem, its known optimum, and instances.

Among features :math:`X \in R^{n\times d}` of k classes of sizes :math:`n_j`, each with a fixed scale, find those of largest rate reduction

.. math::
    \max_X \Delta R(X|y) = R(X) - R^c(X|y) \quad \text{subject to} \quad \|X_j\|_F^2 = n_j .

At an optimum the classes lie in orthogonal subspaces of ranks :math:`r_j`, :math:`\sum_j r_j \le d`, and each class spreads evenly over
its own: all its singular values are :math:`\sqrt{n_j/r_j}`. The value is then, with :math:`\gamma_j = n_j/n`,
:math:`\alpha = d/(n\epsilon^2)`,

.. math::
    \Delta R^\star = \sum_j h_j(r_j), \quad h_j(r) = \tfrac r2 \log\big(1 + \tfrac{\alpha n_j}{r}\big)
    - \tfrac{\gamma_j r}{2} \log\big(1 + \tfrac{\alpha n_j}{\gamma_j r}\big).

Source: :cite:t:`yu2020learning` (the optimum), :cite:t:`wang2024global` (its landscape), :cite:t:`chan2022redunet` (the Gaussian toy).
The theorem also allows one smaller singular value per class; a search over 20,000 random cases never found that better than an even spread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...linalg import orthonormalise
from ...metrics.coding import rate_reduction, unit_norm


@dataclass(frozen=True)
class Optimum:
    """Value and shape of the MCR² optimum for given dimension, class sizes and distortion.

    Attributes:
        value: the largest rate reduction of orthogonal classes, nats per sample.
        rate: R there (R^c is ``rate - value``).
        ranks: dimension of each class, their sum is at most d.
    """

    value: float
    rate: float
    ranks: tuple[int, ...]


def flat_reduction(sizes: Sequence[int], ranks: Sequence[int], dim: int, *, eps: float) -> float:
    r"""ΔR of orthogonal classes with flat spectra, :math:`\sum_j h_j(r_j)` of the module's head.

    Args:
        sizes: samples of each class.
        ranks: dimension of each class, >= 1, their sum at most ``dim``.
        dim: d.
        eps: distortion; squared inside.
    Returns:
        nats per sample.
    Raises:
        ValueError: the ranks do not fit in the dimension or in the samples.
    Source: :cite:t:`yu2020learning`.
    """
    if len(sizes) != len(ranks) or sum(ranks) > dim or any(not 1 <= r <= n for r, n in zip(ranks, sizes)):
        raise ValueError(f"ranks must be one a class, between 1 and its samples, with a sum <= {dim}; got {list(ranks)} for {list(sizes)}")
    n = sum(sizes)
    return float(sum(_gain(np.array([r]), size, n, dim, eps)[0] for size, r in zip(sizes, ranks)))


def optimum(sizes: Sequence[int], dim: int, *, eps: float) -> Optimum:
    r"""The best ranks for the given class sizes, by dynamic programming over :math:`\sum_j r_j \le d`, and the value there.

    Args:
        sizes: samples of each class; empty classes get rank 0.
        dim: d, at least the number of classes with samples (each needs a direction of its own).
        eps: distortion; squared inside.
    Returns:
        :class:`Optimum`. A single class has value 0.
    Raises:
        ValueError: eps is not positive, a size is negative, there is no sample, or there are more classes than dimensions.
    Source: :cite:t:`yu2020learning`.
    """
    if not 0 < eps < float("inf"):
        raise ValueError(f"eps must be a positive distortion (it is squared inside), got {eps}")
    if dim < 1 or not sizes or min(sizes) < 0 or sum(sizes) < 1:
        raise ValueError(f"optimum needs dim >= 1 and class sizes >= 0 with at least one sample, got dim {dim} and sizes {list(sizes)}")
    if (classes := sum(size > 0 for size in sizes)) > dim:
        raise ValueError(f"orthogonal classes need a dimension each, got {classes} classes in {dim} dimensions")
    return _optimum(tuple(int(s) for s in sizes), int(dim), float(eps))


@lru_cache(maxsize=256)
def _optimum(sizes: tuple[int, ...], dim: int, eps: float) -> Optimum:
    n = sum(sizes)
    best, choices = np.zeros(dim + 1), []  # best[b]: the largest value with b dimensions spent at most
    spent = np.arange(dim + 1)
    for size in sizes:
        gains = np.concatenate([[-np.inf if size else 0.0], _gain(np.arange(1, min(size, dim) + 1), size, n, dim, eps)])
        left = spent[:, None] - np.arange(len(gains))
        values = np.where(left >= 0, best[np.maximum(left, 0)] + gains, -np.inf)
        choices.append(values.argmax(1))
        best = values.max(1)
    ranks, room = [], dim
    for choice in reversed(choices):
        ranks.append(int(choice[room]))
        room -= ranks[-1]
    ranks = tuple(reversed(ranks))
    rate = sum(0.5 * r * np.log1p(dim * s / (n * eps**2 * r)) for r, s in zip(ranks, sizes) if r)
    return Optimum(float(best[dim]), float(rate), ranks)


def _gain(ranks: np.ndarray, size: int, n: int, dim: int, eps: float) -> np.ndarray:
    share, scale = size / n, dim * size / (n * eps**2)
    return 0.5 * ranks * (np.log1p(scale / ranks) - share * np.log1p(scale / (share * ranks)))


def largest_rank(size: int, n: int, dim: int, *, eps: float) -> float:
    r"""The rank r below which the theorem's condition on the distortion, :math:`\epsilon^4 < (n_j/n)\, d^2/r^2`, holds for a class.

    Returns:
        :math:`\sqrt{n_j/n}\, d/\epsilon^2`.
    Source: :cite:t:`yu2020learning`.
    """
    return (size / n) ** 0.5 * dim / eps**2


def orthogonal_classes(
    sizes: Sequence[int], ranks: Sequence[int], dim: int, *, generator: torch.Generator
) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]:
    """Features at the optimum: random orthogonal subspaces, flat spectra, squared Frobenius norm n_j in each class.

    Returns:
        features ``[n, d]`` float64 sorted by class, labels ``[n]``.
    Raises:
        ValueError: the ranks do not fit (see :func:`flat_reduction`).
    Source: :cite:t:`yu2020learning`.
    """
    flat_reduction(sizes, ranks, dim, eps=1.0)  # validates
    frame = orthonormalise(torch.randn(dim, dim, dtype=torch.float64, generator=generator))
    parts = []
    for size, rank, basis in zip(sizes, ranks, frame[:, : sum(ranks)].split(list(ranks), dim=1)):
        columns = orthonormalise(torch.randn(size, rank, dtype=torch.float64, generator=generator))
        parts.append((size / rank) ** 0.5 * columns @ basis.mT)
    return torch.cat(parts), torch.arange(len(sizes)).repeat_interleave(torch.tensor(list(sizes)))


def equal_moments(sizes: Sequence[int], dim: int, *, generator: torch.Generator) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]:
    r"""Different features whose classes share one second moment :math:`X_j^\top X_j / n_j`: the case of equality ΔR = 0.

    Args:
        sizes: samples of each class, each >= dim.
    Returns:
        features ``[n, d]`` float64 sorted by class, labels ``[n]``.
    Raises:
        ValueError: a class has fewer samples than dimensions.
    """
    if min(sizes) < dim:
        raise ValueError(f"classes need at least {dim} samples to share a second moment of full rank, got {min(sizes)}")
    root = torch.randn(dim, dim, dtype=torch.float64, generator=generator)
    parts = [n**0.5 * orthonormalise(torch.randn(n, dim, dtype=torch.float64, generator=generator)) @ root for n in sizes]
    return torch.cat(parts), torch.arange(len(sizes)).repeat_interleave(torch.tensor(list(sizes)))


def gaussian_toy(
    dim: int, per_class: int, *, noise: float = 0.1, generator: torch.Generator
) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]:
    """ReduNet's toy: one class around each coordinate axis, Gaussian noise, projected to the unit sphere.

    Args:
        dim: dimensions and classes (2 and 3 in the paper).
        per_class: samples a class.
        noise: standard deviation before the projection.
    Returns:
        features ``[dim * per_class, dim]`` float64 of norm 1 sorted by class, labels.
    Source: :cite:t:`chan2022redunet`.
    """
    labels = torch.arange(dim).repeat_interleave(per_class)
    centres = torch.eye(dim, dtype=torch.float64)[labels]
    return unit_norm(centres + noise * torch.randn(centres.shape, dtype=torch.float64, generator=generator)), labels


def maximise(
    sizes: Sequence[int], ranks: Sequence[int], dim: int, *, eps: float, generator: torch.Generator, steps: int = 200
) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"], float]:
    r"""Ascends ΔR with L-BFGS under the theorem's constraints :math:`\|X_j\|_F^2 = n_j` and rank :math:`X_j \le r_j`.

    Each class is a product of an ``[n_j, r_j]`` and a transposed ``[d, r_j]`` factor, rescaled to its norm. The start is a random
    subspace a class, evenly filled, overlapping the others'. Some starts end in a poorer local maximum, in which a class has lost a
    dimension: a zero singular value is stationary and, to second order, not worth raising. Take the best of several.

    Args:
        sizes, ranks: n_j and r_j of each class.
        dim: d.
        eps: distortion; squared inside.
        steps: most iterations.
    Returns:
        the features reached ``[n, d]`` float64 sorted by class, labels, and the norm of the gradient there (zero at a critical point).
    Source: the problem of :cite:t:`yu2020learning`; the ascent is textbook.
    """
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(list(sizes)))
    shapes = [shape for n, r in zip(sizes, ranks) for shape in ((n, r), (dim, r))]
    factors = [orthonormalise(torch.randn(shape, dtype=torch.float64, generator=generator)) for shape in shapes]
    factors = [each.contiguous().requires_grad_() for each in factors]
    solver = torch.optim.LBFGS(factors, max_iter=steps, tolerance_grad=1e-10, tolerance_change=0, line_search_fn="strong_wolfe")

    def features() -> Tensor:
        classes = [left @ right.mT for left, right in zip(factors[::2], factors[1::2])]
        return torch.cat([len(each) ** 0.5 * each / torch.linalg.matrix_norm(each) for each in classes])

    def closure() -> Tensor:
        solver.zero_grad()
        loss = -rate_reduction(features(), labels, eps=eps)
        loss.backward()
        return loss

    solver.step(closure)  # pyright: ignore[reportArgumentType]
    closure()
    gradient = sum(float(each.grad.square().sum()) for each in factors if each.grad is not None) ** 0.5
    return features().detach(), labels, gradient
