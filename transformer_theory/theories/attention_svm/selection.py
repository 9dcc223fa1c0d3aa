r"""Conditions on the selections of descent: local optimality, and a first step that already points to the
best tokens.

Let W_a be the max-margin solution of a selection a. The *neighbours* of the selected token of input i are the
tokens whose margin is one,
:math:`\mathcal T_i = \{t \ne a_i : (x_{i,a_i} - x_{i,t})^\top W_a z_i = 1\}`. Far out along W_a, almost all
remaining attention is on them. The selection is *locally optimal* if every selected token scores higher than
its neighbours, :math:`\gamma_{i,a_i} > \gamma_{i,t}` for :math:`t \in \mathcal T_i`. A selection of optimal
tokens is locally optimal whenever these are unique. The definitions come from
:cite:t:`tarzanagh2023maxmargin` and :cite:t:`tarzanagh2023transformers`.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.validation import converted
from .builders import constraints, distinct_constraints
from .constraint_set import HINT, Constraints
from .dynamics import descent_direction
from .problem import Instance
from .solution import MaxMargin, MaxMargins
from .solvers import frobenius_max_margins
from .validation import check_one_problem, check_positions, check_real, check_type

SATURATION_ATOL = 1e-3  # attention is saturated if at most this much is not on one token
# smallest share that is a majority; a tie of two tokens stays below it in spite of rounding
MAJORITY = 0.5 + 1e-9
SELECTION_ODDS = 16.0  # odds of a selected token, as a multiple of those under uniform attention
NEIGHBOUR_RTOL = 1e-6  # margins up to one plus this count as one


def neighbours(
    pairs: Constraints, solution: MaxMargin, *, tol: float = NEIGHBOUR_RTOL
) -> list[tuple[int, int]]:
    """Returns (input, token) of every token whose margin is at most 1 + tol, in the order of the constraints
    ``pairs``.
    """
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
    r"""Returns :math:`\gamma_{i,t} - \gamma_{i,a_i}` per constraint if its token t is a neighbour, minus
    infinity if not.

    Args:
        scores: :math:`\gamma`, ``[n, T]``, or ``[B, n, T]`` for a batch.
        select: positions of the selected tokens, ``[n]`` or ``[B, n]``.
        pairs, solution: constraints of this selection and their max-margin solution, or batches of both.
        tol: a margin up to 1 + tol counts as one.
    Returns:
        ``[m]`` or ``[B, m]``; infinity for all constraints of a problem without a solution.
    Raises:
        TypeError: an argument is not of the type in the signature.
        ValueError: shapes do not fit, a position is outside 0..T-1, or ``pairs`` and ``solution`` belong to
            other data.
    """
    check_type("pairs", pairs, Constraints, hint=HINT)
    check_type("solution", solution, MaxMargin, MaxMargins, hint="frobenius_max_margin(pairs) makes one")
    check_real("scores", scores, "[*batch, n, T]", len(pairs.batch) + 2)
    *batch, n, T = scores.shape
    check_positions("select", select, (*batch, n), T)
    if solution.margins.shape != (*batch, len(pairs)):
        raise ValueError(
            f"solution must belong to the {len(pairs)} pairs, got margins of shape "
            f"{list(solution.margins.shape)}"
        )
    for name, index, size in (("inputs", pairs.input, n), ("tokens", pairs.token, T)):
        if index.numel() and int(index.max()) >= size:
            raise ValueError(
                f"pairs must refer to the {size} {name} of scores {list(scores.shape)}, got number "
                f"{int(index.max())}"
            )
    difference = scores.flatten(-2).gather(-1, pairs.input * T + pairs.token)
    difference = difference - scores.gather(-1, select[..., None]).squeeze(-1).gather(-1, pairs.input)
    advantage = difference.masked_fill(~solution.binding(tol=tol), -torch.inf)
    return (
        advantage
        if isinstance(solution, MaxMargin)
        else advantage.masked_fill(~solution.solved[:, None], torch.inf)
    )


@converted(int64=("select",))
def neighbour_gap(
    scores: Float[Tensor, "*trials n T"],
    select: Int[Tensor, "*trials n"],
    pairs: Constraints,
    solution: MaxMargin | MaxMargins,
    *,
    tol: float = NEIGHBOUR_RTOL,
) -> Float[Tensor, "*trials n"]:
    r"""Returns :math:`\max_{t\in\mathcal T_i} \gamma_{i,t} - \gamma_{i,a_i}` per input, minus infinity for
    inputs without neighbours.

    The selection is locally optimal if all gaps are negative.

    Args:
        scores, select, pairs, solution, tol: as for :func:`neighbour_advantage`.
    Returns:
        ``[n]`` or ``[B, n]``; infinity in a problem without a solution.
    Raises:
        TypeError, ValueError: as for :func:`neighbour_advantage`.
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
    """Returns, per input, whether the selected token scores strictly higher than all its neighbours.

    Args:
        scores, select, pairs, solution, tol: as for :func:`neighbour_advantage`.
    Returns:
        ``[n]`` or ``[B, n]``; False in a problem without a solution.
    Raises:
        TypeError, ValueError: as for :func:`neighbour_advantage`.
    """
    return neighbour_gap(scores, select, pairs, solution, tol=tol) < 0


