"""The two examples in the plane: paths of W z_i under descent on W and on its factors, with the two
max-margin solutions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, TINTS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics import Factors, start, trajectory
from ..problem import Instance
from ..published import PICTURES, published_picture
from ..solution import MaxMargin
from ..solvers import frobenius_max_margin, nuclear_max_margin
from .common import NAME, arrays_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import LineStyleType

SOURCE = Source("tarzanagh2023transformers")
PENALTY = torch.finfo(torch.float64).eps  # weight of the squared norms of K and Q, as published
COSINES = {"frobenius": "cosine to the Frobenius solution", "nuclear": "cosine to the nuclear solution"}
BEST_SELECTED = "all best tokens selected"
RUN_NAMES = {"W": "descent on W", "KQ": "descent on K and Q"}
# picture -> reference numbers, computed with the published settings by general solvers and plain autograd
KNOWN = {
    1: {
        "W_mm": [[2.85369, -2.70294], [5.37124, 5.58053]],
        "W*_mm": [[0.486706, 0.469258], [7.005536, 6.754383]],
        "Frobenius norm": 8.68574,
        "nuclear norm": 9.754810,
        "rank": 1,
        "cosine": 0.99968,
    },
    2: {
        "W_mm": [[0.792552, -1.086473], [-0.633028, -0.347115]],
        "W*_mm": [[0.99375, -1.25966], [-0.13324, -0.25784]],
        "Frobenius norm": 1.526360,
        "nuclear norm": 1.872604,
        "rank": 2,
        "cosine": 0.99995,
    },
}
INPUT_TINTS = (TINTS[3], TINTS[2])
# descent, the solution that it approaches, line style of both
RUNS: "tuple[tuple[str, str, LineStyleType], ...]" = (
    ("W", "frobenius", "-"),
    ("KQ", "nuclear", (0, (4, 2))),
)
SEPARATING = {"frobenius": (0, (1, 1.2)), "nuclear": (0, (6, 2, 1, 2))}
SHORT = {"W": "W to Frobenius", "KQ": "(K, Q) to nuclear"}


def example(number: int, run: str = "") -> dict[str, int | str]:
    """Returns the coordinates of a row: the picture and, if ``run`` is not empty, the descent."""
    return {"picture": number} | ({"descent": RUN_NAMES[run]} if run else {})


@dataclass(frozen=True)
class Trajectories(RandomExperiment):
    """Paths of W z_i in the plane, for the two published examples: n = 2, d = 2, and three or five tokens per
    input.

    Normalised descent on W starts at W = 0. Descent on the factors of W = K Q^T starts at Q = 0 and a small
    random K, and has the published penalty (the rounding unit times the squared norms of K and Q). The theory
    predicts that the first approaches the Frobenius solution of the optimal tokens in direction, and the
    second the nuclear solution. The penalty stops the second at a finite W, where the gradient of the loss
    balances it (:mod:`~..balance`): more steps do not bring it nearer.

    The paper shows these paths as pictures without numbers. The reference numbers were computed separately
    for the same data and settings: the solutions by general convex solvers, the cosine by plain autograd.
    """

    steps: int = setting(2000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")
    scale: float = setting(0.1, gt=0, le=1e3, help="standard deviation of the entries of the first K")

    name = "attention_svm.trajectories"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields rows with the solutions and the cosines at the end, and arrays with tokens, solutions and
        paths.
        """
        generator = self.generator()
        steps = sorted(
            {0, *(int(s) for s in torch.logspace(0, 3, 60).tolist() if s < self.steps), self.steps}
        )
        for number in PICTURES:
            instance = published_picture(number)
            pairs = constraints(instance.tokens, instance.query, instance.optimal())
            solutions = {"frobenius": frobenius_max_margin(pairs), "nuclear": nuclear_max_margin(pairs)}
            K = self.scale * torch.randn(2, 2, generator=generator, dtype=torch.float64)
            runs = {
                "W": trajectory(instance, start(instance), steps=steps, rate=self.rate),
                "KQ": trajectory(
                    instance, Factors(K, torch.zeros_like(K)), steps=steps, rate=self.rate, penalty=PENALTY
                ),
            }
            paths = {name: torch.stack([state.W for state in states]) for name, states in runs.items()}
            yield from self._rows(number, instance, solutions, paths)
            arrays = {"tokens": instance.tokens, "select": instance.optimal()}
            matrices = {name: solution.W for name, solution in solutions.items()} | {
                f"path_{name}": W for name, W in paths.items()
            }
            arrays |= {name: instance.query @ W.mT for name, W in matrices.items()}  # W z_i, [..., n, 2]
            yield Arrays({f"{NAME}/{number}_{name}": value.numpy() for name, value in arrays.items()})

    def _rows(
        self, number: int, instance: Instance, solutions: dict[str, MaxMargin], paths: dict[str, Tensor]
    ) -> Iterator[Measurement]:
        """Yields the rows of one example: both solutions, and the end of both descents."""
        numbers, picture = KNOWN[number], example(number)
        frobenius, nuclear = solutions["frobenius"], solutions["nuclear"]
        for name, W in (("W_mm", frobenius.W), ("W*_mm", nuclear.W)):
            for i, j in product(range(2), range(2)):
                reference = (numbers[name][i][j], "recomputed")
                yield self.row(f"{name}[{i},{j}]", float(W[i, j]), reference=reference, at=picture)
        for quantity, value, note, key in (
            ("Frobenius norm of W_mm", frobenius.norm, "", "Frobenius norm"),
            ("nuclear norm of W*_mm", nuclear.norm, f"KKT residual {nuclear.kkt:.0e}", "nuclear norm"),
            ("rank of W*_mm", float(nuclear.rank), "by complementarity", "rank"),
        ):
            yield self.row(
                quantity,
                value,
                reference=(float(numbers[key]), "recomputed"),
                at=picture,
                note=note,
            )
        for run, W in paths.items():
            variant = example(number, run)
            for norm, solution in solutions.items():
                comparable = (run, norm) == ("W", "frobenius") and self.at_defaults("steps", "rate")
                reference = (numbers["cosine"], "recomputed") if comparable else None
                value = float(cosine(W[-1], solution.W))
                yield self.row(
                    COSINES[norm],
                    value,
                    reference=reference,
                    at=variant,
                    step=self.steps,
                )
            best = bool((instance.selected(W[-1]) == instance.optimal()).all())
            note = "1 if every input attends to its best token"
            yield self.row(
                BEST_SELECTED,
                float(best),
                reference=(1.0, "limit"),
                at=variant,
                step=self.steps,
                note=note,
            )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots one row per example.

        The left panel, as published, shows the paths of W z_i under descent on W and on (K, Q), the
        directions of the two max-margin solutions, and the cosines at the end. The right panel, at about a
        hundredth of the scale, shows the tokens, the same directions, and the lines that separate the best
        token of each input from its other tokens.
        """
        arrays = arrays_of(result)
        figure, panels = axes(2, 2, width=7.0, height=7.0)
        for number, (path_axes, token_axes) in enumerate(panels.reshape(2, 2), 1):
            a = {
                name.partition("_")[2]: value
                for name, value in arrays.items()
                if name.partition("_")[0] == str(number)
            }
            _paths(path_axes, a)
            last_cosines = {
                run: result.select(quantity=COSINES[norm], at=example(number, run)).one().value
                for run, norm, _ in RUNS
            }
            cosines = ", ".join(f"{SHORT[run]} {value:.5f}" for run, value in last_cosines.items())
            path_axes.set(
                title=f"Example {number}: paths of $Wz_1$, $Wz_2$",
                xlabel=f"first coordinate\ncosine at the end: {cosines}",
            )
            path_axes.xaxis.label.set_fontsize(7.5)
            reach = 1.25 * float(np.abs(a["tokens"]).max())
            for i in range(2):
                _input(token_axes, a, i, reach)
            token_axes.set(
                title=f"Example {number}: tokens", xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal"
            )
            token_axes.set_xlabel("first coordinate\n", fontsize=7.5)
            for ax in (path_axes, token_axes):
                ax.set_ylabel("second coordinate", fontsize=7.5)
        _legend(figure)
        caption(
            figure,
            f"Paths: {self.steps} steps of descent from zero (for the factors from a small random K and Q = "
            "0, with the published penalty, which stops them at a finite point); the axes on the left are "
            "scaled separately. A separating line lies half-way between the best token and the nearest "
            "other token of its input.",
        )
        return figure

    @classmethod
    def quick(cls) -> "Trajectories":
        """Returns a small version: 300 steps, about a second."""
        return cls(steps=300)


def _paths(ax: "Axes", a: dict[str, np.ndarray]) -> None:
    """Plots the paths of W z_i and the directions of the solutions."""
    from matplotlib.patheffects import withStroke

    high = 1.1 * np.abs(a["path_W"][..., 1]).max()
    points = np.concatenate([a[f"path_{run}"].reshape(-1, 2) for run, _, _ in RUNS])
    across = points[np.abs(points[:, 1]) < high, 0]
    pad = 0.15 * float(np.ptp(across))
    for i, tint in enumerate(INPUT_TINTS):
        for run, solution, dashes in RUNS:
            path = a[f"path_{run}"][:, i]
            ax.plot(*path.T, color=tint, linestyle=dashes, linewidth=1.6, zorder=3)
            _ray(
                ax,
                a[solution][i],
                4 * float(max(high, np.abs(across).max())),
                color=COLOURS["null"],
                linestyle=dashes,
                linewidth=0.9,
            )
        halo = [withStroke(linewidth=2.5, foreground="white")]
        place = {
            "textcoords": "offset points",
            "xytext": (5, 5 if i else -9),
            "ha": "left",
            "path_effects": halo,
        }
        ax.annotate(f"$Wz_{i + 1}$", a["path_W"][-1, i], color=tint, fontsize=8, zorder=6, **place)
    ax.set(xlim=(float(across.min()) - pad, float(across.max()) + pad), ylim=(-high, high))


def _input(ax: "Axes", a: dict[str, np.ndarray], i: int, reach: float) -> None:
    """Plots the tokens of input i, the directions W z_i of both solutions, and their separating lines."""
    tokens, select, tint = a["tokens"][i], int(a["select"][i]), INPUT_TINTS[i]
    unselected = np.arange(len(tokens)) != select
    ax.scatter(*tokens[unselected].T, s=28, color=tint, edgecolors="black", linewidths=0.5, zorder=4)
    ax.scatter(*tokens[select], s=130, marker="*", color=tint, edgecolors="black", linewidths=0.6, zorder=5)
    for _, solution, dashes in RUNS:
        direction = a[solution][i]
        _ray(ax, direction, 4 * reach, color=tint, linestyle=dashes, linewidth=1.5)
        length = np.linalg.norm(direction)
        unit = direction / length
        # Half-way between x_a and the nearest token: its margin is 1, so along W z it lies 1 / ||W z|| before
        # x_a.
        middle = unit * (tokens[select] @ unit - 0.5 / length)
        line = middle + np.outer([-4 * reach, 4 * reach], [-unit[1], unit[0]])
        ax.plot(*line.T, color=tint, linewidth=0.9, linestyle=SEPARATING[solution], zorder=1)


def _ray(ax: "Axes", direction: np.ndarray, length: float, **appearance) -> None:
    """Plots a ray from the origin."""
    end = length * direction / np.linalg.norm(direction)
    ax.plot([0, end[0]], [0, end[1]], zorder=2, **appearance)


def _legend(figure: "Figure") -> None:
    """Adds one legend for all panels."""
    from matplotlib.lines import Line2D

    grey = COLOURS["network"]
    (_, _, solid), (_, _, dashed) = RUNS
    handles = [
        Line2D([], [], marker="o", linestyle="", color=INPUT_TINTS[0], label="input 1 (star: best)"),
        Line2D([], [], marker="o", linestyle="", color=INPUT_TINTS[1], label="input 2 (star: best)"),
        Line2D([], [], color=grey, linestyle=solid, label=r"descent on $W$"),
        Line2D([], [], color=grey, linestyle=dashed, label=r"descent on $(K, Q)$"),
        Line2D([], [], color=grey, linewidth=0.9, linestyle=solid, label="Frobenius solution"),
        Line2D([], [], color=grey, linewidth=0.9, linestyle=dashed, label="nuclear solution"),
        Line2D(
            [],
            [],
            color=grey,
            linewidth=0.9,
            linestyle=SEPARATING["frobenius"],
            label="separating, Frobenius",
        ),
        Line2D(
            [], [], color=grey, linewidth=0.9, linestyle=SEPARATING["nuclear"], label="separating, nuclear"
        ),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
