"""The judgement: every outcome from a case made by hand, and all rungs of docs/reach against a recomputation
that uses nothing but the values and the draws.
"""

from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pytest

from tests.cases import each_case
from transformer_theory.comparison.judged import rung_results
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.core.judgement import HEADLINES, ONE_NETWORK, OUTCOMES, RUNGS, Judged, judge
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import (
    DATA_DRAWS,
    EQUAL_NORM,
    EQUAL_SCALE,
    EQUAL_SPECTRUM,
    HELD_INPUTS,
    PERMUTED_LABELS,
    UNTRAINED,
    over_seeds,
    studentised_maximum,
)

REACH = Path(__file__).parents[2] / "docs" / "reach"
WIDE = tuple(np.linspace(0.0, 1.0, 199))  # the median is 0.5
RANGE = tuple(np.linspace(0.0, 1.0, 19))


def rows(*values: float, nulls=(WIDE,), **columns) -> list[Measurement]:
    """One row per seed, with these draws as its nulls."""
    named = tuple(Null(f"null {number}", draws) for number, draws in enumerate(nulls, 1))
    columns = {"side": ">=", "nulls": named, "scope": "these data"} | columns
    return [
        Measurement("crate", "on data", "rate", value, seed=seed, **columns)
        for seed, value in enumerate(values)
    ]


def judged(*family: list[Measurement], rule=HEADLINES) -> list[Judged]:
    return judge([(over_seeds(each), each) for each in family], rule)


def outcome(*values: float, rule=HEADLINES, **columns) -> str:
    (one,) = judged(rows(*values, **columns), rule=rule)
    return one.outcome


def test_the_side_decides():
    assert outcome(1.5, 1.6) == "as predicted"
    assert outcome(-0.5, -0.6) == "opposite"
    assert outcome(0.5, 0.6) == "not significant"
    assert outcome(1.5, 1.6, side="<=") == "opposite"
    assert outcome(0.5, 0.5, side="==", predicted=0.5) == "as predicted"
    assert outcome(1.5, 1.5, side="==", predicted=0.5) == "opposite"


def test_what_cannot_be_tested_is_said():
    (few,) = judged(rows(1.5, 1.6, nulls=(RANGE,)))
    assert (few.outcome, few.side) == ("too few draws", None)
    assert "19 draws, 99 are needed" in few.reason
    (unsided,) = judged(rows(1.5, side=None))
    assert (unsided.outcome, unsided.reason) == (
        "not tested",
        "the theory does not predict a side of the null",
    )
    assert outcome(1.5, nulls=()) == "not tested"
    assert outcome(1.5, nulls=((0.5,) * 199,)) == "not tested"
    missing = Measurement("crate", "on data", "rate", None, reason="needs labels")
    (one,) = judge([(missing, (missing,))])
    assert (one.outcome, one.reason) == ("not measured", "needs labels")


def test_a_statement_about_any_data_is_in_no_family():
    any_data, other = judged(rows(1.5, 1.6, scope="any data", on_noise=1.4), rows(1.5, 1.6))
    assert (any_data.outcome, any_data.scope, any_data.q, any_data.on_noise) == (
        "not tested",
        "any data",
        None,
        1.4,
    )
    assert other.q == other.row.p == pytest.approx(1 / 200)
    assert other.on_noise is None


def test_the_false_discovery_rate_counts_the_family():
    edge = rows(0.985, 0.985)  # 3 draws are larger: p = 4 / 200
    assert judged(edge)[0].outcome == "as predicted"
    alone, *others = judged(edge, *[rows(0.5, 0.5)] * 4)  # 5 / 200 <= 0.05: the draws suffice
    assert alone.q == pytest.approx(5 * 4 / 200)
    assert (alone.outcome, {one.outcome for one in others}) == ("not significant", {"not significant"})
    assert alone.remark.startswith("p is at most 0.05")
    assert not others[0].remark