@converted(float64=("scores",), int64=("select",))
def cone_width(
    scores: Float[Tensor, "n T"], select: Int[Tensor, " n"], pairs: Constraints, solution: MaxMargin
) -> tuple[float, Float[Tensor, "d d_z"]]:
    r"""Returns the width of the widest cone around W_a in which the local regularisation path tends to W_a,
    and where it is exceeded.

    Let :math:`m_c(W)` be the margin of constraint c. Call a token *bad* if it scores higher than the selected
    token of its input, *good* if not. Far out, the token with the smallest margin decides the sign of
    :math:`L(W) - L_a`. In a cone in which no bad token has the smallest margin, the loss exceeds :math:`L_a`
    and is least where the smallest margin of the good tokens is largest: at W_a, since its active constraints
    are good. A cone that contains some W with :math:`m_b(W) < m_c(W)` for a bad b and all good c has losses
    below :math:`L_a` there, which the path prefers. The width is therefore that of the projection of W_a onto
    the nearest set

    .. math:: \{W: m_b(W) \le m_c(W) \text{ for all good } c\}, \qquad b \text{ bad}.

    It is positive if and only if the selection is locally optimal. The derivation is this library's own.

    Args:
        scores, select, pairs, solution: as for :func:`neighbour_advantage`, for one problem.
    Returns:
        The largest :math:`\epsilon`, a bound on 1 - cosine to W_a, and the projection: the direction in which
        the cone first fails. Without bad tokens the width is infinite, and the projection is zero.
    Raises:
        TypeError, ValueError: as for :func:`neighbour_advantage`, or this is a batch.
    """
    from scipy.optimize import nnls

    check_type("solution", solution, MaxMargin, hint="frobenius_max_margin(pairs) makes one")
    advantage = neighbour_advantage(scores, select, pairs, solution, tol=torch.inf)
    F = (pairs.difference[:, :, None] * pairs.query[:, None, :]).flatten(1).numpy()
    W, bad = solution.W.flatten().numpy(), (advantage > 0).numpy()
    width, nearest = float("inf"), np.zeros_like(W)
    for b in np.flatnonzero(bad):
        # Moreau: W minus its projection is its projection onto the polar cone, which the differences of the
        # constraints generate.
        outward = (F[b] - F[~bad]).T
        weights, _ = nnls(outward, W)
        rest = outward @ weights
        # The cosine of W and its projection W - rest is |W - rest| / |W|, and |W|^2 = |W - rest|^2 +
        # |rest|^2.
        size = np.linalg.norm(W)
        excess = float(rest @ rest / (size * (size + np.linalg.norm(W - rest))))
        if excess < width:
            width, nearest = excess, W - rest
    return width, torch.from_numpy(nearest).reshape(solution.W.shape)


