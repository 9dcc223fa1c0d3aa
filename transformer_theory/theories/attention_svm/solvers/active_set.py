r"""The active-set core of the Frobenius problem: which constraints hold with equality, and the solution to rounding.

.. math:: \min_W \tfrac12\|W\|_F^2 \quad\text{subject to}\quad \langle F_c, W\rangle \ge b_c \ \text{ or } = b_c, \qquad F_c = d_c z_c^\top.

With the Gram matrix G of the F_c the dual is :math:`\max_\lambda b^\top\lambda - \tfrac12\lambda^\top G\lambda`, with
:math:`\lambda_c \ge 0` for inequalities and free for equations, and :math:`W = \sum_c \lambda_c F_c`. Two ways to the active set: block
pivoting exchanges all indices of the wrong sign at once (G well conditioned), and a least-distance problem solved by non-negative least
squares (:cite:t:`lawson1974solving`, ch. 23; any G, and it proves infeasibility). Both only guess; :func:`polish` solves and corrects.
Only inner products of constraints enter, so the cost hardly depends on the dimension.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....core.errors import NotConverged
from .exact_margins import EPSILON, beyond

FEW = 64  # constraints for which least squares cost next to nothing
MANY = 16  # constraints from which the exchanges of block pivoting are cheaper than least squares
SEEN = 1e-14  # of a margin: the size of rounding from which it is formed in more digits
ENTRIES = 10**7  # of the active constraints as matrices: more are not formed
REFINED = 12  # steps towards margins as asked where the constraints nearly depend on one another; each adds some digits
EXCHANGES = 200  # active-set corrections of the polish; 0 or 1 in practice

NEARLY = 1e-12  # of a combination, relative to its terms: then a W that meets the constraints has margins of no digits


class Contradiction(Exception):
    """Weights, free in sign on equations, combine the constraints to nearly 0 >= b with b > 0: see :func:`contradictory`."""

    def __init__(self, weights: np.ndarray):
        super().__init__("the constraints contradict one another")
        self.weights = weights


@dataclass(frozen=True)
class Pairs:
    """Constraints of one problem as plain arrays: problems are small, and numpy's calls are cheaper than torch's.

    ``free`` marks the equations, whose multipliers have either sign.
    """

    difference: np.ndarray
    query: np.ndarray
    rhs: np.ndarray
    free: np.ndarray

    def __len__(self) -> int:
        return len(self.rhs)

    def take(self, where: np.ndarray) -> "Pairs":
        return Pairs(self.difference[where], self.query[where], self.rhs[where], self.free[where])

    @cached_property
    def length(self) -> np.ndarray:
        squares = np.einsum("cd,cd->c", self.difference, self.difference), np.einsum("cd,cd->c", self.query, self.query)
        return np.sqrt(squares[0]) * np.sqrt(squares[1])

    @cached_property
    def gram(self) -> np.ndarray:
        return (self.difference @ self.difference.T) * (self.query @ self.query.T)

    def margins(self, W: np.ndarray) -> np.ndarray:
        return np.einsum("cd,cd->c", self.difference @ W, self.query)

    def rounding(self, W: np.ndarray) -> float:
        """Size of the error of :meth:`margins`."""
        return EPSILON * float(np.linalg.norm(W)) * float(self.length.max(initial=0))

    def beyond(self, W: np.ndarray) -> np.ndarray:
        """How far the margins are above their right-hand sides; formed in more digits where rounding would be seen."""
        if self.rounding(W) <= SEEN:
            return self.margins(W) - self.rhs
        return beyond(self.difference, W, self.query, self.rhs)[0]

    def combine(self, weights: np.ndarray) -> np.ndarray:
        return (self.difference * weights[:, None]).T @ self.query


def solve(pairs: Pairs, *, tol: float, start: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """W and multipliers of constraints of positive length.

    Args:
        start: a guess of the active set, if there is one.
    Raises:
        Contradiction: no W meets the constraints.
        NotConverged: least squares stopped early.
    """
    if not len(pairs):
        return np.zeros((pairs.difference.shape[1], pairs.query.shape[1])), np.zeros(0)
    independent = MANY <= len(pairs) <= pairs.difference.shape[1] * pairs.query.shape[1]
    active = block_pivoting(pairs, start) if start is not None or independent else None
    if active is None:
        active = (least_distance(pairs) > 0) | pairs.free
    return polish(pairs, active, tol)


def block_pivoting(pairs: Pairs, start: np.ndarray | None = None, rounds: int = 40) -> np.ndarray | None:
    """Active set by exchanging all indices of the wrong sign at once; None unless it ends and G is well conditioned.

    Exchanges fall back to one index at a time when they do not help.
    """
    gram, rhs, free = pairs.gram, pairs.rhs, pairs.free
    active = (rhs > 0) | free if start is None else start | free
    fewest, patience = len(gram) + 1, 3
    for turn in range(rounds):
        where = active.nonzero()[0]
        inverse = cholesky_solver(gram[np.ix_(where, where)], smallest=1e-4 if turn == 0 else 0.0)
        if inverse is None:
            return None
        multipliers = inverse(rhs[where])
        sign = gram[:, where] @ multipliers - rhs  # slack of the margins; on the active set the multipliers decide
        sign[where] = multipliers
        wrong = (sign < 0) & ~free
        count = int(wrong.sum())
        if count == 0:
            return active
        if count < fewest:
            fewest, patience = count, 3
        elif patience > 0:
            patience -= 1
        else:
            wrong[: wrong.nonzero()[0][-1]] = False
        active = active ^ wrong
    return None


def least_distance(pairs: Pairs) -> np.ndarray:
    """Multipliers up to a positive factor: non-negative weights of the inequalities, positive on the active set; zero on equations.

    Raises:
        Contradiction: no W meets the constraints.
        NotConverged: least squares stopped early.
    """
    if pairs.difference.shape[1] * pairs.query.shape[1] <= len(pairs):
        factor = (pairs.difference[:, :, None] * pairs.query[:, None, :]).reshape(len(pairs), -1).T
    else:
        factor = root(pairs.gram)
    if not pairs.free.any():
        weights = nearest(factor, pairs.rhs, pairs.length)
        refute(pairs, weights)
        return weights
    return _least_distance_on_equations(pairs, factor)


def _least_distance_on_equations(pairs: Pairs, factor: np.ndarray) -> np.ndarray:
    """:func:`least_distance` in the affine space that the equations leave; the constraints are the columns of ``factor``."""
    free, scale = pairs.free, np.where(pairs.free, pairs.length, 1.0)
    left, sigma, right = np.linalg.svd(factor[:, free] / scale[free], full_matrices=False)
    rank = int((sigma > 1e-11 * sigma[0]).sum())
    left, right = left[:, :rank] / sigma[:rank], right[:rank]
    wanted = pairs.rhs[free] / scale[free]
    contradicting = wanted - right.T @ (right @ wanted)
    if np.abs(contradicting).max() > 1e-9 * np.abs(wanted).max():
        size = np.abs(contradicting)
        raise Contradiction(_spread(np.where(size > 1e-10 * size.max(), contradicting, 0.0) / scale[free], free))
    rest = factor[:, ~free]
    pulled = left.T @ rest  # what each inequality takes from the equations
    reduced = rest - (left * sigma[:rank] ** 2) @ pulled
    slack = pairs.rhs[~free] - (right @ wanted) @ pulled
    length = np.linalg.norm(reduced, axis=0)
    known = length <= 1e-10 * pairs.length[~free]  # the equations alone decide these

    def lifted(weights: np.ndarray) -> np.ndarray:
        full = _spread(weights, ~free)
        full[free] = -(right.T @ (pulled @ weights)) / scale[free]
        return full

    if (slack[known] > 1e-9).any():
        raise Contradiction(lifted(np.where(known, slack, -np.inf) == slack[known].max()))
    weights = np.zeros(len(slack))
    if not known.all():
        weights[~known] = nearest(reduced[:, ~known], slack[~known], length[~known])
        refute(pairs, lifted(weights))
    return _spread(weights, ~free)


def _spread(weights: np.ndarray, where: np.ndarray) -> np.ndarray:
    full = np.zeros(len(where))
    full[where] = weights
    return full


def nearest(factor: np.ndarray, rhs: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Multipliers, up to a factor, of the shortest vector w with ``factor.T @ w >= rhs``; ``length`` of the columns.

    Raises:
        NotConverged: least squares stopped early.
    """
    from scipy.optimize import nnls

    rows, m = factor.shape
    scaled = np.empty((rows + 1, m), order="F")
    scaled[:rows], scaled[rows] = factor, rhs * length.min()
    scaled /= length
    try:
        weights, _ = nnls(scaled, np.eye(1, rows + 1, rows)[0], maxiter=20 * m)
    except RuntimeError as error:
        raise NotConverged(f"non-negative least squares stopped ({error})") from error
    return weights / length


