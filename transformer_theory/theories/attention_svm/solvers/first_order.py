r"""The Frobenius problem with many constraints: a first-order method finds the neighbourhood, working sets the exact solution.

Accelerated projected gradient on the dual (:cite:t:`beck2009fast`; :cite:t:`odonoghue2015adaptive`: restarted where it turns uphill),

.. math:: \min_{\lambda \ge 0} \tfrac12 \Big\|\sum_c \lambda_c F_c\Big\|_F^2 - b^\top\lambda, \qquad F_c = d_c z_c^\top,

needs :math:`\sum_c\lambda_c F_c` and the margins of a matrix only: memory :math:`m (d_x + d_z)`, never an m by m Gram matrix. The
constraints with a positive multiplier are the first *working set*. It is solved exactly, the constraints that its solution violates are
added, those with multiplier zero are dropped, and so on: the objective increases each time, so this ends, with the solution of the whole
problem or with a subset that is already contradictory.
"""

import numpy as np

from ....core.errors import NotConverged
from .active_set import Contradiction, Pairs, block_pivoting, solve

PIVOTED = 2_000  # constraints up to which pivoting on the whole Gram matrix is faster, where that is well conditioned
LARGEST = 12_000  # constraints of a working set: a Gram matrix of 1.2 GB
STEPS, ROUNDS = 2000, 100


def solve_large(pairs: Pairs, *, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """W and multipliers of constraints of positive length.

    Raises:
        Contradiction: no W meets the constraints; the weights are those of a contradictory subset.
        NotConverged: a working set has more than LARGEST constraints, or the sets do not settle.
    """
    independent = len(pairs) <= min(PIVOTED, pairs.difference.shape[1] * pairs.query.shape[1])
    active = block_pivoting(pairs) if independent else None
    if active is None:
        active = (approach(pairs) > 0) | pairs.free
    working = active
    for _ in range(ROUNDS):
        where = working.nonzero()[0]
        if len(where) > LARGEST:
            raise NotConverged(f"at most {LARGEST} constraints may be active, got {len(where)}; pass fewer constraints, a sample of them")
        multipliers = np.zeros(len(pairs))
        try:
            W, multipliers[where] = solve(pairs.take(where), tol=tol, start=active[where])
        except Contradiction as proof:
            multipliers[where] = proof.weights
            raise Contradiction(multipliers) from None
        short = np.where(working, 0.0, -pairs.beyond(W))
        if short.max() <= tol / 2:
            return W, multipliers
        active = (multipliers > 0) | pairs.free
        most = min(max(len(where), 100), len(short) - 1)  # at most doubles the set, except for the first few
        working = active | (short >= max(tol / 2, np.partition(short, -most)[-most]))
    raise NotConverged(f"working sets must settle within {ROUNDS} rounds, got {int(working.sum())} constraints still changing")


def approach(pairs: Pairs, *, steps: int = STEPS, tol: float = 1e-4) -> np.ndarray:
    """Approximate multipliers, exactly zero on most inactive constraints.

    Args:
        tol: margins violated by more, relative to the largest right-hand side, are worth another step.
    """
    unit = Pairs(pairs.difference / pairs.length[:, None], pairs.query, pairs.rhs / pairs.length, pairs.free)
    floor = np.where(unit.free, -np.inf, 0.0)
    step = 1 / _largest_eigenvalue(unit)
    now = ahead = np.zeros(len(unit))
    momentum = 1.0
    for _ in range(steps):
        slope = unit.margins(unit.combine(ahead)) - unit.rhs
        after = np.maximum(ahead - step * slope, floor)
        moved = after - now
        if slope @ moved > 0:
            momentum = 1.0
        grown = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead, now = after + (momentum - 1) / grown * moved, after
        momentum = grown
        if np.abs(ahead - after).max() + np.abs(moved).max() <= step * tol * np.abs(unit.rhs).max():
            break
    return now / pairs.length


def _largest_eigenvalue(pairs: Pairs, turns: int = 30) -> float:
    """Of the Gram matrix, by powers, and a tenth more."""
    vector, size = np.ones(len(pairs)), 1.0
    for _ in range(turns):
        vector = pairs.margins(pairs.combine(vector))
        size = float(np.linalg.norm(vector))
        if size == 0:
            return 1.1 * float(pairs.length.max()) ** 2 * len(pairs)
        vector = vector / size
    return 1.1 * size
