"""The reach map of the documentation comes from the stored result, which was measured on the
present ladders.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from benchmarks.untested_numbers import missing, sizes, stated
from transformer_theory.comparison.judged import RungResult, by_theory, rung_results
from transformer_theory.comparison.pooling import Aggregate
from transformer_theory.comparison.pretrained import headline_rows
from transformer_theory.core.ladder import PRETRAINED_COLUMN
from transformer_theory.core.result import Result
from transformer_theory.report import aggregate
from transformer_theory.report.judged_figures import PAPER_COLUMN, reach_overview
from transformer_theory.report.ladder_figure import TONES, ladder
from transformer_theory.theories import list_theories

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

import atlas_pages  # noqa: E402
from reach_pages import FOLDER, LADDERS, main, merged, pages, with_networks  # noqa: E402

OUTCOMES = {  # as the short pages name them, which have no columns for the kinds of nulls
    "as predicted": "as predicted",
    "opposite": "opposite",
    "not significant": "not significant",
    "matched by": "matched by a second null",
    "nulls conflict": "nulls conflict",
}


def ladder_rows(name: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The rungs that a row of the ladder on a theory's page stands for, and its cells by column."""
    page = (DOCS / "theories" / f"{name}.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| rung \|.*\n\|[-| ]+\|\n(?:\|.*\n)+", page, re.MULTILINE)
    head, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    for cells in lines:
        yield (
            cells[0].replace("$P P^\\top$", "P P^T").split("; "),
            dict(zip(head[1:], cells[1:], strict=True)),
        )


@pytest.fixture(scope="module")
def stored() -> Result:
    return Result.load(DOCS / FOLDER)


@pytest.fixture(scope="module")
def pooled(stored) -> Aggregate:
    return aggregate(stored)


def test_the_pages_are_those_of_the_stored_result(stored):
    for name, text in pages(stored, atlas_pages.stored(DOCS)).items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, (
            f"{name}: run python docs/reach_pages.py docs"
        )


def test_the_overview_fits_a_column_and_stays_legible(stored):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.patches import Rectangle

    cells = rung_results(aggregate(with_networks(stored, atlas_pages.stored(DOCS))))
    figure = reach_overview(cells, column=True)
    assert figure is not None
    assert figure.get_size_inches()[0] == PAPER_COLUMN <= 3.4
    (ax,) = figure.axes
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = {text: text.get_window_extent(renderer) for text in ax.texts}
    assert min(text.get_fontsize() for text in boxes) >= 6
    assert all(
        box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0 and box.y1 <= figure.bbox.height
        for box in boxes.values()
    )
    squares = sorted(
        (round(p.get_y(), 6), p.get_x(), p.get_width()) for p in ax.patches if isinstance(p, Rectangle)
    )
    assert len(squares) == len(cells) + 6  # with the legend
    assert all(
        left + width < other for (row, left, width), (same, other, _) in pairwise(squares) if row == same
    )
    assert max(left + width for _, left, width in squares) <= PAPER_COLUMN


@pytest.fixture(scope="module")
def own_rungs(pooled) -> dict[str, list[RungResult]]:
    return {own[0].theory.name: own for own in by_theory(rung_results(pooled))}


