r"""From the neighbourhood of a nuclear-norm solution to rounding: Newton's method on the equations that hold there.

With :math:`W = M QQ^\top` (the notation of :mod:`.interior_point`, :math:`B = QQ^\top`, Q of r columns) and the set A of constraints with a
positive multiplier, a solution is a stationary point of

.. math:: \ell(\lambda_A, Q) = \tfrac12 \operatorname{tr} Q^\top (M^\top M - I) Q - b^\top \lambda, \qquad
    \text{that is}\quad d_c^\top W z_c = b_c \ (c \in A), \quad M^\top M Q = Q .

Its Hessian is a small symmetric matrix, singular along rotations of Q, which are filled in, and elsewhere only if the solution is not
unique or not strictly complementary. Rank and active set are read off an interior point by complementarity: a direction belongs to W if its
weight there, relative to the largest, exceeds the slack of the matrix constraint in that direction, and likewise a constraint to A. Nothing
is claimed of the result: it has to be checked.

Source: (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`; complementarity: :cite:t:`alizadeh1997complementarity`.
"""

import torch
from torch import Tensor

from .interior_point import Cone, Point, dot

from .tolerances import NEWTON_STEPS, RIDGE

EQUATION_ATOL = 1e-15  # of the equations, whose terms are at most about one


def polish(cone: Cone, point: Point) -> tuple[Tensor, Tensor]:
    """Multipliers ``[B, m]`` and Q ``[B, q, q]``, zero beyond the rank of each problem; unchecked."""
    factor, rank, active = _guess(cone, point)
    multipliers, Q = torch.zeros_like(point.multipliers), torch.zeros_like(factor)
    for r in rank.unique().tolist():
        where = (rank == r).nonzero().squeeze(-1)
        multipliers[where], Q[where, :, :r] = _newton(cone[where], point.multipliers[where], factor[where, :, :r], active[where])
    return multipliers, Q


def square_root(weight: Tensor) -> Tensor:
    """Q ``[B, q, q]`` with :math:`QQ^\\top` = ``weight``, columns from large to small."""
    values, vectors = torch.linalg.eigh(weight)
    return vectors.flip(-1) * values.flip(-1).clamp(min=0).sqrt()[:, None]


def _guess(cone: Cone, point: Point) -> tuple[Tensor, Tensor, Tensor]:
    """Q of all columns, how many of them count ``[B]``, and A ``[B, m]``."""
    Q = square_root(point.weight)
    values = Q.square().sum(-2)
    square = cone.image(point.multipliers)[1]
    share = ((square @ Q) * Q).sum(-2) / values.clamp(min=1e-300)  # of the bound that M^T M reaches in each direction
    rank = (values > (1 - share) * values[:, :1]).sum(-1).clamp(min=1)
    signed = torch.where(cone.free, 0.0, point.multipliers)
    scale = cone.rhs.abs().amax(-1, keepdim=True)
    return Q, rank, cone.free | (signed * scale > point.slack * signed.amax(-1, keepdim=True))


def _newton(cone: Cone, multipliers: Tensor, Q: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """Problems of one rank; the rows of A come first, filled up to equal number with rows that the identity holds at zero."""
    (count, q, r), most = Q.shape, max(1, int(active.sum(-1).max()))
    order = active.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, :most]
    held = active.gather(1, order).to(Q.dtype)
    pick = order[..., None]
    G = cone.gram.gather(1, pick.expand(-1, -1, cone.gram.shape[-1])).gather(2, pick.mT.expand(-1, most, -1))
    Z = cone.query.gather(1, pick.expand(-1, -1, q))
    small = Cone(G * (held[..., None] * held[:, None]), Z * held[..., None], cone.rhs.gather(1, order) * held, held > 0)
    found = multipliers.gather(1, order) * held
    eye, columns = torch.eye(q, dtype=Q.dtype), torch.eye(r, dtype=Q.dtype)
    hessian = Q.new_zeros(count, most + q * r, most + q * r)
    for _ in range(NEWTON_STEPS):
        rows, square = small.image(found)
        ZQ, nQ = small.query @ Q, rows @ Q
        slope = torch.cat([dot(nQ, ZQ) - small.rhs, (square @ Q - Q).flatten(1)], -1)
        if float(slope.abs().amax()) <= EQUATION_ATOL:
            break
        cross = rows[..., None] * ZQ[:, :, None] + small.query[..., None] * nQ[:, :, None]
        rotations = columns[:, None] * (square - eye + Q @ Q.mT)[:, :, None, :, None] - Q[:, :, None, None, :] * Q.mT[:, None, :, :, None]
        block = small.gram * (ZQ @ ZQ.mT)
        ridge = RIDGE * block.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
        hessian[:, :most, :most] = block + torch.diag_embed(1 - held + ridge)
        hessian[:, :most, most:] = cross.reshape(count, most, q * r)
        hessian[:, most:, :most] = hessian[:, :most, most:].mT
        hessian[:, most:, most:] = rotations.reshape(count, q * r, q * r)
        step = torch.linalg.solve_ex(hessian, slope)[0]
        step = torch.where(torch.isfinite(step).all(-1, keepdim=True), step, 0.0)
        found, Q = found - step[:, :most], Q - step[:, most:].reshape(count, q, r)
    return torch.zeros_like(multipliers).scatter(1, order, found), Q
