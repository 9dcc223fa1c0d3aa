"""The Frobenius problem with many constraints: exact solutions of growing subsets, so that no m by m Gram matrix is formed.

A subset, the *working set*, is solved exactly. The constraints that its solution violates most join it, those with multiplier zero leave,
and so on. The norm of W grows each time, so this ends: with the solution of the whole problem, or with a subset that is contradictory.
"""

import numpy as np

from ....core.errors import NotConverged
from .active_set import block_pivoting, solve
from .contradictions import Contradiction
from .pairs import Pairs
from .tolerances import FIRST_WORKING_SET, PIVOTED_SIZE, WORKING_SET_GROWTH, WORKING_SET_ROUNDS, WORKING_SET_SIZE


def solve_large(pairs: Pairs, *, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """W ``[d_x, d_z]`` and multipliers ``[m]`` of constraints of positive length.

    Args:
        pairs: m constraints; their largest right-hand side is about one.
        tol: margins may be wrong by half of this.
    Raises:
        Contradiction: no W meets the constraints; the weights are those of a contradictory subset.
        NotConverged: a working set has more than WORKING_SET_SIZE constraints, or the sets do not settle.
    """
    # Independent constraints up to PIVOTED_SIZE: one Gram matrix of all constraints is affordable, and pivoting on it takes fewer
    # factorisations than a sequence of working sets. Its active set is the first working set, and mostly the last.
    independent = len(pairs) <= min(PIVOTED_SIZE, pairs.difference.shape[1] * pairs.query.shape[1])
    active = block_pivoting(pairs) if independent else None
    working = active = _first(pairs) if active is None else active
    for _ in range(WORKING_SET_ROUNDS):
        # Invariant: the multipliers of the last solution vanish outside ``working``, so the norm of W can only grow from round to round.
        where = working.nonzero()[0]
        if len(where) > WORKING_SET_SIZE:
            raise NotConverged(f"at most {WORKING_SET_SIZE} constraints may be active, got {len(where)}; pass a sample of them")
        multipliers = np.zeros(len(pairs))
        try:
            W, multipliers[where] = solve(pairs.take(where), tol=tol, start=active[where])
        except Contradiction as proof:
            multipliers[where] = proof.weights
            raise Contradiction(multipliers) from None
        # Constraints in the working set are met to tol / 2 already; their rounding must not look like a violation.
        violation = np.where(working, 0.0, -pairs.slack(W))
        if violation.max() <= tol / 2:
            return W, multipliers
        # Constraints without a multiplier leave; if they are violated later, they join again. The most violated ones join, as many as the
        # set has, so that it at most doubles: small steps would solve many problems, one large step a needlessly large one.
        active = (multipliers > 0) | pairs.free
        joining = min(max(len(where), WORKING_SET_GROWTH), len(violation) - 1)
        working = active | (violation >= max(tol / 2, np.partition(violation, -joining)[-joining]))
    raise NotConverged(f"working sets must settle within {WORKING_SET_ROUNDS} rounds, got {int(working.sum())} constraints still changing")


def _first(pairs: Pairs) -> np.ndarray:
    """The equations, and the constraints with the smallest margins after one step of gradient ascent on the dual from zero."""
    # The gradient of the dual at zero is b. Each entry is divided by its diagonal entry of G, so that long constraints do not dominate.
    # Margins are divided by lengths for the same reason: the ratio is the distance of W from the boundary of the constraint.
    W = pairs.combine(np.where(pairs.free | (pairs.rhs > 0), pairs.rhs / pairs.length**2, 0.0))
    margins = np.where(pairs.free, -np.inf, (pairs.slack(W) + pairs.rhs) / pairs.length)
    count = min(FIRST_WORKING_SET, len(pairs) - 1)
    return pairs.free | (margins <= np.partition(margins, count)[count])
