"""The comparison of the numbers of two versions: what it must find, and the changes of form that
it allows.
"""

import copy
import json
import math

import pytest

from benchmarks import same_numbers
from benchmarks._number_differences import Difference, bounded_interval, clearer, compare, of_rungs
from benchmarks.same_numbers import row_of
from transformer_theory.core.measurement import Measurement, Null

QUANTITY, KIND, SECOND = "share selected", "permuted labels", "random projections"


def measured(value, **columns):
    return row_of(Measurement("crate", "figure", QUANTITY, value, unit="share", **columns))


def old_rows():
    """Rows of the version before the coordinates: a text as setting, a row of its own for a second null."""
    rows = [
        measured(
            0.25 * n, interval=(0.1, 0.9), interval_kind="over seeds", nulls=(Null(KIND, (0.1, 0.2, n)),)
        )
        | {"at": {"setting": f"n={n}, rate {rate:.0e}"}}
        for n in (1, 2)
        for rate in (1e-3, 1e-2)
    ]
    main = measured(0.5, nulls=(Null(KIND, (0.1, 0.3)),), model="ViT")
    second = measured(0.5, nulls=(Null(SECOND, (0.4,)),)) | {"at": {"setting": f"null: {SECOND}"}}
    return [*rows, main, second]


def new_rows():
    """The same rows with coordinates and several nulls, in another order."""
    *rows, main, second = old_rows()
    places = [{"n": n, "rate": rate} for n in (1, 2) for rate in (0.001, 0.01)]
    rows = [row | {"at": place} for row, place in zip(rows, places)]
    return [main | {"nulls": [*main["nulls"], *second["nulls"]]}, *(rows[number] for number in (2, 0, 3, 1))]


def record(rows, **more):
    return {"part": "figures", "item": "crate.share", "sources": "", "rows": rows, **more}


@pytest.fixture
def differences(tmp_path, capsys):
    """Compares two records as files; returns the number of differences and the printed text."""

    def compared(old, new, **options):
        paths = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
        for path, stored in zip(paths, (old, new)):
            path.write_text("".join(json.dumps(each) + "\n" for each in ([stored] if stored else [])))
        return compare(*paths, ("figures",), (), **options), capsys.readouterr().out

    return compared


@pytest.mark.parametrize("new", [old_rows, new_rows])
def test_a_change_of_form_is_no_difference(differences, new):
    number, text = differences(record(old_rows()), record(new()), show_map=True)
    assert number == 0, text
    if new is new_rows:
        assert 'map: crate.share, {"setting": "n=2, rate 1e-03"} -> {"n": 2, "rate": 0.001}' in text
        assert text.count("map: ") == 4  # the row of the second null has no coordinates of its own


def value(rows):
    rows[1]["value"] = math.nextafter(rows[1]["value"], 1)


def draw(rows):
    rows[1]["nulls"][0]["draws"][1] += 1e-16


def interval(rows):
    rows[1]["interval"] = [0.1, 1.5]  # beyond the bounds, so not the explained change


def reason(rows):
    rows[1]["reason"] = "another"


def exchanged(rows):
    rows[1]["at"], rows[2]["at"] = rows[2]["at"], rows[1]["at"]


def exchanged_in_order(rows):
    rows[1:] = [rows[number] for number in (2, 4, 1, 3)]
    rows[1]["at"], rows[3]["at"] = rows[3]["at"], rows[1]["at"]


def same_coordinates(rows):
    rows[1]["at"] = rows[2]["at"]


def second_null(rows):
    del rows[0]["nulls"][1]


def nulls_in_another_order(rows):
    rows[0]["nulls"].reverse()


def lost(rows):
    del rows[3]


def added(rows):
    rows.append(copy.deepcopy(rows[3]) | {"at": {"n": 7, "rate": 0.001}})


@pytest.mark.parametrize(
    ("change", "column"),
    [
        (value, "value"),
        (draw, f"null.{KIND}.draws"),
        (interval, "interval"),
        (reason, "reason"),
        (exchanged, "value"),
        (exchanged_in_order, "coordinates look exchanged"),
        (same_coordinates, "several coordinates became one"),
        (second_null, f"null.{SECOND}"),
        (nulls_in_another_order, "tested null"),
        (lost, "row of one version"),
    ],
)
def test_every_change_of_a_number_is_found(differences, change, column):
    rows = new_rows()
    change(rows)
    number, text = differences(record(old_rows()), record(rows))
    assert number >= 1
    assert f" | {column} | " in text