def refute(pairs: Pairs, weights: np.ndarray) -> None:
    """Raises Contradiction if the weights combine the constraints to nearly zero, after refining them."""
    total = float(np.abs(weights) @ pairs.length)
    if total == 0 or float(weights @ pairs.gram @ weights) > 1e-10 * total**2:  # far from zero: no need of more digits
        return
    weights = refined(pairs, weights)
    if residual(pairs, weights) <= NEARLY and float(weights @ pairs.rhs) > 0:
        raise Contradiction(weights)


def residual(pairs: Pairs, weights: np.ndarray) -> float:
    """Length of the combination relative to the lengths of its terms."""
    return float(np.linalg.norm(pairs.combine(weights)) / max(float(np.abs(weights) @ pairs.length), 1e-300))


def refined(pairs: Pairs, weights: np.ndarray) -> np.ndarray:
    """The weights moved onto the null vectors of their constraints, if that brings the combination nearer to zero.

    The combination itself is formed anew in each turn, so the error of the Gram matrix does not limit the result.
    """
    active = weights != 0
    held = pairs.take(active)
    unit = Pairs(held.difference / held.length[:, None], held.query, held.rhs, held.free)
    values, vectors = np.linalg.eigh(unit.gram)
    vectors = vectors[:, values > 1e-13 * values[-1]] / np.sqrt(values[values > 1e-13 * values[-1]])
    now, before = weights[active] * held.length, residual(held, weights[active])
    for _ in range(3):
        now = now - vectors @ (vectors.T @ unit.margins(unit.combine(now)))
        after = residual(unit, now)
        if not after < before or (now[~held.free] < 0).any() or not float(now / held.length @ held.rhs) > 0:
            break
        weights, before = _spread(now / held.length, active), after
    return weights


