"""The matrix of findings, theories by data and networks: as a figure, and as a table of its numbers.

A cell of the figure shows the headline of a theory. Its scale is that of the theory and the kind of view, so
that the cells of a row can be compared. Grey bar: the range of the null draws, with their median. Dashed: the
prediction. Dot: the mean over seeds, with its interval. Diamond: the value on noise of the same shape. Below
stand value, interval, agreement and p-value; in the figure for a column of a paper, which shows no features
of networks, value and mark of the outcome.
"""

import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core import format
from ..core.plotting import blank, colour, style
from ..core.statistics import LEVEL
from ..core.theory import Theory
from . import table_model
from .aggregate import Aggregate
from .findings import (
    FOUND,
    OUTCOMES,
    Finding,
    Findings,
    View,
    findings,
    interval_text,
    null_text,
    p_text,
    short,
    statements,
)
from .html import inline
from .table_model import Block, Column, Line, Note, Plain, Strong

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAD = 0.06  # inches between cells
SMALL, TINY = 6.6, 5.8  # font sizes, points
MAX_IN_COLUMN = 5  # cells of a row in a column of a paper
GREY, INK, ALARM = "#8A939E", "#3F4751", "#B3261E"
GROUPS: dict[str, tuple[View, ...]] = {"own model": ("raw tokens", "features"), "networks": ("network",)}
MARKS = {"as predicted": "✓ ", "changed as predicted": "✓ ", "explained": "~ ", "opposite": "✗ "}


@dataclass(frozen=True)
class _Sizes:
    """Sizes in inches; ``plot`` is the depth of the plotted line below the top of its row."""

    width: float
    label: float
    header: float
    row: float
    legend: float
    plot: float


PAGE = _Sizes(7.2, 1.0, 0.5, 0.92, 0.3, 0.36)
COLUMN = _Sizes(3.4, 0.0, 0.4, 0.5, 0.53, 0.31)  # titles stand above their cells


@style()
def matrix(found: Findings, *, column: bool = False) -> "Figure | None":
    """Draws the matrix; None if nothing was found.

    Args:
        found: the findings.
        column: whether the figure is as wide as a column of a paper instead of a page; it then has neither
            features nor p-values, and is None if there are more than :data:`MAX_IN_COLUMN` data sets and
            networks.
    """
    sizes = COLUMN if column else PAGE
    columns = [one for one in found.few_columns() if not (column and one[1] == "features")]
    theories = [theory for theory in found.theories if any(found.at(theory, one) for one in columns)]
    if not theories or (column and len(columns) > MAX_IN_COLUMN):
        return None
    height = sizes.header + sizes.row * len(theories) + sizes.legend
    figure = blank(sizes.width, height)
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, sizes.width), ylim=(height, 0))
    ax.set_axis_off()
    width = (sizes.width - sizes.label) / len(columns)
    _header(ax, columns, width, sizes)
    for i, theory in enumerate(theories):
        top = sizes.header + sizes.row * i
        ax.plot((0, sizes.width), (top, top), color="#D5D9DE", linewidth=0.7)
        title = (
            theory.title.partition(":")[0]
            if column
            else textwrap.fill(theory.title, 15, break_long_words=False)
        )
        gap = 0.03 if column else 0.1
        ax.text(
            0.02,
            top + gap,
            title,
            fontsize=SMALL + 0.4,
            weight="bold",
            color=colour(theory.name),
            va="top",
            linespacing=1.15,
        )
        for views in GROUPS.values():
            inside = [(j, one) for j, one in enumerate(columns) if one[1] in views]
            _group(ax, found, theory, inside, top, width, sizes, len(title) if column else 0)
    (_column_legend if column else _legend)(ax, height)
    return figure


def _header(ax: "Axes", columns: list[tuple[str, View, str]], width: float, sizes: _Sizes) -> None:
    """Writes the names of the columns: data sets if there are several, kinds of views, networks."""
    several = len({data for data, _, _ in columns}) > 1
    titles = {"raw tokens": "raw tokens", "features": "features of", "network": "in trained"}
    for j, (data, view, model) in enumerate(columns):
        name = "\n".join(filter(None, (data if several else "", titles[view], textwrap.fill(model, 15))))
        left, bottom = sizes.label + width * (j + 0.5), sizes.header - 0.05
        ax.text(left, bottom, name, ha="center", va="bottom", fontsize=TINY, color=INK, linespacing=1.1)


