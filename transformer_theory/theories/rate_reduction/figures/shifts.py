"""Accuracy by cyclic shift."""

from typing import TYPE_CHECKING

from ....core.plotting import axes, heatmap, line
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "rate_reduction"
NAMES = ("pixels", "shift-invariant")


def shifts(result: Result) -> "Figure":
    """A digit, the accuracy of both networks at each place of the torus, and the rate reduction of all shifts by layer."""
    figure, panels = axes(1, 4, width=8.4, height=2.3)
    heatmap(panels[0], result.arrays[f"{NAME}/example"], "A digit, as learned", cmap="gray_r", bar=False)
    for ax, name in zip(panels[1:], NAMES):
        values = result.arrays[f"{NAME}/accuracy/{name}"]
        heatmap(ax, values, "accuracy, share right" if name == NAMES[-1] else "", vmin=0, vmax=1, bar=name == NAMES[-1])
        ax.set_title(f"Accuracy, {name}")
        for (down, across), value in [((0, 0), values[0, 0]), ((4, 4), values[4, 4])]:
            ax.annotate(f"{100 * value:.0f} %", (across, down), ha="center", va="center", fontsize=5.5, color="k" if value > 0.6 else "w")
        ax.set_xlabel("shift to the right")
        ax.set_ylabel("shift down")
        ax.set_xticks(range(0, values.shape[1], 2))
        ax.set_yticks(range(0, values.shape[0], 2))
    panels[0].set_xticks([])
    panels[0].set_yticks([])
    values = result.arrays[f"{NAME}/reductions"]
    line(panels[3], range(len(values)), values, name=NAME)
    panels[3].set_title("Rate reduction")
    panels[3].set_ylabel("ΔR of all shifts, nats")
    panels[3].set_xlabel("layer")
    return figure
