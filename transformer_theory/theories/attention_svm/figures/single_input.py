"""The figure of one input: paths of the prompt in the plane."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TINTS = (COLOURS["attention_svm"], COLOURS["scan_snap"])  # token 0, the best, and token 1
GREY = COLOURS["null"]
REACH = 3.2


def single_input(result: Result) -> "Figure":
    """As published, tokens, paths of p and directions of p_mm, when all starts lead to the best token and when some do not; beside them
    the distance of p from the direction of the p_mm of the token it selects."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    figure, (left, middle, right) = axes(1, 3, width=7.0, height=3.2)
    for ax, case in ((left, "global"), (middle, "local")):
        _plane(ax, a, case)
    for case, dashes in (("global", "-"), ("local", (0, (4, 2)))):
        _distances(right, a, case, dashes)
    right.set(title="1 − cosine to $p_{mm}$", xlabel="step", xscale="log", yscale="log", ylim=(1e-6, 3))
    _legend(figure)
    caption(
        figure,
        "Left and middle: paths of the prompt p from six starts (black dots); star: the best token, 0; orange: token 1; grey: token 2. "
        "$p_{mm}$ is the max-margin prompt of the token. Right: each path, to $p_{mm}$ of the token that it ends at.",
    )
    left.set(title="Global case", ylabel="$p_2$")
    middle.set(title="Local case")
    return figure


def _plane(ax, a: dict[str, np.ndarray], case: str) -> None:
    for token, tint in enumerate(TINTS):
        end = 9 * a["targets"][token] / np.linalg.norm(a["targets"][token])
        if token == 0 or case == "local":
            ax.plot([0, end[0]], [0, end[1]], color=tint, linestyle=(0, (4, 3)), linewidth=1.1, zorder=1)
    for trial, token in enumerate(a[f"selected_{case}"]):
        path = a[f"paths_{case}"][:, trial]
        ax.plot(*path.T, color=TINTS[min(token, 1)], linewidth=1.3, zorder=2)
        ax.plot(*path[0], marker="o", markersize=3, color="black", zorder=4)
    for key, tint, shape in zip(a["keys"], (*TINTS, GREY), "*oo"):
        ax.scatter(*key, s=110 if shape == "*" else 36, marker=shape, color=tint, edgecolors="black", linewidths=0.6, zorder=5)
    ax.set(xlim=(-1.5, REACH), ylim=(-1.9, REACH - 0.4), aspect="equal", xlabel="$p_1$")


def _distances(ax, a: dict[str, np.ndarray], case: str, dashes) -> None:
    unit = a["targets"] / np.linalg.norm(a["targets"], axis=1, keepdims=True)
    for trial, token in enumerate(a[f"selected_{case}"]):
        path = a[f"paths_{case}"][1:, trial]
        direction = path / np.linalg.norm(path, axis=1, keepdims=True)
        distance = ((direction - unit[min(token, 1)]) ** 2).sum(1) / 2
        ax.plot(a["steps"][1:], np.maximum(distance, 1e-16), color=TINTS[min(token, 1)], linestyle=dashes, linewidth=1)


def _legend(figure) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=TINTS[0], label="ends at token 0 (star)"),
        Line2D([], [], color=TINTS[1], label="ends at token 1"),
        Line2D([], [], color="black", linewidth=1.1, linestyle=(0, (4, 3)), label="$p_{mm}$"),
        Line2D([], [], color=GREY, label="right panel: paths of the global case"),
        Line2D([], [], color=GREY, linestyle=(0, (4, 2)), label="right panel: paths of the local case"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, handlelength=2.0, columnspacing=1.4)
