"""Training on finite sequences against the exact population flow."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption, shades
from ....core.result import Result
from ..flow import EXACT
from .tints import TOKENS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "scan_snap"


def long_sequences(result: Result) -> "Figure":
    """Logits of the likeliest distinct and of a common token over the steps, a curve a length, and their distance from the flow."""
    lengths, steps, z, limit = (result.arrays[f"{NAME}/{name}"] for name in ("lengths", "steps", "logits", "limit"))
    figure, (paths, gap) = axes(1, 2, height=2.8)
    for tint, length, run in zip(shades(len(lengths)), lengths, z[:, -len(limit) :]):
        for i in (0, 1):
            paths.plot(steps, run[:, i], color=tint, label=f"$T$ = {length}" if i == 0 else "_")
    for i in (0, 1):
        paths.plot(steps, limit[:, i], "--", color=COLOURS["raw"], linewidth=1.0, label=EXACT if i == 0 else "_")
    paths.set_xscale("log")
    paths.set(title="Training against the flow", xlabel="step", ylabel="attention logit z")
    paths.legend(loc="upper left")
    distance = np.abs(z[:, -1] - limit[-1])
    for i, (label, kind) in enumerate((("likeliest distinct token", "distinct"), ("common token", "common"))):
        gap.plot(lengths, distance[:, i], "o-", color=TOKENS[kind], label=label)
    gap.plot(lengths, distance[0, 0] * lengths[0] / lengths, ":", color=COLOURS["null"], label="$1 / T$")
    gap.set_xscale("log")
    gap.set_yscale("log")
    gap.set(title="Distance at the end", xlabel="length $T$ of the sequences", ylabel="of z from the flow")
    gap.legend()
    caption(figure, "Left: the likeliest distinct token, above zero, and a common one, below; dashed: the flow, for sequences without end.")
    return figure
