r"""Compares the prediction of the theory with the result of descent, for given tokens, queries and scores.

    result = analyse(tokens, query, scores)
        # [n, T, d], [n, d_z], [n, T]; or analyse_head(tokens, query, head, labels)
    result.feasible, result.agreement, result.cosine
    result.plot()

The prediction is the best token of each input, with the max-margin solution of these tokens. The measurement
runs normalised descent from W = 0. It records the selected tokens and the cosines of W to two max-margin
solutions, one for the best and one for the selected tokens. The theory
:cite:p:`tarzanagh2023transformers,tarzanagh2023maxmargin` predicts convergence to the first solution if the
first step already points to the best tokens and the other tokens of each input score the same. It predicts
convergence to the second if descent settles on tokens that score above all their neighbours.

Tokens are divided by their root-mean-square norm, and queries by theirs, which changes only the scale of W.
Equal tokens get equal attention for every W, so they count as one token with the mean of their scores. Only
inputs that select a token add constraints (:func:`~.selection.attention_threshold`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.errors import Infeasible, NotConverged
from ...core.measurement import Null
from ...core.statistics import RANGE_DRAWS
from ...core.threads import single_threaded
from ...core.validation import converted, integers
from ...maths.linalg import cosine
from .analysis_plot import plot_analysis
from .builders import distinct_constraints
from .constraint_set import Constraints
from .dynamics import State, is_stationary, start, trajectory
from .dynamics.gradient import merge_equal_tokens
from .feasibility import Construction, construct
from .in_networks import alignment
from .problem import Instance, token_logits, token_scores
from .selection import SATURATION_ATOL, attention_threshold, first_step_condition, neighbour_gap, ties
from .solution import MaxMargin
from .solvers import frobenius_max_margin
from .validation import check_one_problem, check_signs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = (0, 10, 20, 40, 80, 160, 320, 640, 1000, 1500, 2000, 3000, 4000)
RATE = 0.25
NULL_CONSTRAINTS = 2000
PLOTTED_INPUTS = 6  # inputs whose attention is plotted
SOLVER_TOL = 1e-9
SCORE_RTOL = 1e-12  # largest relative difference of two equal scores


@dataclass(frozen=True)
class Selection:
    """One token per input, and the max-margin solution that selects these tokens.

    Attributes:
        tokens: positions of the tokens, ``[n]``; the first position if several tokens are equal.
        constraints: constraints of the selection, without those for tokens equal to the selected one.
        solution: the max-margin solution; None if there is none.
        reason: the reason why there is no solution; empty otherwise.
        contradicting: pairs (input, token) of the constraints that contradict each other; empty unless the
            selection is infeasible.
    """

    tokens: Int[Tensor, " n"]
    constraints: Constraints
    solution: MaxMargin | None
    reason: str = ""
    contradicting: tuple[tuple[int, int], ...] = ()


def selection_of(
    instance: Instance, tokens: Int[Tensor, " n"], *, selecting: Bool[Tensor, " n"]
) -> Selection:
    """Returns the tokens with their max-margin solution, or with the reason why there is none. Never raises
    Infeasible or NotConverged.

    Args:
        instance: a single problem.
        tokens: one position per input, ``[n]``.
        selecting: mask of the inputs that select a token, ``[n]``; the others add no constraint.
    """
    pairs = distinct_constraints(instance.tokens, instance.query, tokens)
    if not len(pairs):
        return Selection(
            tokens, pairs, None, "all tokens of each input are equal, so there is nothing to select"
        )
    pairs = pairs.take(selecting[pairs.input].nonzero().squeeze(-1))
    if not len(pairs):
        return Selection(tokens, pairs, None, "no input selects a token")
    zero = (pairs.query == 0).all(-1).nonzero().squeeze(-1)
    if len(zero):
        inputs = pairs.input[zero].unique().tolist()
        subject = (
            f"the query of input {inputs[0]} is zero"
            if len(inputs) == 1
            else f"the queries of {_format_inputs(inputs)} are zero"
        )
        names = tuple(pairs.names(int(c)) for c in zero)
        return Selection(tokens, pairs, None, f"infeasible: {subject}: W cannot separate tokens there", names)
    try:
        return Selection(tokens, pairs, frobenius_max_margin(pairs, tol=SOLVER_TOL))
    except Infeasible as error:
        names = () if error.certificate is None else error.certificate.constraints
        return Selection(tokens, pairs, None, f"infeasible: {_diagnosis(error)}", names)
    except NotConverged as error:
        return Selection(tokens, pairs, None, f"not resolved: {_diagnosis(error)}")


def _diagnosis(error: Exception) -> str:
    """Returns the message without the advice after its semicolon: equal tokens are already dropped here, and
    tolerances are fixed.
    """
    return str(error).partition(";")[0]


@dataclass(frozen=True, repr=False)
class Analysis:
    r"""The prediction of the theory for given data, and the result of descent.

    Attributes:
        instance: training problem; tokens and queries have root-mean-square norm one, equal tokens the mean
            of their scores.
        tied: mask of the inputs in which a different token scores as high as the best one, ``[n]``. The best
            token is then not defined; the first one is used.
        duplicates: mask of the inputs with equal tokens, ``[n]``.
        zero_query: mask of the inputs whose query is zero, ``[n]``; their attention is uniform for every W.
        best: the predicted selection, which is the best token of each input.
        selected: tokens with the largest attention at the end, with the max-margin solution of the inputs in
            ``decided``.
        decided: mask of the inputs that select a token, ``[n]``: the largest attention on one token, with
            equal tokens counted once, is at least :func:`~.selection.attention_threshold`.
        construction: matrix that proves the best tokens feasible without optimisation, if its sufficient
            condition applies.
        first_step: smallest relative margin of the best tokens after the first step from W = 0
            (:func:`~.selection.first_step_condition`).
        states: states of descent; the first is the state at step 0.
        null: null distribution of the cosine, from the last W with random signs
            (:func:`~.in_networks.alignment`); None if there is none.
    """

    instance: Instance
    tied: Bool[Tensor, " n"]
    duplicates: Bool[Tensor, " n"]
    zero_query: Bool[Tensor, " n"]
    best: Selection
    selected: Selection
    decided: Bool[Tensor, " n"]
    construction: Construction
    first_step: float
    states: tuple[State, ...]
    null: Null | None

    @property
    def feasible(self) -> bool:
        """Whether one W selects the best token of every input; otherwise see ``best.reason``."""
        return self.best.solution is not None

    @property
    def W(self) -> Float[Tensor, "d d_z"]:
        """The weights after the last step."""
        return self.states[-1].W

    @cached_property
    def agreement(self) -> Bool[Tensor, " n"]:
        """Mask of the inputs that select a token with the highest score."""
        score, highest = (
            self.instance.scores.gather(1, self.selected.tokens[:, None]).squeeze(1),
            self.instance.scores.amax(-1),
        )
        return self.decided & (score >= highest - SCORE_RTOL * highest.abs())

    @cached_property
    def attention(self) -> Float[Tensor, " n"]:
        """Attention on the selected token of each input and the tokens equal to it."""
        x, selected = self.instance.tokens, self.selected.tokens
        same = (x == x.gather(1, selected[:, None, None].expand(-1, 1, x.shape[-1]))).all(-1)
        return (self.instance.attention(self.W) * same).sum(-1)

    @property
    def saturated(self) -> bool:
        """Whether every input has all but a thousandth of its attention on the selected token."""
        return bool(self.decided.all()) and bool(self.attention.min() > 1 - SATURATION_ATOL)

    @property
    def stationary(self) -> str:
        """Reason why W is zero after the last step; empty if W is not zero."""
        if bool(self.W.any()):
            return ""
        if not self.states[-1].step:
            return "W is zero: no step was made"
        scores = self.instance.scores[~self.zero_query]
        if bool((scores == scores[:, :1]).all()):
            return "W stayed at zero: no token is better than another"
        return "W stayed at zero: the gradients of the tokens cancel"

    @cached_property
    def locally_optimal(self) -> Bool[Tensor, " n"]:
        """Mask of the inputs whose selected token scores higher than all its neighbours; all False without a
        max-margin solution.
        """
        solution = self.selected.solution
        if solution is None:
            return torch.zeros_like(self.tied)
        return self.decided & (
            neighbour_gap(self.instance.scores, self.selected.tokens, self.selected.constraints, solution) < 0
        )

    @property
    def cosine(self) -> float:
        """Cosine of W to the max-margin direction of the selected tokens; 0 without a solution, or if W is
        zero.
        """
        return float(self.cosines(self.selected)[-1])

    @property
    def margin(self) -> float:
        """Smallest margin of W on the selected tokens, relative to the largest possible one; 0 without a
        solution, or if W is zero.
        """
        solution = self.selected.solution
        if solution is None or not bool(self.W.any()):
            return 0.0
        return float(self.selected.constraints.margins(self.W).min() / self.W.norm()) * solution.norm

    def cosines(self, selection: Selection) -> Float[Tensor, " states"]:
        """Computes the cosine of every state to the max-margin direction of a selection; 0 where either has
        no direction.

        Args:
            selection: :attr:`best`, :attr:`selected`, or another selection of tokens from these inputs.
        Returns:
            One number per state, in [-1, 1].
        """
        values = torch.zeros(len(self.states), dtype=torch.float64)
        for number, state in enumerate(self.states):
            if selection.solution is not None and bool(state.W.any()):
                values[number] = cosine(state.W, selection.solution.W)
        return values

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays of the figure; arrays without a value are left out."""
        nonzero = [number for number, state in enumerate(self.states) if bool(state.W.any())]
        arrays = {
            "steps": np.array([self.states[number].step for number in nonzero]),
            "norm": np.array([float(self.states[number].W.norm()) for number in nonzero]),
            "null": np.array(float("nan") if self.null is None else self.null.mean),
            "inputs": np.array(len(self.tied)),
            "attention": self.instance.attention(self.W)[:PLOTTED_INPUTS].numpy(),
            # -1 where the best token is not defined
            "best_token": self.best.tokens.masked_fill(self.tied, -1)[:PLOTTED_INPUTS].numpy(),
        }
        for name, selection in (("optimal", self.best), ("selected", self.selected)):
            if selection.solution is not None:
                arrays[f"cosine_{name}"] = self.cosines(selection)[nonzero].numpy()
        if self.selected.solution is not None and nonzero:
            size = self.selected.solution.norm / float(self.W.norm())
            arrays["margins"] = (size * self.selected.constraints.margins(self.W)).numpy()
            arrays["margins_max_margin"] = self.selected.solution.margins.numpy()
        return arrays

    def plot(self) -> "Figure":
        """Plots the cosines against steps, the margins of W and of the max-margin solution, and the
        attention.
        """
        return plot_analysis(
            self.arrays(), self.stationary or self.selected.reason, "" if self.saturated else self._unsettled
        )

    @property
    def _unsettled(self) -> str:
        return f"not settled (smallest attention {float(self.attention.min()):.2f})"

    def __repr__(self) -> str:
        n, T = self.instance.scores.shape
        counts = f"inputs={n}, tokens={T}, feasible={self.feasible}, agreement={int(self.agreement.sum())}"
        return f"Analysis({counts}, cosine={self.cosine:.4f}, saturated={self.saturated})"

    def __str__(self) -> str:
        n, T = self.instance.scores.shape
        lines = [f"{n} inputs of {T} tokens; {int(self.tied.sum())} without a single best token"]
        for mask, text in (
            (self.duplicates, "equal tokens, which count as one"),
            (self.zero_query, "zero query, so that nothing is selected"),
        ):
            if bool(mask.any()):
                lines.append(f"{text}: {_format_inputs(mask.nonzero().squeeze(-1).tolist())}")
        lines.append(f"best tokens: {'feasible' if self.feasible else self.best.reason}")
        if self.stationary:
            return "\n".join([*lines, self.stationary])
        null = "" if self.null is None else f" (chance level, random signs: {self.null.mean:.4f})"
        undecided = f", none in {int((~self.decided).sum())}" if not bool(self.decided.all()) else ""
        best, optimal = int(self.agreement.sum()), int(self.locally_optimal.sum())
        return "\n".join(
            [
                *lines,
                f"descent selects a best token in {best} inputs, a locally optimal one in "
                f"{optimal}{undecided}",
                f"smallest attention on a selected token at step {self.states[-1].step}: "
                f"{float(self.attention.min()):.4f}",
                "cosine of W to the max-margin direction of the selected tokens: "
                f"{self.selected.reason or f'{self.cosine:.4f}{null}'}",
                *(
                    []
                    if self.saturated
                    else [f"{self._unsettled}: more than {self.states[-1].step} steps may settle it"]
                ),
            ]
        )


