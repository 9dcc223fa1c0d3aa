"""A result in a notebook: its figures by name, each drawn when asked for; one of them; and its page."""

import base64
import os
from dataclasses import replace
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import transformer_theory as tt
from transformer_theory import report
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import FILES, Result
from transformer_theory.core.table import Table
from transformer_theory.report import figures as module
from transformer_theory.report.figures import Figures, Picture, figures


def test_an_experiment_has_one_figure():
    kind = tt.scan_snap.THEORY.experiments[0]
    result = kind.quick().run()
    shown = tt.figures(result)
    assert list(shown) == [kind.name]
    image = shown._repr_html_().partition('src="data:image/svg+xml;base64,')[2].partition('"')[0]
    assert ElementTree.fromstring(base64.b64decode(image)).tag == "{http://www.w3.org/2000/svg}svg"


def test_a_comparison_has_figures_by_name(compared, theories):
    shown = figures(compared, theories=theories)
    assert "timeline" in repr(shown)
    assert shown["timeline"] is shown["timeline"]  # drawn once
    with pytest.raises(KeyError, match=r"there is no figure 'nothing'; there are: .*timeline"):
        shown["nothing"]


def test_empty_figures_are_left_out_and_titles_are_escaped():
    from transformer_theory.core.plotting import text_figure

    drawn = []

    def draw():
        drawn.append(1)
        return text_figure("text")

    shown = Figures([Picture("a", "<b>", None, draw), Picture("b", "nothing", None, lambda: None)])
    assert not drawn
    assert list(shown) == ["a"]
    assert len(shown) == 1
    assert "&lt;b&gt;" in shown._repr_html_()
    assert "<b>" not in shown._repr_html_()
    assert drawn == [1]


def test_one_figure_sums_a_result_up(compared, theories, monkeypatch):
    monkeypatch.setattr(module, "figures", lambda result: figures(result, theories=theories))
    assert next(iter(figures(compared, theories=theories))) == "findings"
    assert compared.plot()._repr_svg_().startswith("<svg")  # a notebook shows it without %matplotlib inline
    assert compared.plot("timeline") is not compared.plot("learning")
    with pytest.raises(ValueError, match=r"there is no figure 'timelin'; did you mean 'timeline'\?$"):
        compared.plot("timelin")


def test_every_figure_of_a_result_shows_itself(compared, theories):
    shown = figures(compared, theories=theories)
    assert all(hasattr(figure, "_repr_svg_") for figure in shown.values())


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (Result("compare"), "nothing to draw: the result 'compare' has no rows"),
        (
            Result("verify", table=Table([Measurement("crate", "claim", "crate/x", 1.0)])),
            "holds nothing that a figure shows",
        ),
        (Result("nothing of this name"), "has no rows"),
    ],
)
def test_a_figure_without_rows_is_refused(result, message):
    with pytest.raises(ValueError, match=message):
        result.plot()
    with pytest.raises(ValueError, match="there is no figure 'timeline', nor any other"):
        result.plot("timeline")
    assert len(tt.figures(result)) == 0
    assert tt.figures(result)._repr_html_() == ""


def probed(*, steps: tuple[int, ...] = (0,), layers: int = 2) -> Result:
    """A probe's result: two heads in each layer, and a headline of crate; the null is that of the mean."""
    theory, rows = tt.crate.THEORY, []
    for step in steps:
        for layer in range(layers):
            for head in range(2):
                null = Null("rotated subspaces", tuple(0.01 * i + head for i in range(9)))
                value = None if layer == 1 and head == 0 else 0.1 * step + layer + head
                place = {
                    "layer": layer,
                    "head": head,
                    "step": step,
                    "model": "my $net",
                    "reason": "" if value is not None else "not finite",
                }
                rows.append(
                    Measurement(
                        "crate", "in network", theory.in_networks.headline, value, nulls=(null,), **place
                    )
                )
    return Result("probe", {"model": "my $net"}, Table(rows))


def test_a_probe_has_a_figure_of_layers():
    figure = probed(steps=(0, 5)).plot()
    (panel, *_) = [ax for ax in figure.axes if ax.has_data()]
    assert [1.0, 2.5] in [
        line.get_ydata().tolist() for line in panel.get_lines()
    ]  # the last step: mean of .5 and 1.5, and the only head of layer 1
    assert list(tt.figures(probed(steps=(0, 5)))) == ["layers", "timeline"]
    assert list(tt.figures(probed())) == ["layers"]


