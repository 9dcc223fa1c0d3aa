"""The effects of headlines, a row per theory: a figure that fits a column or a page of a paper.

0 is the median of the null, 1 the prediction or the bound of the quantity. A filled sign is as predicted, a
hollow one is not, a red one is opposite. Effects beyond the axis stand on its border, as triangles.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..comparison.judged import Findings
from ..core.judgement import Judged
from ..core.plotting import blank, plain, style
from .judged_figures import ALARM, DASHES, GREY, INK, PAPER_COLUMN, RULE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST, MOST = -0.25, 1.25  # ends of the axis
SIGNS = ("o", "s", "D", "^", "v", "P", "X", "p", "h")  # of the networks, in their order
SMALL = 6.0  # points
ROW, HEADER, LINE = 0.15, 0.3, 0.115  # inches
LABELS = {
    PAPER_COLUMN: (1.46, 31),
    WIDTH: (2.3, 60),
}  # inches, and letters in a line, of the titles, by width
GAP = 0.14  # inches between panels


@dataclass(frozen=True, eq=False)
class Effects:
    """What the figure shows.

    Attributes:
        titles: titles of the theories, in their order.
        panels: by the name of a panel, the headlines of each theory, by name of the network or of the tokens.
    """

    titles: Sequence[str]
    panels: dict[str, list[dict[str, Judged]]]

    @property
    def names(self) -> list[str]:
        """The networks, in order; those of a panel with one place are in its name."""
        cells = (cell for rows in self.panels.values() if _several(rows) for cell in rows)
        return list(dict.fromkeys(name for cell in cells for name in cell))


def of_findings(found: Findings) -> Effects:
    """Returns the effects of the headlines of a comparison: on the raw tokens, then in networks."""
    several = len({data for data, *_ in found.columns}) > 1
    panels: dict[str, list[dict[str, Judged]]] = {}
    for view, title in (("raw tokens", "raw tokens"), ("network", "trained networks")):
        columns = [column for column in found.columns if column[1] == view]
        cells = []
        for theory in found.theories:
            own = {}
            for column in columns:
                each = found.at(theory, column)
                if each is not None and each.judged.effect is not None:
                    own[", ".join(filter(None, (column[0] if several else "", each.model or title)))] = (
                        each.judged
                    )
            cells.append(own)
        if any(cells):
            panels[title] = cells
    return Effects([theory.short_title for theory in found.theories], panels)


def of_network(chosen: Sequence[tuple[str, Judged]], name: str) -> Effects:
    """Returns the effects of the headlines of one network, pairs of a title and the headline."""
    cells = [{name: judged} if judged.effect is not None else {} for _, judged in chosen]
    return Effects([title for title, _ in chosen], {name: cells})


def _several(rows: Sequence[dict[str, Judged]]) -> bool:
    return len({name for cell in rows for name in cell}) > 1


@style()
def figure(shown: Effects, *, column: bool = False) -> "Figure | None":
    """Draws the effects; None if there are none.

    Args:
        shown: the effects.
        column: whether the figure is as wide as a column of a paper instead of a page.
    """
    if not any(cell for rows in shown.panels.values() for cell in rows):
        return None
    whole = PAPER_COLUMN if column else WIDTH
    (label, letters), names = LABELS[whole], shown.names
    titles = [textwrap.fill(title, letters) for title in shown.titles]
    words = textwrap.wrap(
        "0: median of the null; 1: prediction or bound. Filled: as predicted; hollow: not; red: opposite.",
        round(whole / 0.0455),
    )
    rows = -(-len(names) // 2)  # of names in the legend
    heights = [ROW * (1.5 if "\n" in title else 1.0) for title in titles]
    middles = [HEADER + sum(heights[:i]) + own / 2 for i, own in enumerate(heights)]
    top, bottom = HEADER, HEADER + sum(heights)
    height = bottom + 0.2 + LINE * (len(words) + rows) + 0.04
    drawn = blank(whole, height)
    ax = drawn.add_axes((0, 0, 1, 1), xlim=(0, whole), ylim=(height, 0))
    ax.set_axis_off()
    for title, y, own in zip(titles, middles, heights):
        ax.plot((0, whole), (y + own / 2,) * 2, color=RULE, linewidth=0.4)
        ax.text(0.02, y, title, fontsize=SMALL, color=INK, va="center", linespacing=1.0)
    width = (whole - label - 0.08) / len(shown.panels)
    for index, (title, cells) in enumerate(shown.panels.items()):
        left = label + width * index + GAP / 2
        _panel(ax, title, list(zip(middles, cells)), names, (left, left + width - GAP), (top, bottom))
    texts = {"fontsize": SMALL, "va": "center", "color": INK}
    y = bottom + 0.26
    for number, name in enumerate(names):
        x, line = 0.06 + whole / 2 * (number % 2), y + LINE * (number // 2)
        ax.plot([x], [line], marker=SIGNS[number % len(SIGNS)], markersize=3.4, color=GREY)
        ax.text(x + 0.07, line, textwrap.shorten(plain(name), round(whole / 0.1), placeholder="…"), **texts)
    for number, text in enumerate(words):
        ax.text(0.02, y + LINE * (rows + number), text, **{**texts, "color": GREY})
    return drawn


def _panel(
    ax: "Axes",
    title: str,
    cells: Sequence[tuple[float, dict[str, Judged]]],
    names: Sequence[str],
    sides: tuple[float, float],
    ends: tuple[float, float],
) -> None:
    """Draws one panel: its name, chance and prediction, and the signs at the heights of the rows."""
    (left, right), (top, bottom) = sides, ends

    def x(effect: float) -> float:
        return left + (right - left) * (min(MOST, max(LEAST, effect)) - LEAST) / (MOST - LEAST)

    small = {"fontsize": SMALL, "color": GREY, "ha": "center"}
    name = textwrap.fill(plain(title), max(12, round((right - left) / 0.047)))
    ax.text((left + right) / 2, top - 0.05, name, va="bottom", linespacing=1.0, **small)
    for mark, dashes in ((0.0, "-"), (1.0, DASHES)):
        ax.plot([x(mark)] * 2, (top, bottom), color=GREY, linewidth=0.6, linestyle=dashes, zorder=1)
        ax.text(x(mark), bottom + 0.04, f"{mark:g}", va="top", **small)
    for y, cell in cells:
        for place, judged in cell.items():
            effect = judged.effect
            assert effect is not None  # of_findings and of_network choose these
            sign = SIGNS[names.index(place) % len(SIGNS)] if place in names else "o"
            sign = ">" if effect > MOST else "<" if effect < LEAST else sign
            tone = ALARM if judged.outcome == "opposite" else INK
            face = tone if judged.outcome == "as predicted" else "white"
            ax.plot(
                [x(effect)],
                [y],
                marker=sign,
                markersize=3.4,
                markerfacecolor=face,
                markeredgecolor=tone,
                markeredgewidth=0.7,
                linestyle="none",
                zorder=3,
            )
