"""Shares of problems in which all tokens are support vectors of the best ones, by one linear system, and in
which descent selects the best.

Published problems of seeds 0 to 99 with n = T = 5. All tokens are support vectors if the shortest W whose
margins are all one has no negative multiplier: with the Gram matrix G of the constraints, the multipliers
solve G lambda = 1.
"""

from collections.abc import Iterator

import numpy as np

from benchmarks.references import Reference
from benchmarks.references._tools import pairs, published
from benchmarks.references.global_convergence import TRIALS, share
from transformer_theory.theories.attention_svm.figures import convergence_types as figure

SIZE = 5


def support_share(d: int) -> float:
    """Returns the share of the seeds in which all tokens are support vectors in the Frobenius norm."""
    count = 0
    for x, z, scores in zip(*published(range(TRIALS), SIZE, SIZE, d)):
        difference, query = pairs(x, z, scores.argmax(-1))
        gram = (difference @ difference.T) * (query @ query.T)
        count += bool((np.linalg.solve(gram, np.ones(len(gram))) >= 0).all())
    return count / TRIALS


def references(dims: tuple[int, ...] = tuple(figure.KNOWN[figure.BEST])) -> Iterator[Reference]:
    """Yields both shares per dimension."""
    for d, stored in figure.KNOWN[figure.SUPPORT].items():
        yield Reference(f"{figure.SUPPORT}, Frobenius norm, d={d}", stored, support_share(d))
    for d, stored in figure.KNOWN[figure.BEST].items():
        if d in dims:
            yield Reference(f"{figure.BEST}, descent on W, d={d}", stored, share(SIZE, SIZE, d))
