"""Runs side by side: equal steps, time and parameters are equal, further differences are noted, and errors
state their reason.
"""

import math
from dataclasses import replace

import pytest

from transformer_theory.core.measurement import Measurement
from transformer_theory.core.table import Table
from transformer_theory.training.image.progress_update import SECONDS, SPEED
from transformer_theory.training.image.side_by_side import (
    COMPARISON,
    EQUAL_PARAMETERS,
    EQUAL_STEPS,
    EQUAL_TIME,
    Run,
    side_by_side,
)
from transformer_theory.training.objectives import ACCURACY, LOSS

SETTINGS = {"validation_share": 0.5, "batch_size": 10, "epochs": 10, "minutes": None, "seed": 0}


def run(
    name: str,
    accuracies: dict[int, float],
    *,
    speed: float = 10.0,
    parameters: int = 1000,
    seconds: float = 1.0,
    **changed,
) -> Run:
    """A run of 100 images per split, 10 per step: accuracies by step, ``speed`` in images per second."""
    stored = {
        "settings": SETTINGS | {key: changed.pop(key) for key in list(changed) if key in SETTINGS},
        "score": ACCURACY,
        "images": "200 images, 0",
        "data": "noise",
        "precision": "float32",
        "train_samples": 100,
        "validation_samples": 100,
    }
    rows = []
    for step, value in accuracies.items():
        row = Measurement(
            "network", "network", ACCURACY, value, unit="share", split="validation", step=step, model="x"
        )
        plain = replace(row, value=0.0, unit="", split="", reason="")
        rows += [
            row,
            replace(row, quantity=LOSS, value=2 - value, unit="nats"),
            replace(plain, quantity=SECONDS, value=seconds * step),
        ]
        rows += [replace(plain, quantity=SPEED, value=speed)] if step else []
    return Run(name, stored | changed, Table(rows), {"device": "cpu"}, parameters)


def rows(runs, setting, quantity=ACCURACY):
    return {
        row.model: row for row in side_by_side(runs) if (row.quantity, row.setting) == (quantity, setting)
    }


def values(runs, setting):
    return {name: row.value for name, row in rows(runs, setting).items()}


FAST = run("fast", {0: 0.1, 10: 0.4, 20: 0.5}, speed=100.0)  # an interval takes a second
SLOW = run("slow", {0: 0.2, 5: 0.4, 10: 0.8}, speed=50.0)


def test_equal_steps_are_the_largest_common_ones():
    assert values([FAST, SLOW], EQUAL_STEPS) == {"fast": 0.4, "slow": 0.8}
    row = rows([FAST, SLOW], EQUAL_STEPS)["fast"]
    assert "step 10, 1.0 s, 100 images seen, 1,000 parameters, 10 %" in row.note
    assert (row.n, row.unit, row.split, row.interval_kind) == (100, "share", "validation", "over samples")
    assert row.interval[0] < 0.4 < row.interval[1]
    assert "step 10, 2.0 s" in rows([FAST, SLOW], EQUAL_STEPS)["slow"].note


def test_equal_time_is_interpolated_and_never_extrapolated():
    # slow ends after 1 s
    assert values([FAST, replace(SLOW, table=SLOW.table[:-4])], EQUAL_TIME) == {"fast": 0.4, "slow": 0.4}
    brief = run("brief", {0: 0.0, 3: 0.3}, speed=20.0)  # 1.5 s
    found = rows([FAST, brief], EQUAL_TIME)
    assert found["fast"].value == pytest.approx(0.45)
    assert "step 15, 1.5 s, 150 images seen" in found["fast"].note
    assert "between two measurements" in found["fast"].note
    assert found["fast"].interval is None
    assert found["brief"].value == 0.3
    assert "between" not in found["brief"].note


def test_time_excludes_measurements():
    long = run("long", {0: 0.1, 10: 0.4, 20: 0.5}, speed=100.0, seconds=1000.0)
    assert long.clock[1].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("parameters", "equal"), [(1050, True), (1051, False)])
def test_parameters_are_equal_within_a_twentieth(parameters, equal):
    found = rows([FAST, run("other", {0: 0.1, 20: 0.3, 30: 0.2}, parameters=parameters)], EQUAL_PARAMETERS)
    if equal:  # at the stored networks, not at the end
        assert {name: row.value for name, row in found.items()} == {"fast": 0.5, "other": 0.3}
        assert "chosen on these images" in found["other"].note
    else:
        assert found[""].value is None
        assert "fast 1,000, other 1,051" in found[""].reason


def test_further_differences_are_noted():
    other = run("other", {0: 0.1, 10: 0.3}, seed=1)
    note = rows([FAST, other], EQUAL_STEPS)["other"].note
    assert "seeds: fast 0, other 1; so the validation images differ" in note
    assert "differ" not in rows([FAST, SLOW], EQUAL_STEPS)["slow"].note
    elsewhere = replace(SLOW, provenance={"device": "cuda:0", "threads": 4})
    assert "machines: fast cpu, slow cuda:0 / threads 4" in rows([FAST, elsewhere], EQUAL_TIME)["fast"].note


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"images": "200 images, 1"}, "different images: fast on noise (200 images, 0), other on noise"),
        ({"score": "accuracy of nearest subspaces"}, "other by its accuracy of nearest subspaces"),
    ],
)
def test_runs_that_cannot_be_compared(changed, text):
    (row,) = side_by_side([FAST, run("other", {0: 0.1, 10: 0.3}, **changed)])
    assert (row.quantity, row.value) == (COMPARISON, None)
    assert text in row.reason


def test_runs_without_a_common_step():
    apart, unmeasured = run("apart", {0: 0.1, 7: 0.3}), run("unmeasured", {0: 0.1})
    (row,) = rows([FAST, apart], EQUAL_STEPS).values()
    assert "fast steps 0 to 20, apart steps 0 to 7" in row.reason
    assert all(
        row.value is None for row in side_by_side([FAST, unmeasured]) if row.setting != EQUAL_PARAMETERS
    )
    empty = replace(unmeasured, table=Table())
    assert all(row.value is None for row in side_by_side([FAST, empty]))
    assert side_by_side([FAST]) == []


@pytest.mark.parametrize(("slowest", "warned"), [(67.0, False), (66.0, True)])
def test_an_uneven_speed_is_noted_where_time_is_compared(slowest, warned):
    # 100 images per second except in the first interval
    table = Table(
        replace(row, value=slowest) if (row.quantity, row.step) == (SPEED, 10) else row for row in FAST.table
    )
    noted = {
        (row.quantity, row.setting, row.model)
        for row in side_by_side([replace(FAST, table=table), SLOW])
        if "66 to 100" in row.note
    }
    assert noted == ({(quantity, EQUAL_TIME, "fast") for quantity in (ACCURACY, LOSS)} if warned else set())


def test_missing_values_are_skipped():
    holed = run("holed", {0: math.nan, 5: 0.2, 10: math.nan, 15: 0.4}, speed=100.0)
    other = run("other", {0: 0.1, 5: 0.3, 10: 0.3, 15: 0.3}, speed=100.0)
    assert values([holed, other], EQUAL_STEPS)["holed"] == 0.4
    assert values([holed, other], EQUAL_TIME)["holed"] == 0.4


def test_a_run_by_the_clock_states_its_share_of_the_minutes():
    timed = run("timed", {0: 0.1, 30: 0.4}, minutes=1.0)  # a step takes a second
    assert "50 % of its training" in rows([timed, timed], EQUAL_STEPS)["timed"].note
