"""Pictures of judged rows: the matrix of findings, the map of the reach, and its overview.

* Matrix: theories by data and networks. A cell shows the headline of a theory on the scale of its row. Grey
  bar: the range of the null draws, with their median. Yellow: the second null. Dashed: the prediction. Dot:
  the mean over seeds, with its interval. Diamond: the value on noise of the same shape. Below stand value,
  interval, effect and p-value.
* Map: theories by the columns in which assumptions are relaxed. A tile is one rung; its shade is the effect,
  from pale (0, chance) to dark (1 and more). A white tile is not as predicted; a mark says why. A frame marks
  the rungs that the theorem covers.
* Overview: the map without numbers, a square per rung.
"""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ..comparison.judged import Finding, Findings, RungResult, View, by_theory
from ..core import format
from ..core.judgement import Outcome
from ..core.ladder import MAPS, PRETRAINED
from ..core.plotting import blank, colour, plain, style
from ..core.theory import Theory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, RULE, ALARM = "#2B3138", "#5F6973", "#D5D9DE", "#B3261E"
NULL, SECOND, SECOND_EDGE = "#C9CED5", "#F2D9A6", "#A67C1F"  # bars of the null and of a second one
DASHES = (0, (2, 1.4))  # line of a prediction
MARKS: dict[Outcome, tuple[str, str]] = {  # mark of an outcome, and its meaning
    "not significant": ("≈ ", "not significant"),
    "matched by a second null": ("~ ", "matched by a second null"),
    "nulls conflict": ("≠ ", "nulls conflict"),
    "opposite": ("✗ ", "opposite"),
    "too few draws": ("? ", "too few draws"),
    "not tested": ("· ", "not tested"),
}


# ---- the matrix of findings

PAD = 0.06  # inches between cells
MATRIX_SMALL, MATRIX_TINY = 6.6, 5.8  # font sizes, points
GROUPS: dict[str, tuple[View, ...]] = {"own model": ("raw tokens", "features"), "networks": ("network",)}


MATRIX_WIDTH, MATRIX_LABEL, MATRIX_HEADER = 7.2, 1.0, 0.5  # inches
MATRIX_ROW, MATRIX_LEGEND = 0.92, 0.3
PLOT = 0.36  # depth of the plotted line below the top of its row


@style()
def matrix(found: Findings) -> "Figure | None":
    """Draws the matrix, as wide as a page; None if nothing was found."""
    columns = found.few_columns()
    theories = [theory for theory in found.theories if any(found.at(theory, one) for one in columns)]
    if not theories:
        return None
    height = MATRIX_HEADER + MATRIX_ROW * len(theories) + MATRIX_LEGEND
    figure = blank(MATRIX_WIDTH, height)
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, MATRIX_WIDTH), ylim=(height, 0))
    ax.set_axis_off()
    width = (MATRIX_WIDTH - MATRIX_LABEL) / len(columns)
    _header(ax, columns, width)
    for i, theory in enumerate(theories):
        top = MATRIX_HEADER + MATRIX_ROW * i
        ax.plot((0, MATRIX_WIDTH), (top, top), color=RULE, linewidth=0.7)
        ax.text(
            0.02,
            top + 0.1,
            textwrap.fill(theory.title, 15, break_long_words=False),
            fontsize=MATRIX_SMALL + 0.4,
            weight="bold",
            color=colour(theory.name),
            va="top",
            linespacing=1.15,
        )
        for views in GROUPS.values():
            inside = [(j, one) for j, one in enumerate(columns) if one[1] in views]
            _group(ax, found, theory, inside, top, width)
    _matrix_legend(ax, height)
    return figure


def _header(ax: "Axes", columns: list[tuple[str, View, str]], width: float) -> None:
    """Writes the names of the columns: data sets if there are several, kinds of views, networks."""
    several = len({data for data, _, _ in columns}) > 1
    titles = {"raw tokens": "raw tokens", "features": "features of", "network": "in trained"}
    for j, (data, view, model) in enumerate(columns):
        name = "\n".join(filter(None, (data if several else "", titles[view], textwrap.fill(model, 15))))
        left, bottom = MATRIX_LABEL + width * (j + 0.5), MATRIX_HEADER - 0.05
        ax.text(
            left, bottom, name, ha="center", va="bottom", fontsize=MATRIX_TINY, color=INK, linespacing=1.1
        )


