"""The decoder's gain under gradient descent against its closed form (Figure 8)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ....core.experiment import setting
from ....core.figure import Axis, Panel, Reading, draw_curves, figure, reading
from ....core.plotting import axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import h, h_discrete

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISTANCE = "largest distance of h to its closed form, in units of 2 eta_Y / M"
STEPPED, CLOSED_FORM = "M h under gradient descent", "M h in closed form"
GAP = "distance of h to its closed form, in units of 2 eta_Y / M"
PLOTTED_STEPS = 40  # approximate number of plotted steps per curve


@style()
def draw(result: Result) -> "Figure":
    """Draws M h over the steps, and below it the distance of h, one column per vocabulary."""
    sizes = result.settings["vocab_sizes"]
    drawn, panels = axes(2, len(sizes), height=4.4)
    for M, above, below in zip(sizes, panels, panels[len(sizes) :]):
        both = (STEPPED, CLOSED_FORM)
        gain = Panel(f"$M h(t)$, $M$ = {M}", both, {"M": M}, ("eta_Y", "quantity"), legend="")
        draw_curves(above, result, gain, x="step")
        title, look = "Distance of $h$, in units of $2\\eta_Y / M$", {"xlabel": "step"}
        draw_curves(below, result, Panel(title, GAP, {"M": M}, "eta_Y", legend="ends", axes=look), x="step")
    caption(drawn, "Above: gradient descent (solid) and closed form (dotted), in the same colours as below.")
    return drawn


@figure(
    "scan_snap.decoder_gain",
    source=Source("tian2023scan", "Fig. 8"),
    over={
        "M": Axis(50, 1000, setting="vocab_sizes", ge=2, help="vocabulary sizes M, one per panel"),
        "eta_Y": Axis(
            0.1, 0.2, 0.5, 1.0, 2.0, 4.0, setting="eta_y", ge=1e-3, le=10, help="rates of the decoder"
        ),
    },
    view=draw,
)
def decoder_gain(
    M: int, eta_Y: float, *, steps: int = setting(80, ge=2, le=10**6, help="number of steps")
) -> Iterator[Reading]:
    """Distance between the recursion of h with finite steps and the root of the continuous equation, over the
    first steps.
    """
    closed = h(torch.arange(steps, dtype=torch.float64), vocab_size=M, eta_y=eta_Y)
    stepped = h_discrete(steps, vocab_size=M, eta_y=eta_Y)
    gap = (stepped - closed).abs()
    note = f"relative distance at the end {float(gap[-1] / closed[-1]):.1e}"
    yield reading(DISTANCE, float(gap.max()) * M / (2 * eta_Y), at_most=1.0, note=note)
    found = {STEPPED: M * stepped, CLOSED_FORM: M * closed, GAP: gap * M / (2 * eta_Y)}
    for quantity, curve in found.items():
        for step in range(0, steps, max(1, steps // PLOTTED_STEPS)):
            yield reading(quantity, float(curve[step]), step=step)
