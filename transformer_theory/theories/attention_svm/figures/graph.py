"""The figure of next-token prediction against the token-priority graphs."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption
from ....core.result import Result
from .marks import known, mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = COLOURS["attention_svm"], COLOURS["scan_snap"], COLOURS["null"]


def graph(result: Result) -> "Figure":
    """Cosine to the Graph-SVM direction for acyclic and cyclic data, and the distance of the finite part from its prediction; medians and
    ranges over trials, crosses for the published run."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    beside, rate = known(result), float(result.params["rate"])
    figure, (left, middle, right) = axes(1, 3, width=7.0, height=3.1)
    _band(left, a["acyclic/steps"], a["acyclic/cosine"], BLUE, "-", "random data")
    _band(middle, a["cyclic/steps"], a["cyclic/cosine"], BLUE, "-", "random data")
    _band(middle, a["cyclic/steps"], a["cyclic/free"], GREY, ":", "same, no equations")
    _band(middle, a["stored/steps"], a["stored/cosine"], ORANGE, "--", "stored sequences")
    _band(right, a["cyclic/steps"], a["cyclic/finite"], BLUE, "-", "random data")
    _band(right, a["stored/steps"], a["stored/finite"], ORANGE, "--", "stored sequences")
    right.axhline(rate / 2, color="black", linewidth=0.8, linestyle=(0, (4, 3)), label="half a step")
    for ax, quantity in ((middle, "stored: cosine to the Graph-SVM"), (right, "stored: distance of the part")):
        mark(ax, [(step or 0, y, basis) for (what, step), (y, basis) in beside.items() if what.startswith(quantity)])
    for ax, title in ((left, "Acyclic: cosine"), (middle, "Cyclic: cosine")):
        ax.axhline(1, color="black", linewidth=0.7)
        ax.set(title=title, xlabel="step", xscale="log", ylim=(-1.0, 1.05))
    lowest = min(float(a[f"{name}/finite"].min(initial=rate)) for name in ("cyclic", "stored"))
    room = 10 ** np.floor(np.log10(max(lowest, 1e-12)) - 1)  # the legend stands below the curves
    right.set(title="Finite part: distance", xlabel="step", xscale="log", yscale="log", ylim=(room, 3))
    for ax in (left, middle, right):
        ax.legend(loc="lower right" if ax is left else "lower left", handlelength=1.8, borderaxespad=0.1)
    said = "The released code's number is of one run." if beside else ""
    caption(
        figure,
        f"Lines: median over {len(a['acyclic/cosine'])} random embeddings and starts; bands: smallest to largest. Cosines are to the "
        "Graph-SVM direction (no equations: to the direction without its equations). " + said,
    )
    return figure


def _band(ax: "Axes", steps: np.ndarray, curves: np.ndarray, tint: str, dashes: str, label: str) -> None:
    ax.fill_between(steps, curves.min(0), curves.max(0), color=tint, alpha=0.13, linewidth=0)
    ax.plot(steps, np.median(curves, 0), color=tint, linestyle=dashes, label=label)