def _group(
    ax: "Axes",
    found: Findings,
    theory: Theory,
    columns: list[tuple[int, tuple[str, View, str]]],
    top: float,
    width: float,
) -> None:
    """Draws the cells of one quantity of a theory, with its name above them, on a common scale."""
    cells = [(j, cell) for j, column in columns if (cell := found.at(theory, column)) is not None]
    if not cells:
        return
    left = MATRIX_LABEL + width * columns[0][0]
    letters = int(width * len(columns) / 0.047)
    name = textwrap.shorten(cells[0][1].judged.row.quantity, letters, placeholder="…")
    name = name if "$" in name else name.replace("R^c", "$R^c$")
    ax.text(left + PAD, top + 0.045, name, fontsize=MATRIX_TINY, color=GREY, va="top", style="italic")
    scale = _scale([cell for _, cell in cells])
    for j, cell in cells:
        _cell(ax, cell, MATRIX_LABEL + width * j + PAD, width - 2 * PAD, top, scale)


def _scale(cells: list[Finding]) -> tuple[float, float]:
    """Returns the common range of the cells: values, nulls, predictions and noise; intervals may be wider and
    are cut off.
    """
    numbers: list[float] = []
    for cell in cells:
        judged, row = cell.judged, cell.judged.row
        shown = (row.value, row.predicted, judged.on_noise)
        numbers += [number for number in shown if number is not None]
        numbers += [end for null in row.nulls if null.draws for end in (null.low, null.high)]
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    margin = 0.06 * (high - low) or 0.5
    return low - margin, high + margin


def _cell(
    ax: "Axes",
    cell: Finding,
    left: float,
    width: float,
    top: float,
    scale: tuple[float, float],
) -> None:
    """Draws one cell: the plotted line and the lines of text below it."""
    judged, row, y = cell.judged, cell.judged.row, top + PLOT
    centre = left + width / 2

    def x(number: float) -> float:
        share = (number - scale[0]) / (scale[1] - scale[0])
        return left + width * min(1.0, max(0.0, share))

    if row.value is None:
        reason = textwrap.fill(
            textwrap.shorten(judged.reason, 60, placeholder="…"), max(10, int(width / 0.048))
        )
        ax.text(
            centre,
            top + 0.2,
            reason,
            ha="center",
            va="top",
            fontsize=MATRIX_TINY,
            color=GREY,
            linespacing=1.05,
        )
        return
    ax.plot((left, left + width), (y, y), color="#E4E7EB", linewidth=0.8, zorder=1)
    if row.null is not None and row.null.draws:
        low, high = x(row.null.low), x(row.null.high)
        ax.fill_between((low, max(high, low + 0.01)), y - 0.055, y + 0.055, color=NULL, linewidth=0, zorder=2)
        ax.plot([x(row.null.median)] * 2, (y - 0.075, y + 0.075), color=GREY, linewidth=1, zorder=3)
    if judged.second is not None and judged.second.draws:
        low, high = x(judged.second.low), x(judged.second.high)
        box = ((low, low, max(high, low + 0.01), max(high, low + 0.01)), (y, y + 0.055, y + 0.055, y))
        ax.fill(*box, facecolor=SECOND, edgecolor=SECOND_EDGE, linewidth=0.6, zorder=2.5)
    if row.predicted is not None:
        ax.plot(
            [x(row.predicted)] * 2,
            (y - 0.085, y + 0.085),
            color=INK,
            linewidth=0.9,
            linestyle=DASHES,
            zorder=3,
        )
    if judged.on_noise is not None:
        ax.plot(
            [x(judged.on_noise)],
            [y],
            marker="D",
            markersize=3.6,
            markerfacecolor="white",
            markeredgecolor=INK,
            markeredgewidth=0.8,
            zorder=4,
        )
    tint = (
        colour(cell.theory.name) if judged.outcome == "as predicted" or judged.scope == "any data" else GREY
    )
    tint = ALARM if judged.outcome == "opposite" else tint
    if row.interval is not None:
        ax.plot(
            (x(row.interval[0]), x(row.interval[1])),
            (y, y),
            color=tint,
            linewidth=1.4,
            solid_capstyle="butt",
            zorder=5,
        )
    ax.plot([x(row.value)], [y], marker="o", markersize=4.2, color=tint, zorder=6)
    ax.text(
        centre,
        y + 0.11,
        format.of_row(row.value, row),
        ha="center",
        va="top",
        fontsize=MATRIX_SMALL,
        weight="bold",
        color=INK,
    )
    for number, text in enumerate(filter(None, (format.interval_text(row), *_effect_and_p(cell)))):
        last = ALARM if judged.outcome == "opposite" and "p = " in text else INK
        ax.text(
            centre, y + 0.225 + 0.095 * number, text, ha="center", va="top", fontsize=MATRIX_TINY, color=last
        )


