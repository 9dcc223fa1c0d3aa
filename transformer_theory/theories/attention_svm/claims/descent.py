r"""Claims about descent on W: its limits from W = 0 and from other starts, and the selections that it keeps.

:mod:`~..problem` explains the notation. The theorems come from :cite:t:`tarzanagh2023transformers`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ....core.claims import Measured, but, claim
from ....core.errors import Infeasible
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import constraints
from ..constraint_set import Constraints
from ..dynamics import State, descent_direction, normalised_descent, random_start, start
from ..problem import Instance, cross_attention, equal_distractors, random_selection
from ..selection import (
    NEIGHBOUR_RTOL,
    SATURATION_ATOL,
    first_step_condition,
    neighbour_advantage,
    neighbour_gap,
)
from ..solution import MaxMargin
from ..solvers import frobenius_max_margin, frobenius_max_margins, nuclear_max_margin
from .common import limit_distance, raised_at_first

SETTING = Source("tarzanagh2023transformers", status="own")  # states the problem of the library's own claim
SOURCE = Source("tarzanagh2023transformers", status="not found")
THRESHOLD = 0.02  # largest 1 - cosine of the limit from W = 0
COSINE_ATOL = 1e-12  # smaller cosine distances are zero in float64
TIE_ATOL = 0.05  # smallest difference of scores at which a neighbour moves W enough within 1,500 steps
MAX_RADIUS = 60  # largest norm of a start; larger norms need more steps
STARTS = 10
RADIUS = (
    r"the start is short enough for the budget of steps: $10 \|W_a\|_F / \min(1, m) < 60$, where $1 + m$ is "
    "the smallest margin above those of the neighbours"
)


@dataclass(frozen=True)
class _Run:
    """Descent on one problem with equal distractors: its states half-way and at the end."""

    instance: Instance
    half: State
    end: State

    def distance(self, target: MaxMargin) -> Measured:
        """Returns 1 - cosine to the target."""
        before, after = (1 - float(cosine(state.W, target.W)) for state in (self.half, self.end))
        selected = float(1 - self.instance.attention(self.end.W).amax(-1).min()) < SATURATION_ATOL
        return limit_distance(
            before,
            after,
            THRESHOLD,
            done=selected,
            detail={"steps": self.end.step, "norm": float(self.end.W.norm())},
        )


def _optimal(instance: Instance) -> Constraints:
    """Returns the constraints of the best tokens."""
    return constraints(instance.tokens, instance.query, instance.optimal())


def _descend(generator: torch.Generator) -> _Run:
    """Descends from W = 0 on a random problem in which the first step raises the best tokens."""
    instance = raised_at_first(generator)
    half = normalised_descent(instance, start(instance), steps=700)
    return _Run(instance, half, normalised_descent(instance, half, steps=700))


@claim(
    "attention_svm/global-direction",
    measures="1 - cosine to the max-margin direction",
    at_most=THRESHOLD,
    source=SOURCE,
    assumptions=(
        "all tokens of each input but the optimal one have the same score",
        "the max-margin problem of the optimal tokens is feasible",
        "the first step already raises every optimal token above the others: without this the norm "
        "still diverges, but with several inputs the direction may be that of another locally optimal "
        "selection",
        "decreasing smooth loss (logistic); normalised steps, since with small ones the norm grows only "
        "like the logarithm of time",
    ),
    control=but(
        "The target is replaced by the max-margin solution of the same tokens in the nuclear norm.",
        solve=nuclear_max_margin,
    ),
)
def global_direction(
    generator: torch.Generator, *, solve: Callable[[Constraints], MaxMargin] = frobenius_max_margin
) -> Measured:
    r"""From $W = 0$, gradient descent diverges in norm and converges in direction to the max-margin solution
    of the optimal tokens in the Frobenius norm: $1 - \langle W(k), W_{mm}\rangle / (\|W(k)\|_F\|W_{mm}\|_F)
    \to 0$.
    """
    run = _descend(generator)
    return run.distance(solve(_optimal(run.instance)))


@claim(
    "attention_svm/first-step",
    measures="share of 100 problems in which the sign of the minimum and the selection after one step "
    "disagree",
    at_most=0.0,
    source=SETTING,
    assumptions=(
        "descent from W = 0",
        "all tokens of each input but the optimal one have the same score",
    ),
    control=but("Descent starts from a random W of norm 0.5, not from zero.", norm=0.5),
)
def first_step(generator: torch.Generator, *, norm: float = 0.0) -> Measured:
    r"""The first step from $W = 0$ selects every optimal token if and only if $\min_{i,t} (x_{i,opt} -
    x_{i,t})^\top (-\nabla L(0)) z_i > 0$, which is an assumption of `attention_svm/global-direction`.
    """
    # norm: norm of the start, a random W.
    instance = equal_distractors(inputs=2, tokens=4, dim=6, generator=generator, trials=100)
    W = torch.randn(100, 6, 6, generator=generator, dtype=torch.float64)
    first = normalised_descent(
        instance, start(instance, W=norm * W / W.norm(dim=(-2, -1), keepdim=True)), steps=1
    )
    selects = (instance.selected(first.W) == instance.optimal()).all(-1)
    positive = torch.tensor([first_step_condition(instance[trial]) > 0 for trial in range(100)])
    share = float(positive.double().mean())
    return Measured(
        float((positive != selects).double().mean()), {"problems": 100, "share with the condition": share}
    )


def _largest_neighbour_gaps(instance: Instance, select: Tensor, trials: list[int]) -> list[float]:
    """Returns, per feasible trial, the largest excess of a neighbour's score over the score of its selected
    token.
    """
    gaps = []
    for trial in trials:
        problem, selected = instance[trial], select[trial]
        pairs = constraints(problem.tokens, problem.query, selected)
        try:
            solution = frobenius_max_margin(pairs)
        except Infeasible:
            continue
        gaps.append(float(neighbour_gap(problem.scores, selected, pairs, solution).max()))
    return gaps


def _settled(instance: Instance, half: State, end: State) -> list[int]:
    """Returns the trials with saturated attention in which W and the steps both turn to the max-margin
    solution W_a of the selection.

    A test of W alone is not enough: near a selection that is not locally optimal, W approaches W_a for
    thousands of steps, until the gradient of the better neighbour has grown. In such runs the direction of
    the steps stops approaching W_a. In runs that keep the selection it approaches W_a faster than W does.
    """
    saturated = (instance.attention(end.W).amax(-1) > 1 - SATURATION_ATOL).all(-1)
    targets = frobenius_max_margins(constraints(instance.tokens, instance.query, instance.selected(end.W)))
    W_distance, step_distance = (  # half-way and at the end
        torch.stack([1 - cosine(V, targets.W, dim=(-2, -1)) for V in pair])
        for pair in ((half.W, end.W), [descent_direction(instance, state.W)[0] for state in (half, end)])
    )
    steps_turn = (step_distance[1] < 0.5 * step_distance[0]) | (step_distance[1] < COSINE_ATOL)
    turning = (W_distance[1] < 0.01) & (W_distance[1] < W_distance[0]) & steps_turn
    return (saturated & targets.solved & turning).nonzero().squeeze(-1).tolist()


def _random_tokens(generator: torch.Generator) -> Measured:
    instance = cross_attention(inputs=4, tokens=6, dim=8, generator=generator, trials=10)
    gaps = _largest_neighbour_gaps(instance, random_selection(instance, generator=generator), list(range(10)))
    share = sum(gap >= 0 for gap in gaps) / max(len(gaps), 1)
    return Measured(
        share, converged=bool(gaps), detail={"trials": len(gaps), "largest gap": max(gaps, default=math.nan)}
    )


@claim(
    "attention_svm/local-selection",
    measures="share of settled runs whose selection is not locally optimal",
    at_most=0.0,
    source=SOURCE,
    assumptions=(
        "general scores; normalised steps",
        "descent has settled: attention is saturated, W still turns towards the max-margin solution "
        "W_a, and the steps at least halve their distance to it over the second half of the run (near "
        "other selections W may approach W_a for a long time before leaving it)",
        "the selection of the settled run is feasible",
    ),
    control=but("The selected tokens are replaced by random ones.", _random_tokens),
)
def local_selection(generator: torch.Generator) -> Measured:
    r"""The tokens that gradient descent selects are locally optimal: each scores higher than its neighbours,
    $\gamma_{i,a_i} > \gamma_{i,t}$ for all $t$ with $(x_{i,a_i} - x_{i,t})^\top W_a z_i = 1$.
    """
    instance = cross_attention(inputs=4, tokens=6, dim=8, generator=generator, trials=10)
    half = normalised_descent(instance, random_start(instance, generator=generator), steps=800, rate=0.2)
    end = normalised_descent(instance, half, steps=800, rate=0.2)
    select, settled = instance.selected(end.W), _settled(instance, half, end)
    gaps = _largest_neighbour_gaps(instance, select, settled)
    share = sum(gap >= 0 for gap in gaps) / max(len(gaps), 1)
    return Measured(
        share, converged=bool(gaps), detail={"trials": len(gaps), "largest gap": max(gaps, default=math.nan)}
    )


@claim(
    "attention_svm/no-stationary-point",
    measures="largest cosine between the gradient and the max-margin solution over 600 random W",
    at_most=0.0,
    source=SOURCE,
    assumptions=(
        "decreasing smooth loss (logistic)",
        "all tokens of each input but the optimal one have the same score",
        "the max-margin problem of the optimal tokens is feasible",
    ),
    control=but("The other tokens have different scores.", draw=cross_attention),
)
def no_stationary_point(
    generator: torch.Generator, *, draw: Callable[..., Instance] = equal_distractors
) -> Measured:
    r"""There is no finite stationary point: $\langle \nabla L(W), W_{mm}\rangle < 0$ for every $W$."""
    instance = draw(inputs=4, tokens=6, dim=8, generator=generator)
    target = frobenius_max_margin(_optimal(instance)).W
    W = torch.randn(600, *target.shape, generator=generator, dtype=torch.float64)
    W = W * torch.logspace(-1, 2, 600, dtype=torch.float64)[:, None, None]
    copies = Instance(
        *(v.expand(600, *v.shape).contiguous() for v in (instance.tokens, instance.query, instance.scores))
    )
    M, _ = descent_direction(copies, W)  # parallel to the negative gradient, hence the minus sign below
    return Measured(float(-cosine(M, target.expand_as(W), dim=(-2, -1)).min()), {"matrices": 600})


def _doubling(instance: Instance, generator: torch.Generator) -> Measured:
    """Returns the norm of W after twice as many steps, relative to the norm before."""
    half = normalised_descent(instance, random_start(instance, generator=generator), steps=400)
    end = normalised_descent(instance, half, steps=400)
    before, after = float(half.W.norm()), float(end.W.norm())
    return Measured(after / before, {"norm half-way": before, "norm": after, "steps": end.step})


def _opposed(*, inputs: int, generator: torch.Generator) -> Instance:
    """Returns equal distractors with scores 1 and -1, so that half the attention on the best token gives a
    prediction of zero.
    """
    instance = equal_distractors(inputs=inputs, tokens=6, dim=8, generator=generator, gap=2.0)
    return Instance(instance.tokens, instance.query, instance.scores - 1)


def _contradicted(generator: torch.Generator) -> Measured:
    single = _opposed(inputs=4, generator=generator)
    twice = Instance(
        single.tokens.repeat(2, 1, 1), single.query.repeat(2, 1), torch.cat([single.scores, -single.scores])
    )
    return _doubling(twice, generator)


@claim(
    "attention_svm/norm-diverges",
    measures="norm of W after twice as many normalised steps, relative to that before",
    at_least=1.8,
    margin="the ratio is 2 for a norm that grows with the steps and 1 for one that converges",
    source=SOURCE,
    assumptions=(
        "decreasing smooth loss (logistic); normalised steps",
        "all tokens of each input but the optimal one have the same score",
        "the max-margin problem of the optimal tokens is feasible",
    ),
    control=but(
        "Every input comes twice, with opposite labels: no W suits both, and the loss has a finite minimum.",
        _contradicted,
    ),
)
def norm_diverges(generator: torch.Generator) -> Measured:
    """The norm of $W$ grows without bound: descent stops at no finite $W$."""
    return _doubling(_opposed(inputs=4, generator=generator), generator)


def _descend_from_selections(
    generator: torch.Generator, *, locally_optimal: bool, length: int
) -> tuple[Tensor, Tensor]:
    """Descends from starts near multiples of W_a, for random selections a without tied neighbours.

    The multiple is so large that at the start the neighbours of the selected tokens have at least about e^(10
    length) times the attention of the tokens with larger margins. A random matrix of a tenth of the norm is
    added. Longer starts take more steps.

    Args:
        locally_optimal: True: the selections are locally optimal but not the best tokens. False: they are not
            locally optimal.
        length: length of the starts, relative to the shortest suitable length.
        generator: random generator of the problems, the selections and the added matrices.
    Returns:
        Per start, whether descent still selects a at the end, and 1 - cosine of W to W_a.
    """
    instance = cross_attention(inputs=2, tokens=4, dim=3, generator=generator, trials=1000)
    select = random_selection(instance, generator=generator)
    pairs = constraints(instance.tokens, instance.query, select)
    solutions = frobenius_max_margins(pairs)
    # minus infinity for tokens that are not neighbours
    advantage = neighbour_advantage(instance.scores, select, pairs, solutions)
    is_neighbour = solutions.margins <= 1 + NEIGHBOUR_RTOL
    beaten, tied = (advantage >= 0).any(-1), (advantage.abs() < TIE_ATOL).any(-1)
    # At W = R W_a / ||W_a|| a token of margin m scores (m - 1) R / ||W_a|| lower than the neighbours. This R
    # makes it ten or more.
    radius = (
        10
        * solutions.norm
        / torch.where(is_neighbour, torch.inf, solutions.margins - 1).amin(-1).clamp(max=1)
    )
    suitable = ~beaten & (select != instance.optimal()).any(-1) if locally_optimal else beaten
    trials = (solutions.solved & suitable & ~tied & (radius < MAX_RADIUS)).nonzero().squeeze(-1)[:STARTS]
    problems, target = instance[trials], solutions.W[trials] / solutions.norm[trials, None, None]
    noise = torch.randn(target.shape, generator=generator, dtype=torch.float64)
    directions = target + 0.1 * noise / noise.norm(dim=(-2, -1), keepdim=True)
    first = start(problems, W=length * radius[trials, None, None] * directions)
    end = normalised_descent(problems, first, steps=1500 * length, rate=0.2)
    return (problems.selected(end.W) == select[trials]).all(-1), 1 - cosine(end.W, target, dim=(-2, -1))


@claim(
    "attention_svm/local-direction",
    measures="largest 1 - cosine to the solution of the selection at the end, over ten starts",
    at_most=2e-3,
    source=SOURCE,
    assumptions=(
        "general scores; a is feasible and not the best tokens; normalised steps",
        "the start is a multiple of $W_a$ at which attention on the tokens after the neighbours is at "
        "most about $e^{-20}$ of that on them, plus a random matrix of 0.1 of its norm",
        "no neighbour's score is within 0.05 of that of its selected token: the closer they are, the "
        "longer W must be at the start",
        RADIUS,
    ),
    control=but(
        "The selections are not locally optimal: some neighbour scores higher than the selected token.",
        locally_optimal=False,
    ),
)
def local_direction(generator: torch.Generator, *, locally_optimal: bool = True) -> Measured:
    """Let $a$ be locally optimal. Descent from a $W$ that is long enough and near enough to $W_a$ in
    direction converges in direction to $W_a$, though better tokens exist.
    """
    # Starts of length one may lie outside the cone from which descent converges to W_a.
    stayed, distance = _descend_from_selections(generator, locally_optimal=locally_optimal, length=2)
    return Measured(
        float(distance.max()), {"starts": len(stayed), "share that stays": float(stayed.double().mean())}
    )


@claim(
    "attention_svm/leaves-other-selections",
    measures="share of ten starts that keep the selection",
    at_most=0.0,
    source=SOURCE,
    assumptions=(
        "general scores; a is feasible and some neighbour of a selected token scores higher than it; "
        "normalised steps",
        r"the start is a multiple of $W_a$ plus a random matrix of 0.1 of its norm",
        "no neighbour's score is within 0.05 of that of its selected token: the closer they are, the "
        "longer descent takes to leave",
        RADIUS,
    ),
    control=but("The selections are locally optimal.", locally_optimal=True),
)
def leaves_other_selections(generator: torch.Generator, *, locally_optimal: bool = False) -> Measured:
    """Descent leaves every selection that is not locally optimal, even from a long $W$ in the direction of
    $W_a$.
    """
    stayed, distance = _descend_from_selections(generator, locally_optimal=locally_optimal, length=1)
    return Measured(float(stayed.double().mean()), {"starts": len(stayed), "nearest": float(distance.min())})


CLAIMS = (
    global_direction,
    first_step,
    local_selection,
    no_stationary_point,
    norm_diverges,
    local_direction,
    leaves_other_selections,
)
