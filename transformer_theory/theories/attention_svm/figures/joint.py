"""The figure of joint training."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ....experiment import Result
from ....plotting import COLOURS, axes, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROMPT, HEAD, GREY = COLOURS["attention_svm"], COLOURS["scan_snap"], COLOURS["null"]
DASHED, DOTTED = (0, (4, 3)), (0, (1, 1.5))


def joint(result: Result, attention: Mapping[int, float], probability: Mapping[int, float]) -> "Figure":
    """Paths of p and v when all inputs are support vectors of the head and when one is not, over the directions that the theory says; and
    for the first, attention and label probability over the steps, with the published numbers as crosses."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    with style():
        figure, (left, middle, right) = axes(1, 3, width=7.6, height=3.0)
        for ax, case, title in ((left, "tight", "All inputs support the head"), (middle, "not_tight", "One input does not")):
            _plane(ax, a, case)
            ax.set(title=title, xlabel="first coordinate")
        left.set(ylabel="second coordinate")
        figure.legend(*middle.get_legend_handles_labels(), loc="outside lower left", ncols=5, handlelength=2.0)
        early = a["steps"] <= 100
        for name, known, tint, words in (
            ("attention", attention, PROMPT, "attention"),
            ("probability", probability, HEAD, "label probability"),
        ):
            curve = a[f"{name}_tight"]
            right.plot(a["steps"][early], curve[early], color=tint, label=words)
            steps = [step for step in known if step in a["steps"].tolist()]
            right.plot(steps, [known[s] for s in steps], linestyle="", marker="x", color="black", markersize=4.5, zorder=5)
            for step in steps:
                ours = curve[a["steps"].tolist().index(step)]
                if step in (10, 30):
                    text, low = f"{known[step]:.3f}/{ours:.3f}", name == "attention"
                    offset, side = ((5, -8), "left") if low else ((-3, 4), "right")
                    right.annotate(text, (step, known[step]), textcoords="offset points", xytext=offset, ha=side, color=tint, fontsize=6.5)
        right.plot([], [], linestyle="", marker="x", color="black", label="paper's run (paper/ours)")
        right.set(title="Attention, labels (left case)", xlabel="step", ylim=(0.06, 1.04))
        right.legend(loc="lower right", fontsize=6.8, borderaxespad=0.1, handlelength=1.4)
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
    ax.set(xlim=(-1.6, 4.4), ylim=(-2.2, 3.8), aspect="equal")
