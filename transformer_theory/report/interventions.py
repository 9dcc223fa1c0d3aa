"""Interventions in networks: sentences, a figure and a table.

In the figure each network has a panel, each intervention a row. Grey bar: the range of the null of the first
control, with its median or center; thin bar: a second control. Dot: the effect on the same sequences. Line:
the interval over samples of the effect on all. A filled dot is as predicted; others are hollow, and a mark
says why. Rows without an effect are empty.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..comparison.interventions import judged_interventions
from ..core import format
from ..core.judgement import Judged
from ..core.plotting import blank, colour, plain, style
from ..core.result import Result
from ..core.table import grouped
from ..core.theory import Theory
from ..probes.intervene import MEASURE
from . import tables
from .html import inline
from .judged_figures import GREY, INK, MARKS, RULE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEANING = (
    "The forward pass was changed as a theory says, and in matched random ways. "
    "\u201cKept\u201d: the theory says that the outputs lose less than by random changes; "
    "\u201cbroken\u201d: that they lose more"
)
WIDTH, LABEL, ROW, HEAD, FOOT = 7.2, 2.15, 0.27, 0.3, 0.66  # inches
LETTER, LINE = 0.068, 0.12  # width of a letter and height of a line of a title, inches


def found_in(results: Iterable[Result]) -> list[Judged]:
    """Returns the judged interventions of several results."""
    return [each for result in results for each in judged_interventions(result)]


def section(found: Sequence[Judged], theories: Sequence[Theory]) -> dict[str, Any] | None:
    """Returns what a page says about judged interventions: sentences, figure and table; None without any."""
    if not found:
        return None
    networks = grouped(found, lambda each: each.row.model)
    drawn = None
    if any(each.row.value is not None for each in found):
        drawn = inline(
            lambda: picture(networks, theories),
            "interventions",
            "Effects of interventions beside those of matched random changes, network by network",
        )
    tests = sum(each.q is not None for each in found)
    return {
        "statements": sentences(found, theories),
        "figure": drawn,
        "caption": f"{MEANING}. {format.counted(tests, 'test')}; the false discovery rate is at most "
        "5\u00a0% in each network.",
        "table": tables.interventions(found, theories),
    }


def sentences(found: Sequence[Judged], theories: Sequence[Theory]) -> list[tuple[str, str]]:
    """Returns the title of each theory with an intervention beyond its controls, and what was found."""
    several = len({each.row.model for each in found}) > 1
    beyond = [each for each in found if each.outcome in ("as predicted", "opposite")]
    by_theory = grouped(beyond, lambda each: each.row.theory)
    said = []
    for theory in theories:
        parts = []
        own = by_theory.get(theory.name, ())
        for quantity, same in grouped(own, lambda each: each.row.quantity).items():
            effects = "; ".join(_effect(each, several) for each in same)
            parts.append(f"{quantity}: {effects}")
        if parts:
            said.append((theory.short_title, ". ".join(map(format.sentence_case, parts))))
    return said


def _effect(judged: Judged, several: bool) -> str:
    """Returns an effect beside that of the controls: ``"accuracy −52 % against 0 % (another key of every
    query removed), as predicted"``.
    """
    row = judged.row
    null = row.nulls[0]
    where = f"in {row.model} " if several else ""
    change = f"{row.at[MEASURE]} {format.of_row(null.with_value(row.value).value, row)}"
    return f"{where}{change} against {format.of_row(null.median, row)} ({null.kind}), {judged.outcome}"


@style()
def picture(found: Mapping[str, Sequence[Judged]], theories: Sequence[Theory]) -> "Figure | None":
    """Draws the effects on the measure that is judged; None if nothing was measured.

    Args:
        found: judged interventions by the name of the network.
        theories: theories, in whose order the interventions are shown; others come last.
    """
    found = {name: [each for each in judged if each.row.value is not None] for name, judged in found.items()}
    seen = dict.fromkeys((each.row.theory, each.row.quantity) for own in found.values() for each in own)
    order = {theory.name: place for place, theory in enumerate(theories)}
    rows = sorted(seen, key=lambda row: order.get(row[0], len(order)))
    if not rows:
        return None
    width = (WIDTH - LABEL) / len(found)
    titles = {name: textwrap.fill(plain(name), max(8, int(width / LETTER))) for name in found}
    head = HEAD + LINE * max(title.count("\n") for title in titles.values())
    height = head + ROW * len(rows) + FOOT
    figure = blank(WIDTH, height)
    for number, (name, own) in enumerate(found.items()):
        left = LABEL + width * number
        ax = figure.add_axes(
            (
                (left + 0.08) / WIDTH,
                FOOT / height,
                (width - 0.2) / WIDTH,
                ROW * len(rows) / height,
            )
        )
        _panel(ax, own, rows)
        ax.set_title(titles[name], fontsize=7, color=INK, pad=4)
        if number == 0:
            for place, (theory, quantity) in enumerate(rows):
                lines = textwrap.fill(plain(quantity), 40)
                ax.text(
                    -LABEL / (width - 0.2) + 0.02,
                    place,
                    lines,
                    transform=ax.get_yaxis_transform(),
                    fontsize=5.8,
                    color=colour(theory),
                    va="center",
                    linespacing=1.05,
                )
    words = (
        "Change of the measure. Grey: what matched random changes do, and its range; thin: a second control. "
        "Dot: the named change; filled: as predicted. "
        + ", ".join(f"{mark.strip()} {meaning}" for mark, meaning in MARKS.values())
    )
    figure.text(0.02 / WIDTH, 0.03, textwrap.fill(words, 150), fontsize=5.6, color=GREY, va="bottom")
    return figure


def _panel(ax: "Axes", own: Sequence[Judged], rows: Sequence[tuple[str, str]]) -> None:
    """Draws the effects in one network."""
    from matplotlib.ticker import MaxNLocator

    places = {row: place for place, row in enumerate(rows)}
    ax.axvline(0, color=RULE, linewidth=0.8)
    for each in own:
        row, place = each.row, places[each.row.theory, each.row.quantity]
        assert row.value is not None  # others are left out
        shade = colour(row.theory)
        for number, null in enumerate(row.nulls[:2]):
            half = 0.3 if number == 0 else 0.1
            ax.fill_between((null.low, null.high), place - half, place + half, color=GREY, alpha=0.35, lw=0)
            if number == 0:
                ax.plot((null.median, null.median), (place - half, place + half), color=GREY, lw=1)
        if row.interval is not None:
            ax.plot(row.interval, (place, place), color=shade, lw=0.9)
        beside = None if not row.nulls else row.nulls[0].value
        value = row.value if beside is None else beside
        filled = each.outcome == "as predicted"
        ax.plot(value, place, "o", ms=3.6, mec=shade, mfc=shade if filled else "white", mew=0.9)
        mark = MARKS.get(each.outcome, ("", ""))[0].strip()
        if mark:
            ax.text(1.01, place, mark, transform=ax.get_yaxis_transform(), fontsize=6, color=INK, va="center")
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks([])
    ax.tick_params(axis="x", labelsize=5.8, length=2)
    if own and own[0].row.unit == "share":
        ax.xaxis.set_major_locator(MaxNLocator(3))
        ax.xaxis.set_major_formatter(
            lambda x, _: f"{100 * x:.0f}\N{NO-BREAK SPACE}%".replace("-", "\N{MINUS SIGN}")
        )
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)
