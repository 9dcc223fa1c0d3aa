r"""Primal-dual interior-point method for max-margin problems in the nuclear norm, many problems at a time.

The dual of :math:`\min \|W\|_*` subject to :math:`d_c^\top W z_c \ge b_c` (or :math:`= b_c`) is

.. math:: \max_\lambda\ b^\top\lambda \quad\text{subject to}\quad S(\lambda) = \tfrac12\,(I - M^\top M) \succeq 0,
    \quad \lambda_c \ge 0 \text{ on inequalities}, \qquad M = \sum_c \lambda_c d_c z_c^\top,

and with the multiplier B of its matrix constraint :math:`W = MB`, :math:`BS = 0`, :math:`\|W\|_* = \operatorname{tr} B`. All matrices have
the size q of the span of the queries, less than half of the usual embedding of the nuclear norm in a cone of size :math:`d_x + d_z`, and
the differences enter through their inner products alone, so the cost hardly depends on the dimension. Each step solves the Newton system of

.. math:: d_c^\top M B z_c - s_c = b_c, \qquad BS = \mu I, \qquad \lambda_c s_c = \mu

in the form of :cite:t:`helmberg1996interior`, with the predictor and corrector of :cite:t:`mehrotra1992implementation`. S is computed from
:math:`\lambda` each time, so :math:`\lambda` stays feasible and only the margins have a residual. With :math:`n_c = M^\top d_c` and
:math:`T = S^{-1}` the matrix of the system is

.. math:: H_{ce} = d_c^\top d_e\; z_c^\top B z_e + \tfrac14\big[z_c^\top B n_e\; n_c^\top T z_e + n_c^\top B z_e\; z_c^\top T n_e
    + z_c^\top B z_e\; n_c^\top T n_e + n_c^\top B n_e\; z_c^\top T z_e\big] + \delta_{ce}\, s_c / \lambda_c .
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .tolerances import INTERIOR_POINT_ROUNDS

BOUNDARY_SHARE = 0.97  # share of the way to the boundary of the cones that a step goes
CENTRING_RANGE = (0.01, 1.0)  # of the predicted ratio of the new mu to the old one; the step aims at the third power of this ratio
START_SHARE, START_SLACK = 0.8, 0.3  # of the start: size of M relative to its bound, and slack relative to the largest right-hand side
MEAN_SHARE = 0.05  # share of their mean in the multipliers of the start; it makes them positive
DIAGONAL_RTOL = 1e-14  # added to the diagonal of H, relative to each entry
STEP_MAX = 1e3  # longest step that is computed, in multiples of the Newton step; steps are cut at one anyway


@dataclass(frozen=True)
class Cone:
    """B problems as the method needs them.

    Attributes:
        gram: inner products of the differences, ``[B, m, m]``.
        query: in the coordinates of their span, ``[B, m, q]``.
        rhs: right-hand sides, ``[B, m]``.
        free: the equations, whose multipliers have either sign, ``[B, m]``.
    """

    gram: Tensor
    query: Tensor
    rhs: Tensor
    free: Tensor

    def __getitem__(self, index) -> "Cone":
        return Cone(*(getattr(self, field.name)[index] for field in fields(self)))

    def image(self, multipliers: Tensor) -> tuple[Tensor, Tensor]:
        r"""Rows :math:`n_c = M^\top d_c`, ``[B, m, q]``, and :math:`M^\top M`, ``[B, q, q]``."""
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
        """Overwrites some problems."""
        for field in fields(self):
            getattr(self, field.name)[index] = getattr(other, field.name)


def symmetric(A: Tensor) -> Tensor:
    """(A + A^T) / 2 of ``[..., q, q]``."""
    return (A + A.mT) / 2


def dot(left: Tensor, right: Tensor) -> Tensor:
    """Inner products along the last dimension of ``[..., k]``."""
    return (left * right).sum(-1)


def inside(cone: Cone, multipliers: Tensor) -> Point:
    """A start near the Frobenius solution.

    Args:
        cone: the problems; their unit of W is the Frobenius norm of the Frobenius solution.
        multipliers: of the Frobenius solution in this unit, ``[B, m]``.
    Returns:
        The multipliers, made positive and shrunk until S is positive definite, with slacks and a multiple of the identity as weight.
    """
    # An interior point must be well inside all cones at once, or the first steps are short. The multipliers of the Frobenius solution are
    # zero on most constraints, so a share of their mean is added.
    m, q = cone.query.shape[1:]
    mean = torch.where(cone.free, 0.0, multipliers).sum(-1, keepdim=True) / m
    positive = torch.where(cone.free, multipliers, (1 - MEAN_SHARE) * multipliers.clamp(min=0) + MEAN_SHARE * mean)
    # Shrink them until the spectral norm of M is at most START_SHARE, so that S = (I - M^T M) / 2 is positive definite. The Frobenius norm
    # of M^T M bounds the square of the spectral norm of M and needs no eigenvalues. The weight, size / START_SHARE times the identity,
    # undoes the shrinking: W = M B is then about the Frobenius solution, and margins are about right.
    size, bound = (torch.linalg.matrix_norm(cone.image(v)[1]).sqrt()[:, None] for v in (multipliers, positive))
    positive = START_SHARE / bound * positive
    weight = (size / START_SHARE)[..., None] * torch.eye(q, dtype=size.dtype)
    margins = dot(cone.image(positive)[0] @ weight, cone.query)
    slack = (margins - cone.rhs).clamp(min=0) + START_SLACK * cone.rhs.abs().amax(-1, keepdim=True)
    return Point(positive, torch.where(cone.free, 0.0, slack), weight)


def interior_point(cone: Cone, point: Point, *, tol: float) -> Point:
    """Moves each problem until its duality gap and residual are at most ``tol``, relative to objective and right-hand side.

    Args:
        cone, point: the problems and a point inside their cones.
        tol: below about 1e-7 a problem may fail to converge; it then keeps its last finite point. Nothing is verified here.
    """
    # Finished problems leave the batch; ``point`` collects the last point of each.
    point = Point(*(getattr(point, field.name).clone() for field in fields(point)))
    left, now = torch.arange(len(cone.rhs)), point
    for _ in range(INTERIOR_POINT_ROUNDS):
        now, going = _step(cone, now, tol)
        point.put(left, now)
        if not going.all():
            left, cone, now = left[going], cone[going], now[going]
        if not len(left):
            break
    return point


def _step(cone: Cone, point: Point, tol: float) -> tuple[Point, Tensor]:
    """The next point, and which problems are unfinished, ``[B]``; the others stay where they are."""
    system = _NewtonSystem(cone, point)
    # Predictor: a Newton step towards mu = 0, as far as the cones allow. The mu that it would leave, relative to the present one, shows how
    # well the linear model holds ...
    predictor = system.direction(torch.zeros_like(system.mu), None)
    up, down = (v.clamp(max=1) for v in system.lengths(predictor))
    a, b = up[:, None], down[:, None]
    S = system.S + a[..., None] * predictor.linear + a[..., None].square() * predictor.quadratic
    ahead = ((point.weight + b[..., None] * predictor.weight) * S).sum((-2, -1))
    ahead = ahead + dot(point.multipliers + a * predictor.multipliers, point.slack + b * predictor.slack)
    # ... and the third power of this ratio is the share of mu to aim at (Mehrotra's rule). Corrector: a step to that mu, with the products
    # of changes that the predictor neglected; it uses the same factorisation.
    centre = (ahead / (system.degree * system.mu)).clamp(*CENTRING_RANGE) ** 3
    step = system.direction(centre * system.mu, predictor)
    up, down = ((BOUNDARY_SHARE * v).clamp(max=1) for v in system.lengths(step))
    sound = torch.isfinite(step.multipliers).all(-1) & torch.isfinite(step.weight).all((-2, -1))
    going = ~(system.done(tol) | system.failed) & sound
    # Two step lengths: ``up`` for the dual side (multipliers, and with them S), ``down`` for the primal side (slacks and the weight B).
    moved = Point(
        point.multipliers + up[:, None] * step.multipliers,
        point.slack + down[:, None] * step.slack,
        symmetric(point.weight + down[:, None, None] * step.weight),
    )
    stay = (~going).nonzero().squeeze(-1)
    moved.put(stay, point[stay])
    return moved, going


@dataclass(frozen=True)
class _Step:
    """A direction.

    Attributes:
        multipliers, slack, weight: the changes of the parts of a :class:`Point`.
        linear, quadratic: parts of the change of S, which is quadratic in the multipliers: a step of length a changes S by
            ``a linear + a^2 quadratic``, ``[B, q, q]``.
        rows: the change of the rows n, ``[B, m, q]``.
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
        # 1 / lambda; zero on equations, which have no complementarity. This zero also removes their slacks from all formulas below.
        self.inverse = torch.where(free, 0.0, 1 / torch.where(free, 1.0, point.multipliers))
        self.rows, square = cone.image(point.multipliers)
        self.weighted = point.multipliers[..., None] * Z
        self.S = 0.5 * (torch.eye(Z.shape[-1], dtype=Z.dtype) - square)
        # Cholesky factors test that S and B are positive definite, give T = S^-1, and later the distance to the boundary of the cone.
        self.lower, broken = torch.linalg.cholesky_ex(torch.stack([self.S, B]))
        if bool(broken.any()):
            # Those problems have failed and stay where they are; the identity keeps the rest of the batch going.
            self.lower = torch.where((broken != 0)[..., None, None], torch.eye(Z.shape[-1], dtype=Z.dtype), self.lower)
        self.T = torch.cholesky_inverse(self.lower[0])
        zB, nB, zT, nT = Z @ B, self.rows @ B, Z @ self.T, self.rows @ self.T
        self.margins = dot(nB, Z)
        self.degree = (~free).sum(-1) + Z.shape[-1]  # of the cones: mu is the mean complementarity
        self.mu = ((B * self.S).sum((-2, -1)) + dot(point.multipliers, point.slack)) / self.degree
        # H of the module docstring; its first and fourth terms share the factor z B z. Operations are in place: at m constraints each
        # temporary has m^2 entries, and memory, not arithmetic, sets the speed.
        H = (nT @ self.rows.mT).mul_(0.25).add_(cone.gram).mul_(zB @ Z.mT).add_((nB @ self.rows.mT).mul_(zT @ Z.mT), alpha=0.25)
        crossed = (zB @ self.rows.mT).mul_(nT @ Z.mT)
        H.add_(crossed, alpha=0.25).add_(crossed.mT, alpha=0.25)
        # s / lambda grows without bound on inactive constraints: a large diagonal, which Cholesky handles without loss. The relative
        # perturbation keeps the factorisation alive where constraints are dependent; it changes the steps, not the solution.
        diagonal = H.diagonal(dim1=-2, dim2=-1)
        diagonal.add_(point.slack * self.inverse).mul_(1 + DIAGONAL_RTOL)
        self.factor, singular = torch.linalg.cholesky_ex(H)
        self.failed = (broken != 0).any(0) | (singular != 0)

    def done(self, tol: float) -> Tensor:
        """The problems whose duality gap and residual are at most ``tol``, ``[B]``."""
        # lambda is feasible for the dual at every step, so mu times the degree is the duality gap up to the residual of the margins.
        rhs = self.cone.rhs
        residual = (self.margins - rhs - self.point.slack).abs().amax(-1)
        small = self.mu * self.degree <= tol * dot(rhs, self.point.multipliers).abs()
        return small & (residual <= tol * rhs.abs().amax(-1)) & ~self.failed

    def direction(self, target_mu: Tensor, predictor: _Step | None) -> _Step:
        """The Newton direction towards complementarity ``target_mu`` ``[B]``.

        Args:
            predictor: an earlier direction, whose products of changes are taken into account; None neglects them.
        """
        cone, point, B = self.cone, self.point, self.point.weight
        # The linearised B S = mu I gives the change of B as target - B - B linear T, with target = mu T, and lambda s = mu gives that of s
        # as pull - s - (s / lambda) move, with pull = mu / lambda. Inserted into the equation of the margins, both leave a system
        # H move = right for the change of the multipliers alone. The margins of the present point cancel on the right.
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
        """Longest steps inside the cones: of multipliers and S, and of slacks and the weight, each ``[B]``. That of S is a lower bound."""
        # S + a linear + a^2 quadratic is at least S + a (linear + quadratic) for a <= 1, since the quadratic part is negative.
        change = torch.stack([step.linear + step.quadratic, step.weight])
        # With S = L L^T, S + a D = L (I + a L^-1 D L^-T) L^T stays positive definite while 1 + a times the least eigenvalue of L^-1 D L^-T
        # is positive. Equations have no boundary: their ratios are zero.
        half = torch.linalg.solve_triangular(self.lower, change, upper=False)
        both = symmetric(torch.linalg.solve_triangular(self.lower, half.mT, upper=False))
        least = torch.linalg.eigvalsh(torch.nan_to_num(both, nan=0.0, posinf=0.0, neginf=0.0))[..., 0]
        signed = self.inverse > 0
        ratios = (
            (step.multipliers * self.inverse).amin(-1),
            torch.where(signed, step.slack / torch.where(signed, self.point.slack, 1.0), 0.0).amin(-1),
        )
        up, down = (-1 / torch.minimum(eigenvalue, ratio).clamp(max=-1 / STEP_MAX) for eigenvalue, ratio in zip(least, ratios))
        return up, down
