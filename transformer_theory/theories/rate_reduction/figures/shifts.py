"""Accuracy by cyclic shift."""

from typing import TYPE_CHECKING

from ....experiment import Result
from ....plotting import axes, heatmap, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "rate_reduction"


def shifts(result: Result) -> "Figure":
    """A digit, the accuracy of both networks at each place of the torus, and the rate reduction of all shifts by layer."""
    figure, panels = axes(1, 4, width=8.4, height=2.3)
    heatmap(panels[0], result.arrays[f"{NAME}/example"], "A digit, where learned", cmap="gray_r", bar=False)
    for ax, name in zip(panels[1:], ("pixels", "shift-invariant")):
        values = result.arrays[f"{NAME}/accuracy/{name}"]
        heatmap(ax, values, f"Accuracy, {name}", vmin=0, vmax=1, bar=False)
        for (down, across), value in [((0, 0), values[0, 0]), ((4, 4), values[4, 4])]:
            ax.annotate(f"{100 * value:.0f} %", (across, down), ha="center", va="center", fontsize=5.5, color="k" if value > 0.6 else "w")
        ax.set_xlabel("shift to the right")
        ax.set_ylabel("shift down")
    for ax in panels[:3]:
        ax.set_xticks([])
        ax.set_yticks([])
    values = result.arrays[f"{NAME}/reductions"]
    line(panels[3], range(len(values)), values, name=NAME)
    panels[3].set_title("ΔR of all shifts, nats")
    panels[3].set_xlabel("layer")
    return figure
