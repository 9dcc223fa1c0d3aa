"""The page about interventions comes from stored results, and the figure shows them as they are."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import transformer_theory as tt
from tests.comparison.test_interventions import HARD, KEPT, Marked, marked
from transformer_theory.comparison.interventions import judged_interventions
from transformer_theory.core.measurement import Null
from transformer_theory.core.table import Table
from transformer_theory.report.interventions import picture
from transformer_theory.theories import list_theories

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

from intervention_pages import FOLDER, main, pages, shortened, stored  # noqa: E402


def test_the_pages_are_those_of_the_stored_results():
    for name, text in pages(stored(DOCS)).items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, (
            f"{name}: run python docs/intervention_pages.py docs"
        )


def test_the_stored_results_have_the_present_interventions():
    present = {f"{theory.name}/{one.name}" for theory in list_theories() for one in theory.interventions}
    for result in stored(DOCS):
        assert set(result.settings["interventions"]) == present, result.settings["model"]


@pytest.fixture(scope="module")
def result() -> tt.Result:
    x, y = marked()
    return tt.intervene(Marked(), x, [KEPT, HARD, "induction"], labels=y, name="marked <&>")


def test_dots_and_bars_are_effects_and_ranges(result):
    judged = judged_interventions(result)
    figure = picture({"one": judged, "two": judged[:1]}, list_theories())
    assert figure is not None
    assert len(figure.axes) == 2
    first, second = figure.axes
    dots = [line for line in first.lines if line.get_marker() == "o"]
    values = [each.row.value for each in judged if each.row.value is not None]
    assert [float(dot.get_xdata()[0]) for dot in dots] == values == [0.0, 0.0]
    # rows are in the order of the theories, scan and snap behind the support vector machine
    assert [float(dot.get_ydata()[0]) for dot in dots] == [1.0, 0.0]
    filled = [dot.get_markerfacecolor() != "white" for dot in dots]
    assert filled == [each.outcome == "as predicted" for each in judged if each.row.value is not None]
    boxes = [bar.get_paths()[0].get_extents() for bar in first.collections]
    nulls = [null for each in judged for null in each.row.nulls]
    assert [(box.x0, box.x1) for box in boxes] == [pytest.approx((null.low, null.high)) for null in nulls]
    assert len([line for line in second.lines if line.get_marker() == "o"]) == 1
    words = [text.get_text().replace("\n", " ") for text in first.texts]
    assert [word for word in words if len(word) > 1] == [judged[1].row.quantity, judged[0].row.quantity]


def test_nothing_measured_has_no_figure(result):
    judged = [each for each in judged_interventions(result) if each.row.value is None]
    assert {each.row.theory for each in judged} == {"induction"}
    assert picture({"one": judged}, list_theories()) is None
    with pytest.raises(ValueError, match="none with a measured intervention"):
        pages([])


def test_fewer_digits_leave_the_outcomes(result):
    """A draw that equals an effect still does, and none that differs by more than rounding becomes one."""
    thirds = [(x + 1 / 3) / 7 for x in range(-4, 5)]
    row = result.table[0]
    for value in thirds:
        null = Null("thirds", tuple(thirds), value)
        (short,) = shortened(replace(result, table=Table([replace(row, nulls=(null,))]))).table[0].nulls
        for side in (">=", "<="):
            assert short.p(short.value, side) == null.p(value, side)
    before, after = judged_interventions(result), judged_interventions(shortened(result))
    assert [each.outcome for each in before] == [each.outcome for each in after]


def test_a_network_that_is_measured_again_takes_the_place_of_its_result(result, tmp_path):
    (tmp_path / "figures").mkdir()
    result.save(tmp_path / "run")
    for _ in range(2):
        main([str(tmp_path), str(tmp_path / "run")])
    assert [folder.name for folder in (tmp_path / FOLDER).iterdir()] == ["marked"]
    page = (tmp_path / "intervention_tables.md").read_text(encoding="utf-8")
    assert "### marked &lt;&amp;&gt;" in page or "### marked \\<&\\>" in page
    with pytest.raises(ValueError, match="expected the folder of the documentation"):
        main([])
