r"""The Frobenius problem on a few hundred constraints: which of them hold with equality, and the solution to rounding.

.. math:: \min_W \tfrac12\|W\|_F^2 \quad\text{subject to}\quad \langle F_c, W\rangle \ge b_c \ \text{ or } = b_c, \qquad F_c = d_c z_c^\top.

With the Gram matrix G of the F_c the dual is :math:`\max_\lambda b^\top\lambda - \tfrac12\lambda^\top G\lambda`, with
:math:`\lambda_c \ge 0` for inequalities and free for equations, and :math:`W = \sum_c \lambda_c F_c`. :func:`solve` guesses the active set
in one of two ways and :func:`polish` corrects the guess:

- :func:`block_pivoting` exchanges all indices of the wrong sign at once; it needs a well-conditioned G;
- :func:`least_distance` solves a non-negative least-squares problem (:cite:t:`lawson1974solving`, ch. 23); it takes any G, and its residual
  is zero exactly if the constraints contradict one another.

Only inner products of constraints enter, so the cost hardly depends on the dimensions of W. Arrays are numpy's, whose calls cost less than
torch's on small matrices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....core.errors import NotConverged
from .tolerances import (
    CHOLESKY_RTOL,
    CONTRADICTION_RTOL,
    DENSE_SIZE,
    EPSILON,
    EQUATION_RANK_RTOL,
    EQUATION_RTOL,
    EXCHANGES,
    GRAM_RANK_RTOL,
    LEAST_SQUARES_SIZE,
    NULL_RANK_RTOL,
    NULL_SQUARE_RTOL,
    PATIENCE,
    PIVOTING_ROUNDS,
    PIVOTING_RTOL,
    REFINEMENTS,
    ROW_REFINEMENTS,
    WEIGHT_RTOL,
)


class Contradiction(Exception):
    """``weights`` combine the constraints to nearly 0 >= b with b > 0, see :func:`is_contradiction`."""

    def __init__(self, weights: np.ndarray):
        super().__init__("the constraints contradict one another")
        self.weights = weights


@dataclass(frozen=True)
class Pairs:
    """Constraints of one problem as arrays.

    Attributes:
        difference, query: d ``[m, d_x]`` and z ``[m, d_z]``.
        rhs: b, ``[m]``.
        free: the equations, ``[m]``: their multipliers have either sign.
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
        r""":math:`\|F_c\| = \|d_c\| \|z_c\|`."""
        squares = np.einsum("cd,cd->c", self.difference, self.difference), np.einsum("cd,cd->c", self.query, self.query)
        return np.sqrt(squares[0]) * np.sqrt(squares[1])

    @cached_property
    def gram(self) -> np.ndarray:
        return (self.difference @ self.difference.T) * (self.query @ self.query.T)

    def rows(self) -> np.ndarray:
        """The F_c as rows ``[m, d_x d_z]``, scaled to length one."""
        outer = self.difference[:, :, None] * self.query[:, None, :]
        return outer.reshape(len(self), -1) / self.length[:, None]

    def slack(self, W: np.ndarray) -> np.ndarray:
        """Margins minus right-hand sides."""
        return np.einsum("cd,cd->c", self.difference @ W, self.query) - self.rhs

    def combine(self, weights: np.ndarray) -> np.ndarray:
        return (self.difference * weights[:, None]).T @ self.query


