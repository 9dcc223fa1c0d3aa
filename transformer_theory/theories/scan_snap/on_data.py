r"""The theory on a data set: predictions from counts, exact gradient descent, and a comparison, as
measurements and arrays.

    analysis = analyse(ids, query_ids, next_ids)     # [n, context], [n], [n]: numpy or torch
    print(analysis)
        # assumptions, predicted and measured order of the tokens, verdict
    analysis.measurements(), analysis.plot()

The theory treats one query at a time, so the sequences of each of the most frequent queries are analysed and
learnt separately (:mod:`.query_data`): :math:`P(l | n)` is counted, the assumptions are measured, four
dynamics predict the attention logits (:mod:`.predictions`), and exact gradient descent, on the true and on
shuffled next tokens, measures their change (:mod:`.minimal_model`). The seed draws held-out sequences and
batches; permutations are the same for all seeds.

In a :class:`~transformer_theory.data.TokenData` the word at the query's position (by default the last) is the
query, the words at the other positions are the context, and the next token is the class. The most frequent
query is analysed. Source: :cite:t:`tian2023scan`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Generator, Tensor

from ...core.measurement import CORRELATION, Measurement, Null, Op, judge
from ...core.result import Result
from ...core.sources import Source
from ...core.statistics import HEADLINE_DRAWS, RANGE_DRAWS, with_interval
from ...core.table import Arrays, Table
from ...core.theory import OnData, Unsupported
from ...core.validation import integers, positive
from ...data.ids import sequence_ids
from ...data.queries import most_frequent
from ...data.tokens import TokenData
from .comparison import NAME, PAPER, Comparison, Match, compare, named
from .flow import CLOSED, EXACT, LEMMA4, MODIFIED
from .minimal_model import default_steps, train_minimal_model
from .orders import SHUFFLED, RankCorrelation
from .plots import plot_comparison
from .predictions import MOVEMENT_ATOL, PREDICTION_RTOL, predictions
from .query_data import MAX_CLASSES, select_query

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ETA_Y, ETA_Z = 1.0, 0.1
# largest learning rate; with larger ones logits leave the range of floating point within a few steps
MAX_RATE = 1e6
MAX_STEPS = 10**7
# factor between predicted and measured half-way steps up to which a prediction counts as right
HALF_WAY_FACTOR = 2.0
GAIN_RTOL = 0.05  # largest accepted error of the closed form, as a share of the change of relative gains

# Names of the quantities. The headline counts distinctness on sequences that were not learnt: in the learnt
# ones rare tokens are distinct by chance, and descent learns them by heart, with random next tokens too.
HEADLINE = "rank correlation of held-out distinctness and logit change"
LEARNT_CORRELATION = "rank correlation of distinctness and logit change"
DISTINCTNESS = "distinctness of the contextual tokens"
DISTINCT_CHANGE, COMMON_CHANGE = "logit change of distinct tokens", "logit change of common tokens"
LIKELIER_GAINS = "share of pairs of a class's tokens whose likelier one gains more"
# the setting of these three rows names the dynamics
FLOW_CORRELATION = "rank correlation of predicted and measured logit change"
FLOW_ERROR = "relative error of the predicted logit change"
FLOW_HALF_WAY = "factor between predicted and measured half-way step"
SHARPNESS_AFTER = "sharpness after training"
GAIN_ERROR = "share of the change of relative gains that the closed form misses"
ACCURACY = "accuracy of the minimal model"
LEMMA_3 = "the decoder follows Lemma 3 (closed forms only)"
RELATIVE_GAIN = Source(PAPER, "Thm. 3", "confirmed")
SOURCES = {EXACT: Source(PAPER)} | {
    name: Source(PAPER, locator, "confirmed")
    for name, locator in ((MODIFIED, "Lemma 3"), (LEMMA4, "Lemma 4"), (CLOSED, "Thm. 4"))
}


@dataclass(frozen=True)
class SkippedQuery:
    """A query that was not analysed, its number of sequences, and the reason."""

    query_id: int
    sequences: int
    reason: str


@dataclass(frozen=True, eq=False, repr=False)
class Analysis:
    """The results of :func:`analyse`, query by query.

    Attributes:
        sequences, context, vocab_size: numbers of sequences, of contextual tokens per sequence, and of tokens
            in the vocabulary.
        comparisons: one comparison per analysed query, most frequent query first.
        skipped: queries that could not be analysed.
        words: word of each id, for printing. None: ids are printed.
    """

    sequences: int
    context: int
    vocab_size: int
    comparisons: tuple[Comparison, ...]
    skipped: tuple[SkippedQuery, ...]
    words: tuple[str, ...] | None = None

    def measurements(self) -> list[Measurement]:
        """Returns the rows of all comparisons, and a row with the reason for each skipped query; ``data``
        names the query.
        """
        rows = [
            replace(row, data=f"query {query.data.query_id}")
            for query in self.comparisons
            for row in comparison_rows(query)
        ]
        return rows + [replace(_skipped_row(query), data=f"query {query.query_id}") for query in self.skipped]

    def arrays(self) -> Arrays:
        """Returns the arrays of the most frequent query that could be analysed, or no arrays if
        none could.
        """
        return comparison_arrays(self.comparisons[0]) if self.comparisons else Arrays()

    def plot(self) -> "Figure":
        """Plots the most frequent query that could be analysed."""
        return plot_comparison(Result(NAME, table=Table(self.measurements()), arrays=dict(self.arrays())))

    def __repr__(self) -> str:
        size = f"sequences={self.sequences}, context={self.context}, vocab_size={self.vocab_size}"
        return f"Analysis({size}, comparisons={list(self.comparisons)}, skipped={len(self.skipped)})"

    def __str__(self) -> str:
        lines = [
            f"{self.sequences} sequences of {self.context} contextual tokens, {self.vocab_size} tokens in "
            "the vocabulary"
        ]
        lines += map(str, self.comparisons)
        for query in self.skipped:
            lines.append(
                f"query {named(query.query_id, self.words)}: {query.sequences} of {self.sequences} "
                f"sequences; {query.reason}"
            )
        return "\n".join(lines)


def analyse(
    ids: Int[np.ndarray, "n context"] | Int[Tensor, "n context"],
    query_ids: Int[np.ndarray, " n"] | Int[Tensor, " n"],
    next_ids: Int[np.ndarray, " n"] | Int[Tensor, " n"],
    *,
    vocab_size: int | None = None,
    queries: int = 1,
    max_classes: int = MAX_CLASSES,
    steps: int | None = None,
    eta_y: float = ETA_Y,
    eta_z: float = ETA_Z,
    draws: int = HEADLINE_DRAWS,
    seed: int = 0,
    words: Sequence[str] | None = None,
) -> Analysis:
    r"""Predicts attention from counts, trains the theory's model on the sequences, and compares.

    Args:
        ids: contextual tokens without the query, in any order, ``[n, context]``.
        query_ids: the query of each sequence, ``[n]``.
        next_ids: the token that follows each sequence, ``[n]``.
        vocab_size: M; ids lie in ``[0, M)``. None: one more than the largest id.
        queries: largest number of queries to analyse, most frequent first.
        max_classes: largest number of classes per query; the most frequent next tokens are the classes.
        steps: steps of gradient descent, with batches of up to 128. None: 50 to 1000, as 250 million
            multiplications allow, but at least twice t0', the time of scanning.
        eta_y, eta_z: learning rates of decoder and attention, in (0, 1e6]. The theory assumes that eta_y is
            much larger.
        draws: number of permutations of the held-out next tokens. Up to 19 models are trained on shuffled
            next tokens as well. 0: no nulls, and no verdict on held-out distinctness.
        seed: seed of the held-out sequences and the batches. Permutations and shuffles do not depend on it.
        words: word of each id, for printing, e.g. ``data.words`` of a text. None: ids are printed.
    Returns:
        The comparisons, with their assumptions measured, and the skipped queries with their reasons.
    Raises:
        ValueError: ids are not integers or lie outside the vocabulary, lengths differ, there is no sequence,
            a number is out of range, or there are fewer words than ids.
        TypeError: a number is of the wrong type.
        NotConverged: the loss is not finite; lower the rates.
    """
    ids, query_ids, next_ids, M = sequence_ids(ids, query_ids, next_ids, vocab_size)
    _check_settings(queries, max_classes, steps, draws, seed, eta_y=eta_y, eta_z=eta_z)
    if words is not None and len(words) < M:
        raise ValueError(
            f"words must hold a word for each of the {M} ids, got {len(words)}; pass the words of the whole "
            "vocabulary"
        )
    names = None if words is None else tuple(words)
    comparisons, skipped = [], []
    for query in most_frequent(query_ids, queries).tolist():
        # one per query, so that its numbers do not depend on the other queries
        generator = torch.Generator().manual_seed(seed)
        matching = int((query_ids == query).sum())
        data = select_query(
            ids,
            query_ids,
            next_ids,
            query_id=query,
            vocab_size=M,
            max_classes=max_classes,
            generator=generator,
        )
        if isinstance(data, Unsupported):
            skipped.append(SkippedQuery(query, matching, data.reason))
            continue
        rates = {"eta_y": eta_y, "eta_z": eta_z}
        planned, shuffles = steps or default_steps(data, eta_y=eta_y), min(draws, RANGE_DRAWS)
        runs = train_minimal_model(data, steps=planned, **rates, shuffles=shuffles, generator=generator)
        if float(runs.change[0].abs().max()) < MOVEMENT_ATOL:
            skipped.append(
                SkippedQuery(
                    query, matching, f"attention moved by less than {MOVEMENT_ATOL:g} in {runs.steps} steps"
                )
            )
            continue
        predicted = predictions(data.classes, runs.path.steps.double(), **rates)
        comparisons.append(
            compare(data, predicted, runs, **rates, draws=draws, generator=generator, words=names)
        )
    return Analysis(len(ids), ids.shape[1], M, tuple(comparisons), tuple(skipped), names)


def _check_settings(
    queries: int, max_classes: int, steps: int | None, draws: int, seed: int, *, eta_y: float, eta_z: float
) -> None:
    integers(queries=queries, max_classes=max_classes, **({} if steps is None else {"steps": steps}))
    integers(minimum=0, draws=draws, seed=seed)
    if max_classes < 2:
        raise ValueError(f"max_classes must be at least 2, got {max_classes}")
    if steps is not None and steps > MAX_STEPS:
        raise ValueError(f"steps must be at most {MAX_STEPS:,}, got {steps}")
    positive(eta_y=eta_y, eta_z=eta_z)
    for name, rate in (("eta_y", eta_y), ("eta_z", eta_z)):
        if rate > MAX_RATE:
            raise ValueError(
                f"{name} must be at most {MAX_RATE:.0e}, got {rate:g}: logits would leave the range of "
                "floating point; lower it"
            )


# ---- measurements of one query


def comparison_rows(comparison: Comparison) -> Iterator[Measurement]:
    """Yields all measurements of a query.

    Verdicts about the theorems are "not covered" unless all assumptions hold. Verdicts about the exact flow
    are "not covered" unless the sequences and the training run are long enough.
    """
    yield from comparison.assumptions
    note = (
        "relative size of the term that Lemma 3 drops from the decoder's gradient; gradient descent trains "
        "the exact decoder"
    )
    source = Source(PAPER, "Lemma 3", "confirmed")
    yield Measurement(
        NAME, "assumption", LEMMA_3, comparison.modified_decoder, verdict="fails", source=source, note=note
    )
    yield from _token_rows(comparison)
    yield from _flow_rows(comparison)
    yield from _attention_rows(comparison)


def _token_rows(comparison: Comparison) -> Iterator[Measurement]:
    """Yields the changes of attention to distinct and common tokens, and to likelier tokens of a class."""
    data, runs, groups, covered = comparison.data, comparison.runs, comparison.groups, comparison.covered
    theorem, S = Source(PAPER, "Thm. 2", "confirmed"), data.classes.tokens
    value = float(data.frequency @ data.distinctness)
    note = (
        f"mean over occurrences; 1: each token in one class only, 1/{data.classes.classes}: equal "
        "probabilities"
    )
    yield _row(
        DISTINCTNESS,
        value,
        nulls=(comparison.null_distinctness,),
        side=">=",
        bounds=(0.0, 1.0),
        source=Source(PAPER),
        n=S,
        note=note,
    )
    if comparison.by_held_out is None:
        reason = "fewer than two next tokens or contextual tokens occur in the held-out sequences"
        yield _row(HEADLINE, None, reason=reason, source=theorem, split="validation")
    else:
        yield _correlation(HEADLINE, comparison.by_held_out, covered, source=theorem, split="validation")
    # Descent learns by heart what is distinct by chance, so the following rows are not at chance on noise.
    yield _correlation(
        LEARNT_CORRELATION,
        comparison.by_distinctness,
        covered,
        source=theorem,
        split="train",
        scope="any data",
    )
    directions: tuple[tuple[str, Tensor, Op], ...] = (
        (DISTINCT_CHANGE, groups.distinct, ">="),
        (COMMON_CHANGE, groups.common, "<="),
    )
    for quantity, group, op in directions:
        weights = data.frequency * group / (data.frequency * group).sum()
        value, *null = (runs.change @ weights).tolist()
        verdict = _verdict(value, op, 0.0, covered)
        columns = {"nulls": (_null(null),), "side": op, "source": theorem, "scope": "any data"}
        yield _row(quantity, value, **verdict, **columns, n=int(group.sum()), note=groups.rule)
    if len(comparison.likelier_gains):
        value, *null = comparison.likelier_gains.tolist()
        verdict = _verdict(value, ">=", 0.5, covered) | {
            "predicted": 1.0,
            "nulls": (_null(null),),
            "side": ">=",
        }
        columns = {"source": RELATIVE_GAIN, "scope": "any data"}
        yield _row(LIKELIER_GAINS, value, unit="share", **verdict, **columns, n=len(comparison.gains.pairs))


def _flow_rows(comparison: Comparison) -> Iterator[Measurement]:
    """Compares each of the dynamics with gradient descent: order of the tokens, sizes and times of the
    changes.
    """
    for prediction in comparison.predictions:
        where = {
            "at": {"dynamics": prediction.dynamics},
            "source": SOURCES[prediction.dynamics],
            "scope": "any data",
        }
        if prediction.reason:
            verdict = None if prediction.resolved else "inconclusive"
            yield _row(FLOW_ERROR, None, verdict=verdict, reason=prediction.reason, **where)
        elif prediction.dynamics == CLOSED:
            measured, predicted = (
                comparison.runs.change[:, prediction.tokens[0]],
                float(prediction.logits[-1, 0]),
            )
            value, *null = ((measured - predicted) / measured).abs().tolist()
            verdict = _verdict(value, "<=", PREDICTION_RTOL, covered=False) | {
                "predicted": 0.0,
                "nulls": (_null(null),),
                "side": "<=",
            }
            note = f"of the common token: predicted {predicted:.3f}, measured {float(measured[0]):.3f}"
            yield _row(FLOW_ERROR, value, **verdict, **where, n=1, note=note)
    for match in comparison.matches:
        yield from _match_rows(comparison, match)


def _match_rows(comparison: Comparison, match: Match) -> Iterator[Measurement]:
    covered = match.dynamics == EXACT and comparison.covered_by_exact_flow
    where = {"at": {"dynamics": match.dynamics}, "source": SOURCES[match.dynamics], "scope": "any data"}
    yield _correlation(FLOW_CORRELATION, match.order, covered, predicted=1.0, **where)
    verdict = _verdict(match.error, "<=", PREDICTION_RTOL, covered) | {
        "predicted": 0.0,
        "nulls": (match.null,),
        "side": "<=",
    }
    note = "Euclidean distance over all tokens; predicting no change has error 1"
    yield _row(FLOW_ERROR, match.error, **verdict, **where, n=comparison.data.classes.tokens, note=note)
    times = comparison.half_way
    if float(times[0]) > 0 and match.half_way > 0:
        value, *null = (times.clamp(min=1) / max(match.half_way, 1)).log().abs().exp().tolist()
        verdict = _verdict(value, "<=", HALF_WAY_FACTOR, covered) | {
            "predicted": 1.0,
            "nulls": (_null(null),),
            "side": "<=",
        }
        note = (
            f"half of the movement by step {float(times[0]):.0f}, predicted {match.half_way:.0f}; t0' = "
            f"{comparison.scanning_time:.4g}"
        )
        yield _row(FLOW_HALF_WAY, value, **verdict, **where, note=note)


def _attention_rows(comparison: Comparison) -> Iterator[Measurement]:
    """Yields the final attention, the relative gains, and the accuracy of the model."""
    data, runs, gains = comparison.data, comparison.runs, comparison.gains
    value, *null = runs.sharpness.tolist()
    note = "1 - entropy / log of the length; attention starts uniform, at 0"
    yield _row(
        SHARPNESS_AFTER,
        value,
        nulls=(_null(null),),
        side=">=",
        bounds=(0.0, 1.0),
        source=Source(PAPER),
        n=len(data.counted.target),
        note=note,
    )
    moved = gains.measured[0] - gains.start
    errors = (gains.measured[0] - gains.predicted[0]).abs()[moved != 0] / moved[moved != 0].abs()
    value = float(errors.median()) if len(errors) else math.nan
    unchanged = Null("no change predicted", (1.0,)) if null else None
    verdict = _verdict(value, "<=", GAIN_RTOL, covered=False) | {
        "predicted": 0.0,
        "nulls": (unchanged,),
        "side": "<=",
    }
    note = "median over pairs of tokens of a class"
    yield _row(GAIN_ERROR, value, **verdict, source=RELATIVE_GAIN, scope="any data", n=len(errors), note=note)
    splits = [("train", runs.accuracy, len(data.counted.target))]
    if data.held_out is not None:
        splits.append(("validation", runs.held_out, len(data.held_out.target)))
    for split, accuracies, n in splits:
        value, *null = accuracies.tolist()
        yield with_interval(
            _row(ACCURACY, value, unit="share", nulls=(_null(null),), side=">=", split=split, n=n)
        )


def _row(quantity: str, value: float | None, **columns: Any) -> Measurement:
    return Measurement(NAME, "on data", quantity, value, **columns)


def _correlation(quantity: str, order: RankCorrelation, covered: bool, **columns: Any) -> Measurement:
    verdict = _verdict(order.value, ">=", order.threshold, covered)
    if not math.isfinite(order.value):
        columns["reason"] = "all tokens are tied"
    return _row(
        quantity,
        order.value,
        **verdict,
        nulls=(order.null,),
        side=">=",
        bounds=CORRELATION,
        n=order.tokens,
        **columns,
    )


def _verdict(value: float, op: Op, threshold: float, covered: bool) -> dict[str, Any]:
    """Returns op, threshold and verdict. The verdict is "inconclusive", not "not covered", if value or
    threshold is undefined.
    """
    verdict = judge(
        value, op, threshold, covered=covered or not (math.isfinite(value) and math.isfinite(threshold))
    )
    return (
        {"op": op, "threshold": threshold, "verdict": verdict}
        if math.isfinite(threshold)
        else {"verdict": verdict}
    )


def _null(draws: list[float]) -> Null | None:
    return Null(SHUFFLED, tuple(draws)) if draws else None


def _skipped_row(skipped: SkippedQuery) -> Measurement:
    return _row(HEADLINE, None, reason=skipped.reason, n=skipped.sequences, split="validation", side=">=")


def comparison_arrays(comparison: Comparison) -> Arrays:
    """Returns the arrays that :func:`.plot_comparison` draws."""
    data, runs, gains, groups = comparison.data, comparison.runs, comparison.gains, comparison.groups
    arrays = {
        "steps": runs.path.steps.numpy(),
        "logits": runs.logits[:, 0].numpy(),
        "null_change": runs.change[1:].numpy(),
        "distinctness": data.distinctness.numpy(),
        "distinct": groups.distinct.numpy(),
        "common": groups.common.numpy(),
        "frequency": data.frequency.numpy(),
        "conditional": data.classes.conditional.numpy(),
        "overlap": comparison.overlap.numpy(),
        "attended": data.classes.attended(runs.path.attention[-1, 0]).numpy(),
        "gain_start": gains.start.numpy(),
        "gain_measured": gains.measured[0].numpy(),
        "gain_predicted": gains.predicted[0].numpy(),
        "token_ids": data.counted.token_ids.numpy(),
        "next_ids": data.counted.next_ids.numpy(),
        "scanning_time": np.array(comparison.scanning_time),
        "movement": np.linalg.norm(runs.logits.numpy(), axis=-1),
    }
    for prediction in comparison.predictions:
        if prediction.dynamics != CLOSED and not prediction.reason:
            arrays[f"predicted/{prediction.dynamics}"] = prediction.logits.numpy()
    return Arrays({f"{NAME}/{name}": value for name, value in arrays.items()})


# ---- the theory's interface to data sets


@dataclass(frozen=True, eq=False)
class NextTokenProblem:
    """Sequences, their queries and their next tokens: ids in ``[0, vocab_size)``, ``[n, context]``, ``[n]``
    and ``[n]``.
    """

    ids: Int[Tensor, "n context"]
    query_ids: Int[Tensor, " n"]
    next_ids: Int[Tensor, " n"]
    vocab_size: int


def read(data: TokenData) -> NextTokenProblem | Unsupported:
    """Selects the sequences of a data set with ids and next tokens."""
    if data.ids is None or data.next_id is None:
        return Unsupported("needs discrete tokens and next tokens (ids and next_id)")
    if data.ids.shape[1] < 3:
        return Unsupported(
            f"needs sequences of at least two contextual tokens and a query, got {data.ids.shape[1]} tokens"
        )
    return NextTokenProblem(*data.context_and_query(), data.next_id, max(data.vocab_size or 0, 2))


def measure(problem: NextTokenProblem, generator: Generator, *, draws: int) -> Iterator[Measurement | Arrays]:
    """Yields all rows and arrays of the most frequent query.

    Args:
        problem: the sequences.
        generator: draws the seed of :func:`analyse`, which draws held-out sequences and batches.
        draws: number of permutations of the held-out next tokens; up to 19 models learn shuffled next tokens.
            0: no nulls.
    """
    seed = int(torch.randint(2**31, (1,), generator=generator))
    analysis = analyse(
        problem.ids,
        problem.query_ids,
        problem.next_ids,
        vocab_size=problem.vocab_size,
        draws=draws,
        seed=seed,
    )
    for comparison in analysis.comparisons:
        yield from comparison_rows(comparison)
        yield comparison_arrays(comparison)
    for skipped in analysis.skipped:
        yield _skipped_row(skipped)


ON_DATA = OnData(read=read, measure=measure, headline=HEADLINE, plot=plot_comparison)
