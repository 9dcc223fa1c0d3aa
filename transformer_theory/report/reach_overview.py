"""The reach of all theories as one small picture: a square per rung, for the head of a page. :mod:`.reach_map` has the numbers."""

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


@style()
def reach_overview(cells: Sequence[Reached]) -> "Figure | None":
    """Draws a row per theory and a square per rung, in the columns of the reach map; None if there are no rungs."""
    if not cells:
        return None
    from matplotlib.figure import Figure

    groups = [(columns, [own for own in by_theory(cells) if own[0].column in columns]) for columns in MAPS]
    groups = [(columns, rows) for columns, rows in groups if rows]
    height = sum(HEADER + ROW * len(rows) for _, rows in groups) + LEGEND
    figure = Figure(figsize=(WIDTH, height))
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
    ax.set_axis_off()
    top = 0.0
    for columns, rows in groups:
        used = [column for column in columns if any(cell.column == column for own in rows for cell in own)]
        width = (WIDTH - LABEL_WIDTH) / len(used)
        for j, column in enumerate(used):
            name = textwrap.fill(column, round(20 * width), break_on_hyphens=False)
            ax.text(LABEL_WIDTH + width * j, top + HEADER - 0.04, name, fontsize=SMALL, color=GREY, va="bottom", linespacing=1.0)
        top += HEADER
        ax.plot((0, WIDTH), (top, top), color=RULE, linewidth=0.7)
        for own in rows:
            title = own[0].theory.title
            title = title if len(title) <= MAX_TITLE else title.partition(":")[0]
            size = SIZE * min(1.0, MAX_TITLE / len(title))
            ax.text(0.02, top + ROW / 2, title, fontsize=size, color=INK, va="center")
            for j, column in enumerate(used):
                inside = [cell for cell in own if cell.column == column]
                step = min(SQUARE + 0.03, width / max(1, len(inside)))
                for i, cell in enumerate(inside):
                    _square(ax, cell, LABEL_WIDTH + width * j + step * i, top + (ROW - SQUARE) / 2)
            top += ROW
    _legend(ax, height)
    return figure


def _square(ax: "Axes", cell: Reached | None, left: float, top: float, outcome: str = "beyond chance", share: float = 1.0) -> None:
    """Draws one rung, or, without a rung, a square of the legend with the given outcome and agreement."""
    from matplotlib.patches import Rectangle

    if cell is not None:
        outcome = cell.outcome
        share = 1.0 if cell.row.agreement is None else min(1.0, max(0.0, cell.row.agreement))
    face = shade(share) if outcome == "beyond chance" else "white"
    edge = ALARM if outcome == "opposite" else GREY
    hatch = "//////" if outcome in ("not measured", "not tested") else None
    ax.add_patch(Rectangle((left, top), SQUARE, SQUARE, facecolor=face, edgecolor=edge, linewidth=0.5, hatch=hatch))


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
