"""The growth of B for several learning rates."""

from typing import TYPE_CHECKING

from ....experiment import Result
from ....plotting import COLOURS, axes, label_ends

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "scan_snap"
TINTS = ("attention_svm", "rate_reduction", "joma", "scan_snap", "crate", "network")


def b_growth(result: Result) -> "Figure":
    """B over the steps, one curve a learning rate; a dot where attention snaps, all at the same height."""
    given = result.params
    figure, panels = axes(1, len(given["ends"]), height=2.8)
    for panel, ax in enumerate(panels):
        a = {key: result.arrays[f"{NAME}/{key}_{panel}"] for key in ("times", "b", "t0", "b_t0")}
        for k, (eta_z, curve) in enumerate(zip(given["eta_z"], a["b"])):
            tint = COLOURS[TINTS[k % len(TINTS)]]
            ax.plot(a["times"], curve, color=tint, label=f"{eta_z:g}")
            if a["t0"][k] <= a["times"][-1]:
                ax.plot(a["t0"][k], a["b_t0"][k], "o", color=tint, markersize=4)
        ax.axhline(a["b_t0"][0], color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)))
        ax.set_ylim(bottom=0)
        ax.set_title(f"B(t), M = {given['vocab_sizes'][panel]}, $\\eta_Y/\\eta_Z$ = {given['ratios'][panel]:g}")
        ax.set_xlabel("step    (at the right: $\\eta_Z$; dots: $t_0$)")
        label_ends(ax)
    return figure
