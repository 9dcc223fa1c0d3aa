r"""When every selection is feasible: a matrix that meets all constraints, written down without any optimisation.

Let :math:`D_i` hold the differences (selected token minus each other one) of input i as rows. If the rows of every :math:`D_i` and the
queries :math:`z_1, \dots, z_n` are linearly independent, then

.. math:: D_i u_i = \mathbf 1, \qquad W z_i = u_i \quad (i = 1, \dots, n)

has a solution W, which gives every constraint a margin of exactly one. Data in general position meet the condition as soon as
:math:`d \ge \max(T - 1, n)`, whatever is selected. The condition is sufficient, not necessary: narrower data are often feasible too.

Source: :cite:t:`tarzanagh2023transformers` on the feasibility of (Att-SVM); the matrix is this library's.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from .constraint_set import Constraints, check_constraints

ROUNDING = 1e-9  # largest error of a margin that is still called verified


@dataclass(frozen=True)
class Construction:
    r"""A matrix that meets every constraint with equality, or the reason why it cannot be written down.

    Attributes:
        W: :math:`d_c^\top W z_c = b_c` for all c, ``[d_x, d_z]``; zeros if the condition does not apply.
        margins: :math:`d_c^\top W z_c`, computed from W, ``[m]``.
        applies: whether the sufficient condition holds and the margins were verified. False says nothing about feasibility.
        reason: why it does not apply, naming an input; empty if it does.
    """

    W: Float[Tensor, "d_x d_z"]
    margins: Float[Tensor, " m"]
    applies: bool
    reason: str = ""


def construct(constraints: Constraints) -> Construction:
    r"""The matrix :math:`W = U^\top Q^+` with queries and the solutions :math:`u_i` as rows of Q and U: margins equal to the right-hand
    sides.

    Constraints with the same input and position share a query; so this covers every kind of attention, and equations as well.

    Args:
        constraints: a single problem, m constraints.
    Returns:
        W with its margins, or why the sufficient condition does not apply.
    Raises:
        TypeError: not :class:`Constraints`.
        ValueError: a batch of problems.

    Source: the condition is that of :cite:t:`tarzanagh2023transformers`.
    """
    check_constraints(constraints)
    if constraints.batch:
        raise ValueError(f"constraints must be a single problem, got a batch {list(constraints.batch)}; pick one with .problem(b)")
    difference, query, rhs = constraints.difference, constraints.query, constraints.rhs
    assert rhs is not None
    nothing = Construction(difference.new_zeros(difference.shape[-1], query.shape[-1]), query.new_zeros(len(constraints)), applies=False)
    if not len(constraints):
        return replace(nothing, applies=True)
    asked, group = torch.stack([constraints.input, constraints.position]).unique(dim=1, return_inverse=True)
    wanted, queries = [], []
    for g in range(asked.shape[1]):
        mine, name = (group == g).nonzero().squeeze(-1), f"input {int(asked[0, g])}"
        rows = difference[mine]
        if bool((query[mine] != query[mine[0]]).any()):
            return _because(nothing, f"{name} has several queries")
        if _rank(rows) < len(rows):
            return _because(nothing, f"the {len(rows)} differences of {name} are linearly dependent ({rows.shape[1]} dimensions)")
        wanted.append(torch.linalg.pinv(rows) @ rhs[mine])
        queries.append(query[mine[0]])
    asks = torch.stack(queries)
    if _rank(asks) < len(asks):
        return _because(nothing, f"the {len(asks)} queries are linearly dependent (rank {_rank(asks)} in {asks.shape[1]} dimensions)")
    W = (torch.linalg.pinv(asks) @ torch.stack(wanted)).mT
    margins = constraints.margins(W)
    error = float((margins - rhs).abs().max())
    if not error <= ROUNDING:
        return _because(nothing, f"the vectors are nearly dependent: margins are wrong by {error:.0e}")
    return Construction(W, margins, applies=True)


def _rank(rows: Tensor) -> int:
    """Rank of the rows scaled to length one, so that short rows count; a row of zeros counts as dependent."""
    unit = rows / rows.abs().amax(-1, keepdim=True).clamp(min=1e-300)
    return int(torch.linalg.matrix_rank(unit / unit.norm(dim=-1, keepdim=True).clamp(min=1e-300)))


def _because(nothing: Construction, reason: str) -> Construction:
    return replace(nothing, reason=f"{reason}, so the sufficient condition does not apply")
