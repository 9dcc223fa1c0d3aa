r"""Refines a point near a nuclear-norm solution up to rounding, by Newton's method on the equations that hold
at the solution.

In the notation of :mod:`.interior_point`, :math:`W = MB`. Let :math:`B = QQ^\top` with r columns of Q, and
let A be the set of constraints with a positive multiplier. A solution is then a stationary point of

.. math:: \ell(\lambda_A, Q) = \tfrac12 \operatorname{tr} Q^\top (M^\top M - I) Q - b^\top \lambda, \qquad
    \text{that is}\quad d_c^\top W z_c = b_c \ (c \in A), \quad M^\top M Q = Q .

The Hessian is a small symmetric matrix. It is singular along rotations of Q, which added terms make regular;
otherwise it is singular only if the solution is not unique or not strictly complementary. The rank and A
follow from an interior point by complementarity (:cite:t:`alizadeh1997complementarity`): a direction belongs
to W if its weight there, relative to the largest, exceeds the slack of the matrix constraint in that
direction. A constraint belongs to A if its multiplier exceeds its slack in the same sense. The result is not
verified here.
"""

import numpy as np
import torch

from .dense import add_to_diagonal, dot, transposed
from .interior_point import Cone, Point
from .tolerances import NEWTON_STEPS, RIDGE

# largest error of the equations at which Newton's method ends; their terms are at most about one
EQUATION_ATOL = 1e-15


def newton_polish(cone: Cone, point: Point) -> tuple[np.ndarray, np.ndarray]:
    """Returns multipliers ``[B, m]`` and Q ``[B, q, q]``, whose columns beyond the rank of each problem are
    zero; not verified.
    """
    factor, rank, active = _guess(cone, point)
    multipliers, Q = np.zeros_like(point.multipliers), np.zeros_like(factor)
    # The Newton system has size |A| + q r. Problems of equal rank r form a batch; sets A of different sizes
    # are padded.
    for r in np.unique(rank).tolist():
        index = (rank == r).nonzero()[0]
        # Newton's method may diverge, which the verification shows.
        with np.errstate(all="ignore"):
            multipliers[index], Q[index, :, :r] = _newton(
                cone[index], point.multipliers[index], factor[index, :, :r], active[index]
            )
    return multipliers, Q


def square_root(weight: np.ndarray) -> np.ndarray:
    """Returns Q ``[B, q, q]`` with :math:`QQ^\\top` = ``weight``; its columns are ordered from long
    to short.
    """
    values, vectors = np.linalg.eigh(weight)
    return vectors[..., ::-1] * np.sqrt(np.maximum(values[:, None, ::-1], 0))


def _guess(cone: Cone, point: Point) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Guesses the active parts: returns Q with all columns, the number of columns that belong to W ``[B]``,
    and the set A ``[B, m]``.
    """
    # At the solution, either the weight of a direction or its slack in M^T M <= I is zero. The same holds for
    # the multiplier and the slack of a constraint. Near the solution, the larger of the two is the non-zero
    # one; each is relative to the largest quantity of its kind.
    Q = square_root(point.weight)
    values = np.square(Q).sum(-2)
    square = cone.image(point.multipliers)[1]
    # Rayleigh quotient of M^T M per direction, at most one
    rayleigh = (np.matmul(square, Q) * Q).sum(-2) / np.maximum(values, 1e-300)
    rank = np.maximum((values > (1 - rayleigh) * values[:, :1]).sum(-1), 1)
    signed = np.where(cone.free, 0.0, point.multipliers)
    scale = np.abs(cone.rhs).max(-1, keepdims=True)
    return Q, rank, cone.free | (signed * scale > point.slack * signed.max(-1, keepdims=True))


def _newton(
    cone: Cone, multipliers: np.ndarray, Q: np.ndarray, active: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the multipliers ``[B, m]`` and Q ``[B, q, r]`` to which Newton's method converges, for problems
    of equal rank r.
    """
    (count, q, r), size = Q.shape, max(1, int(active.sum(-1).max()))
    # Gather the constraints of A, in every problem as many as the largest A has. A stable sort puts them
    # first. Smaller sets are padded with constraints whose data are masked to zero; the identity in their
    # block of the Hessian keeps their multipliers at zero.
    order = np.argsort(~active, axis=-1, kind="stable")[:, :size]
    problem = np.arange(count)[:, None]
    mask = active[problem, order].astype(float)
    G = cone.gram[problem[..., None], order[..., None], order[:, None]] * (mask[..., None] * mask[:, None])
    Z, rhs = cone.query[problem, order] * mask[..., None], cone.rhs[problem, order] * mask
    small = Cone(
        G,
        Z,
        rhs,
        mask > 0,
        None if cone.difference is None else cone.difference[problem, order] * mask[..., None],
    )
    weights = multipliers[problem, order] * mask
    hessian = np.zeros((count, size + q * r, size + q * r))
    # Newton's method converges quadratically here, so a small fixed number of steps suffices. The caller
    # verifies the result and continues the interior-point method if Newton's method has diverged.
    for _ in range(NEWTON_STEPS):
        rows, square = small.image(weights)
        ZQ, nQ = np.matmul(small.query, Q), np.matmul(rows, Q)
        gradient = np.concatenate(
            [dot(nQ, ZQ) - small.rhs, (np.matmul(square, Q) - Q).reshape(count, q * r)], -1
        )
        if not float(np.abs(gradient).max()) > EQUATION_ATOL:
            break
        # Blocks of the Hessian: multipliers with multipliers, multipliers with Q, and Q with Q. The last one
        # is (M^T M - I) on each column of Q. It is singular along Q -> Q R with R orthogonal, which does not
        # change Q Q^T. The terms with two factors Q make it regular there; the gradient vanishes along these
        # directions, so the solution of the system does not change.
        cross = rows[..., None] * ZQ[:, :, None] + small.query[..., None] * nQ[:, :, None]
        inner = square + np.matmul(Q, transposed(Q))
        add_to_diagonal(inner, -1.0)
        rotations = -Q[:, :, None, None, :] * transposed(Q)[:, None, :, :, None]  # [B, q, r, q, r]
        columns = np.einsum("biaja->bija", rotations)  # a view: the same column on both sides
        columns += inner[..., None]
        block = small.gram * np.matmul(ZQ, transposed(ZQ))
        # For dependent constraints the multipliers are not unique, and the system is singular. A ridge makes
        # it regular. It changes the steps but not the gradient, so the limit remains exact.
        ridge = RIDGE * np.einsum("bcc->bc", block).max(-1, keepdims=True)
        add_to_diagonal(block, 1 - mask + ridge)
        hessian[:, :size, :size] = block
        hessian[:, :size, size:] = cross.reshape(count, size, q * r)
        hessian[:, size:, :size] = transposed(hessian[:, :size, size:])
        hessian[:, size:, size:] = rotations.reshape(count, q * r, q * r)
        step = torch.linalg.solve_ex(torch.from_numpy(hessian), torch.from_numpy(gradient))[0].numpy()
        # a singular system gives no step
        step = np.where(np.isfinite(step).all(-1, keepdims=True), step, 0.0)
        weights, Q = weights - step[:, :size], Q - step[:, size:].reshape(count, q, r)
    full = np.zeros_like(multipliers)
    full[problem, order] = weights
    return full, Q
