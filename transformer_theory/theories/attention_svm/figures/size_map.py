"""Maps over sizes: numbers with their bands, inputs against tokens, one column a dimension."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ....core.plotting import axes, caption, heatmap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL, PANEL = 0.315, 1.25  # inches: a cell that two lines of text fit in, a panel as high as its words


class MapRow(NamedTuple):
    """One row of maps: what it shows, values and half the width of their bands ``[inputs, tokens, dims]``, the value of full colour."""

    words: str
    values: np.ndarray
    half: np.ndarray
    most: float


def size_map(inputs: np.ndarray, tokens: np.ndarray, dims: np.ndarray, rows: Sequence[MapRow], *, says: str) -> "Figure":
    """The rows of maps, one column a dimension; a dash stands where there is no value.

    Args:
        says: what the numbers and the signs mean, written below.
    """
    cell = max(CELL, PANEL / len(inputs))
    figure, panels = axes(
        len(rows),
        len(dims),
        width=0.62 + len(dims) * (cell * len(tokens) + 0.02),
        height=0.85 + len(rows) * (cell * len(inputs) + 0.02),
    )
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.04, wspace=0.0, hspace=0.0)
    for number, (row, line) in enumerate(zip(rows, panels.reshape(len(rows), -1))):
        for at, (d, ax) in enumerate(zip(dims, line)):
            value, half = row.values[:, :, at], row.half[:, :, at]
            heatmap(ax, value, bar=False, vmin=0, vmax=row.most, cmap="Blues")
            for (i, j), one in np.ndenumerate(value):
                text = f"{short(float(one))}\n±{short(float(half[i, j]))}" if np.isfinite(one) else "–"
                tint = "white" if one > 0.55 * row.most else "black"
                ax.text(j, i, text, ha="center", va="center", fontsize=7, color=tint, linespacing=1.0)
            last = number == len(rows) - 1
            ax.set_xticks(range(len(tokens)), [str(T) if last else "" for T in tokens])
            ax.set_yticks(range(len(inputs)), ["" if at else str(n) for n in inputs])
            ax.grid(visible=False)
            if number == 0:
                ax.set_title(f"d = {d}")
            if last:
                ax.set_xlabel("tokens T")
            if at == 0:
                ax.set_ylabel(f"{row.words}\ninputs n", fontsize=8)
    caption(figure, says)
    return figure


def short(number: float) -> str:
    """Three digits at most: ``.05``, ``1.00``, ``15.0``."""
    return f"{number:.2f}".lstrip("0") if number < 9.995 else f"{number:.1f}"
