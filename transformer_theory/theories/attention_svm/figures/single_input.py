"""One input of three tokens in the plane: descent on the prompt from six starts. All of them, or only some,
lead to the best token.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ....core.experiment import Experiment, setting
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, TINTS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....maths.linalg import cosine
from ..builders import prompt
from ..dynamics import normalised_descent, start, trajectory
from ..problem import Instance
from ..published import PROMPT_KEYS, PROMPT_SCORES, PROMPT_STARTS, published_prompt
from ..solution import MaxMargin
from ..solvers import frobenius_max_margin
from .common import NAME, Reference, arrays_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023maxmargin")
OBJECTIVE, SELECTED, COSINE = "|p_mm|^2 / 2", "token selected", "cosine to p_mm of the selected token"
OBJECTIVES = (0.49505, 0.5)  # |p_mm|^2 / 2 of tokens 0 and 1, by a general solver
RELEASED = {  # (case, second coordinate of the start) -> cosine with the released settings, by plain autograd
    ("global", 1.0): 0.9956,
    ("global", -1.5): 0.9943,
    ("local", -0.5): 0.9998,
    ("local", -1.0): 0.9996,
    ("local", -1.5): 0.9994,
}
EPS = 1e-9  # added to the norm of the gradient in the released run
TOKEN_TINTS = TINTS[:2]  # token 0, the best, and token 1
GREY = COLOURS["null"]
REACH = 3.2  # upper end of the horizontal axis


@dataclass(frozen=True)
class SingleInput(Experiment):
    """Normalised descent on the prompt p of one input, from six starts, compared with the max-margin prompts
    p_mm of two tokens.

    Global case: the tokens that are not best have the same score, and every start ends at the best token.
    Local case: token 1 scores higher than its only neighbour, so it is locally optimal, and the lowest starts
    end there. The paper shows the paths as pictures; the reference numbers come from another program that ran
    with the paper's settings. Nothing is random.
    """

    steps: int = setting(1000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")

    name = "attention_svm.single_input"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields rows with the objectives of p_mm and, per start, the selected token and the cosine to its
        p_mm; arrays with the paths.
        """
        steps = sorted({*range(0, min(101, self.steps), 2), *range(0, self.steps, 25), self.steps})
        first_prompts = torch.tensor([[0.0, y] for y in PROMPT_STARTS], dtype=torch.float64)[..., None]
        keys = torch.tensor([PROMPT_KEYS], dtype=torch.float64)
        targets = [frobenius_max_margin(prompt(keys, torch.tensor([token]))) for token in (0, 1)]
        for token, (target, objective) in enumerate(zip(targets, OBJECTIVES)):
            yield self.row(
                OBJECTIVE,
                target.norm**2 / 2,
                reference=(objective, "recomputed"),
                at={"token": token},
            )
        arrays = {
            "keys": torch.tensor(PROMPT_KEYS),
            "targets": torch.stack([target.W.squeeze(-1) for target in targets]),
            "steps": torch.tensor(steps),
        }
        for case in PROMPT_SCORES:
            instance = published_prompt(case)
            paths = torch.stack(
                [
                    s.W
                    for s in trajectory(
                        instance, start(instance, W=first_prompts), steps=steps, rate=self.rate
                    )
                ]
            )
            released = normalised_descent(
                instance, start(instance, W=first_prompts), steps=self.steps, rate=self.rate, eps=EPS
            )
            yield from self._rows(case, instance, targets, paths[-1], released.W)
            arrays[f"paths_{case}"] = paths.squeeze(-1)
        yield Arrays({f"{NAME}/{name}": value.numpy() for name, value in arrays.items()})

    def _rows(
        self, case: str, instance: Instance, targets: list[MaxMargin], W: Tensor, released: Tensor
    ) -> Iterator[Measurement]:
        """Yields the rows of one case; ``W`` is the end of exact descent, ``released`` of descent with the
        released eps, [starts, 2, 1].
        """
        select, comparable = instance.selected(W).squeeze(-1), self.at_defaults("steps", "rate")
        for trial, y in enumerate(PROMPT_STARTS):
            token = int(select[trial])
            if token > 1:
                continue  # token 2 is not locally optimal, so this run has not settled yet
            at, expected = {"case": case, "start": y}, None
            if case == "global":
                expected = (0.0, "limit")
            elif comparable:
                expected = (float(y < -0.5), "recomputed")
            note = "token 0 is the best, token 1 locally optimal in the local case"
            yield self.row(
                SELECTED,
                float(token),
                reference=expected,
                at=at,
                step=self.steps,
                note=note,
            )
            goal = targets[token].W.flatten()
            exact, with_eps = (float(cosine(end[trial].flatten(), goal)) for end in (W, released))
            yield self.row(
                COSINE,
                exact,
                reference=(1.0, "limit"),
                at=at | {"gradient": "exact gradient"},
                step=self.steps,
            )
            reference: Reference | None = (
                (RELEASED[case, y], "recomputed") if comparable and (case, y) in RELEASED else None
            )
            yield self.row(
                COSINE,
                with_eps,
                reference=reference,
                at=at | {"gradient": f"eps = {EPS:.0e} as released"},
                step=self.steps,
                note="the released settings stop where the gradient falls below eps",
            )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots tokens, paths of p and directions of p_mm in both cases, and 1 - cosine of p to its p_mm
        against the step.
        """
        a = arrays_of(result)
        for case in PROMPT_SCORES:
            rows = result.select(quantity=SELECTED, at={"case": case})
            tokens = {row.at["start"]: round(token) for row, token in zip(rows, rows.column("value"))}
            a[f"selected_{case}"] = np.array([tokens.get(y, 2) for y in PROMPT_STARTS])
        figure, (left, middle, right) = axes(1, 3, width=7.0, height=3.2)
        for ax, case in ((left, "global"), (middle, "local")):
            _plane(ax, a, case)
        for case, dashes in (("global", "-"), ("local", (0, (4, 2)))):
            _distances(right, a, case, dashes)
        right.set(title="1 − cosine to $p_{mm}$", xlabel="step", xscale="log", yscale="log", ylim=(1e-6, 3))
        _legend(figure)
        caption(
            figure,
            "Left and middle: paths of the prompt p from six starts (black dots), token 0, the best "
            "(star), token 1 (red) and 2 (grey). $p_{mm}$ is the max-margin prompt of the token. Right: "
            "distance of each path to $p_{mm}$ of the token at which it ends.",
        )
        left.set(title="Global case", ylabel="$p_2$")
        middle.set(title="Local case")
        return figure

    @classmethod
    def quick(cls) -> "SingleInput":
        """Returns a small version: 200 steps, a third of a second."""
        return cls(steps=200)


def _plane(ax: "Axes", a: dict[str, np.ndarray], case: str) -> None:
    """Plots the tokens, the paths of p and the directions of p_mm in one case."""
    for token, tint in enumerate(TOKEN_TINTS):
        end = 9 * a["targets"][token] / np.linalg.norm(a["targets"][token])
        if token == 0 or case == "local":
            ax.plot([0, end[0]], [0, end[1]], color=tint, linestyle=(0, (4, 3)), linewidth=1.1, zorder=1)
    for trial, token in enumerate(a[f"selected_{case}"]):
        path = a[f"paths_{case}"][:, trial]
        ax.plot(*path.T, color=TOKEN_TINTS[min(token, 1)], linewidth=1.3, zorder=2)
        ax.plot(*path[0], marker="o", markersize=3, color="black", zorder=4)
    for key, tint, shape in zip(a["keys"], (*TOKEN_TINTS, GREY), "*oo"):
        ax.scatter(
            *key,
            s=110 if shape == "*" else 36,
            marker=shape,
            color=tint,
            edgecolors="black",
            linewidths=0.6,
            zorder=5,
        )
    ax.set(xlim=(-1.5, REACH), ylim=(-1.9, REACH - 0.4), aspect="equal", xlabel="$p_1$")


def _distances(ax: "Axes", a: dict[str, np.ndarray], case: str, dashes) -> None:
    """Plots 1 - cosine of every path to the max-margin prompt of the token at its end, as half the squared
    distance of unit vectors.
    """
    unit = a["targets"] / np.linalg.norm(a["targets"], axis=1, keepdims=True)
    for trial, token in enumerate(a[f"selected_{case}"]):
        path = a[f"paths_{case}"][1:, trial]
        direction = path / np.linalg.norm(path, axis=1, keepdims=True)
        distance = ((direction - unit[min(token, 1)]) ** 2).sum(1) / 2
        ax.plot(
            a["steps"][1:],
            np.maximum(distance, 1e-16),
            color=TOKEN_TINTS[min(token, 1)],
            linestyle=dashes,
            linewidth=1,
        )


def _legend(figure: "Figure") -> None:
    """Adds one legend for all panels."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=TOKEN_TINTS[0], label="ends at token 0 (star)"),
        Line2D([], [], color=TOKEN_TINTS[1], label="ends at token 1"),
        Line2D([], [], color="black", linewidth=1.1, linestyle=(0, (4, 3)), label="$p_{mm}$"),
        Line2D([], [], color=GREY, label="right panel: paths of the global case"),
        Line2D([], [], color=GREY, linestyle=(0, (4, 2)), label="right panel: paths of the local case"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, handlelength=2.0, columnspacing=1.4)
