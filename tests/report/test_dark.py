"""Figures on a dark page: every colour has a replacement that can be read, scales stay in order, and the SVG
keeps its light colours.
"""

import re
from itertools import pairwise

import numpy as np
import pytest

from tests.cases import each_case
from transformer_theory.core.plotting import _SPARE, COLOURS, STYLE, TINTS, axes, colour, line, shades
from transformer_theory.report.html import (
    _CONES,
    _LAB,
    NEUTRAL,
    PAPER,
    TEMPLATES,
    dark_sheet,
    inline,
    linear_rgb,
    on_dark,
)
from transformer_theory.theories import list_theories

# matplotlib's classes
TEN = (
    "#1f77b4",
    "#ff7f0e",
    "#2ca02c",
    "#d62728",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
    "#17becf",
)
STYLES = (TEMPLATES / "page.css").read_text(encoding="utf-8")


def variable(name: str, *, dark: bool = True) -> str:
    """The value of a variable of the page's style on a dark page, or on a light one."""
    return re.search(
        rf"{name}: (#[0-9a-f]{{6}});", STYLES.partition("prefers-color-scheme: dark")[2 if dark else 0]
    )[1]


def resolved(colour: str) -> str:
    replaced = on_dark(colour.lower())
    return variable(replaced[4:-1]) if replaced.startswith("var(") else replaced


def contrast(first: str, second: str) -> float:
    """The contrast of two colours ``#rrggbb`` as the Web Content Accessibility Guidelines define it, from 1
    to 21.
    """
    luminances = (float(linear_rgb(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (first, second))
    dark, light = sorted(luminances)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_the_guidelines():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert contrast("#ffffff", "#777777") == contrast("#777777", "#ffffff")


@pytest.mark.parametrize("dark", [False, True])
def test_words_can_be_read_at_rest_and_under_the_pointer(dark):
    """Buttons have the background ``--faint`` under the pointer; edges and outlines are not words and need a
    contrast of 3.
    """
    grounds = {
        "--paper": ("--ink", "--soft", "--link", "--good", "--bad"),
        "--faint": ("--ink", "--soft", "--link"),
    }
    grounds |= {f"--{name}-bg": (f"--{name}",) for name in ("good", "bad", "unsure", "outside", "none")}
    pairs = [(name, ground) for ground, names in grounds.items() for name in names]
    assert [pair for pair in pairs if contrast(*(variable(name, dark=dark) for name in pair)) < 4.5] == []
    assert contrast(variable("--edge", dark=dark), variable("--paper", dark=dark)) >= 3


def test_curves_and_texts_can_be_read_on_dark_paper():
    assert variable("--paper") == PAPER
    colours = {
        *COLOURS.values(),
        *(theory.colour for theory in list_theories()),
        *TINTS,
        *_SPARE,
        *TEN,
        *shades(9),
        STYLE["xtick.color"],
        STYLE["axes.edgecolor"],
        "#000000",
    }
    low = {
        colour: contrast(resolved(colour), PAPER)
        for colour in colours
        if contrast(resolved(colour), PAPER) < 4.5
    }
    assert set(low) <= {COLOURS["null"], "#7f7f7f"}  # greys of chance levels
    assert all(value >= 3 for value in low.values())
    assert contrast(resolved(STYLE["grid.color"]), PAPER) < 2  # stays in the background
    assert resolved("#ffffff") == PAPER


def test_a_scale_from_dark_to_light_stays_one():
    brightness = [contrast(on_dark(tint), "#000000") for tint in shades(12)]
    assert all(before < after for before, after in pairwise(brightness))


def test_the_sheet_has_a_rule_for_each_colour_of_the_figures_and_the_svg_stays_light():
    figure, (ax,) = axes()
    line(ax, [0, 1], [0, 1], name="crate")
    svg = inline(lambda: figure, "one", "One")
    used = set(re.findall(r"\b(fill|stroke): (#[0-9a-f]{6})", svg))
    assert ("stroke", colour("crate").lower()) in used
    assert {colour for _, colour in used} >= {"#ffffff", STYLE["grid.color"].lower()}
    assert "var(" not in svg
    rules = dark_sheet(f'<p style="fill: #123456">{svg}</p>')
    # A rule must not name an ancestor, which the browser does not see from the copy of a marker that <use>
    # makes.
    assert set(re.findall(r'^\[style\*="(\w+): (#\w{6})"\] \{', rules, re.MULTILINE)) == used
    assert rules.startswith("@media screen and (prefers-color-scheme: dark)")
    assert dark_sheet("<p>no figure</p>") == ""
    assert all(f"{name}:" in STYLES for name in NEUTRAL.values())


def test_greys_are_turned_around_and_colours_stay_light():
    """A bluish grey has a chroma of .02 in OKLab, the palest colours .04 and more."""
    for grey in ("#d5dfec", "#d0dae8", "#e0d8d0"):
        assert contrast(on_dark(grey), "#000000") < 4 < contrast(grey, "#000000")
    for pale in ("#c6dbef", "#ffe0b0"):
        assert contrast(on_dark(pale), "#000000") > 8


@each_case("colour", ["#8c564b", "#5b7c99", "#6b8e5a", "#1f77b4"])
def test_a_colour_keeps_its_hue_and_chroma(colour):
    before, after = (_LAB @ np.cbrt(_CONES @ linear_rgb(each)) for each in (colour, on_dark(colour)))
    assert after[1:] == pytest.approx(before[1:], abs=0.004)
    assert after[0] > before[0]
