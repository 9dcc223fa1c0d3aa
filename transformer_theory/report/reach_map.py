"""The reach map: theories by the columns in which assumptions are relaxed. As a figure, and as a table of its
numbers.

A tile is one rung of a theory's ladder. Its shade is the agreement with the prediction, from pale (0, chance)
to dark (1 and more). A white tile is not beyond chance; a mark says why. A frame marks the rungs that the
theorem covers. Below the name stand the agreement and its interval over seeds.
"""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ..core import format
from ..core.ladder import MAPS
from ..core.plotting import blank, plain, style
from ..core.statistics import LEVEL
from . import table_model
from .aggregate import Aggregate
from .findings import interval_text, null_text, p_text, plain_number, short
from .html import inline
from .reached import OUTCOMES, Reached, by_theory, reached, statements, two_digits
from .table_model import Block, Column, Line, Note, Plain, Strong

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, LABEL_WIDTH, HEADER, TILE, GAP, LEGEND = 7.2, 0.92, 0.3, 0.335, 0.1, 0.42  # inches
SMALL, TINY = 6.4, 5.4  # font sizes, points
CHARS = 26  # letters of a rung's name that fit into a tile
INK, GREY, RULE, ALARM = "#2B3138", "#5F6973", "#D5D9DE", "#B3261E"
DARK = 0.45  # agreement above which the text of a tile is white
# distance of a frame from the border of its tile, and of an interval from its number, inches
INSET, SPACE = 0.018, 0.03
MARKS: dict[str, tuple[str, str]] = {  # mark of a tile that is not beyond chance, and its meaning
    "undecided": ("± ", "undecided"),
    "explained": ("~ ", "a second null gives as much"),
    "nulls disagree": ("≠ ", "nulls disagree"),
    "at chance": ("≈ ", "at chance"),
    "opposite": ("✗ ", "opposite side"),
    "not tested": ("? ", "untested"),
}


@style()
def reach_map(cells: Sequence[Reached]) -> "Figure | None":
    """Draws the reach map; None if there are no rungs."""
    if not cells:
        return None
    # One block of rows per set of columns: theories of trained networks, then constructions.
    groups = [[own for own in by_theory(cells) if own[0].column in columns] for columns in MAPS]
    blocks = [_Block.of(group, columns) for group, columns in zip(groups, MAPS) if group]
    height = sum(block.height for block in blocks) + LEGEND
    figure = blank(WIDTH, height)
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
    ax.set_axis_off()
    top = 0.0
    for block in blocks:
        block.draw(ax, top)
        top += block.height
    _legend(ax, cells, height)
    return figure


@dataclass(frozen=True)
class _Block:
    """The rows of the theories that share their columns.

    Attributes:
        rows: rungs of each theory.
        columns: columns with at least one rung.
        titles: titles of the theories, wrapped.
        heights: heights of the rows, inches.
    """

    rows: Sequence[Sequence[Reached]]
    columns: Sequence[str]
    titles: Sequence[str]
    heights: Sequence[float]

    @classmethod
    def of(cls, rows: Sequence[Sequence[Reached]], columns: Sequence[str]) -> "_Block":
        """Returns the block of these theories."""
        used = [column for column in columns if any(cell.column == column for own in rows for cell in own)]
        titles = [textwrap.fill(own[0].theory.title, 15, break_long_words=False) for own in rows]
        tiles = [max(Counter(cell.column for cell in own).values()) for own in rows]
        heights = [
            GAP + max(TILE * count, 0.115 * (1 + title.count("\n"))) for count, title in zip(tiles, titles)
        ]
        return cls(rows, used, titles, heights)

    @property
    def height(self) -> float:
        return HEADER + sum(self.heights)

    def draw(self, ax: "Axes", top: float) -> None:
        """Draws names of columns, then a row per theory."""
        width = (WIDTH - LABEL_WIDTH) / len(self.columns)
        texts: dict[str, Any] = {
            "ha": "center",
            "va": "bottom",
            "fontsize": SMALL,
            "color": INK,
            "linespacing": 1.0,
        }
        for j, column in enumerate(self.columns):
            name = textwrap.fill(column, round(13 * width / 0.9), break_on_hyphens=False)
            ax.text(LABEL_WIDTH + width * (j + 0.5), top + HEADER - 0.04, name, **texts)
        top += HEADER
        for own, title, height in zip(self.rows, self.titles, self.heights):
            ax.plot((0, WIDTH), (top, top), color=RULE, linewidth=0.7)
            ax.text(
                0.02,
                top + 0.07,
                title,
                fontsize=SMALL + 0.3,
                weight="bold",
                color=INK,
                va="top",
                linespacing=1.12,
            )
            for j, column in enumerate(self.columns):
                for i, cell in enumerate(cell for cell in own if cell.column == column):
                    _tile(ax, cell, LABEL_WIDTH + width * j + 0.02, top + GAP / 2 + TILE * i, width - 0.04)
            top += height


