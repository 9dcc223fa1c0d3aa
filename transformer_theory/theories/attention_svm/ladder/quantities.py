r"""What every rung measures of an attention head: its direction, its length, and the tokens that it selects.

A head with weights W selects, in input i, the token :math:`a_i` with the largest score :math:`x_{i,t}^\top W
z_i`. Let :math:`W_a` be the max-margin solution of this selection, over *all* inputs on which the head was
trained: in the Frobenius norm if descent is on W, in the nuclear norm if it is on factors :math:`W = K
Q^\top`. In the limit of long descent W has the direction of :math:`W_a`; for AdamW the theory names no limit,
so no number is predicted. The norm of W in units of the norm of :math:`W_a` says how far training has gone: W
in the direction of :math:`W_a` has this number as its smallest margin, and attention is saturated from about
7 on (:math:`e^{-7} = .001`).

A selected token is *locally optimal* if its score :math:`\gamma_{i,t} = Y_i v^\top x_{i,t}` exceeds those of
its neighbours, the tokens of margin one under :math:`W_a`. Only inputs with a neighbour count: the others
satisfy the definition whatever they select, and on real data they are the majority, since a matrix with d²
entries has about d² support vectors. Equal tokens count as one.

Definitions: :cite:t:`tarzanagh2023transformers`. Norm and shares of random tokens are this library's own.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ....core.errors import Infeasible, NotConverged
from ....core.ladder import Ladder
from ....core.measurement import CORRELATION, Measurement, Null
from ....core.statistics import LADDER_DRAWS, RANGE_DRAWS, over_heads
from ....maths.linalg import cosine
from ..analysis import Selection, selection_of
from ..dynamics.gradient import merge_equal_tokens
from ..in_networks import COSINE, MARGIN, NULL_KIND, SOURCE, Alignment, alignment
from ..problem import Instance
from ..selection import SATURATION_ATOL, locally_optimal
from .nuclear import nuclear_alignment, nuclear_solution

NORM = "norm of W, relative to the max-margin solution"
SATURATED = "share of inputs with attention of at least .999 on one token"
LOCALLY_OPTIMAL = "share of selected tokens that are locally optimal"
PERMUTED = "queries permuted among inputs"
ABOVE_RANDOM = "share of selected tokens that score above as many random tokens"
BEST = "share of inputs whose best token is selected"
BEST_COSINE = "cosine to the max-margin direction of the best tokens"
FROBENIUS = "cosine to the Frobenius max-margin direction"
RANDOM_TOKENS = "tokens selected at random"
# budget of constraints that no rung exceeds: the prediction concerns all constraints, not a sample
ALL = 10**9

LADDER = Ladder(
    theory="attention_svm", quantity=COSINE, side=">=", bounds=CORRELATION, null=NULL_KIND, source=SOURCE
)


@dataclass(frozen=True)
class Head:
    """One attention head with the inputs on which it was trained.

    Attributes:
        W: weights, ``[d, d_z]``.
        tokens, query: ``[n, T, d]`` and ``[n, d_z]``.
        scores: scores of the tokens, ``[n, T]``; None if they are not defined.
        norm: the norm of the max-margin solution with which W is compared.
    """

    W: Float[Tensor, "d d_z"]
    tokens: Float[Tensor, "n T d"]
    query: Float[Tensor, "n d_z"]
    scores: Float[Tensor, "n T"] | None = None
    norm: Literal["Frobenius", "nuclear"] = "Frobenius"

    def aligned(self, query: Float[Tensor, "n d_z"], *, generator: torch.Generator, draws: int) -> Alignment:
        """Compares W with the max-margin solution of what it selects for these queries, over the constraints
        of all inputs.
        """
        if self.norm == "nuclear":
            return nuclear_alignment(self.W, self.tokens, query, generator=generator, draws=draws)
        return alignment(self.W, self.tokens, query, generator=generator, constraints=ALL, draws=draws)


def rows(
    head: Head,
    generator: torch.Generator,
    *,
    draws: int = LADDER_DRAWS,
    limit: bool = False,
    note: str = "",
    no_scores: str = "",
) -> Iterator[Measurement]:
    """Yields the quantities of one head on the inputs of its training.

    Args:
        head: the head and its inputs.
        generator: random generator of the null draws.
        draws: number of null draws of the headline.
        limit: whether the theory names this solution as the limit of this training, and so predicts the value
            1.
        note: note of the headline.
        no_scores: the reason why tokens have no scores; needed if ``head.scores`` is None.
    """
    aligned = head.aligned(head.query, generator=generator, draws=draws)
    predicted: dict[str, Any] = {"predicted": 1.0, "basis": "limit"} if limit else {}
    columns = {**predicted, "n": len(head.query)}
    nulls: tuple[Null, ...] = ()
    if aligned.cosine is not None:
        nulls = aligned.null or Null(NULL_KIND, ()), permuted_null(head, generator.initial_seed())
    yield LADDER.row(
        aligned.cosine,
        nulls=nulls,
        reason=aligned.reason,
        note=note,
        **columns,
    )
    yield LADDER.other_row(MARGIN, aligned.margin, reason=aligned.reason, unit="share", **columns)
    yield from selection_rows(head, generator, predicted, no_scores)


def untested_rows(head: Head, generator: torch.Generator, *, no_scores: str) -> Iterator[Measurement]:
    """Yields the quantities of one head without predictions and nulls, for inputs that are not those of its
    training.
    """
    aligned = head.aligned(head.query, generator=generator, draws=0)
    yield LADDER.row(aligned.cosine, reason=aligned.reason, n=len(head.query))
    yield LADDER.other_row(MARGIN, aligned.margin, reason=aligned.reason, unit="share", n=len(head.query))
    yield from selection_rows(head, generator, {}, no_scores)


def permuted_null(head: Head, seed: int) -> Null:
    """Returns the second null of the cosine: the cosines to the solution of what W selects if each input has
    the query of another.

    In the limit W has the direction of the solution for the queries of the training, and for no others. A
    cosine that does not exceed these does not depend on which query belongs to which input. A permutation
    without a solution leaves its draw out, and the frame then reports the rung as not tested.
    """
    # A generator of their own, so that the permutations do not depend on the number of draws of the first
    # null.
    generator, draws = torch.Generator().manual_seed(seed), []
    for order in (torch.randperm(len(head.query), generator=generator) for _ in range(RANGE_DRAWS)):
        draws.append(head.aligned(head.query[order], generator=generator, draws=0).cosine)
    return Null(PERMUTED, tuple(draw for draw in draws if draw is not None))


def selection_rows(
    head: Head, generator: torch.Generator, predicted: dict[str, Any], no_scores: str
) -> Iterator[Measurement]:
    """Yields the norm of W, the share of saturated inputs, the rows of the scores and, for factors, the
    cosine to the Frobenius solution.

    Args:
        head, generator, no_scores: see :func:`rows`.
        predicted: columns of the theory's prediction; empty if there is none.
    """
    # Without scores the instance has zeros in their place: only tokens and queries determine the selection
    # and its solution.
    instance = Instance(
        head.tokens, head.query, torch.zeros(head.tokens.shape[:2]) if head.scores is None else head.scores
    )
    n = len(head.query)
    if head.norm == "nuclear":
        other = dataclasses.replace(head, norm="Frobenius").aligned(
            head.query, generator=generator, draws=RANGE_DRAWS
        )
        columns = {"nulls": (other.null,), "side": ">=", "bounds": CORRELATION, "n": n}
        yield LADDER.other_row(FROBENIUS, other.cosine, reason=other.reason, **columns)
    selection = selection_in(head.norm, instance, instance.selected(head.W))
    length = float(torch.linalg.matrix_norm(head.W, ord="nuc" if head.norm == "nuclear" else "fro"))
    size = None if selection.solution is None else length / selection.solution.norm
    yield LADDER.other_row(NORM, size, reason=selection.reason, n=n)
    saturated = largest_attention(instance, head.W) >= 1 - SATURATION_ATOL
    yield LADDER.other_row(SATURATED, float(saturated.double().mean()), unit="share", n=n, **predicted)
    if head.scores is None:
        for quantity, unit in (
            (LOCALLY_OPTIMAL, "share"),
            (ABOVE_RANDOM, "share"),
            (BEST, "share"),
            (BEST_COSINE, ""),
        ):
            yield LADDER.other_row(quantity, None, reason=no_scores, unit=unit)
        return
    yield from score_rows(instance, selection, generator, predicted)
    best = selection_in(head.norm, instance, instance.optimal())
    value = None if best.solution is None else float(cosine(head.W, best.solution.W))
    yield LADDER.other_row(BEST_COSINE, value, reason=best.reason, bounds=CORRELATION, n=n)


def selection_in(norm: str, instance: Instance, tokens: Int[Tensor, " n"]) -> Selection:
    """Returns the tokens, one per input, with their max-margin solution in the norm "Frobenius"
    or "nuclear".
    """
    selection = selection_of(instance, tokens, selecting=torch.ones(len(instance.query), dtype=torch.bool))
    if selection.solution is None or norm == "Frobenius":
        return selection
    try:
        return dataclasses.replace(
            selection, solution=nuclear_solution(instance.tokens, instance.query, tokens)
        )
    except (Infeasible, NotConverged) as error:
        return dataclasses.replace(selection, solution=None, reason=str(error))


def score_rows(
    instance: Instance, selection: Selection, generator: torch.Generator, predicted: dict[str, Any]
) -> Iterator[Measurement]:
    """Yields the shares of selected tokens that are locally optimal, that score above random tokens, and that
    are the best.

    The null of the first and the last share puts a random other token in the place of the selected one. The
    second share keeps the selected tokens, and puts random tokens in the place of their neighbours: it is
    what a preference for high scores alone would give.
    """
    scores, selected, first = instance.scores, selection.tokens, distinct(instance.tokens)
    others = first & ~same_token(instance.tokens, selected)
    # A random order of the other tokens of each input, one per draw: the first of them takes the place of the
    # selected token.
    keys = torch.rand(LADDER_DRAWS, *scores.shape, generator=generator).masked_fill(~others, -1.0)
    random = keys.argmax(-1)
    best = scores >= scores.amax(-1, keepdim=True)
    draws = best.expand(LADDER_DRAWS, -1, -1).gather(-1, random[..., None]).double().mean((1, 2))
    value = float(best.gather(-1, selected[:, None]).double().mean())
    null = Null(RANDOM_TOKENS, tuple(draws.tolist()))
    shares: dict[str, Any] = {"unit": "share", "side": ">="}
    pairs, solution = selection.constraints, selection.solution
    near = torch.zeros(scores.shape, dtype=torch.bool)
    if solution is not None:
        support = solution.support()
        near[pairs.input[support], pairs.token[support]] = True
    near &= others
    counted = near.any(-1)
    if solution is None or not bool(counted.any()):
        reason = selection.reason or "no selected token has a neighbour"
        yield LADDER.other_row(LOCALLY_OPTIMAL, None, reason=reason, unit="share")
        yield LADDER.other_row(ABOVE_RANDOM, None, reason=reason, unit="share")
    else:
        optimal = locally_optimal(scores, selected, pairs, solution)[counted]
        count = {**shares, "n": int(counted.sum())}
        chance = Null(
            RANDOM_TOKENS,
            random_shares(scores[counted], selected[counted], near[counted], random[:, counted]),
        )
        yield LADDER.other_row(
            LOCALLY_OPTIMAL, float(optimal.double().mean()), nulls=(chance,), **predicted, **count
        )
        # The k tokens that come first in the random order stand for the k neighbours.
        rank = keys.argsort(-1, descending=True).argsort(-1)
        stand_in = (rank < near.sum(-1, keepdim=True)) & others
        own = scores.gather(-1, selected[:, None])
        above = (own > scores.masked_fill(~stand_in, -torch.inf).amax(-1, keepdim=True)).squeeze(-1)[
            :, counted
        ]
        yield LADDER.other_row(
            ABOVE_RANDOM,
            float(above.double().mean()),
            note="mean over draws of the random tokens",
            **{**count, "side": None},
        )
    yield LADDER.other_row(BEST, value, nulls=(null,), **{**shares, "n": len(scores)})


def random_shares(
    scores: Float[Tensor, "n T"],
    selected: Int[Tensor, " n"],
    near: Bool[Tensor, "n T"],
    random: Int[Tensor, "draws n"],
) -> tuple[float, ...]:
    """Returns, per draw, the share of inputs in which a random token scores above the neighbours of the
    selected one.

    If the random token is a neighbour itself, it changes places with the selected token, so that the number
    of rivals stays the same.

    Args:
        scores: ``[n, T]``.
        selected: positions of the selected tokens, ``[n]``.
        near: mask of their neighbours, ``[n, T]``.
        random: positions of the random tokens, ``[draws, n]``.
    """
    rivals = near.expand(len(random), -1, -1).clone()
    swapped = rivals.gather(-1, random[..., None])
    rivals.scatter_(-1, random[..., None], False)
    rivals.scatter_(-1, selected.expand(len(random), -1)[..., None], swapped)
    own = scores.expand(len(random), -1, -1).gather(-1, random[..., None]).squeeze(-1)
    above = own > scores.masked_fill(~rivals, -torch.inf).amax(-1)
    return tuple(above.double().mean(-1).tolist())


def distinct(tokens: Float[Tensor, "n T d"]) -> Bool[Tensor, "n T"]:
    """Returns the mask of the tokens that equal no earlier token of their input."""
    _, offset = merge_equal_tokens(tokens[None], None)
    return torch.ones(tokens.shape[:2], dtype=torch.bool) if offset is None else offset[0] > -torch.inf


def same_token(tokens: Float[Tensor, "n T d"], positions: Int[Tensor, " n"]) -> Bool[Tensor, "n T"]:
    """Returns the mask of the tokens that equal the token at the given position of their input."""
    return (tokens == tokens.gather(1, positions[:, None, None].expand(-1, 1, tokens.shape[-1]))).all(-1)


def largest_attention(instance: Instance, W: Float[Tensor, "d d_z"]) -> Float[Tensor, " n"]:
    """Returns the largest attention on one token of each input and the tokens equal to it."""
    same = (instance.tokens[:, :, None] == instance.tokens[:, None]).all(-1)  # [n, T, T]
    return (same.double() @ instance.attention(W)[..., None]).squeeze(-1).amax(-1)


def mean_rows(measured: Sequence[Iterable[Measurement]], **columns: Any) -> Iterator[Measurement]:
    """Yields the rows of several heads, averaged over heads and layers by quantity and setting; columns of
    single heads become empty.
    """
    together: dict[tuple[str, str], list[Measurement]] = {}
    for row in (row for head in measured for row in head):
        together.setdefault((row.quantity, row.setting), []).append(row)
    for same in together.values():
        yield dataclasses.replace(over_heads(same), **{"layer": None, **columns})
