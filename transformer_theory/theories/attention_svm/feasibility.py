r"""A sufficient condition for feasibility, with a matrix that meets all constraints with equality,
constructed without optimisation.

Let the rows of :math:`D_i` be the differences (selected token minus each other token) of input i. If the rows
of every :math:`D_i` and the queries :math:`z_1, \dots, z_n` are linearly independent, then

.. math:: D_i u_i = \mathbf 1, \qquad W z_i = u_i \quad (i = 1, \dots, n)

has a solution W, which gives every constraint a margin of exactly one. Data in general position meet the
condition for any selection if :math:`d \ge \max(T - 1, n)`. The condition
(:cite:t:`tarzanagh2023transformers`) is not necessary: data in fewer dimensions are often feasible too. This
library adds the construction of the matrix.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.threads import single_threaded
from .constraint_set import HINT, Constraints
from .validation import check_type

MARGIN_ATOL = 1e-9  # largest error of a margin of a verified construction


@dataclass(frozen=True)
class Construction:
    r"""A matrix that meets every constraint with equality, or the reason why it cannot be constructed.

    Attributes:
        W: matrix with :math:`d_c^\top W z_c = b_c` for all constraints c, ``[d_x, d_z]``; zeros if the
            condition does not apply.
        margins: :math:`d_c^\top W z_c`, computed from W, ``[m]``.
        applies: whether the sufficient condition holds and the margins are correct. False does not exclude
            feasibility.
        reason: the reason why the condition does not apply; empty if it applies.
    """

    W: Float[Tensor, "d_x d_z"]
    margins: Float[Tensor, " m"]
    applies: bool
    reason: str = ""


@single_threaded
def construct(constraints: Constraints) -> Construction:
    r"""Constructs the matrix :math:`W = (Q^+ U)^\top`; the rows of Q are the queries, the rows of U the
    solutions :math:`u_i`.

    Constraints with the same input and position share a query. The construction covers every kind of
    attention, and equations as well.

    Args:
        constraints: a single problem, m constraints.
    Returns:
        W with its margins, which equal the right-hand sides; or the reason why the sufficient condition does
        not apply.
    Raises:
        TypeError: ``constraints`` is not :class:`Constraints`.
        ValueError: ``constraints`` is a batch of problems.
    """
    check_type("constraints", constraints, Constraints, hint=HINT)
    if constraints.batch:
        raise ValueError(
            f"constraints must be a single problem, got a batch {list(constraints.batch)}; select one with "
            "problem(b)"
        )
    difference, query, rhs = constraints.difference, constraints.query, constraints.rhs
    zeros = difference.new_zeros(difference.shape[-1], query.shape[-1]), query.new_zeros(len(constraints))

    def inapplicable(reason: str) -> Construction:
        return Construction(
            *zeros, applies=False, reason=f"{reason}, so the sufficient condition does not apply"
        )

    if not len(constraints):
        return Construction(*zeros, applies=True)
    # One group of constraints per query; ``names`` holds its input and position, ``[2, groups]``. The image u
    # = W z of the query is the shortest solution of D u = b.
    names, group = torch.stack([constraints.input, constraints.position]).unique(dim=1, return_inverse=True)
    images, queries = [], []
    for g in range(names.shape[1]):
        members, name = (group == g).nonzero().squeeze(-1), f"input {int(names[0, g])}"
        rows = difference[members]
        if bool((query[members] != query[members[0]]).any()):
            return inapplicable(f"{name} has several queries")
        if _rank(rows) < len(rows):
            return inapplicable(
                f"the {len(rows)} differences of {name} are linearly dependent ({rows.shape[1]} dimensions)"
            )
        images.append(torch.linalg.pinv(rows) @ rhs[members])
        queries.append(query[members[0]])
    Q = torch.stack(queries)
    if _rank(Q) < len(Q):
        return inapplicable(
            f"the {len(Q)} queries are linearly dependent (rank {_rank(Q)} in {Q.shape[1]} dimensions)"
        )
    # A linear map can send linearly independent queries to any images. The ranks above were decided in
    # float64, so the margins are checked.
    W = (torch.linalg.pinv(Q) @ torch.stack(images)).mT
    margins = constraints.margins(W)
    error = float((margins - rhs).abs().max())
    if not error <= MARGIN_ATOL:
        return inapplicable(f"the vectors are nearly dependent: margins are wrong by {error:.0e}")
    return Construction(W, margins, applies=True)


def _rank(rows: Tensor) -> int:
    """Returns the rank of the rows after scaling each to length one, so that short rows count. A row of zeros
    counts as dependent.
    """
    # the squares in the norm cannot underflow then
    unit = rows / rows.abs().amax(-1, keepdim=True).clamp(min=1e-300)
    return int(torch.linalg.matrix_rank(unit / unit.norm(dim=-1, keepdim=True).clamp(min=1e-300)))
