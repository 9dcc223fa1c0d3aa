r"""Multinomial counts by halving: how many of n tokens fall into the left half of the kinds is binomial, and so on down to single kinds.

A binomial number k of n with probability p is drawn by inversion, :math:`F(k - 1) \le u < F(k)`. For n up to ``MOST`` the first ``BITS``
bits of u choose a cell of a table; most cells lie between two values of F and name k at once, and for the others the rest of u is drawn and
F is searched. So it is exact to the rounding of F and of p (14 digits), and takes a look-up for most numbers. Larger n take numpy's
binomial numbers, so nothing costs more for longer sequences.

Source: the counts are those of :cite:t:`tian2023scan`; inversion with a guide table is textbook.
"""

from dataclasses import dataclass

import numpy as np

BITS = 10  # a table has 2^BITS cells for each p and n
MOST = 254  # largest n with a table: its numbers and UNDECIDED fit into a byte
UNDECIDED = 255
DRAWN = 32  # bits of u drawn at first


@dataclass(frozen=True, eq=False)
class _Level:
    """Which nodes of a level are halved, where the halves and the others (single kinds) stand in the next, and p of the left halves."""

    split: np.ndarray
    left: np.ndarray
    single: np.ndarray
    single_to: np.ndarray
    p: np.ndarray  # [classes, split]
    width: int


class Multinomial:
    """Draws counts of ``context`` tokens for classes with the given probabilities of kinds, ``[K, W]``, rows of sum one.

    Args:
        probabilities, context: as above.
        tabled: largest n with a table, at most ``MOST``; 0 if too few batches are drawn for tables to pay off.
    """

    def __init__(self, probabilities: np.ndarray, context: int, *, tabled: int = MOST):
        self.context = context
        self.levels = _halve(probabilities)
        every = np.concatenate([level.p.ravel() for level in self.levels] or [np.zeros(1)])
        self.p, self.most = np.unique(every), min(context, tabled)
        self.cdf = _distribution_functions(self.p, self.most)
        self.guide = _guide(self.cdf)
        self.rows = [np.searchsorted(self.p, level.p) for level in self.levels]  # of the tables, [classes, split]

    def draw(self, classes: np.ndarray, generator: "np.random.Generator") -> np.ndarray:
        """Counts ``[n, W]`` of sequences of these classes ``[n]``, int64."""
        counts = np.full((len(classes), 1), self.context, dtype=np.int64)
        for level, rows in zip(self.levels, self.rows):
            total = counts[:, level.split]
            left = self._binomial(total, rows[classes], generator)
            counts, single = np.empty((len(classes), level.width), dtype=np.int64), counts[:, level.single]
            counts[:, level.left], counts[:, level.left + 1] = left, total - left
            counts[:, level.single_to] = single
        return counts

    def _binomial(self, n: np.ndarray, rows: np.ndarray, generator: "np.random.Generator") -> np.ndarray:
        if n.max() > self.most:
            return generator.binomial(n, self.p[rows])
        bits = generator.integers(2**DRAWN, size=n.shape, dtype=np.uint32)
        found = self.guide.take(((rows * (self.most + 1) + n) << BITS) + (bits >> (DRAWN - BITS))).astype(np.int64)
        open_ = np.nonzero(found == UNDECIDED)
        u = (bits[open_] + generator.random(len(open_[0]))) / 2**DRAWN
        found[open_] = (self.cdf[rows[open_], n[open_]] <= u[:, None]).sum(1)
        return found


def _halve(P: np.ndarray) -> list[_Level]:
    nodes, levels = [(0, P.shape[1])], []  # (first kind, one past the last)
    while any(end - first > 1 for first, end in nodes):
        split = [i for i, (first, end) in enumerate(nodes) if end - first > 1]
        below, left, single, single_to, p = [], [], [], [], []
        for i, (first, end) in enumerate(nodes):
            middle = (first + end) // 2
            if i in split:
                one, other = P[:, first:middle].sum(1), P[:, middle:end].sum(1)
                p.append(np.where(other > 0, one / np.maximum(one + other, 1e-300), one > 0))
                left.append(len(below))
                below += [(first, middle), (middle, end)]
            else:
                single.append(i)
                single_to.append(len(below))
                below.append((first, end))
        places = [np.array(part, dtype=int) for part in (split, left, single, single_to)]
        levels.append(_Level(places[0], places[1], places[2], places[3], np.stack(p, 1).round(14), len(below)))
        nodes = below
    return levels


def _distribution_functions(p: np.ndarray, most: int) -> np.ndarray:
    """F(k) of the binomial with n and p, ``[p, n, k]``, 1 from k = n on."""
    from scipy.stats import binom

    n, k = np.arange(most + 1)[:, None], np.arange(most + 1)
    F = binom.cdf(k, n, p[:, None, None])
    return np.where(k >= n, 1.0, F)


def _guide(cdf: np.ndarray) -> np.ndarray:
    """For each p, n and cell of u the number k, or UNDECIDED if a value of F below 1 lies in the cell, uint8, flat."""
    cells = 2**BITS
    lines = cdf.reshape(-1, cdf.shape[-1])
    place = np.minimum(np.floor(lines * cells).astype(np.int64), cells)  # 1 is beyond the last cell
    jumps = np.zeros((len(lines), cells + 1), dtype=np.int64)
    np.add.at(jumps, (np.arange(len(lines))[:, None], place), 1)
    jumps = jumps[:, :-1]
    before = jumps.cumsum(1) - jumps
    return np.where(jumps > 0, UNDECIDED, before).astype(np.uint8).ravel()