def _effect_and_p(cell: Finding) -> list[str]:
    """Returns the effect of a cell and its p-value; "no p" if it has neither."""
    judged, lines = cell.judged, []
    if judged.effect is not None:
        over = " (over)" if judged.effect > 1 else ""
        lines.append(f"effect {format.effect(judged.effect)}{over}")
    if judged.row.p is not None:
        lines.append(f"{_mark(cell)}p = {format.p_value(judged.row.p)}")
    return lines or ["no p" if judged.row.null is not None else "no null"]


def _mark(cell: Finding) -> str:
    """Returns the mark of an outcome that a test decided; empty for others."""
    outcome = cell.judged.outcome
    decided = outcome in ("matched by a second null", "nulls conflict", "opposite")
    return "✓ " if outcome == "as predicted" else MARKS[outcome][0] if decided else ""


def _matrix_legend(ax: "Axes", height: float) -> None:
    y, texts = height - MATRIX_LEGEND / 2 + 0.03, {"fontsize": MATRIX_TINY, "va": "center", "color": INK}
    ax.plot((0, MATRIX_WIDTH), (height - MATRIX_LEGEND, height - MATRIX_LEGEND), color=RULE, linewidth=0.7)
    ax.fill_between((0.03, 0.2), y - 0.045, y + 0.045, color=NULL, linewidth=0)
    ax.text(0.24, y, "null (networks: equal scale)", **texts)
    ax.fill_between((1.42, 1.59), y - 0.03, y + 0.03, facecolor=SECOND, edgecolor=SECOND_EDGE, linewidth=0.6)
    ax.text(1.63, y, "second null", **texts)
    ax.plot([2.5] * 2, (y - 0.07, y + 0.07), color=INK, linewidth=0.9, linestyle=DASHES)
    ax.text(2.55, y, "prediction", **texts)
    ax.plot((3.1, 3.28), (y, y), color=INK, linewidth=1.4)
    ax.plot([3.19], [y], marker="o", markersize=4.2, color=INK)
    ax.text(3.32, y, "mean over seeds, 95 % interval", **texts)
    ax.plot(
        [4.78],
        [y],
        marker="D",
        markersize=3.6,
        markerfacecolor="white",
        markeredgecolor=INK,
        markeredgewidth=0.8,
    )
    ax.text(4.84, y, "on noise", **texts)
    ax.text(
        MATRIX_WIDTH - 0.03, y, "✓ predicted  ~ matched  ≠ conflict  ✗ opposite", **{**texts, "ha": "right"}
    )


# ---- the map of the reach

WIDTH, LABEL_WIDTH, HEADER, TILE, GAP, LEGEND = 7.2, 0.92, 0.3, 0.335, 0.1, 0.42  # inches
SMALL, TINY = 6.4, 5.4  # font sizes, points
CHARS = 26  # letters of a rung's name that fit into a tile
DARK = 0.45  # effect above which the text of a tile is white
# distance of a frame from the border of its tile, and of an interval from its number, inches
INSET, SPACE = 0.018, 0.03