@converted(float64=("tokens", "query", "scores"))
@single_threaded
def analyse(
    tokens: Float[Tensor, "n T d"],
    query: Float[Tensor, "n d_z"],
    scores: Float[Tensor, "n T"],
    *,
    steps: Sequence[int] = STEPS,
    rate: float = RATE,
    draws: int = RANGE_DRAWS,
    seed: int = 0,
) -> Analysis:
    r"""Predicts which tokens descent on W selects, runs descent, and compares the two.

    Args:
        tokens: x, ``[n, T, d]``, with T of at least two.
        query: z, ``[n, d_z]``.
        scores: :math:`\gamma_{i,t}`, the benefit of token t for the prediction of input i, label included,
            ``[n, T]``.
        steps: increasing numbers of steps after which W is stored; the last one ends the run.
        rate: length of a step.
        draws: number of null draws; 0: no null.
        seed: seed of the null draws.
    Returns:
        The comparison. It also reports an infeasible selection, tied scores and equal tokens, and names the
        tokens.
    Raises:
        TypeError: the data are not numeric, ``steps`` is not a sequence of integers, or the rate, ``draws``
            or seed is not a number.
        ValueError: there is no input or no step, inputs have one token, the problems form a batch, all
            queries are zero, a value is not finite, or the rate, ``draws`` or seed is out of range.
    """
    if not isinstance(steps, Iterable):
        raise TypeError(
            f"steps must be a sequence such as (10, 100, 1000), got {type(steps).__name__}; the last one "
            "ends the run"
        )
    steps = tuple(steps)
    integers(minimum=0, draws=draws, seed=seed)
    if not steps:
        raise ValueError(
            "steps must hold at least one number of steps, got an empty sequence; the last one ends the run"
        )
    check_one_problem(tokens)
    original = Instance(tokens, query, scores)
    instance, first = _merge_equal(
        Instance(unit_scale(original.tokens), unit_scale(original.query), original.scores)
    )
    initial = start(instance)
    # At a stationary start normalised descent would turn rounding errors into steps, so W is left at zero.
    steps = steps if steps[0] == 0 else (0, *steps)
    stationary = is_stationary(instance, initial.W)
    states = tuple(
        (State(initial.W, step) for step in steps)
        if stationary
        else trajectory(instance, initial, steps=steps, rate=rate)
    )
    best = selection_of(
        instance, instance.optimal(), selecting=torch.ones(len(instance.query), dtype=torch.bool)
    )
    # An input selects a token that holds enough attention at the end. Only the first of several equal tokens
    # enters this softmax.
    end, T = states[-1].W, instance.scores.shape[1]
    share, selected = (
        token_logits(instance.tokens, instance.query, end).masked_fill(~first, -torch.inf).softmax(-1).max(-1)
    )
    decided = share >= attention_threshold(first.sum(-1))
    null = None
    if draws and bool(decided.any()):
        limit, signs = (
            min(int(decided.sum()) * (T - 1), NULL_CONSTRAINTS),
            torch.Generator().manual_seed(seed),
        )
        inputs = (instance.tokens[decided], instance.query[decided])
        null = alignment(end, *inputs, generator=signs, constraints=limit, draws=draws).null
    return Analysis(
        instance=instance,
        tied=ties(instance.scores, instance.tokens),
        duplicates=~first.all(-1),
        zero_query=(instance.query == 0).all(-1),
        best=best,
        selected=selection_of(instance, selected, selecting=decided),
        decided=decided,
        construction=construct(best.constraints),
        first_step=first_step_condition(instance),
        states=states,
        null=null,
    )


