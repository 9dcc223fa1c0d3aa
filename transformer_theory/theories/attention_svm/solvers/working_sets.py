"""The Frobenius problem with many constraints: exact solutions of growing subsets, so that no m by m Gram matrix is formed.

A subset, the *working set*, is solved exactly. The constraints that its solution violates most join it, those with multiplier zero leave,
and so on. The norm of W grows each time, so this ends: with the solution of the whole problem, or with a subset that is contradictory.
"""

import numpy as np

from ....core.errors import NotConverged
from .active_set import Contradiction, Pairs, block_pivoting, solve
from .tolerances import FIRST_WORKING_SET, PIVOTED_SIZE, WORKING_SET_GROWTH, WORKING_SET_ROUNDS, WORKING_SET_SIZE


def solve_large(pairs: Pairs, *, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """W and multipliers of constraints of positive length.

    Raises:
        Contradiction: no W meets the constraints; the weights are those of a contradictory subset.
        NotConverged: a working set has more than WORKING_SET_SIZE constraints, or the sets do not settle.
    """
    independent = len(pairs) <= min(PIVOTED_SIZE, pairs.difference.shape[1] * pairs.query.shape[1])
    active = block_pivoting(pairs) if independent else None
    working = active = _first(pairs) if active is None else active
    for _ in range(WORKING_SET_ROUNDS):
        where = working.nonzero()[0]
        if len(where) > WORKING_SET_SIZE:
            raise NotConverged(f"at most {WORKING_SET_SIZE} constraints may be active, got {len(where)}; pass a sample of them")
        multipliers = np.zeros(len(pairs))
        try:
            W, multipliers[where] = solve(pairs.take(where), tol=tol, start=active[where])
        except Contradiction as proof:
            multipliers[where] = proof.weights
            raise Contradiction(multipliers) from None
        violation = np.where(working, 0.0, -pairs.slack(W))
        if violation.max() <= tol / 2:
            return W, multipliers
        active = (multipliers > 0) | pairs.free
        # The most violated constraints join: as many as the set has, so that it at most doubles.
        joining = min(max(len(where), WORKING_SET_GROWTH), len(violation) - 1)
        working = active | (violation >= max(tol / 2, np.partition(violation, -joining)[-joining]))
    raise NotConverged(f"working sets must settle within {WORKING_SET_ROUNDS} rounds, got {int(working.sum())} constraints still changing")


def _first(pairs: Pairs) -> np.ndarray:
    """The equations, and the constraints with the smallest margins after one step of gradient ascent on the dual from zero."""
    W = pairs.combine(np.where(pairs.free | (pairs.rhs > 0), pairs.rhs / pairs.length**2, 0.0))
    margins = np.where(pairs.free, -np.inf, (pairs.slack(W) + pairs.rhs) / pairs.length)
    count = min(FIRST_WORKING_SET, len(pairs) - 1)
    return pairs.free | (margins <= np.partition(margins, count)[count])
