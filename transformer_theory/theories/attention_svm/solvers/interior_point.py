r"""Primal-dual interior-point method for batches of max-margin problems in the nuclear norm.

The dual of :math:`\min \|W\|_*` subject to :math:`d_c^\top W z_c \ge b_c` (or :math:`= b_c`) is

.. math:: \max_\lambda\ b^\top\lambda \quad\text{subject to}\quad S(\lambda) = \tfrac12\,(I - M^\top M) \succeq 0,
    \quad \lambda_c \ge 0 \text{ on inequalities}, \qquad M = \sum_c \lambda_c d_c z_c^\top.

With the multiplier B of the matrix constraint, the solution satisfies :math:`W = MB`, :math:`BS = 0` and
:math:`\|W\|_* = \operatorname{tr} B`. All matrices are q by q, where q is the dimension of the span of the queries; the usual embedding of
the nuclear norm needs a cone of size :math:`d_x + d_z`, at least twice as large. The differences enter only through their inner products.
So the cost hardly depends on the dimension. Each step solves the Newton system of

.. math:: d_c^\top M B z_c - s_c = b_c, \qquad BS = \mu I, \qquad \lambda_c s_c = \mu

in the form of :cite:t:`helmberg1996interior`, with the predictor and corrector of :cite:t:`mehrotra1992implementation`. S is computed
from :math:`\lambda` in every step, so :math:`\lambda` stays feasible and only the margins have a residual. With :math:`n_c = M^\top d_c`
and :math:`T = S^{-1}`, the matrix of the system is

.. math:: H_{ce} = d_c^\top d_e\; z_c^\top B z_e + \tfrac14\big[z_c^\top B n_e\; n_c^\top T z_e + n_c^\top B z_e\; z_c^\top T n_e
    + z_c^\top B z_e\; n_c^\top T n_e + n_c^\top B n_e\; z_c^\top T z_e\big] + \delta_{ce}\, s_c / \lambda_c .
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .tolerances import INTERIOR_POINT_ROUNDS

BOUNDARY_SHARE = 0.97  # length of a step as a share of the distance to the boundary of the cones
CENTRING_RANGE = (0.01, 1.0)  # range of the predicted ratio of the new mu to the old one; the step aims at the third power of this ratio
START_SHARE, START_SLACK = 0.8, 0.3  # first point: size of M relative to its bound, and slack relative to the largest right-hand side
MEAN_SHARE = 0.05  # weight of the mean in the multipliers of the first point; it makes them positive
DIAGONAL_RTOL = 1e-14  # relative increase of the diagonal entries of H
STEP_MAX = 1e3  # upper bound of computed step lengths, in multiples of the Newton step; all steps are cut at one later


@dataclass(frozen=True)
class Cone:
    """The data of B problems.

    Attributes:
        gram: inner products of the differences, ``[B, m, m]``.
        query: queries in coordinates of their span, ``[B, m, q]``.
        rhs: right-hand sides, ``[B, m]``.
        free: mask of the equations, ``[B, m]``; their multipliers have either sign.
    """

    gram: Tensor
    query: Tensor
    rhs: Tensor
    free: Tensor

    def __getitem__(self, index) -> "Cone":
        return Cone(*(getattr(self, field.name)[index] for field in fields(self)))

    def image(self, multipliers: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the rows :math:`n_c = M^\top d_c`, ``[B, m, q]``, and :math:`M^\top M`, ``[B, q, q]``."""
        weighted = multipliers[..., None] * self.query
        rows = self.gram @ weighted
        return rows, symmetric(weighted.mT @ rows)


@dataclass(frozen=True)
class Point:
    """An iterate: multipliers and slacks ``[B, m]``, both positive on inequalities, and the weight B of W = M B, ``[B, q, q]``."""

    multipliers: Tensor
    slack: Tensor
    weight: Tensor

    def __getitem__(self, index) -> "Point":
        return Point(*(getattr(self, field.name)[index] for field in fields(self)))

    def put(self, index: Tensor, other: "Point") -> None:
        """Replaces the problems that ``index`` selects by those of ``other``."""
        for field in fields(self):
            getattr(self, field.name)[index] = getattr(other, field.name)


