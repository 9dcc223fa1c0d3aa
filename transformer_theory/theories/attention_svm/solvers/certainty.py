r"""What a contradiction found in float64 proves about the numbers given: that no W exists, or only that none is short.

Source: Farkas' lemma, for (Att-SVM) of :cite:t:`tarzanagh2023transformers`.
"""

import math
from fractions import Fraction

import numpy as np

from .active_set import ENTRIES, Pairs
from .exact_margins import EPSILON

EXACT = 2000  # products of fractions that take little time


def combination(pairs: Pairs, weights: np.ndarray) -> tuple[float, bool]:
    r"""A bound on the length of the combination, exact for few constraints, and whether it is certain that no W exists.

    It is if the combination is exactly zero, or if its constraints are more than the dimensions they lie in: then they do combine to zero,
    with weights that are at most the residual over the smallest singular value away, and have the same signs.
    """
    held, u = pairs.take(weights != 0), weights[weights != 0]
    dims = held.difference.shape[1] * held.query.shape[1]
    rounding = (len(u) + 2) * EPSILON * float(np.abs(u) @ held.length)
    if len(u) * dims <= EXACT:
        exact = [Fraction(0)] * dims
        for weight, d, z in zip(u.tolist(), held.difference.tolist(), held.query.tolist()):
            terms = (Fraction(weight) * Fraction(x) * Fraction(y) for x in d for y in z)
            exact = [total + term for total, term in zip(exact, terms)]
        length, rounding = math.hypot(*map(float, exact)), 0.0
        if not any(exact) or _cancel(held, u):
            return 0.0 if not any(exact) else length, True
    else:
        length = float(np.linalg.norm(held.combine(u)))
    return length + rounding, _more_than_dimensions(held, u, length + rounding)


def _cancel(held: Pairs, u: np.ndarray) -> bool:
    """Whether the constraints, as fractions, have one combination that is zero, with the signs of u and a positive right-hand side."""
    size = held.difference.shape[1] * held.query.shape[1]
    if len(u) ** 2 * size > EXACT:
        return False
    rows = [[Fraction(x) * Fraction(y) for x in d for y in z] for d, z in zip(held.difference.tolist(), held.query.tolist())]
    rows = [row + [Fraction(int(i == c)) for i in range(len(u))] for c, row in enumerate(rows)]  # beside them, what was combined
    for column in range(size):
        pivot = next((row for row in rows if row[column]), None)
        if pivot is not None:
            rest = [row for row in rows if row is not pivot]
            rows = [[a - row[column] / pivot[column] * b for a, b in zip(row, pivot)] if row[column] else row for row in rest]
    if len(rows) != 1:
        return False
    weights = rows[0][size:]
    side = 1 if weights[0] * Fraction(float(u[0])) > 0 else -1
    signs = all(side * w * Fraction(x) > 0 for w, x in zip(weights, u.tolist()))
    return signs and side * sum(w * Fraction(b) for w, b in zip(weights, held.rhs.tolist())) > 0


def _more_than_dimensions(held: Pairs, u: np.ndarray, length: float) -> bool:
    count, (dx, dz) = len(u), (held.difference.shape[1], held.query.shape[1])
    dims = min(dx * len(np.unique(held.query, axis=0)), dz * len(np.unique(held.difference, axis=0)), dx * dz)
    if count <= dims or count * dx * dz > ENTRIES:
        return False
    unit, rhs = u * held.length, held.rhs / held.length
    rows = (held.difference[:, :, None] * held.query[:, None, :]).reshape(count, -1) / held.length[:, None]
    sigma = np.linalg.svd(rows, compute_uv=False)
    smallest = sigma[count - 2] - 8 * count * EPSILON * sigma[0] if count <= len(sigma) + 1 else 0.0
    if smallest <= 0:
        return False
    away = 2 * length / smallest
    signs = np.abs(unit[~held.free]).min(initial=np.inf) > away
    return bool(signs and unit @ rhs > away * np.linalg.norm(rhs))
