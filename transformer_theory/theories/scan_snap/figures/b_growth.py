"""The growth of B for several learning rates."""

from typing import TYPE_CHECKING

from ....core.plotting import COLOURS, axes, caption, label_ends, shades
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "scan_snap"


def b_growth(result: Result) -> "Figure":
    """B over the steps, one curve a learning rate; a dot where attention snaps, all at the same height."""
    given = result.params
    figure, panels = axes(1, len(given["ends"]), height=2.8)
    for panel, ax in enumerate(panels):
        a = {key: result.arrays[f"{NAME}/{key}_{panel}"] for key in ("times", "b", "t0", "b_t0")}
        for k, (eta_z, curve, tint) in enumerate(zip(given["eta_z"], a["b"], shades(len(given["eta_z"])))):
            ax.plot(a["times"], curve, color=tint, label=f"{eta_z:g}")
            if a["t0"][k] <= a["times"][-1]:
                ax.plot(a["t0"][k], a["b_t0"][k], "o", color=tint, markersize=4)
        ax.axhline(a["b_t0"][0], color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)))
        ax.set_ylim(bottom=0)
        ax.set_title(f"$B(t)$, $M$ = {given['vocab_sizes'][panel]}, $\\eta_Y/\\eta_Z$ = {given['ratios'][panel]:g}")
        ax.set_xlabel("step")
        label_ends(ax)
    caption(figure, "At the right of each curve: $\\eta_Z$. Dots: $t_0$, when attention snaps; dashed: B at that step, the same for all.")
    return figure