def test_a_probe_of_one_layer_has_one_too():
    assert probed(layers=1).plot()._repr_svg_()


def test_a_probe_without_headlines_in_layers_has_none():
    with pytest.raises(ValueError, match="nothing to draw"):
        Result(
            "probe", table=Table([Measurement("network", "network", "accuracy", 0.5, model="m", step=0)])
        ).plot()


@pytest.fixture
def small(tmp_path, monkeypatch) -> Result:
    """A small result, in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    rows = [Measurement("crate", "on data", "rate <b>", 1.0, seed=0, data="mine")]
    return Result(
        "compare",
        {"data": "My data: <1>", "x": float("nan")},
        Table(rows),
        provenance={"date": "2026-11-27T00:00:00Z"},
    )


def test_a_report_stores_the_result_with_its_page(small):
    page = small.report("out")
    assert Path(page) == Path("out/report.html")
    assert (os.fspath(page), str(page), repr(page)) == (
        "out/report.html",
        "out/report.html",
        "Page('out/report.html')",
    )
    assert {path.name for path in Path("out").iterdir()} == {
        *FILES,
        "report.html",
        "references.bib",
        "table.tex",
    }
    assert Result.load("out").table == small.table
    frame = page._repr_html_()
    assert "sandbox=" in frame
    assert frame.count("<iframe") == 1
    inner = unescape(frame.partition('srcdoc="')[2].partition('"')[0])
    assert inner.replace('<base href="about:srcdoc">', "") == Path(page).read_text(encoding="utf-8")


def test_the_same_result_may_be_reported_again(small):
    small.save("out")
    small.report("out")
    Path("out/report.html").write_text("old", encoding="utf-8")
    assert "<html" in Path(small.report("out")).read_text(encoding="utf-8")


def test_without_a_folder_nothing_is_replaced(small):
    other = replace(small, provenance={"date": "2026-11-28T00:00:00Z"})
    assert str(small.report()) == str(small.report()) == "runs/my-data-1/report.html"
    assert str(other.report()) == "runs/my-data-1-2/report.html"
    Path("runs/my-data-1/table.jsonl").write_text("{}", encoding="utf-8")
    assert str(small.report()) == "runs/my-data-1-3/report.html"  # the stored one was edited


def test_a_folder_with_something_else_is_kept(small):
    other = replace(small, table=Table([Measurement("crate", "on data", "rate", 2.0)]))
    other.report("out")
    with pytest.raises(FileExistsError, match=r"out exists already; .*overwrite=True"):
        small.report("out")
    assert Result.load("out").table == other.table
    small.report("out", overwrite=True)
    for call in (tt.figures, lambda one: report.write(one, "out")):
        with pytest.raises(
            ValueError, match=r"expected a Result, got int; pass what compare, probe or train returned"
        ):
            call(3)
    with pytest.raises(ValueError, match=r"Result.load\(folder\) reads a stored one"):
        tt.figures("out")
    assert Result.load("out").table == small.table
    Path("notes").mkdir()
    Path("notes/mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match="not a stored result, so it is not overwritten"):
        small.report("notes", overwrite=True)
    with pytest.raises(FileExistsError, match="exists already"):
        small.report("notes/mine.txt")
    assert Path("notes/mine.txt").read_text(encoding="utf-8") == "mine"


def test_a_page_that_cannot_be_written_leaves_nothing(small, monkeypatch):
    monkeypatch.setattr(report, "write", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        small.report("a/b")
    assert not Path("a").exists()


def test_a_probed_network_has_figure_page_and_table(tmp_path):
    torch.manual_seed(0)
    data = tt.data.load("digits")[:32]
    network = tt.models.ViT.for_tokens(16, 4, 10)
    with tt.probe(network, tt.rate_reduction.THEORY.in_networks.metrics(), name="mine") as probe:
        probe.labels = data.labels
        network(data.tokens.float())
    result = probe.result()
    assert result.plot().axes
    assert len(result.to_pandas()) == len(result.table)
    assert "mine" in Path(result.report(tmp_path / "page")).read_text(encoding="utf-8")