def test_a_further_row_of_a_figure_is_explained(differences):
    rows = new_rows()
    added(rows)
    number, text = differences(record(old_rows()), record(rows))
    assert number == 0
    assert "explained, 1 times: What was drawn from arrays are rows now." in text


def test_a_second_row_with_another_value_is_found(differences):
    rows = old_rows()
    rows[-1]["value"] = 0.6
    number, text = differences(record(rows), record(new_rows()))
    assert number == 1
    assert f"null.{SECOND}.value | 0.6 -> null" in text
    main = measured(0.5, nulls=(Null(KIND, (0.1, 0.3)), Null(SECOND, (0.4,), 0.6)), model="ViT")
    assert differences(record(rows), record([main, *new_rows()[1:]]))[0] == 0
    equal = measured(0.5, nulls=(Null(KIND, (0.1, 0.3)), Null(SECOND, (0.4,), 0.5)), model="ViT")
    assert differences(record(old_rows()), record([equal, *new_rows()[1:]]))[0] == 0


def test_nan_equals_nan_and_zeros_of_different_sign_differ(differences):
    number, _ = differences(record([], texts={"x": math.nan}), record([], texts={"x": math.nan}))
    assert number == 0
    number, text = differences(record([], texts={"x": 0.0}), record([], texts={"x": -0.0}))
    assert number == 1, text


def test_arrays_may_disappear_but_not_change(differences):
    old = record([], arrays={"kept": "float64 [3] 12", "gone": "float64 [2] 34"})
    number, text = differences(old, record([], arrays={"kept": "float64 [3] 12", "more": "float64 [1] 5"}))
    assert number == 0
    assert "array gone: crate.share, gone" in text
    assert "array added: crate.share, more" in text
    number, text = differences(old, record([], arrays={"kept": "float64 [3] 13"}))
    assert number == 1
    assert "array kept" in text


def test_missing_items_and_parts_are_differences(differences):
    assert differences(record([]), None)[0] == 1
    assert differences(None, None)[0] == 1


def test_an_interval_within_the_bounds_is_explained_and_counted(differences):
    rows = new_rows()
    for row in rows[1:]:
        row["interval"] = [0.2, 1.0]
    number, text = differences(record(old_rows()), record(rows))
    assert number == 0
    assert "explained, 4 times: Intervals over seeds" in text
    row = measured(0.5, interval=(0.1, 0.9), interval_kind="over samples")
    assert not bounded_interval(Difference("demo", "", "", "interval", [0.1, 0.9], [0.2, 0.8], (row, row)))


@pytest.mark.parametrize(("name", "explained"), [("MLP", True), ("an MLP", False)])
def test_a_clearer_text_of_a_rung_is_explained_and_its_name_is_not(name, explained):
    old, new = ({"name": rung, "relaxes": text} for rung, text in (("MLP", "ISTA"), (name, "MLP for ISTA")))
    assert (
        clearer(Difference("reach", "(result)", "", "settings.ladders.crate.rungs", [old], [new]))
        is explained
    )


def test_a_changed_rung_is_explained_in_its_theory_alone():
    rows = [{"theory": theory, "rung": "one block"} for theory in ("particles", "collapse")]
    covers = of_rungs("particles/one block")
    found = [covers(Difference("reach", "", "", "value", 1.0, 2.0, (row, row))) for row in rows]
    assert found == [True, False]
    assert not covers(Difference("reach", "(result)", "", "settings", 1, 2))


def test_numbers_are_stored_and_kept(tmp_path, monkeypatch, capsys):
    path = tmp_path / "numbers.jsonl"
    names = ["length/dispersion-attained", "length/gap"]
    words = ["store", str(path), "--parts", "claims", "--workers", "1", "--only", *names]
    assert same_numbers.main(words) == 0
    stored = path.read_bytes()
    first = same_numbers.read(path)
    assert [record["item"] for record in first] == names
    assert first[0]["texts"]["source"]["key"]
    path.write_bytes(stored + b'{"part": "claims", "it')  # an interruption
    monkeypatch.setattr(same_numbers, "_computed", None)  # nothing is computed again
    assert same_numbers.main(words) == 0
    assert path.read_bytes() == stored
    assert same_numbers.main(["compare", str(path), str(path), "--parts", "claims"]) == 0
    first[0]["seeds"]["0"]["control"]["value"] += 1e-9
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps(record) + "\n" for record in first))
    capsys.readouterr()
    assert same_numbers.main(["compare", str(path), str(other), "--parts", "claims"]) == 1
    assert "seeds.0.control.value" in capsys.readouterr().out
