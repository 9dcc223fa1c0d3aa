"""Theories by networks: the cells of the table, the reasons of empty ones, and the figure for a page and for
a column of a paper.
"""

from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from transformer_theory.comparison.judged import Findings, findings
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.core import format
from transformer_theory.core.result import Result
from transformer_theory.report import side_by_side, tex
from transformer_theory.report.interventions import found_in
from transformer_theory.report.side_by_side import MISSING, PREDICTED, SideBySide, mark_of

ATLAS = Path(__file__).parents[2] / "docs" / "atlas"


@pytest.fixture(scope="module")
def side() -> SideBySide:
    results = [Result.load(path.parent) for path in sorted(ATLAS.glob("*/result.json"))]
    found = side_by_side.of(findings(aggregate(results)), found_in(results))
    assert found is not None
    return found


def test_each_cell_has_the_mark_the_value_and_the_interventions(side):
    table, right = side_by_side.table(side), side.interventions()
    assert [str(column.head) for column in table.columns[1:]] == side.networks
    lines = [line for line in table.lines if line.cells]
    assert len(lines) == len(side.found.theories) > 10
    marks = set()
    for theory, line in zip(side.found.theories, lines):
        assert theory.short_title in str(line.cells[0])
        for network, cell in zip(side.networks, line.cells[1:]):
            judged = side.at(theory, network).judged
            words = str(cell[0])
            if judged.row.value is None:
                assert words.startswith(format.NOTHING)
            else:
                assert words == f"{mark_of(judged)}\u00a0{format.of_row(judged.row.value, judged.row)}"
                marks.add((mark_of(judged), judged.outcome))
            assert [str(each) for each in cell[1:]] == [*filter(None, (right.get((theory.name, network)),))]
    # one mark for each outcome
    assert len(marks) == len({mark for mark, _ in marks}) == len({outcome for _, outcome in marks})
    assert (PREDICTED, "as predicted") in marks


def test_every_empty_cell_has_a_numbered_reason(side):
    table = side_by_side.table(side)
    said = [str(line.below) for line in table.lines if not line.cells]
    assert [line.partition(".")[0] for line in said] == [str(1 + number) for number in range(len(said))]
    empty = [each for each in side.found.all if each.judged.row.value is None]
    assert sum(len(places) for places in side.reasons.values()) == len(empty) > 0
    assert f"{len(empty)} of {len(side.found.all)} cells are empty" in table.legend
    for each in empty:
        number = 1 + list(side.reasons).index(each.judged.reason)
        line = table.lines[side.found.theories.index(each.theory)]
        cell = line.cells[1 + side.networks.index(each.model)]
        assert str(cell[0]) == f"{format.NOTHING} ({number})"
        assert each.model in said[number - 1]
        assert each.theory.short_title in said[number - 1]


@pytest.mark.parametrize(("column", "width"), [(True, 3.4), (False, 7.2)])
def test_the_figure_fits_its_width_and_stays_legible(side, column, width):
    figure = side_by_side.figure(side, column=column)
    assert figure.get_size_inches()[0] == pytest.approx(width)
    assert figure.get_size_inches()[1] < 9.5  # a page of a paper
    (ax,) = figure.axes
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = {text: text.get_window_extent(renderer) for text in ax.texts}
    assert min(text.get_fontsize() for text in boxes) >= 6
    for text, box in boxes.items():
        assert box.x0 >= -0.5, text
        assert box.x1 <= figure.bbox.width + 0.5, text
        assert box.y0 >= -0.5, text
        assert box.y1 <= figure.bbox.height + 0.5, text
    shown = [text.get_text() for text in ax.texts]
    cells = len(side.networks) * len(side.found.theories)
    marks = {PREDICTED, MISSING, *(mark_of(each.judged) for each in side.found.all)} - {""}
    assert sum(words.split(" ")[0] in marks for words in shown if "\n" not in words) >= cells


def test_the_latex_is_one_float(side):
    text = tex.floats(side_by_side.table(side))
    assert text.count(r"\begin{table*}") == 1
    assert "U+" not in text  # no sign without LaTeX


def test_findings_on_data_and_a_single_network_are_no_networks_side_by_side(side):
    first = side.found.all[0].model
    assert side_by_side.of(Findings(tuple(each for each in side.found.all if each.model == first))) is None
    assert side_by_side.of(Findings(())) is None


def test_a_sentence_per_theory_counts_every_network(side):
    said = dict(side_by_side.statements(side))
    assert list(said) == [theory.title for theory in side.found.theories]
    for theory in side.found.theories:
        text, cells = said[theory.title], side.found.of(theory)
        predicted = sum(each.judged.outcome == "as predicted" for each in cells)
        if cells[0].judged.row.side in ("<=", ">="):
            assert f"as predicted, in {predicted or 'none'} of {len(cells)} networks" in text
        for each in cells:  # what is not as predicted is named, or counted
            if each.judged.outcome not in ("as predicted", "not tested"):
                assert each.model in text or "networks" in text.partition("; ")[2]
        if tested := sum(each.q is not None and each.row.theory == theory.name for each in side.changed):
            right = sum(
                each.outcome == "as predicted" and each.row.theory == theory.name for each in side.changed
            )
            assert text.endswith(f"interventions as predicted: {right} of {tested}")
