"""The figure of two losses."""

from typing import TYPE_CHECKING

import numpy as np

from ....experiment import Result
from ....plotting import COLOURS, axes, label_ends, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSSES = {"linear": COLOURS["rate_reduction"], "logistic": COLOURS["attention_svm"]}
SHOWN = (1.0, 2.0, 5.0, 10.0)  # scores C whose paths are drawn


def loss_comparison(result: Result) -> "Figure":
    """Paths of p for some scores C, one panel a loss, and the second coordinate of p against C: at the end, and in closed form."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    with style():
        figure, panels = axes(1, 3, width=7.6, height=2.7)
        for ax, (name, tint), words in zip(panels, LOSSES.items(), ("Loss $-x$", r"Loss $\log(1 + e^{-x})$")):
            for shade, C in zip(np.linspace(0.35, 1, len(SHOWN)), SHOWN):
                at = int(np.flatnonzero(a["scores"] == C)[0])
                path, end = a[f"path_{name}"][:, at], a[f"limit_{name}"][at]
                ax.plot(*path.T, color=tint, alpha=shade, label=f"C = {C:g}\n{path[-1, 1]:.3f}")
                ax.axhline(end, color=tint, alpha=shade, linewidth=0.9, linestyle=(0, (4, 3)))
            ax.set(title=words, xlabel="$p_1$", xlim=(0, 12))
            label_ends(ax)
        panels[0].set(ylabel="$p_2$ (dashed: limit)")
        last = panels[2]
        for (name, tint), words in zip(LOSSES.items(), ("$-x$", "logistic")):
            last.plot(a["scores"], a[f"limit_{name}"], color=tint, linewidth=1.1, label=f"{words}, closed form")
            last.plot(a["scores"], a[f"path_{name}"][-1, :, 1], color=tint, linestyle="", marker="o", markersize=3.5)
        last.plot([], [], linestyle="", marker="o", markersize=3.5, color="black", label="ours at the end")
        last.set(title="Limit of $p_2$ against C", xlabel="C", xscale="log", yscale="symlog", ylim=(-200, 8), xlim=(0.8, 130))
        last.legend(loc="lower left", borderaxespad=0.1, handlelength=1.0, fontsize=6.5)
    return figure
