"""The judgement: every outcome from a case made by hand, and all rungs of docs/reach against a recomputation
that uses nothing but the values and the draws.
"""

from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pytest

from transformer_theory.comparison.judged import rung_results
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.core.judgement import HEADLINES, ONE_NETWORK, OUTCOMES, RUNGS, Judged, judge
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import over_seeds

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
    alone, *others = judged(edge, *[rows(0.5, 0.5)] * 4)
    assert alone.q == pytest.approx(5 * 4 / 200)
    assert (alone.outcome, {one.outcome for one in others}) == ("not significant", {"not significant"})
    assert alone.remark.startswith("p is at most 0.05")
    assert not others[0].remark


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (np.linspace(0.0, 1.0, 19), "as predicted"),
        (np.linspace(1.0, 2.0, 19), "matched by a second null"),
        (np.linspace(2.0, 3.0, 19), "nulls conflict"),
        (np.linspace(0.0, 1.0, 18), "too few draws"),
    ],
)
@pytest.mark.parametrize("rule", [HEADLINES, RUNGS], ids=["headlines", "rungs"])
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
    for second, expected in (((1.0, 2.0), "matched by a second null"), ((0.5, 1.0), "as predicted")):
        assert outcome(1.5, nulls=(WIDE, second), rule=ONE_NETWORK) == expected
        assert outcome(1.5, nulls=(WIDE, second), rule=HEADLINES) == "too few draws"


def test_the_effect_is_relative_to_the_prediction_or_to_the_bound():
    (one,) = judged(rows(0.9, 1.1, predicted=1.5))
    assert one.effect == pytest.approx((1.0 - 0.5) / (1.5 - 0.5))
    assert one.effect_interval == pytest.approx([end - 0.5 for end in one.row.interval])
    (share,) = judged(rows(0.75, unit="share"))
    assert share.effect == pytest.approx(0.5)
    (falling,) = judged(rows(0.25, unit="share", side="<="))
    assert falling.effect == pytest.approx(0.5)
    assert judged(rows(0.9))[0].effect is None


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
