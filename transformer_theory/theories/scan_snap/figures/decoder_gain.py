"""The decoder's gain and its closed form."""

from typing import TYPE_CHECKING

from ....core.plotting import axes, caption, label_ends, shades
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "scan_snap"


def decoder_gain(result: Result) -> "Figure":
    """M h over the steps: curves in closed form, every fourth step of gradient descent as a dot; below them the distance of h."""
    given = result.params
    figure, panels = axes(2, len(given["vocab_sizes"]), height=4.4)
    above, below = panels[: len(panels) // 2], panels[len(panels) // 2 :]
    for panel, M in enumerate(given["vocab_sizes"]):
        closed, stepped = (result.arrays[f"{NAME}/{key}_{panel}"] for key in ("closed", "stepped"))
        steps = range(closed.shape[1])
        every = max(1, closed.shape[1] // 20)
        for k, (eta_y, tint) in enumerate(zip(given["eta_y"], shades(len(given["eta_y"])))):
            above[panel].plot(steps, M * closed[k], color=tint, linewidth=1.2, label=f"{eta_y:g}")
            above[panel].plot(steps[::every], M * stepped[k][::every], ".", color=tint, markersize=4)
            below[panel].plot(steps, abs(stepped[k] - closed[k]) * M / (2 * eta_y), color=tint, linewidth=1.2, label=f"{eta_y:g}")
        above[panel].set_title(f"$M h(t)$, $M$ = {M}")
        below[panel].set_title("Distance of $h$, in units of $2\\eta_Y / M$")
        below[panel].set_xlabel("step")
        label_ends(above[panel])
        label_ends(below[panel])
    caption(figure, "At the right of each curve: $\\eta_Y$. Lines: closed form; dots: every few steps of gradient descent.")
    return figure