def test_too_few_draws_for_the_family_leave_a_test_undecided():
    """One value beyond all of 199 draws is a finding among 10 tests, since 10 / 200 = .05, and is undecided
    among 11; 1,199 draws suffice for 60 tests.
    """
    chance = rows(0.5, 0.5)

    def lone(value: float, tests: int, **columns) -> Judged:
        alone, *others = judged(rows(value, value, **columns), *[chance] * (tests - 1))
        assert {one.outcome for one in others} <= {"not significant"}  # within the null with any draws
        return alone

    assert lone(1.5, 10).outcome == "as predicted"
    few = lone(1.5, 11)
    assert (few.outcome, few.side, few.q) == ("too few draws", None, pytest.approx(11 / 200))
    assert few.reason == (
        "no decision: p = .005, but one finding among 11 tests needs 219 draws of the null, and there are 199"
    )
    assert lone(-0.5, 11).outcome == "too few draws"  # on the other side too
    # 3 draws are larger: 3 of 199 have the exact interval [.0031, .0434], and .0031 < .05 / 11 = .0045
    assert lone(0.985, 11).outcome == "too few draws"
    # 4 of 199, p = .025: [.0055, .0507], so that more draws would not help
    assert lone(0.98, 11).outcome == "not significant"
    assert lone(0.98, 11).remark.startswith("p is at most 0.05")
    many = (tuple(np.linspace(0.0, 1.0, DATA_DRAWS)),)
    assert lone(1.5, 60, nulls=many).outcome == "as predicted"
    assert lone(1.5, 61, nulls=many).outcome == "too few draws"
    # effects that are found together need fewer draws: 4 of 20 tests, q = 20 / 4 / 200
    several = judged(*[rows(1.5, 1.5)] * 4, *[chance] * 16)
    assert [one.outcome for one in several] == ["as predicted"] * 4 + ["not significant"] * 16


def test_draws_that_were_stopped_give_a_p_value_however_few_they_are():
    draws = tuple(float(index % 2) for index in range(30))
    few, stopped = (Null("permuted labels", draws, stopped=stopped) for stopped in (False, True))
    one, other = (judged([row_with(0.5, null)])[0] for null in (few, stopped))
    assert one.row.p is None
    assert one.outcome == "too few draws"
    assert other.row.p == 16 / 31
    assert other.outcome == "not significant"
    # that no test of a single seed could succeed says nothing about their mean
    mean = Null.mean_of([stopped, stopped])
    assert mean is not None
    assert not mean.stopped
    assert Null.mean_of([stopped]) == stopped


def test_too_few_networks_for_the_family_leave_a_test_undecided():
    """The rank-sum test of two networks against 19 reaches 1 / 210, enough for 10 tests and not for 11."""
    columns = {"kind": "in network", "nulls": (Null(UNTRAINED, RANGE),)}
    tested = [replace(row, **columns) for row in rows(1.5, 1.6)]
    chance = [replace(row, **columns) for row in rows(0.5, 0.6)]
    assert judged(tested, *[chance] * 9)[0].outcome == "as predicted"
    few = judged(tested, *[chance] * 10)[0]
    assert (few.outcome, few.q) == ("too few draws", pytest.approx(11 / 210))
    assert few.reason.endswith("one finding among 11 tests needs more seeds or untrained networks")


@each_case(
    ("second", "expected"),
    [
        (np.linspace(0.0, 1.0, 19), "as predicted"),
        (np.linspace(1.0, 2.0, 19), "matched by a second null"),
        (np.linspace(2.0, 3.0, 19), "nulls conflict"),
        (np.linspace(0.0, 1.0, 5), "as predicted"),
        (np.linspace(0.0, 1.0, 4), "too few draws"),
    ],
)
@each_case("rule", [HEADLINES, RUNGS], ids=["headlines", "rungs"])
def test_a_second_null_may_match_the_value_or_contradict_it(second, expected, rule):
    (one,) = judged(rows(1.5, 1.6, nulls=(WIDE, tuple(second))), rule=rule)
    assert one.outcome == expected
    assert one.words == {
        "matched by a second null": "matched by null 2",
        "nulls conflict": "beyond null 1 but on the opposite side of null 2",
    }.get(expected, expected)
    # the mirror image: the value lies below both
    mirrored = tuple(-np.asarray(second))
    (one,) = judged(rows(-1.5, -1.6, nulls=(tuple(-np.asarray(WIDE)), mirrored)), rule=rule)
    assert one.outcome == ("opposite" if expected == "as predicted" else expected)