@converted(int64=("tokens",))
def attention_threshold(tokens: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    r"""Returns the smallest share s of the attention of each input for which its most attended token counts
    as selected.

    Two conditions must hold: s is a majority, and the odds :math:`s/(1 - s)` are at least 16 times the odds
    :math:`1/(T - 1)` under uniform attention. The majority alone means little for few tokens: one of two
    tokens always has it. Attention without any preference seldom reaches these odds: with independent normal
    logits of variance one, 5 % of inputs with two tokens do, and fewer with more tokens. The threshold is a
    choice of this library.

    Args:
        tokens: T, the number of distinct tokens of each input, ``[n]``; the token is always selected if T =
            1.
    Returns:
        The shares, ``[n]``.
    """
    return (SELECTION_ODDS / (SELECTION_ODDS + tokens.double() - 1)).clamp(min=MAJORITY)


def first_step_condition(instance: Instance) -> float:
    r"""Returns the minimum of :math:`(x_{i,opt} - x_{i,t})^\top (-\nabla L(0)) z_i` over i and t, relative to
    the norms of the factors.

    If it is positive, the first step from W = 0 raises every optimal token above the others of its input. If,
    in addition, all other tokens of each input score the same, descent from W = 0 converges in direction to
    the max-margin solution of the optimal tokens (:cite:t:`tarzanagh2023transformers`, global convergence
    under a good initial gradient). With unequal scores descent may still turn to other tokens. Tokens equal
    to the optimal one are left out. The minimum is 0 if all tokens, or all scores, of each input are equal.

    Args:
        instance: a single problem.
    Returns:
        A number in [-1, 1].
    Raises:
        ValueError: ``instance`` is a batch.
    """
    check_one_problem(instance.tokens)
    W = instance.tokens.new_zeros(instance.tokens.shape[-1], instance.query.shape[-1])
    M, _ = descent_direction(instance, W)
    pairs = distinct_constraints(instance.tokens, instance.query, instance.optimal())
    if not len(pairs):
        return 0.0
    size = pairs.difference.norm(dim=-1) * pairs.query.norm(dim=-1) * M.norm()
    return float((pairs.margins(M) / size.clamp(min=1e-300)).min())


@converted(float64=("scores", "tokens"))
def ties(
    scores: Float[Tensor, "n T"], tokens: Float[Tensor, "n T d"], *, tol: float = 1e-12
) -> Bool[Tensor, " n"]:
    """Returns, per input, whether the optimal token is ambiguous: a different token has the largest score
    too.

    Args:
        scores: :math:`\\gamma`, ``[n, T]``.
        tokens: x, ``[n, T, d]``.
        tol: largest difference of equal scores, as a share of the largest score.
    Returns:
        The mask of ambiguous inputs, ``[n]``.
    """
    best, position = scores.max(-1, keepdim=True)
    optimal = tokens.gather(1, position[..., None].expand(-1, -1, tokens.shape[-1]))
    other = (tokens != optimal).any(-1)
    return ((scores >= best - tol * best.abs()) & other).any(-1)


@dataclass(frozen=True)
class Selections:
    """Selections of k problems: selected tokens ``[k, n]``, max-margin solutions and starts ``[k, d, d]``,
    and widths ``[k]``.
    """

    instance: Instance
    select: Tensor
    W: Tensor
    start: Tensor
    width: Tensor

    def __getitem__(self, chosen: Tensor) -> "Selections":
        return Selections(
            self.instance[chosen], self.select[chosen], self.W[chosen], self.start[chosen], self.width[chosen]
        )


def all_selections(instance: Instance) -> tuple[Selections, Tensor, Tensor]:
    """Returns every selection of each problem of a batch, and two masks: those that some W makes, except the
    best one, which are locally optimal, and those which are not.
    """
    trials, n, T = instance.scores.shape
    every = torch.tensor(list(product(range(T), repeat=n)))
    many, select = instance[torch.arange(trials).repeat_interleave(len(every))], every.repeat(trials, 1)
    pairs = constraints(many.tokens, many.query, select)
    solutions = frobenius_max_margins(pairs)
    optimal = locally_optimal(many.scores, select, pairs, solutions).all(-1)
    usable = solutions.solved & (select != many.optimal()).any(-1)
    start, width = torch.zeros_like(solutions.W), torch.zeros(len(select), dtype=torch.float64)
    for k in (usable & optimal).nonzero().squeeze(-1).tolist():
        width[k], start[k] = cone_width(many.scores[k], select[k], pairs.problem(k), solutions[k])
    return Selections(many, select, solutions.W, start, width), usable & optimal, usable & ~optimal