def _group(
    ax: "Axes",
    found: Findings,
    theory: Theory,
    columns: list[tuple[int, tuple[str, View, str]]],
    top: float,
    width: float,
    sizes: _Sizes,
    letters: int,
) -> None:
    """Draws the cells of one quantity of a theory, with its name above them, on a common scale.

    In a column of a paper the name on the raw tokens stands behind the title of ``letters`` letters, that in
    networks on the next line.
    """
    cells = [(j, cell) for j, column in columns if (cell := found.at(theory, column)) is not None]
    if not cells:
        return
    left, line, room = sizes.label + width * columns[0][0], top + 0.045, width * len(columns)
    if sizes is COLUMN and columns[0][1][1] == "network":
        line = top + 0.135
    elif sizes is COLUMN:
        left = 0.04 + 0.058 * letters
        room = sizes.width - left
    name = textwrap.shorten(cells[0][1].row.quantity, int(room / 0.047), placeholder="…")
    name = name if "$" in name else name.replace("R^c", "$R^c$")
    ax.text(left + PAD, line, name, fontsize=TINY, color=GREY, va="top", style="italic")
    scale = _scale([cell for _, cell in cells])
    for j, cell in cells:
        _cell(ax, cell, sizes.label + width * j + PAD, width - 2 * PAD, top, scale, sizes)


def _scale(cells: list[Finding]) -> tuple[float, float]:
    """Returns the common range of the cells: values, nulls, predictions and noise; intervals may be wider and
    are cut off.
    """
    numbers: list[float] = []
    for cell in cells:
        numbers += [
            number for number in (cell.row.value, cell.row.predicted, cell.on_noise) if number is not None
        ]
        for row in filter(None, (cell.row, cell.own)):
            numbers += [row.null.low, row.null.high] if row.null is not None and row.null.draws else []
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
    sizes: _Sizes,
) -> None:
    """Draws one cell: the plotted line and the lines of text below it."""
    row, y = cell.row, top + sizes.plot
    centre = left + width / 2

    def x(number: float) -> float:
        share = (number - scale[0]) / (scale[1] - scale[0])
        return left + width * min(1.0, max(0.0, share))

    if row.value is None:
        reason = textwrap.fill(
            textwrap.shorten(cell.reason, 60, placeholder="…"), max(10, int(width / 0.048))
        )
        ax.text(centre, top + 0.2, reason, ha="center", va="top", fontsize=TINY, color=GREY, linespacing=1.05)
        return
    ax.plot((left, left + width), (y, y), color="#E4E7EB", linewidth=0.8, zorder=1)
    if row.null is not None and row.null.draws:
        low, high = x(row.null.low), x(row.null.high)
        ax.fill_between(
            (low, max(high, low + 0.01)), y - 0.055, y + 0.055, color="#C9CED5", linewidth=0, zorder=2
        )
        ax.plot([x(row.null.median)] * 2, (y - 0.075, y + 0.075), color=GREY, linewidth=1, zorder=3)
    if cell.own is not None and cell.own.null is not None and cell.own.null.draws:
        low, high = x(cell.own.null.low), x(cell.own.null.high)
        box = ((low, low, max(high, low + 0.01), max(high, low + 0.01)), (y, y + 0.055, y + 0.055, y))
        ax.fill(*box, facecolor="#F2D9A6", edgecolor="#A67C1F", linewidth=0.6, zorder=2.5)
    if row.predicted is not None:
        ax.plot(
            [x(row.predicted)] * 2,
            (y - 0.085, y + 0.085),
            color=INK,
            linewidth=0.9,
            linestyle=(0, (2, 1.4)),
            zorder=3,
        )
    if cell.on_noise is not None:
        ax.plot(
            [x(cell.on_noise)],
            [y],
            marker="D",
            markersize=3.6,
            markerfacecolor="white",
            markeredgecolor=INK,
            markeredgewidth=0.8,
            zorder=4,
        )
    tint = {
        **dict.fromkeys(FOUND, colour(cell.theory.name)),
        "any data": colour(cell.theory.name),
        "opposite": ALARM,
    }.get(cell.outcome, GREY)
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
    mark = MARKS.get(cell.outcome, "") if sizes is COLUMN else ""
    value = {"ha": "center", "va": "top", "fontsize": SMALL, "weight": "bold"}
    ax.text(
        centre,
        y + (0.08 if sizes is COLUMN else 0.11),
        f"{mark}{short(row.value, row)}",
        color=ALARM if mark == MARKS["opposite"] else INK,
        **value,
    )
    if sizes is COLUMN:
        return
    for number, text in enumerate(filter(None, (interval_text(row), *verdict_lines(cell)))):
        last = ALARM if cell.outcome == "opposite" and "p = " in text else INK
        ax.text(centre, y + 0.225 + 0.095 * number, text, ha="center", va="top", fontsize=TINY, color=last)


def verdict_lines(cell: Finding) -> list[str]:
    """Returns the agreement of a cell and its p-value; "no p" if it has neither."""
    row, lines = cell.row, []
    if row.agreement is not None and math.isfinite(row.agreement):
        lines.append(f"agreement {format.number(row.agreement, 2)}{' (over)' if row.agreement > 1 else ''}")
    if row.p is not None:
        lines.append(f"{MARKS.get(cell.outcome, '')}p = {p_text(row.p)}")
    return lines or ["no p" if row.null is not None else "no null"]


