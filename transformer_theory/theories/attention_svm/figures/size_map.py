"""Maps over problem sizes: values with their intervals, inputs against tokens, one column per dimension."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ....core.plotting import axes, caption, heatmap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# inches: side of a cell that holds two lines of text, and smallest height of a panel
CELL, PANEL = 0.315, 1.25


class MapRow(NamedTuple):
    """One row of maps: label, values and half-widths of their intervals ``[inputs, tokens, dims]``, and the
    value with full colour.
    """

    label: str
    values: np.ndarray
    half: np.ndarray
    maximum: float


def half_width(values: np.ndarray) -> float:
    """Returns half the width of the 95 % interval of the mean, by the normal approximation; 0 for fewer than
    two values.
    """
    return 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0


def mean(values: np.ndarray) -> float:
    """Returns the mean; NaN, which leaves a gap in the figure, if there are no values."""
    return float(values.mean()) if len(values) else float("nan")


def size_map(
    inputs: np.ndarray, tokens: np.ndarray, dims: np.ndarray, rows: Sequence[MapRow], *, text: str
) -> "Figure":
    """Draws the rows of maps, one column per dimension; a dash marks a missing value.

    Args:
        inputs, tokens, dims: sizes n, T and d of the maps.
        rows: values of the maps.
        text: caption.
    """
    cell = max(CELL, PANEL / len(inputs))
    figure, panels = axes(
        len(rows),
        len(dims),
        width=0.62 + len(dims) * (cell * len(tokens) + 0.02),
        height=0.85 + len(rows) * (cell * len(inputs) + 0.02),
    )
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.04, wspace=0.0, hspace=0.0)
    for number, (row, row_axes) in enumerate(zip(rows, panels.reshape(len(rows), -1))):
        for column, (d, ax) in enumerate(zip(dims, row_axes)):
            values, half = row.values[:, :, column], row.half[:, :, column]
            heatmap(ax, values, bar=False, vmin=0, vmax=row.maximum, cmap="Blues")
            for (i, j), value in np.ndenumerate(values):
                cell_text = (
                    f"{short(float(value))}\n±{short(float(half[i, j]))}" if np.isfinite(value) else "–"
                )
                tint = "white" if value > 0.55 * row.maximum else "black"  # legible on dark cells
                ax.text(j, i, cell_text, ha="center", va="center", fontsize=7, color=tint, linespacing=1.0)
            in_last_row = number == len(rows) - 1
            ax.set_xticks(range(len(tokens)), [str(T) if in_last_row else "" for T in tokens])
            ax.set_yticks(range(len(inputs)), ["" if column else str(n) for n in inputs])
            ax.grid(visible=False)
            if number == 0:
                ax.set_title(f"d = {d}")
            if in_last_row:
                ax.set_xlabel("tokens T")
            if column == 0:
                ax.set_ylabel(f"{row.label}\ninputs n", fontsize=8)
    caption(figure, text)
    return figure


def short(number: float) -> str:
    """Formats a number with at most three digits: ``.05``, ``1.00``, ``15.0``."""
    return f"{number:.2f}".lstrip("0") if number < 9.995 else f"{number:.1f}"
