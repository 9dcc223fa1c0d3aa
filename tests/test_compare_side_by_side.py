"""Runs side by side: what is equal is equal, what differs is told, and what cannot be compared says why."""

import math
from dataclasses import replace

import pytest

from transformer_theory.core.measurement import check_row
from transformer_theory.training.side_by_side import Run, side_by_side

SETTINGS = {"held_out": 0.5, "batch_size": 10, "epochs": 10, "minutes": None, "seed": 0}
ACCURACY = "held-out accuracy"


def run(name: str, readings: dict[int, float], *, speed: float = 10.0, parameters: int = 1000, seconds: float = 1.0, **changed) -> Run:
    """A run of 100 images a side, 10 a step: ``readings`` are accuracies by step, ``speed`` is in images a second."""
    params = {
        "settings": SETTINGS,
        "objective": {"name": "cross-entropy"},
        "images": "200 images, 0",
        "data": "noise",
        "precision": "float32",
    }
    settings = SETTINGS | {key: changed.pop(key) for key in list(changed) if key in SETTINGS}
    table = []
    for step, value in readings.items():
        told = {ACCURACY: value, "held-out loss": 2 - value, "seconds": seconds * step} | ({"images per second": speed} if step else {})
        table += [
            {"theory": "network", "quantity": quantity, "value": number, "step": step, "model": "x"} for quantity, number in told.items()
        ]
    return Run(name, params | {"settings": settings} | changed, table, {"device": "cpu"}, parameters)


def rows(runs, quantity):
    found = [row for row in side_by_side(runs) if row["quantity"] == quantity]
    assert all(check_row(row) for row in found)
    return {row.get("model"): row for row in found}


FAST = run("fast", {0: 0.1, 10: 0.4, 20: 0.5}, speed=100.0)  # a second an interval
SLOW = run("slow", {0: 0.2, 5: 0.4, 10: 0.8}, speed=50.0)


def test_equal_steps_are_the_largest_that_all_were_read_at():
    found = rows([FAST, SLOW], f"{ACCURACY} at equal steps")
    assert {name: row["value"] for name, row in found.items()} == {"fast": 0.4, "slow": 0.8}
    assert found["fast"]["note"].startswith(
        "step 10, 1.0 s, 100 images seen, 1,000 parameters, 10 % of its training, 100 held-out images, 95 %"
    )
    assert "step 10, 2.0 s" in found["slow"]["note"]


def test_equal_time_lies_on_the_line_between_two_readings_and_never_beyond_the_last():
    found = rows([FAST, replace(SLOW, table=SLOW.table[:-4])], f"{ACCURACY} at equal time")  # slow was last read after 1 s
    assert {name: row["value"] for name, row in found.items()} == {"fast": 0.4, "slow": 0.4}
    brief = run("brief", {0: 0.0, 3: 0.3}, speed=20.0)  # 1.5 s
    found = rows([FAST, brief], f"{ACCURACY} at equal time")
    assert found["fast"]["value"] == pytest.approx(0.45)
    assert found["fast"]["note"].startswith("step 15, 1.5 s, 150 images seen")
    assert "between two readings" in found["fast"]["note"]
    assert "interval" not in found["fast"]["note"]
    assert found["brief"]["value"] == 0.3
    assert "between" not in found["brief"]["note"]


def test_time_leaves_readings_out():
    long = run("long", {0: 0.1, 10: 0.4, 20: 0.5}, speed=100.0, seconds=1000.0)
    assert long.clock[1].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("parameters", "equal"), [(1050, True), (1051, False)])
def test_parameters_are_equal_within_a_twentieth(parameters, equal):
    found = rows([FAST, run("other", {0: 0.1, 20: 0.3, 30: 0.2}, parameters=parameters)], f"{ACCURACY} at equal parameters")
    if equal:  # the networks that were kept, not the last ones
        assert {name: row["value"] for name, row in found.items()} == {"fast": 0.5, "other": 0.3}
        assert found["other"]["note"].endswith("chosen on these images")
    else:
        assert found[None]["value"] is None
        assert found[None]["verdict"] == "not applicable: the counts differ by more than 5 %: fast 1,000, other 1,051"


def test_what_differs_is_told():
    other = run("other", {0: 0.1, 10: 0.3}, seed=1)
    note = rows([FAST, other], f"{ACCURACY} at equal steps")["other"]["note"]
    assert note.endswith("; seeds: fast 0, other 1; so the held-out images differ")
    assert "differ" not in rows([FAST, SLOW], f"{ACCURACY} at equal steps")["slow"]["note"]
    elsewhere = replace(SLOW, provenance={"device": "cuda:0", "threads": 4})
    assert rows([FAST, elsewhere], f"{ACCURACY} at equal time")["fast"]["note"].endswith("; machines: fast cpu, slow cuda:0 / threads 4")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"images": "200 images, 1"}, "the runs were trained on different images: fast on noise (200 images, 0), other on noise"),
        ({"objective": {"name": "rate-reduction"}}, "other by its held-out accuracy of nearest subspaces"),
    ],
)
def test_runs_that_cannot_be_compared_say_why(changed, words):
    (row,) = side_by_side([FAST, run("other", {0: 0.1, 10: 0.3}, **changed)])
    assert row["value"] is None
    assert words in row["verdict"]


def test_runs_that_were_never_read_together_say_so():
    apart, unread = run("apart", {0: 0.1, 7: 0.3}), run("unread", {0: 0.1})
    (row,) = rows([FAST, apart], f"{ACCURACY} at equal steps").values()
    assert row["verdict"].endswith("no step after the first at which all were read: fast steps 0 to 20, apart steps 0 to 7")
    assert all(row["value"] is None for row in side_by_side([FAST, unread]) if "equal parameters" not in row["quantity"])
    empty = replace(unread, table=[])
    assert all(row["value"] is None for row in side_by_side([FAST, empty]))
    assert side_by_side([FAST]) == []


@pytest.mark.parametrize(("slowest", "warned"), [(67.0, False), (66.0, True)])
def test_a_run_whose_speed_varied_is_warned_of_where_time_is_compared(slowest, warned):
    table = [
        row | {"value": slowest} if (row["quantity"], row["step"]) == ("images per second", 10) else row
        for row in FAST.table  # 100 images a second but in its first interval
    ]
    found = side_by_side([replace(FAST, table=table), SLOW])
    told = {(row["quantity"], row["model"]) for row in found if "speed varied" in row.get("note", "")}
    assert told == ({(f"{measure} at equal time", "fast") for measure in (ACCURACY, "held-out loss")} if warned else set())
    notes = [row["note"] for row in found if "speed varied" in row.get("note", "")]
    assert all("its speed varied from 66 to 100 images a second, so its seconds may not be its own" in note for note in notes)


def test_values_that_are_no_numbers_are_passed_over():
    holed = run("holed", {0: math.nan, 5: 0.2, 10: math.nan, 15: 0.4}, speed=100.0)
    other = run("other", {0: 0.1, 5: 0.3, 10: 0.3, 15: 0.3}, speed=100.0)
    found = rows([holed, other], f"{ACCURACY} at equal steps")
    assert found["holed"]["value"] == 0.4
    assert rows([holed, other], f"{ACCURACY} at equal time")["holed"]["value"] == 0.4


def test_a_run_by_the_clock_tells_its_share_of_the_minutes():
    timed = run("timed", {0: 0.1, 30: 0.4}, minutes=1.0)  # a second a step
    assert "50 % of its training" in rows([timed, timed], f"{ACCURACY} at equal steps")["timed"]["note"]
