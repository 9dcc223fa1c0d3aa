"""The judgement of measurements: a row, its null distributions and its family of tests become one outcome.

A measurement is summarised over its seeds (:func:`~.statistics.over_seeds`). The p-values of a family are
adjusted for the false discovery rate (Benjamini and Hochberg), once for the predicted side of the null and
once for the side opposite to the prediction. Tests in networks against copies of equal scale, which they
share, are adjusted by the studentised maximum instead, for both sides together
(:func:`~.statistics.studentised_maximum`). A further null may match the value or contradict its side.
Networks with initial weights are shown beside copies without a decision, and networks trained on permuted
labels answer a question of their own (:attr:`Judged.task`). Every report prints the same words,
:data:`OUTCOMES`. The scope of a row ("any data", "training") says what its number is evidence of and is no
outcome: it stands beside it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_columns
from typing import Literal

import numpy as np

from .measurement import Measurement, Null, Scope, Side
from .statistics import (
    COPIES,
    EQUAL_SCALE,
    EQUAL_SPECTRUM,
    HELD_INPUTS,
    LEVEL,
    NETWORKS,
    PERMUTED_LABELS,
    RANGE_DRAWS,
    UNTRAINED,
    agreement,
    false_discoveries,
    over_seeds,
    reason_without_p,
    student_interval,
    studentised,
    studentised_maximum,
)

FEW_COPIES = 5  # smallest number of draws with which other networks count by their range

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
IN_WORDS = {
    EQUAL_SCALE: "copies of equal scale",
    HELD_INPUTS: "copies of equal scale with held inputs",
    EQUAL_SPECTRUM: "copies of equal spectrum",
}
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
            Against copies both are the p-value of both sides together.
        nulls: kinds of the further nulls that match the value or contradict its side.
        against: kind of each further null that takes part, and the side of it on which the value lies, as
            ``side``; empty if the value does not leave the first null.
        reason: why there is no value or no test; empty otherwise.
        remark: what qualifies "not significant"; empty otherwise.
    """

    row: Measurement
    rows: tuple[Measurement, ...]
    outcome: Outcome
    side: int | None = None
    q: float | None = None
    other_q: float | None = None
    nulls: tuple[str, ...] = ()
    against: tuple[tuple[str, int | None], ...] = ()
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
        """The second null: that of the metric itself, if it has one; None without one."""
        further = self.row.nulls[1:]
        own = [null for null in further if null.kind not in NETWORKS]
        return next(iter(own or further), None)

    @property
    def on_noise(self) -> float | None:
        """The value on noise of a statement about any data. Elsewhere the null is the control, and a bare
        number on noise would mislead.
        """
        return self.row.on_noise if self.scope == "any data" else None

    @property
    def effect(self) -> float | None:
        """(value - median null) / (prediction - median null): 0 is chance, 1 the prediction. Without a
        prediction the bound of the quantity on the predicted side takes its place. Without either, a value in
        a network is compared with the median of its copies, (value - median) / median, positive on the
        predicted side; None elsewhere.
        """
        row = self.row
        value = row.value if row.null is None or row.null.value is None else row.null.value
        return self._effect(value)

    @property
    def effect_interval(self) -> tuple[float, float] | None:
        """The interval of the effect, from that of the value; None without one."""
        ends = [self._effect(end) for end in self.row.interval or ()]
        known = sorted(end for end in ends if end is not None)
        return (known[0], known[1]) if len(known) == 2 else None

    @property
    def effect_unit(self) -> Literal["prediction", "bound", "median", ""]:
        """The number that stands for an effect of 1; empty without an effect."""
        row = self.row
        if self.effect is None:
            return ""
        if row.predicted is not None:
            return "prediction"
        return "median" if self._bound() is None else "bound"

    def _bound(self) -> float | None:
        row = self.row
        return row.bounds[row.side == ">="] if row.bounds is not None and row.side in (">=", "<=") else None

    def _effect(self, value: float | None) -> float | None:
        row = self.row
        if row.null is None or value is None:
            return None
        median, target = row.null.median, row.predicted if row.predicted is not None else self._bound()
        if target is not None:
            return agreement(value, target, median)
        if row.null.kind != EQUAL_SCALE or not median or not math.isfinite(median):
            return None
        return (value - median) / abs(median) * (-1 if row.side == "<=" else 1)

    @property
    def task(self) -> Literal["beyond", "within"] | None:
        """Whether the value lies beyond all networks trained on permuted labels, on the side of the outcome.

        None: not tested, since there are no such networks, or too few, or the value is within the first null.
        Only "beyond" permits a statement about the labels: a network that learns noise changes too.
        """
        null = next((null for null in self.row.nulls if null.kind == PERMUTED_LABELS), None)
        if null is None or not self.side or len(null.draws) < FEW_COPIES:
            return None
        return "beyond" if side_of_null(self.row, null, FEW_COPIES) == self.side else "within"

    @property
    def words(self) -> str:
        """The outcome in a sentence, with the names of the nulls behind it."""
        if self.second is None or self.row.null is None:
            return self.outcome
        first, kinds = in_words(self.row.null.kind), self.nulls or (self.second.kind,)
        second = " and ".join(map(in_words, kinds))
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


