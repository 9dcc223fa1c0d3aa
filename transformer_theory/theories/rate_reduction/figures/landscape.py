"""Where ascents of the rate reduction end, and its critical points."""

from typing import TYPE_CHECKING

from ....core.plotting import COLOURS, axes, line, null_band
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "rate_reduction"
KINDS = (
    ("end of an ascent", "o", "rate_reduction"),
    ("zero of the gradient, searched", "x", "attention_svm"),
    ("constructed", "s", "null"),
)


def landscape(result: Result) -> "Figure":
    """Left: the rate reduction that each start reaches, sorted, beside the optimum. Right: critical points of the regularised problem by
    value and largest eigenvalue of the Hessian; at the line lie maximisers, above it saddles with a way up, below it zero."""
    figure, (left, right) = axes(1, 2, width=7.4, height=2.8)
    values = result.arrays[f"{NAME}/reached"]
    line(left, range(1, len(values) + 1), values, name=NAME, marker=".", linestyle="none")
    null_band(left, float(result.arrays[f"{NAME}/closed_form"]), label="optimum, closed form")
    left.set_xlabel("start, sorted by where it ends")
    left.set_ylabel("ΔR reached, nats")
    left.set_title("Ascents under the constraint")
    left.locator_params(axis="x", integer=True)
    left.margins(y=0.15)
    points = result.arrays[f"{NAME}/critical"]
    right.axhline(0, color=COLOURS["null"], linewidth=0.9)
    for kind, (label, marker, tint) in enumerate(KINDS):
        own = points[points[:, 0] == kind]
        hollow = {"facecolors": "none", "edgecolors": COLOURS[tint]} if marker == "s" else {"color": COLOURS[tint]}
        right.scatter(own[:, 1], own[:, 3], s=22, marker=marker, linewidths=1.0, label=label, **hollow)
    right.set_title("Critical points, with a penalty")
    right.set_ylabel("largest Hessian eigenvalue / λ")
    right.set_xlabel("ΔR - λ‖X‖²/2, nats")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=3, fontsize=7, frameon=False)
    return figure