@style()
def reach_map(cells: Sequence[RungResult]) -> "Figure | None":
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
    _map_legend(ax, cells, height)
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

    rows: Sequence[Sequence[RungResult]]
    columns: Sequence[str]
    titles: Sequence[str]
    heights: Sequence[float]

    @classmethod
    def of(cls, rows: Sequence[Sequence[RungResult]], columns: Sequence[str]) -> "_Block":
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


def _tile(ax: "Axes", cell: RungResult, left: float, top: float, width: float) -> None:
    """Draws one rung."""
    from matplotlib.patches import Rectangle

    height, text = TILE - 0.03, INK
    share = (
        min(1.0, max(0.0, 1.0 if cell.judged.effect is None else cell.judged.effect))
        if cell.judged.outcome == "as predicted"
        else 0.0
    )
    face = shade(share) if cell.judged.outcome == "as predicted" else "white"
    if share > DARK:
        text = "white"
    patch = {
        "facecolor": face,
        "edgecolor": RULE,
        "linewidth": 0.5,
        "hatch": "////" if cell.judged.outcome == "not measured" else None,
    }
    ax.add_patch(Rectangle((left, top), width, height, **patch, zorder=1))
    if cell.covered:  # the frame lies inside, so that it is visible on dark tiles, too
        place = (left + INSET, top + INSET), width - 2 * INSET, height - 2 * INSET
        ax.add_patch(Rectangle(*place, facecolor="none", edgecolor=text, linewidth=0.8, zorder=2))
    name = cell.name.removeprefix(PRETRAINED)  # the column says it
    name, box = textwrap.shorten(name, CHARS, placeholder="…"), None
    if cell.judged.outcome == "not measured":
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    size = min(TINY, TINY * 21 / len(name))
    ax.text(
        left + width / 2, top + 0.04, plain(name), ha="center", va="top", fontsize=size, color=text, bbox=box
    )
    number, note = _numbers(cell)
    tone = (
        ALARM
        if cell.judged.outcome == "opposite"
        else text
        if cell.judged.outcome == "as predicted"
        else GREY
    )
    # The number and its interval have different sizes; together they are centred. Long ones are set smaller.
    widths = inches(number, SMALL, "bold"), inches(note, TINY - 0.2, "normal")
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
def inches(text: str, size: float, weight: str) -> float:
    """Returns the width of a text, inches.

    Args:
        text: the text, on one line.
        size: size of the font, points.
        weight: weight of the font, "normal" or "bold".
    """
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    return (
        TextPath((0, 0), text, size=size, prop=FontProperties(weight=weight)).get_extents().width / 72
        if text
        else 0.0
    )


def _numbers(cell: RungResult) -> tuple[str, str]:
    """Returns the number of a tile with its mark, and its interval."""
    if cell.judged.row.value is None:
        return "no data" if cell.judged.row.reason.startswith("needs") else "no value", ""
    mark = MARKS.get(cell.judged.outcome, ("", ""))[0]
    if cell.judged.effect is None or cell.quantity:
        return f"{mark}{cell.number}", format.interval_text(cell.judged.row)
    interval = (
        ""
        if cell.judged.effect_interval is None
        else f"[{format.effect(cell.judged.effect_interval[0])}, "
        f"{format.effect(cell.judged.effect_interval[1])}]"
    )
    return f"{mark}{cell.number}", interval


def shade(share: float) -> tuple[float, float, float]:
    """Returns a shade of one hue whose lightness falls evenly with the share, so that it is legible in grey
    and to colour-blind readers.
    """
    light, dark = (0.90, 0.94, 0.98), (0.06, 0.25, 0.45)
    red, green, blue = (a + (b - a) * share for a, b in zip(light, dark))
    return red, green, blue