def contradictory(pairs: Pairs, weights: np.ndarray) -> bool:
    r"""Whether the combination is zero, and its right-hand side positive, up to the rounding of this very sum.

    A sum of s products of three factors is wrong by at most :math:`(s + 2) \epsilon / 2` of its terms' sizes, and rounding the weights adds
    :math:`\epsilon / 2`; twice that is allowed, since the weights are themselves computed. Anything longer proves a bound on the norm only.
    """
    rounding = (int((weights != 0).sum()) + 3) * EPSILON
    return residual(pairs, weights) <= rounding and float(weights @ pairs.rhs) > rounding * float(np.abs(weights) @ np.abs(pairs.rhs))


def root(gram: np.ndarray) -> np.ndarray:
    """R with R^T R = gram and as few rows as its rank."""
    try:
        lower = np.linalg.cholesky(gram)
        if lower.diagonal().min() > 1e-5 * lower.diagonal().max():
            return lower.T
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(gram)
    kept = values > 1e-14 * values[-1]
    return (vectors[:, kept] * np.sqrt(values[kept])).T


def polish(pairs: Pairs, active: np.ndarray, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """W and multipliers with margins as asked on the active set, to rounding, the set being corrected while a sign or a margin is wrong.

    Refinement adds to W itself: its rounding error is then that of W, not that of the multipliers, which are much larger when margins
    are small.
    """
    for _ in range(EXCHANGES):
        W, multipliers, above = _met_with_equality(pairs, active, tol)
        signed = np.where(pairs.free, 0.0, multipliers)
        outside = np.where(active, np.inf, above)
        if signed.min() < 0:
            active = active & (np.arange(len(active)) != signed.argmin())
        elif outside.min() < -tol / 2:
            active = active | (np.arange(len(active)) == outside.argmin())
        else:
            break
    return W, multipliers


def _met_with_equality(pairs: Pairs, active: np.ndarray, tol: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The shortest W with margins as asked on the set, its multipliers, and how far all its margins are above what is asked."""
    from scipy.linalg import lstsq

    where = active.nonzero()[0]
    block = pairs.gram[np.ix_(where, where)]
    inverse = cholesky_solver(block)
    multipliers, W = np.zeros(len(active)), np.zeros((pairs.difference.shape[1], pairs.query.shape[1]))
    above = -pairs.rhs
    for _ in range(4):
        if np.abs(above[where]).max(initial=0) < 1e-3 * tol:
            break
        part = np.zeros(len(active))
        short = -above[where]
        part[where] = inverse(short) if inverse else lstsq(block, short)[0]  # pyright: ignore[reportOptionalSubscript]
        multipliers, W = multipliers + part, W + pairs.combine(part)
        above = pairs.beyond(W)
    error = np.abs(above[where]).max(initial=0)
    if error > tol / 2 and len(where) * W.size <= ENTRIES:
        other = _met_by_rows(pairs, where)
        if np.abs(other[2][where]).max() < error:
            return other
    return W, multipliers, above


def _met_by_rows(pairs: Pairs, where: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """:func:`_met_with_equality` from the constraints themselves, scaled to length one: a Gram matrix has lost half the digits of their
    angles. Steps are solved to few digits, but their margins are formed in many, so that they end at the rounding of each entry of W.
    """
    from scipy.linalg import qr, solve_triangular

    held = pairs.take(where)
    shape, length = (pairs.difference.shape[1], pairs.query.shape[1]), held.length
    rows = (held.difference[:, :, None] * held.query[:, None, :]).reshape(len(held), -1) / length[:, None]
    basis, triangle, order = qr(rows.T, mode="economic", pivoting=True)  # pyright: ignore[reportAssignmentType]
    rank = int((np.abs(triangle.diagonal()) > EPSILON * abs(triangle[0, 0])).sum())
    basis, triangle, order = np.asarray(basis)[:, :rank], triangle[:rank, :rank], order[:rank]
    W, weights, above = np.zeros(shape), np.zeros(len(held)), -held.rhs
    best = np.inf
    for _ in range(REFINED):
        step = basis @ solve_triangular(triangle, -(above / length)[order], trans=1)
        after = W + step.reshape(shape)
        margins = held.beyond(after)
        size = float(np.abs(margins).max())
        if not size < best:
            break
        W, above, best = after, margins, size
    for _ in range(2):
        apart = W - held.combine(weights / length)
        weights[order] += solve_triangular(triangle, basis.T @ apart.ravel())
    return W, _spread(weights / length, np.isin(np.arange(len(pairs)), where)), pairs.beyond(W)


def cholesky_solver(matrix: np.ndarray, smallest: float = 0.0) -> Callable[[np.ndarray], np.ndarray] | None:
    """x -> matrix^-1 x by Cholesky; None if the matrix is not positive definite, or a pivot is below ``smallest`` times the largest."""
    from scipy.linalg.lapack import dpotrf, dpotrs  # pyright: ignore[reportAttributeAccessIssue]

    if not len(matrix):
        return lambda right: right
    factor, failed = dpotrf(matrix, lower=1, clean=0)
    diagonal = factor.diagonal()
    if failed or diagonal.min() < smallest * diagonal.max():
        return None
    return lambda right: dpotrs(factor, right, lower=1)[0]
