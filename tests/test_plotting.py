"""Figures: reproducible, side by side on one page, without global state."""

import itertools
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import transformer_theory.core.plotting
from transformer_theory.core.plotting import (
    _SPARE,
    COLOURS,
    _apart,
    axes,
    colour,
    heatmap,
    label_ends,
    line,
    null_band,
    shades,
    style,
    svg,
    text_figure,
)
from transformer_theory.core.theory import Theory
from transformer_theory.theories import list_theories


def drawn(scale=1.0):
    figure, (left, right) = axes(1, 2)
    line(left, np.arange(5), scale * np.arange(5), name="crate", label="first", null=1)
    line(left, [0, 1], [0.0, 0.1], name="ViT", label="second\nline")
    null_band(left, 0.2, 0.4)
    label_ends(left)
    heatmap(right, np.eye(3), r"$|W|$")
    return figure


def test_the_same_figure_gives_the_same_bytes():
    first = svg(drawn())
    assert first == svg(drawn())
    assert first != svg(drawn(2.0))
    assert first.startswith("<svg")
    assert "20" + "26-" not in first
    assert "Matplotlib v" not in first


def test_two_figures_on_one_page_share_no_id():
    ids = [set(re.findall(r'\bid="([^"]+)"', svg(drawn(scale)))) for scale in (1.0, 2.0)]
    assert not ids[0] & ids[1]
    named = svg(drawn(), prefix="theory")
    assert all(name.startswith("theory-") for name in re.findall(r'\bid="([^"]+)"', named))
    used = set(re.findall(r'href="#([^"]+)"', named)) | set(re.findall(r"url\(#([^)]+)\)", named))
    assert used <= set(re.findall(r'\bid="([^"]+)"', named))
    assert "*{stroke" not in named.replace("theory-figure_1 *{stroke", "")


def test_labels_stand_where_the_curves_end():
    _, (ax,) = axes()
    for name, end in (("low", 0.0), ("half", 50.0), ("high", 100.0)):
        line(ax, [0, 1], [0.0, end], name="crate", label=name)
    label_ends(ax)  # the limits were not asked for before
    low, high = ax.get_ylim()
    assert [text.get_text() for text in ax.texts] == ["low", "half", "high"]
    assert [text.get_position()[1] for text in ax.texts] == pytest.approx(
        [(y - low) / (high - low) for y in (0, 50, 100)], abs=0.02
    )


def test_axes_are_flat_and_leave_the_readers_settings_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    figure, panels = axes(2, 3, width=6, height=4)
    assert panels.shape == (6,)
    assert tuple(figure.get_size_inches()) == (6, 4)
    assert dict(matplotlib.rcParams) == before
    with pytest.raises(ValueError, match="at least 1"):
        axes(0, 1)


def titled():
    figure, (left, right) = axes(1, 2)
    left.set(title="On the left", xlabel="step")
    left.plot([0, 1], [0, 1], label="one")
    left.legend()
    left.set_xticks([0, 1], ["zero", "one"])
    heatmap(right, np.eye(2), "bar")
    figure.add_subplot(2, 2, 4).set_title("Added")
    return figure


def test_a_decorated_function_plots_in_the_style():
    """Some settings take effect when a title or a legend is added, so the whole function is decorated."""
    plain, decorated = titled(), style()(titled)()
    left, added = decorated.axes[0], decorated.axes[-1]
    assert left.get_title(loc="left") == "On the left"
    assert left.title.get_text() == ""
    assert added.get_title(loc="left") == "Added"
    assert not left.get_legend().get_frame_on()
    assert left.get_xticklabels()[0].get_fontsize() == 7.5
    assert plain.axes[0].title.get_text() == "On the left"
    with style():
        inside = titled()
    assert svg(decorated) == svg(inside) != svg(plain)


