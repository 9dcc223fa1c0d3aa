r"""The Frobenius problem with up to a few hundred constraints: its active set and its solution, accurate up
to rounding.

.. math:: \min_W \tfrac12\|W\|_F^2 \quad\text{subject to}\quad \langle F_c, W\rangle \ge b_c \ \text{ or } =
    b_c, \qquad F_c = d_c z_c^\top.

With the Gram matrix G of the F_c the dual is :math:`\max_\lambda b^\top\lambda - \tfrac12\lambda^\top
G\lambda`, where
:math:`\lambda_c \ge 0` for inequalities, :math:`\lambda_c` is unrestricted for equations, and :math:`W =
\sum_c \lambda_c F_c`. The active set consists of the constraints that hold with equality. :func:`solve`
guesses it in one of two ways, and :func:`solve_on_active_set` corrects the guess:

- :func:`block_pivoting` exchanges all indices of the wrong sign at once; it needs a well-conditioned G;
- :func:`least_distance` solves a non-negative least-squares problem (:cite:t:`lawson1974solving`, ch. 23); it
  accepts any G, and its residual is zero if and only if the constraints contradict one another.

Where inner products of constraints suffice, the cost hardly depends on the dimensions of W.
"""

from collections.abc import Callable

import numpy as np

from ....core.errors import NotConverged
from .contradictions import Contradiction, refute
from .pairs import Pairs, spread
from .tolerances import (
    CHOLESKY_RTOL,
    DENSE_SIZE,
    EPSILON,
    EQUATION_RANK_RTOL,
    EQUATION_RTOL,
    EXCHANGES,
    GRAM_RANK_RTOL,
    LEAST_SQUARES_SIZE,
    PATIENCE,
    PIVOTING_ROUNDS,
    PIVOTING_RTOL,
    REFINEMENTS,
    ROW_REFINEMENTS,
    WEIGHT_RTOL,
)


