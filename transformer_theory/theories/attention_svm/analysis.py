r"""The theory on anyone's data: what it predicts for given tokens, queries and scores, what descent does, and whether the two agree.

    found = analyse(tokens, query, scores)        # [n, T, d], [n, d_z], [n, T]; or analyse_head(tokens, query, head, labels)
    found.feasible, found.agreement, found.cosine
    found.draw()

*Predicted*: the best token of each input, and the max-margin solution of these tokens. *Measured*: normalised descent from W = 0, the
tokens that it selects, and its cosine to both max-margin solutions, of the best tokens and of the selected ones. The theory promises the
first where the first step already points to the best tokens and their inputs' other tokens score the same, the second where descent
settles on tokens that score above all their neighbours.

Tokens and queries are divided by one number each, their root-mean-square norm, which changes the scale of W and nothing else. Equal tokens
of an input get equal attention whatever W is, so they count as one, with the mean of their scores. Only inputs that *select* a token are
asked for a max-margin solution (:func:`~.selection.enough`).

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`.
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
from ...maths.linalg import cosine
from .alignment import alignment
from .builders import distinct_constraints
from .constraint_set import Constraints, came, check_tensor
from .dynamics import State, is_stationary, start, trajectory
from .dynamics.gradient import merged
from .dynamics.settings import check_steps
from .feasibility import Construction, construct
from .problem import Instance, check_signs, token_logits, token_scores
from .selection import SATURATED, enough, first_step_condition, neighbour_gap, ties
from .solution import MaxMargin
from .solvers import frobenius_max_margin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = (0, 10, 20, 40, 80, 160, 320, 640, 1000, 1500, 2000, 3000, 4000)
RATE = 0.25
NULL_DRAWS = 8
NULL_CONSTRAINTS = 2000
PICTURED = 6  # inputs whose attention is drawn


@dataclass(frozen=True)
class Selection:
    """One token of each input, and the max-margin solution that selects them.

    Attributes:
        tokens: their positions, ``[n]``; the first of equal ones.
        constraints: without those of tokens that equal the selected one.
        solution: None if there is none.
        reason: why there is none; empty if there is one.
        contradicting: (input, token) of the constraints that contradict each other; empty unless the selection is infeasible.
    """

    tokens: Int[Tensor, " n"]
    constraints: Constraints
    solution: MaxMargin | None
    reason: str = ""
    contradicting: tuple[tuple[int, int], ...] = ()


def selection_of(instance: Instance, tokens: Int[Tensor, " n"], *, among: Bool[Tensor, " n"]) -> Selection:
    """The tokens with their max-margin solution, or the reason why there is none: never an exception.

    Args:
        instance: a single problem.
        tokens: a position of each input, ``[n]``.
        among: the inputs that select, ``[n]``; the others set no constraint.
    Returns:
        The selection.

    Source: (Att-SVM) of :cite:t:`tarzanagh2023transformers`.
    """
    pairs = distinct_constraints(instance.tokens, instance.query, tokens)
    if not len(pairs):
        return Selection(tokens, pairs, None, "all tokens of each input are equal, so there is nothing to select")
    pairs = pairs.take(among[pairs.input].nonzero().squeeze(-1))
    if not len(pairs):
        return Selection(tokens, pairs, None, "no input selects a token")
    silent = (pairs.query == 0).all(-1).nonzero().squeeze(-1)
    if len(silent):
        which = pairs.input[silent].unique().tolist()
        told = f"the query of input {which[0]} is zero" if len(which) == 1 else f"the queries of {_listed(which)} are zero"
        named = tuple(pairs.names(int(c)) for c in silent)
        return Selection(tokens, pairs, None, f"infeasible: {told}: W cannot tell tokens apart there", named)
    try:
        return Selection(tokens, pairs, frobenius_max_margin(pairs, tol=1e-9))
    except Infeasible as error:
        named = () if error.certificate is None else error.certificate.constraints
        return Selection(tokens, pairs, None, f"infeasible: {_told(error)}", named)
    except NotConverged as error:
        return Selection(tokens, pairs, None, f"not resolved: {_told(error)}")


def _told(error: Exception) -> str:
    """What the solver found, without the advice after it: equal tokens are out, and tolerances set, here already."""
    return str(error).split(";")[0]


@dataclass(frozen=True, repr=False)
class Analysis:
    r"""What the theory says about given data, and what descent did.

    Attributes:
        instance: the training problem, tokens and queries of root-mean-square norm one, equal tokens with the mean of their scores.
        tied: inputs in which a different token scores as high as the best one, so that the best token is not defined (the first of them is
            taken), ``[n]``.
        duplicates: inputs with equal tokens, ``[n]``.
        silent: inputs whose query is zero, so that their attention is uniform whatever W is, ``[n]``.
        best: the best tokens; the prediction.
        selected: the tokens with the largest attention in the end, and the max-margin solution of the inputs in ``decided``.
        decided: inputs that select: one token holds :func:`~.selection.enough` attention, equal ones counted once, ``[n]``.
        construction: a matrix that proves the best tokens feasible without optimisation, where its sufficient condition applies.
        first_step: smallest margin of the first step from W = 0 towards the best tokens, relative.
        states: where descent stood, the first at step 0.
        null: the cosine to the max-margin direction of their own selection that weights of this kind reach without training (see
            :mod:`.alignment`); None if it has none.
    """

    instance: Instance
    tied: Bool[Tensor, " n"]
    duplicates: Bool[Tensor, " n"]
    silent: Bool[Tensor, " n"]
    best: Selection
    selected: Selection
    decided: Bool[Tensor, " n"]
    construction: Construction
    first_step: float
    states: tuple[State, ...]
    null: float | None

    @property
    def feasible(self) -> bool:
        """Whether one W selects the best token of every input; ``best.reason`` says why not."""
        return self.best.solution is not None

    @property
    def W(self) -> Float[Tensor, "d d_z"]:
        """The weights after the last step."""
        return self.states[-1].W

    @cached_property
    def agreement(self) -> Bool[Tensor, " n"]:
        """Inputs that select a token which scores as high as the best one."""
        picked, highest = self.instance.scores.gather(1, self.selected.tokens[:, None]).squeeze(1), self.instance.scores.amax(-1)
        return self.decided & (picked >= highest - 1e-12 * highest.abs())

    @cached_property
    def attention(self) -> Float[Tensor, " n"]:
        """Largest attention on one token of each input, tokens equal to it included."""
        x, at = self.instance.tokens, self.selected.tokens
        same = (x == x.gather(1, at[:, None, None].expand(-1, 1, x.shape[-1]))).all(-1)
        return (self.instance.attention(self.W) * same).sum(-1)

    @property
    def saturated(self) -> bool:
        """Whether every input has all but a thousandth of its attention on the token that it selects."""
        return bool(self.decided.all()) and bool(self.attention.min() > 1 - SATURATED)

    @property
    def stuck(self) -> str:
        """Why W is zero in the end; empty if it is not."""
        if bool(self.W.any()):
            return ""
        if not self.states[-1].step:
            return "W is zero: no step was made"
        scores = self.instance.scores[~self.silent]
        if bool((scores == scores[:, :1]).all()):
            return "W stayed at zero: no token is better than another"
        return "W stayed at zero: the pulls of the tokens cancel"

    @cached_property
    def locally_optimal(self) -> Bool[Tensor, " n"]:
        """Inputs that select a token which scores higher than all its neighbours; none if there is no max-margin solution."""
        solution = self.selected.solution
        if solution is None:
            return torch.zeros_like(self.tied)
        return self.decided & (neighbour_gap(self.instance.scores, self.selected.tokens, self.selected.constraints, solution) < 0)

    @property
    def cosine(self) -> float:
        """Cosine of W to the max-margin direction of the selected tokens; 0 if there is none, or W has not moved."""
        return float(self.cosines(self.selected)[-1])

    @property
    def margin(self) -> float:
        """Smallest margin of W on the selected tokens, as a share of the largest possible one; 0 where the cosine is."""
        solution = self.selected.solution
        if solution is None or not bool(self.W.any()):
            return 0.0
        return float(self.selected.constraints.margins(self.W).min() / self.W.norm()) * solution.norm

    def cosines(self, selection: Selection) -> Float[Tensor, " states"]:
        """Cosine of every state to the max-margin direction of a selection; 0 where either has no direction.

        Args:
            selection: :attr:`best`, :attr:`selected`, or another of these inputs.
        Returns:
            One number a state, in [-1, 1].
        """
        values = torch.zeros(len(self.states), dtype=torch.float64)
        for at, state in enumerate(self.states):
            if selection.solution is not None and bool(state.W.any()):
                values[at] = cosine(state.W, selection.solution.W)
        return values

    def arrays(self) -> dict[str, np.ndarray]:
        """What the picture is drawn from; no entry for what there is not."""
        moved = [at for at, state in enumerate(self.states) if bool(state.W.any())]
        found = {
            "steps": np.array([self.states[at].step for at in moved]),
            "norm": np.array([float(self.states[at].W.norm()) for at in moved]),
            "null": np.array(float("nan") if self.null is None else self.null),
            "inputs": np.array(len(self.tied)),
            "attention": self.instance.attention(self.W)[:PICTURED].numpy(),
            "best_token": self.best.tokens.masked_fill(self.tied, -1)[:PICTURED].numpy(),  # -1: there is no single one
        }
        for name, selection in (("optimal", self.best), ("selected", self.selected)):
            if selection.solution is not None:
                found[f"cosine_{name}"] = self.cosines(selection)[moved].numpy()
        if self.selected.solution is not None and moved:
            size = self.selected.solution.norm / float(self.W.norm())
            found["margins"] = (size * self.selected.constraints.margins(self.W)).numpy()
            found["margins_max_margin"] = self.selected.solution.margins.numpy()
        return found

    def draw(self) -> "Figure":
        """Cosines against steps, margins beside the best possible ones, and attention."""
        from .figures.analysis import analysis

        return analysis(self.arrays(), self.stuck or self.selected.reason, "" if self.saturated else self._unsettled)

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
        for mask, what in ((self.duplicates, "equal tokens, which count as one"), (self.silent, "query zero, so that nothing is selected")):
            if bool(mask.any()):
                lines.append(f"{what}: {_listed(mask.nonzero().squeeze(-1).tolist())}")
        lines.append(f"best tokens: {'feasible' if self.feasible else self.best.reason}")
        if self.stuck:
            return "\n".join([*lines, self.stuck])
        null = "" if self.null is None else f" (null, weights with random signs: {self.null:.4f})"
        none = f", none in {int((~self.decided).sum())}" if not bool(self.decided.all()) else ""
        agreed, optimal = int(self.agreement.sum()), int(self.locally_optimal.sum())
        return "\n".join(
            [
                *lines,
                f"descent selects a best token in {agreed} inputs, a locally optimal one in {optimal}{none}",
                f"largest attention of an input at step {self.states[-1].step}: at least {float(self.attention.min()):.4f}",
                f"cosine of W to the max-margin direction of the selected tokens: {self.selected.reason or f'{self.cosine:.4f}{null}'}",
                *([] if self.saturated else [f"{self._unsettled}: more steps than {self.states[-1].step} may settle it (at=)"]),
            ]
        )


def analyse(
    tokens: Float[Tensor, "n T d"],
    query: Float[Tensor, "n d_z"],
    scores: Float[Tensor, "n T"],
    *,
    at: Sequence[int] = STEPS,
    rate: float = RATE,
    seed: int = 0,
) -> Analysis:
    r"""Predicts where descent on W goes for these data, runs it, and compares.

    Args:
        tokens: x, ``[n, T, d]``, float64, at least two an input.
        query: z, ``[n, d_z]``.
        scores: :math:`\gamma_{i,t}`, how much token t helps the prediction of input i, label included, ``[n, T]``.
        at: the steps at which to look, increasing; the last ends the run.
        rate: length of a step.
        seed: of the null, from 0 on.
    Returns:
        What was found. A selection that is infeasible, tied scores and equal tokens are part of it, with the tokens named.
    Raises:
        TypeError: not a tensor, steps that are no sequence of numbers, or a rate or seed that is no number.
        ValueError: no input, one token an input, nothing but zeros as queries, float32, values that are not finite, no step, or a rate or
            seed out of range.

    Source: :cite:t:`tarzanagh2023transformers`.
    """
    if not isinstance(at, Iterable):
        raise TypeError(f"at must be a sequence of steps such as (10, 100, 1000), got {came(at)}; the last one ends the run")
    at = tuple(at)
    check_steps(seed, "seed")
    if not at:
        raise ValueError("at must hold at least one step at which to look, got none; the last one ends the run")
    given = Instance(tokens, query, scores)
    instance, first = _merge(Instance(unit_scale(given.tokens), unit_scale(given.query), given.scores))
    begin = start(instance)
    times, stays = at if at[0] == 0 else (0, *at), is_stationary(instance, begin.W)
    states = tuple((State(begin.W, step) for step in times) if stays else trajectory(instance, begin, at=times, rate=rate))
    best = selection_of(instance, instance.optimal(), among=torch.ones(len(instance.query), dtype=torch.bool))
    end, T = states[-1].W, instance.scores.shape[1]
    share, top = token_logits(instance.tokens, instance.query, end).masked_fill(~first, -torch.inf).softmax(-1).max(-1)
    decided = share >= enough(first.sum(-1))
    null = None
    if bool(decided.any()):
        null = alignment(
            end,
            instance.tokens[decided],
            instance.query[decided],
            generator=torch.Generator().manual_seed(seed),
            constraints=min(int(decided.sum()) * (T - 1), NULL_CONSTRAINTS),
            draws=NULL_DRAWS,
        ).null
    return Analysis(
        instance=instance,
        tied=ties(instance.scores, instance.tokens),
        duplicates=~first.all(-1),
        silent=(instance.query == 0).all(-1),
        best=best,
        selected=selection_of(instance, top, among=decided),
        decided=decided,
        construction=construct(best.constraints),
        first_step=first_step_condition(instance),
        states=states,
        null=null,
    )


def _merge(instance: Instance) -> tuple[Instance, Tensor]:
    """Equal tokens with the mean of their scores, as descent takes them; and which tokens equal none before them, ``[n, T]``."""
    same, offset = merged(instance.tokens[None], None)
    if same is None or offset is None:
        return instance, torch.ones_like(instance.scores, dtype=torch.bool)
    scores = instance.scores  # by differences, which leaves equal scores as they are
    scores = scores + (same[0] * (scores[..., None, :] - scores[..., None])).sum(-1)
    first = offset[0] > -torch.inf
    at = (same[0] > 0).to(torch.uint8).argmax(-1)  # rounding must not tell equal tokens apart
    return Instance(instance.tokens, instance.query, scores.gather(-1, at)), first


def _listed(inputs: list[int], most: int = 8) -> str:
    """Inputs by number, not more than ``most`` of them."""
    shown = ", ".join(map(str, inputs[:most])) + (f", ... ({len(inputs)} in all)" if len(inputs) > most else "")
    return f"input{'s' * (len(inputs) > 1)} {shown}"


def analyse_head(
    tokens: Float[Tensor, "n T d"],
    query: Float[Tensor, "n d_z"],
    head: Float[Tensor, " d"],
    labels: Float[Tensor, " n"],
    *,
    at: Sequence[int] = STEPS,
    rate: float = RATE,
    seed: int = 0,
) -> Analysis:
    r""":func:`analyse` with the scores :math:`\gamma_{i,t} = Y_i v^\top x_{i,t}` of a linear head.

    Args:
        head: v, ``[d]``, float64.
        labels: Y, ``[n]``, -1 or 1, float64.
        tokens, query, at, rate, seed: as :func:`analyse`.
    Returns:
        As :func:`analyse`.
    Raises:
        TypeError, ValueError: as :func:`analyse`, a head of another width, or labels other than -1 and 1, one an input.
    """
    check_tensor(tokens, "tokens", "[n, T, d]")
    check_signs(labels, "labels", tokens.shape[:1])
    return analyse(tokens, query, token_scores(tokens, head, labels), at=at, rate=rate, seed=seed)


def unit_scale(vectors: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """The vectors divided by their root-mean-square norm; zeros stay zeros.

    Args:
        vectors: finite, ``[..., d]``.
    Returns:
        The same shape; computed without overflow or underflow of squares.

    Source: textbook.
    """
    largest = vectors.abs().amax()
    if not float(largest):
        return vectors
    vectors = vectors / largest  # no overflow in the square
    return vectors / vectors.square().sum(-1).mean().sqrt()
