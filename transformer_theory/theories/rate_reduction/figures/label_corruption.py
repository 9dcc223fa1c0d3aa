"""MCR² and cross-entropy under label corruption: accuracy on unseen samples, mean over seeds and range."""

from typing import TYPE_CHECKING

from ....core.plotting import axes, colour
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "rate_reduction"
DRAWN = {  # colours and dashes of the methods, in the order of the arrays
    "rate reduction, nearest subspace": (colour(NAME), "-"),
    "cross-entropy, largest logit": (colour("scan_snap"), "-"),
    "cross-entropy, nearest subspace": (colour("scan_snap"), ":"),
    "pixels, nearest subspace": (colour("null"), "--"),
}


def label_corruption(result: Result) -> "Figure":
    """Accuracy by share of relabelled samples, to the end of training and stopped by validation, and by step at the largest share."""
    figure, panels = axes(1, 3, width=8.4, height=3.1)
    ratios = result.arrays[f"{NAME}/ratios"]
    for ax, key, title in zip(panels, ("to_the_end", "stopped"), ("Trained to the end", "Stopped by validation")):
        for (method, (tint, dash)), values in zip(DRAWN.items(), 100 * result.arrays[f"{NAME}/{key}"]):
            ax.plot(ratios, values.mean(1), dash, color=tint, label=method, marker=".")
            ax.fill_between(ratios, values.min(1), values.max(1), color=tint, alpha=0.12, linewidth=0)
        ax.set_title(title)
        ax.set_xlabel("share of labels drawn anew")
    panels[0].set_ylabel("accuracy on unseen samples, %")
    panels[1].sharey(panels[0])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=7.5, frameon=False)
    steps = result.arrays[f"{NAME}/steps"]
    for (tint, dash), values in zip(DRAWN.values(), 100 * result.arrays[f"{NAME}/curves"]):
        panels[2].plot(steps, values.mean(0), dash, color=tint)
        panels[2].fill_between(steps, values.min(0), values.max(0), color=tint, alpha=0.12, linewidth=0)
    panels[2].set_title(f"By step, {ratios[-1]:g} drawn anew")
    panels[2].set_xlabel("step")
    return figure
