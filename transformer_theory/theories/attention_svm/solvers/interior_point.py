r"""Primal-dual interior-point method for max-margin problems in the nuclear norm, many problems at a time.

The dual of :math:`\min \|W\|_*` subject to :math:`d_c^\top W z_c \ge b_c` (or :math:`= b_c`) is

.. math:: \max_\lambda\ b^\top\lambda \quad\text{subject to}\quad S(\lambda) = \tfrac12\,(I - M^\top M) \succeq 0,
    \quad \lambda_c \ge 0 \text{ on inequalities}, \qquad M = \sum_c \lambda_c d_c z_c^\top,

and with the multiplier B of its matrix constraint :math:`W = MB`, :math:`BS = 0`, :math:`\|W\|_* = \operatorname{tr} B`. So all matrices are of
the size q of the queries' span, half or less of the usual embedding of the nuclear norm in a cone of size :math:`d_x + d_z`, and the
differences enter through their inner products alone: the cost does not depend on their dimension. Each step solves the Newton system of

.. math:: d_c^\top M B z_c - s_c = b_c, \qquad BS = \mu I, \qquad \lambda_c s_c = \mu

in the form of Helmberg, Kojima and Monteiro, with Mehrotra's predictor and corrector; S is recomputed from :math:`\lambda`, so that
:math:`\lambda` stays feasible and only the margins have a residual. With :math:`n_c = M^\top d_c` and :math:`T = S^{-1}` its matrix is

.. math:: H_{ce} = d_c^\top d_e\, z_c^\top B z_e + \tfrac14\big[(z_c^\top B n_e)(n_c^\top T z_e) + (n_c^\top B z_e)(z_c^\top T n_e)
    + (z_c^\top B z_e)(n_c^\top T n_e) + (n_c^\top B n_e)(z_c^\top T z_e)\big] + \delta_{ce}\, s_c / \lambda_c .

Source: (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`; :cite:t:`helmberg1996interior`, :cite:t:`mehrotra1992implementation`.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

ROUNDS = 60
SHORT = 0.97  # of the way to the boundary


@dataclass(frozen=True)
class Cone:
    """B problems as the method sees them.

    Attributes:
        gram: inner products of the differences, ``[B, m, m]``.
        query: ``[B, m, q]``.
        rhs: ``[B, m]``.
        free: where the multiplier may have either sign, ``[B, m]``.
    """

    gram: Tensor
    query: Tensor
    rhs: Tensor
    free: Tensor

    def __getitem__(self, index) -> "Cone":
        return Cone(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


@dataclass(frozen=True)
class Point:
    """An iterate: multipliers and slacks ``[B, m]``, and the multiplier of the matrix constraint, ``[B, q, q]``."""

    multipliers: Tensor
    slack: Tensor
    weight: Tensor

    def __getitem__(self, index) -> "Point":
        return Point(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def put(self, index: Tensor, other: "Point") -> None:
        for field in fields(self):
            getattr(self, field.name)[index] = getattr(other, field.name)


def rows(left: Tensor, right: Tensor) -> Tensor:
    """Inner products of rows, ``[B, m]``."""
    return (left * right).sum(-1)


def symmetric(A: Tensor) -> Tensor:
    return (A + A.mT) / 2


def start(cone: Cone) -> Point:
    """Inside all cones: all multipliers equal, the matrix halfway to its bound, multiplied slacks about equal."""
    B, m, q = cone.query.shape
    plain = torch.where(cone.free, 0.0, 1.0).to(cone.rhs.dtype)
    image = cone.gram @ (plain[..., None] * cone.query)
    square = (plain[..., None] * cone.query).mT @ image
    size = torch.linalg.matrix_norm(square).sqrt()[:, None].clamp(min=1e-300)
    multipliers = 0.5 * torch.where(cone.free, 0.0, 1 / size)
    weight = torch.eye(q, dtype=cone.rhs.dtype).expand(B, q, q).clone()
    return Point(multipliers, torch.where(cone.free, 0.0, 0.5 / multipliers), weight)


def interior_point(cone: Cone, point: Point, *, tol: float, rounds: int = ROUNDS) -> tuple[Point, Tensor]:
    """Moves each problem until gap and residual, relative to the objective, are at most ``tol``.

    Returns:
        The last points, and where the tolerance was met, ``[B]``. A problem that breaks down keeps its last sound point.
    """
    reached = torch.zeros(len(cone.rhs), dtype=torch.bool)
    left, here, now = torch.arange(len(cone.rhs)), cone, point
    point = Point(*(v.clone() for v in (point.multipliers, point.slack, point.weight)))
    for _ in range(rounds):
        now, done, failed = _step(here, now, tol)
        point.put(left, now)
        reached[left[done]] = True
        going = ~(done | failed)
        if not going.all():
            left, here, now = left[going], here[going], now[going]
        if not len(left):
            break
    return point, reached


def _step(cone: Cone, point: Point, tol: float) -> tuple[Point, Tensor, Tensor]:
    G, Z, b, free = cone.gram, cone.query, cone.rhs, cone.free
    lam, s, B = point.multipliers, point.slack, point.weight
    q = Z.shape[-1]
    eye = torch.eye(q, dtype=b.dtype)
    count = (~free).sum(-1) + q
    inverse = torch.where(free, 0.0, 1 / torch.where(free, 1.0, lam))

    Y = lam[..., None] * Z
    N = G @ Y
    S = 0.5 * (eye - symmetric(Y.mT @ N))
    lower, broken = torch.linalg.cholesky_ex(S)
    T = torch.cholesky_inverse(lower)
    ZB, NB, ZT, NT = Z @ B, N @ B, Z @ T, N @ T
    margins = rows(NB, Z)
    mu = ((B * S).sum((-2, -1)) + rows(lam, s)) / count
    objective = rows(b, lam).abs().clamp(min=1e-300)
    residual = (margins - b - s).abs().amax(-1) / b.abs().amax(-1)
    done = (mu * count <= tol * objective) & (residual <= tol)

    zBz = ZB @ Z.mT
    cross = (ZB @ N.mT) * (NT @ Z.mT)
    H = (NT @ N.mT).mul_(0.25).add_(G).mul_(zBz).add_((NB @ N.mT).mul_(ZT @ Z.mT), alpha=0.25)
    H.add_(cross + cross.mT, alpha=0.25)
    diagonal = H.diagonal(dim1=-2, dim2=-1)
    diagonal.add_(s * inverse + 1e-14 * diagonal)
    factor, singular = torch.linalg.cholesky_ex(H)

    # predictor: straight for the optimum
    first = _solve(factor, b)
    dY = first[..., None] * Z
    dN = G @ dY
    dS1 = -symmetric(Y.mT @ dN)
    dS2 = -0.5 * symmetric(dY.mT @ dN)
    dB = -B - symmetric(B @ dS1 @ T)
    ds = -s - s * first * inverse
    lowerB, brokenB = torch.linalg.cholesky_ex(B)
    up, down = _lengths(lower, dS1 + dS2, lam, first, lowerB, dB, s, ds, free)
    up, down = up.clamp(max=1), down.clamp(max=1)
    a, c = up[:, None, None], down[:, None, None]
    ahead = ((B + c * dB) * (S + a * dS1 + a * a * dS2)).sum((-2, -1)) + rows(lam + up[:, None] * first, s + down[:, None] * ds)
    ahead = (ahead / count).clamp(min=0)
    centre = (ahead / mu).clamp(max=1) ** 3
    centre = centre.clamp(min=1e-6)
    aim = (centre * mu)[:, None]

    # corrector
    E = symmetric((B @ dS2 + dB @ (dS1)) @ T)
    e = first * ds
    R = aim[..., None] * T - E
    right = b + torch.where(free, 0.0, (aim - e) * inverse) - rows(N @ R + dN @ dB, Z)
    d = _solve(factor, right)
    dY = d[..., None] * Z
    dN = G @ dY
    dS1 = -symmetric(Y.mT @ dN)
    dS2 = -0.5 * symmetric(dY.mT @ dN)
    dB = R - B - symmetric(B @ dS1 @ T)
    ds = torch.where(free, 0.0, (aim - e) * inverse - s - s * d * inverse)
    up, down = _lengths(lower, dS1 + dS2, lam, d, lowerB, dB, s, ds, free)
    up, down = (SHORT * up).clamp(max=1), (SHORT * down).clamp(max=1)
    failed = (broken != 0) | (brokenB != 0) | (singular != 0) | ~torch.isfinite(d).all(-1) | ~torch.isfinite(dB).all((-2, -1))
    keep = done | failed
    up, down = torch.where(keep, 0.0, up), torch.where(keep, 0.0, down)
    d, ds, dB = (torch.where(keep.reshape(-1, *[1] * (v.ndim - 1)), 0.0, v) for v in (d, ds, dB))
    moved = Point(lam + up[:, None] * d, s + down[:, None] * ds, symmetric(B + down[:, None, None] * dB))
    if DEBUG: print(mu[:3].tolist(), residual[:3].tolist(), up[:3].tolist(), down[:3].tolist(), centre[:3].tolist())
    return moved, done, failed & ~done

DEBUG = False

def _lengths(lowerS, dS, lam, d, lowerB, dB, s, ds, free):
    """Largest steps to the boundary, of (multipliers, S) and of (slack, B); at most 1e3 or so."""
    both = torch.cat([_whitened(lowerS, dS), _whitened(lowerB, dB)])
    both = torch.nan_to_num(both, nan=0.0, posinf=0.0, neginf=0.0)
    least = torch.linalg.eigvalsh(both)[:, 0]
    leastS, leastB = least.chunk(2)
    ratio = torch.where(free, 0.0, d / torch.where(free, 1.0, lam)).amin(-1)
    ratios = torch.where(free, 0.0, ds / torch.where(free, 1.0, s)).amin(-1)
    up = -1 / torch.minimum(leastS, ratio).clamp(max=-1e-3)
    down = -1 / torch.minimum(leastB, ratios).clamp(max=-1e-3)
    return up, down


def _whitened(lower, A):
    half = torch.linalg.solve_triangular(lower, A, upper=False)
    return symmetric(torch.linalg.solve_triangular(lower, half.mT, upper=False))


def _solve(lower: Tensor, right: Tensor) -> Tensor:
    return torch.cholesky_solve(right[..., None], lower).squeeze(-1)
