"""The figures of a result in a notebook: by name, each drawn when asked for, all of them as images."""

import base64
from xml.etree import ElementTree

import pytest

import transformer_theory as tt
from transformer_theory.report.figures import Picture
from transformer_theory.report.notebook import Figures, figures


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