def solve(pairs: Pairs, *, tol: float, start: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """W ``[d_x, d_z]`` and multipliers ``[m]`` of constraints of positive length.

    Args:
        start: a guess of the active set, from an earlier solve.
    Raises:
        Contradiction: no W meets the constraints.
        NotConverged: least squares stopped early.
    """
    if not len(pairs):
        return np.zeros((pairs.difference.shape[1], pairs.query.shape[1])), np.zeros(0)
    # More constraints than entries of W are dependent; pivoting then seldom ends.
    independent = LEAST_SQUARES_SIZE <= len(pairs) <= pairs.difference.shape[1] * pairs.query.shape[1]
    active = block_pivoting(pairs, start) if start is not None or independent else None
    if active is None:
        active = (least_distance(pairs) > 0) | pairs.free
    return polish(pairs, active, tol)


# ---- two guesses of the active set


def block_pivoting(pairs: Pairs, start: np.ndarray | None = None) -> np.ndarray | None:
    """The active set by exchanging all indices of the wrong sign at once; None unless it ends and G is well conditioned."""
    gram, rhs, free = pairs.gram, pairs.rhs, pairs.free
    active = (rhs > 0) | free if start is None else start | free
    fewest, patience = len(gram) + 1, PATIENCE
    for turn in range(PIVOTING_ROUNDS):
        where = active.nonzero()[0]
        # The first factor shows the condition of G; later ones belong to subsets of about the same constraints.
        inverse = cholesky_solver(gram[np.ix_(where, where)], rtol=PIVOTING_RTOL if turn == 0 else 0.0)
        if inverse is None:
            return None
        # On the active set the multipliers must be positive, outside it the slacks.
        multipliers = inverse(rhs[where])
        sign = gram[:, where] @ multipliers - rhs
        sign[where] = multipliers
        wrong = (sign < 0) & ~free
        count = int(wrong.sum())
        if count == 0:
            return active
        # Exchanging all wrong indices may cycle. After PATIENCE rounds without progress only the last one is exchanged, which cannot.
        if count < fewest:
            fewest, patience = count, PATIENCE
        elif patience > 0:
            patience -= 1
        else:
            wrong[: wrong.nonzero()[0][-1]] = False
        active = active ^ wrong
    return None


def least_distance(pairs: Pairs) -> np.ndarray:
    """Multipliers of the inequalities up to a positive factor, ``[m]``; zero on equations.

    Raises:
        Contradiction: no W meets the constraints.
        NotConverged: least squares stopped early.
    """
    wide = pairs.difference.shape[1] * pairs.query.shape[1] > len(pairs)
    factor = root(pairs.gram) if wide else pairs.rows().T * pairs.length
    if pairs.free.any():
        return _least_distance_on_equations(pairs, factor)
    weights = nearest(factor, pairs.rhs, pairs.length)
    refute(pairs, weights)
    return weights


def _least_distance_on_equations(pairs: Pairs, factor: np.ndarray) -> np.ndarray:
    """:func:`least_distance` in the affine space that the equations leave; the constraints are the columns of ``factor``."""
    free, scale = pairs.free, np.where(pairs.free, pairs.length, 1.0)
    # The equations say E^T w = b. Their least-norm solution is E^+T b; what b has outside the row space of E contradicts.
    left, sigma, right = np.linalg.svd(factor[:, free] / scale[free], full_matrices=False)
    rank = int((sigma > EQUATION_RANK_RTOL * sigma[0]).sum())
    left, right = left[:, :rank] / sigma[:rank], right[:rank]
    rhs = pairs.rhs[free] / scale[free]
    contradicting = rhs - right.T @ (right @ rhs)
    size = np.abs(contradicting)
    if size.max() > EQUATION_RTOL * np.abs(rhs).max():
        weights = np.where(size > WEIGHT_RTOL * size.max(), contradicting, 0.0) / scale[free]
        raise Contradiction(_spread(weights, free))
    # Inequalities are reduced to their part orthogonal to the equations; the least-norm solution moves their right-hand sides.
    rest = factor[:, ~free]
    overlap = left.T @ rest
    reduced = rest - (left * sigma[:rank] ** 2) @ overlap
    asked = pairs.rhs[~free] - (right @ rhs) @ overlap
    length = np.linalg.norm(reduced, axis=0)
    decided = length <= WEIGHT_RTOL * pairs.length[~free]  # by the equations alone

    def lifted(weights: np.ndarray) -> np.ndarray:
        """Weights of the inequalities, with those of the equations that cancel their overlap."""
        full = _spread(weights, ~free)
        full[free] = -(right.T @ (overlap @ weights)) / scale[free]
        return full

    if (asked[decided] > EQUATION_RTOL).any():
        raise Contradiction(lifted(np.where(decided, asked, -np.inf) == asked[decided].max()))
    weights = np.zeros(len(asked))
    if not decided.all():
        weights[~decided] = nearest(reduced[:, ~decided], asked[~decided], length[~decided])
        refute(pairs, lifted(weights))
    return _spread(weights, ~free)


def nearest(factor: np.ndarray, rhs: np.ndarray, length: np.ndarray) -> np.ndarray:
    r"""Multipliers, up to a factor, of the shortest vector w with ``factor.T @ w >= rhs``.

    With the columns of E = (factor; rhs) and the last unit vector f, the residual of :math:`\min_{u \ge 0} \|Eu - f\|` is proportional to
    (w, -1), and u to the multipliers (Lawson and Hanson, ch. 23).

    Args:
        factor: ``[r, m]``.
        rhs, length: b and the lengths of the columns, ``[m]``.
    Raises:
        NotConverged: least squares stopped early.
    """
    from scipy.optimize import nnls

    rows, m = factor.shape
    scaled = np.empty((rows + 1, m), order="F")
    # The last row has the unit of a margin: any factor is allowed, and the shortest length makes it comparable with the others. Columns are
    # scaled to length one so that long constraints do not hide short ones.
    scaled[:rows], scaled[rows] = factor, rhs * length.min()
    scaled /= length
    try:
        weights, _ = nnls(scaled, np.eye(1, rows + 1, rows)[0], maxiter=20 * m)
    except RuntimeError as error:
        raise NotConverged(f"non-negative least squares stopped ({error})") from error
    return weights / length


# ---- contradictions


def refute(pairs: Pairs, weights: np.ndarray) -> None:
    """Raises Contradiction if the weights, refined, combine the constraints to nearly zero."""
    total = float(np.abs(weights) @ pairs.length)
    # The square from inner products has half the digits: enough to dismiss the usual case.
    if total == 0 or float(weights @ pairs.gram @ weights) > NULL_SQUARE_RTOL * total**2:
        return
    weights = refined(pairs, weights)
    if residual(pairs, weights) <= CONTRADICTION_RTOL and float(weights @ pairs.rhs) > 0:
        raise Contradiction(weights)


def residual(pairs: Pairs, weights: np.ndarray) -> float:
    """Length of the combination relative to the sum of the lengths of its terms."""
    return float(np.linalg.norm(pairs.combine(weights)) / max(float(np.abs(weights) @ pairs.length), 1e-300))


def refined(pairs: Pairs, weights: np.ndarray) -> np.ndarray:
    """The weights projected onto the null vectors of their constraints, as long as this brings the combination nearer to zero."""
    active = weights != 0
    part = pairs.take(active)
    unit = Pairs(part.difference / part.length[:, None], part.query, part.rhs, part.free)
    values, vectors = np.linalg.eigh(unit.gram)
    vectors = vectors[:, values > NULL_RANK_RTOL * values[-1]] / np.sqrt(values[values > NULL_RANK_RTOL * values[-1]])
    best, smallest = weights[active] * part.length, residual(part, weights[active])
    for _ in range(3):
        # The combination itself is formed anew in each turn, so that errors of the Gram matrix do not limit the result.
        inner = np.einsum("cd,cd->c", unit.difference @ unit.combine(best), unit.query)
        moved = best - vectors @ (vectors.T @ inner)
        after = residual(unit, moved)
        if not after < smallest or (moved[~part.free] < 0).any() or not float(moved / part.length @ part.rhs) > 0:
            break
        best, smallest = moved, after
    return _spread(best / part.length, active)


def is_contradiction(pairs: Pairs, weights: np.ndarray) -> bool:
    r"""Whether the combination is zero, and its right-hand side positive, up to the rounding of this very sum.

    A sum of s products of three factors is wrong by at most :math:`(s + 2) \epsilon / 2` of its terms' sizes, and rounding the weights adds
    :math:`\epsilon / 2`; twice that is allowed, since the weights are themselves computed. A longer combination proves only that W is long.
    """
    rounding = (int((weights != 0).sum()) + 3) * EPSILON
    return residual(pairs, weights) <= rounding and float(weights @ pairs.rhs) > rounding * float(np.abs(weights) @ np.abs(pairs.rhs))


# ---- the solution on an active set


def polish(pairs: Pairs, active: np.ndarray, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """W and multipliers that meet the active constraints with equality; the set is corrected while a sign or a margin is wrong."""
    for _ in range(EXCHANGES):
        W, multipliers, slack = _met_with_equality(pairs, active, tol)
        signed = np.where(pairs.free, 0.0, multipliers)
        outside = np.where(active, np.inf, slack)
        if signed.min() < 0:
            active = active & (np.arange(len(active)) != signed.argmin())
        elif outside.min() < -tol / 2:
            active = active | (np.arange(len(active)) == outside.argmin())
        else:
            break
    return W, multipliers


def _met_with_equality(pairs: Pairs, active: np.ndarray, tol: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The shortest W that meets the active constraints with equality, its multipliers, and the slacks of all constraints."""
    from scipy.linalg import lstsq

    where = active.nonzero()[0]
    block = pairs.gram[np.ix_(where, where)]
    inverse = cholesky_solver(block)
    multipliers, W = np.zeros(len(active)), np.zeros((pairs.difference.shape[1], pairs.query.shape[1]))
    slack = -pairs.rhs
    for _ in range(REFINEMENTS):
        if np.abs(slack[where]).max(initial=0) < 1e-3 * tol:
            break
        part = np.zeros(len(active))
        part[where] = inverse(-slack[where]) if inverse else lstsq(block, -slack[where])[0]  # pyright: ignore[reportOptionalSubscript]
        # The correction is added to W itself, not to the multipliers alone: these are much larger than W where margins are small, and W
        # formed from them would inherit their rounding errors.
        multipliers, W = multipliers + part, W + pairs.combine(part)
        slack = pairs.slack(W)
    error = np.abs(slack[where]).max(initial=0)
    if error > tol / 2 and len(where) * W.size <= DENSE_SIZE:
        other = _met_by_rows(pairs, where)
        if np.abs(other[2][where]).max() < error:
            return other
    return W, multipliers, slack


def _met_by_rows(pairs: Pairs, where: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """:func:`_met_with_equality` for nearly dependent constraints: a Gram matrix squares their condition, the constraints themselves do
    not."""
    from scipy.linalg import qr, solve_triangular

    part = pairs.take(where)
    shape, length = (pairs.difference.shape[1], pairs.query.shape[1]), part.length
    # Rows are scaled to length one, so that pivots measure angles; pivoting puts dependent rows last, and those are dropped.
    basis, triangle, order = qr(part.rows().T, mode="economic", pivoting=True)  # pyright: ignore[reportAssignmentType]
    rank = int((np.abs(triangle.diagonal()) > EPSILON * abs(triangle[0, 0])).sum())
    basis, triangle, order = np.asarray(basis)[:, :rank], triangle[:rank, :rank], order[:rank]
    W, slack, best = np.zeros(shape), -part.rhs, np.inf
    for _ in range(ROW_REFINEMENTS):
        step = basis @ solve_triangular(triangle, -(slack / length)[order], trans=1)
        moved = W + step.reshape(shape)
        after = part.slack(moved)
        size = float(np.abs(after).max())
        if not size < best:
            break
        W, slack, best = moved, after, size
    # The multipliers are the coordinates of W in the rows; a second turn removes the error of the first.
    weights = np.zeros(len(part))
    for _ in range(2):
        left = W - part.combine(weights / length)
        weights[order] += solve_triangular(triangle, basis.T @ left.ravel())
    return W, _spread(weights / length, np.isin(np.arange(len(pairs)), where)), pairs.slack(W)


# ---- small matrices


def root(gram: np.ndarray) -> np.ndarray:
    """R with R^T R = gram and as few rows as its rank."""
    try:
        lower = np.linalg.cholesky(gram)
        if lower.diagonal().min() > CHOLESKY_RTOL * lower.diagonal().max():
            return lower.T
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(gram)
    kept = values > GRAM_RANK_RTOL * values[-1]
    return (vectors[:, kept] * np.sqrt(values[kept])).T


def cholesky_solver(matrix: np.ndarray, rtol: float = 0.0) -> Callable[[np.ndarray], np.ndarray] | None:
    """x -> matrix^-1 x by Cholesky; None if the matrix is not positive definite, or a pivot is below ``rtol`` times the largest."""
    from scipy.linalg.lapack import dpotrf, dpotrs  # pyright: ignore[reportAttributeAccessIssue]

    if not len(matrix):
        return lambda right: right
    factor, failed = dpotrf(matrix, lower=1, clean=0)
    diagonal = factor.diagonal()
    if failed or diagonal.min() < rtol * diagonal.max():
        return None
    return lambda right: dpotrs(factor, right, lower=1)[0]


def _spread(weights: np.ndarray, where: np.ndarray) -> np.ndarray:
    full = np.zeros(len(where))
    full[where] = weights
    return full
