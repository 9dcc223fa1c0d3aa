"""The figure of the two examples in the plane."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.typing import LineStyleType

INPUTS = (COLOURS["rate_reduction"], COLOURS["joma"])  # the two inputs
RUNS: "tuple[tuple[str, str, LineStyleType], ...]" = (  # descent, the solution it goes to, how both are drawn
    ("W", "frobenius", "-"),
    ("KQ", "nuclear", (0, (4, 2))),
)
SEPARATING = {"frobenius": (0, (1, 1.2)), "nuclear": (0, (6, 2, 1, 2))}
COSINES = {"W": "cosine to the Frobenius solution, descent on W", "KQ": "cosine to the nuclear solution, descent on K and Q"}
SHORT = {"W": "W to Frobenius", "KQ": "(K, Q) to nuclear"}


def trajectories(result: Result) -> "Figure":
    """One row an example. Left, as published: the paths of W z_i under descent on W and on (K, Q), over the directions of the two
    max-margin solutions, and the cosines at the end. Right, a hundred times nearer: the tokens, the same directions, and the lines that
    they separate by."""
    arrays = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    reached = {row["quantity"]: row["value"] for row in result.table}
    figure, panels = axes(2, 2, width=7.0, height=7.0)
    for number, (far, near) in enumerate(panels.reshape(2, 2), 1):
        a = {name[2:]: value for name, value in arrays.items() if name.startswith(f"{number}_")}
        _paths(far, a)
        cosines = ", ".join(f"{SHORT[run]} {reached[f'picture {number}: {words}']:.5f}" for run, words in COSINES.items())
        far.set(title=f"Example {number}: paths of $Wz_1$, $Wz_2$", xlabel=f"first coordinate\ncosine at the end: {cosines}")
        far.xaxis.label.set_fontsize(7.5)
        reach = 1.25 * float(np.abs(a["tokens"]).max())
        for i in range(2):
            _input(near, a, i, reach)
        near.set(title=f"Example {number}: tokens", xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        near.set_xlabel("first coordinate\n", fontsize=7.5)
        for ax in (far, near):
            ax.set_ylabel("second coordinate", fontsize=7.5)
    _legend(figure)
    caption(
        figure,
        f"Paths: {result.params['steps']} steps of descent from zero (from a small random K and Q = 0 for the factors); the axes on "
        "the left are scaled apart. A separating line lies half-way between the best token and the nearest other token of its input.",
    )
    return figure


def _paths(ax, a: dict[str, np.ndarray]) -> None:
    from matplotlib.patheffects import withStroke

    high = 1.1 * np.abs(a["path_W"][..., 1]).max()
    points = np.concatenate([a[f"path_{run}"].reshape(-1, 2) for run, _, _ in RUNS])
    across = points[np.abs(points[:, 1]) < high, 0]
    pad = 0.15 * float(np.ptp(across))
    for i, tint in enumerate(INPUTS):
        for run, solution, dashes in RUNS:
            path = a[f"path_{run}"][:, i]
            ax.plot(*path.T, color=tint, linestyle=dashes, linewidth=1.6, zorder=3)
            _ray(ax, a[solution][i], 4 * float(max(high, np.abs(across).max())), color=COLOURS["null"], linestyle=dashes, linewidth=0.9)
        halo = [withStroke(linewidth=2.5, foreground="white")]
        place = {"textcoords": "offset points", "xytext": (5, 5 if i else -9), "ha": "left", "path_effects": halo}
        ax.annotate(f"$Wz_{i + 1}$", a["path_W"][-1, i], color=tint, fontsize=8, zorder=6, **place)
    ax.set(xlim=(float(across.min()) - pad, float(across.max()) + pad), ylim=(-high, high))


def _input(ax, a: dict[str, np.ndarray], i: int, reach: float) -> None:
    tokens, select, tint = a["tokens"][i], int(a["select"][i]), INPUTS[i]
    others = np.arange(len(tokens)) != select
    ax.scatter(*tokens[others].T, s=28, color=tint, edgecolors="black", linewidths=0.5, zorder=4)
    ax.scatter(*tokens[select], s=130, marker="*", color=tint, edgecolors="black", linewidths=0.6, zorder=5)
    for _, solution, dashes in RUNS:
        direction = a[solution][i]
        _ray(ax, direction, 4 * reach, color=tint, linestyle=dashes, linewidth=1.5)
        size = np.linalg.norm(direction)
        unit = direction / size
        middle = unit * (tokens[select] @ unit - 0.5 / size)  # half-way between x_a, whose margin is 0, and its nearest, whose margin is 1
        line = middle + np.outer([-4 * reach, 4 * reach], [-unit[1], unit[0]])
        ax.plot(*line.T, color=tint, linewidth=0.9, linestyle=SEPARATING[solution], zorder=1)


def _ray(ax, direction: np.ndarray, length: float, **drawn) -> None:
    end = length * direction / np.linalg.norm(direction)
    ax.plot([0, end[0]], [0, end[1]], zorder=2, **drawn)


def _legend(figure) -> None:
    from matplotlib.lines import Line2D

    grey = COLOURS["network"]
    (_, _, solid), (_, _, dashed) = RUNS
    handles = [
        Line2D([], [], marker="o", linestyle="", color=INPUTS[0], label="input 1 (star: best)"),
        Line2D([], [], marker="o", linestyle="", color=INPUTS[1], label="input 2 (star: best)"),
        Line2D([], [], color=grey, linestyle=solid, label=r"descent on $W$"),
        Line2D([], [], color=grey, linestyle=dashed, label=r"descent on $(K, Q)$"),
        Line2D([], [], color=grey, linewidth=0.9, linestyle=solid, label="Frobenius solution"),
        Line2D([], [], color=grey, linewidth=0.9, linestyle=dashed, label="nuclear solution"),
        Line2D([], [], color=grey, linewidth=0.9, linestyle=SEPARATING["frobenius"], label="separating, Frobenius"),
        Line2D([], [], color=grey, linewidth=0.9, linestyle=SEPARATING["nuclear"], label="separating, nuclear"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