def solve(pairs: Pairs, *, tol: float, start: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns W ``[d_x, d_z]`` and multipliers ``[m]`` of constraints of positive length.

    Args:
        pairs: m constraints; their largest right-hand side is about one.
        tol: twice the largest accepted error of a margin.
        start: mask of a guessed active set, ``[m]``, from an earlier solve. None: the constraints with a
            positive right-hand side.
    Raises:
        Contradiction: no W meets the constraints.
        NotConverged: least squares stopped early.
    """
    if not len(pairs):
        return np.zeros((pairs.difference.shape[1], pairs.query.shape[1])), np.zeros(0)
    # If there are more constraints than entries of W, they are linearly dependent: G is singular, and
    # pivoting rarely terminates. With very few constraints least squares is faster. But only pivoting can use
    # a guess of the active set, so it is always tried if there is one.
    favours_pivoting = LEAST_SQUARES_SIZE <= len(pairs) <= pairs.difference.shape[1] * pairs.query.shape[1]
    active = (
        block_pivoting(pairs.gram, pairs.rhs, pairs.free, start)
        if start is not None or favours_pivoting
        else None
    )
    if active is None:
        active = (least_distance(pairs) > 0) | pairs.free
    return solve_on_active_set(pairs, active, tol)


# ---- two guesses of the active set


def block_pivoting(
    gram: np.ndarray, rhs: np.ndarray, free: np.ndarray, start: np.ndarray | None = None
) -> np.ndarray | None:
    """Computes the active set by block principal pivoting, which exchanges all indices of the wrong sign at
    once (Portugal et al., 1994).

    Args:
        gram: inner products of the constraints, ``[m, m]``.
        rhs, free: right-hand sides and the mask of the equations, ``[m]``.
        start: mask of the first active set, ``[m]``. None: the constraints with a positive right-hand side.
    Returns:
        The mask of the active set, ``[m]``; None if the exchanges do not end or G is badly conditioned.
    """
    # W = 0 violates the constraints with a positive right-hand side, so these are the first active set.
    active = (rhs > 0) | free if start is None else start | free
    fewest, patience = len(gram) + 1, PATIENCE
    for turn in range(PIVOTING_ROUNDS):
        index = active.nonzero()[0]
        # The condition of G is tested in the first round only: the later active sets consist of much the same
        # constraints.
        solve_active = cholesky_solver(gram[index[:, None], index], rtol=PIVOTING_RTOL if turn == 0 else 0.0)
        if solve_active is None:
            return None
        # Equality in the active constraints determines their multipliers. The guess is right if the
        # multipliers on the active set and the slacks outside it are all non-negative; each constraint has
        # one of the two numbers, so one vector holds them all.
        multipliers = solve_active(rhs[index])
        multiplier_or_slack = gram[:, index] @ multipliers - rhs
        multiplier_or_slack[index] = multipliers
        wrong = (multiplier_or_slack < 0) & ~free
        count = int(wrong.sum())
        if count == 0:
            return active
        # Exchanging all wrong indices usually needs few rounds but may cycle. After PATIENCE rounds in which
        # the count has reached no new minimum, only the last wrong index is exchanged: this rule (Murty's) is
        # slow but cannot cycle.
        if count < fewest:
            fewest, patience = count, PATIENCE
        elif patience > 0:
            patience -= 1
        else:
            wrong[: wrong.nonzero()[0][-1]] = False
        active = active ^ wrong
    return None


def least_distance(pairs: Pairs) -> np.ndarray:
    """Returns the multipliers of the inequalities up to a positive factor, ``[m]``; zero on equations.

    Raises:
        Contradiction: no W meets the constraints.
        NotConverged: least squares stopped early.
    """
    # Least squares works on a matrix whose columns have the Gram matrix G. A root of G is such a matrix and
    # is the smaller one if there are fewer constraints than entries of W. Otherwise the constraints
    # themselves are the columns; this also avoids G, whose condition number is the square of theirs.
    use_gram = pairs.difference.shape[1] * pairs.query.shape[1] > len(pairs)
    factor = root(pairs.gram) if use_gram else pairs.rows().T * pairs.length
    if pairs.free.any():
        return _least_distance_on_equations(pairs, factor)
    weights = nnls_multipliers(factor, pairs.rhs, pairs.length)
    refute(pairs, weights)
    return weights


def _least_distance_on_equations(pairs: Pairs, factor: np.ndarray) -> np.ndarray:
    """Solves :func:`least_distance` in the affine space of the W that meet the equations; columns of
    ``factor`` are the constraints.
    """
    free, scale = pairs.free, np.where(pairs.free, pairs.length, 1.0)
    # Write the equations as E^T w = b, with the columns of E scaled to length one. Take the singular value
    # decomposition of E, truncated at its numerical rank, and divide ``left`` by sigma: the solution of least
    # norm is then left @ right @ b.
    left, sigma, right = np.linalg.svd(factor[:, free] / scale[free], full_matrices=False)
    rank = int((sigma > EQUATION_RANK_RTOL * sigma[0]).sum())
    left, right = left[:, :rank] / sigma[:rank], right[:rank]
    rhs = pairs.rhs[free] / scale[free]
    # No w reaches the part r of b outside the row space of E. If r is not zero, the equations contradict one
    # another. The weights r prove it: E r = 0, but b^T r = ||r||^2 > 0.
    unreachable = rhs - right.T @ (right @ rhs)
    size = np.abs(unreachable)
    if size.max() > EQUATION_RTOL * np.abs(rhs).max():
        weights = np.where(size > WEIGHT_RTOL * size.max(), unreachable, 0.0) / scale[free]
        raise Contradiction(spread(weights, free))
    # Split each inequality into its projection onto the span of the equations and the orthogonal remainder.
    # The equations fix the margin of the projection, which is subtracted from the right-hand side; the
    # remainders form a problem without equations. ``left`` has been divided by sigma, so (left * sigma**2) @
    # left.T is the projection onto the span.
    inequalities = factor[:, ~free]
    overlap = left.T @ inequalities
    reduced = inequalities - (left * sigma[:rank] ** 2) @ overlap
    reduced_rhs = pairs.rhs[~free] - (right @ rhs) @ overlap
    length = np.linalg.norm(reduced, axis=0)
    # If the remainder of an inequality is zero up to rounding, its margin is the same for every W that meets
    # the equations.
    fixed = length <= WEIGHT_RTOL * pairs.length[~free]

    def lifted(weights: np.ndarray) -> np.ndarray:
        """Returns weights of all constraints. The weights of the equations cancel the overlap of the weighted
        inequalities.
        """
        full = spread(weights, ~free)
        full[free] = -(right.T @ (overlap @ weights)) / scale[free]
        return full

    # If a fixed margin is too small, the inequality contradicts the equations. The most violated one, with
    # weight one, is the proof.
    if (reduced_rhs[fixed] > EQUATION_RTOL).any():
        raise Contradiction(lifted(np.where(fixed, reduced_rhs, -np.inf) == reduced_rhs[fixed].max()))
    weights = np.zeros(len(reduced_rhs))
    if not fixed.all():
        weights[~fixed] = nnls_multipliers(reduced[:, ~fixed], reduced_rhs[~fixed], length[~fixed])
        refute(pairs, lifted(weights))
    return spread(weights, ~free)


def nnls_multipliers(factor: np.ndarray, rhs: np.ndarray, length: np.ndarray) -> np.ndarray:
    r"""Returns the multipliers, up to a factor, of the shortest vector w with ``factor.T @ w >= rhs``.

    Let E be ``factor`` with ``rhs`` as an additional last row, and f the last unit vector. The residual
    :math:`Eu - f` of
    :math:`\min_{u \ge 0} \|Eu - f\|` is proportional to (w, -1), and u to the multipliers (Lawson and Hanson,
    ch. 23).

    Args:
        factor: constraints as columns, ``[r, m]``.
        rhs, length: right-hand sides and lengths of the columns, ``[m]``.
    Raises:
        NotConverged: least squares stopped early.
    """
    from scipy.optimize import nnls

    rows, m = factor.shape
    scaled = np.empty((rows + 1, m), order="F")
    # The last row is in units of a margin, the others in units of a length. A positive factor of the last row
    # only rescales w; the shortest length makes the row comparable with the others. Each column is divided by
    # its length so that long constraints do not hide short ones.
    scaled[:rows], scaled[rows] = factor, rhs * length.min()
    scaled /= length
    try:
        weights, _ = nnls(scaled, np.eye(1, rows + 1, rows)[0], maxiter=20 * m)
    except RuntimeError as error:
        raise NotConverged(f"non-negative least squares stopped ({error})") from error
    return weights / length


# ---- the solution on an active set


def solve_on_active_set(pairs: Pairs, active: np.ndarray, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns W and multipliers for an active set, which is corrected while a multiplier has the wrong sign
    or a margin is too small.
    """
    # The classical active-set rule exchanges one constraint at a time: drop the constraint with the most
    # negative multiplier. If no multiplier is negative, add the most violated constraint. The guesses are
    # right up to rounding, so usually no exchange is needed.
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


def _met_with_equality(
    pairs: Pairs, active: np.ndarray, tol: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the shortest W that meets the active constraints with equality, its multipliers ``[m]``, and
    all slacks ``[m]``.
    """
    from scipy.linalg import lstsq

    index = active.nonzero()[0]
    block = pairs.gram[np.ix_(index, index)]
    # None if the active constraints are linearly dependent: least squares then chooses the multipliers of
    # least norm.
    solve_active = cholesky_solver(block)
    multipliers, W = np.zeros(len(active)), np.zeros((pairs.difference.shape[1], pairs.query.shape[1]))
    slack = -pairs.rhs
    for _ in range(REFINEMENTS):
        if np.abs(slack[index]).max(initial=0) < 1e-3 * tol:
            break
        correction = np.zeros(len(active))
        correction[index] = solve_active(-slack[index]) if solve_active else lstsq(block, -slack[index])[0]  # pyright: ignore[reportOptionalSubscript]
        # Iterative refinement: the errors of the active margins are computed from W, and G^-1 turns them into
        # a correction of the multipliers. Its combination of constraints is added to W: where constraints
        # nearly cancel, the multipliers are much larger than W, and a W formed from their sum would inherit
        # their rounding errors.
        multipliers, W = multipliers + correction, W + pairs.combine(correction)
        slack = pairs.slack(W)
    # Refinement fails if the condition number of G is near 1e16. The condition number of the constraints is
    # only the square root of it.
    error = np.abs(slack[index]).max(initial=0)
    if error > tol / 2 and len(index) * W.size <= DENSE_SIZE:
        by_rows = _met_by_rows(pairs, index)
        if np.abs(by_rows[2][index]).max() < error:
            return by_rows
    return W, multipliers, slack


def _met_by_rows(pairs: Pairs, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes :func:`_met_with_equality` by a QR factorisation of the constraints, for constraints that are
    nearly dependent.

    The condition number of the Gram matrix would be the square of theirs.
    """
    from scipy.linalg import qr, solve_triangular

    part = pairs.take(index)
    shape, length = (pairs.difference.shape[1], pairs.query.shape[1]), part.length
    # Rows are scaled to length one, so that pivots measure angles; pivoting puts dependent rows last, and
    # those are dropped.
    basis, triangle, order = qr(part.rows().T, mode="economic", pivoting=True)  # pyright: ignore[reportAssignmentType]
    rank = int((np.abs(triangle.diagonal()) > EPSILON * abs(triangle[0, 0])).sum())
    basis, triangle, order = np.asarray(basis)[:, :rank], triangle[:rank, :rank], order[:rank]
    # With rows F = (Q R)^T, the shortest w with F w = b is Q R^-T b. Refinement repeats this with the
    # remaining errors of the margins as b, as long as the largest error decreases.
    W, slack, smallest_error = np.zeros(shape), -part.rhs, np.inf
    for _ in range(ROW_REFINEMENTS):
        step = basis @ solve_triangular(triangle, -(slack / length)[order], trans=1)
        candidate = W + step.reshape(shape)
        candidate_slack = part.slack(candidate)
        error = float(np.abs(candidate_slack).max())
        if not error < smallest_error:  # also if the error is NaN
            break
        W, slack, smallest_error = candidate, candidate_slack, error
    # The multipliers are the coefficients of W as a combination of the rows, R^-1 Q^T w; a second round
    # corrects the rounding errors of the first.
    weights = np.zeros(len(part))
    for _ in range(2):
        remainder = W - part.combine(weights / length)
        weights[order] += solve_triangular(triangle, basis.T @ remainder.ravel())
    return W, spread(weights / length, np.isin(np.arange(len(pairs)), index)), pairs.slack(W)


# ---- small matrices


def root(gram: np.ndarray) -> np.ndarray:
    """Returns R with R^T R = ``gram``, with as many rows as the rank of ``gram``."""
    # A Cholesky factor is cheap but accurate only if the matrix is clearly positive definite, which its
    # pivots show. Otherwise the eigenvalues separate the range of a semidefinite matrix from rounding errors.
    try:
        lower = np.linalg.cholesky(gram)
        if lower.diagonal().min() > CHOLESKY_RTOL * lower.diagonal().max():
            return lower.T
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(gram)
    significant = values > GRAM_RANK_RTOL * values[-1]
    return (vectors[:, significant] * np.sqrt(values[significant])).T


def cholesky_solver(matrix: np.ndarray, rtol: float = 0.0) -> Callable[[np.ndarray], np.ndarray] | None:
    """Returns the map x -> matrix^-1 x by Cholesky; None if the matrix is not positive definite or a pivot is
    too small.

    Args:
        matrix: symmetric matrix, ``[m, m]``.
        rtol: smallest accepted pivot, as a share of the largest.
    """
    from scipy.linalg.lapack import dpotrf, dpotrs  # pyright: ignore[reportAttributeAccessIssue]

    if not len(matrix):
        return lambda right: right
    factor, failed = dpotrf(matrix, lower=1, clean=0)
    diagonal = factor.diagonal()
    if failed or diagonal.min() < rtol * diagonal.max():
        return None
    return lambda right: dpotrs(factor, right, lower=1)[0]
