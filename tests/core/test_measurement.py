"""Measurements, null distributions and tables: what a row may hold, how rows are selected, summarised and
stored.
"""

import copy
import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest

from tests.cases import each_case
from transformer_theory.core.measurement import COLUMNS, CORRELATION, Measurement, Null, judge
from transformer_theory.core.sources import Source
from transformer_theory.core.table import Arrays, Table, collect, from_records

ROW = Measurement("crate", "on data", "rate", 2.0)


def test_a_row_survives_json_and_leaves_defaults_out():
    row = replace(
        ROW,
        predicted=1.5,
        nulls=(Null("permuted labels", (0.5, 1.0)),),
        interval=(1.0, 3.0),
        source=Source("yu2020learning", "Thm. 1"),
        layer=0,
        seed=0,
        scope="any data",
    )
    stored = json.loads(json.dumps(row.to_json()))
    assert Measurement.from_json(stored) == row
    assert stored["null"] == {"kind": "permuted labels", "draws": [0.5, 1.0]}
    assert stored.keys() >= {"theory", "kind", "quantity", "value", "layer", "seed"}
    assert "unit" not in stored
    assert "head" not in stored


@each_case(
    ("column", "word"),
    [
        ("kind", "hearsay"),
        ("scope", "all"),
        ("unit", "metres"),
        ("basis", "rumour"),
        ("op", "<"),
        ("side", "<>"),
        ("verdict", "proved"),
    ],
)
def test_unknown_words_are_refused(unchecked, column, word):
    with pytest.raises(ValueError, match=f"{column} must be one of .*{word}"):
        replace(ROW, **{column: word})


def test_no_value_needs_a_reason():
    with pytest.raises(ValueError, match="reason"):
        replace(ROW, value=None)
    assert replace(ROW, value=None, reason="no labels").reason == "no labels"
    undefined = replace(ROW, value=math.inf, predicted=math.nan)
    assert (undefined.value, undefined.predicted, undefined.reason) == (None, None, "the value is inf")


@each_case(
    ("kind", "scope"),
    [
        ("claim", "own instances"),
        ("rung", "own instances"),
        ("in network", "training"),
        ("on data", "these data"),
    ],
)
def test_the_scope_follows_from_the_kind_unless_given(kind, scope):
    assert Measurement("crate", kind, "rate", 1.0).scope == scope
    assert Measurement("crate", kind, "rate", 1.0, scope="any data").scope == "any data"


@each_case(
    ("value", "op", "covered", "converged", "verdict"),
    [
        (1.0, "<=", True, True, "consistent"),
        (1.1, "<=", True, True, "violated"),
        (1.1, ">=", True, True, "consistent"),
        (1.1, "<=", False, True, "not covered"),
        (1.1, "<=", True, False, "inconclusive"),
        (None, "<=", True, True, "inconclusive"),
        (math.nan, "<=", True, True, "inconclusive"),
    ],
)
def test_judge(value, op, covered, converged, verdict):
    assert judge(value, op, 1.0, covered=covered, converged=converged) == verdict


def test_a_null_drops_what_is_not_finite():
    null = Null("untrained networks", (3.0, math.nan, 1.0, 2.0))
    assert (null.low, null.median, null.high, null.mean) == (1.0, 2.0, 3.0, 2.0)
    assert null.p(3.0, ">=") == 0.5
    assert null.p(0.0, "<=") == 0.25
    assert null.p(2.5, "==", predicted=2.4) == 0.25
    assert math.isnan(Null("none", ()).median)
    for side in (">=", "=="):
        with pytest.raises(ValueError, match=r"draw|predicted"):
            (Null("none", ()) if side == ">=" else null).p(1.0, side)


def test_selection(unchecked):
    table = Table(replace(ROW, value=float(k), step=k, head=k % 2) for k in range(4))
    assert table.select(step=(1, 3)).column("value") == [1.0, 3.0]
    assert table.select(head=0, step=(2, 3)).one().value == 2.0
    assert len(table.select(theory="joma")) == 0
    assert table.where(lambda row: row.value > 1).column("step") == [2, 3]
    assert table[1:3].column("step") == [1, 2]
    assert set(table.replace(model="ViT").column("model")) == {"ViT"}
    with pytest.raises(ValueError, match="colour"):
        table.select(colour="red")
    with pytest.raises(ValueError, match="got 4"):
        table.one()
    with pytest.raises(TypeError, match="dict"):
        Table([{"theory": "crate"}])


