r"""Primal-dual interior-point method for batches of max-margin problems in the nuclear norm.

The dual of :math:`\min \|W\|_*` subject to :math:`d_c^\top W z_c \ge b_c` (or :math:`= b_c`) is

.. math:: \max_\lambda\ b^\top\lambda \quad\text{subject to}\quad S(\lambda) = \tfrac12\,(I - M^\top M)
    \succeq 0,
    \quad \lambda_c \ge 0 \text{ on inequalities}, \qquad M = \sum_c \lambda_c d_c z_c^\top.

With the multiplier B of the matrix constraint, the solution satisfies :math:`W = MB`, :math:`BS = 0` and
:math:`\|W\|_* = \operatorname{tr} B`. All matrices are q by q, where q is the dimension of the span of the
queries; the usual embedding of the nuclear norm needs a cone of size :math:`d_x + d_z`, at least twice as
large. The differences enter only through their inner products. So the cost hardly depends on the dimension.
Each step solves the Newton system of

.. math:: d_c^\top M B z_c - s_c = b_c, \qquad BS = \mu I, \qquad \lambda_c s_c = \mu

in the form of :cite:t:`helmberg1996interior`, with the predictor and corrector of
:cite:t:`mehrotra1992implementation`. S is computed from :math:`\lambda` in every step, so :math:`\lambda`
stays feasible and only the margins have a residual. With :math:`n_c = M^\top d_c` and :math:`T = S^{-1}`, the
matrix of the system is

.. math:: H_{ce} = d_c^\top d_e\; z_c^\top B z_e + \tfrac14\big[z_c^\top B n_e\; n_c^\top T z_e + n_c^\top B
    z_e\; z_c^\top T n_e
    + z_c^\top B z_e\; n_c^\top T n_e + n_c^\top B n_e\; z_c^\top T z_e\big] + \delta_{ce}\, s_c / \lambda_c .
"""

from dataclasses import dataclass, fields

import numpy as np

from .dense import add_to_diagonal, cholesky, dot, inverse_of_lower, solve_cholesky, symmetric, transposed
from .tolerances import INTERIOR_POINT_ROUNDS

BOUNDARY_SHARE = 0.97  # length of a step as a share of the distance to the boundary of the cones
# range of the predicted ratio of the new mu to the old one; the step aims at the third power of this ratio
CENTRING_RANGE = (0.01, 1.0)
# first point: size of M relative to its bound, and slack relative to the largest right-hand side
START_SHARE, START_SLACK = 0.8, 0.3
MEAN_SHARE = 0.05  # weight of the mean in the multipliers of the first point; it makes them positive
DIAGONAL_RTOL = 1e-14  # relative increase of the diagonal entries of H
# upper bound of computed step lengths, in multiples of the Newton step; all steps are cut at one later
STEP_MAX = 1e3


