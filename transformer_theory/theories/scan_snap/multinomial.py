r"""Multinomial counts by halving.

Divide the kinds of tokens into a left and a right half. Of n tokens, the number that fall into the left half
is binomial. Each half is divided in the same way, down to single kinds.

A binomial number k of n with probability p is drawn by inversion, :math:`F(k - 1) \le u < F(k)`. For n up to
``MAX_TABLED`` the first ``BITS`` bits of u select a cell of a guide table. Most cells lie between two values
of F and determine k at once. For the other cells the remaining bits of u are drawn and F is searched. The law
is exact to the rounding of F and of p (14 digits). Tables are computed when they are first needed. Larger n
use numpy's binomial sampler, so the cost does not grow with the length of a sequence. Source of the
sequences: :cite:t:`tian2023scan`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

BITS = 10  # a guide table has 2^BITS cells for each p and n
MAX_TABLED = 254  # largest n with a table: the counts and UNDECIDED fit into a byte
UNDECIDED = 255  # marks a cell that contains a jump of F
FIRST_BITS = 32  # bits of u in the first draw
MARGIN = 4  # n on either side of those that occur for which guides are computed in advance


@dataclass(frozen=True, eq=False)
class _Level:
    """One level of the tree of halvings.

    Attributes:
        split: nodes of several kinds, which this level halves.
        left: position of each left half in the next level; its right half is the next position.
        single, single_to: nodes of a single kind, and their positions in the next level.
        p: probability of the left half given the node, ``[classes, split]``.
        width: number of nodes of the next level.
    """

    split: np.ndarray
    left: np.ndarray
    single: np.ndarray
    single_to: np.ndarray
    p: np.ndarray
    width: int


class Multinomial:
    """Sampler of the counts of ``context`` tokens in sequences of given classes.

    Args:
        probabilities: probability of each kind of token in each class, rows with sum one, ``[K, W]``.
        context: tokens per sequence.
        max_tabled: largest n with a guide table, at most ``MAX_TABLED``. 0 avoids the tables, which pay off
            only for many batches.
    """

    def __init__(self, probabilities: np.ndarray, context: int, *, max_tabled: int = MAX_TABLED):
        self.context = context
        self.levels = _halve(probabilities)
        # One table per distinct p, not per node: symmetric classes repeat few values many times.
        probabilities_left = np.concatenate([level.p.ravel() for level in self.levels] or [np.zeros(1)])
        self.p, self.max_tabled = np.unique(probabilities_left), min(context, max_tabled)
        # number of each node's p, [classes, split]
        self.rows = [np.searchsorted(self.p, level.p) for level in self.levels]
        # F is computed when it is first needed, the guide for the pairs (p, n) that occur: long sequences
        # need few of them, or none.
        self.cdf = np.empty((0, 0, 0))
        self.guide = np.empty((len(self.p), self.max_tabled + 1, 2**BITS), dtype=np.uint8)
        # whether the guide is computed for p and n
        self.tabled = np.zeros((len(self.p), self.max_tabled + 1), dtype=bool)

    def draw(self, classes: np.ndarray, generator: "np.random.Generator") -> np.ndarray:
        """Draws counts ``[n, W]`` of sequences of these classes ``[n]``, int64."""
        # The root holds all tokens. At every level the counts of the nodes add up to ``context``.
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
        # The leading bits of u select a cell, whose entry is the count k unless a jump of F lies inside the
        # cell. The guide is flat with index ((row, n), cell); one `take` is much faster than indexing by
        # three arrays.
        bits = generator.integers(2**FIRST_BITS, size=n.shape, dtype=np.uint32)
        pair = rows * (self.max_tabled + 1) + n
        if not self.tabled.take(pair).all():
            self._tabulate(pair)
        counts = self.guide.take((pair << BITS) + (bits >> (FIRST_BITS - BITS))).astype(np.int64)
        # In an undecided cell append the remaining bits to u; k is the number of values of F up to u.
        undecided = np.nonzero(counts == UNDECIDED)
        u = (bits[undecided] + generator.random(len(undecided[0]))) / 2**FIRST_BITS
        counts[undecided] = (self.cdf[rows[undecided], n[undecided]] <= u[:, None]).sum(1)
        return counts

    def _tabulate(self, pair: np.ndarray) -> None:
        """Computes the guide for the numbers of pairs (p, n) that lack it, and F before the first one."""
        wanted = np.zeros_like(self.tabled)
        wanted.put(pair, True)
        if not len(self.cdf):
            self.cdf = _distribution_functions(self.p, self.max_tabled)
        # later draws will need neighbouring n: extend the range of each p by a margin
        for row in np.nonzero(wanted.any(1))[0]:
            n = np.nonzero(wanted[row])[0]
            wanted[row, max(0, n[0] - MARGIN) : n[-1] + MARGIN + 1] = True
        rows, n = np.nonzero(wanted & ~self.tabled)
        self.guide[rows, n] = _guide(self.cdf[rows, n])
        self.tabled[rows, n] = True


def _halve(P: np.ndarray) -> list[_Level]:
    """Returns the levels of the tree, from all kinds down to single ones."""
    nodes, levels = [(0, P.shape[1])], []  # each node: its first kind, and one past its last
    while any(end - first > 1 for first, end in nodes):
        split = [i for i, (first, end) in enumerate(nodes) if end - first > 1]
        below, left, single, single_to, p = [], [], [], [], []
        for i, (first, end) in enumerate(nodes):
            middle = (first + end) // 2
            if i in split:
                left_p, right_p = P[:, first:middle].sum(1), P[:, middle:end].sum(1)
                # p is exactly 1 if nothing can fall to the right; 1e-300 avoids 0 / 0 in nodes that a class
                # never reaches.
                p.append(np.where(right_p > 0, left_p / np.maximum(left_p + right_p, 1e-300), left_p > 0))
                left.append(len(below))
                below += [(first, middle), (middle, end)]
            else:
                single.append(i)
                single_to.append(len(below))
                below.append((first, end))
        places = [np.array(part, dtype=int) for part in (split, left, single, single_to)]
        # Round p to 14 digits: splits that are equal up to rounding of the sums then share a table.
        levels.append(_Level(*places, p=np.stack(p, 1).round(14), width=len(below)))
        nodes = below
    return levels


def _distribution_functions(p: np.ndarray, max_n: int) -> np.ndarray:
    """Returns F(k) of the binomial law with n and p, ``[p, n, k]``; exactly 1 from k = n on, so that the
    search always ends.
    """
    # The last of n trials succeeds or fails: F_n(k) = (1 - p) F_{n-1}(k) + p F_{n-1}(k - 1). All terms are
    # positive, so nothing cancels.
    F = np.ones((len(p), max_n + 1, max_n + 1))
    success, failure = p[:, None], 1 - p[:, None]
    for n in range(1, max_n + 1):
        F[:, n, :n] = failure * F[:, n - 1, :n]
        F[:, n, 1:n] += success * F[:, n - 1, : n - 1]
    return F


def _guide(functions: np.ndarray) -> np.ndarray:
    """Tabulates the count k for each function ``[rows, k]`` and cell of u, or UNDECIDED if a value of F below
    1 lies in the cell; uint8.
    """
    cells = 2**BITS
    # F = 1 lies in an extra cell after the last one
    cell = np.minimum((functions * cells).astype(np.int64), cells)
    cell += np.arange(len(functions))[:, None] * (cells + 1)
    jumps = (
        np.bincount(cell.ravel(), minlength=len(functions) * (cells + 1))
        .reshape(-1, cells + 1)[:, :-1]
        .astype(np.uint8)
    )
    # k is the number of values of F up to u, so in a cell without a jump it is the number of jumps in earlier
    # cells, at most 254.
    before = np.cumsum(jumps, axis=1, dtype=np.uint8)
    return np.where(jumps > 0, np.uint8(UNDECIDED), before)


def draw_counts(
    conditional: Float[Tensor, "K S"],
    target: Int[Tensor, "sets n"],
    *,
    context: int,
    generator: torch.Generator,
) -> Float[Tensor, "sets n S"]:
    """Draws the counts of sequences of given classes, float64; rows sum to ``context``.

    Args:
        conditional: probability of each token in each class, rows with sum one, ``[K, S]``.
        target: class of each sequence of each set, ``[sets, n]``; the sets are drawn one after the other.
        context: tokens per sequence.
        generator: source of the seed, from which all counts follow; advances by one draw.
    """
    # numpy has the binomial sampler for large n that torch lacks, so one torch draw seeds a numpy generator.
    numbers = np.random.Generator(np.random.Philox(int(torch.randint(2**63 - 1, (1,), generator=generator))))
    source = Multinomial(conditional.numpy(), context, max_tabled=0)
    return torch.stack(
        [torch.from_numpy(source.draw(classes.numpy(), numbers)).double() for classes in target]
    )
