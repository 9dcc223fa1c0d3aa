"""The figure of three inputs with one prompt."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ....experiment import Result
from ....plotting import COLOURS, axes, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INPUTS = (COLOURS["rate_reduction"], COLOURS["joma"], COLOURS["crate"])
HOW = {"released": COLOURS["attention_svm"], "plain": COLOURS["scan_snap"]}
MIDDLE = 2  # the start at zero


def multi_input(result: Result, published: Mapping[tuple[str, str, int], float]) -> "Figure":
    """Tokens, paths of p and p_mm in the plane; attention on the best token and the norm of p over 200 steps, with the published
    numbers of the start at zero as crosses."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    with style():
        figure, (left, middle, right) = axes(1, 3, width=7.6, height=2.8)
        _plane(left, a)
        early = a["steps"] <= 200
        for ax, name in ((middle, "attention"), (right, "norm")):
            for (how, tint), words in zip(HOW.items(), ("normalised steps", "plain steps")):
                ax.plot(a["steps"][early], a[f"{name}_{how}"][early, MIDDLE], color=tint, label=words)
            _published(ax, name, published, a)
        middle.set(title="Attention on the best token", xlabel="step", ylim=(None, 1.03))
        right.set(title="Norm of p", xlabel="step", ylim=(0, 31))
        right.plot([], [], linestyle="", marker="x", color="black", label="paper's run (paper / ours)")
        right.legend(loc="upper left", handlelength=1.4, borderaxespad=0.1)
    return figure


def _plane(ax, a: dict[str, np.ndarray]) -> None:
    for keys, tint in zip(a["keys"], INPUTS):
        ax.scatter(*keys[1:].T, s=9, color=tint, zorder=3)
        ax.scatter(*keys[0], s=80, marker="*", color=tint, edgecolors="black", linewidths=0.6, zorder=5)
    for trial in range(a["path_normalised"].shape[1]):
        path = a["path_normalised"][:, trial]
        ax.plot(*path.T, color=HOW["released"], linewidth=1.1, zorder=2)
        ax.plot(*path[0], marker="o", markersize=3, color="black", zorder=4)
    end = 9 * a["target"] / np.linalg.norm(a["target"])
    ax.plot([0, end[0]], [0, end[1]], color="black", linestyle=(0, (4, 3)), linewidth=1, zorder=4, label="$p_{mm}$")
    ax.set(title="Paths of p, normalised steps", xlabel="$p_1$", ylabel="$p_2$", xlim=(-1.9, 2.7), ylim=(-1.6, 2.2), aspect="equal")
    ax.legend(loc="upper right", borderaxespad=0.1)


def _published(ax, name: str, published: Mapping[tuple[str, str, int], float], a: dict[str, np.ndarray]) -> None:
    steps = a["steps"].tolist()
    for (what, how, step), value in published.items():
        if what != name or step not in steps or step > 200:
            continue
        ax.plot(step, value, marker="x", color="black", markersize=5, zorder=6)
        ours = a[f"{name}_{how}"][steps.index(step), MIDDLE]
        digits, first = (2 if name == "norm" else 4), step < 100
        ax.annotate(
            f"{value:.{digits}f} / {ours:.{digits}f}",
            (step, value),
            textcoords="offset points",
            xytext=(5 if first else -5, -10 if first else 4 if name == "norm" and how == "released" else -13),
            ha="left" if first else "right",
            fontsize=6.5,
            color=HOW[how],
        )