def _legend(ax: "Axes", height: float) -> None:
    y, texts = height - PAGE.legend / 2 + 0.03, {"fontsize": TINY, "va": "center", "color": INK}
    ax.plot((0, PAGE.width), (height - PAGE.legend, height - PAGE.legend), color="#D5D9DE", linewidth=0.7)
    ax.fill_between((0.03, 0.2), y - 0.045, y + 0.045, color="#C9CED5", linewidth=0)
    ax.text(0.24, y, "null (networks: untrained)", **texts)
    ax.fill_between((1.42, 1.59), y - 0.03, y + 0.03, facecolor="#F2D9A6", edgecolor="#A67C1F", linewidth=0.6)
    ax.text(1.63, y, "metric's own null", **texts)
    ax.plot([2.5] * 2, (y - 0.07, y + 0.07), color=INK, linewidth=0.9, linestyle=(0, (2, 1.4)))
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
    ax.text(PAGE.width - 0.03, y, "✓ as predicted  ~ explained  ✗ opposite", **{**texts, "ha": "right"})


def _column_legend(ax: "Axes", height: float) -> None:
    """Explains the signs in words, line by line."""
    ax.plot((0, COLUMN.width), (height - COLUMN.legend + 0.02,) * 2, color="#D5D9DE", linewidth=0.7)
    for number, text in enumerate(
        (
            "dot: mean over seeds, 95 % interval   grey: null (in networks: untrained)",
            "yellow: the metric's own null   dashed: prediction   diamond: on noise",
            "✓ as predicted   ~ explained   ✗ opposite",
            "without mark: grey, none of these; coloured, a statement about any data",
        )
    ):
        ax.text(
            0.02, height - COLUMN.legend + 0.1 + 0.115 * number, text, fontsize=TINY, va="center", color=INK
        )


def table(found: Findings) -> table_model.Table | None:
    """Returns the numbers of the matrix, one line per cell; None if nothing was found."""
    if not found:
        return None
    several = len({finding.data for finding in found.all}) > 1
    blocks = []
    for theory in found.theories:
        lines, before = [], ""
        for finding in (finding for finding in found.all if finding.theory is theory):
            quantity = "" if finding.row.quantity == before else finding.row.quantity
            before = finding.row.quantity
            lines.append(Line(_cells(finding, quantity, several)))
        blocks.append(Block(Plain(theory.title), tuple(lines), strong=True))
    legend = (
        f"{format.several(found.tests, 'test')}; q is the p-value adjusted for the false discovery rate "
        "(Benjamini and Hochberg). "
        + " ".join(f"{outcome.capitalize()}: {meaning}." for outcome, meaning in OUTCOMES.items())
    )
    return table_model.Table(
        "matrix", "The numbers of the matrix.", COLUMNS, tuple(blocks), legend
    ).without_empty()


COLUMNS = (
    Column("on", 16, "on"),
    Column("quantity", 19),
    Column("value", 13, "n"),
    Column("predicted", 8, "n"),
    Column("null", 14, "n"),
    Column("on noise", 8, "n"),
    Column("agreement", 7, "n"),
    Column("p (q)", 9, "n"),
    Column("outcome", 10),
)


def _cells(finding: Finding, quantity: str, several: bool) -> tuple[table_model.Cell, ...]:
    row = finding.row
    seeds = format.several(finding.seeds, "seed") if finding.seeds > 1 else ""
    value = (
        (Strong(short(row.value, row)), Note(", ".join(filter(None, (interval_text(row), seeds)))))
        if row.value is not None
        else ""
    )
    null = (
        () if row.null is None or not row.null.draws else (short(row.null.median, row), Note(null_text(row)))
    )
    p = (
        ""
        if row.p is None
        else p_text(row.p)
        if finding.q is None
        else f"{p_text(row.p)} ({p_text(finding.q)})"
    )
    return (
        Plain(f"{finding.data}: {finding.where}" if several else finding.where),
        quantity,
        value,
        format.NOTHING if row.predicted is None else short(row.predicted, row),
        null,
        format.NOTHING if finding.on_noise is None else short(finding.on_noise, row),
        format.NOTHING if row.agreement is None else format.number(row.agreement, 2),
        p,
        (finding.outcome, Note(finding.reason)) if finding.reason else finding.outcome,
    )


def section(aggregate: Aggregate) -> dict[str, Any] | None:
    """Returns the first section of the page: sentences, figure and numbers; None if nothing was compared."""
    found = findings(aggregate)
    if not found:
        return None
    tests = f"{format.several(found.tests, 'test')}, false discovery rate at most {100 * LEVEL:.0f}\u00a0%."
    figure = inline(
        lambda: matrix(found),
        "findings-matrix",
        "The headline of each theory on the data and in the networks",
    )
    return {
        "statements": statements(found),
        "matrix": figure,
        "caption": tests,
        "table": table(found),
    }