def _map_legend(ax: "Axes", cells: Sequence[RungResult], height: float) -> None:
    """Draws two lines: the shades and the frame, then the marks of the tiles that are not as predicted."""
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
        "as predicted, shaded by the effect, 0 to 1 (×: relative to the first rung)",
        **texts,
    )
    ax.add_patch(Rectangle((5.0, first - 0.05), 0.16, 0.1, facecolor="white", edgecolor=INK, linewidth=0.8))
    ax.text(5.2, first, "covered by the theorem", **texts)
    found = [
        mark + text
        for outcome, (mark, text) in MARKS.items()
        if any(cell.judged.outcome == outcome for cell in cells)
    ]
    found += ["hatched: no value"] if any(cell.judged.outcome == "not measured" for cell in cells) else []
    ax.text(0.03, second, "Not shaded:  " + "    ".join(found) if found else "", **texts)


# ---- the overview of the reach

OVERVIEW_LABEL, ROW, OVERVIEW_HEADER, OVERVIEW_LEGEND, SQUARE = 2.2, 0.175, 0.3, 0.26, 0.125  # inches
SIZE, OVERVIEW_SMALL = 7.0, 6.2  # font sizes, points
MAX_TITLE = 38  # letters of a title in full size; of a longer one only the part before its colon is shown
PAPER_COLUMN = 3.4  # inches; the width of a column of a paper
# in the figure as wide as a column: inches, points, and letters in a line of a title
COLUMN_LABEL, COLUMN_ROW, COLUMN_HEADER, COLUMN_LEGEND = 1.44, 0.145, 0.53, 0.42
COLUMN_SIZE, COLUMN_TITLE = 6.0, 31
SHORT = {  # names of columns that fit there
    "everything trained": "all trained",
    "AdamW and mini-batches": "AdamW",
    "trained network": "trained",
    "pretrained network": "pretrained",
    "exact construction": "exact",
    "floating point": "floats",
    "relaxed encoding": "encoding",
}
STEP = 0.03  # inches between squares


@style()
def reach_overview(cells: Sequence[RungResult], *, column: bool = False) -> "Figure | None":
    """Draws a row per theory and a square per rung, in the columns of the reach map; None if there are no
    rungs.

    Args:
        cells: the rungs.
        column: whether the figure is as wide as a column of a paper instead of a page; its headings are then
            upright.
    """
    if not cells:
        return None
    from matplotlib.figure import Figure

    whole, label, header, legend = (
        (PAPER_COLUMN, COLUMN_LABEL, COLUMN_HEADER, COLUMN_LEGEND)
        if column
        else (WIDTH, OVERVIEW_LABEL, OVERVIEW_HEADER, OVERVIEW_LEGEND)
    )
    groups = [(columns, [own for own in by_theory(cells) if own[0].column in columns]) for columns in MAPS]
    groups = [(columns, rows) for columns, rows in groups if rows]
    line = COLUMN_ROW if column else ROW
    heights = {
        id(own): line * (1 + 0.5 * ("\n" in _title(own, column))) for _, rows in groups for own in rows
    }
    height = sum(header + sum(heights[id(own)] for own in rows) for _, rows in groups) + legend
    figure = Figure(figsize=(whole, height))
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, whole), ylim=(height, 0))
    ax.set_axis_off()
    top = 0.0
    for columns, rows in groups:
        used = [name for name in columns if any(cell.column == name for own in rows for cell in own)]
        counts = [max(sum(cell.column == name for cell in own) for own in rows) for name in used]
        # a heading needs more than a square
        weights = [max(2.0 if column else 3.7, count) for count in counts]
        widths = [(whole - label) * weight / sum(weights) for weight in weights]
        lefts = [label + sum(widths[:j]) for j in range(len(used))]
        texts = {
            "fontsize": COLUMN_SIZE if column else OVERVIEW_SMALL,
            "color": GREY,
            "va": "bottom",
            "linespacing": 1.0,
            "rotation": 90 if column else 0,
        }
        for name, left, width in zip(used, lefts, widths):
            filled = SHORT.get(name, name)
            if not column:
                filled = textwrap.fill(name, max(12, round(20 * width)), break_on_hyphens=False)
            ax.text(left, top + header - 0.04, filled, **texts)
        top += header
        ax.plot((0, whole), (top, top), color=RULE, linewidth=0.7)
        for own in rows:
            row, title = heights[id(own)], _title(own, column)
            size = COLUMN_SIZE if column else SIZE * min(1.0, MAX_TITLE / len(title))
            ax.text(
                0.02,
                top + row / 2,
                title,
                fontsize=size,
                color=INK,
                va="center",
                linespacing=1.0 if column else "normal",
            )
            for name, left, width in zip(used, lefts, widths):
                inside = [cell for cell in own if cell.column == name]
                step = min(SQUARE + STEP, (width - (STEP if column else 0.0)) / max(1, len(inside)))
                # in a column of a paper, crowded squares are narrower
                side = min(SQUARE, step - STEP / 2) if column else SQUARE
                for i, cell in enumerate(inside):
                    _square(ax, cell, left + step * i, top + (row - SQUARE) / 2, width=side)
            top += row
    if column:
        _column_legend(ax, height)
    else:
        _legend(ax, height)
    return figure


