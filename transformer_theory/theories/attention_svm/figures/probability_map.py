"""The figure of the probability map."""

from typing import TYPE_CHECKING

import numpy as np

from ....experiment import Result
from ....plotting import axes, heatmap, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = (("feasible", "best tokens feasible"), ("best", "best tokens selected"), ("locally_optimal", "selection locally optimal"))


def probability_map(result: Result) -> "Figure":
    """Inputs against tokens, one column a dimension: shares, below them half the width of their 95 % bands."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    inputs, tokens, dims = a["inputs"], a["tokens"], a["dims"]
    with style():
        figure, panels = axes(3, len(dims), width=1.0 + 1.55 * len(dims), height=5.4)
        for (name, words), row in zip(ROWS, panels.reshape(3, -1)):
            for at, (d, ax) in enumerate(zip(dims, row)):
                share = a[name][:, :, at]
                half = (a[f"{name}_high"][:, :, at] - a[f"{name}_low"][:, :, at]) / 2
                heatmap(ax, share, bar=False, vmin=0, vmax=1, cmap="Blues")
                for (i, j), value in np.ndenumerate(share):
                    tint = "white" if value > 0.55 else "black"
                    text = f"{value:.2f}\n±{half[i, j]:.2f}".replace("0.", ".") if np.isfinite(value) else "none\nsettled"
                    ax.text(j, i, text, ha="center", va="center", fontsize=5.5, color=tint, linespacing=1.0)
                ax.set_xticks(range(len(tokens)), [str(T) for T in tokens])
                ax.set_yticks(range(len(inputs)), [str(n) for n in inputs])
                ax.grid(visible=False)
                if name == ROWS[0][0]:
                    ax.set_title(f"d = {d}")
                if name == ROWS[-1][0]:
                    ax.set_xlabel("tokens T")
                if at == 0:
                    ax.set_ylabel(f"{words}\ninputs n")
    return figure
