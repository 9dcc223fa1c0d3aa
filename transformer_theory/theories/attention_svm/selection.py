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

from .builders import check_positions, distinct_constraints
from .constraint_set import Constraints, came, check_constraints, check_real
from .dynamics import descent_direction
from .problem import Instance
from .solution import MaxMargin

SATURATED = 1e-3  # attention has settled on a token when all but this much is on it
MAJORITY = 0.5 + 1e-9  # a tie of two tokens, up to rounding, is no majority
TIMES_UNIFORM = 16.0  # odds of a selected token over those under uniform attention


def neighbours(pairs: Constraints, solution: MaxMargin, *, tol: float = 1e-6) -> list[tuple[int, int]]:
    """(input, token) of the tokens whose margin is one.

    Args:
        pairs, solution: constraints of a selection and their max-margin solution.
        tol: a margin up to 1 + tol counts as one.
    Returns:
        Their positions, in the order of the constraints.

    Source: :cite:t:`tarzanagh2023transformers`.
    """
    return [pairs.names(int(c)) for c in solution.support(tol=tol)]


def neighbour_gap(
    scores: Float[Tensor, "n T"], select: Int[Tensor, " n"], pairs: Constraints, solution: MaxMargin, *, tol: float = 1e-6
) -> Float[Tensor, " n"]:
    r""":math:`\max_{t\in\mathcal T_i} \gamma_{i,t} - \gamma_{i,a_i}` of each input; minus infinity where no token is a neighbour.

    Negative everywhere: the selection is locally optimal.

    Args:
        scores: :math:`\gamma`, ``[n, T]``.
        select: the selection, ``[n]``.
        pairs, solution: its constraints and their max-margin solution.
        tol: a margin up to 1 + tol counts as one.
    Returns:
        The gaps, ``[n]``.
    Raises:
        TypeError, ValueError: as :func:`locally_optimal`.

    Source: :cite:t:`tarzanagh2023transformers`.
    """
    check_real(scores, "scores", "[n, T]", 2)
    check_positions(select, scores.shape[:1], scores.shape[1])
    check_constraints(pairs, "pairs")
    if not isinstance(solution, MaxMargin):
        raise TypeError(f"solution must be a MaxMargin, got {came(solution)}; frobenius_max_margin(pairs) makes one")
    if len(solution.margins) != len(pairs):
        raise ValueError(f"solution must be that of the {len(pairs)} pairs, got one of {len(solution.margins)} constraints")
    for name, held, size in (("inputs", pairs.input, len(scores)), ("tokens", pairs.token, scores.shape[1])):
        if len(pairs) and int(held.max()) >= size:
            raise ValueError(f"pairs must be of the {size} {name} that scores {list(scores.shape)} have, got number {int(held.max())}")
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
    Returns:
        For each input, ``[n]``.
    Raises:
        TypeError: not a tensor, not constraints, or not a solution.
        ValueError: shapes that do not fit, positions outside 0..T-1, or pairs and a solution of other data.

    Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`.
    """
    return neighbour_gap(scores, select, pairs, solution, tol=tol) < 0


def enough(tokens: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    r"""The least share of its attention on one token with which an input counts as selecting it: the majority, at odds
    :math:`s/(1 - s)` of sixteen times those of uniform attention, :math:`1/(T - 1)`.

    With few tokens the majority says nothing: one of two has it always. The odds set the line where attention without any preference
    seldom comes: if the logits are independent normal numbers of variance one, this share of the inputs reaches the line, in 400,000
    draws each.

    ===============  =====  =====  =====  =====  =====  =====  =====
    tokens           2      3      5      8      12     17     32
    least share      .941   .889   .800   .696   .593   .500   .500
    reach it         .050   .025   .016   .014   .015   .017   .002
    reach a half     1.00   .706   .331   .126   .046   .017   .002
    ===============  =====  =====  =====  =====  =====  =====  =====

    Args:
        tokens: T, how many different tokens each input has, ``[n]``. A single one is always selected.
    Returns:
        The shares, ``[n]``.

    Source: the line is this library's.
    """
    return (TIMES_UNIFORM / (TIMES_UNIFORM + tokens.double() - 1)).clamp(min=MAJORITY)


def first_step_condition(instance: Instance) -> float:
    r"""Smallest :math:`(x_{i,opt} - x_{i,t})^\top (-\nabla L(0)) z_i` over inputs and other tokens, relative to the norms of its factors.

    Positive: the first step from W = 0 already raises every optimal token above the others of its input. If, besides, all other tokens of
    an input score the same, descent from W = 0 converges in direction to the max-margin solution of the optimal tokens. With unequal scores
    it may still turn to others, though rarely (22 of 4,692 saturated random runs). Tokens equal to the optimal one count as one with it;
    0 if all tokens of each input are equal, or all scores are.

    Args:
        instance: a single problem.
    Returns:
        A number in [-1, 1].

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
    defined.

    Args:
        scores: :math:`\\gamma`, ``[n, T]``.
        tokens: x, ``[n, T, d]``.
        tol: scores that differ by less than this share of the largest are equal.
    Returns:
        For each input, ``[n]``.

    Source: :cite:t:`tarzanagh2023transformers`.
    """
    best, at = scores.max(-1, keepdim=True)
    picked = tokens.gather(1, at[..., None].expand(-1, -1, tokens.shape[-1]))
    other = (tokens != picked).any(-1)
    return ((scores >= best - tol * best.abs()) & other).any(-1)
