"""The figure of next-token prediction against the token-priority graphs."""

from typing import TYPE_CHECKING

import numpy as np

from ....experiment import Result
from ....plotting import COLOURS, axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = COLOURS["attention_svm"], COLOURS["scan_snap"], COLOURS["null"]


def graph(result: Result) -> "Figure":
    """Cosine to the Graph-SVM direction for acyclic and cyclic data, and the distance of the finite part from its prediction; medians and
    ranges over trials, crosses for the published run."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    published = {row["quantity"]: row["predicted"] for row in result.table if "published" in row.get("note", "") and "predicted" in row}
    rate = float(result.params.get("rate", 0.01))
    with style():
        figure, (left, middle, right) = axes(1, 3, width=7.6, height=2.6)
        _band(left, a["acyclic/steps"], a["acyclic/cosine"], BLUE, "-", "Graph-SVM")
        _band(middle, a["cyclic/steps"], a["cyclic/cosine"], BLUE, "-", "Graph-SVM")
        _band(middle, a["cyclic/steps"], a["cyclic/free"], GREY, ":", "without equations")
        _band(middle, a["stored/steps"], a["stored/cosine"], ORANGE, "--", "stored sequences")
        _band(right, a["cyclic/steps"], a["cyclic/finite"], BLUE, "-", "cyclic")
        _band(right, a["stored/steps"], a["stored/finite"], ORANGE, "--", "stored sequences")
        right.axhline(rate / 2, color="black", linewidth=0.8, linestyle=(0, (4, 3)), label="half a step")
        for ax, quantity in ((middle, "stored: cosine to the Graph-SVM"), (right, "stored: distance of the part")):
            for name in (name for name in published if name.startswith(quantity)):
                ax.plot(1000, published[name], "x", color="black", markersize=6, markeredgewidth=1.3, zorder=5, label="paper (one run)")
        for ax, title in ((left, "Acyclic: cosine"), (middle, "Cyclic: cosine")):
            ax.axhline(1, color="black", linewidth=0.7)
            ax.set(title=title, xlabel="step", xscale="log", ylim=(-0.75, 1.05))
            ax.legend(loc="lower right", handlelength=1.8)
        right.set(title="Finite part: distance", xlabel="step", xscale="log", yscale="log", ylim=(1e-6, 3))
        right.legend(loc="lower left", handlelength=1.8)
    return figure


def _band(ax: "Axes", steps: np.ndarray, curves: np.ndarray, tint: str, dashes: str, label: str) -> None:
    ax.fill_between(steps, curves.min(0), curves.max(0), color=tint, alpha=0.13, linewidth=0)
    ax.plot(steps, np.median(curves, 0), color=tint, linestyle=dashes, label=label)