def _tile(ax: "Axes", cell: Reached, left: float, top: float, width: float) -> None:
    """Draws one rung."""
    from matplotlib.patches import Rectangle

    height, text = TILE - 0.03, INK
    share = (
        min(1.0, max(0.0, 1.0 if cell.row.agreement is None else cell.row.agreement))
        if cell.outcome == "beyond chance"
        else 0.0
    )
    face = shade(share) if cell.outcome == "beyond chance" else "white"
    if share > DARK:
        text = "white"
    patch = {
        "facecolor": face,
        "edgecolor": RULE,
        "linewidth": 0.5,
        "hatch": "////" if cell.outcome == "not measured" else None,
    }
    ax.add_patch(Rectangle((left, top), width, height, **patch, zorder=1))
    if cell.covered:  # the frame lies inside, so that it is visible on dark tiles, too
        place = (left + INSET, top + INSET), width - 2 * INSET, height - 2 * INSET
        ax.add_patch(Rectangle(*place, facecolor="none", edgecolor=text, linewidth=0.8, zorder=2))
    name, box = textwrap.shorten(cell.name, CHARS, placeholder="…"), None
    if cell.outcome == "not measured":
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    size = min(TINY, TINY * 21 / len(name))
    ax.text(
        left + width / 2, top + 0.04, plain(name), ha="center", va="top", fontsize=size, color=text, bbox=box
    )
    number, note = _numbers(cell)
    tone = ALARM if cell.outcome == "opposite" else text if cell.outcome == "beyond chance" else GREY
    # The number and its interval have different sizes; together they are centred. Long ones are set smaller.
    widths = _inches(number, SMALL, "bold"), _inches(note, TINY - 0.2, "normal")
    length = sum(widths) + (SPACE if note else 0)
    scale = min(1.0, (width - 4 * INSET) / length)
    start = left + (width - scale * length) / 2
    parts = (
        (number, start, SMALL, "bold"),
        (note, start + scale * (widths[0] + SPACE), TINY - 0.2, "normal"),
    )
    for part, x, size, weight in parts:
        place = {"ha": "left", "va": "bottom", "bbox": box if part else None}
        ax.text(x, top + height - 0.037, part, fontsize=scale * size, color=tone, weight=weight, **place)


