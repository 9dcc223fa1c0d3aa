"""The Gaussian toy of ReduNet."""

from typing import TYPE_CHECKING

from ....core.plotting import COLOURS, axes, label_ends, line
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "rate_reduction"


def gaussians(result: Result) -> "Figure":
    """The Gaussian toy: ΔR per layer for each dimension, with its optimum, and the plane before and after."""
    dims = sorted(int(name.rsplit("_", 1)[1]) for name in result.arrays if name.startswith(f"{NAME}/reductions_"))
    figure, panels = axes(1, 2, height=2.8)
    for name, dim in zip(("rate_reduction", "attention_svm", "scan_snap", "joma"), dims):
        values = result.arrays[f"{NAME}/reductions_{dim}"]
        best = next(row["value"] for row in result.select(quantity=f"optimum of the rate reduction, d = {dim}"))
        line(panels[0], range(len(values)), values, name=name, label=f"d = {dim}", null=best)
    panels[0].set_title("Rate reduction, nats (dashed: optimum)")
    panels[0].set_xlabel("layer of ReduNet")
    for key, name in (("before", "null"), ("after", NAME)):
        points = result.arrays[f"{NAME}/plane_{key}"]
        panels[1].plot(points[:, 0], points[:, 1], ".", color=COLOURS[name], label=key, alpha=0.6)
    panels[1].set_aspect("equal")
    panels[1].set_title("Two classes in the plane")
    panels[1].legend(loc="lower left", fontsize=7.5, frameon=False)
    label_ends(panels[0])
    return figure