def test_a_second_null_on_other_inputs_brings_its_own_value():
    """Beside 1.6 the draws would match; the value on their inputs is 3."""
    null = Null("part of the inputs", tuple(np.linspace(1.0, 2.0, 19)), value=3.0)
    both = rows(1.6, 1.7)
    both = [replace(row, nulls=(*row.nulls, null)) for row in both]
    assert judged(both)[0].outcome == "as predicted"
    both = [replace(row, nulls=(row.nulls[0], replace(null, value=None))) for row in both]
    assert judged(both)[0].outcome == "matched by a second null"
    mean = over_seeds([replace(both[0], nulls=(both[0].nulls[0], null)), both[1]])
    assert mean.nulls[1].value == pytest.approx((3.0 + 1.7) / 2)


def test_seeds_must_agree():
    """Of a rung about the sides of the medians; of a headline about its second null."""
    assert outcome(0.4, 2.6, 2.7, rule=RUNGS) == "not significant"
    assert outcome(0.6, 2.6, 2.7, rule=RUNGS) == "as predicted"
    narrow = tuple(np.linspace(1.4, 1.41, 19))
    assert outcome(1.405, 1.8, 1.9, nulls=(WIDE, narrow)) == "matched by a second null"
    assert outcome(1.42, 1.8, 1.9, nulls=(WIDE, narrow)) == "as predicted"
    assert outcome(1.409, 1.412, 1.414, nulls=(WIDE, narrow)) == "as predicted"  # the interval excludes 0


def test_a_range_decides_where_the_rule_says_so():
    assert outcome(1.5, nulls=(RANGE,), rule=RUNGS) == "as predicted"
    assert outcome(0.99, nulls=(RANGE,), rule=RUNGS) == "not significant"
    assert outcome(1.5, nulls=(RANGE[1:],), rule=RUNGS) == "too few draws"
    assert outcome(1.5, nulls=(RANGE,), rule=HEADLINES) == "too few draws"
    for rule in (HEADLINES, RUNGS, ONE_NETWORK):
        for few, expected in (((1.6, *RANGE[:4]), "matched by a second null"), (RANGE[:5], "as predicted")):
            assert outcome(1.5, nulls=(WIDE, few), rule=rule) == expected


# ---- networks and their copies

COPIED = tuple(np.random.default_rng(0).permutation(np.linspace(0.0, 1.0, 99)))
NINE = tuple(np.linspace(0.0, 1.0, 9))


def in_network(value: float, draws=COPIED, *further: Null, **columns) -> list[Measurement]:
    """A row of one network; its first null is of copies of equal scale."""
    return [row_with(value, Null(EQUAL_SCALE, tuple(draws)), *further, scope="training", **columns)]


def test_copies_of_equal_scale_decide_on_both_sides_by_the_maximum():
    high, low, middle = judged(in_network(1.5), in_network(-0.5), in_network(0.52), rule=ONE_NETWORK)
    assert [one.outcome for one in (high, low, middle)] == ["as predicted", "opposite", "not significant"]
    assert (high.side, low.side, middle.side) == (1, -1, 0)
    assert high.q == high.other_q == low.q == high.row.p == pytest.approx(0.01)
    (falling,) = judged(in_network(1.5, side="<="), rule=HEADLINES)
    assert (falling.outcome, falling.q) == ("opposite", pytest.approx(0.01))
    # the number itself is predicted: the distance from it is tested, and a large one is the opposite
    near, far = judged(in_network(0.3, side="==", predicted=0.5), in_network(2.5, side="==", predicted=0.5))
    assert far.outcome == "opposite"
    assert near.side == 0


def test_the_maximum_is_that_of_the_family_and_other_nulls_keep_their_false_discovery_rate():
    generator = np.random.default_rng(1)
    draws = generator.normal(size=(60, 99))
    values = [2.6, *generator.normal(size=59) / 2]
    family = [in_network(value, each) for value, each in zip(values, draws)]
    edge = rows(0.985, 0.985)
    found = judged(*family, edge, rule=ONE_NETWORK)
    expected = studentised_maximum(np.array(values), draws.T)
    assert [one.q for one in found[:-1]] == pytest.approx(list(expected))
    assert judged(family[0], rule=ONE_NETWORK)[0].outcome == "as predicted"
    assert found[0].outcome == "not significant"  # 59 other tests reach as far
    assert found[0].remark.startswith("p is at most 0.05")
    assert found[-1].q == found[-1].row.p == pytest.approx(4 / 200)