@pytest.mark.parametrize("theory", list_theories(), ids=lambda theory: theory.name)
def test_a_ladder_shows_every_stored_rung_beside_its_nulls(own_rungs, theory):
    own = own_rungs[theory.name]
    figure = ladder(own)
    assert figure is not None
    page, plot = figure.axes
    words = [text.get_text() for text in page.texts]
    assert [word for word in words if word in {cell.name for cell in own}] == [cell.name for cell in own]
    measured = [(place, cell.judged) for place, cell in enumerate(own) if cell.judged.row.value is not None]
    dots = [line for line in plot.lines if line.get_marker() == "o"]
    assert [(dot.get_xdata()[0], dot.get_ydata()[0]) for dot in dots] == [
        (judged.row.value, place) for place, judged in measured
    ]
    assert [dot.get_markerfacecolor() for dot in dots] == [
        TONES.get(judged.outcome, "white") for _, judged in measured
    ]
    intervals = [tuple(line.get_xdata()) for line in plot.lines if line.get_linewidth() == 1.3]
    assert intervals == [judged.row.interval for _, judged in measured if judged.row.interval is not None]
    bars = [
        (bar.get_datalim(plot.transData).x0, bar.get_datalim(plot.transData).x1) for bar in plot.collections
    ]
    nulls = [
        null for _, judged in measured for null in (judged.row.null, *judged.further) if null is not None
    ]
    assert bars == [pytest.approx((null.low, null.high)) for null in nulls]
    dashed = [line.get_xdata()[0] for line in plot.lines if line.is_dashed()]
    assert dashed == [
        judged.row.predicted
        for _, judged in measured
        if judged.row.predicted is not None and judged.row.basis != "own setting"
    ]


@pytest.mark.parametrize("theory", list_theories(), ids=lambda theory: theory.name)
def test_the_words_of_a_ladder_are_legible(own_rungs, theory):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = ladder(own_rungs[theory.name])
    assert figure is not None
    page, plot = figure.axes
    renderer = FigureCanvasAgg(figure).get_renderer()
    texts = [text for text in [*page.texts, *plot.get_xticklabels()] if text.get_text()]
    boxes = [text.get_window_extent(renderer) for text in texts]
    assert min(text.get_fontsize() for text in texts) >= 6
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes), "cut off"
    assert not any(
        first.x0 < second.x1
        and second.x0 < first.x1
        and first.y0 + 1 < second.y1
        and second.y0 + 1 < first.y1
        for first, second in combinations(boxes, 2)
    ), "overlap"
    assert not any(box.overlaps(plot.bbox) for box in boxes[: len(page.texts)]), "words on the plot"


def test_a_ladder_is_that_of_one_theory_and_quantity(own_rungs):
    assert ladder([]) is None
    with pytest.raises(
        ValueError, match=r"expected the rungs of one theory and quantity, got crate: .*; joma: "
    ):
        ladder([*own_rungs["crate"], *own_rungs["joma"]])


@pytest.mark.parametrize("name", LADDERS)
def test_the_page_of_a_theory_shows_its_own_ladder(name):
    page = (DOCS / "theories" / f"{name}.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((\.\./figures/[^)]+)\)", page) == [f"../figures/{name}_ladder.svg"]


def test_trained_networks_are_rungs_of_the_last_column(stored):
    networks = [each for each in atlas_pages.stored(DOCS) if "digits" not in each.settings["model"]]
    found = rung_results(aggregate(with_networks(stored, networks)))
    assert len(networks) > 2
    for network in networks:
        headlines = headline_rows(network, list_theories())
        name = f"pretrained {network.settings['model']}"
        rungs = {each.theory.name: each for each in found if each.name == name}
        assert rungs.keys() == headlines.keys() & stored.settings["ladders"].keys()
        for theory, rung in rungs.items():
            assert rung.column == PRETRAINED_COLUMN
            assert rung.judged.row.value == headlines[theory].value
            assert not rung.covered
    # rungs that were measured with the ladder stay
    before = rung_results(aggregate(stored))
    assert [each.name for each in found if not each.name.startswith("pretrained ")] == [
        each.name for each in before
    ]


@pytest.mark.parametrize("theory", list_theories(), ids=lambda theory: theory.name)
def test_the_stored_result_has_the_present_rungs(stored, theory):
    assert theory.ladder is not None
    described = stored.settings["ladders"][theory.name]
    assert described["quantity"] == theory.ladder.quantity
    present = [
        {
            "name": rung.name,
            "relaxes": rung.relaxes,
            "column": rung.column,
            "covered": rung.covered,
            "needs": rung.needs,
        }
        for rung in theory.ladder.rungs
    ]
    assert [rung for rung in described["rungs"] if not rung["name"].startswith("stored ")] == present


