"""A picture of interventions: what the named change costs beside its matched controls, network by network.

Each network has a panel, each intervention a row. Grey bar: the range of the first control with its median;
thin bar: a second control. Dot: the effect on the same sequences. Line: the interval over samples of the
effect on all. A filled dot is as predicted; others are hollow, and a mark says why. Rows without an effect
are empty.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..core.judgement import Judged
from ..core.plotting import blank, colour, plain, style
from .judged_figures import GREY, INK, MARKS, RULE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, LABEL, ROW, HEAD, FOOT = 7.2, 2.15, 0.27, 0.42, 0.66  # inches


@style()
def interventions(found: Mapping[str, Sequence[Judged]]) -> "Figure | None":
    """Draws the effects on the measure that is judged; None if nothing was measured.

    Args:
        found: judged interventions by the name of the network.
    """
    found = {name: [each for each in judged if each.row.value is not None] for name, judged in found.items()}
    rows = list(dict.fromkeys((each.row.theory, each.row.quantity) for own in found.values() for each in own))
    if not rows:
        return None
    height = HEAD + ROW * len(rows) + FOOT
    figure = blank(WIDTH, height)
    width = (WIDTH - LABEL) / len(found)
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
        ax.set_title(textwrap.fill(plain(name), 24), fontsize=7, color=INK, pad=4)
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
        "Change of the measure. Grey: range of matched random changes, with median; thin: a second control. "
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
        first = row.nulls[0].value if row.nulls else None
        value = row.value if first is None else first
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
