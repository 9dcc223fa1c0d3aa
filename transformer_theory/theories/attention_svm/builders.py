r"""Which constraints say that attention selects given tokens: one builder a kind of attention.

Source: problem (Att-SVM) of :cite:t:`tarzanagh2023transformers`. Notation: docs/notation.md.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .constraint_set import Constraints, check_whole
from .problem import check_tokens


def constraints(
    tokens: Float[Tensor, "*trials n T d"], query: Float[Tensor, "*trials n d_z"], select: Int[Tensor, "*trials n"]
) -> Constraints:
    r"""The constraints :math:`(x_{i,a_i} - x_{i,t})^\top W z_i \ge 1` of a selection, n (T-1) of them.

    A token that equals the selected one gives the contradiction 0 >= 1, so the selection is infeasible: see :func:`distinct_constraints`.

    Args:
        tokens: x, ``[*trials, n, T, d]``, float64.
        query: z, ``[*trials, n, d_z]``.
        select: position a_i of the selected token of each input, ``[*trials, n]``.
    Returns:
        One constraint for each input and each token that is not selected, in this order; none at all for T = 1.
    Raises:
        ValueError: no input, a wrong shape or type, a value that is not finite, a position outside 0..T-1.

    Source: problem (Att-SVM) of :cite:t:`tarzanagh2023transformers`.
    """
    check_tokens(tokens, query)
    *trials, n, T, d = tokens.shape
    _check_positions(select, tokens.shape[:-2], T)
    other = torch.arange(T - 1)
    other = other + (other >= select[..., None])  # the positions that are not selected, [*trials, n, T - 1]
    at = (*trials, n * (T - 1))
    picked = tokens.gather(-2, select[..., None, None].expand(*select.shape, 1, d))
    difference = (picked - tokens.gather(-2, other[..., None].expand(*other.shape, d))).reshape(*at, d)
    asked = query[..., None, :].expand(*other.shape, query.shape[-1]).reshape(*at, query.shape[-1])
    inputs = torch.arange(n)[:, None].expand(other.shape).reshape(at)
    return Constraints(difference, asked, input=inputs, token=other.reshape(at))


def distinct_constraints(tokens: Float[Tensor, "n T d"], query: Float[Tensor, "n d_z"], select: Int[Tensor, " n"]) -> Constraints:
    """:func:`constraints` of a single problem without those of tokens that equal the selected one.

    Equal tokens get equal attention whatever W is, and averaging them changes nothing, so they count as one token. Real data need this:
    the blank corners of an image are equal.

    Raises:
        ValueError: as :func:`constraints`.
    """
    all_pairs = constraints(tokens, query, select)
    return all_pairs.take((all_pairs.difference != 0).any(-1).nonzero().squeeze(-1))


def _check_positions(select: Tensor, shape, T: int) -> None:
    check_whole(select, "select", shape)
    if int(select.min()) < 0 or int(select.max()) >= T:
        wrong = int(select.min()) if int(select.min()) < 0 else int(select.max())
        raise ValueError(f"select must lie in [0, {T}), got {wrong}; it holds the position of one token of each input")