def in_words(kind: str) -> str:
    """Returns a kind of null as the object of a sentence: ``"copies of equal scale"``."""
    return IN_WORDS.get(kind, kind)


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
    shared = _share_copies([row for row, _ in members])
    tested = [_is_tested(row) and not own for (row, _), own in zip(members, shared)]
    q = iter(false_discoveries([row.p or 0.0 for (row, _), test in zip(members, tested) if test]))
    others = [_other_p(row, rows) for (row, rows), test in zip(members, tested) if test]
    other_q = iter(false_discoveries([1.0 if p is None else p for p in others]))
    other_p = iter(others)
    adjusted = iter(against_copies([row for (row, _), own in zip(members, shared) if own]))
    found = []
    for (row, rows), test, own in zip(members, tested, shared):
        if own:
            p, side = next(adjusted)
            found.append(_decided(row, rows, rule, side if p <= LEVEL else 0, p, p, row.p))
        elif test:
            numbers = next(q), next(other_q), next(other_p)
            side = 1 if numbers[0] <= LEVEL else -1 if numbers[1] <= LEVEL else 0
            found.append(_decided(row, rows, rule, side, *numbers))
        else:
            found.append(_judged(row, rows, rule))
    return found


def _share_copies(rows: Sequence[Measurement]) -> list[bool]:
    """Returns which rows share copies of equal scale, as many as most of them have, and enough for a test."""
    counts = [_copies(row) for row in rows]
    usual = max((count for count in counts if count), key=counts.count, default=0)
    return [bool(count) and count == usual for count in counts]


def _copies(row: Measurement) -> int:
    """Returns the number of copies that can test a row; 0 if none can."""
    null = row.null
    usable = null is not None and row.value is not None and row.side in (">=", "<=")
    if not usable or row.scope == "any data" or null is None or null.kind != EQUAL_SCALE:
        return 0
    return len(null.draws) if LEVEL * (1 + len(null.draws)) >= 1 and len(set(null.draws)) > 1 else 0


def against_copies(rows: Sequence[Measurement]) -> list[tuple[float, int]]:
    """Tests rows that share their copies of equal scale as one family.

    Args:
        rows: rows with a side, whose first nulls have equally many draws.
    Returns:
        For each row the p-value of both sides, adjusted by the studentised maximum, and 1 if the value lies
        on the predicted side of its copies, -1 if on the other one.
    """
    nulls = [row.null for row in rows if row.null is not None]
    if not nulls:
        return []
    values = np.array([row.value if null.value is None else null.value for row, null in zip(rows, nulls)])
    draws = np.array([null.draws for null in nulls]).T
    above = studentised(values, draws)[0] > 0
    p = studentised_maximum(values, draws)
    return [(float(each), 1 if up == (row.side == ">=") else -1) for each, up, row in zip(p, above, rows)]


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


def _judged(row: Measurement, rows: tuple[Measurement, ...], rule: Rule) -> Judged:
    """Judges one measurement that has no p-value."""
    if row.value is None:
        return Judged(row, rows, "not measured", reason=row.reason)
    if row.scope == "any data":
        return Judged(row, rows, "not tested", reason=ABOUT_ANY_DATA)
    side = None if rule.first_draws is None else side_of_null(row, draws=rule.first_draws)
    if side is None:
        outcome = "too few draws" if _lacks_draws(row) else "not tested"
        return Judged(row, rows, outcome, reason=reason_without_p(row, _seeds(rows)))
    return _decided(row, rows, rule, side, None, None, None)


def _decided(
    row: Measurement,
    rows: tuple[Measurement, ...],
    rule: Rule,
    side: int,
    q: float | None,
    other_q: float | None,
    other_p: float | None,
) -> Judged:
    """Judges one measurement that leaves its first null on a side, or stays within it (0)."""
    decided = {"row": row, "rows": rows, "side": side, "q": q, "other_q": other_q}
    against = {null.kind: _side_of_second(row, rows, null, rule) for null in _further(row)}
    if missing := [kind for kind, each in against.items() if each is None and kind not in NETWORKS]:
        reason = f"no test: {missing[0]}, the second null, has too few draws"
        return Judged(**{**decided, "side": None}, outcome="too few draws", reason=reason)
    if side == 0:
        unadjusted = any(p is not None and p <= LEVEL for p in (row.p, other_p))
        remark = f"p is at most {LEVEL:g}, but not when adjusted for the family" if unadjusted else ""
        return Judged(**decided, outcome="not significant", remark=remark)
    decided["against"] = tuple(against.items())
    if contrary := tuple(kind for kind, each in against.items() if each == -side):
        return Judged(**decided, outcome="nulls conflict", nulls=contrary)
    if matching := tuple(kind for kind, each in against.items() if each == 0):
        return Judged(**decided, outcome="matched by a second null", nulls=matching)
    if not rule.every_seed and _seeds_differ(rows):
        return Judged(
            **decided, outcome="not significant", remark="seeds lie on both sides of the median of a null"
        )
    return Judged(**decided, outcome="as predicted" if side == 1 else "opposite")


def _further(row: Measurement) -> list[Null]:
    """Returns the nulls behind the first that take part in a decision. A null whose draws all equal the value
    cannot test it: rotation keeps every quantity of the spectrum.
    """
    copies = row.null is not None and row.null.kind in COPIES
    further = []
    for null in row.nulls[1:]:
        shown = null.kind.startswith(PERMUTED_LABELS) or (null.kind == UNTRAINED and copies)
        value = row.value if null.value is None else null.value
        same = value is not None and all(
            math.isclose(draw, value, rel_tol=1e-4, abs_tol=1e-12) for draw in null.draws
        )
        if not shown and not (null.kind in COPIES and (same or len(null.draws) < FEW_COPIES)):
            further.append(null)
    return further


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
    draws = FEW_COPIES if second.kind in COPIES else rule.second_draws
    side = side_of_null(row, second, draws)
    if not side or not rule.every_seed:
        return side
    pairs = _compared(rows, second.kind)
    own = [side_of_null(row, null, draws) for row, null in pairs]
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
