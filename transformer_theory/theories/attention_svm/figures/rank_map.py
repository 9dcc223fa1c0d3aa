"""The figure of the rank map."""

from typing import TYPE_CHECKING

import numpy as np

from ....experiment import Result
from ....plotting import axes, heatmap, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = (("feasible", "feasible share"), ("frobenius", "rank, Frobenius"), ("nuclear", "rank, nuclear"))


def rank_map(result: Result) -> "Figure":
    """Inputs against tokens, one column a dimension: feasible share and mean ranks, below them half the width of their 95 % intervals."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    inputs, tokens, dims = a["inputs"], a["tokens"], a["dims"]
    a["feasible_half"] = (a["feasible_high"] - a["feasible_low"]) / 2
    with style():
        figure, panels = axes(3, len(dims), width=1.0 + 1.55 * len(dims), height=5.4)
        for (name, words), row in zip(ROWS, panels.reshape(3, -1)):
            most = 1.0 if name == "feasible" else float(inputs.max())
            for at, (d, ax) in enumerate(zip(dims, row)):
                value, half = a[name][:, :, at], a[f"{name}_half"][:, :, at]
                heatmap(ax, value, bar=False, vmin=0, vmax=most, cmap="Blues")
                for (i, j), one in np.ndenumerate(value):
                    text = "\n±".join(f"{v:.2f}".lstrip("0") for v in (one, half[i, j])) if np.isfinite(one) else "none"
                    tint = "white" if one > 0.55 * most else "black"
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