def test_the_style_is_left_as_it_was_entered():
    import matplotlib

    before = dict(matplotlib.rcParams)
    figure, (ax,) = axes()
    svg(figure)
    with pytest.raises(AttributeError), style():
        ax.plot([0], [0], no_such_property=1)
    assert dict(matplotlib.rcParams) == before
    with style(), matplotlib.rc_context({"axes.titlesize": 20}), style():
        ax.set_title("large")  # a style inside a style changes nothing
    assert ax._left_title.get_fontsize() == 20
    assert dict(matplotlib.rcParams) == before


def test_other_axes_fit_into_the_figure():
    figure, _ = axes()
    assert figure.add_subplot(projection="polar").name == "polar"


def test_shades_go_from_dark_to_light():
    def lightness(tint: str) -> float:
        return sum(
            weight * int(tint[1 + 2 * i : 3 + 2 * i], 16) for i, weight in enumerate((0.2126, 0.7152, 0.0722))
        )

    for count in (1, 2, 6):
        grey = [lightness(tint) for tint in shades(count)]
        assert len(grey) == count
        assert all(a < b - 10 for a, b in itertools.pairwise(grey))
    assert not set(shades(6)) & {*COLOURS.values(), *(theory.colour for theory in list_theories())}


def test_pyplot_is_not_imported():
    """Neither by our files nor by what a figure needs: in a process of its own, in which the package imports
    nothing by itself.
    """
    import subprocess

    package = Path(transformer_theory.core.plotting.__file__).parents[1]
    naming = [
        path.name
        for path in package.rglob("*.py")
        if re.search(r"import.*pyplot|pyplot import", path.read_text(encoding="utf-8"))
    ]
    assert not naming
    code = f"""
import sys, types
package = sys.modules["transformer_theory"] = types.ModuleType("transformer_theory")
package.__path__ = [{str(package)!r}]
from transformer_theory.core.plotting import axes
axes()
sys.exit("matplotlib.pyplot" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_have_stable_colours():
    theories = {theory.name: theory.colour for theory in list_theories()}
    assert len({*theories.values()}) == len(theories)
    assert {name: colour(name) for name in theories} == theories
    assert all(re.fullmatch(r"#[0-9A-F]{6}", tint) for tint in [*COLOURS.values(), *theories.values()])
    assert colour("ViT") == COLOURS["ViT"]
    assert colour("my own theory") == colour("my own theory") in _SPARE
    assert colour("#123456") == "#123456"


def test_a_theory_brings_its_colour():
    texts = {"title": "", "question": "", "statement": "", "sources": (), "assumptions": (), "claims": ()}
    Theory("coloured", **texts, colour="#123456")
    assert colour("coloured") == "#123456"
    with pytest.raises(ValueError, match="colour of a theory must have the form #RRGGBB, got 'red'"):
        Theory("red", **texts, colour="red")


def test_labels_are_pushed_apart_and_no_farther():
    placed = _apart([0.5, 0.5, 0.9], [0.1, 0.1, 0.1])
    np.testing.assert_allclose(placed, [0.45, 0.55, 0.9])
    heights = [0.1, 0.3, 0.1, 0.2]
    placed = _apart([0.1, 0.1, 0.15, 0.2], heights)
    gaps = np.diff(placed) - [(a + b) / 2 for a, b in itertools.pairwise(heights)]
    np.testing.assert_allclose(gaps, 0, atol=1e-12)


def test_labels_stay_beside_the_axes():
    placed = _apart([0.9, 1.0, 1.0], [0.2, 0.2, 0.2], low=0.0, high=1.0)
    np.testing.assert_allclose(placed, [0.5, 0.7, 0.9])
    np.testing.assert_allclose(_apart([0.0, 0.0], [0.2, 0.2], low=0.0, high=1.0), [0.1, 0.3])
    # too many: they start at the bottom
    np.testing.assert_allclose(_apart([0.5, 0.5], [0.8, 0.8], low=0.0, high=1.0), [0.4, 1.2])


def test_heatmap_wants_a_matrix():
    _, (ax,) = axes()
    with pytest.raises(ValueError, match=r"\[rows, cols\]"):
        heatmap(ax, np.zeros(3))


def test_words_can_stand_in_for_a_figure():
    assert "<svg" in svg(text_figure("nothing to draw <here>"))
