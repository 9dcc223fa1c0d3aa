"""The judgement of measurements: a row, its null distributions and its family of tests become one outcome.

A measurement is summarised over its seeds (:func:`~.statistics.over_seeds`). The first null decides. Tests
against copies of equal scale share their draws: they are adjusted by the studentised maximum over the family,
on both sides at once (:func:`against_copies`). Other p-values are adjusted for the false discovery rate
(Benjamini and Hochberg), once for the predicted side of the null and once for the opposite side. With B draws
a single finding among m tests is possible only if 1 / (1 + B) <= LEVEL / m. If it is not, and more draws may
give one, the outcome is "too few draws", never "not significant". Further
nulls may match the value or contradict its side; untrained networks are only shown, and networks trained on
permuted labels answer a question of their own (:attr:`Judged.task`).
Every report prints the same words, :data:`OUTCOMES`. The scope of a row ("any data", "training") says what
its number is evidence of and is no outcome: it stands beside it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_columns
from typing import Literal

import numpy as np

from .format import counted, p_value
from .measurement import Measurement, Null, Scope, Side, extremeness
from .statistics import (
    COPIES,
    EQUAL_SCALE,
    EQUAL_SPECTRUM,
    HELD_INPUTS,
    LEVEL,
    PERMUTED_LABELS,
    RANGE_DRAWS,
    ROUNDING,
    SHOWN,
    UNTRAINED,
    agreement,
    clopper_pearson,
    equals_its_draws,
    false_discoveries,
    over_seeds,
    reason_without_p,
    smallest_p,
    student_interval,
    studentised,
    studentised_maximum,
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
    "as predicted": "beyond the null, and beyond every further null that decides, on the side that the "
    f"theory predicts; false discovery rate at most {LEVEL:g}, and against copies of the network the "
    f"probability of any false finding at most {LEVEL:g}",
    "opposite": "beyond the nulls on the other side, with the same error",
    "not significant": "not distinguishable from the null, for want of an effect or of power, or because "
    "seeds lie on both sides of it",
    "too few draws": "a null has too few draws or networks for a test, or for a single finding among as many "
    "tests as the family has",
    "matched by a second null": "beyond the null, but a second null of the same quantity gives as much",
    "nulls conflict": "beyond the null on one side, and beyond a second null on the other side",
    "not tested": "a statement about any data, or a quantity without a null or without a predicted side",
    "not measured": "no value; the reason stands in its place",
}
IN_WORDS = {
    EQUAL_SCALE: "copies of equal scale",
    HELD_INPUTS: "copies of equal scale with held inputs",
    EQUAL_SPECTRUM: "copies of equal spectrum",
}
ABOUT_ANY_DATA = "a statement about any data: compare it with the value on noise"
DifferenceOutcome = Literal[
    "differs", "no difference", "not significant", "too few draws", "not tested", "not measured"
]
DIFFERENCES: dict[DifferenceOutcome, str] = {
    "differs": "the difference leaves those of exchanged networks, and its interval excludes 0; the "
    f"probability of any false finding is at most {LEVEL:g}",
    "no difference": "the two networks have the same value on the inputs, and without each group of them",
    "not significant": "not distinguishable from differences of exchanged networks, for want of an effect or "
    "of power",
    "too few draws": "too few inputs, and so too few groups of them, for a test",
    "not tested": "a quantity that is no headline",
    "not measured": "no value; the reason stands in its place",
}
RANGE_OF_FEW = 5  # draws of a further null with which its range decides; copies other than of equal scale: 9
OTHER_SIDE: dict[str | None, Side] = {">=": "<=", "<=": ">=", "==": "!="}


@dataclass(frozen=True)
class Rule:
    """What a family of tests counts as leaving a null.

    Attributes:
        first_draws: smallest number of draws with which the first null decides by its range if it has too few
            for a p-value; None: it never does.
        every_seed: on which seeds a further null is left. True: each seed must leave its own null, or the
            interval of the difference must exclude 0; for draws within one network or data set, whose mean
            over seeds is narrow. The range of untrained networks never decides then. False: seeds must lie on
            the same side of the medians of each null.
    """

    first_draws: int | None
    every_seed: bool


HEADLINES = Rule(first_draws=None, every_seed=True)
"""Headlines of a comparison or of one network: a family, in which a range decides nothing."""
RUNGS = Rule(first_draws=RANGE_DRAWS, every_seed=False)
"""Rungs of a ladder, whose tests form one family."""
ONE_NETWORK = Rule(first_draws=RANGE_DRAWS, every_seed=True)
"""A quantity of one network by itself, outside the family of the headlines."""


@dataclass(frozen=True, eq=False)
class Judged:
    """A measurement with its judgement.

    Attributes:
        row: the summary over seeds, with p-value, agreement and interval.
        rows: the measurements behind it, one per seed.
        outcome: one of :data:`OUTCOMES`.
        side: 1 beyond the first null on the predicted side, -1 on the other side, 0 if neither; None without
            a test.
        q, other_q: p-value on the predicted side, and on the other one, adjusted in the family; against
            copies of equal scale both are the two-sided one. None without.
        reason: why there is no value or no test; empty otherwise.
        remark: what qualifies "not significant"; empty otherwise.
        against: kind of each further null that decides, and the side of it on which the value lies, as
            ``side``; empty if the value does not leave the first null.
        cannot_test: kinds of the further nulls whose draws all equal the value, so that they decide nothing.
    """

    row: Measurement
    rows: tuple[Measurement, ...]
    outcome: Outcome
    side: int | None = None
    q: float | None = None
    other_q: float | None = None
    reason: str = ""
    remark: str = ""
    against: tuple[tuple[str, int | None], ...] = ()
    cannot_test: tuple[str, ...] = ()

    @property
    def seeds(self) -> int:
        """Number of seeds with a value."""
        return sum(row.value is not None for row in self.rows)

    @property
    def scope(self) -> Scope | None:
        """What the number is evidence of."""
        return self.row.scope

    @property
    def nulls(self) -> tuple[str, ...]:
        """The kinds of the further nulls that match the value or conflict with the first null, as the outcome
        says; empty with other outcomes.
        """
        if self.side is None or self.outcome not in ("matched by a second null", "nulls conflict"):
            return ()
        side = 0 if self.outcome == "matched by a second null" else -self.side
        return tuple(kind for kind, one in self.against if one == side)

    @property
    def further(self) -> tuple[Null, ...]:
        """The nulls behind the first that decide, too."""
        return tuple(_further(self.row))

    @property
    def second(self) -> Null | None:
        """The first of the further nulls that decide; None without one."""
        return next(iter(self.further), None)

    @property
    def untrained(self) -> Null | None:
        """Untrained networks, which are shown beside the null that decides; None without them."""
        return next((null for null in self.row.nulls[1:] if null.kind == UNTRAINED), None)

    @property
    def task(self) -> Literal["beyond", "within"] | None:
        """Whether the value is evidence about the task: "beyond" if the mean over seeds lies beyond all
        networks trained on permuted labels, on the side of the outcome; None without
        :data:`RANGE_OF_FEW` such networks, or without a test.
        """
        null = next((null for null in self.row.nulls if null.kind == PERMUTED_LABELS), None)
        if null is None or len(null.draws) < RANGE_OF_FEW or self.side is None:
            return None
        value, draws = _extreme(self.row, null)
        beyond = value > max(draws) if self.side == 1 else value < min(draws)
        return "beyond" if self.side and beyond else "within"

    @property
    def on_noise(self) -> float | None:
        """The value on noise of a statement about any data. Elsewhere the null is the control, and a bare
        number on noise would mislead.
        """
        return self.row.on_noise if self.scope == "any data" else None

    @property
    def effect_unit(self) -> Literal["prediction", "bound", "median", ""]:
        """What the effect is divided by: the distance of the prediction, or of the bound of the quantity on
        the predicted side, from the median null; or this median itself, if neither exists and the null is
        drawn from copies of the network. Empty without any of them.
        """
        row = self.row
        if row.predicted is not None:
            return "prediction"
        if self._bound is not None:
            return "bound"
        return "median" if row.null is not None and row.null.kind in COPIES else ""

    @property
    def effect(self) -> float | None:
        """(value - median null) / (prediction - median null): 0 is chance, 1 the prediction. Without a
        prediction the bound of the quantity takes its place; without either the difference is
        divided by the size of the median null, see :attr:`effect_unit`. The value is the one on the inputs
        of the draws.
        """
        return self._effect(self.compared)

    @property
    def compared(self) -> float | None:
        """The value on the inputs of the draws of the first null, with which they are compared."""
        null = self.row.null
        return self.row.value if null is None or null.value is None else null.value

    @property
    def effect_interval(self) -> tuple[float, float] | None:
        """The interval of the effect, as wide as that of the value; None without one."""
        if self.row.interval is None or self.row.value is None or self.compared is None:
            return None
        ends = [self._effect(end - self.row.value + self.compared) for end in self.row.interval]
        known = sorted(end for end in ends if end is not None)
        return (known[0], known[1]) if len(known) == 2 else None

    @property
    def _bound(self) -> float | None:
        row = self.row
        return None if row.bounds is None or row.side not in (">=", "<=") else row.bounds[row.side == ">="]

    def _effect(self, value: float | None) -> float | None:
        null = self.row.null
        median = None if null is None else null.median
        if self.effect_unit == "median" and null is not None and median is not None:
            # a median that is zero up to rounding is no unit
            if abs(median) <= ROUNDING * max(map(abs, null.draws), default=0.0):
                return None
            return agreement(value, median + abs(median), median)
        return agreement(value, self._bound if self.row.predicted is None else self.row.predicted, median)

    def notable(self, smallest: float) -> bool:
        """Returns whether the value leaves its nulls with an adjusted p-value of at most
        :data:`~.statistics.LEVEL`, and by an effect of at least ``smallest``, if the effect is defined.
        """
        beyond = self.outcome in ("as predicted", "opposite") and self.q is not None
        return beyond and (self.effect is None or abs(self.effect) >= smallest)

    @property
    def words(self) -> str:
        """The outcome in a sentence, with the names of the nulls behind it."""
        if not self.nulls or self.row.null is None:
            return self.outcome
        first, others = in_words(self.row.null.kind), " and ".join(map(in_words, self.nulls))
        if self.outcome == "matched by a second null":
            return f"matched by {others}"
        ends = (
            "beyond {} but on the opposite side of {}"
            if self.side == 1
            else "on the opposite side of {} but beyond {}"
        )
        return ends.format(first, others)


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
    shared = against_copies([row for row, _ in members])
    tested = [
        row.p is not None and row.scope != "any data" and copies is None
        for (row, _), copies in zip(members, shared)
    ]
    q = iter(false_discoveries([row.p or 0.0 for (row, _), test in zip(members, tested) if test]))
    others = [_other_p(row, rows) for (row, rows), test in zip(members, tested) if test]
    other_q = iter(false_discoveries([1.0 if p is None else p for p in others]))
    other_p = iter(others)

    def tests() -> Iterable[_Test | None]:
        for (row, rows), test, copies in zip(members, tested, shared):
            if copies is not None:
                p, distance = copies
                yield _Test((0 if p > LEVEL else 1 if distance > 0 else -1), p, p, None)
            elif test:
                one, other = next(q), next(other_q)
                side = 1 if one <= LEVEL else -1 if other <= LEVEL else 0
                other_one = next(other_p)
                undecided = "" if side else _undecided(row, rows, other_one, sum(tested))
                yield _Test(side, one, other, other_one, undecided)
            else:
                yield None

    return [_judged(row, rows, rule, test) for (row, rows), test in zip(members, tests())]


def against_copies(rows: Sequence[Measurement]) -> list[tuple[float, float] | None]:
    """Tests a family of rows against the copies of equal scale that they share
    (:func:`~.statistics.studentised_maximum`).

    If members have different numbers of copies, all are compared with the first ones, as many as each has.

    Returns:
        For each row its adjusted two-sided p-value and its standardised distance, positive on the predicted
        side; None for a row whose first null is another one, or that cannot be tested.
    """
    chosen = [index for index, row in enumerate(rows) if _has_copies(row)]
    found: list[tuple[float, float] | None] = [None] * len(rows)
    if not chosen:
        return found
    columns = [_extreme(rows[index], rows[index].nulls[0]) for index in chosen]
    count = min(len(draws) for _, draws in columns)
    values = np.array([value for value, _ in columns])
    draws = np.array([draws[:count] for _, draws in columns]).T
    distances, _ = studentised(values, draws)
    for index, p, distance in zip(chosen, studentised_maximum(values, draws), distances):
        found[index] = float(p), float(distance)
    return found


def _has_copies(row: Measurement) -> bool:
    """Returns whether the row can be tested against copies of equal scale."""
    return (
        row.null is not None
        and row.null.kind == EQUAL_SCALE
        and row.scope != "any data"
        and not reason_without_p(row)
    )


def _extreme(row: Measurement, null: Null) -> tuple[float, list[float]]:
    """Returns the value on the inputs of a null, and its draws, as numbers that grow towards the predicted
    side.
    """
    value = row.value if null.value is None else null.value
    assert value is not None
    assert row.side is not None
    (extreme,), draws = extremeness([value], null.draws, row.side, row.predicted)
    return extreme, draws


@dataclass(frozen=True, eq=False)
class JudgedDifference:
    """The difference of a quantity between two networks, with its judgement.

    Attributes:
        row: the difference, with its interval.
        outcome: one of :data:`DIFFERENCES`.
        q: two-sided p-value, adjusted for the family; None without a test.
    """

    row: Measurement
    outcome: DifferenceOutcome
    q: float | None = None


def judge_differences(rows: Sequence[Measurement]) -> list[JudgedDifference]:
    """Judges a family of differences between two networks, in their order.

    Their draws (:func:`~.statistics.exchanged_networks`) belong together, so the p-values are adjusted by
    :func:`~.statistics.studentised_maximum`. A pattern of signs and its opposite are equally extreme: G
    groups give p-values down to 2 / 2^G. Statistics that are not smooth, such as a mean of a few largest
    values, have too small p-values; therefore the interval must bear the test out and exclude 0.
    """
    nulls = [row.null if row.value is not None else None for row in rows]
    tested = [null is not None and LEVEL * (1 + len(null.draws)) >= 2 for null in nulls]
    members = [null for null, test in zip(nulls, tested) if null is not None and test]
    adjusted = iter(
        studentised_maximum(
            np.array([row.value for row, test in zip(rows, tested) if test], dtype=float),
            np.array([null.draws for null in members], dtype=float).T,
        )
        if members
        else ()
    )

    def judged(row: Measurement, null: Null | None, test: bool) -> JudgedDifference:
        if row.value is None:
            return JudgedDifference(row, "not measured")
        if null is None:
            return JudgedDifference(row, "not tested" if row.value else "no difference")
        if not test:
            return JudgedDifference(row, "too few draws")
        p = float(next(adjusted))
        outside = row.interval is not None and not row.interval[0] <= 0 <= row.interval[1]
        return JudgedDifference(row, "differs" if p <= LEVEL and outside else "not significant", p)

    return [judged(*each) for each in zip(rows, nulls, tested)]


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


@dataclass(frozen=True)
class _Test:
    """The side on which a row leaves its first null, both adjusted p-values, the p-value on the other side
    before it was adjusted, and the reason why the draws are too few for this family; empty if they are not.
    """

    side: int
    q: float
    other_q: float
    other_p: float | None
    undecided: str = ""


def _undecided(row: Measurement, rows: Sequence[Measurement], other_p: float | None, tests: int) -> str:
    """Returns why a row cannot be decided among so many tests; empty if it can.

    It cannot if the draws are too few for a single finding, and more of them may make it one: the 95 %
    interval of the p-value of all possible draws reaches LEVEL / tests.
    """
    p = min(1.0 if each is None else each for each in (row.p, other_p))
    if row.null is None or tests * (smallest := smallest_p(row.null, _seeds(rows))) <= LEVEL + 1e-12:
        return ""
    many = f"p = {p_value(p)}, but one finding among {counted(tests, 'test')}"
    if row.null.kind == UNTRAINED:
        text = f"no decision: {many} needs more seeds or untrained networks"
        return text if math.isclose(p, smallest) else ""
    draws = len(row.null.draws)
    low, _ = clopper_pearson(round(p * (1 + draws)) - 1, draws)
    if low > LEVEL / tests:
        return ""
    needed = math.ceil(tests / LEVEL - 1e-9) - 1
    return f"no decision: {many} needs {needed:,} draws of the null, and there are {draws}"


def _other_p(row: Measurement, rows: Sequence[Measurement]) -> float | None:
    """Returns the p-value on the side opposite to the prediction; None if there is no such side."""
    other = OTHER_SIDE.get(row.side)
    return None if other is None else over_seeds([with_columns(each, side=other) for each in rows]).p


def _judged(row: Measurement, rows: tuple[Measurement, ...], rule: Rule, test: _Test | None) -> Judged:
    """Judges one measurement with the test against its first null, if there is one."""
    if row.value is None:
        return Judged(row, rows, "not measured", reason=row.reason)
    if row.scope == "any data":
        return Judged(row, rows, "not tested", reason=ABOUT_ANY_DATA)
    side = _side_by_range(row, rule) if test is None else test.side
    if side is None:
        outcome = "too few draws" if _lacks_draws(row) else "not tested"
        return Judged(row, rows, outcome, reason=reason_without_p(row, _seeds(rows)))
    further = _further(row)
    alike = [null for null in further if equals_its_draws(row.value, null)]
    against = {null.kind: _side_of_further(row, rows, null, rule) for null in further if null not in alike}
    decided = {"row": row, "rows": rows, "cannot_test": tuple(null.kind for null in alike)}
    decided |= {"q": test and test.q, "other_q": test and test.other_q}
    if few := [kind for kind, one in against.items() if one is None]:
        reason = f"no test: {few[0]}, a second null, has too few draws"
        return Judged(**decided, outcome="too few draws", reason=reason)
    if test is not None and test.undecided:
        return Judged(**decided, outcome="too few draws", reason=test.undecided)
    decided["side"] = side
    if side == 0:
        unadjusted = test is not None and any(p is not None and p <= LEVEL for p in (row.p, test.other_p))
        remark = f"p is at most {LEVEL:g}, but not when adjusted for the family" if unadjusted else ""
        return Judged(**decided, outcome="not significant", remark=remark)
    decided["against"] = tuple(against.items())
    if -side in against.values():
        return Judged(**decided, outcome="nulls conflict")
    if 0 in against.values():
        return Judged(**decided, outcome="matched by a second null")
    if not rule.every_seed and _seeds_differ(rows):
        return Judged(
            **decided, outcome="not significant", remark="seeds lie on both sides of the median of a null"
        )
    return Judged(**decided, outcome="as predicted" if side == 1 else "opposite")


def _further(row: Measurement) -> list[Null]:
    """Returns the nulls behind the first that must bear it out. Copies of other kinds do if there are enough
    of them: the time may not have sufficed.
    """
    return [
        null
        for null in row.nulls[1:]
        if null.kind not in (PERMUTED_LABELS, *SHOWN)
        and (null.kind not in COPIES or len(null.draws) >= RANGE_OF_FEW)
    ]


def _side_by_range(row: Measurement, rule: Rule) -> int | None:
    """Returns the side on which a row leaves the range of its first null; None if this null does not decide
    so.
    """
    if rule.first_draws is None or row.null is None or equals_its_draws(row.value, row.null):
        return None
    shown_only = rule.every_seed and row.null.kind == UNTRAINED
    return None if shown_only else side_of_null(row, draws=rule.first_draws)


def _seeds(rows: Sequence[Measurement]) -> int:
    return sum(row.value is not None for row in rows)


def _lacks_draws(row: Measurement) -> bool:
    """Returns whether more draws of the null would give a test: nothing else is missing."""
    return (
        row.null is not None
        and bool(row.null.draws)
        and (len(set(row.null.draws)) > 1 or len(row.null.draws) == 1)
        and not equals_its_draws(row.value, row.null)
        and row.side is not None
        and (row.side != "==" or row.predicted is not None)
    )


def _side_of_further(row: Measurement, rows: Sequence[Measurement], further: Null, rule: Rule) -> int | None:
    """Returns the side of a further null on which the mean over seeds lies, as :func:`side_of_null`; 0 if the
    seeds do not bear it out (:attr:`Rule.every_seed`).
    """
    side = side_of_null(row, further, RANGE_OF_FEW)
    if not side or not rule.every_seed:
        return side
    pairs = _compared(rows, further.kind)
    own = [side_of_null(row, null, RANGE_OF_FEW) for row, null in pairs]
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