def test_members_with_fewer_copies_are_compared_with_the_first_ones():
    other = tuple(np.linspace(0.0, 1.0, 39))
    first, second = judged(in_network(1.5), in_network(1.5, other), rule=ONE_NETWORK)
    values, draws = np.array([1.5, 1.5]), np.array([COPIED[:39], other]).T
    assert [first.q, second.q] == pytest.approx(list(studentised_maximum(values, draws)))
    assert (first.q, second.row.p) == pytest.approx((1 / 40, 1 / 40))
    # too few for any test take no part
    first, none = judged(in_network(1.5), in_network(1.5, NINE), rule=HEADLINES)
    assert (first.q, none.q, none.outcome) == (pytest.approx(0.01), None, "too few draws")
    assert none.reason == "no p-value: the null has 9 draws, 19 are needed"
    (enough,) = judged(in_network(1.5, RANGE), rule=HEADLINES)
    assert (enough.outcome, enough.q) == ("as predicted", pytest.approx(0.05))


def test_every_other_null_that_decides_must_bear_it_out_and_is_named():
    def one(*further: Null) -> Judged:
        (found,) = judged(in_network(1.5, COPIED, *further), rule=ONE_NETWORK)
        return found

    above, as_much = tuple(2.0 + np.array(NINE)), tuple(1.0 + np.array(NINE))
    assert (
        one(Null("flips", RANGE), Null(HELD_INPUTS, NINE), Null(EQUAL_NORM, NINE)).outcome == "as predicted"
    )
    matched = one(Null("flips", RANGE), Null(HELD_INPUTS, as_much), Null(EQUAL_NORM, as_much))
    assert (matched.outcome, matched.nulls) == ("matched by a second null", (HELD_INPUTS, EQUAL_NORM))
    assert matched.words == f"matched by copies of equal scale with held inputs and {EQUAL_NORM}"
    conflict = one(Null(HELD_INPUTS, as_much), Null(EQUAL_NORM, above))
    assert (conflict.outcome, conflict.nulls) == ("nulls conflict", (EQUAL_NORM,))
    assert conflict.against == ((HELD_INPUTS, 0), (EQUAL_NORM, -1))
    assert conflict.words == f"beyond copies of equal scale but on the opposite side of {EQUAL_NORM}"
    # the time did not suffice for five copies of this kind, which then decide nothing
    assert one(Null(EQUAL_NORM, as_much[:4])).outcome == "as predicted"
    # networks that are shown, or that ask about the task, decide nothing
    assert one(Null(PERMUTED_LABELS, above), Null(UNTRAINED, above)).outcome == "as predicted"
    # with 19 draws their p-value counts, and a value equal to the largest one has p = .1
    assert one(Null("flips", (*RANGE[:18], 1.5))).outcome == "matched by a second null"


def test_a_null_that_cannot_change_the_quantity_is_passed_over():
    same = Null(EQUAL_SPECTRUM, tuple(1.5 * (1 + 1e-8 * index) for index in range(9)))
    (one,) = judged(in_network(1.5, COPIED, same), rule=ONE_NETWORK)
    assert (one.outcome, one.cannot_test, one.nulls) == ("as predicted", (EQUAL_SPECTRUM,), ())
    other = Null(EQUAL_SPECTRUM, tuple(1.5 * (1 + 1e-3 * index) for index in range(9)))
    (one,) = judged(in_network(1.5, COPIED, other), rule=ONE_NETWORK)
    assert (one.outcome, one.cannot_test) == ("matched by a second null", ())
    (first,) = judged(in_network(1.5, [1.5 * (1 + 1e-8 * index) for index in range(99)]), rule=ONE_NETWORK)
    assert (first.outcome, first.reason) == ("not tested", "no p-value: all draws of the null are equal")


def test_untrained_networks_alone_decide_nothing_about_one_network():
    null = Null(UNTRAINED, RANGE)
    (one,) = judged([row_with(1.5, null)], rule=ONE_NETWORK)
    assert one.side is None
    (rung,) = judged([row_with(1.5, null)], rule=RUNGS)
    assert rung.side == 1


def row_with(value: float, *nulls: Null, **columns) -> Measurement:
    return replace(rows(value, **columns)[0], nulls=nulls)