def symmetric(A: Tensor) -> Tensor:
    """Returns (A + A^T) / 2 for A ``[..., q, q]``."""
    return (A + A.mT) / 2


def dot(left: Tensor, right: Tensor) -> Tensor:
    """Returns inner products along the last dimension of ``[..., k]``."""
    return (left * right).sum(-1)


def inside(cone: Cone, multipliers: Tensor) -> Point:
    """Returns an interior point near the Frobenius solution.

    Args:
        cone: the problems; the unit of W is the Frobenius norm of the Frobenius solution.
        multipliers: multipliers of the Frobenius solution in this unit, ``[B, m]``.
    Returns:
        Positive multipliers, shrunk until S is positive definite, with slacks and a multiple of the identity as weight.
    """
    # Close to the boundary of a cone the first steps would be short. The multipliers of the Frobenius solution are zero on most
    # constraints, so a share of their mean is added.
    m, q = cone.query.shape[1:]
    mean = torch.where(cone.free, 0.0, multipliers).sum(-1, keepdim=True) / m
    positive = torch.where(cone.free, multipliers, (1 - MEAN_SHARE) * multipliers.clamp(min=0) + MEAN_SHARE * mean)
    # Shrink them until the spectral norm of M is at most START_SHARE, so that S = (I - M^T M) / 2 is positive definite. The Frobenius norm
    # of M^T M bounds the square of the spectral norm of M and needs no eigenvalues. The weight B, size / START_SHARE times the identity,
    # undoes the shrinking: W = M B is then close to the Frobenius solution, and margins are nearly correct.
    size, bound = (torch.linalg.matrix_norm(cone.image(v)[1]).sqrt()[:, None] for v in (multipliers, positive))
    positive = START_SHARE / bound * positive
    weight = (size / START_SHARE)[..., None] * torch.eye(q, dtype=size.dtype)
    margins = dot(cone.image(positive)[0] @ weight, cone.query)
    slack = (margins - cone.rhs).clamp(min=0) + START_SLACK * cone.rhs.abs().amax(-1, keepdim=True)
    return Point(positive, torch.where(cone.free, 0.0, slack), weight)


def interior_point(cone: Cone, point: Point, *, tol: float) -> Point:
    """Iterates each problem until its duality gap and residual are at most ``tol`` of the objective and of the largest right-hand side.

    Args:
        cone, point: the problems and a point inside their cones.
        tol: relative tolerance. Below about 1e-7 a problem may fail to converge; it then keeps its last finite point.
    Returns:
        The last point of each problem, not verified.
    """
    # Finished problems leave the batch, which saves time; ``point`` collects the last point of each problem.
    point = Point(*(getattr(point, field.name).clone() for field in fields(point)))
    remaining, current = torch.arange(len(cone.rhs)), point
    for _ in range(INTERIOR_POINT_ROUNDS):
        current, unfinished = _step(cone, current, tol)
        point.put(remaining, current)
        if not unfinished.all():
            remaining, cone, current = remaining[unfinished], cone[unfinished], current[unfinished]
        if not len(remaining):
            break
    return point


