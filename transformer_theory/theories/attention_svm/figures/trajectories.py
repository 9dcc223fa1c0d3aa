"""The figure of the two examples in the plane."""

from typing import TYPE_CHECKING

import numpy as np

from ....experiment import Result
from ....plotting import COLOURS, axes, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INPUTS = (COLOURS["rate_reduction"], COLOURS["joma"])  # the two inputs
RUNS = (("W", "frobenius", (0, ())), ("KQ", "nuclear", (0, (4, 2))))  # descent, the solution it goes to, how both are drawn
DOTTED = (0, (1, 1.6))


def trajectories(result: Result) -> "Figure":
    """One row an example. Left, as published: the paths of W z_i under descent on W and on (K, Q), over the directions of the two
    max-margin solutions. Right, a hundred times nearer: the tokens, the same directions, and the lines that they separate by."""
    arrays = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    with style():
        figure, panels = axes(2, 2, width=7.0, height=6.4)
        for number, (far, near) in enumerate(panels.reshape(2, 2), 1):
            a = {name[2:]: value for name, value in arrays.items() if name.startswith(f"{number}_")}
            _paths(far, a)
            far.set(title=f"Example {number}: paths of $Wz_1$, $Wz_2$")
            reach = 1.25 * float(np.abs(a["tokens"]).max())
            for i in range(2):
                _input(near, a, i, reach)
            near.set(title=f"Example {number}: tokens", xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        _legend(figure)
    return figure


def _paths(ax, a: dict[str, np.ndarray]) -> None:
    high = 1.1 * np.abs(a["path_W"][..., 1]).max()
    points = np.concatenate([a[f"path_{run}"].reshape(-1, 2) for run, _, _ in RUNS])
    across = points[np.abs(points[:, 1]) < high, 0]
    pad = 0.15 * float(np.ptp(across))
    for i, tint in enumerate(INPUTS):
        for run, solution, dashes in RUNS:
            path = a[f"path_{run}"][:, i]
            ax.plot(*path.T, color=tint, linestyle=dashes, linewidth=1.6, zorder=3)
            _ray(ax, a[solution][i], 4 * float(max(high, np.abs(across).max())), color=COLOURS["null"], linestyle=dashes)
        end = a["path_W"][-1, i]
        ax.annotate(f"$Wz_{i + 1}$", end, textcoords="offset points", xytext=(6, 0 if end[1] > 0 else -2), color=tint, fontsize=8)
    ax.set(xlim=(float(across.min()) - pad, float(across.max()) + pad), ylim=(-high, high))


def _input(ax, a: dict[str, np.ndarray], i: int, reach: float) -> None:
    tokens, select, tint = a["tokens"][i], int(a["select"][i]), INPUTS[i]
    others = np.arange(len(tokens)) != select
    ax.scatter(*tokens[others].T, s=28, color=tint, edgecolors="black", linewidths=0.5, zorder=4)
    ax.scatter(*tokens[select], s=130, marker="*", color=tint, edgecolors="black", linewidths=0.6, zorder=5)
    for _, solution, dashes in RUNS:
        direction = a[solution][i]
        _ray(ax, direction, 4 * reach, color=tint, linestyle=dashes)
        size = np.linalg.norm(direction)
        unit = direction / size
        middle = unit * (tokens[select] @ unit - 0.5 / size)  # half-way between x_a, whose margin is 0, and its nearest, whose margin is 1
        line = middle + np.outer([-4 * reach, 4 * reach], [-unit[1], unit[0]])
        ax.plot(*line.T, color=tint, linewidth=0.7, alpha=0.8, linestyle=DOTTED if solution == "frobenius" else (0, (1, 4)), zorder=1)


def _ray(ax, direction: np.ndarray, length: float, **drawn) -> None:
    end = length * direction / np.linalg.norm(direction)
    ax.plot([0, end[0]], [0, end[1]], linewidth=0.9, zorder=2, **drawn)


def _legend(figure) -> None:
    from matplotlib.lines import Line2D

    grey = COLOURS["network"]
    (_, _, solid), (_, _, dashed) = RUNS
    handles = [
        Line2D([], [], marker="o", linestyle="", color=INPUTS[0], label="input 1 (best token: star)"),
        Line2D([], [], marker="o", linestyle="", color=INPUTS[1], label="input 2 (best token: star)"),
        Line2D([], [], color=grey, linestyle=solid, label=r"descent on $W$"),
        Line2D([], [], color=grey, linestyle=dashed, label=r"descent on $(K, Q)$"),
        Line2D([], [], color=grey, linewidth=0.9, linestyle=solid, label="Frobenius solution"),
        Line2D([], [], color=grey, linewidth=0.9, linestyle=dashed, label="nuclear solution"),
        Line2D([], [], color=grey, linewidth=0.7, linestyle=DOTTED, label="separating line, Frobenius"),
        Line2D([], [], color=grey, linewidth=0.7, linestyle=(0, (1, 4)), label="separating line, nuclear"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
