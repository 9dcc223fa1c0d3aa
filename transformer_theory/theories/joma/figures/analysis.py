"""What JoMA's invariants say about data: predicted against true change of the logits, and the error over training."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption, line, text_figure
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "joma"


def draw(result: Result) -> "Figure":
    """Softmax attention: change of each logit against its prediction, relative error over time; exponential attention: both sides."""
    if f"{NAME}/true" not in result.arrays:
        reasons = [str(row.get("note", "")) for row in result.select(theory=NAME) if row["value"] is None]
        return text_figure("JoMA: " + (reasons[0] if reasons and reasons[0] else "no data were measured"))
    figure, (left, middle, right) = axes(1, 3, height=2.9)
    true, fixed, moving = (result.arrays[f"{NAME}/{name}"] for name in ("true", "fixed", "moving"))
    for run in range(1, true.shape[1]):
        left.plot(fixed[-1, run], true[-1, 0], ".", color=COLOURS["null"], markersize=3, alpha=0.6, zorder=1)
    left.plot(fixed[-1, 0], true[-1, 0], ".", color=COLOURS[NAME], zorder=2)
    diagonal(left, fixed[-1], true[-1, 0])
    left.set(title="Softmax attention", xlabel="change of z, predicted", ylabel="change of z, measured")
    times = result.arrays[f"{NAME}/times"][1:]
    for values, name, label in ((fixed, NAME, "attention of the start"), (moving, "raw", "of each moment")):
        gap, size = (np.linalg.norm(x - x.mean(-1, keepdims=True), axis=-1) for x in (values[1:, 0] - true[1:, 0], true[1:, 0]))
        line(middle, times, gap / np.maximum(size, 1e-300), name=name, label=label)
    middle.set(title="Relative error", xlabel="time of the flow", ylim=(0, None))
    middle.legend(loc="lower right", fontsize=7, frameon=False)
    for key, name, label in (("exponential_several", "null", "several queries"), ("exponential", NAME, "one query")):
        if f"{NAME}/{key}" in result.arrays:
            predicted, measured = result.arrays[f"{NAME}/{key}"]
            right.plot(predicted, measured, ".", color=COLOURS[name], label=label)
            diagonal(right, predicted, measured)
    right.set(title="Exponential form", xlabel="change of Σv²/2", ylabel="change of z")
    right.legend(loc="upper left", fontsize=7, frameon=False)
    caption(
        figure,
        "A point is a token of the context. Grey on the left: predicted by blocks that learnt shuffled next tokens. Dashed: equality.",
    )
    return figure


def diagonal(ax: "Axes", *values: np.ndarray) -> None:
    """Equality of both sides over the range of the values."""
    ends = [min(float(v.min()) for v in values), max(float(v.max()) for v in values)]
    ax.plot(ends, ends, color=COLOURS["raw"], linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
