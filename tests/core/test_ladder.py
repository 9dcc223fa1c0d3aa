"""Ladders: rungs are added by decorators, and rows take what the ladder knows."""

import pickle

import pytest
import torch

from transformer_theory.core.ladder import CONSTRUCTION_COLUMNS, Ladder
from transformer_theory.core.measurement import Null
from transformer_theory.core.sources import Source

SOURCE = Source("dong2021attention")


def ladder() -> Ladder:
    return Ladder(
        theory="toy", quantity="height", unit="share", side="<=", null="normal draws", source=SOURCE
    )


def heights(generator, data=None, *, scale=1.0):
    yield ladder().row(scale * float(torch.rand((), generator=generator)))


def test_rungs_stand_in_the_order_in_which_they_are_read():
    toy = ladder()

    @toy.rung("own", column="own setting", covered=True)
    @toy.rung("scaled", relaxes="the scale 1", column="real tokens", scale=3.0)
    def first(generator, *, scale=1.0):
        return heights(generator, scale=scale)

    toy.rung("text", relaxes="numbers", column="trained network", needs="text")(heights)
    assert [rung.name for rung in toy.rungs] == ["own", "scaled", "text"]
    assert [(rung.covered, rung.needs) for rung in toy.rungs] == [(True, ""), (False, ""), (False, "text")]
    values = [next(rung.measure(torch.Generator().manual_seed(0))).value for rung in toy.rungs[:2]]
    assert values[1] == pytest.approx(3 * values[0])
    assert [row.value for row in toy.rungs[2].measure(torch.Generator().manual_seed(0), "text")] == values[:1]
    assert isinstance(first(torch.Generator()), type(heights(torch.Generator())))


def test_a_row_has_the_columns_of_its_ladder():
    toy = ladder()
    row = toy.row(0.5, predicted=1.0, nulls=(Null(toy.null, (0.1, 0.2)), Null("other", (0.3,))))
    assert (row.theory, row.kind, row.quantity, row.unit, row.side, row.source) == (
        "toy",
        "rung",
        "height",
        "share",
        "<=",
        SOURCE,
    )
    assert [null.kind for null in row.nulls] == ["normal draws", "other"]
    other = toy.other_row("width", 2.0, source=None)
    assert (other.theory, other.kind, other.quantity, other.unit, other.side, other.source) == (
        "toy",
        "rung",
        "width",
        "",
        None,
        None,
    )


def test_a_ladder_travels_to_another_process():
    toy = ladder()
    toy.rung("own", column="own setting", scale=2.0)(heights)
    copy = pickle.loads(pickle.dumps(toy))
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    rows = [list(each.rungs[0].measure(g)) for each, g in zip((toy, copy), generators)]
    assert rows[0] == rows[1]


def test_a_rung_without_a_function_says_so():
    toy = ladder()
    toy.rung("own", column="own setting")
    with pytest.raises(TypeError, match="the rung has no function"):
        toy.rungs[0].measure(torch.Generator())


@pytest.mark.parametrize(
    ("rung", "message"),
    [
        ({"name": "own", "column": "depth", "relaxes": "x"}, "different names"),
        ({"name": "next", "column": "tail", "relaxes": "x"}, "column must be one of"),
        ({"name": "next", "column": CONSTRUCTION_COLUMNS[0], "relaxes": "x"}, "must all be of COLUMNS"),
    ],
)
def test_a_rung_that_does_not_fit_is_refused(rung, message):
    toy = ladder()
    toy.rung("own", column="own setting")(heights)
    with pytest.raises(ValueError, match=message):
        toy.rung(rung.pop("name"), **rung)
    assert [each.name for each in toy.rungs] == ["own"]


def test_columns_out_of_order_and_a_first_rung_that_relaxes_are_refused():
    toy = ladder()
    with pytest.raises(ValueError, match="relaxes nothing, got 'the scale'"):
        toy.rung("own", relaxes="the scale", column="own setting")
    toy.rung("own", column="real tokens")(heights)
    with pytest.raises(ValueError, match="in the order of COLUMNS"):
        toy.rung("earlier", relaxes="x", column="own setting")