def test_a_table_does_not_change():
    table = Table([ROW])
    with pytest.raises(TypeError):
        table[0] = ROW
    assert hash(table) == hash(Table([ROW]))


def test_pandas_has_a_column_for_each_field():
    nulls = (Null("k", (1.0, 3.0)), Null("l", (5.0,)))
    frame = Table(
        [replace(ROW, nulls=nulls, interval=(1.0, 2.0), layer=3, at={"T": 5, "flow": "modified"}), ROW]
    ).to_pandas()
    missing = set(COLUMNS) - {"nulls", "interval", "at", "bounds"} - set(frame.columns)
    assert not missing
    assert frame["null_median"][0] == 2.0
    assert frame["null_draws"][0] == 2
    assert math.isnan(frame["null_median"][1])
    assert (frame["null2_kind"][0], frame["null2_high"][0]) == ("l", 5.0)
    assert (frame["interval_low"][0], frame["interval_high"][0]) == (1.0, 2.0)
    assert (frame["T"][0], frame["flow"][0]) == (5, "modified")
    assert math.isnan(frame["T"][1])
    assert len(Table().to_pandas()) == 0


def test_a_coordinate_may_be_called_n_as_in_papers():
    frame = Table([replace(ROW, n=100, at={"n": 5})]).to_pandas()
    assert (frame["n"][0], frame["samples"][0]) == (5, 100)


def test_coordinates_are_compared_rounded_and_keep_their_order():
    row = replace(ROW, at={"rate": 0.1 + 0.2, "d": np.int64(20)})
    assert row == replace(ROW, at={"d": 20, "rate": 0.3})
    assert hash(row) == hash(replace(ROW, at={"d": 20, "rate": 0.3}))
    assert row != replace(ROW, at={"d": 20, "rate": 0.3 + 1e-9})
    assert row.setting == "rate = 0.3, d = 20"
    assert replace(ROW, at={"dynamics": "K and Q", "T": 5}).setting == "K and Q, T = 5"
    assert replace(ROW, at={"half": ""}) == ROW


@each_case("at", [{"layer": 1}, {"": 1}, {"d": True}, {"d": math.nan}, {"d": math.inf}, {"d": (1, 2)}])
def test_a_coordinate_is_a_number_or_a_text_with_a_name_of_its_own(at: dict):
    with pytest.raises(ValueError, match="coordinate"):
        replace(ROW, at=at)


def test_rows_are_selected_by_coordinates():
    table = Table([replace(ROW, at={"n": n, "T": T}) for n in (5, 10) for T in (3, 4)] + [ROW])
    assert len(table.select(at={"n": 5})) == 2
    assert table.select(at={"n": (5, 10), "T": 4}).column("at") == [{"n": 5, "T": 4}, {"n": 10, "T": 4}]
    assert table.select(at={"n": ""}).one() is ROW
    with pytest.raises(ValueError, match="columns must be among"):
        table.select(setting="n = 5")


def test_several_nulls_survive_json_and_the_first_is_the_tested_one():
    nulls = Null("k", (1.0, 3.0)), None, Null("l", (5.0,)), Null("m", (5.0, 6.0), 5.5, stopped=True)
    row = replace(ROW, nulls=nulls, at={"n": 5}, bounds=(0, None))
    stored = json.loads(json.dumps(row.to_json()))
    assert stored["null"] == {"kind": "k", "draws": [1.0, 3.0]}
    assert stored["further_nulls"] == [
        {"kind": "l", "draws": [5.0]},
        {"kind": "m", "draws": [5.0, 6.0], "value": 5.5, "stopped": True},
    ]
    assert Measurement.from_json(stored) == row
    assert row.null is row.nulls[0]
    assert [null.kind for null in row.nulls] == ["k", "l", "m"]


def test_tables_of_the_former_version_load():
    first = {"theory": "crate", "kind": "rung", "quantity": "rate", "value": 2.0, "seed": 0}
    null = {"kind": "sign flips", "draws": [1.0]}
    stored = [
        first | {"null": {"kind": "permuted labels", "draws": [0.5]}},
        first | {"setting": "null: sign flips", "null": null},
        first | {"setting": "n = 5, T = 10"},
        first | {"seed": 1, "setting": "null: sign flips", "null": null},
    ]
    table = from_records(stored)
    assert [tuple(null.kind for null in row.nulls) for row in table] == [
        ("permuted labels", "sign flips"),
        (),
        ("sign flips",),
    ]
    assert table[1].setting == "n = 5, T = 10"
    assert table[2].setting == ""


