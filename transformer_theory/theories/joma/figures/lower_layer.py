"""The lower layer over time: its stable rank, and its columns at three moments."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption, heatmap, label_ends, line, text_figure
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "joma"


def lower_layer(result: Result) -> "Figure":
    """Stable rank over time (medians and ranges of the draws; linear units: the first draw), and V of the first draw at three times."""
    if f"{NAME}/times" not in result.arrays:
        return text_figure("joma.lower_layer: nothing was measured")
    figure, (curve, *panels) = axes(1, 4, height=2.6, width=9.5)
    times = result.arrays[f"{NAME}/times"]
    for how, name in (("nonlinear", NAME), ("no token salient", "null")):
        ranks = result.arrays[f"{NAME}/rank_{how}"]
        curve.fill_between(times, ranks.min(0), ranks.max(0), color=COLOURS[name], alpha=0.15, linewidth=0)
        line(curve, times, np.median(ranks, axis=0), name=name, label=how)
    line(curve, result.arrays[f"{NAME}/blow_up"], result.arrays[f"{NAME}/rank_linear"][0], name="raw", label="linear")
    shown, layers = result.arrays[f"{NAME}/shown"], result.arrays[f"{NAME}/layers"]
    curve.set(
        title="Stable rank", xlabel="time t", xscale="log", xlim=_moving(times, result.arrays[f"{NAME}/rank_nonlinear"]), ylim=(0, None)
    )
    for time, layer, panel in zip(shown, layers, panels):
        heatmap(panel, layer / np.abs(layer).max(), vmin=-1, vmax=1, cmap="RdBu_r", bar=False)
        panel.set(title=f"V at t = {time:.2g}", xlabel="token", ylabel="unit")
    label_ends(curve)
    caption(figure, "Bands: all draws. Linear units: the first draw, up to its blow-up. Colour: V over its largest entry, first draw.")
    return figure


def _moving(times: np.ndarray, ranks: np.ndarray) -> tuple[float, float]:
    """The times at which the ranks are on their way, with a decade before and after."""
    moved = np.flatnonzero((np.abs(ranks / ranks[:, :1] - 1) > 0.01).any(0))
    first, last = (moved[0], moved[-1]) if len(moved) else (0, len(times) - 1)
    return max(times[0], times[first] / 10), min(times[-1], times[last] * 10)
