"""Training on finite sequences against the exact population flow."""

from typing import TYPE_CHECKING

import numpy as np

from ....experiment import Result
from ....plotting import COLOURS, axes, colour

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "scan_snap"


def long_sequences(result: Result) -> "Figure":
    """Logits of the likeliest distinct and of a common token over the steps, a curve a length, and their distance from the flow."""
    lengths, steps, z, limit = (result.arrays[f"{NAME}/{name}"] for name in ("lengths", "steps", "logits", "limit"))
    figure, (paths, gap) = axes(1, 2, height=2.8)
    for shade, length, run in zip(np.linspace(0.35, 1.0, len(lengths)), lengths, z[:, -len(limit) :]):
        for i in (0, 1):
            paths.plot(steps, run[:, i], color=colour(NAME), alpha=shade, label=f"T = {length}" if i == 0 else "_")
    for i in (0, 1):
        paths.plot(steps, limit[:, i], "--", color=COLOURS["raw"], linewidth=1.0, label="exact flow" if i == 0 else "_")
    paths.set_xscale("log")
    paths.set(title="Logit: likeliest distinct (above 0), common", xlabel="step")
    paths.legend(loc="upper left")
    distance = np.abs(z[:, -1] - limit[-1])
    for i, (label, tint) in enumerate((("likeliest distinct", NAME), ("common", "crate"))):
        gap.plot(lengths, distance[:, i], "o-", color=colour(tint), label=label)
    gap.plot(lengths, distance[0, 0] * lengths[0] / lengths, ":", color=COLOURS["null"], label="1 / T")
    gap.set_xscale("log")
    gap.set_yscale("log")
    gap.set(title="Distance from the flow at the end", xlabel="length T of the sequences")
    gap.legend()
    return figure