def test_only_networks_trained_on_permuted_labels_permit_a_statement_about_the_task():
    def task(value: float, *labels: float, copies=COPIED, **columns):
        (one,) = judged(in_network(value, copies, Null(PERMUTED_LABELS, labels), **columns), rule=HEADLINES)
        return one.task

    assert task(1.5, 0.9, 1.0, 1.1, 1.2, 1.4) == "beyond"
    assert task(1.5, 0.9, 1.0, 1.1, 1.2, 1.5) == "within"
    assert task(1.5, 1.6, 1.7, 1.8, 1.9, 2.0) == "within"  # beyond them, but on the other side
    assert task(-0.5, 0.1, 0.2, 0.3, 0.4, 0.5) == "beyond"  # the outcome is the opposite one
    assert task(-0.5, 0.1, 0.2, 0.3, 0.4, -0.6) == "within"
    assert task(0.5, 0.1, 0.2, 0.3, 0.4, 0.45) == "within"  # not significant
    assert task(-0.5, 0.1, 0.2, 0.3, 0.4, 0.5, side="<=") == "beyond"
    assert task(1.5, 0.9, 1.0, 1.1, 1.2) is None
    assert judged(in_network(1.5))[0].task is None


def test_a_sentence_needs_significance_and_an_effect():
    (one,) = judged(in_network(1.03), rule=HEADLINES)
    assert (one.effect_unit, one.effect) == ("median", pytest.approx((1.03 - 0.5) / 0.5))
    assert one.notable(1.0)
    assert not one.notable(1.1)
    shifted = [-10 + draw for draw in COPIED]
    (negative,) = judged(in_network(-8.5, shifted), rule=HEADLINES)
    assert negative.effect == pytest.approx(1.0 / 9.5)  # upwards is positive, whatever the sign of the null
    assert not negative.notable(0.2)
    (insignificant,) = judged(in_network(0.9), rule=HEADLINES)
    assert insignificant.effect == pytest.approx(0.8)
    assert not insignificant.notable(0.05)
    (by_range,) = judged(in_network(1.5, NINE), rule=HEADLINES)
    assert not by_range.notable(0.05)
    # a median that is zero up to rounding divides nothing
    middle = sorted(COPIED)[len(COPIED) // 2]
    (about_zero,) = judged(in_network(1.5, [draw - middle + 1e-15 for draw in COPIED]), rule=HEADLINES)
    assert (about_zero.effect_unit, about_zero.effect) == ("median", None)
    (share,) = judged(in_network(0.75, [0.3 + 0.4 * draw for draw in COPIED], unit="share"))
    assert (share.effect_unit, share.effect) == ("bound", pytest.approx(0.5))
    (predicted,) = judged(in_network(1.5, predicted=2.5))
    assert (predicted.effect_unit, predicted.effect) == ("prediction", pytest.approx(0.5))
    # on the inputs of the copies the value is another one: it is compared, and gives the effect
    (fewer,) = judged([row_with(0.5, Null(EQUAL_SCALE, COPIED, value=1.5))])
    assert (fewer.outcome, fewer.effect, fewer.row.p) == (
        "as predicted",
        pytest.approx(2.0),
        pytest.approx(0.01),
    )


@pytest.mark.parametrize("shift", [0.0, 6.0])
def test_headlines_of_noise_are_no_findings_and_a_planted_one_is(shift):
    """300 networks with 12 correlated, heavy-tailed headlines; of one of them the value is shifted."""
    generator = np.random.default_rng(2)
    noise, planted = 0, 0
    for _ in range(300):
        common = generator.normal(size=(100, 1))
        tests = common + generator.standard_t(5, size=(100, 12))
        tests[0, 0] += shift * tests[:, 0].std()
        found = judged(*(in_network(each[0], each[1:]) for each in tests.T), rule=ONE_NETWORK)
        beyond = [one.outcome in ("as predicted", "opposite") for one in found]
        planted += beyond[0]
        noise += any(beyond[1:] if shift else beyond)
    assert noise <= 15 + 2 * 300**0.5 * (0.05 * 0.95) ** 0.5  # 5 % of 300, and two standard errors
    assert planted >= 280 if shift else planted <= 15


def test_the_effect_is_relative_to_the_prediction_or_to_the_bound():
    (one,) = judged(rows(0.9, 1.1, predicted=1.5))
    assert one.effect == pytest.approx((1.0 - 0.5) / (1.5 - 0.5))
    assert one.effect_interval == pytest.approx([end - 0.5 for end in one.row.interval])
    (share,) = judged(rows(0.75, unit="share"))
    assert share.effect == pytest.approx(0.5)
    (falling,) = judged(rows(0.25, unit="share", side="<="))
    assert falling.effect == pytest.approx(0.5)
    assert judged(rows(0.9))[0].effect is None  # no copies of a network


# ---- docs/reach, recomputed


def p_value(value, draws, side, predicted):
    if side in ("==", "!="):
        value, draws = -abs(value - predicted), [-abs(draw - predicted) for draw in draws]
        side = {"==": ">=", "!=": "<="}[side]
    margin = 1e-12 * max(abs(value), abs(predicted or 0.0))
    beyond = [draw >= value - margin if side == ">=" else draw <= value + margin for draw in draws]
    return (1 + sum(beyond)) / (1 + len(draws))


def adjusted(p):
    """Benjamini and Hochberg: the smallest p * m / rank of this and all larger p-values."""
    order = sorted(range(len(p)), key=p.__getitem__)
    scaled = [p[index] * len(p) / rank for rank, index in enumerate(order, 1)]
    return {index: min(1.0, *scaled[rank:]) for rank, index in enumerate(order)}


def expected_outcomes(cells):
    """The outcomes of a ladder; a cell holds per null its draws and its values by seed, side
    and prediction.
    """
    other = {">=": "<=", "<=": ">=", "==": "!="}
    tests = {}
    for name, (nulls, side, predicted) in cells.items():
        if nulls:
            value, draws = fmean(nulls[0][1]), [fmean(each) for each in zip(*nulls[0][0])]
            tests[name] = [p_value(value, draws, one, predicted) for one in (side, other[side])]
    q, other_q = (
        dict(zip(tests, dict(sorted(adjusted([p[i] for p in tests.values()]).items())).values()))
        for i in (0, 1)
    )
    outcomes = {}
    for name, (nulls, side, predicted) in cells.items():
        if not nulls:
            continue
        first = 1 if q[name] <= 0.05 else -1 if other_q[name] <= 0.05 else 0
        outcomes[name] = "not significant"
        if len(nulls) > 1 and first:
            value, draws = fmean(nulls[1][1]), [fmean(each) for each in zip(*nulls[1][0])]
            p, other_p = (p_value(value, draws, one, predicted) for one in (side, other[side]))
            second = 1 if p <= 0.05 else -1 if other_p <= 0.05 else 0
            if second != first:
                outcomes[name] = "nulls conflict" if second else "matched by a second null"
                continue
        sides = [
            {value > median(draws) for draws, value in zip(null_draws, values)}
            for null_draws, values in nulls
        ]
        if first and all(len(side) == 1 for side in sides):
            outcomes[name] = "as predicted" if first == 1 else "opposite"
    return outcomes


def test_the_rungs_of_the_documentation_recomputed():
    stored = Result.load(REACH)
    assert sum(len(row.nulls) > 1 for row in stored.table) == 425
    found = {(rung.theory.name, rung.name): rung.judged for rung in rung_results(aggregate(stored))}
    counted = dict.fromkeys(OUTCOMES, 0)
    for theory, ladder in stored.settings["ladders"].items():
        cells = {}
        for rung in ladder["rungs"]:
            place = {"theory": theory, "rung": rung["name"], "quantity": ladder["quantity"]}
            measured = [row for row in stored.select(**place) if row.value is not None]
            nulls = [
                (
                    [row.nulls[number].draws for row in measured],
                    [row.value if (own := row.nulls[number].value) is None else own for row in measured],
                )
                for number in range(len(measured[0].nulls) if measured else 0)
            ]
            predicted = [row.predicted for row in measured]
            mean = fmean(predicted) if predicted and None not in predicted else None
            cells[rung["name"]] = (nulls, measured[0].side if measured else None, mean)
        expected = expected_outcomes(cells)
        for rung in ladder["rungs"]:
            name = rung["name"]
            one = found[theory, name]
            without = "not measured" if one.row.value is None else "not tested"
            assert one.outcome == expected.get(name, without), (theory, name)
            counted[one.outcome] += 1
    # As many as before all reports shared one judgement, except two rungs of particles that are decided since
    # all seeds share the split of the digits. The words of then: beyond chance, opposite, at chance or
    # undecided, explained, nulls disagree, not tested, not measured.
    assert counted == {
        "as predicted": 118 + 2,
        "opposite": 12,
        "not significant": 7 + 12 - 2,
        "too few draws": 0,
        "matched by a second null": 10,
        "nulls conflict": 18,
        "not tested": 3,
        "not measured": 4,
    }
