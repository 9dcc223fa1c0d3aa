"""Mean ranks of the max-margin solutions over the first 100 feasible seeds of 400, by least squares
(Frobenius) and cvxpy (nuclear).

Feasibility is decided by a linear program (scipy). The Frobenius solution is a least-distance problem, which
non-negative least squares solve up to rounding (Lawson and Hanson, ch. 23); its rank counts singular values
above 1e-9 of the first. Clarabel solves the nuclear problem with an error near 1e-11 in the norm, which
leaves errors of about 1e-6 in W; its rank counts singular values above 2e-5 of the first. Sizes with d > 10
take minutes; ``references(dims=...)`` restricts the dimensions.
"""

from collections.abc import Iterator

import numpy as np
from scipy.optimize import linprog, nnls

from benchmarks.references import Reference
from benchmarks.references._tools import nuclear, pairs, published
from transformer_theory.theories.attention_svm.figures import rank as figure

WANTED, MAX_SEEDS = 100, 400
FROBENIUS_RTOL, NUCLEAR_RTOL = 1e-9, 2e-5  # singular values up to this share of the first count as errors


def feasible(difference: np.ndarray, query: np.ndarray) -> bool:
    """Returns whether some W meets the constraints."""
    rows = -(difference[:, :, None] * query[:, None, :]).reshape(len(difference), -1)
    return (
        linprog(np.zeros(rows.shape[1]), A_ub=rows, b_ub=-np.ones(len(rows)), bounds=(None, None)).status == 0
    )


def least_distance(difference: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Returns the W of least Frobenius norm.

    With rows a_c of the constraints, it is proportional to the residual of min |sum u_c (a_c, 1) - (0, 1)|
    over u >= 0.
    """
    rows = (difference[:, :, None] * query[:, None, :]).reshape(len(difference), -1)
    stacked = np.vstack([rows.T, np.ones(len(rows))])
    target = np.eye(1, len(stacked), len(stacked) - 1)[0]
    residual = stacked @ nnls(stacked, target, maxiter=20 * len(rows))[0] - target
    return (residual[:-1] / -residual[-1]).reshape(difference.shape[1], query.shape[1])


def rank_of(W: np.ndarray | None, rtol: float) -> int:
    """Returns the number of singular values above ``rtol`` times the first."""
    assert W is not None
    sigma = np.linalg.svd(W, compute_uv=False)
    return int((sigma > rtol * sigma[0]).sum())


def references(dims: tuple[int, ...] = figure.KNOWN_DIMS, wanted: int = WANTED) -> Iterator[Reference]:
    """Yields two mean ranks per size."""
    for (n, T), sizes in figure.KNOWN.items():
        for d, means in sizes.items():
            if d not in dims:
                continue
            ranks: list[tuple[int, int]] = []
            for seed in range(MAX_SEEDS):
                x, z, scores = (v[0] for v in published([seed], n, T, d))
                constraints = pairs(x, z, scores.argmax(-1))
                if feasible(*constraints):
                    ranks.append(
                        (
                            rank_of(least_distance(*constraints), FROBENIUS_RTOL),
                            rank_of(nuclear(*constraints), NUCLEAR_RTOL),
                        )
                    )
                if len(ranks) == wanted:
                    break
            for name, stored, computed in zip((figure.FROBENIUS, figure.NUCLEAR), means, np.mean(ranks, 0)):
                note = f"over {len(ranks)} problems" if len(ranks) < WANTED else ""
                yield Reference(f"{name}, n={n}, T={T}, d={d}", stored, float(computed), note=note)
