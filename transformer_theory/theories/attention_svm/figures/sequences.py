"""The figure of descent with many queries an input."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS = {
    "all queries, allowed tokens": ("its own constraints", COLOURS["attention_svm"], "-"),
    "all queries, all tokens": ("mask ignored", COLOURS["scan_snap"], "--"),
    "last query only": ("last query only", COLOURS["null"], ":"),
}


def sequences(result: Result) -> "Figure":
    """Cosine of W to the max-margin solutions, median and range over trials, and the distance to the predicted one on a logarithmic
    scale."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    kinds = {"causal": "Causal", "sequence to sequence": "Sequence to sequence"}
    figure, panels = axes(1, 3, width=7.0, height=2.9)
    for ax, (kind, title) in zip(panels, kinds.items()):
        for target, (label, tint, dashes) in LOOKS.items():
            if (curve := a.get(f"{kind}/{target}")) is not None:
                ax.fill_between(a[f"{kind}/steps"], curve.min(0), curve.max(0), color=tint, alpha=0.14, linewidth=0)
                ax.plot(a[f"{kind}/steps"], np.median(curve, 0), color=tint, linestyle=dashes, label=label)
        ax.axhline(1, color="black", linewidth=0.7)
        ax.set(title=title, xlabel="step", ylabel="cosine", xscale="log", ylim=(0, 1.04))
        if ax.lines[:-1]:  # none if every trial was infeasible
            ax.legend(loc="lower right", handlelength=1.8)
    last = panels[-1]
    for kind, tint, dashes in zip(kinds, (COLOURS["attention_svm"], COLOURS["crate"]), ("-", "--")):
        if (curve := a.get(f"{kind}/all queries, allowed tokens")) is not None:
            last.plot(a[f"{kind}/steps"], np.median(1 - curve, 0), color=tint, linestyle=dashes, label=kind)
    last.set(title="1 − cosine, median", xlabel="step", xscale="log", yscale="log")
    if last.lines:
        last.legend(loc="lower left", handlelength=1.8)
    caption(
        figure,
        f"Lines: median over the feasible ones of {result.params['trials']} random problems; bands: smallest to largest. Cosine of W "
        "to the max-margin solution of its own constraints, of those that ignore the mask, and of those of the last query only. "
        "Right: to its own.",
    )
    return figure