@pytest.mark.parametrize("theory", list_theories(), ids=lambda theory: theory.name)
def test_the_ladder_on_the_page_of_a_theory_has_the_stored_numbers_and_outcomes(pooled, theory):
    """Each number is one of its rung: a value, a bound of an interval, the median or the range of a null."""
    judged = {each.name: each.judged for each in rung_results(pooled) if each.theory.name == theory.name}
    for labels, cells in ladder_rows(theory.name):
        outcome = cells.pop("outcome", None)
        numbers = [number for cell in cells.values() for number in stated(cell)]
        for label in labels:
            (rung,) = (name for name in judged if label == name or label.startswith(f"{name}, "))
            known = [judged[rung].effect or 0.0]
            for entry in pooled.entries:
                if (entry.row.theory, entry.row.rung) == (theory.name, rung):
                    known += sizes(entry.row.to_json())
            assert [each.text for each in missing(numbers, sorted(map(abs, known)))] == [], label
            if outcome is not None:
                (said,) = (each for each in OUTCOMES if outcome.startswith(each))
                assert OUTCOMES[said] == judged[rung].outcome, label


@pytest.mark.parametrize("name", ["attention_svm", "scan_snap", "joma"])
def test_further_quantities_of_rungs_on_the_reference_page_are_those_stored(pooled, name):
    """All columns but those of a horizon that the reach does not measure."""
    page = (DOCS / "theories" / f"{name}_reference.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| rung \|(.*)\n\|[-| ]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert tables
    for head, body in tables:
        for line in body.splitlines():
            label, *cells = line.strip("|").split("|")
            known = [
                abs(size)
                for entry in pooled.entries
                if (entry.row.theory, entry.row.rung) == (name, label.strip().removesuffix(" (covered)"))
                for size in sizes(entry.row.to_json())
            ]
            for column, cell in zip(head.strip("|").split("|"), cells, strict=True):
                if "20" not in column:
                    assert [each.text for each in missing(list(stated(cell)), sorted(known))] == [], line


def test_the_page_of_the_reach_has_the_sentences_and_the_table():
    page = (DOCS / "reach.md").read_text(encoding="utf-8")
    for name in ("reach_findings.md", "reach_rungs.md"):
        assert f"```{{include}} {name}\n```" in page


def test_readme_and_home_page_show_the_reach():
    for page, link in ((DOCS.parent / "README.md", "docs/"), (DOCS / "index.md", "")):
        text = page.read_text(encoding="utf-8")
        assert f"]({link}figures/reach_overview.svg)" in text
        assert f"]({link}reach.md)" in text


def test_a_theory_measured_again_takes_the_place_of_its_former_rungs(stored):
    name, others = "joma", ("crate", "vision")
    new = replace(
        stored,
        settings=stored.settings
        | {
            "ladders": {name: stored.settings["ladders"][name]},
            "measured": {name: {"date": "2030", "commit": "c"}},
        },
        table=stored.table.select(theory=name).replace(note="new"),
    )
    both = merged(stored, new)
    assert len(both.table) == len(stored.table)
    assert {row.note for row in both.table.select(theory=name)} == {"new"}
    for other in others:
        assert both.table.select(theory=other) == stored.table.select(theory=other)
        assert both.settings["measured"][other] == stored.settings["measured"][other]
    assert both.settings["measured"][name] == {"date": "2030", "commit": "c"}
    assert "2030, commit c: joma" in pages(both)["reach_findings.md"]
    with pytest.raises(ValueError, match=r"expected the seeds .* measure the same seeds"):
        merged(stored, replace(new, settings=new.settings | {"seeds": [7]}))


def test_wrong_arguments_are_named(tmp_path):
    with pytest.raises(ValueError, match="expected the folder of the documentation"):
        main([])
    with pytest.raises(ValueError, match="expected a stored result"):
        main([str(tmp_path)])
    Result("compare", {}).save(tmp_path / "other")
    with pytest.raises(ValueError, match="expected a result of reach, got compare without rungs"):
        main([str(tmp_path), str(tmp_path / "other")])
    assert not (tmp_path / FOLDER).exists()
