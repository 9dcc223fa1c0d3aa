"""The small synthetic training."""

from typing import TYPE_CHECKING

from ....experiment import Result
from ....plotting import COLOURS, axes, heatmap, label_ends, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "scan_snap"


def syn_small(result: Result) -> "Figure":
    """Attention of both classes over training as pictures, and the loss."""
    figure, (loss, first, second) = axes(1, 3, height=2.6)
    losses = result.arrays[f"{NAME}/loss"]
    line(loss, range(len(losses)), losses.mean(1), name=NAME, label="loss")
    loss.fill_between(range(len(losses)), losses.min(1), losses.max(1), color=COLOURS[NAME], alpha=0.2, linewidth=0)
    loss.set_yscale("log")
    loss.set_title("Loss, nats")
    loss.set_xlabel("step")
    label_ends(loss)
    steps = result.arrays[f"{NAME}/steps"]
    for n, ax in enumerate((first, second)):
        c = result.arrays[f"{NAME}/attended"][:, n]
        image = heatmap(ax, c.T, "attention", vmin=0)
        image.axes.set_aspect("auto")
        ax.set_xticks(range(len(steps)), [str(step) for step in steps], fontsize=6)
        ax.set_title(f"Attention, class {n}")
        ax.set_xlabel("step")
        ax.set_ylabel("token: common, then distinct")
    return figure