def _step(cone: Cone, point: Point, tol: float) -> tuple[Point, Tensor]:
    """Returns the next point, and the mask ``[B]`` of the unfinished problems; the points of the others do not change."""
    system = _NewtonSystem(cone, point)
    # Predictor: a Newton step towards mu = 0, as far as the cones allow. The ratio of the mu after this step to the current mu measures how
    # well the linear model holds.
    predictor = system.direction(torch.zeros_like(system.mu), None)
    up, down = (v.clamp(max=1) for v in system.lengths(predictor))
    a, b = up[:, None], down[:, None]
    S = system.S + a[..., None] * predictor.linear + a[..., None].square() * predictor.quadratic
    predicted = ((point.weight + b[..., None] * predictor.weight) * S).sum((-2, -1))
    predicted = predicted + dot(point.multipliers + a * predictor.multipliers, point.slack + b * predictor.slack)
    # Corrector: a step towards the third power of this ratio times mu (Mehrotra's rule). It includes the products of changes that the
    # predictor neglected, and uses the same factorisation.
    centre = (predicted / (system.degree * system.mu)).clamp(*CENTRING_RANGE) ** 3
    step = system.direction(centre * system.mu, predictor)
    up, down = ((BOUNDARY_SHARE * v).clamp(max=1) for v in system.lengths(step))
    finite = torch.isfinite(step.multipliers).all(-1) & torch.isfinite(step.weight).all((-2, -1))
    unfinished = ~(system.done(tol) | system.failed) & finite
    # Two step lengths: ``up`` for the dual side (multipliers, and with them S), ``down`` for the primal side (slacks and the weight B).
    following = Point(
        point.multipliers + up[:, None] * step.multipliers,
        point.slack + down[:, None] * step.slack,
        symmetric(point.weight + down[:, None, None] * step.weight),
    )
    finished = (~unfinished).nonzero().squeeze(-1)
    following.put(finished, point[finished])
    return following, unfinished


@dataclass(frozen=True)
class _Step:
    """A search direction.

    Attributes:
        multipliers, slack, weight: changes of the parts of a :class:`Point`.
        linear, quadratic: coefficients of the change of S, ``[B, q, q]``. S is quadratic in the multipliers: a step of length a
            changes it by ``a linear + a^2 quadratic``.
        rows: change of the rows n, ``[B, m, q]``.
    """

    multipliers: Tensor
    slack: Tensor
    weight: Tensor
    linear: Tensor
    quadratic: Tensor
    rows: Tensor


