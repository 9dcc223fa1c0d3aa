"""The schedule of learning rates: its ends, its shape, and what it refuses."""

import itertools

import pytest

from tests.cases import each_case
from transformer_theory.training.optimisers import warm_up_cosine

GRID = [i / 1000 for i in range(1001)]


@each_case("warm_up", [0.0, 0.05, 0.5])
@each_case("floor", [0.0, 0.1, 1.0])
def test_it_rises_in_a_line_to_1_and_falls_to_the_floor(warm_up, floor):
    values = [warm_up_cosine(progress, warm_up=warm_up, floor=floor) for progress in GRID]
    top = round(1000 * warm_up)
    assert values[0] == (0 if warm_up else 1)
    assert values[top] == max(values) == 1
    assert values[-1] == floor
    assert values[: top + 1] == sorted(values[: top + 1])
    assert values[top:] == sorted(values[top:], reverse=True)
    assert values[: top + 1] == pytest.approx(
        [progress / warm_up for progress in GRID[: top + 1]] if warm_up else [1]
    )
    assert max(abs(a - b) for a, b in itertools.pairwise(values)) <= 0.0201  # no jump
    middle = warm_up_cosine((1 + warm_up) / 2, warm_up=warm_up, floor=floor)
    assert middle == pytest.approx((1 + floor) / 2)


@each_case(
    "wrong",
    [
        {"progress": 1.01},
        {"progress": -0.1},
        {"progress": float("nan")},
        {"progress": 0, "warm_up": 1},
        {"progress": 0, "floor": 2},
    ],
)
def test_arguments_out_of_range(wrong):
    with pytest.raises(
        ValueError, match=r"progress and floor must lie in \[0, 1\] and warm_up in \[0, 1\), got progress"
    ):
        warm_up_cosine(**wrong)
