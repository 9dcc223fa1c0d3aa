r"""Contradictions among constraints: weights :math:`u` (:math:`u_c \ge 0` on inequalities) that combine them
to :math:`0 \ge b^\top u > 0`.

By Farkas' lemma there are weights with :math:`\sum_c u_c F_c = 0` if and only if no W meets the constraints
(:cite:t:`lawson1974solving`, ch. 23). In float64 the sum is rarely exactly zero. :func:`refute` recognises
weights with a small sum, :func:`refined` makes the sum as small as rounding allows, and
:func:`is_contradiction` decides whether the remainder is rounding alone.
"""

import numpy as np

from .pairs import Pairs, spread
from .tolerances import CONTRADICTION_RTOL, EPSILON, NULL_RANK_RTOL, NULL_SQUARE_RTOL


class Contradiction(Exception):
    """The constraints contradict one another: ``weights`` combine them to nearly 0 >= b with b > 0
    (:func:`is_contradiction`).
    """

    def __init__(self, weights: np.ndarray):
        super().__init__("the constraints contradict one another")
        self.weights = weights


def refute(pairs: Pairs, weights: np.ndarray) -> None:
    """Checks that the weights, after refinement if needed, do not combine the constraints to nearly zero.

    Raises:
        Contradiction: the combination is nearly zero and its right-hand side is positive.
    """
    total = float(np.abs(weights) @ pairs.length)
    # The squared length from inner products has half as many digits as the combination itself. These suffice
    # to show that a combination is far from zero, which is the usual case, and the Gram matrix is already
    # computed.
    if total == 0 or float(weights @ pairs.gram @ weights) > NULL_SQUARE_RTOL * total**2:
        return
    if is_contradiction(pairs, weights):
        raise Contradiction(weights)
    weights = refined(pairs, weights)
    if residual(pairs, weights) <= CONTRADICTION_RTOL and float(weights @ pairs.rhs) > 0:
        raise Contradiction(weights)


def residual(pairs: Pairs, weights: np.ndarray) -> float:
    """Returns the length of the combination relative to the sum of the lengths of its terms, in [0, 1]."""
    return float(np.linalg.norm(pairs.combine(weights)) / max(float(np.abs(weights) @ pairs.length), 1e-300))


def refined(pairs: Pairs, weights: np.ndarray) -> np.ndarray:
    """Projects the weights onto the null space of the Gram matrix, as long as this brings the combination
    nearer to zero.

    Zero weights stay zero.
    """
    active = weights != 0
    part = pairs.take(active)
    # For constraints of length one, the eigenvalues of the Gram matrix measure linear dependence and not
    # size. The eigenvectors of non-zero eigenvalues are divided by the roots of these, so that vectors @
    # vectors.T is the pseudo-inverse of the Gram matrix.
    unit = Pairs(part.difference / part.length[:, None], part.query, part.rhs, part.free)
    values, vectors = np.linalg.eigh(unit.gram)
    independent = values > NULL_RANK_RTOL * values[-1]
    vectors = vectors[:, independent] / np.sqrt(values[independent])
    best, smallest = weights[active] * part.length, residual(part, weights[active])
    for _ in range(3):
        # G u is computed from the combination itself, not from G. Errors of the Gram matrix then slow the
        # refinement down but do not limit its accuracy. A step that makes a weight negative or the right-hand
        # side non-positive is rejected: such weights prove nothing.
        inner = np.einsum("cd,cd->c", unit.difference @ unit.combine(best), unit.query)
        candidate = best - vectors @ (vectors.T @ inner)
        candidate_residual = residual(unit, candidate)
        negative = (candidate[~part.free] < 0).any()
        if not candidate_residual < smallest or negative or not float(candidate / part.length @ part.rhs) > 0:
            break
        best, smallest = candidate, candidate_residual
    return spread(best / part.length, active)


def is_contradiction(pairs: Pairs, weights: np.ndarray) -> bool:
    r"""Returns whether the combination is zero, and its right-hand side positive, up to rounding errors.

    The computed sum of s products of three factors is wrong by at most :math:`(s + 2) \epsilon / 2` times the
    sum of the absolute values of its terms, and rounding the weights adds :math:`\epsilon / 2`. Twice this
    bound is allowed, since the weights are themselves computed. A longer combination does not exclude a
    solution; it only proves that W is long.
    """
    rounding = (int((weights != 0).sum()) + 3) * EPSILON
    return residual(pairs, weights) <= rounding and float(weights @ pairs.rhs) > rounding * float(
        np.abs(weights) @ np.abs(pairs.rhs)
    )
