"""The figure of joint training."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption
from ....core.result import Result
from .marks import known, mark

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROMPT, HEAD, GREY = COLOURS["attention_svm"], COLOURS["scan_snap"], COLOURS["null"]
DASHED, DOTTED = (0, (4, 3)), (0, (1, 1.5))
CURVES = {
    "attention": ("attention on the selected token, tight", PROMPT, "attention"),
    "probability": ("probability of the right label, tight", HEAD, "right label"),
}


def joint(result: Result) -> "Figure":
    """Paths of p and v when all inputs are support vectors of the head and when one is not, over the directions that the theory says; and
    for the first, attention and label probability over the steps, with the numbers known before as crosses."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    beside = known(result)
    figure, (left, middle, right) = axes(1, 3, width=7.0, height=3.1)
    for ax, case, title in ((left, "tight", "Tight: all support v"), (middle, "not_tight", "Not tight: one does not")):
        _plane(ax, a, case)
        ax.set(title=title, xlabel="first coordinate")
    left.set(ylabel="second coordinate")
    figure.legend(*middle.get_legend_handles_labels(), loc="outside upper center", ncols=5, handlelength=2.0)
    early = a["steps"] <= 100
    for name, (_, tint, words) in CURVES.items():
        right.plot(a["steps"][early], a[f"{name}_tight"][early], color=tint, label=words)
    shown = {quantity for quantity, _, _ in CURVES.values()}
    mark(right, [(step, y, basis) for (what, step), (y, basis) in beside.items() if what in shown and step is not None])
    right.set(title="Tight: probabilities", xlabel="step", ylim=(0, 1.04))
    right.legend(loc="lower right", borderaxespad=0.1, handlelength=1.4)
    caption(
        figure,
        "Left and middle: paths of the prompt p and the head v from the dots, and the directions that the theory says; stars are the "
        "three selected tokens, the grey dot is the other token of every input. Right: means over the inputs.",
    )
    return figure


def _plane(ax, a: dict[str, np.ndarray], case: str) -> None:
    for name, tint in (("p", PROMPT), ("v", HEAD)):
        path = a[f"{name}_{case}"]
        ax.plot(*path.T, color=tint, zorder=3, label=f"path of {name}")
        ax.plot(*path[0], marker="o", markersize=3.5, color=tint, zorder=4)
    for name, tint, dashes, words in (
        ("p_mm", PROMPT, DASHED, "$p_{mm}$"),
        ("p_relax", "black", DOTTED, "$p_{relax}$"),
        ("v_mm", HEAD, DASHED, "$v_{mm}$"),
    ):
        if name == "p_relax" and case == "tight":
            continue
        end = 99 * a[f"{name}_{case}"] / np.linalg.norm(a[f"{name}_{case}"])
        ax.plot([0, end[0]], [0, end[1]], color=tint, linestyle=dashes, linewidth=1.2, zorder=2, label=words)
    for key in a[f"tokens_{case}"]:
        ax.scatter(*key, s=60, marker="*", color=COLOURS["joma"], edgecolors="black", linewidths=0.6, zorder=5)
    ax.scatter(0, 0, s=25, color=GREY, edgecolors="black", linewidths=0.6, zorder=5)
    ax.set(xlim=(-1.7, 4.4), ylim=(-2.4, 3.7), aspect="equal")
