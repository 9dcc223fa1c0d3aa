"""Maps over sizes: numbers with their bands, inputs against tokens, one column a dimension."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ....plotting import axes, heatmap, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class MapRow(NamedTuple):
    """One row of maps: what it shows, values and half the width of their bands ``[inputs, tokens, dims]``, the value of full colour."""

    words: str
    values: np.ndarray
    half: np.ndarray
    most: float


def size_map(inputs: np.ndarray, tokens: np.ndarray, dims: np.ndarray, rows: Sequence[MapRow], *, absent: str) -> "Figure":
    """The rows of maps, one column a dimension; ``absent`` stands where there is no value."""
    with style():
        figure, panels = axes(len(rows), len(dims), width=1.0 + 1.55 * len(dims), height=1.8 * len(rows))
        for number, (row, line) in enumerate(zip(rows, panels.reshape(len(rows), -1))):
            for at, (d, ax) in enumerate(zip(dims, line)):
                value, half = row.values[:, :, at], row.half[:, :, at]
                heatmap(ax, value, bar=False, vmin=0, vmax=row.most, cmap="Blues")
                for (i, j), one in np.ndenumerate(value):
                    text = "\n±".join(f"{v:.2f}".lstrip("0") for v in (one, half[i, j])) if np.isfinite(one) else absent
                    tint = "white" if one > 0.55 * row.most else "black"
                    ax.text(j, i, text, ha="center", va="center", fontsize=5.5, color=tint, linespacing=1.0)
                ax.set_xticks(range(len(tokens)), [str(T) for T in tokens])
                ax.set_yticks(range(len(inputs)), [str(n) for n in inputs])
                ax.grid(visible=False)
                if number == 0:
                    ax.set_title(f"d = {d}")
                if number == len(rows) - 1:
                    ax.set_xlabel("tokens T")
                if at == 0:
                    ax.set_ylabel(f"{row.words}\ninputs n")
    return figure
