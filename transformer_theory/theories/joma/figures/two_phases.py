"""Sparse first, dense later: components, entropy and the ratios of what is left to learn."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption, label_ends, line, text_figure
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "joma"


def two_phases(result: Result) -> "Figure":
    """Components over the steps, entropy of attention with its floor beside the linear MLP's, ratios of ln(1/δ) with their limits."""
    if f"{NAME}/mu" not in result.arrays:
        return text_figure("joma.two_phases: nothing was measured")
    figure, (left, middle, right) = axes(1, 3, height=2.9, width=8.5)
    mu, lower = result.arrays[f"{NAME}/mu"], result.arrays[f"{NAME}/lower_nonlinear"]
    steps = np.arange(1, len(lower) + 1)
    for token in range(len(mu)):
        shade = 0.25 + 0.75 * token / max(1, len(mu) - 1)
        line(left, steps, lower[:, token] / mu[token], name=NAME, alpha=shade, linewidth=1.1)
    left.set(title="Components", xlabel="step", ylabel="$v / \\mu$ (dark: large $\\mu$)", xscale="log")
    for key, name, label in (("entropy_nonlinear", NAME, "nonlinear"), ("entropy_linear", "raw", "linear")):
        line(middle, steps, result.arrays[f"{NAME}/{key}"], name=name, label=label)
    line(middle, steps, result.arrays[f"{NAME}/floor"], name="null", label="floor", linewidth=1.0)
    middle.set(title="Entropy of attention", xlabel="step", ylabel="nats", xscale="log")
    label_ends(middle)
    times, logs, limits = (result.arrays[f"{NAME}/{name}"] for name in ("times", "logs", "ratios"))
    for token in range(logs.shape[1] - 1):
        line(right, times, logs[:, token] / logs[:, -1], name=NAME, alpha=1 - 0.3 * token)
        right.axhline(limits[token], color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)))
    right.set(title="Ratios of $\\ln(1/\\delta)$", xlabel="time t", xscale="log", yscale="log")
    caption(
        figure,
        "Floor: the least entropy that scores of the nonlinear run's norm allow. Right: $\\mu$ = 3, 2, 1 over $\\mu$ = 1/2; dashed: their "
        "limits, $\\exp((\\mu^2-1/4)/2)$.",
    )
    return figure