@dataclass(frozen=True)
class Cone:
    """The data of B problems.

    Attributes:
        gram: inner products of the differences, ``[B, m, m]``.
        query: queries in coordinates of their span, ``[B, m, q]``.
        rhs: right-hand sides, ``[B, m]``.
        free: mask of the equations, ``[B, m]``; their multipliers have either sign.
        difference: the differences, ``[B, m, p]``, if p is at most m; otherwise None.
    """

    gram: np.ndarray
    query: np.ndarray
    rhs: np.ndarray
    free: np.ndarray
    difference: np.ndarray | None

    def __getitem__(self, index) -> "Cone":
        difference = None if self.difference is None else self.difference[index]
        return Cone(self.gram[index], self.query[index], self.rhs[index], self.free[index], difference)

    def image(self, multipliers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r"""Returns the rows :math:`n_c = M^\top d_c`, ``[B, m, q]``, and :math:`M^\top M`, ``[B, q, q]``."""
        weighted = multipliers[..., None] * self.query
        if self.difference is None:
            rows = np.matmul(self.gram, weighted)
            return rows, symmetric(np.matmul(transposed(weighted), rows))
        # Constraints that nearly cancel do so in the sum M itself, which keeps twice the digits of the
        # product of inner products.
        M = np.matmul(transposed(self.difference), weighted)
        return np.matmul(self.difference, M), np.matmul(transposed(M), M)


@dataclass(frozen=True)
class Point:
    """An iterate: multipliers and slacks ``[B, m]``, both positive on inequalities, and the weight B of W = M
    B, ``[B, q, q]``.
    """

    multipliers: np.ndarray
    slack: np.ndarray
    weight: np.ndarray

    def __getitem__(self, index) -> "Point":
        return Point(*(getattr(self, field.name)[index] for field in fields(self)))

    def put(self, index: np.ndarray, other: "Point") -> None:
        """Replaces the problems that ``index`` selects by those of ``other``."""
        for field in fields(self):
            getattr(self, field.name)[index] = getattr(other, field.name)


def inside(cone: Cone, multipliers: np.ndarray) -> Point:
    """Returns an interior point near the Frobenius solution.

    Args:
        cone: the problems; the unit of W is the Frobenius norm of the Frobenius solution.
        multipliers: multipliers of the Frobenius solution in this unit, ``[B, m]``.
    Returns:
        Positive multipliers, shrunk until S is positive definite, with slacks and a multiple of the identity
        as weight.
    """
    # Close to the boundary of a cone the first steps would be short. The multipliers of the Frobenius
    # solution are zero on most constraints, so a share of their mean is added.
    m, q = cone.query.shape[1:]
    mean = np.where(cone.free, 0.0, multipliers).sum(-1, keepdims=True) / m
    positive = np.where(
        cone.free, multipliers, (1 - MEAN_SHARE) * np.maximum(multipliers, 0) + MEAN_SHARE * mean
    )
    # Shrink them until the spectral norm of M is at most START_SHARE, so that S = (I - M^T M) / 2 is positive
    # definite. The Frobenius norm of M^T M bounds the square of the spectral norm of M and needs no
    # eigenvalues. The weight B, size / START_SHARE times the identity, undoes the shrinking: W = M B is then
    # close to the Frobenius solution, and margins are nearly correct.
    size, bound = (
        np.linalg.norm(cone.image(v)[1], axis=(-2, -1))[:, None] ** 0.5 for v in (multipliers, positive)
    )
    positive = START_SHARE / bound * positive
    weight = (size / START_SHARE)[..., None] * np.eye(q)
    margins = dot(np.matmul(cone.image(positive)[0], weight), cone.query)
    slack = np.maximum(margins - cone.rhs, 0) + START_SLACK * np.abs(cone.rhs).max(-1, keepdims=True)
    return Point(positive, np.where(cone.free, 0.0, slack), weight)


def interior_point(cone: Cone, point: Point, *, tol: float) -> Point:
    """Iterates each problem until its duality gap and residual are at most ``tol`` of the objective and of
    the largest right-hand side.

    Args:
        cone, point: the problems and a point inside their cones.
        tol: relative tolerance. Below about 1e-7 a problem may fail to converge; it then keeps its last
            finite point.
    Returns:
        The last point of each problem, not verified.
    """
    # Finished problems leave the batch, which saves time; ``point`` collects the last point of each problem.
    point = Point(*(getattr(point, field.name).copy() for field in fields(point)))
    remaining, current = np.arange(len(cone.rhs)), point
    for _ in range(INTERIOR_POINT_ROUNDS):
        # Degenerate problems overflow. Such steps are not taken, and the problem ends with its last point.
        with np.errstate(all="ignore"):
            current, unfinished = _step(cone, current, tol)
        point.put(remaining, current)
        if not unfinished.all():
            remaining, cone, current = remaining[unfinished], cone[unfinished], current[unfinished]
        if not len(remaining):
            break
    return point


def _step(cone: Cone, point: Point, tol: float) -> tuple[Point, np.ndarray]:
    """Returns the next point, and the mask ``[B]`` of the unfinished problems; the points of the others do
    not change.
    """
    system = _NewtonSystem(cone, point)
    # Predictor: a Newton step towards mu = 0, as far as the cones allow. The ratio of the mu after this step
    # to the current mu measures how well the linear model holds.
    predictor = system.direction(np.zeros_like(system.mu), None)
    a, b = system.lengths(predictor)
    S = system.S + a[..., None] * predictor.linear + np.square(a)[..., None] * predictor.quadratic
    predicted = ((point.weight + b[..., None] * predictor.weight) * S).sum((-2, -1))
    predicted += dot(point.multipliers + a * predictor.multipliers, point.slack + b * predictor.slack)
    # Corrector: a step towards the third power of this ratio times mu (Mehrotra's rule). It includes the
    # products of changes that the predictor neglected, and uses the same factorisation.
    centre = (predicted / (system.degree * system.mu)).clip(*CENTRING_RANGE) ** 3
    step = system.direction(centre * system.mu, predictor)
    # Two step lengths: ``up`` for the dual side (multipliers, and with them S), ``down`` for the primal side
    # (slacks and the weight B).
    up, down = system.lengths(step, BOUNDARY_SHARE)
    finite = np.isfinite(step.multipliers).all(-1) & np.isfinite(step.weight).all((-2, -1))
    unfinished = ~(system.done(tol) | system.failed) & finite
    following = Point(
        point.multipliers + up * step.multipliers,
        point.slack + down * step.slack,
        symmetric(point.weight + down[..., None] * step.weight),
    )
    if not unfinished.all():
        following.put(~unfinished, point[~unfinished])
    return following, unfinished


@dataclass(frozen=True)
class _Step:
    """A search direction.

    Attributes:
        multipliers, slack, weight: changes of the parts of a :class:`Point`.
        linear, quadratic: coefficients of the change of S, ``[B, q, q]``. S is quadratic in the multipliers:
            a step of length a changes it by ``a linear + a^2 quadratic``.
        rows: change of the rows n, ``[B, m, q]``.
    """

    multipliers: np.ndarray
    slack: np.ndarray
    weight: np.ndarray
    linear: np.ndarray
    quadratic: np.ndarray
    rows: np.ndarray


class _NewtonSystem:
    """The factorised Newton system at a point, which predictor and corrector share."""

    def __init__(self, cone: Cone, point: Point):
        Z, B, free = cone.query, point.weight, cone.free
        self.cone, self.point = cone, point
        # 1 / lambda, and zero on equations, which have no complementarity. The zero also removes their slacks
        # from all formulas below.
        self.inverse = np.where(free, 0.0, 1 / point.multipliers)
        self.rows, square = cone.image(point.multipliers)
        self.weighted = transposed(point.multipliers[..., None] * Z)
        self.S = -0.5 * square
        add_to_diagonal(self.S, 0.5)
        # The Cholesky factors of S and B test positive definiteness, give T = S^-1, and later the distance to
        # the boundary of the cone. Problems without a factor have failed and keep their points.
        lower, broken = cholesky(np.stack([self.S, B]))
        self.whitening = inverse_of_lower(lower)
        self.T = np.matmul(transposed(self.whitening[0]), self.whitening[0])
        zB, nB, zT, nT = (np.matmul(left, right) for right in (B, self.T) for left in (Z, self.rows))
        self.margins = dot(nB, Z)
        # number of complementarity pairs, of which mu is the mean
        self.degree = (~free).sum(-1) + Z.shape[-1]
        self.mu = ((B * self.S).sum((-2, -1)) + dot(point.multipliers, point.slack)) / self.degree
        # H of the module docstring; its first and fourth terms share the factor z B z. Operations are in
        # place: each temporary has m^2 entries, and memory access, not arithmetic, determines the speed.
        columns, n_columns = transposed(Z), transposed(self.rows)
        H = np.matmul(0.25 * nT, n_columns)
        H += cone.gram
        H *= np.matmul(zB, columns)
        crossed = np.matmul(0.25 * nB, n_columns)
        crossed *= np.matmul(zT, columns)
        H += crossed
        crossed = np.matmul(zB, n_columns)
        crossed *= np.matmul(0.25 * nT, columns)
        H += crossed
        H += transposed(crossed)
        # s / lambda grows without bound on inactive constraints; Cholesky factorisation handles such a large
        # diagonal without loss. The relative increase lets the factorisation succeed for dependent
        # constraints; it changes the steps, not the solution.
        diagonal = np.einsum("bcc->bc", H)
        diagonal += point.slack * self.inverse
        diagonal *= 1 + DIAGONAL_RTOL
        self.factor, singular = cholesky(H)
        self.failed = broken.any(0) | singular

    def done(self, tol: float) -> np.ndarray:
        """Returns the mask ``[B]`` of the problems whose duality gap and residual are at most ``tol``."""
        # lambda is feasible for the dual in every step, so mu times the degree is the duality gap up to the
        # residual of the margins.
        rhs = self.cone.rhs
        residual = np.abs(self.margins - rhs - self.point.slack).max(-1)
        small = self.mu * self.degree <= tol * np.abs(dot(rhs, self.point.multipliers))
        return small & (residual <= tol * np.abs(rhs).max(-1)) & ~self.failed

    def direction(self, target_mu: np.ndarray, predictor: _Step | None) -> _Step:
        """Returns the Newton direction towards complementarity ``target_mu`` ``[B]``.

        Args:
            predictor: an earlier direction whose products of changes are included. None: they are neglected.
        """
        cone, point, B = self.cone, self.point, self.point.weight
        # The linearised equation B S = mu I gives the change of B, target - B - B linear T with target = mu
        # T. The equation lambda s = mu gives the change of s, pull - s - (s / lambda) move with pull = mu /
        # lambda. Inserting both into the equation of the margins gives a system H move = right for the change
        # of the multipliers alone. The margins of the current point cancel on the right-hand side.
        target, pull = target_mu[:, None, None] * self.T, target_mu[:, None] * self.inverse
        if predictor is None:
            right = cone.rhs
        else:
            change = np.matmul(B, predictor.quadratic) + np.matmul(predictor.weight, predictor.linear)
            target = target - symmetric(np.matmul(change, self.T))
            pull = pull - predictor.multipliers * predictor.slack * self.inverse
            right = (
                cone.rhs
                + pull
                - dot(np.matmul(self.rows, target) + np.matmul(predictor.rows, predictor.weight), cone.query)
            )
        move = solve_cholesky(self.factor, right)
        weighted = move[..., None] * cone.query
        rows = np.matmul(cone.gram, weighted)
        linear, quadratic = (
            symmetric(np.matmul(-self.weighted, rows)),
            symmetric(np.matmul(-0.5 * transposed(weighted), rows)),
        )
        weight = target - B - symmetric(np.matmul(np.matmul(B, linear), self.T))
        slack = pull - point.slack - point.slack * move * self.inverse
        return _Step(move, np.where(cone.free, 0.0, slack), weight, linear, quadratic, rows)

    def lengths(self, step: _Step, share: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Returns ``share`` times the longest steps inside the cones, at most one, each ``[B, 1]``.

        The first is for multipliers and S (a lower bound), the second for slacks and weight.
        """
        # S + a linear + a^2 quadratic is at least S + a (linear + quadratic) for a <= 1, since the quadratic
        # part is negative semidefinite.
        change = np.stack([step.linear + step.quadratic, step.weight])
        # With S = L L^T, S + a D = L (I + a L^-1 D L^-T) L^T stays positive definite while 1 + a times the
        # least eigenvalue of L^-1 D L^-T is positive. Equations have no boundary: their ratios are zero.
        whitened = np.matmul(np.matmul(self.whitening, change), transposed(self.whitening))
        if not np.isfinite(whitened).all():
            whitened = np.nan_to_num(whitened, nan=0.0, posinf=0.0, neginf=0.0)
        smallest = np.linalg.eigvalsh(whitened)[..., 0]
        signed = self.inverse > 0
        ratios = (
            (step.multipliers * self.inverse).min(-1),
            np.divide(step.slack, self.point.slack, out=np.zeros_like(step.slack), where=signed).min(-1),
        )
        up, down = (
            np.minimum(share / np.maximum(-np.minimum(eigenvalue, ratio), 1 / STEP_MAX), 1)[:, None]
            for eigenvalue, ratio in zip(smallest, ratios)
        )
        return up, down
