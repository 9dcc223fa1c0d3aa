"""The Frobenius problem with many constraints, solved exactly on a sequence of subsets.

The Gram matrix of all m constraints is formed only for m up to PIVOTED_SIZE.

Each round solves a subset of the constraints, the *working set*, exactly. The constraints that this solution
violates most join the set, and those with multiplier zero leave it. The norm of W grows in every round, so
the method terminates: with the solution of the whole problem, or with a contradictory subset.
"""

import numpy as np

from ....core.errors import NotConverged
from .active_set import block_pivoting, solve
from .contradictions import Contradiction
from .pairs import Pairs
from .tolerances import (
    FIRST_WORKING_SET,
    PIVOTED_SIZE,
    WORKING_SET_GROWTH,
    WORKING_SET_ROUNDS,
    WORKING_SET_SIZE,
)


def solve_large(pairs: Pairs, *, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns W ``[d_x, d_z]`` and multipliers ``[m]``. Every constraint must have positive length.

    Args:
        pairs: m constraints; their largest right-hand side is about one.
        tol: twice the largest accepted error of a margin.
    Raises:
        Contradiction: no W meets the constraints; the weights of the exception are non-zero on a
            contradictory subset only.
        NotConverged: a working set has more than WORKING_SET_SIZE constraints, or the sets do not settle.
    """
    # Up to PIVOTED_SIZE constraints that may be independent (at most d_x d_z), the Gram matrix of all
    # constraints is affordable, and pivoting on it takes fewer factorisations than a sequence of working
    # sets. Its active set is the first working set, and usually the last one.
    independent = len(pairs) <= min(PIVOTED_SIZE, pairs.difference.shape[1] * pairs.query.shape[1])
    active = block_pivoting(pairs.gram, pairs.rhs, pairs.free) if independent else None
    working = active = _first(pairs) if active is None else active
    for _ in range(WORKING_SET_ROUNDS):
        # Invariant: the multipliers of the last solution vanish outside ``working``, so the norm of W can
        # only grow from round to round.
        index = working.nonzero()[0]
        if len(index) > WORKING_SET_SIZE:
            raise NotConverged(
                f"at most {WORKING_SET_SIZE} constraints may be active, got {len(index)}; pass a sample of "
                "them"
            )
        multipliers = np.zeros(len(pairs))
        try:
            W, multipliers[index] = solve(pairs.take(index), tol=tol, start=active[index])
        except Contradiction as proof:
            multipliers[index] = proof.weights
            raise Contradiction(multipliers) from None
        # Constraints in the working set are already met to tol / 2; their rounding errors must not count as
        # violations.
        violation = np.where(working, 0.0, -pairs.slack(W))
        if violation.max() <= tol / 2:
            return W, multipliers
        # Constraints with multiplier zero leave; if a later W violates them, they join again. The most
        # violated constraints join, as many as the set contains, but at least WORKING_SET_GROWTH. Smaller
        # growth would need more rounds, larger growth larger problems.
        active = (multipliers > 0) | pairs.free
        joining = min(max(len(index), WORKING_SET_GROWTH), len(violation) - 1)
        working = active | (violation >= max(tol / 2, np.partition(violation, -joining)[-joining]))
    size = int(working.sum())
    raise NotConverged(
        f"working sets must settle within {WORKING_SET_ROUNDS} rounds, got a set of {size} constraints that "
        "still changes"
    )


def _first(pairs: Pairs) -> np.ndarray:
    """Returns the mask of the first working set.

    It holds the equality constraints, and the constraints with the smallest margins after one gradient step
    on the dual from zero.
    """
    # The gradient of the dual at zero is b. Its entries are divided by the diagonal of G, so that long
    # constraints do not dominate. Margins are divided by lengths for the same reason.
    W = pairs.combine(np.where(pairs.free | (pairs.rhs > 0), pairs.rhs / pairs.length**2, 0.0))
    margins = np.where(pairs.free, -np.inf, (pairs.slack(W) + pairs.rhs) / pairs.length)
    count = min(FIRST_WORKING_SET, len(pairs) - 1)
    return pairs.free | (margins <= np.partition(margins, count)[count])
