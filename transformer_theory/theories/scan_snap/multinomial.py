r"""Multinomial counts by halving.

The number of n tokens that fall into the left half of the kinds is binomial; the halves are split in the same way, down to single kinds.

A binomial number k of n with probability p is drawn by inversion, :math:`F(k - 1) \le u < F(k)`. For n up to ``MAX_TABLED`` the first
``BITS`` bits of u select a cell of a guide table. Most cells lie between two values of F and determine k at once. For the other cells the
remaining bits of u are drawn and F is searched. The law is exact to the rounding of F and of p (14 digits). Larger n use numpy's binomial
sampler, so the cost does not grow with the length of a sequence. The counts are those of :cite:t:`tian2023scan`.
"""

from dataclasses import dataclass

import numpy as np

BITS = 10  # a guide table has 2^BITS cells for each p and n
MAX_TABLED = 254  # largest n with a table: the counts and UNDECIDED fit into a byte
UNDECIDED = 255  # marks a cell that contains a jump of F
FIRST_BITS = 32  # bits of u in the first draw


@dataclass(frozen=True, eq=False)
class _Level:
    """One level of the tree of halvings.

    Attributes:
        split: nodes that are halved.
        left: positions of their left halves in the next level; the right halves follow them.
        single, single_to: nodes of a single kind, and their positions in the next level.
        p: probability of the left half, ``[classes, split]``.
        width: number of nodes of the next level.
    """

    split: np.ndarray
    left: np.ndarray
    single: np.ndarray
    single_to: np.ndarray
    p: np.ndarray
    width: int


class Multinomial:
    """Draws counts of ``context`` tokens for classes with given probabilities of the kinds, rows of sum one.

    Args:
        probabilities: ``[K, W]``.
        context: tokens per sequence.
        max_tabled: largest n with a table, at most ``MAX_TABLED``; 0 if too few batches are drawn for tables to pay off.
    """

    def __init__(self, probabilities: np.ndarray, context: int, *, max_tabled: int = MAX_TABLED):
        self.context = context
        self.levels = _halve(probabilities)
        every = np.concatenate([level.p.ravel() for level in self.levels] or [np.zeros(1)])
        self.p, self.max_tabled = np.unique(every), min(context, max_tabled)
        self.cdf = _distribution_functions(self.p, self.max_tabled)
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
        if n.max() > self.max_tabled:
            return generator.binomial(n, self.p[rows])
        # the leading bits of u select a cell; a decided cell names the count
        bits = generator.integers(2**FIRST_BITS, size=n.shape, dtype=np.uint32)
        counts = self.guide.take(((rows * (self.max_tabled + 1) + n) << BITS) + (bits >> (FIRST_BITS - BITS))).astype(np.int64)
        # in an undecided cell the remaining bits decide: count the values of F up to u
        undecided = np.nonzero(counts == UNDECIDED)
        u = (bits[undecided] + generator.random(len(undecided[0]))) / 2**FIRST_BITS
        counts[undecided] = (self.cdf[rows[undecided], n[undecided]] <= u[:, None]).sum(1)
        return counts


def _halve(P: np.ndarray) -> list[_Level]:
    """The levels from all kinds down to single ones; p is rounded to 14 digits, so that equal splits share a table."""
    nodes, levels = [(0, P.shape[1])], []  # (first kind, one past the last)
    while any(end - first > 1 for first, end in nodes):
        split = [i for i, (first, end) in enumerate(nodes) if end - first > 1]
        below, left, single, single_to, p = [], [], [], [], []
        for i, (first, end) in enumerate(nodes):
            middle = (first + end) // 2
            if i in split:
                left_p, right_p = P[:, first:middle].sum(1), P[:, middle:end].sum(1)
                # exactly 1 if nothing can fall to the right; 1e-300 avoids 0 / 0 in nodes that a class never reaches
                p.append(np.where(right_p > 0, left_p / np.maximum(left_p + right_p, 1e-300), left_p > 0))
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


def _distribution_functions(p: np.ndarray, max_n: int) -> np.ndarray:
    """F(k) of the binomial with n and p, ``[p, n, k]``, 1 from k = n on."""
    from scipy.stats import binom

    n, k = np.arange(max_n + 1)[:, None], np.arange(max_n + 1)
    F = binom.cdf(k, n, p[:, None, None])
    return np.where(k >= n, 1.0, F)


def _guide(cdf: np.ndarray) -> np.ndarray:
    """For each p, n and cell of u the count k, or UNDECIDED if the cell contains a value of F below 1; uint8, flat."""
    cells = 2**BITS
    functions = cdf.reshape(-1, cdf.shape[-1])
    place = np.minimum(np.floor(functions * cells).astype(np.int64), cells)  # F = 1 falls behind the last cell
    jumps = np.zeros((len(functions), cells + 1), dtype=np.int64)
    np.add.at(jumps, (np.arange(len(functions))[:, None], place), 1)
    jumps = jumps[:, :-1]
    before = jumps.cumsum(1) - jumps
    return np.where(jumps > 0, UNDECIDED, before).astype(np.uint8).ravel()
