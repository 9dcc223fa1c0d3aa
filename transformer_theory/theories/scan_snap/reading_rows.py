"""A reading as rows and arrays: the assumptions, what each of the dynamics predicts, what was measured, and its null.

Source: :cite:t:`tian2023scan`.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...core.claims import Evidence
from ...core.measurement import Arrays, Row, assumption, finding
from ...core.sources import Source
from .flow import CLOSED, EXACT
from .orders import Order
from .predictions import CLOSE, UNRESOLVED
from .reading import Match, Reading

NAME = "scan_snap"
PAPER = "tian2023scan"
ANSWER = "rank correlation of distinctness and logit change"
FACTOR = 2.0  # between predicted and measured half-way steps, up to which a prediction counts as right
ERROR = "relative error of the predicted logit change"


def rows_of(found: Reading) -> Iterator[Row]:
    """All rows of a query; the theorems' verdicts are "outside assumptions" unless all of them hold, the exact flow's unless sequences
    are long and learnt for long. Numbers that are not finite are left out.

    Source: :cite:t:`tian2023scan`.
    """
    for row in (*_assumptions(found), *_tokens(found), *_dynamics(found), *_attention(found), *_learnt(found)):
        finite = {column: value for column, value in row.items() if not isinstance(value, float) or math.isfinite(value)}
        if "bound" not in finite:
            finite.pop("op", None)
        yield Row(**{"value": None, **finite, "model": f"query {found.subject.query_id}"})  # pyright: ignore[reportArgumentType]


def _assumptions(found: Reading) -> Iterator[Row]:
    for given in found.assumptions:
        side = {} if given.says.startswith("all sequences ask") else {"bound": given.bound, "op": "<=" if given.op == "<" else given.op}
        source = Source(PAPER, given.source) if given.source else Source(PAPER)
        yield assumption(NAME, given.says, given.holds, value=given.value, source=source, note=given.note, **side)
    yield assumption(
        NAME,
        "the decoder follows Lemma 3 (closed forms only)",
        False,
        value=found.modified_decoder,
        source=Source(PAPER, "Lemma 3"),
        note="gradient descent trains the exact decoder; the value is the relative size of what Lemma 3 leaves out of its gradient",
    )


def _tokens(found: Reading) -> Iterator[Row]:
    """Which tokens gain and which lose, by distinctness alone, and by their probability in their own class."""
    read, trained, split = found.subject, found.trained, found.groups
    theorem = Source(PAPER, "Thm. 2")
    yield Row(
        theory=NAME,
        quantity="distinctness of the contextual tokens",
        value=float(read.frequency @ read.distinctness),
        null=found.null_distinctness,
        source=str(Source(PAPER)),
        note=f"mean by how often they occur; 1: each in one class only, 1/{read.classes.classes}: all alike; null: shuffled next tokens",
    )
    order = found.by_distinctness
    yield _finding(
        ANSWER,
        _of_order(order, found.met),
        theorem,
        predicted=1.0,
        null=order.null,
        note=f"do tokens of one class gain attention and tokens of many lose it, in {trained.steps} steps? Over {order.tokens} tokens; "
        f"null: shuffled next tokens; line: {_line(order)}",
    )
    if (held := found.by_held_out) is not None:
        yield _finding(
            "rank correlation of held-out distinctness and logit change",
            _of_order(held, found.met),
            theorem,
            predicted=1.0,
            null=held.null,
            note=f"distinctness counted on sequences that were not learnt, over {held.tokens} tokens; null: shuffled next tokens; "
            f"line: {_line(held)}",
        )
    for name, group in (("distinct", split.distinct), ("common", split.common)):
        share = read.frequency * group / (read.frequency * group).sum()
        moved = trained.change @ share
        note = f"mean over {int(group.sum())} tokens by how often they occur; {split.rule}"
        evidence = Evidence(float(moved[0]), 0.0, ">=" if name == "distinct" else "<=", covered=found.met)
        yield _finding(f"logit change of {name} tokens", evidence, theorem, null=float(moved[1:].mean()), note=note)
    if len(pairs := found.likelier_gains):
        yield _finding(
            "share of pairs of a class's tokens whose likelier one gains more",
            Evidence(float(pairs[0]), 0.5, ">=", covered=found.met),
            Source(PAPER, "Thm. 3"),
            predicted=1.0,
            null=float(pairs[1:].mean()),
            note=f"{len(found.gains.pairs)} pairs; null: shuffled next tokens",
        )


def _dynamics(found: Reading) -> Iterator[Row]:
    """Each of the dynamics against descent: the order of the tokens, and how far they moved."""
    for given in found.predictions:
        if given.reason:
            source, quantity = str(_source(given.dynamics)), f"{ERROR}, {given.dynamics}"
            verdict = "inconclusive" if given.reason.startswith(UNRESOLVED) else f"not applicable: {given.reason}"
            yield Row(theory=NAME, quantity=quantity, value=None, verdict=verdict, source=source, note=given.reason)
        elif given.dynamics == CLOSED:
            measured, predicted = found.trained.change[:, given.tokens[0]], float(given.logits[-1, 0])
            off = ((measured - predicted) / measured).abs()
            note = f"of the common token: predicted {predicted:.3f}, measured {float(measured[0]):.3f}; null: shuffled next tokens"
            evidence = Evidence(float(off[0]), CLOSE, "<=", covered=False)
            yield _finding(f"{ERROR}, {CLOSED}", evidence, _source(CLOSED), predicted=0.0, null=float(off[1:].mean()), note=note)
    for match in found.matches:
        yield from _match(found, match)


def _match(found: Reading, match: Match) -> Iterator[Row]:
    inside = found.settled if match.dynamics == EXACT else False
    short = "; these sequences are too short for this flow, see the assumption" if match.dynamics == EXACT and found.finite > CLOSE else ""
    note = f"from counts alone, over {match.order.tokens} tokens; null: trained on shuffled next tokens; line: {_line(match.order)}{short}"
    quantity = f"rank correlation of predicted and measured logit change, {match.dynamics}"
    order = _of_order(match.order, inside)
    yield _finding(quantity, order, _source(match.dynamics), predicted=1.0, null=match.order.null, note=note)
    yield _finding(
        f"{ERROR}, {match.dynamics}",
        Evidence(match.error, CLOSE, "<=", covered=inside),
        _source(match.dynamics),
        predicted=0.0,
        null=match.null_error,
        note=f"Euclidean distance over all tokens; 1: no better than predicting no change; null: trained on shuffled next tokens{short}",
    )
    times = found.half_way
    if float(times[0]) > 0 and match.half_way > 0:
        off = (times.clamp(min=1) / max(match.half_way, 1)).log().abs().exp()
        yield _finding(
            f"factor between predicted and measured half-way step, {match.dynamics}",
            Evidence(float(off[0]), FACTOR, "<=", covered=inside),
            _source(match.dynamics),
            predicted=1.0,
            null=float(off[1:].mean()),
            note=f"half of the logits' movement is made by step {float(times[0]):.0f}, predicted {match.half_way:.0f}, "
            f"shuffled next tokens {float(times[1:].mean()):.0f}; t0' = {found.scanning_time:.4g}{short}",
        )


def _of_order(order: Order, met: bool) -> Evidence:
    return Evidence(order.value, order.line, ">=", covered=met)


def _line(order: Order) -> str:
    if not math.isfinite(order.line):
        return "none, as more than 5 % of random orders of so few or tied tokens, or the null, are as good as any"
    return "chance (5 %), or the null if larger"


def _attention(found: Reading) -> Iterator[Row]:
    sharp = found.trained.sharpness
    note = "1 - entropy / log of the length, mean over the sequences; attention starts uniform, at 0; null: shuffled next tokens"
    value, null = float(sharp[0]), float(sharp[1:].mean())
    yield Row(theory=NAME, quantity="sharpness after training", value=value, null=null, source=str(Source(PAPER)), note=note)
    gains = found.gains
    moved = gains.measured[0] - gains.start
    left = (gains.measured[0] - gains.predicted[0]).abs()[moved != 0] / moved[moved != 0].abs()
    note = (
        f"median over {len(left)} pairs of tokens of a class, r(t) against r(0) exp(2 Δz); 1 would be no better than predicting no change"
    )
    yield _finding(
        "share of the change of relative gains that the closed form misses",
        Evidence(float(left.median()) if len(left) else math.nan, 0.05, "<=", covered=False),
        Source(PAPER, "Thm. 3"),
        predicted=0.0,
        null=1.0,
        note=note,
    )


def _learnt(found: Reading) -> Iterator[Row]:
    trained = found.trained
    note = f"share of its own training sequences that the one-layer model predicts after {trained.steps} steps; null: shuffled next tokens"
    value, null = float(trained.accuracy[0]), float(trained.accuracy[1:].mean())
    yield Row(theory=NAME, quantity="accuracy of the minimal model", value=value, null=null, note=note)
    if len(held := trained.held_out):
        assert found.subject.held_out is not None
        note = f"on {len(found.subject.held_out.target)} sequences that were not learnt; null: after learning shuffled next tokens"
        value, null = float(held[0]), float(held[1:].mean())
        yield Row(theory=NAME, quantity="held-out accuracy of the minimal model", value=value, null=null, note=note)


def arrays_of(found: Reading) -> Arrays:
    """What the picture of a query is drawn from.

    Source: :cite:t:`tian2023scan`.
    """
    read, trained, gains, split = found.subject, found.trained, found.gains, found.groups
    held = {
        "steps": trained.path.steps.numpy(),
        "logits": trained.logits[:, 0].numpy(),
        "null_change": trained.change[1:].numpy(),
        "distinctness": read.distinctness.numpy(),
        "distinct": split.distinct.numpy(),
        "common": split.common.numpy(),
        "frequency": read.frequency.numpy(),
        "conditional": read.classes.conditional.numpy(),
        "overlap": found.overlap.numpy(),
        "attended": read.classes.attended(trained.path.attention[-1, 0]).numpy(),
        "gain_start": gains.start.numpy(),
        "gain_measured": gains.measured[0].numpy(),
        "gain_predicted": gains.predicted[0].numpy(),
        "token_ids": read.counted.token_ids.numpy(),
        "next_ids": read.counted.next_ids.numpy(),
        "scanning_time": np.array(found.scanning_time),
        "movement": np.linalg.norm(trained.logits.numpy(), axis=-1),
    }
    for given in found.predictions:
        if given.dynamics != CLOSED and not given.reason:
            held[f"predicted/{given.dynamics}"] = given.logits.numpy()
    return Arrays({f"{NAME}/{name}": value for name, value in held.items()})


def _source(dynamics: str) -> Source:
    """Where the paper states what is predicted; the exact flow is its model, without approximation."""
    places = {"modified flow": "Lemma 3", "Lemma 4": "Lemma 4", CLOSED: "Thm. 4"}
    return Source(PAPER, places[dynamics]) if dynamics in places else Source(PAPER)


def _finding(quantity: str, evidence: Evidence, source: Source, *, null: float | None = None, **columns) -> Row:
    """A finding whose verdict is "inconclusive" if nothing could be measured."""
    if not math.isfinite(evidence.value):
        evidence = replace(evidence, covered=True)
    if null is not None:
        columns["null"] = null
    return finding(NAME, quantity, evidence, source=source, **columns)
