r"""Attention scores as a random energy model: how peaked a row of Gaussian scores is.

For n independent scores of variance :math:`s^2 = b^2 \log n` the *participation* :math:`Y = \sum_j a_j^2` of
their softmax a has the limits

.. math::
    Y \to e^{s^2} / n \quad (b < 1/\sqrt 2), \qquad Y \to 0 \quad (b < \sqrt 2), \qquad
    E\, Y \to 1 - \sqrt 2 / b \quad (b > \sqrt 2).

Beyond :math:`b = \sqrt 2` a finite number of keys holds the weight, however many keys there are ("frozen").
The corrections are of order :math:`1/\log n`, too large for a comparison at the sizes of real sequences. So
measured rows are compared with Gaussian scores at the same n and the same variance *within the row*:
:func:`standard_scores` have mean 0 and variance 1 in each row exactly, which is the law of independent
Gaussian scores, given their mean and variance.

Source: :cite:t:`giorlandino2026two` draw the parallel to the random energy model of
:cite:t:`derrida1981random`; the limits were derived and checked here.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...core.statistics import fixed_generator
from ...core.validation import converted, in_range

WEAK, FROZEN = 0.5**0.5, 2**0.5  # values of b at which the law of the participation changes
SAMPLES, LARGEST = 2048, 40.0  # rows of a table, and its largest standard deviation of the scores
NUMBERS = 2**18  # largest number of scores behind one table, unless it has fewer than 16 rows


@in_range
@converted(floats=("weights",))
def participation(weights: Float[Tensor, "*batch keys"]) -> Float[Tensor, "*batch"]:
    r"""Computes :math:`\sum_j a_j^2`: 1/n for uniform weights, 1 for all weight on one key, ``[*batch]``.

    Raises:
        ValueError: there is no key, or a weight is not finite.
    """
    if not weights.ndim or not weights.shape[-1]:
        raise ValueError(f"weights must be [*batch, keys] with at least one key, got {list(weights.shape)}")
    return weights.square().sum(-1)


def limit(b: float, n: int) -> float:
    """Returns the leading term of the mean participation for many keys; 0 in the phase between.

    Raises:
        ValueError: b is negative, or there are fewer than two keys.
    """
    if not b >= 0 or n < 2:
        raise ValueError(f"b must be at least 0 and n at least 2, got b = {b:g} and n = {n}")
    if b < WEAK:
        return math.exp(b * b * math.log(n)) / n
    return 0.0 if b < FROZEN else 1 - FROZEN / b


@in_range
def gaussian_participation(n: int, b: float, rows: int, generator: Generator) -> Float[Tensor, " rows"]:
    r"""Draws the participation of n independent Gaussian scores of standard deviation :math:`b \sqrt{\log
    n}`, ``[rows]`` float64.

    Raises:
        ValueError: b is negative or not finite, or there is no key.
    """
    if n < 1 or not 0 <= b < math.inf:
        raise ValueError(f"b must be finite and at least 0 and n at least 1, got b = {b:g} and n = {n}")
    scores = torch.randn(rows, n, generator=generator, dtype=torch.float64)
    return participation((b * math.log(n) ** 0.5 * scores).softmax(-1))


def standard_scores(rows: int, n: int, generator: Generator) -> Float[Tensor, "rows n"]:
    """Draws Gaussian scores with mean 0 and variance 1 (over the n keys) in each row, ``[rows, n]`` float64;
    zeros for n = 1.
    """
    scores = torch.randn(rows, n, generator=generator, dtype=torch.float64)
    centred = scores - scores.mean(-1, keepdim=True)
    return centred / centred.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-300)


@dataclass(frozen=True)
class Curves:
    """Participation of rows of :func:`standard_scores` as functions of their standard deviation s.

    Attributes:
        grid: values of s, from 0 on, ``[points]``.
        each: one curve per row, ``[rows, points]``.
        mean: their mean, ``[points]``.
    """

    grid: Float[Tensor, " points"]
    each: Float[Tensor, "rows points"]
    mean: Float[Tensor, " points"]

    def place(self, s: Float[Tensor, " m"]) -> tuple[Int[Tensor, " m"], Float[Tensor, " m"]]:
        """Returns the grid points to the right of the standard deviations, and how far these are from the
        left ones, in [0, 1].
        """
        right = torch.searchsorted(self.grid, s.contiguous()).clamp(1, len(self.grid) - 1)
        left, end = self.grid[right - 1].square(), self.grid[right].square()
        return right, ((s.square() - left) / (end - left)).clamp(0, 1)

    def expected(self, s: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
        """Returns the mean participation at standard deviations s, by interpolation."""
        right, share = self.place(s)
        return _between(self.mean[right - 1], self.mean[right], share)

    def draw(self, s: Float[Tensor, " m"], generator: Generator) -> Float[Tensor, " m"]:
        """Draws a row for each standard deviation, and returns its participation there."""
        rows = torch.randint(len(self.each), s.shape, generator=generator)
        right, share = self.place(s)
        return _between(self.each[rows, right - 1], self.each[rows, right], share)


def _between(
    left: Float[Tensor, " m"], right: Float[Tensor, " m"], share: Float[Tensor, " m"]
) -> Float[Tensor, " m"]:
    """Interpolates logarithms, linearly in s^2: exact for e^{s^2} / n, the participation of small scores."""
    return left.log().lerp(right.log(), share).exp()


@lru_cache(maxsize=128)
def curves(n: int) -> Curves:
    """Returns the curves of rows of n keys, the same in each call.

    Raises:
        ValueError: n < 2.
    """
    if n < 2:
        raise ValueError(f"a row needs at least two keys, got {n}; leave out rows of one key")
    # Points are dense where the curve bends, at standard deviations up to a few units.
    grid = LARGEST * torch.linspace(0, 1, 49, dtype=torch.float64).square()
    rows = min(SAMPLES, max(16, NUMBERS // n))
    half = standard_scores(rows // 2, n, fixed_generator())
    # the skewness, which dominates the error of the mean at small s, cancels
    scores = torch.cat([half, -half])
    each = torch.stack([participation((s * scores).softmax(-1)) for s in grid.tolist()], 1)
    return Curves(grid, each, each.mean(0))


def expected_participation(n: Int[Tensor, " m"], s: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Returns the mean participation of rows of n keys at standard deviations s, ``[m]``, by interpolation;
    one n and s per row.

    Raises:
        ValueError: a row has fewer than two keys.
    """
    if not len(n):
        return s.clone()
    present = n.bincount() > 0
    tables, which = [curves(number) for number in present.nonzero()[:, 0].tolist()], present.cumsum(0)[n] - 1
    mean = torch.stack([table.mean for table in tables])
    right, share = tables[0].place(s)  # all tables have the same grid
    return _between(mean[which, right - 1], mean[which, right], share)