def _merge_equal(instance: Instance) -> tuple[Instance, Tensor]:
    """Gives equal tokens their mean score; also returns the mask ``[n, T]`` of the tokens that equal no
    earlier token of their input.
    """
    same, offset = merge_equal_tokens(instance.tokens[None], None)
    if same is None or offset is None:
        return instance, torch.ones_like(instance.scores, dtype=torch.bool)
    # The mean is computed from differences of scores: if equal tokens have equal scores, these are zero and
    # the scores do not change.
    scores = instance.scores
    scores = scores + (same[0] * (scores[..., None, :] - scores[..., None])).sum(-1)
    first = offset[0] > -torch.inf
    # Every token gets the score of the first token equal to it, so that rounding cannot give equal tokens
    # different scores.
    representative = (same[0] > 0).to(torch.uint8).argmax(-1)
    return Instance(instance.tokens, instance.query, scores.gather(-1, representative)), first


def _format_inputs(inputs: list[int], limit: int = 8) -> str:
    """Formats the numbers of the inputs, at most ``limit`` of them."""
    numbers = ", ".join(map(str, inputs[:limit])) + (
        f", ... ({len(inputs)} in all)" if len(inputs) > limit else ""
    )
    return f"input{'s' * (len(inputs) > 1)} {numbers}"


