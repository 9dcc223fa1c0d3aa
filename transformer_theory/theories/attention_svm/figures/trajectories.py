"""The two examples in the plane: paths of W z_i under descent on W and on its factors, with the two
max-margin solutions.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import DASHED, Reading, figure, reading
from ....core.plotting import COLOURS, TINTS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics import Factors, start, trajectory
from ..published import PICTURES, published_picture
from ..solvers import frobenius_max_margin, nuclear_max_margin
from .common import RATE, ROUNDING_UNIT, arrays, arrays_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COSINES = {"frobenius": "cosine to the Frobenius solution", "nuclear": "cosine to the nuclear solution"}
BEST_SELECTED = "all best tokens selected"
W, KQ = "descent on W", "descent on K and Q"
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
RUNS = (("path_W", "frobenius", "-", W), ("path_KQ", "nuclear", DASHED, KQ))  # path, its target, dashes, name


def ray(ax: "Axes", direction: np.ndarray, **look) -> None:
    """Draws a ray from the origin beyond the edge of the panel."""
    ax.plot(*zip((0, 0), 1e4 * direction / np.linalg.norm(direction)), zorder=2, **look)


def draw_paths(ax: "Axes", a: dict[str, np.ndarray]) -> None:
    """Draws the paths of W z_i and the directions of the solutions."""
    for path, solution, dashes, name in RUNS:
        for i, tint in enumerate(INPUT_TINTS):
            label = f"$Wz_{i + 1}$, {name}"
            ax.plot(*a[path][:, i].T, color=tint, linestyle=dashes, linewidth=1.6, zorder=3, label=label)
            ray(ax, a[solution][i], color=COLOURS["null"], linestyle=dashes, linewidth=0.9)
    high = 1.1 * np.abs(a["path_W"][..., 1]).max()
    points = np.concatenate([a[path].reshape(-1, 2) for path, *_ in RUNS])
    across = points[np.abs(points[:, 1]) < high, 0]
    pad = 0.15 * float(np.ptp(across))
    ax.set(xlim=(float(across.min()) - pad, float(across.max()) + pad), ylim=(-high, high))


def draw_tokens(ax: "Axes", a: dict[str, np.ndarray]) -> None:
    """Draws the tokens, the directions W z_i of both solutions, and their separating lines."""
    reach = 1.25 * float(np.abs(a["tokens"]).max())
    edge = {"edgecolors": "black", "linewidths": 0.6}
    for i, tint in enumerate(INPUT_TINTS):
        tokens, select = a["tokens"][i], int(a["select"][i])
        ax.scatter(*np.delete(tokens, select, 0).T, s=28, color=tint, zorder=4, **edge)
        ax.scatter(*tokens[select], s=130, marker="*", color=tint, zorder=5, **edge)
        for _, solution, dashes, _ in RUNS:
            direction = a[solution][i]
            ray(ax, direction, color=tint, linestyle=dashes, linewidth=1.5)
            length = np.linalg.norm(direction)
            unit = direction / length
            # Half-way between x_a and the nearest token: its margin is 1, so along W z it lies 1 / ||W z||
            # before x_a.
            middle = unit * (tokens[select] @ unit - 0.5 / length)
            across = np.array([-unit[1], unit[0]])
            ax.axline(middle, middle + across, color=tint, linewidth=0.9, linestyle=dashes, zorder=1)
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")


@style()
def draw(result: Result) -> "Figure":
    """Draws one row per example.

    The left panel, as published, shows the paths of W z_i under descent on W and on (K, Q), the directions of
    the two max-margin solutions, and the cosines at the end. The right panel, at about a hundredth of the
    scale, shows the tokens, the same directions, and the lines that separate the best token of each input
    from its other tokens.
    """
    stored = arrays_of(result)
    drawn, panels = axes(2, 2, width=7.0, height=7.0)
    for number, (left, right) in zip(PICTURES, panels.reshape(2, 2)):
        a = {name[2:]: value for name, value in stored.items() if name.startswith(f"{number}_")}
        draw_paths(left, a)
        draw_tokens(right, a)
        ends = [
            result.select(quantity=COSINES[norm], at={"picture": number, "descent": name}).one()
            for _, norm, _, name in RUNS
        ]
        cosines = " and ".join(f"{row.value:.5f}" for row in ends)
        left.set(title=f"Example {number}: paths of $Wz_1$, $Wz_2$", ylabel="second coordinate")
        left.set(xlabel=f"first coordinate\ncosines at the end: {cosines}")
        right.set(title=f"Example {number}: tokens", xlabel="first coordinate", ylabel="second coordinate")
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    caption(
        drawn,
        "Left: {steps} steps of descent from zero (for the factors from a small random K and Q = 0, with the "
        "published penalty, which stops them at a finite point); grey: directions of the solutions, solid: "
        "Frobenius, dashed: nuclear. Cosines: of W to the Frobenius solution, of (K, Q) to the nuclear one. "
        "Right: the best tokens (stars), the others, the same directions, and thin lines half-way between "
        "the best token and the nearest other one of its input.".format(**result.settings),
    )
    return drawn


@figure(
    "attention_svm.trajectories",
    source=Source("tarzanagh2023transformers"),
    view=draw,
    quick={"steps": 300},
)
def trajectories(
    *,
    steps: int = setting(2000, ge=1, help="steps of descent"),
    rate: float = RATE,
    scale: float = setting(0.1, gt=0, le=1e3, help="standard deviation of the entries of the first K"),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
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
    generator = torch.Generator().manual_seed(seed)
    early = {int(step) for step in torch.logspace(0, 3, 60).tolist() if step < steps}
    run = {"steps": sorted({0, *early, steps}), "rate": rate}
    for number in PICTURES:
        instance, known, picture = published_picture(number), KNOWN[number], {"picture": number}
        best = instance.optimal()
        pairs = constraints(instance.tokens, instance.query, best)
        frobenius, nuclear = frobenius_max_margin(pairs), nuclear_max_margin(pairs)
        K = scale * torch.randn(2, 2, generator=generator, dtype=torch.float64)
        factors = Factors(K, torch.zeros_like(K))
        for name, solution in (("W_mm", frobenius), ("W*_mm", nuclear)):
            for i, j in np.ndindex(2, 2):
                here = {"reference": (known[name][i][j], "recomputed"), "needs": (), "at": picture}
                yield reading(f"{name}[{i},{j}]", float(solution.W[i, j]), **here)
        for quantity, value, note, key in (
            ("Frobenius norm of W_mm", frobenius.norm, "", "Frobenius norm"),
            ("nuclear norm of W*_mm", nuclear.norm, f"KKT residual {nuclear.kkt:.0e}", "nuclear norm"),
            ("rank of W*_mm", float(nuclear.rank), "by complementarity", "rank"),
        ):
            here = {"reference": (float(known[key]), "recomputed"), "needs": (), "at": picture}
            yield reading(quantity, value, note=note, **here)
        named = {"tokens": instance.tokens, "select": best}
        matrices = {"frobenius": frobenius.W, "nuclear": nuclear.W}
        for descent, name, states in (
            (W, "path_W", trajectory(instance, start(instance), **run)),
            (KQ, "path_KQ", trajectory(instance, factors, penalty=ROUNDING_UNIT, **run)),
        ):
            path = matrices[name] = torch.stack([state.W for state in states])
            here = {"at": {**picture, "descent": descent}, "step": steps}
            for norm, quantity in COSINES.items():
                reference = (known["cosine"], "recomputed") if (descent, norm) == (W, "frobenius") else None
                value = float(cosine(path[-1], matrices[norm]))
                yield reading(quantity, value, reference=reference, needs=("steps", "rate"), **here)
            selected = float((instance.selected(path[-1]) == best).all())
            here |= {"note": "1 if every input attends to its best token"}
            yield reading(BEST_SELECTED, selected, reference=(1.0, "limit"), **here)
        named |= {name: instance.query @ matrix.mT for name, matrix in matrices.items()}  # W z_i, [..., n, 2]
        yield arrays({f"{number}_{name}": value for name, value in named.items()})