@cache
def _inches(text: str, size: float, weight: str) -> float:
    """Returns the width of a text, inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    return (
        TextPath((0, 0), text, size=size, prop=FontProperties(weight=weight)).get_extents().width / 72
        if text
        else 0.0
    )


def _numbers(cell: Reached) -> tuple[str, str]:
    """Returns the number of a tile with its mark, and its interval."""
    if cell.row.value is None:
        return "no data" if cell.row.reason.startswith("needs") else "no value", ""
    mark = MARKS.get(cell.outcome, ("", ""))[0]
    if cell.row.agreement is None:
        return f"{mark}{cell.number}", interval_text(cell.row)
    interval = (
        "" if cell.interval is None else f"[{two_digits(cell.interval[0])}, {two_digits(cell.interval[1])}]"
    )
    return f"{mark}{cell.number}", interval


def shade(share: float) -> tuple[float, float, float]:
    """Returns a shade of one hue whose lightness falls evenly with the share, so that it is legible in grey
    and to colour-blind readers.
    """
    light, dark = (0.90, 0.94, 0.98), (0.06, 0.25, 0.45)
    red, green, blue = (a + (b - a) * share for a, b in zip(light, dark))
    return red, green, blue


def _legend(ax: "Axes", cells: Sequence[Reached], height: float) -> None:
    """Draws two lines: the shades and the frame, then the marks of the tiles that are not beyond chance."""
    from matplotlib.patches import Rectangle

    first, second = height - 0.68 * LEGEND, height - 0.28 * LEGEND
    texts = {"fontsize": TINY, "va": "center", "color": INK}
    ax.plot((0, WIDTH), (height - LEGEND, height - LEGEND), color=RULE, linewidth=0.7)
    for i in range(5):
        ax.add_patch(
            Rectangle((0.03 + 0.1 * i, first - 0.05), 0.1, 0.1, facecolor=shade(i / 4), edgecolor="none")
        )
    ax.text(
        0.57,
        first,
        "beyond chance, shaded by the agreement, 0 to 1 (×: effect relative to the first rung)",
        **texts,
    )
    ax.add_patch(Rectangle((5.0, first - 0.05), 0.16, 0.1, facecolor="white", edgecolor=INK, linewidth=0.8))
    ax.text(5.2, first, "covered by the theorem", **texts)
    found = [
        mark + text
        for outcome, (mark, text) in MARKS.items()
        if any(cell.outcome == outcome for cell in cells)
    ]
    found += ["hatched: no value"] if any(cell.outcome == "not measured" for cell in cells) else []
    ax.text(0.03, second, "Not shaded:  " + "    ".join(found) if found else "", **texts)


COLUMNS_OF_TABLE = (
    Column("rung", 17, "on"),
    Column("relaxes", 21),
    Column("value", 15, "n"),
    Column("null", 17, "n"),
    Column("agreement", 10, "n"),
    Column("p (q)", 9, "n"),
    Column("outcome", 11),
)


def table(cells: Sequence[Reached]) -> table_model.Table | None:
    """Returns the numbers of the reach map, one line per rung; None if there are no rungs."""
    if not cells:
        return None
    blocks = []
    for own in by_theory(cells):
        theory = own[0].theory
        heading = (Plain(theory.title), Note(own[0].row.quantity))
        blocks.append(
            Block(heading, tuple(Line(_cells(cell)) for cell in own), strong=True, theory=theory.name)
        )
    tests = sum(cell.q is not None for cell in cells)
    legend = (
        "Rungs are cumulative up to the column “depth”: each keeps what the rungs above relax. Trained "
        "networks have recipes of their own. Agreement: 0 is chance, 1 the prediction or, if there is "
        f"none, the first rung. {format.several(tests, 'test')}; q is the p-value adjusted for the false "
        "discovery rate in its ladder (Benjamini and Hochberg). "
        + " ".join(f"{outcome.capitalize()}: {meaning}." for outcome, meaning in OUTCOMES.items())
    )
    return table_model.Table("reach", "The reach of the theories.", COLUMNS_OF_TABLE, tuple(blocks), legend)


def _cells(cell: Reached) -> tuple[table_model.Cell, ...]:
    row = cell.row
    seeds = format.several(cell.seeds, "seed")
    value = (
        (Strong(short(row.value, row)), Note(", ".join(filter(None, (interval_text(row), seeds)))))
        if row.value is not None
        else format.NOTHING
    )
    null = (
        (plain_number(row.null.median, row), Note(null_text(row)))
        if row.null is not None and row.null.draws
        else format.NOTHING
    )
    p = (
        format.NOTHING
        if row.p is None
        else p_text(row.p)
        if cell.q is None
        else f"{p_text(row.p)} ({p_text(cell.q)})"
    )
    covered = "covered" if cell.covered else "not covered"
    return (
        (Plain(cell.name), Note(f"{cell.column}; {covered}")),
        cell.relaxes or "nothing",
        value,
        null,
        format.NOTHING if row.agreement is None else cell.number,
        p,
        (cell.outcome, Note(row.reason)) if row.value is None else cell.outcome,
    )


def section(aggregate: Aggregate) -> dict[str, Any] | None:
    """Returns the reach for the page: sentences, figure and numbers; None if the results hold no reach."""
    cells = reached(aggregate)
    if not cells:
        return None
    caption = (
        "Agreement of each theory with measurements as its assumptions are relaxed; false discovery rate at "
        f"most {100 * LEVEL:.0f}\u00a0%."
    )
    figure = inline(
        lambda: reach_map(cells),
        "reach-map",
        "Theories by the assumptions that are relaxed: agreement with the prediction",
    )
    return {"statements": statements(cells), "map": figure, "caption": caption, "table": table(cells)}
