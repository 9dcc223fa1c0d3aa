r"""The cosine between W and the nuclear max-margin solution of the tokens that W selects, with the nulls of
the ladder.

For :math:`W = K Q^\top` the theory names the solution of smallest nuclear norm
:cite:p:`tarzanagh2023transformers`. The null by sign flips is that of :mod:`~..in_networks`: it replaces W by
:math:`Q W Q^\top`, and the solution by that of the selection of the flipped W.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ....core.errors import Infeasible, NotConverged
from ....core.measurement import Null
from ....core.threads import single_threaded
from ....maths.linalg import cosine
from ..builders import distinct_constraints
from ..in_networks import NULL_KIND, ZERO, Alignment
from ..problem import token_logits
from ..sign_flips import SignFlips
from ..solution import MaxMargin
from ..solvers import nuclear_max_margin

NUCLEAR_TOL = 1e-6


def nuclear_solution(
    tokens: Float[Tensor, "n T d"], query: Float[Tensor, "n d_z"], selected: Int[Tensor, " n"]
) -> MaxMargin:
    """Returns the nuclear max-margin solution of a selection, over all inputs; equal tokens count as one.

    Raises:
        Infeasible, NotConverged: there is no verified solution.
    """
    return nuclear_max_margin(distinct_constraints(tokens, query, selected), tol=NUCLEAR_TOL)


@single_threaded
def nuclear_alignment(
    W: Float[Tensor, "d d"],
    tokens: Float[Tensor, "n T d"],
    query: Float[Tensor, "n d"],
    *,
    generator: torch.Generator,
    draws: int,
) -> Alignment:
    """Compares W with the nuclear max-margin solution of its own selection, over the constraints of all
    inputs.

    Args:
        W: weights, ``[d, d]``.
        tokens: ``[n, T, d]``.
        query: one query per input, which is one of its tokens, ``[n, d]``; flips along the tokens' axes then
            apply to the queries as well.
        generator: random generator of the flips.
        draws: number of null draws.
    Returns:
        The cosine with its null, and the smallest margin relative to the largest one of a matrix of the same
        nuclear norm; without a solution the reason. Draws without a solution are missing.
    """
    if not bool(W.any()):
        return Alignment(None, None, None, 0, ZERO)
    flips, draw_of = SignFlips.draw(tokens, None, draws, generator).different()
    # A flip of the two sides of W by one reflection Q, per draw.
    reflections = (flips.left * flips.signs[:, None]) @ flips.left.mT
    (cosine_of_W, margin, count, reason), *others = (
        _one(Q @ W @ Q, tokens, query) for Q in (torch.eye(len(W)).double(), *reflections)
    )
    if cosine_of_W is None:
        return Alignment(None, None, None, count, reason)
    values = [others[draw][0] for draw in draw_of]
    null = Null(NULL_KIND, tuple(value for value in values if value is not None))
    return Alignment(cosine_of_W, null if null.draws else None, margin, count, queries=len(query))


def _one(W: Tensor, tokens: Tensor, query: Tensor) -> tuple[float | None, float | None, int, str]:
    """Returns the cosine and relative margin of W, the number of its constraints, and the reason if there is
    no solution.
    """
    selected = token_logits(tokens, query, W).argmax(-1)
    pairs = distinct_constraints(tokens, query, selected)
    try:
        solution = nuclear_max_margin(pairs, tol=NUCLEAR_TOL)
    except (Infeasible, NotConverged) as error:
        return None, None, len(pairs), str(error)
    smallest = float(((pairs.difference @ W) * pairs.query).sum(-1).min())
    # With nuclear norm |W| the largest possible smallest margin is |W| / |W_mm|.
    share = smallest * solution.norm / float(torch.linalg.matrix_norm(W, ord="nuc"))
    return float(cosine(W, solution.W)), share, len(pairs), ""