class _NewtonSystem:
    """The factorised Newton system at a point, which predictor and corrector share."""

    def __init__(self, cone: Cone, point: Point):
        Z, B, free = cone.query, point.weight, cone.free
        self.cone, self.point = cone, point
        # 1 / lambda, and zero on equations, which have no complementarity. The zero also removes their slacks from all formulas below.
        self.inverse = torch.where(free, 0.0, 1 / torch.where(free, 1.0, point.multipliers))
        self.rows, square = cone.image(point.multipliers)
        self.weighted = point.multipliers[..., None] * Z
        self.S = 0.5 * (torch.eye(Z.shape[-1], dtype=Z.dtype) - square)
        # The Cholesky factors of S and B test positive definiteness, give T = S^-1, and later the distance to the boundary of the cone.
        self.lower, broken = torch.linalg.cholesky_ex(torch.stack([self.S, B]))
        if bool(broken.any()):
            # These problems have failed and keep their points. The identity replaces their factors so that the batched code below works.
            self.lower = torch.where((broken != 0)[..., None, None], torch.eye(Z.shape[-1], dtype=Z.dtype), self.lower)
        self.T = torch.cholesky_inverse(self.lower[0])
        zB, nB, zT, nT = Z @ B, self.rows @ B, Z @ self.T, self.rows @ self.T
        self.margins = dot(nB, Z)
        self.degree = (~free).sum(-1) + Z.shape[-1]  # number of complementarity pairs, of which mu is the mean
        self.mu = ((B * self.S).sum((-2, -1)) + dot(point.multipliers, point.slack)) / self.degree
        # H of the module docstring; its first and fourth terms share the factor z B z. Operations are in place: each temporary has m^2
        # entries, and memory access, not arithmetic, determines the speed.
        H = (nT @ self.rows.mT).mul_(0.25).add_(cone.gram).mul_(zB @ Z.mT).add_((nB @ self.rows.mT).mul_(zT @ Z.mT), alpha=0.25)
        crossed = (zB @ self.rows.mT).mul_(nT @ Z.mT)
        H.add_(crossed, alpha=0.25).add_(crossed.mT, alpha=0.25)
        # s / lambda grows without bound on inactive constraints; Cholesky factorisation handles such a large diagonal without loss. The
        # relative increase lets the factorisation succeed for dependent constraints; it changes the steps, not the solution.
        diagonal = H.diagonal(dim1=-2, dim2=-1)
        diagonal.add_(point.slack * self.inverse).mul_(1 + DIAGONAL_RTOL)
        self.factor, singular = torch.linalg.cholesky_ex(H)
        self.failed = (broken != 0).any(0) | (singular != 0)

    def done(self, tol: float) -> Tensor:
        """Returns the mask ``[B]`` of the problems whose duality gap and residual are at most ``tol``."""
        # lambda is feasible for the dual in every step, so mu times the degree is the duality gap up to the residual of the margins.
        rhs = self.cone.rhs
        residual = (self.margins - rhs - self.point.slack).abs().amax(-1)
        small = self.mu * self.degree <= tol * dot(rhs, self.point.multipliers).abs()
        return small & (residual <= tol * rhs.abs().amax(-1)) & ~self.failed

    def direction(self, target_mu: Tensor, predictor: _Step | None) -> _Step:
        """Returns the Newton direction towards complementarity ``target_mu`` ``[B]``.

        Args:
            predictor: an earlier direction whose products of changes are included. None: they are neglected.
        """
        cone, point, B = self.cone, self.point, self.point.weight
        # The linearised equation B S = mu I gives the change of B, target - B - B linear T with target = mu T. The equation lambda s = mu
        # gives the change of s, pull - s - (s / lambda) move with pull = mu / lambda. Inserting both into the equation of the margins gives
        # a system H move = right for the change of the multipliers alone. The margins of the current point cancel on the right-hand side.
        target, pull = target_mu[:, None, None] * self.T, target_mu[:, None] * self.inverse
        if predictor is None:
            right = cone.rhs
        else:
            target = target - symmetric((B @ predictor.quadratic + predictor.weight @ predictor.linear) @ self.T)
            pull = pull - predictor.multipliers * predictor.slack * self.inverse
            right = cone.rhs + pull - dot(self.rows @ target + predictor.rows @ predictor.weight, cone.query)
        move = torch.cholesky_solve(right[..., None], self.factor).squeeze(-1)
        weighted = move[..., None] * cone.query
        rows = cone.gram @ weighted
        linear, quadratic = -symmetric(self.weighted.mT @ rows), -0.5 * symmetric(weighted.mT @ rows)
        weight = target - B - symmetric(B @ linear @ self.T)
        slack = pull - point.slack - point.slack * move * self.inverse
        return _Step(move, torch.where(cone.free, 0.0, slack), weight, linear, quadratic, rows)

    def lengths(self, step: _Step) -> tuple[Tensor, Tensor]:
        """Returns the longest steps inside the cones: for multipliers and S (a lower bound), and for slacks and weight, each ``[B]``."""
        # S + a linear + a^2 quadratic is at least S + a (linear + quadratic) for a <= 1, since the quadratic part is negative semidefinite.
        change = torch.stack([step.linear + step.quadratic, step.weight])
        # With S = L L^T, S + a D = L (I + a L^-1 D L^-T) L^T stays positive definite while 1 + a times the least eigenvalue of L^-1 D L^-T
        # is positive. Equations have no boundary: their ratios are zero.
        half = torch.linalg.solve_triangular(self.lower, change, upper=False)
        whitened = symmetric(torch.linalg.solve_triangular(self.lower, half.mT, upper=False))  # L^-1 D L^-T
        smallest = torch.linalg.eigvalsh(torch.nan_to_num(whitened, nan=0.0, posinf=0.0, neginf=0.0))[..., 0]
        signed = self.inverse > 0
        ratios = (
            (step.multipliers * self.inverse).amin(-1),
            torch.where(signed, step.slack / torch.where(signed, self.point.slack, 1.0), 0.0).amin(-1),
        )
        up, down = (-1 / torch.minimum(eigenvalue, ratio).clamp(max=-1 / STEP_MAX) for eigenvalue, ratio in zip(smallest, ratios))
        return up, down
