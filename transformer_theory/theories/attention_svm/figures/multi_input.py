"""The figure of three inputs with one prompt."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption
from ....core.result import Result
from .marks import known, mark

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INPUTS = (COLOURS["rate_reduction"], COLOURS["joma"], COLOURS["crate"])
HOW = {"released": ("normalised steps", COLOURS["attention_svm"]), "plain": ("plain steps", COLOURS["scan_snap"])}
QUANTITIES = {"attention": "attention on the best token", "norm": "norm of p"}
MIDDLE = 2  # the start at zero


def multi_input(result: Result) -> "Figure":
    """Tokens, paths of p and p_mm in the plane; attention on the best token and the norm of p over 200 steps from zero, with the numbers
    known before as crosses."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    beside = known(result)
    figure, (left, middle, right) = axes(1, 3, width=7.0, height=3.0)
    _plane(left, a)
    early = a["steps"] <= 200
    for ax, (name, quantity) in zip((middle, right), QUANTITIES.items()):
        for how, (words, tint) in HOW.items():
            ax.plot(a["steps"][early], a[f"{name}_{how}"][early, MIDDLE], color=tint, label=words)
            starts = f"{quantity}, {words}"
            mark(ax, [(step, y, b) for (what, step), (y, b) in beside.items() if what.startswith(starts) and step and step <= 200])
    middle.set(title="Attention, best token", xlabel="step", ylim=(None, 1.03))
    right.set(title="Norm of p", xlabel="step", ylim=(0, None))
    _legend(figure, middle, right)
    caption(
        figure,
        "Left: three inputs, one colour each, the star is the best token; normalised steps from six starts (black dots); $p_{mm}$ is "
        "the max-margin prompt. Middle and right: start at zero; attention is the mean over the inputs.",
    )
    return figure


def _plane(ax, a: dict[str, np.ndarray]) -> None:
    for keys, tint in zip(a["keys"], INPUTS):
        ax.scatter(*keys[1:].T, s=9, color=tint, zorder=3)
        ax.scatter(*keys[0], s=80, marker="*", color=tint, edgecolors="black", linewidths=0.6, zorder=5)
    for trial in range(a["path_normalised"].shape[1]):
        path = a["path_normalised"][:, trial]
        ax.plot(*path.T, color=HOW["released"][1], linewidth=1.1, zorder=2)
        ax.plot(*path[0], marker="o", markersize=3, color="black", zorder=4)
    end = 9 * a["target"] / np.linalg.norm(a["target"])
    ax.plot([0, end[0]], [0, end[1]], color="black", linestyle=(0, (4, 3)), linewidth=1, zorder=4, label="$p_{mm}$")
    ax.set(title="Paths of p", xlabel="$p_1$", ylabel="$p_2$", xlim=(-1.9, 2.7), ylim=(-2.1, 2.5), aspect="equal")
    ax.legend(loc="upper right", borderaxespad=0.1)


def _legend(figure, *panels) -> None:
    """One entry for each label of these panels."""
    found = {label: handle for ax in panels for handle, label in zip(*ax.get_legend_handles_labels())}
    labels = sorted(found, key=lambda label: found[label].get_marker() != "None")  # curves first
    figure.legend([found[label] for label in labels], labels, loc="outside upper center", ncols=len(labels))
