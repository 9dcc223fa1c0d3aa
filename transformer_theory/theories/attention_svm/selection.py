r"""Which selections descent can end in: local optimality, and the condition under which the first step already points to the best tokens.

Let W_a be the max-margin solution of a selection a. The *neighbours* of the selected token of input i are the tokens whose margin is one,
:math:`\mathcal T_i = \{t \ne a_i : (x_{i,a_i} - x_{i,t})^\top W_a z_i = 1\}`: far out along W_a, they alone still get a share of the
remaining attention. The selection is *locally optimal* if every selected token scores higher than its neighbours,
:math:`\gamma_{i,a_i} > \gamma_{i,t}` for :math:`t \in \mathcal T_i`; the optimal tokens are, whenever they are unique.

Source: :cite:t:`tarzanagh2023maxmargin` and :cite:t:`tarzanagh2023transformers` (globally and locally optimal tokens).
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .builders import distinct_constraints
from .constraint_set import Constraints
from .dynamics import descent_direction
from .problem import Instance
from .solution import MaxMargin

SATURATED = 1e-3  # attention has selected when all but this much is on one token


def neighbours(pairs: Constraints, solution: MaxMargin, *, tol: float = 1e-6) -> list[tuple[int, int]]:
    """(input, token) of the tokens whose margin is one, within ``tol``."""
    return [pairs.names(int(c)) for c in solution.support(tol=tol)]


def neighbour_gap(
    scores: Float[Tensor, "n T"], select: Int[Tensor, " n"], pairs: Constraints, solution: MaxMargin, *, tol: float = 1e-6
) -> Float[Tensor, " n"]:
    r""":math:`\max_{t\in\mathcal T_i} \gamma_{i,t} - \gamma_{i,a_i}` of each input; minus infinity where no token is a neighbour.

    Negative everywhere: the selection is locally optimal.
    """
    gap = torch.full((len(scores),), -torch.inf, dtype=scores.dtype)
    for i, t in neighbours(pairs, solution, tol=tol):
        gap[i] = max(float(gap[i]), float(scores[i, t] - scores[i, select[i]]))
    return gap


def locally_optimal(
    scores: Float[Tensor, "n T"], select: Int[Tensor, " n"], pairs: Constraints, solution: MaxMargin, *, tol: float = 1e-6
) -> Bool[Tensor, " n"]:
    """Whether the selected token of each input scores strictly higher than all its neighbours.

    Args:
        scores: :math:`\\gamma`, ``[n, T]``.
        select: the selection, ``[n]``.
        pairs, solution: its constraints and their max-margin solution.
        tol: a margin up to 1 + tol counts as one.
    """
    return neighbour_gap(scores, select, pairs, solution, tol=tol) < 0


def first_step_condition(instance: Instance) -> float:
    r"""Smallest :math:`(x_{i,opt} - x_{i,t})^\top (-\nabla L(0)) z_i` over inputs and other tokens, relative to the norms of its factors.

    Positive: the first step from W = 0 already raises every optimal token above the others of its input. If, besides, all other tokens of
    an input score the same, descent from W = 0 converges in direction to the max-margin solution of the optimal tokens. With unequal scores
    it may still turn to others, though rarely (22 of 4,692 saturated random runs). Tokens equal to the optimal one count as one with it;
    0 if all tokens of each input are equal, or all scores are.

    Source: a sufficient condition of :cite:t:`tarzanagh2023transformers` (global convergence under a good initial gradient).
    """
    W = instance.tokens.new_zeros(instance.tokens.shape[-1], instance.query.shape[-1])
    M, _ = descent_direction(instance, W)
    pairs = distinct_constraints(instance.tokens, instance.query, instance.optimal())
    if not len(pairs):
        return 0.0
    size = pairs.difference.norm(dim=-1) * pairs.query.norm(dim=-1) * M.norm()
    return float((pairs.margins(M) / size.clamp(min=1e-300)).min())


def ties(scores: Float[Tensor, "n T"], tokens: Float[Tensor, "n T d"], *, tol: float = 1e-12) -> Bool[Tensor, " n"]:
    """Whether another token of the input, not equal to the optimal one, has the largest score too: then the optimal token is not
    defined."""
    best, at = scores.max(-1, keepdim=True)
    picked = tokens.gather(1, at[..., None].expand(-1, -1, tokens.shape[-1]))
    other = (tokens != picked).any(-1)
    return ((scores >= best - tol * best.abs()) & other).any(-1)
