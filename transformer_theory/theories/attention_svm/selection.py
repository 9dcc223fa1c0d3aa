r"""Which selections descent can end in: local optimality, and the condition under which the first step already points to the best tokens.

Let W_a be the max-margin solution of a selection a. The *neighbours* of the selected token of input i are the tokens whose margin is one,
:math:`\mathcal T_i = \{t \ne a_i : (x_{i,a_i} - x_{i,t})^\top W_a z_i = 1\}`: far out along W_a, they alone still get a share of the
remaining attention. The selection is *locally optimal* if every selected token scores higher than its neighbours,
:math:`\gamma_{i,a_i} > \gamma_{i,t}` for :math:`t \in \mathcal T_i`; the optimal tokens are, whenever they are unique. These definitions
are those of :cite:t:`tarzanagh2023maxmargin` and :cite:t:`tarzanagh2023transformers`.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.validation import converted
from .builders import distinct_constraints
from .constraint_set import HINT, Constraints
from .dynamics import descent_direction
from .problem import Instance
from .solution import MaxMargin, MaxMargins
from .validation import check_positions, check_real, check_type

SATURATION_ATOL = 1e-3  # attention is saturated when one token has all but this much of it
MAJORITY = 0.5 + 1e-9  # of attention; a tie of two tokens, up to rounding, is below
SELECTION_ODDS = 16.0  # odds of a selected token, as a multiple of those under uniform attention
NEIGHBOUR_RTOL = 1e-6  # a margin up to one plus this counts as one


def neighbours(pairs: Constraints, solution: MaxMargin, *, tol: float = NEIGHBOUR_RTOL) -> list[tuple[int, int]]:
    """(input, token) of the tokens whose margin is at most 1 + tol, in the order of the constraints ``pairs`` of the solution."""
    return [pairs.names(int(c)) for c in solution.support(tol=tol)]


@converted(float64=("scores",), int64=("select",))
def neighbour_advantage(
    scores: Float[Tensor, "*trials n T"],
    select: Int[Tensor, "*trials n"],
    pairs: Constraints,
    solution: MaxMargin | MaxMargins,
    *,
    tol: float = NEIGHBOUR_RTOL,
) -> Float[Tensor, "*trials m"]:
    r""":math:`\gamma_{i,t} - \gamma_{i,a_i}` of each constraint whose token t is a neighbour, minus infinity for the others.

    Args:
        scores: :math:`\gamma`, ``[n, T]``, or ``[B, n, T]`` for a batch.
        select: the selection, ``[n]`` or ``[B, n]``.
        pairs, solution: its constraints and their max-margin solution, or those of a batch.
        tol: a margin up to 1 + tol counts as one.
    Returns:
        ``[m]`` or ``[B, m]``; infinity for all constraints of a problem without a solution.
    Raises:
        TypeError: no tensor or array, no constraints, or no solution.
        ValueError: shapes that do not fit, positions outside 0..T-1, or pairs and a solution of other data.
    """
    check_type("pairs", pairs, Constraints, hint=HINT)
    check_type("solution", solution, MaxMargin, MaxMargins, hint="frobenius_max_margin(pairs) makes one")
    check_real("scores", scores, "[*batch, n, T]", len(pairs.batch) + 2)
    *batch, n, T = scores.shape
    check_positions("select", select, (*batch, n), T)
    if solution.margins.shape != (*batch, len(pairs)):
        raise ValueError(f"solution must be that of the {len(pairs)} pairs, got one with margins {list(solution.margins.shape)}")
    for name, index, size in (("inputs", pairs.input, n), ("tokens", pairs.token, T)):
        if index.numel() and int(index.max()) >= size:
            raise ValueError(f"pairs must be of the {size} {name} that scores {list(scores.shape)} have, got number {int(index.max())}")
    difference = scores.flatten(-2).gather(-1, pairs.input * T + pairs.token)
    difference = difference - scores.gather(-1, select[..., None]).squeeze(-1).gather(-1, pairs.input)
    advantage = difference.masked_fill(~solution.binding(tol=tol), -torch.inf)
    return advantage if isinstance(solution, MaxMargin) else advantage.masked_fill(~solution.solved[:, None], torch.inf)


@converted(int64=("select",))
def neighbour_gap(
    scores: Float[Tensor, "*trials n T"],
    select: Int[Tensor, "*trials n"],
    pairs: Constraints,
    solution: MaxMargin | MaxMargins,
    *,
    tol: float = NEIGHBOUR_RTOL,
) -> Float[Tensor, "*trials n"]:
    r""":math:`\max_{t\in\mathcal T_i} \gamma_{i,t} - \gamma_{i,a_i}` of each input; minus infinity where no token is a neighbour.

    Negative everywhere: the selection is locally optimal.

    Args:
        scores, select, pairs, solution, tol: as for :func:`neighbour_advantage`.
    Returns:
        ``[n]`` or ``[B, n]``; infinity in a problem without a solution.
    Raises:
        TypeError, ValueError: as :func:`neighbour_advantage`.
    """
    advantage = neighbour_advantage(scores, select, pairs, solution, tol=tol)
    gap = torch.full(tuple(select.shape), -torch.inf, dtype=torch.float64)
    return gap.scatter_reduce(-1, pairs.input, advantage, "amax")


def locally_optimal(
    scores: Float[Tensor, "*trials n T"],
    select: Int[Tensor, "*trials n"],
    pairs: Constraints,
    solution: MaxMargin | MaxMargins,
    *,
    tol: float = NEIGHBOUR_RTOL,
) -> Bool[Tensor, "*trials n"]:
    """Whether the selected token of each input scores strictly higher than all its neighbours.

    Args:
        scores, select, pairs, solution, tol: as for :func:`neighbour_advantage`.
    Returns:
        ``[n]`` or ``[B, n]``; False in a problem without a solution.
    Raises:
        TypeError, ValueError: as :func:`neighbour_advantage`.
    """
    return neighbour_gap(scores, select, pairs, solution, tol=tol) < 0


@converted(int64=("tokens",))
def attention_threshold(tokens: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    r"""The least share of its attention on one token with which an input counts as selecting it.

    It is the majority, and odds :math:`s/(1 - s)` of 16 times those of uniform attention, :math:`1/(T - 1)`: with few tokens the majority
    means little (one of two tokens always has it), and attention without any preference seldom reaches these odds (with independent normal
    logits of variance one, in 5 % of inputs of two tokens, and in less of longer ones). The threshold is this library's.

    Args:
        tokens: T, the number of different tokens of each input, ``[n]``. A single one is always selected.
    Returns:
        The shares, ``[n]``.
    """
    return (SELECTION_ODDS / (SELECTION_ODDS + tokens.double() - 1)).clamp(min=MAJORITY)


def first_step_condition(instance: Instance) -> float:
    r"""Smallest :math:`(x_{i,opt} - x_{i,t})^\top (-\nabla L(0)) z_i` over inputs and other tokens, relative to the norms of its factors.

    Positive: the first step from W = 0 raises every optimal token above the others of its input. If, besides, all other tokens of an input
    score the same, descent from W = 0 converges in direction to the max-margin solution of the optimal tokens
    (:cite:t:`tarzanagh2023transformers`, global convergence under a good initial gradient). With unequal scores it may still turn to
    others. Tokens equal to the optimal one count as one with it; 0 if all tokens of each input are equal, or all scores are.

    Args:
        instance: a single problem.
    Returns:
        A number in [-1, 1].
    """
    W = instance.tokens.new_zeros(instance.tokens.shape[-1], instance.query.shape[-1])
    M, _ = descent_direction(instance, W)
    pairs = distinct_constraints(instance.tokens, instance.query, instance.optimal())
    if not len(pairs):
        return 0.0
    size = pairs.difference.norm(dim=-1) * pairs.query.norm(dim=-1) * M.norm()
    return float((pairs.margins(M) / size.clamp(min=1e-300)).min())


@converted(float64=("scores", "tokens"))
def ties(scores: Float[Tensor, "n T"], tokens: Float[Tensor, "n T d"], *, tol: float = 1e-12) -> Bool[Tensor, " n"]:
    """Whether the optimal token is undefined: another token of the input, not equal to it, has the largest score too.

    Args:
        scores: :math:`\\gamma`, ``[n, T]``.
        tokens: x, ``[n, T, d]``.
        tol: scores that differ by less than this share of the largest are equal.
    Returns:
        For each input, ``[n]``.
    """
    best, position = scores.max(-1, keepdim=True)
    optimal = tokens.gather(1, position[..., None].expand(-1, -1, tokens.shape[-1]))
    other = (tokens != optimal).any(-1)
    return ((scores >= best - tol * best.abs()) & other).any(-1)
