r"""The theory on a data set: does attention follow from the MLP's weights, as the invariants say?

The word at the query's position (by default the last) is the query, the words at the other positions are the
context, and the next token is the class. The theory's own block is trained on the contexts of the most
frequent query (:mod:`.query_data`).

With exponential attention the invariant holds for any data, so it has no verdict. It fails if other queries
train the same MLP; the drift measures the extent. With softmax attention the invariant assumes that the mean
attention does not change and that a second moment factorises. Both assumptions are measured. The predicted
change of the logits is then compared with the measured one. The null consists of blocks trained on shuffled
next tokens. If its median passes the threshold too, the verdict is inconclusive. Source:
:cite:t:`tian2024joma`.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Generator, Tensor

from ...core.errors import NotConverged
from ...core.measurement import CORRELATION, Measurement, Null, Op, VerdictName, judge
from ...core.plotting import COLOURS, axes, caption, colour, line, style, text_figure
from ...core.result import Result, provenance
from ...core.sources import Source
from ...core.statistics import RANGE_DRAWS
from ...core.table import Arrays, collect
from ...core.theory import OnData, Unsupported
from ...core.validation import integers
from ...data.ids import sequence_ids
from ...data.tokens import TokenData
from .invariants import goodness_of_fit
from .query_data import (
    STEPS,
    ExponentialRun,
    QueryData,
    SoftmaxRun,
    exponential_run,
    select_query,
    softmax_run,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "joma"
SOURCE = Source("tian2024joma")
ONE_QUERY = "all sequences have one query"
STILL = "the mean attention does not change"
FACTORISES = "the second moment of the gradient factorises"
SOFTMAX_ERROR = "relative error of the softmax invariant"
SOFTMAX_CORRELATION = "correlation of the softmax invariant"
MOVING_ERROR = "relative error with the mean attention of each moment"
DRIFT = "drift of the exponential invariant"
# thresholds of the relative error, of both assumptions, and of the drift
MAX_ERROR, MAX_ASSUMPTION, MAX_DRIFT = 0.5, 0.1, 1e-3
NULL_KIND = "blocks trained on shuffled next tokens"
NO_CHOICE = "softmax attention has no choice in contexts of a single token"


def read(data: TokenData) -> QueryData | Unsupported:
    """Selects the sequences of a data set with ``ids`` and ``next_id``."""
    if data.ids is None or data.next_id is None:
        missing = [name for name in ("ids", "next_id") if getattr(data, name) is None]
        return Unsupported(f"needs {' and '.join(missing)}")
    if data.ids.shape[1] < 2:
        return Unsupported("needs sequences of at least one contextual token and a query, got 1 token")
    return select_query(*data.context_and_query(), data.next_id)


def measure(
    problem: QueryData, generator: Generator, *, draws: int, steps: int = STEPS
) -> Iterator[Measurement | Arrays]:
    """Yields the assumptions, the softmax invariant with its null, and the drift of the exponential
    invariant.

    Args:
        problem: result of :func:`read`.
        generator: draws the initial weights.
        draws: largest number of blocks trained on shuffled next tokens; there are at most 19, because each is
            a training.
        steps: number of steps of the gradient flow, each of time 1/2.
    """
    sample, shared = problem.sample(), {"units": len(problem.classes), "generator": generator, "steps": steps}
    try:
        softmax = (
            softmax_run(sample.one_query, **shared, draws=min(draws, RANGE_DRAWS))
            if sample.has_choice
            else None
        )
        one_query = exponential_run(sample.one_query, **shared)
        several = None if sample.all_queries is None else exponential_run(sample.all_queries, **shared)
    except NotConverged as error:
        yield _row(SOFTMAX_ERROR, None, reason=str(error), scope="any data")
        return
    n, share = len(sample.one_query.query), problem.share
    note = f"The block is trained on {n} sequences with {len(problem.classes)} next tokens."
    yield _assumption(ONE_QUERY, share, ">=", 1.0, unit="share", n=len(problem.query), note=note)
    arrays = {"token_ids": sample.token_ids}
    if softmax is None:
        yield _row(SOFTMAX_ERROR, None, reason=NO_CHOICE, scope="any data")
    else:
        yield from _softmax_rows(softmax, one_query=share == 1, n=n)
        arrays |= {
            "times": softmax.times,
            "true": softmax.measured,
            "fixed": softmax.fixed,
            "moving": softmax.moving,
        }
    # With one query the invariant holds for any data, so the drift has no verdict. Several queries are not
    # covered.
    yield _drift_row(one_query, at={"queries": "one query"})
    arrays["exponential"] = torch.stack([one_query.squares, one_query.logits])
    if several is not None:
        yield _drift_row(several, at={"queries": "several queries"}, verdict="not covered")
        arrays["exponential_several"] = torch.stack([several.squares, several.logits])
    yield Arrays({f"{NAME}/{name}": values.numpy() for name, values in arrays.items()})


def _softmax_rows(softmax: SoftmaxRun, *, one_query: bool, n: int) -> Iterator[Measurement]:
    shift_note = "Share of its mass that the mean attention moves during training."
    factorisation_note = "Share of dz/dt that the factorisation loses, the larger of start and end."
    assumptions = (
        _assumption(STILL, softmax.shift, "<=", MAX_ASSUMPTION, n=n, note=shift_note),
        _assumption(
            FACTORISES, softmax.factorisation_error, "<=", MAX_ASSUMPTION, n=n, note=factorisation_note
        ),
    )
    yield from assumptions
    covered = one_query and all(row.verdict == "holds" for row in assumptions)
    measured = softmax.measured[-1, 0]
    fixed, moving = (
        goodness_of_fit(predicted[-1], measured) for predicted in (softmax.fixed, softmax.moving)
    )
    rows: tuple[tuple[str, Tensor, Op, str], ...] = (
        (
            SOFTMAX_ERROR,
            fixed.error,
            "<=",
            "Distance of the change of the logits from the prediction by the MLP's weights.",
        ),
        (SOFTMAX_CORRELATION, fixed.correlation, ">=", "The paper's measure; it does not see the size."),
        (MOVING_ERROR, moving.error, "<=", "The part of the error that is due to the factorisation."),
    )
    for quantity, runs, op, note in rows:
        # A perfect error is 0, a perfect correlation is 1. Run 0 learnt the next tokens of the data, the
        # other runs learnt shuffled ones.
        predicted, threshold = (0.0, MAX_ERROR) if op == "<=" else (1.0, 1 - MAX_ERROR)
        value, *draws = runs.tolist()
        null = Null(NULL_KIND, tuple(draws)) if draws else None
        verdict = judge_with_null(value, null, op, threshold, covered=covered)
        limits = {"op": op, "threshold": threshold, "side": op, "predicted": predicted}
        limits["bounds"] = CORRELATION if quantity == SOFTMAX_CORRELATION else None
        yield _row(
            quantity, value, **limits, nulls=(null,), verdict=verdict, scope="any data", n=n, note=note
        )


def judge_with_null(
    value: float, null: Null | None, op: Op, threshold: float, *, covered: bool
) -> VerdictName:
    """Returns the verdict of ``value op threshold``; "inconclusive" if the median of the null passes the
    threshold too.
    """
    both_pass = null is not None and {judge(number, op, threshold) for number in (value, null.median)} == {
        "consistent"
    }
    return judge(value, op, threshold, covered=covered, converged=not both_pass)


def _drift_row(run: ExponentialRun, **columns: Any) -> Measurement:
    note = "Largest change of z - Σv²/2 over that of z."
    return _row(
        DRIFT, run.drift, predicted=0.0, op="<=", threshold=MAX_DRIFT, scope="any data", note=note, **columns
    )


def _assumption(statement: str, value: float, op: Op, threshold: float, **columns: Any) -> Measurement:
    verdict = "holds" if judge(value, op, threshold) == "consistent" else "fails"
    return Measurement(
        NAME,
        "assumption",
        statement,
        value,
        op=op,
        threshold=threshold,
        verdict=verdict,
        source=SOURCE,
        **columns,
    )


def _row(quantity: str, value: float | None, **columns: Any) -> Measurement:
    return Measurement(NAME, "on data", quantity, value, source=SOURCE, **columns)


@style()
def plot(result: Result) -> "Figure":
    """Plots measured against predicted change and the error over time (softmax attention), and the
    exponential invariant.
    """
    if f"{NAME}/exponential" not in result.arrays:
        reasons = [row.reason for row in result.select(theory=NAME, kind="on data") if row.value is None]
        return text_figure(f"JoMA: {reasons[0] if reasons else 'nothing was measured'}")
    figure, (left, middle, right) = axes(1, 3, height=2.9)
    if f"{NAME}/true" in result.arrays:
        _plot_softmax(left, middle, result)
    else:
        left.set(title="Softmax attention: no choice")
    for key, name, label in (
        ("exponential_several", "null", "several queries"),
        ("exponential", NAME, "one query"),
    ):
        if f"{NAME}/{key}" in result.arrays:
            predicted, measured = result.arrays[f"{NAME}/{key}"]
            right.plot(predicted, measured, ".", color=colour(name), label=label)
            diagonal(right, predicted, measured)
    right.set(title="Exponential form", xlabel="change of Σv²/2", ylabel="change of z")
    right.legend(loc="upper left", fontsize=7, frameon=False)
    text = (
        "Each point is a token of the context. Grey on the left: predicted by blocks that learnt shuffled "
        "next tokens. Dashed: equality."
    )
    caption(figure, text)
    return figure


def _plot_softmax(left: "Axes", middle: "Axes", result: Result) -> None:
    measured, fixed, moving = (result.arrays[f"{NAME}/{name}"] for name in ("true", "fixed", "moving"))
    for run in range(1, measured.shape[1]):
        left.plot(
            fixed[-1, run], measured[-1, 0], ".", color=COLOURS["null"], markersize=3, alpha=0.6, zorder=1
        )
    left.plot(fixed[-1, 0], measured[-1, 0], ".", color=colour(NAME), zorder=2)
    diagonal(left, fixed[-1], measured[-1, 0])
    left.set(title="Softmax attention", xlabel="change of z, predicted", ylabel="change of z, measured")
    times = result.arrays[f"{NAME}/times"][1:]
    for values, name, label in ((fixed, NAME, "attention of the start"), (moving, "raw", "of each moment")):
        gap, size = (
            np.linalg.norm(x - x.mean(-1, keepdims=True), axis=-1)
            for x in (values[1:, 0] - measured[1:, 0], measured[1:, 0])
        )
        line(middle, times, gap / np.maximum(size, 1e-300), name=name, label=label)
    middle.set(title="Relative error", xlabel="time of the flow", ylim=(0, None))
    middle.legend(loc="lower right", fontsize=7, frameon=False)


def diagonal(ax: "Axes", *values: np.ndarray) -> None:
    """Draws a dashed line of equality over the range of the values."""
    ends = [min(float(v.min()) for v in values), max(float(v.max()) for v in values)]
    ax.plot(ends, ends, color=COLOURS["raw"], linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)


ON_DATA = OnData(read=read, measure=measure, headline=SOFTMAX_ERROR, plot=plot)


def analyse(
    ids: Int[np.ndarray, "n context"] | Int[Tensor, "n context"],
    query_ids: Int[np.ndarray, " n"] | Int[Tensor, " n"],
    next_ids: Int[np.ndarray, " n"] | Int[Tensor, " n"],
    *,
    steps: int = STEPS,
    seed: int = 0,
) -> Result:
    """Trains the theory's block on sequences of discrete tokens and compares its logits with the prediction
    by the MLP's weights.

        result = analyse(ids, query_ids, next_ids)
        result.to_pandas(), ON_DATA.plot(result)

    Args:
        ids: contextual tokens in any order, without the query, ``[n, context]``.
        query_ids: the query of each sequence, ``[n]``; the most frequent one is analysed.
        next_ids: the token that follows each sequence, ``[n]``.
        steps: number of steps of the gradient flow, each of time 1/2. The invariant of softmax attention
            fails late in training.
        seed: seed of the initial weights.
    Returns:
        The measurements and arrays of :func:`measure`; a single row with a reason if the sequences cannot be
        used.
    Raises:
        ValueError: an id or the seed is not an integer >= 0, ``steps`` is below 1, lengths differ, or there
            is no sequence.
        TypeError: ``steps`` is not an integer.
    """
    context, query, next_token, _ = sequence_ids(ids, query_ids, next_ids, None)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be an integer of at least 0, got {seed!r}")
    integers(steps=steps)
    started = time.perf_counter()
    problem = select_query(context, query, next_token)
    if isinstance(problem, Unsupported):
        table, arrays = collect([_row(SOFTMAX_ERROR, None, reason=problem.reason, scope="any data")])
    else:
        table, arrays = collect(
            measure(problem, Generator().manual_seed(int(seed)), draws=RANGE_DRAWS, steps=int(steps))
        )
    settings = {"steps": int(steps), "seed": int(seed)}
    return Result(
        f"{NAME}.analyse", settings, table, arrays, (), (SOURCE,), provenance(seed=int(seed), started=started)
    )
