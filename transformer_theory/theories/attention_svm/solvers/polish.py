r"""Refines a point near a nuclear-norm solution up to rounding, by Newton's method on the equations that hold at the solution.

In the notation of :mod:`.interior_point`, :math:`W = MB`. Let :math:`B = QQ^\top` with r columns of Q, and let A be the set of constraints
with a positive multiplier. A solution is then a stationary point of

.. math:: \ell(\lambda_A, Q) = \tfrac12 \operatorname{tr} Q^\top (M^\top M - I) Q - b^\top \lambda, \qquad
    \text{that is}\quad d_c^\top W z_c = b_c \ (c \in A), \quad M^\top M Q = Q .

The Hessian is a small symmetric matrix. It is singular along rotations of Q, which added terms make regular; otherwise it is singular only
if the solution is not unique or not strictly complementary. The rank and A follow from an interior point by complementarity
(:cite:t:`alizadeh1997complementarity`): a direction belongs to W if its weight there, relative to the largest, exceeds the slack of the
matrix constraint in that direction. A constraint belongs to A if its multiplier exceeds its slack in the same sense. The result is not
verified here.
"""

import torch
from torch import Tensor

from .interior_point import Cone, Point, dot
from .tolerances import NEWTON_STEPS, RIDGE

EQUATION_ATOL = 1e-15  # largest error of the equations at which Newton's method ends; their terms are at most about one


def polish(cone: Cone, point: Point) -> tuple[Tensor, Tensor]:
    """Returns multipliers ``[B, m]`` and Q ``[B, q, q]``, whose columns beyond the rank of each problem are zero; not verified."""
    factor, rank, active = _guess(cone, point)
    multipliers, Q = torch.zeros_like(point.multipliers), torch.zeros_like(factor)
    # The Newton system has size |A| + q r. Problems of equal rank r form a batch; sets A of different sizes are padded.
    for r in rank.unique().tolist():
        index = (rank == r).nonzero().squeeze(-1)
        multipliers[index], Q[index, :, :r] = _newton(cone[index], point.multipliers[index], factor[index, :, :r], active[index])
    return multipliers, Q


def square_root(weight: Tensor) -> Tensor:
    """Returns Q ``[B, q, q]`` with :math:`QQ^\\top` = ``weight``; its columns are ordered from long to short."""
    values, vectors = torch.linalg.eigh(weight)
    return vectors.flip(-1) * values.flip(-1).clamp(min=0).sqrt()[:, None]


def _guess(cone: Cone, point: Point) -> tuple[Tensor, Tensor, Tensor]:
    """Guesses the active parts: returns Q with all columns, the number of columns that belong to W ``[B]``, and the set A ``[B, m]``."""
    # At the solution, either the weight of a direction or its slack in M^T M <= I is zero. The same holds for the multiplier and the slack
    # of a constraint. Near the solution, the larger of the two is the non-zero one; each is relative to the largest quantity of its kind.
    Q = square_root(point.weight)
    values = Q.square().sum(-2)
    square = cone.image(point.multipliers)[1]
    rayleigh = ((square @ Q) * Q).sum(-2) / values.clamp(min=1e-300)  # Rayleigh quotient of M^T M per direction, at most one
    rank = (values > (1 - rayleigh) * values[:, :1]).sum(-1).clamp(min=1)
    signed = torch.where(cone.free, 0.0, point.multipliers)
    scale = cone.rhs.abs().amax(-1, keepdim=True)
    return Q, rank, cone.free | (signed * scale > point.slack * signed.amax(-1, keepdim=True))


def _newton(cone: Cone, multipliers: Tensor, Q: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the multipliers ``[B, m]`` and Q ``[B, q, r]`` to which Newton's method converges, for problems of equal rank r."""
    (count, q, r), size = Q.shape, max(1, int(active.sum(-1).max()))
    # Gather the constraints of A, in every problem as many as the largest A has. A stable sort puts them first. Smaller sets are padded
    # with constraints whose data are masked to zero; the identity in their block of the Hessian keeps their multipliers at zero.
    order = active.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, :size]
    mask = active.gather(1, order).to(Q.dtype)
    pick = order[..., None]
    G = cone.gram.gather(1, pick.expand(-1, -1, cone.gram.shape[-1])).gather(2, pick.mT.expand(-1, size, -1))
    Z = cone.query.gather(1, pick.expand(-1, -1, q))
    small = Cone(G * (mask[..., None] * mask[:, None]), Z * mask[..., None], cone.rhs.gather(1, order) * mask, mask > 0)
    weights = multipliers.gather(1, order) * mask
    eye, columns = torch.eye(q, dtype=Q.dtype), torch.eye(r, dtype=Q.dtype)
    hessian = Q.new_zeros(count, size + q * r, size + q * r)
    # Newton's method converges quadratically here, so a small fixed number of steps suffices. The caller verifies the result and continues
    # the interior-point method if Newton's method has diverged.
    for _ in range(NEWTON_STEPS):
        rows, square = small.image(weights)
        ZQ, nQ = small.query @ Q, rows @ Q
        gradient = torch.cat([dot(nQ, ZQ) - small.rhs, (square @ Q - Q).flatten(1)], -1)
        if float(gradient.abs().amax()) <= EQUATION_ATOL:
            break
        # Blocks of the Hessian: multipliers with multipliers, multipliers with Q, and Q with Q. The last one is (M^T M - I) on each column
        # of Q. It is singular along Q -> Q R with R orthogonal, which does not change Q Q^T. The terms with two factors Q make it regular
        # there; the gradient vanishes along these directions, so the solution of the system does not change.
        cross = rows[..., None] * ZQ[:, :, None] + small.query[..., None] * nQ[:, :, None]
        rotations = columns[:, None] * (square - eye + Q @ Q.mT)[:, :, None, :, None] - Q[:, :, None, None, :] * Q.mT[:, None, :, :, None]
        block = small.gram * (ZQ @ ZQ.mT)
        # For dependent constraints the multipliers are not unique, and the system is singular. A ridge makes it regular. It changes the
        # steps but not the gradient, so the limit remains exact.
        ridge = RIDGE * block.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
        hessian[:, :size, :size] = block + torch.diag_embed(1 - mask + ridge)
        hessian[:, :size, size:] = cross.reshape(count, size, q * r)
        hessian[:, size:, :size] = hessian[:, :size, size:].mT
        hessian[:, size:, size:] = rotations.reshape(count, q * r, q * r)
        step = torch.linalg.solve_ex(hessian, gradient)[0]
        step = torch.where(torch.isfinite(step).all(-1, keepdim=True), step, 0.0)  # a singular system gives no step
        weights, Q = weights - step[:, :size], Q - step[:, size:].reshape(count, q, r)
    return torch.zeros_like(multipliers).scatter(1, order, weights), Q