@converted(float64=("tokens", "query", "head", "labels"))
def analyse_head(
    tokens: Float[Tensor, "n T d"],
    query: Float[Tensor, "n d_z"],
    head: Float[Tensor, " d"],
    labels: Float[Tensor, " n"],
    *,
    steps: Sequence[int] = STEPS,
    rate: float = RATE,
    draws: int = RANGE_DRAWS,
    seed: int = 0,
) -> Analysis:
    r"""Calls :func:`analyse` with the scores :math:`\gamma_{i,t} = Y_i v^\top x_{i,t}` of a linear head.

    Args:
        head: v, ``[d]``.
        labels: Y, ``[n]``, -1 or 1.
        tokens, query, steps, rate, draws, seed: as in :func:`analyse`.
    Raises:
        TypeError, ValueError: as for :func:`analyse`; or the head has a width other than d, or the labels are
            not -1 or 1, one per input.
    """
    check_one_problem(tokens)
    check_signs("labels", labels, tokens.shape[:1])
    return analyse(
        tokens, query, token_scores(tokens, head, labels), steps=steps, rate=rate, draws=draws, seed=seed
    )


def unit_scale(vectors: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Divides the vectors ``[..., d]`` by their root-mean-square norm; zeros stay zeros."""
    largest = vectors.abs().amax()
    if not float(largest):
        return vectors
    vectors = vectors / largest  # the squares then neither overflow nor underflow
    return vectors / vectors.square().sum(-1).mean().sqrt()
