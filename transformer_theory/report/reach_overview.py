"""The reach of all theories as one small picture: a square per rung, for the head of a page.
:mod:`.reach_map` has the numbers.
"""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.ladder import MAPS
from ..core.plotting import style
from .reach_map import ALARM, GREY, INK, RULE, WIDTH, shade
from .reached import Reached, by_theory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABEL_WIDTH, ROW, HEADER, LEGEND, SQUARE = 2.2, 0.175, 0.3, 0.26, 0.125  # inches
SIZE, SMALL = 7.0, 6.2  # font sizes, points
MAX_TITLE = 38  # letters of a title in full size; of a longer one only the part before its colon is shown
COLUMN = 3.4  # inches; the width of a column of a paper
COLUMN_LABEL, COLUMN_HEADER, COLUMN_LEGEND = 1.24, 0.66, 0.5  # inches, in the figure as wide as a column
COLUMN_TITLE = 25  # letters in a line of a title there
STEP = 0.03  # inches between squares


@style()
def reach_overview(cells: Sequence[Reached], *, column: bool = False) -> "Figure | None":
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
        (COLUMN, COLUMN_LABEL, COLUMN_HEADER, COLUMN_LEGEND)
        if column
        else (WIDTH, LABEL_WIDTH, HEADER, LEGEND)
    )
    groups = [(columns, [own for own in by_theory(cells) if own[0].column in columns]) for columns in MAPS]
    groups = [(columns, rows) for columns, rows in groups if rows]
    heights = {id(own): ROW * (1 + 0.4 * ("\n" in _title(own, column))) for _, rows in groups for own in rows}
    height = sum(header + sum(heights[id(own)] for own in rows) for _, rows in groups) + legend
    figure = Figure(figsize=(whole, height))
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, whole), ylim=(height, 0))
    ax.set_axis_off()
    top = 0.0
    for columns, rows in groups:
        used = [name for name in columns if any(cell.column == name for own in rows for cell in own)]
        counts = [max(sum(cell.column == name for cell in own) for own in rows) for name in used]
        # a heading of two lines needs more than a square
        weights = [max(1.6, count) if column else 1.0 for count in counts]
        widths = [(whole - label) * weight / sum(weights) for weight in weights]
        lefts = [label + sum(widths[:j]) for j in range(len(used))]
        texts = {
            "fontsize": SMALL,
            "color": GREY,
            "va": "bottom",
            "linespacing": 1.0,
            "rotation": 90 if column else 0,
        }
        for name, left, width in zip(used, lefts, widths):
            filled = textwrap.fill(name, 13 if column else round(20 * width), break_on_hyphens=False)
            ax.text(left, top + header - 0.04, filled, **texts)
        top += header
        ax.plot((0, whole), (top, top), color=RULE, linewidth=0.7)
        for own in rows:
            row, title = heights[id(own)], _title(own, column)
            size = SMALL if column else SIZE * min(1.0, MAX_TITLE / len(title))
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


def _title(own: Sequence[Reached], column: bool) -> str:
    """Returns the title of a theory, in a column on up to two lines."""
    title = own[0].theory.title
    title = title if len(title) <= MAX_TITLE else title.partition(":")[0]
    return textwrap.fill(title, COLUMN_TITLE) if column else title


def _square(
    ax: "Axes",
    cell: Reached | None,
    left: float,
    top: float,
    outcome: str = "beyond chance",
    share: float = 1.0,
    width: float = SQUARE,
) -> None:
    """Draws one rung, or, without a rung, a square of the legend with the given outcome and agreement."""
    from matplotlib.patches import Rectangle

    if cell is not None:
        outcome = cell.outcome
        share = 1.0 if cell.row.agreement is None else min(1.0, max(0.0, cell.row.agreement))
    face = shade(share) if outcome == "beyond chance" else "white"
    edge = ALARM if outcome == "opposite" else GREY
    hatch = "//////" if outcome in ("not measured", "not tested") else None
    ax.add_patch(
        Rectangle((left, top), width, SQUARE, facecolor=face, edgecolor=edge, linewidth=0.5, hatch=hatch)
    )


def _legend(ax: "Axes", height: float) -> None:
    """Explains the squares in one line."""
    middle = height - LEGEND / 2 + 0.03
    ax.plot((0, WIDTH), (height - LEGEND + 0.02,) * 2, color=RULE, linewidth=0.7)
    left = 0.02
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        _square(ax, None, left, middle - SQUARE / 2, share=share)
        left += SQUARE + 0.03
    for outcome, text, width in (
        ("", "beyond chance, by the agreement, 0 to 1", 2.25),
        ("at chance", "not beyond chance", 1.25),
        ("opposite", "on the opposite side", 1.35),
        ("not measured", "no value or no test", 1.0),
    ):
        if outcome:
            _square(ax, None, left, middle - SQUARE / 2, outcome)
            left += SQUARE + 0.05
        ax.text(left, middle, text, fontsize=SMALL, color=INK, va="center")
        left += width


def _column_legend(ax: "Axes", height: float) -> None:
    """Explains the squares in two lines of two entries each."""
    ax.plot((0, COLUMN), (height - COLUMN_LEGEND + 0.02,) * 2, color=RULE, linewidth=0.7)
    for index, (outcome, text) in enumerate(
        (
            ("beyond chance", "beyond chance, agreement 0 to 1"),
            ("at chance", "not beyond chance"),
            ("opposite", "on the opposite side"),
            ("not measured", "no value or no test"),
        )
    ):
        left, middle = 0.02 + 2.16 * (index % 2), height - COLUMN_LEGEND + 0.16 + 0.19 * (index // 2)
        for share in (0.0, 0.5, 1.0) if outcome == "beyond chance" else (0.0,):
            _square(ax, None, left, middle - SQUARE / 2, outcome, share)
            left += SQUARE + STEP
        ax.text(left + 0.02, middle, text, fontsize=SMALL, color=INK, va="center")
