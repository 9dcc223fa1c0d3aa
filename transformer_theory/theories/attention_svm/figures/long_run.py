"""The figure of a million steps."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption
from ....core.result import Result
from .marks import known, mark

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, RED, AMBER, GREY = (COLOURS[name] for name in ("attention_svm", "scan_snap", "joma", "null"))


def long_run(result: Result) -> "Figure":
    """1 - cosine against the step, median and range over problems, ours and by autograd; the direction error times the step."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    figure, (left, right) = axes(1, 2, width=7.0, height=3.4)
    for name, steps, tint, words in (
        ("error", "steps", BLUE, "exact gradient"),
        ("naive", "naive_steps", RED, "by autograd"),
        ("naive_eps", "naive_steps", AMBER, "by autograd, eps in the norm"),
    ):
        gap = a[name] ** 2 / 2
        left.fill_between(a[steps], gap.min(1), gap.max(1), color=tint, alpha=0.15, linewidth=0)
        left.plot(a[steps], np.median(gap, 1), color=tint, label=words, zorder=4 if name == "error" else 3)
    last, end = a["steps"][-1], np.median(a["error"][-1] ** 2) / 2
    line = np.array([min(300, last / 3), last])
    left.plot(line, 0.25 * end * (last / line) ** 2, color=GREY, linestyle=(0, (4, 3)), linewidth=1, label=r"slope of $1/t^2$")
    beside = known(result)
    quantity = "1 - cosine to the max-margin solution"
    mark(left, [(step or 0, y, basis) for (what, step), (y, basis) in beside.items() if what == quantity])
    left.set(xscale="log", yscale="log", title="1 − cosine to the max-margin solution", xlabel="step t")
    left.legend(loc="lower left")
    for curve in a["error"].T:
        right.plot(a["steps"], a["steps"] * curve, color=BLUE, linewidth=1, alpha=0.8)
    right.set(xscale="log", yscale="log", title="Direction error times t", xlabel="step t")
    said = "Crosses: medians over other draws of the data, by a separate implementation. " if beside else ""
    caption(
        figure,
        f"Left: median of {a['error'].shape[1]} random problems; bands: smallest to largest. {said}"
        "Right: one curve a problem; the error is the distance of W/|W| from the unit "
        "max-margin solution, and a level curve is an error like 1/t.",
    )
    return figure
