"""The judgement of measurements: a row, its null distributions and its family of tests become one outcome.

A measurement is summarised over its seeds (:func:`~.statistics.over_seeds`). The p-values of a family are
adjusted for the false discovery rate (Benjamini and Hochberg), once for the predicted side of the null and
once for the side opposite to the prediction. A further null may match the value or contradict its side.
Every report prints the same words, :data:`OUTCOMES`. The scope of a row ("any data", "training") says what
its number is evidence of and is no outcome: it stands beside it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_columns
from typing import Literal

from .measurement import Measurement, Null, Scope, Side
from .statistics import (
    LEVEL,
    RANGE_DRAWS,
    agreement,
    false_discoveries,
    over_seeds,
    reason_without_p,
    student_interval,
)

Outcome = Literal[
    "as predicted",
    "opposite",
    "not significant",
    "too few draws",
    "matched by a second null",
    "nulls conflict",
    "not tested",
    "not measured",
]
OUTCOMES: dict[Outcome, str] = {
    "as predicted": "beyond the null, and beyond a second null if there is one, on the side that the theory "
    f"predicts; false discovery rate at most {LEVEL:g}",
    "opposite": f"beyond the nulls on the other side; false discovery rate at most {LEVEL:g}",
    "not significant": "not distinguishable from the null, for want of an effect or of power, or because "
    "seeds lie on both sides of it",
    "too few draws": "a null has too few draws or networks for a test",
    "matched by a second null": "beyond the null, but a second null of the same quantity gives as much",
    "nulls conflict": "beyond the null on one side, and beyond a second null on the other side",
    "not tested": "a statement about any data, or a quantity without a null or without a predicted side",
    "not measured": "no value; the reason stands in its place",
}
ABOUT_ANY_DATA = "a statement about any data: compare it with the value on noise"
OTHER_SIDE: dict[str | None, Side] = {">=": "<=", "<=": ">=", "==": "!="}


@dataclass(frozen=True)
class Rule:
    """What a family of tests counts as leaving a null.

    Attributes:
        first_draws: smallest number of draws with which the first null decides by its range if it has too few
            for a p-value; None: it never does.
        second_draws: the same for a second null, which has no p-value.
        every_seed: on which seeds a second null is left. True: each seed must leave its own null, or the
            interval of the difference must exclude 0; for draws within one network or data set, whose mean
            over seeds is narrow. False: seeds must lie on the same side of the medians of each null.
    """

    first_draws: int | None
    second_draws: int
    every_seed: bool


HEADLINES = Rule(first_draws=None, second_draws=RANGE_DRAWS, every_seed=True)
"""Headlines of a comparison."""
RUNGS = Rule(first_draws=RANGE_DRAWS, second_draws=RANGE_DRAWS, every_seed=False)
"""Rungs of a ladder, whose tests form one family."""
ONE_NETWORK = Rule(first_draws=RANGE_DRAWS, second_draws=1, every_seed=True)
"""Headlines in one network; the second null is a few networks with random weights, which count by their
range.
"""


@dataclass(frozen=True, eq=False)
class Judged:
    """A measurement with its judgement.

    Attributes:
        row: the summary over seeds, with p-value, agreement and interval.
        rows: the measurements behind it, one per seed.
        outcome: one of :data:`OUTCOMES`.
        side: 1 beyond the first null on the predicted side, -1 on the other side, 0 if neither; None without
            a test.
        q, other_q: p-value on the predicted side, and on the other one, adjusted in the family; None without.
        reason: why there is no value or no test; empty otherwise.
        remark: what qualifies "not significant"; empty otherwise.
    """

    row: Measurement
    rows: tuple[Measurement, ...]
    outcome: Outcome
    side: int | None = None
    q: float | None = None
    other_q: float | None = None
    reason: str = ""
    remark: str = ""

    @property
    def seeds(self) -> int:
        """Number of seeds with a value."""
        return sum(row.value is not None for row in self.rows)

    @property
    def scope(self) -> Scope | None:
        """What the number is evidence of."""
        return self.row.scope

    @property
    def second(self) -> Null | None:
        """The second null; None without one."""
        return self.row.nulls[1] if len(self.row.nulls) > 1 else None

    @property
    def on_noise(self) -> float | None:
        """The value on noise of a statement about any data. Elsewhere the null is the control, and a bare
        number on noise would mislead.
        """
        return self.row.on_noise if self.scope == "any data" else None

    @property
    def effect(self) -> float | None:
        """(value - median null) / (prediction - median null): 0 is chance, 1 the prediction. Without a
        prediction the bound of the quantity on the predicted side takes its place; None without either.
        """
        return self._effect(self.row.value)

    @property
    def effect_interval(self) -> tuple[float, float] | None:
        """The interval of the effect, from that of the value; None without one."""
        ends = [self._effect(end) for end in self.row.interval or ()]
        known = sorted(end for end in ends if end is not None)
        return (known[0], known[1]) if len(known) == 2 else None

    def _effect(self, value: float | None) -> float | None:
        row = self.row
        target = row.predicted
        if target is None and row.bounds is not None and row.side in (">=", "<="):
            target = row.bounds[row.side == ">="]
        return agreement(value, target, None if row.null is None else row.null.median)

    @property
    def words(self) -> str:
        """The outcome in a sentence, with the names of the nulls behind it."""
        if self.second is None or self.row.null is None:
            return self.outcome
        first, second = self.row.null.kind, self.second.kind
        if self.outcome == "matched by a second null":
            return f"matched by {second}"
        if self.outcome == "nulls conflict":
            ends = (
                "beyond {} but on the opposite side of {}"
                if self.side == 1
                else "on the opposite side of {} but beyond {}"
            )
            return ends.format(first, second)
        return self.outcome


def judge(
    family: Iterable[tuple[Measurement, Sequence[Measurement]]], rule: Rule = HEADLINES
) -> list[Judged]:
    """Judges the measurements of one family of tests, in their order.

    Args:
        family: pairs of the summary over seeds (:func:`~.statistics.over_seeds`) and its rows, one per seed.
            Statements about any data take part, but they are not tested.
        rule: what counts as leaving a null.
    """
    members = [(row, tuple(rows)) for row, rows in family]
    tested = [_is_tested(row) for row, _ in members]
    q = iter(false_discoveries([row.p or 0.0 for (row, _), test in zip(members, tested) if test]))
    others = [_other_p(row, rows) for (row, rows), test in zip(members, tested) if test]
    other_q = iter(false_discoveries([1.0 if p is None else p for p in others]))
    other_p = iter(others)
    return [
        _judged(row, rows, rule, (next(q), next(other_q), next(other_p)) if test else None)
        for (row, rows), test in zip(members, tested)
    ]


def side_of_null(row: Measurement, null: Null | None = None, draws: int = RANGE_DRAWS) -> int | None:
    """Returns 1 if a value leaves a null on the predicted side, -1 on the opposite side, 0 if it stays
    within; None without a value or a side, or with fewer draws.

    A value leaves a null if its p-value is at most 5 %, or if it lies beyond all of the draws.

    Args:
        row: value, predicted side and prediction.
        null: the null; None: the first one of the row.
        draws: smallest number of draws.
    """
    null = row.null if null is None else null
    if null is None or row.value is None or row.side is None or len(null.draws) < draws:
        return None
    value = row.value if null.value is None else null.value
    largest = max(LEVEL, 1 / (1 + len(null.draws)))
    if null.p(value, row.side, predicted=row.predicted) <= largest:
        return 1
    other = OTHER_SIDE.get(row.side)
    return -1 if other is not None and null.p(value, other, predicted=row.predicted) <= largest else 0


def _is_tested(row: Measurement) -> bool:
    return row.p is not None and row.scope != "any data"


def _other_p(row: Measurement, rows: Sequence[Measurement]) -> float | None:
    """Returns the p-value on the side opposite to the prediction; None if there is no such side."""
    other = OTHER_SIDE.get(row.side)
    return None if other is None else over_seeds([with_columns(each, side=other) for each in rows]).p


def _judged(
    row: Measurement,
    rows: tuple[Measurement, ...],
    rule: Rule,
    test: tuple[float, float, float | None] | None,
) -> Judged:
    """Judges one measurement; ``test`` holds both adjusted p-values and the p-value on the other side."""
    if row.value is None:
        return Judged(row, rows, "not measured", reason=row.reason)
    if row.scope == "any data":
        return Judged(row, rows, "not tested", reason=ABOUT_ANY_DATA)
    q, other_q, other_p = test or (None, None, None)
    if q is not None and other_q is not None:
        side = 1 if q <= LEVEL else -1 if other_q <= LEVEL else 0
    else:
        side = None if rule.first_draws is None else side_of_null(row, draws=rule.first_draws)
    second = row.nulls[1] if len(row.nulls) > 1 else None
    if side is None:
        outcome = "too few draws" if _lacks_draws(row) else "not tested"
        return Judged(row, rows, outcome, reason=reason_without_p(row, _seeds(rows)))
    decided = {"row": row, "rows": rows, "side": side, "q": q, "other_q": other_q}
    against = None if second is None else _side_of_second(row, rows, second, rule)
    if second is not None and against is None:
        reason = f"no test: {second.kind}, the second null, has too few draws"
        return Judged(**{**decided, "side": None}, outcome="too few draws", reason=reason)
    if side == 0:
        unadjusted = any(p is not None and p <= LEVEL for p in (row.p, other_p))
        remark = f"p is at most {LEVEL:g}, but not when adjusted for the family" if unadjusted else ""
        return Judged(**decided, outcome="not significant", remark=remark)
    if against == 0:
        return Judged(**decided, outcome="matched by a second null")
    if against == -side:
        return Judged(**decided, outcome="nulls conflict")
    if not rule.every_seed and _seeds_differ(rows):
        return Judged(
            **decided, outcome="not significant", remark="seeds lie on both sides of the median of a null"
        )
    return Judged(**decided, outcome="as predicted" if side == 1 else "opposite")


def _seeds(rows: Sequence[Measurement]) -> int:
    return sum(row.value is not None for row in rows)


def _lacks_draws(row: Measurement) -> bool:
    """Returns whether more draws of the null would give a test: nothing else is missing."""
    return (
        row.null is not None
        and bool(row.null.draws)
        and (len(set(row.null.draws)) > 1 or len(row.null.draws) == 1)
        and row.side is not None
        and (row.side != "==" or row.predicted is not None)
    )


def _side_of_second(row: Measurement, rows: Sequence[Measurement], second: Null, rule: Rule) -> int | None:
    """Returns the side of the second null on which the mean over seeds lies, as :func:`side_of_null`; 0 if
    the seeds do not bear it out (:attr:`Rule.every_seed`).
    """
    side = side_of_null(row, second, rule.second_draws)
    if not side or not rule.every_seed:
        return side
    pairs = _compared(rows, second.kind)
    own = [side_of_null(row, null, rule.second_draws) for row, null in pairs]
    if len(pairs) < 2 or all(one == side for one in own):
        return side
    ends = student_interval([null.value - null.median for _, null in pairs if null.value is not None])
    return side if ends is not None and not ends[0] <= 0 <= ends[1] else 0


def _seeds_differ(rows: Sequence[Measurement]) -> bool:
    """Returns whether seeds lie on different sides of the medians of one of their nulls."""
    kinds = dict.fromkeys(null.kind for row in rows for null in row.nulls)
    return any(
        len({null.value > null.median for _, null in _compared(rows, kind) if null.value is not None}) > 1
        for kind in kinds
    )


def _compared(rows: Sequence[Measurement], kind: str) -> list[tuple[Measurement, Null]]:
    """Returns the rows with a value and draws of a null, each with this null and the value beside it."""
    return [
        (row, null.with_value(row.value))
        for row in rows
        for null in row.nulls
        if null.kind == kind and null.draws and row.value is not None
    ]
