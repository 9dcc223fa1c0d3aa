r"""From the neighbourhood of a nuclear-norm solution to rounding: Newton's method on the equations that hold at the solution.

With :math:`W = M QQ^\top` (the notation of :mod:`.interior_point`, :math:`B = QQ^\top`, Q of r columns) and the set A of constraints with a
positive multiplier, a solution is a stationary point of

.. math:: \ell(\lambda_A, Q) = \tfrac12 \operatorname{tr} Q^\top (M^\top M - I) Q - b^\top \lambda, \qquad
    \text{that is}\quad d_c^\top W z_c = b_c \ (c \in A), \quad M^\top M Q = Q .

Its Hessian is a small symmetric matrix. It is singular along rotations of Q, which are filled in, and otherwise only if the solution is not
unique or not strictly complementary. Rank and active set come from an interior point by complementarity
(:cite:t:`alizadeh1997complementarity`): a direction belongs to W if its weight there, relative to the largest, exceeds the slack of the
matrix constraint in that direction, and likewise a constraint to A. The result is not verified here.
"""

import torch
from torch import Tensor

from .interior_point import Cone, Point, dot
from .tolerances import NEWTON_STEPS, RIDGE

EQUATION_ATOL = 1e-15  # of the equations, whose terms are at most about one


def polish(cone: Cone, point: Point) -> tuple[Tensor, Tensor]:
    """Multipliers ``[B, m]`` and Q ``[B, q, q]``, zero beyond the rank of each problem; not verified."""
    factor, rank, active = _guess(cone, point)
    multipliers, Q = torch.zeros_like(point.multipliers), torch.zeros_like(factor)
    # The Newton system has size |A| + q r, so problems of one rank form a batch.
    for r in rank.unique().tolist():
        where = (rank == r).nonzero().squeeze(-1)
        multipliers[where], Q[where, :, :r] = _newton(cone[where], point.multipliers[where], factor[where, :, :r], active[where])
    return multipliers, Q


def square_root(weight: Tensor) -> Tensor:
    """Q ``[B, q, q]`` with :math:`QQ^\\top` = ``weight``, columns from large to small."""
    values, vectors = torch.linalg.eigh(weight)
    return vectors.flip(-1) * values.flip(-1).clamp(min=0).sqrt()[:, None]


def _guess(cone: Cone, point: Point) -> tuple[Tensor, Tensor, Tensor]:
    """Q with all columns, the number of columns that count ``[B]``, and A ``[B, m]``."""
    # At the solution exactly one of the two is zero, the weight of a direction or its slack in M^T M <= I, and likewise the multiplier of a
    # constraint or its slack. Near the solution the larger one shows which. Each is measured in its own unit, the largest of its kind.
    Q = square_root(point.weight)
    values = Q.square().sum(-2)
    square = cone.image(point.multipliers)[1]
    share = ((square @ Q) * Q).sum(-2) / values.clamp(min=1e-300)  # what M^T M reaches of its bound, one, in each direction
    rank = (values > (1 - share) * values[:, :1]).sum(-1).clamp(min=1)
    signed = torch.where(cone.free, 0.0, point.multipliers)
    scale = cone.rhs.abs().amax(-1, keepdim=True)
    return Q, rank, cone.free | (signed * scale > point.slack * signed.amax(-1, keepdim=True))


def _newton(cone: Cone, multipliers: Tensor, Q: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """Multipliers and Q of problems of one rank."""
    (count, q, r), size = Q.shape, max(1, int(active.sum(-1).max()))
    # Gather the rows of A, as many for each problem as the largest set has. A stable sort brings them first; problems with fewer are padded
    # with rows whose data are masked to zero. The identity in their block of the Hessian keeps their multipliers at zero.
    order = active.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, :size]
    mask = active.gather(1, order).to(Q.dtype)
    pick = order[..., None]
    G = cone.gram.gather(1, pick.expand(-1, -1, cone.gram.shape[-1])).gather(2, pick.mT.expand(-1, size, -1))
    Z = cone.query.gather(1, pick.expand(-1, -1, q))
    small = Cone(G * (mask[..., None] * mask[:, None]), Z * mask[..., None], cone.rhs.gather(1, order) * mask, mask > 0)
    weights = multipliers.gather(1, order) * mask
    eye, columns = torch.eye(q, dtype=Q.dtype), torch.eye(r, dtype=Q.dtype)
    hessian = Q.new_zeros(count, size + q * r, size + q * r)
    # Newton's method converges quadratically here, so the number of steps is fixed and small. A problem that diverges is caught by the
    # verification, and the interior point goes on.
    for _ in range(NEWTON_STEPS):
        rows, square = small.image(weights)
        ZQ, nQ = small.query @ Q, rows @ Q
        gradient = torch.cat([dot(nQ, ZQ) - small.rhs, (square @ Q - Q).flatten(1)], -1)
        if float(gradient.abs().amax()) <= EQUATION_ATOL:
            break
        # Blocks of the Hessian: multipliers with multipliers, multipliers with Q, and Q with Q. The last one is (M^T M - I) on each column
        # of Q. It is zero along Q -> Q R with R orthogonal, which leaves Q Q^T as it is. The terms in Q Q^T fill in these directions;
        # the gradient vanishes along them, so the solution of the system does not change.
        cross = rows[..., None] * ZQ[:, :, None] + small.query[..., None] * nQ[:, :, None]
        rotations = columns[:, None] * (square - eye + Q @ Q.mT)[:, :, None, :, None] - Q[:, :, None, None, :] * Q.mT[:, None, :, :, None]
        block = small.gram * (ZQ @ ZQ.mT)
        # The multipliers of dependent constraints are not unique, and the system is singular. A ridge makes it regular. It changes the
        # steps but not the gradient, so the limit stays exact.
        ridge = RIDGE * block.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
        hessian[:, :size, :size] = block + torch.diag_embed(1 - mask + ridge)
        hessian[:, :size, size:] = cross.reshape(count, size, q * r)
        hessian[:, size:, :size] = hessian[:, :size, size:].mT
        hessian[:, size:, size:] = rotations.reshape(count, q * r, q * r)
        step = torch.linalg.solve_ex(hessian, gradient)[0]
        step = torch.where(torch.isfinite(step).all(-1, keepdim=True), step, 0.0)  # a problem with a singular system stays where it is
        weights, Q = weights - step[:, :size], Q - step[:, size:].reshape(count, q, r)
    return torch.zeros_like(multipliers).scatter(1, order, weights), Q