def test_shares_have_bounds():
    assert replace(ROW, unit="share", value=0.5).bounds == (0.0, 1.0)
    assert ROW.bounds is None


def test_an_interval_ends_at_the_bounds():
    cosine = replace(ROW, value=0.974, bounds=CORRELATION, interval=(0.942, 1.006))
    assert cosine.interval == (0.942, 1.0)
    assert replace(ROW, unit="share", value=0.2, interval=(-0.0069, 0.4068)).interval == (0.0, 0.4068)
    change = replace(ROW, unit="share", value=-0.998, bounds=(-1.0, 0.0), interval=(-1.0025, -0.9937))
    assert change.interval == (-1.0, -0.9937)
    assert replace(ROW, value=2.0, interval=(-9.0, 9.0)).interval == (-9.0, 9.0)
    beyond = replace(cosine, value=1 + 1e-9, interval=(1.0, 1 + 2e-9))
    assert beyond.interval == (1.0, 1 + 1e-9)  # the value stays inside


def test_a_summary_averages_seeds_and_draws():
    draws = [tuple(one) for one in np.random.default_rng(0).uniform(0, 1, (3, 199))]
    rows = [
        replace(
            ROW,
            value=value,
            seed=seed,
            predicted=1.0,
            side=">=",
            nulls=(Null("permuted labels", one),),
            verdict="consistent",
        )
        for seed, (value, one) in enumerate(zip((0.8, 0.9, 1.0), draws))
    ]
    alone = replace(ROW, quantity="other", seed=0)
    mean, other = Table([*rows, alone]).summary()
    assert other == alone
    assert mean.value == pytest.approx(0.9)
    low, high = mean.interval
    assert (low, high) == (
        pytest.approx(0.9 - 4.302653 * 0.1 / 3**0.5, rel=1e-6),
        pytest.approx(0.9 + 4.302653 * 0.1 / 3**0.5, rel=1e-6),
    )
    assert (mean.n, mean.seed, mean.interval_kind, mean.verdict) == (3, None, "over seeds", "consistent")
    of_mean = np.mean(draws, axis=0)
    assert mean.null.draws == pytest.approx(of_mean)
    assert mean.p == (1 + np.sum(of_mean >= 0.9)) / 200
    assert mean.agreement == pytest.approx((0.9 - np.median(of_mean)) / (1 - np.median(of_mean)))


def test_a_summary_keeps_layers_apart_and_drops_verdicts_that_differ():
    rows = [
        replace(ROW, layer=layer, seed=seed, verdict=verdict)
        for layer in (0, 1)
        for seed, verdict in enumerate(("consistent", "violated"))
    ]
    summary = Table(rows).summary()
    assert summary.column("layer") == [0, 1]
    assert summary.column("verdict") == [None, None]


def test_collect_separates_rows_and_arrays_and_refuses_twins():
    table, arrays = collect([ROW, Arrays({"crate/a": np.zeros(2)})])
    assert table == Table([ROW])
    assert list(arrays) == ["crate/a"]
    with pytest.raises(ValueError, match="crate/a"):
        collect([Arrays({"crate/a": np.zeros(2)}), Arrays({"crate/a": np.ones(2)})])


def test_a_further_null_without_a_mean_stays_without_draws():
    """Seeds with different numbers of draws of the second null: it was not tested, and must not
    be forgotten.
    """
    first = Null("first", (0.0, 1.0))
    rows = [
        Measurement("crate", "rung", "x", 1.0, nulls=(first, Null("second", draws)))
        for draws in ((0.1, 0.2), (0.3,))
    ]
    means = Null.means_of(rows)
    assert [(null.kind, null.draws) for null in means] == [("first", (0.0, 1.0)), ("second", ())]
    assert Null.means_of([replace(row, nulls=row.nulls[1:]) for row in rows]) == ()


def test_rows_survive_pickle_and_copies():
    row = Measurement(
        "toy",
        "figure",
        "x",
        0.5,
        nulls=(Null("permuted", (0.1, 0.2), stopped=True),),
        side=">=",
        source=Source("tian2023scan", "Thm. 2"),
        at={"n": 5},
    )
    for other in (pickle.loads(pickle.dumps(row)), copy.copy(row), copy.deepcopy(row)):
        assert other == row
        assert other is not row
        assert [type(getattr(other, name)) for name in COLUMNS] == [
            type(getattr(row, name)) for name in COLUMNS
        ]
