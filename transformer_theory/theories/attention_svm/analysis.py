r"""The theory on anyone's data: what it predicts for given tokens, queries and scores, what descent does, and whether the two agree.

    found = analyse(tokens, query, scores)        # [n, T, d], [n, d_z], [n, T]; or analyse_head(tokens, query, head, labels)
    found.feasible, found.agreement, found.cosine
    found.draw()

*Predicted*: the best token of each input, and the max-margin solution of these tokens. *Measured*: normalised descent from W = 0, the
tokens that it selects, and its cosine to both max-margin solutions, of the best tokens and of the selected ones. The theory promises the
first where the first step already points to the best tokens and their inputs' other tokens score the same, the second where descent
settles on tokens that score above all their neighbours.

Tokens and queries are divided by one number each, their root-mean-square norm, which changes the scale of W and nothing else. Equal tokens
of an input count as one.

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`tarzanagh2023maxmargin`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...errors import Infeasible, NotConverged
from ...linalg import cosine
from .alignment import alignment
from .builders import distinct_constraints
from .constraint_set import Constraints
from .dynamics import State, start, trajectory
from .feasibility import Construction, construct
from .problem import Instance, token_scores
from .selection import first_step_condition, neighbour_gap, ties
from .solution import MaxMargin
from .solvers import frobenius_max_margin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = (0, 10, 20, 40, 80, 160, 320, 640, 1000, 1500, 2000, 3000, 4000)
RATE = 0.25
SATURATED = 1e-3  # attention has selected when all but this much is on one token
NULL_DRAWS = 8
NULL_CONSTRAINTS = 2000
PICTURED = 6  # inputs whose attention is drawn


@dataclass(frozen=True)
class Selection:
    """One token of each input, and the max-margin solution that selects them.

    Attributes:
        tokens: their positions, ``[n]``.
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


def selection_of(instance: Instance, tokens: Int[Tensor, " n"]) -> Selection:
    """The tokens with their max-margin solution, or the reason why there is none: never an exception.

    Source: (Att-SVM) of :cite:t:`tarzanagh2023transformers`.
    """
    pairs = distinct_constraints(instance.tokens, instance.query, tokens)
    if not len(pairs):
        return Selection(tokens, pairs, None, "all tokens of each input are equal, so there is nothing to select")
    try:
        return Selection(tokens, pairs, frobenius_max_margin(pairs, tol=1e-9))
    except Infeasible as error:
        named = () if error.certificate is None else error.certificate.constraints
        return Selection(tokens, pairs, None, f"infeasible: {error}", named)
    except NotConverged as error:
        return Selection(tokens, pairs, None, f"not resolved: {error}")


@dataclass(frozen=True)
class Analysis:
    r"""What the theory says about given data, and what descent did.

    Attributes:
        instance: the training problem, tokens and queries of root-mean-square norm one.
        tied: inputs in which a different token scores as high as the best one, so that the best token is not defined (the first of them is
            taken), ``[n]``.
        best: the best tokens; the prediction.
        selected: the tokens that descent selected in the end.
        construction: a matrix that proves the best tokens feasible without optimisation, where its sufficient condition applies.
        first_step: smallest margin of the first step from W = 0 towards the best tokens, relative.
        states: where descent stood, the first at step 0.
        null: the cosine to the max-margin direction of their own selection that weights of this kind reach without training (see
            :mod:`.alignment`); None if it has none.
    """

    instance: Instance
    tied: Bool[Tensor, " n"]
    best: Selection
    selected: Selection
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
        """Inputs whose selected token scores as high as the best one."""
        picked = self.instance.scores.gather(1, self.selected.tokens[:, None]).squeeze(1)
        return picked >= self.instance.scores.amax(-1) - 1e-12

    @cached_property
    def attention(self) -> Float[Tensor, " n"]:
        """Attention on the selected token of each input, tokens equal to it included."""
        x, at = self.instance.tokens, self.selected.tokens
        same = (x == x.gather(1, at[:, None, None].expand(-1, 1, x.shape[-1]))).all(-1)
        return (self.instance.attention(self.W) * same).sum(-1)

    @property
    def saturated(self) -> bool:
        """Whether all but a thousandth of the attention is on the selected tokens."""
        return bool(self.attention.min() > 1 - SATURATED)

    @cached_property
    def locally_optimal(self) -> Bool[Tensor, " n"]:
        """Inputs whose selected token scores higher than all its neighbours; none if the selection has no max-margin solution."""
        solution = self.selected.solution
        if solution is None:
            return torch.zeros_like(self.tied)
        return neighbour_gap(self.instance.scores, self.selected.tokens, self.selected.constraints, solution) < 0

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
        """Cosine of every state to the max-margin direction of a selection; 0 where either has no direction."""
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
            "attention": self.instance.attention(self.W)[:PICTURED].numpy(),
            "best_token": self.best.tokens[:PICTURED].numpy(),
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

        return analysis(self.arrays(), self.best.reason or self.selected.reason)

    def __str__(self) -> str:
        n, end = len(self.tied), self.states[-1]
        null = "" if self.null is None else f" (untrained weights of this kind: {self.null:.3f})"
        lines = [
            f"{n} inputs of {self.instance.tokens.shape[1]} tokens; {int(self.tied.sum())} without a single best token",
            f"best tokens: {'feasible' if self.feasible else self.best.reason}",
            f"descent selects a best token in {int(self.agreement.sum())} inputs, a stable one in {int(self.locally_optimal.sum())}",
            f"attention on the selected tokens at step {end.step}: at least {float(self.attention.min()):.4f}",
            f"cosine of W to their max-margin direction: {self.selected.reason or f'{self.cosine:.4f}{null}'}",
        ]
        return "\n".join(lines)


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
        seed: of the null.
    Returns:
        What was found. A selection that is infeasible, tied scores and equal tokens are part of it, with the tokens named.
    Raises:
        ValueError: no input, a single token an input, nothing but zeros as queries, float32, or values that are not finite.

    Source: :cite:t:`tarzanagh2023transformers`.
    """
    given = Instance(tokens, query, scores)
    instance = Instance(unit_scale(given.tokens), unit_scale(given.query), given.scores)
    begin = start(instance)
    states = tuple(trajectory(instance, begin, at=at if at and at[0] == 0 else (0, *at), rate=rate))
    best = selection_of(instance, instance.optimal())
    end, (n, T) = states[-1].W, instance.scores.shape
    null = alignment(
        end,
        instance.tokens,
        instance.query,
        generator=torch.Generator().manual_seed(seed),
        constraints=min(n * (T - 1), NULL_CONSTRAINTS),
        draws=NULL_DRAWS,
    ).null
    return Analysis(
        instance=instance,
        tied=ties(instance.scores, instance.tokens),
        best=best,
        selected=selection_of(instance, instance.selected(end)),
        construction=construct(best.constraints),
        first_step=first_step_condition(instance),
        states=states,
        null=null,
    )


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
    Raises:
        ValueError: as :func:`analyse`, or labels other than -1 and 1.
    """
    if not bool((labels.abs() == 1).all()):
        raise ValueError("labels must be -1 or 1, one an input; write one class against the rest as such")
    return analyse(tokens, query, token_scores(tokens, head, labels), at=at, rate=rate, seed=seed)


def unit_scale(vectors: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """The vectors divided by their root-mean-square norm; zeros stay zeros.

    Source: textbook.
    """
    largest = vectors.abs().amax()
    if not float(largest):
        return vectors
    vectors = vectors / largest  # no overflow in the square
    return vectors / vectors.square().sum(-1).mean().sqrt()
