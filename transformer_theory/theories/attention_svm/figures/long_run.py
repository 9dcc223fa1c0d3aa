"""The figure of a million steps."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ....experiment import Result
from ....plotting import COLOURS, axes, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, RED, AMBER, GREY = (COLOURS[name] for name in ("attention_svm", "scan_snap", "joma", "null"))


def long_run(result: Result, known: Mapping[int, float]) -> "Figure":
    """1 - cosine against the step, median and range over problems, ours and by autograd; the direction error times the step."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    with style():
        figure, (left, right) = axes(1, 2, height=3.0)
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
        shown = {step: value for step, value in known.items() if step <= last}
        if shown:
            left.plot(list(shown), list(shown.values()), "x", color="black", markersize=5, zorder=5, label="another program")
        left.set(xscale="log", yscale="log", title="1 - cosine to the max-margin solution", xlabel="step t")
        left.legend(loc="lower left")
        for curve in a["error"].T:
            right.plot(a["steps"], a["steps"] * curve, color=BLUE, linewidth=1, alpha=0.8)
        right.set(xscale="log", yscale="log", title="Direction error times t, each problem", xlabel="step t")
    return figure
