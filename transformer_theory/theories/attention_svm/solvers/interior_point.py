r"""Primal-dual interior-point method for max-margin problems in the nuclear norm, many problems at a time.

The dual of :math:`\min \|W\|_*` subject to :math:`d_c^\top W z_c \ge b_c` (or :math:`= b_c`) is

.. math:: \max_\lambda\ b^\top\lambda \quad\text{subject to}\quad S(\lambda) = \tfrac12\,(I - M^\top M) \succeq 0,
    \quad \lambda_c \ge 0 \text{ on inequalities}, \qquad M = \sum_c \lambda_c d_c z_c^\top,

and with the multiplier B of its matrix constraint :math:`W = MB`, :math:`BS = 0`, :math:`\|W\|_* = \operatorname{tr} B`. All matrices have
the size q of the span of the queries, less than half of the usual embedding of the nuclear norm in a cone of size :math:`d_x + d_z`, and
the differences enter through their inner products alone, so the cost hardly depends on the dimension. Each step solves the Newton system of

.. math:: d_c^\top M B z_c - s_c = b_c, \qquad BS = \mu I, \qquad \lambda_c s_c = \mu

in the form of Helmberg, Rendl, Vanderbei and Wolkowicz, with Mehrotra's predictor and corrector. S is computed from :math:`\lambda` each
time, so that :math:`\lambda` stays feasible and only the margins have a residual. With :math:`n_c = M^\top d_c` and :math:`T = S^{-1}` the
matrix of the system is

.. math:: H_{ce} = d_c^\top d_e\; z_c^\top B z_e + \tfrac14\big[z_c^\top B n_e\; n_c^\top T z_e + n_c^\top B z_e\; z_c^\top T n_e
    + z_c^\top B z_e\; n_c^\top T n_e + n_c^\top B n_e\; z_c^\top T z_e\big] + \delta_{ce}\, s_c / \lambda_c .

"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .tolerances import INTERIOR_POINT_ROUNDS

STEP_TO_BOUNDARY = 0.97  # share of the way to the boundary of the cones that a step goes


@dataclass(frozen=True)
class Cone:
    """B problems as the method sees them: inner products of the differences ``[B, m, m]``, queries ``[B, m, q]``, right-hand sides
    ``[B, m]``, and where a multiplier may have either sign, ``[B, m]``."""

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
    """An iterate: multipliers and slacks ``[B, m]``, both positive on inequalities, and B ``[B, q, q]``."""

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
    """A start near the Frobenius solution: its multipliers, made positive and shrunk into the cone, and a B that undoes that."""
    m, q = cone.query.shape[1:]
    mean = torch.where(cone.free, 0.0, multipliers).sum(-1, keepdim=True) / m
    positive = torch.where(cone.free, multipliers, 0.95 * multipliers.clamp(min=0) + 0.05 * mean)
    size, bound = (torch.linalg.matrix_norm(cone.image(v)[1]).sqrt()[:, None] for v in (multipliers, positive))  # at least ||M||_2
    positive = 0.8 / bound * positive
    weight = (size / 0.8)[..., None] * torch.eye(q, dtype=size.dtype)
    margins = dot(cone.image(positive)[0] @ weight, cone.query)
    slack = (margins - cone.rhs).clamp(min=0) + 0.3 * cone.rhs.abs().amax(-1, keepdim=True)
    return Point(positive, torch.where(cone.free, 0.0, slack), weight)


def interior_point(cone: Cone, point: Point, *, tol: float) -> Point:
    """Moves each problem until its duality gap and residual are at most ``tol``, relative to objective and right-hand side.

    A problem that does not get there, as may happen below about 1e-7, keeps its last sound point: check the answer.
    """
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


@dataclass(frozen=True)
class _Step:
    """A direction, with what is linear and what is quadratic of the change of S, and the change of the rows n."""

    multipliers: Tensor
    slack: Tensor
    weight: Tensor
    linear: Tensor
    quadratic: Tensor
    rows: Tensor


class _Frame:
    """What both directions at a point share."""

    def __init__(self, cone: Cone, point: Point):
        Z, B, free = cone.query, point.weight, cone.free
        self.cone, self.point = cone, point
        self.inverse = torch.where(free, 0.0, 1 / torch.where(free, 1.0, point.multipliers))
        self.rows, square = cone.image(point.multipliers)
        self.weighted = point.multipliers[..., None] * Z
        self.S = 0.5 * (torch.eye(Z.shape[-1], dtype=Z.dtype) - square)
        self.lower, broken = torch.linalg.cholesky_ex(torch.stack([self.S, B]))
        if bool(broken.any()):  # those problems have failed and stay where they are; the identity keeps the others going
            self.lower = torch.where((broken != 0)[..., None, None], torch.eye(Z.shape[-1], dtype=Z.dtype), self.lower)
        self.T = torch.cholesky_inverse(self.lower[0])
        zB, nB, zT, nT = Z @ B, self.rows @ B, Z @ self.T, self.rows @ self.T
        self.margins = dot(nB, Z)
        self.degree = (~free).sum(-1) + Z.shape[-1]
        self.mu = ((B * self.S).sum((-2, -1)) + dot(point.multipliers, point.slack)) / self.degree
        H = (nT @ self.rows.mT).mul_(0.25).add_(cone.gram).mul_(zB @ Z.mT).add_((nB @ self.rows.mT).mul_(zT @ Z.mT), alpha=0.25)
        crossed = (zB @ self.rows.mT).mul_(nT @ Z.mT)
        H.add_(crossed, alpha=0.25).add_(crossed.mT, alpha=0.25)
        diagonal = H.diagonal(dim1=-2, dim2=-1)
        diagonal.add_(point.slack * self.inverse).mul_(1 + 1e-14)
        self.factor, singular = torch.linalg.cholesky_ex(H)
        self.failed = (broken != 0).any(0) | (singular != 0)

    def done(self, tol: float) -> Tensor:
        rhs = self.cone.rhs
        residual = (self.margins - rhs - self.point.slack).abs().amax(-1)
        small = self.mu * self.degree <= tol * dot(rhs, self.point.multipliers).abs()
        return small & (residual <= tol * rhs.abs().amax(-1)) & ~self.failed

    def direction(self, aim: Tensor, before: _Step | None) -> _Step:
        """Towards complementarity ``aim``; corrected for the products of changes that ``before`` leaves out."""
        cone, point, B = self.cone, self.point, self.point.weight
        target, pull = aim[:, None, None] * self.T, aim[:, None] * self.inverse
        if before is None:
            right = cone.rhs
        else:
            target = target - symmetric((B @ before.quadratic + before.weight @ before.linear) @ self.T)
            pull = pull - before.multipliers * before.slack * self.inverse
            right = cone.rhs + pull - dot(self.rows @ target + before.rows @ before.weight, cone.query)
        move = torch.cholesky_solve(right[..., None], self.factor).squeeze(-1)
        weighted = move[..., None] * cone.query
        rows = cone.gram @ weighted
        linear, quadratic = -symmetric(self.weighted.mT @ rows), -0.5 * symmetric(weighted.mT @ rows)
        weight = target - B - symmetric(B @ linear @ self.T)
        slack = pull - point.slack - point.slack * move * self.inverse
        return _Step(move, torch.where(cone.free, 0.0, slack), weight, linear, quadratic, rows)

    def lengths(self, step: _Step) -> tuple[Tensor, Tensor]:
        """How far multipliers and S, and how far slacks and B, can go: up to the boundary, for S a little less; 1e3 at most."""
        # S + a linear + a^2 quadratic is at least S + a (linear + quadratic) for a <= 1, since the quadratic part is negative
        change = torch.stack([step.linear + step.quadratic, step.weight])
        half = torch.linalg.solve_triangular(self.lower, change, upper=False)
        both = symmetric(torch.linalg.solve_triangular(self.lower, half.mT, upper=False))
        least = torch.linalg.eigvalsh(torch.nan_to_num(both, nan=0.0, posinf=0.0, neginf=0.0))[..., 0]
        signed = self.inverse > 0
        ratios = (
            (step.multipliers * self.inverse).amin(-1),
            torch.where(signed, step.slack / torch.where(signed, self.point.slack, 1.0), 0.0).amin(-1),
        )
        up, down = (-1 / torch.minimum(one, other).clamp(max=-1e-3) for one, other in zip(least, ratios))
        return up, down


def _step(cone: Cone, point: Point, tol: float) -> tuple[Point, Tensor]:
    """The next point, and where there is more to do, ``[B]``; the others stay where they are."""
    frame = _Frame(cone, point)
    predictor = frame.direction(torch.zeros_like(frame.mu), None)
    up, down = (v.clamp(max=1) for v in frame.lengths(predictor))
    a, b = up[:, None], down[:, None]
    S = frame.S + a[..., None] * predictor.linear + a[..., None].square() * predictor.quadratic
    ahead = ((point.weight + b[..., None] * predictor.weight) * S).sum((-2, -1))
    ahead = ahead + dot(point.multipliers + a * predictor.multipliers, point.slack + b * predictor.slack)
    centre = (ahead / (frame.degree * frame.mu)).clamp(min=0.01, max=1) ** 3
    step = frame.direction(centre * frame.mu, predictor)
    up, down = ((STEP_TO_BOUNDARY * v).clamp(max=1) for v in frame.lengths(step))
    sound = torch.isfinite(step.multipliers).all(-1) & torch.isfinite(step.weight).all((-2, -1))
    going = ~(frame.done(tol) | frame.failed) & sound
    moved = Point(
        point.multipliers + up[:, None] * step.multipliers,
        point.slack + down[:, None] * step.slack,
        symmetric(point.weight + down[:, None, None] * step.weight),
    )
    stay = (~going).nonzero().squeeze(-1)
    moved.put(stay, point[stay])
    return moved, going