def _title(own: Sequence[RungResult], column: bool) -> str:
    """Returns the title of a theory, in a column on up to two lines."""
    theory = own[0].theory
    title = theory.short_title if column or len(theory.title) > MAX_TITLE else theory.title
    return textwrap.fill(title, COLUMN_TITLE) if column else title


def _square(
    ax: "Axes",
    cell: RungResult | None,
    left: float,
    top: float,
    outcome: str = "as predicted",
    share: float = 1.0,
    width: float = SQUARE,
) -> None:
    """Draws one rung, or, without a rung, a square of the legend with the given outcome and effect."""
    from matplotlib.patches import Rectangle

    if cell is not None:
        outcome = cell.judged.outcome
        share = 1.0 if cell.judged.effect is None else min(1.0, max(0.0, cell.judged.effect))
    face = shade(share) if outcome == "as predicted" else "white"
    edge = ALARM if outcome == "opposite" else GREY
    hatch = "//////" if outcome in ("not measured", "not tested", "too few draws") else None
    ax.add_patch(
        Rectangle((left, top), width, SQUARE, facecolor=face, edgecolor=edge, linewidth=0.5, hatch=hatch)
    )


def _legend(ax: "Axes", height: float) -> None:
    """Explains the squares in one line."""
    middle = height - OVERVIEW_LEGEND / 2 + 0.03
    ax.plot((0, WIDTH), (height - OVERVIEW_LEGEND + 0.02,) * 2, color=RULE, linewidth=0.7)
    left = 0.02
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        _square(ax, None, left, middle - SQUARE / 2, share=share)
        left += SQUARE + 0.03
    for outcome, text, width in (
        ("", "as predicted, by the effect, 0 to 1", 2.25),
        ("not significant", "not as predicted", 1.25),
        ("opposite", "opposite", 1.35),
        ("not measured", "no value or no test", 1.0),
    ):
        if outcome:
            _square(ax, None, left, middle - SQUARE / 2, outcome)
            left += SQUARE + 0.05
        ax.text(left, middle, text, fontsize=OVERVIEW_SMALL, color=INK, va="center")
        left += width


def _column_legend(ax: "Axes", height: float) -> None:
    """Explains the squares in two lines of two entries each."""
    ax.plot((0, PAPER_COLUMN), (height - COLUMN_LEGEND + 0.02,) * 2, color=RULE, linewidth=0.7)
    for index, (outcome, text) in enumerate(
        (
            ("as predicted", "as predicted, effect 0 to 1"),
            ("not significant", "not as predicted"),
            ("opposite", "opposite"),
            ("not measured", "no value or no test"),
        )
    ):
        left, middle = 0.02 + 2.16 * (index % 2), height - COLUMN_LEGEND + 0.16 + 0.19 * (index // 2)
        for share in (0.0, 0.5, 1.0) if outcome == "as predicted" else (0.0,):
            _square(ax, None, left, middle - SQUARE / 2, outcome, share)
            left += SQUARE + STEP
        ax.text(left + 0.02, middle, text, fontsize=OVERVIEW_SMALL, color=INK, va="center")
