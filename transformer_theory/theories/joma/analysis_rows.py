"""An analysis as rows: the assumptions, the softmax invariant beside its null, and the drift of the exponential one.

Source: :cite:t:`tian2024joma`.
"""

from collections.abc import Iterator
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from ...core.claims import Evidence
from ...core.measurement import Row, assumption, by_construction, finding, not_applicable
from ...core.sources import Source
from .invariants import agreement
from .subject import Subject
from .trainings import Drift, Softmaxed

NAME = "joma"
SOURCE = Source("tian2024joma")
ANSWER = "relative error of the softmax invariant"
LINE, STILL = 0.5, 0.1  # of the relative error; of the two assumptions. Ours
NO_CHOICE = "softmax attention has no choice in contexts of a single token"


def rows_of(read: Subject, softmax: Softmaxed | None, alone: Drift, together: Drift | None) -> Iterator[Row]:
    """All rows; the verdicts on the softmax invariant are "outside assumptions" unless all assumptions hold.

    Source: :cite:t:`tian2024joma`.
    """
    note = f"share of the {read.total} sequences; {len(read.own.query)} of them are read, with {read.classes} next tokens"
    yield assumption(NAME, "all sequences ask with one query", read.share == 1, value=read.share, source=SOURCE, note=note)
    if softmax is None:
        yield Row(**{**not_applicable(NAME, NO_CHOICE), "quantity": ANSWER})
    else:
        assumed = [*_assumptions(softmax)]
        yield from assumed
        yield from _softmax_rows(softmax, met=read.share == 1 and all(row.get("verdict") == "holds" for row in assumed))
    yield by_construction(_drift_row("one query", alone, met=True))
    if together is not None:
        yield _drift_row("several queries", together, met=False)


def against_null(value: float, null: float, line: float, op: Literal["<=", ">="], *, met: bool) -> Evidence:
    """Evidence that counts as inconclusive where the null passes the line as well: agreement then says nothing about the theory."""
    own, other = (Evidence(x, line, op) for x in (value, null))
    return Evidence(value, line, op, converged={own.verdict, other.verdict} != {"consistent"}, covered=met)


def _assumptions(softmax: Softmaxed) -> Iterator[Row]:
    for says, value, note in (
        ("the mean attention stays", softmax.moved, "share of its mass that softmax attention moves during training"),
        (
            "the gradient's second moment factorises",
            softmax.unfactored,
            "relative size of what it leaves out of dz/dt, the larger of start and end",
        ),
    ):
        yield assumption(NAME, says, value <= STILL, value=value, bound=STILL, op="<=", source=SOURCE, note=f"{note}; the line is ours")


def _softmax_rows(softmax: Softmaxed, *, met: bool) -> Iterator[Row]:
    true = softmax.true[-1, 0]
    fixed, moving = (agreement(predicted[-1], true) for predicted in (softmax.fixed, softmax.moving))  # of the data, then of the shuffled
    yield _judged(ANSWER, fixed.error, LINE, "<=", "how far the change of logits is from what the MLP's weights predict", met=met)
    yield _judged("correlation of the softmax invariant", fixed.correlation, 1 - LINE, ">=", "the paper's, blind to the size", met=met)
    yield _judged(
        "relative error with the mean attention of each moment", moving.error, LINE, "<=", "what the factorisation alone leaves", met=met
    )


def _judged(quantity: str, runs: Float[Tensor, " runs"], line: float, op: Literal["<=", ">="], note: str, *, met: bool) -> Row:
    """Run 0 beside the mean of the others, which learnt shuffled next tokens; ideal is 0 for an error, 1 for a correlation."""
    null = float(runs[1:].mean())
    evidence = against_null(float(runs[0]), null, line, op, met=met)
    note += "; null: predicted by the MLP of blocks that learnt shuffled next tokens; the line is ours"
    if not evidence.converged:
        note += "; the null passes the line too, so this is no evidence"
    ideal = 0.0 if op == "<=" else 1.0
    return finding(NAME, quantity, evidence, source=SOURCE, predicted=ideal, null=null, note=note)


def _drift_row(who: str, found: Drift, *, met: bool) -> Row:
    return finding(
        NAME,
        f"drift of the exponential invariant, {who}",
        Evidence(found.share, 1e-3, "<=", covered=met),
        source=SOURCE,
        predicted=0.0,
        note="largest change of z - Σv²/2 over that of z, exponential attention",
    )
