"""Prompt and head trained together. Each goes to a max-margin direction; for the prompt it is relaxed if some
label margin exceeds one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import Experiment, setting
from ....core.figure import Panel, draw_curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, TINTS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....maths.linalg import cosine
from ..dynamics import JointInstance, JointState, joint_descent, joint_targets
from .common import NAME, Reference, arrays_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023maxmargin")
ATTENTION, PROBABILITY = "attention on the selected token", "probability of the right label"
CASES = {"tight": 1.0, "not tight": 1.5}  # the second coordinate of the last input's token
CASE_NOTES = {
    "tight": "every input is a support vector of the head: p should go to p_mm",
    "not tight": "the last input is not a support vector of the head: p should go to p_relax",
}
# The paper shows this example as pictures; these numbers come from its settings by plain autograd and a
# general convex solver.
CURVES = {  # tight case: step -> mean over the inputs
    ATTENTION: {0: 0.423, 10: 0.389, 30: 0.719, 60: 0.967, 90: 0.996},
    PROBABILITY: {0: 0.525, 10: 0.625, 30: 0.869, 60: 0.996, 90: 1.0},
}
COSINES = {  # cosines at step 1000 with the released EPS
    "tight": {"p_mm": 0.99996, "v_mm": 0.99996},
    "not tight": {"p_mm": 0.9875, "p_relax": 0.9992},
}
EPS = (1e-19, 1e-9)  # added to the norms of the two gradients in the released run
# half the squared norm
OBJECTIVES = {"tight": {"p_mm": 0.94444, "v_mm": 0.5}, "not tight": {"p_mm": None, "v_mm": None}}
PROMPT, HEAD, STARS, GREY = *TINTS[:3], COLOURS["null"]
PLOTTED_STEPS = 100  # steps at which the probabilities are plotted
DASHED, DOTTED = (0, (4, 3)), (0, (1, 1.5))


def published_joint(case: str) -> JointInstance:
    """Returns the published example: three inputs of two tokens, of which the first is zero; ``case`` is a
    key of CASES.
    """
    selected = torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.5, CASES[case]]], dtype=torch.float64)
    return JointInstance(
        torch.stack([torch.zeros_like(selected), selected], 1),
        torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64),
    )


@dataclass(frozen=True)
class Joint(Experiment):
    """Normalised descent on prompt and head at once, in two cases: every input is a support vector of the
    head (tight), or one is not.

    Tight: p goes to p_mm, which separates the selected token of every input by one. Not tight: p goes to
    p_relax, which separates the selected tokens by one on support vectors and by at least zero on other
    inputs. The data are the published ones; nothing is random.
    """

    steps: int = setting(1000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")

    name = "attention_svm.joint"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields rows with the published numbers and both probabilities over the first steps, and arrays with
        the paths.
        """
        steps = sorted({*range(0, min(151, self.steps), 2), *range(0, self.steps, 20), self.steps})
        arrays = {}
        for case in CASES:
            instance = published_joint(case)
            targets = joint_targets(instance, torch.ones(3, dtype=torch.long))
            solutions = {"p_mm": targets.sharp, "p_relax": targets.relaxed, "v_mm": targets.head}
            state = JointState(
                torch.tensor([0.0, -1.0], dtype=torch.float64), torch.tensor([-1.0, 0.0], dtype=torch.float64)
            )
            states = []
            for step in steps:
                state = joint_descent(instance, state, steps=step - state.step, rate=self.rate)
                states.append(state)
            p, v = torch.stack([s.p for s in states]), torch.stack([s.v for s in states])
            released = joint_descent(
                instance, JointState(p[0], v[0]), steps=self.steps, rate=self.rate, eps=EPS
            )
            attention = torch.stack([instance.attention(s.p)[:, 1].mean() for s in states])
            probability = torch.stack([instance.predictions(s).sigmoid().mean() for s in states])
            key = case.replace(" ", "_")
            arrays |= {f"tokens_{key}": instance.tokens[:, 1], f"p_{key}": p, f"v_{key}": v}
            arrays |= {f"{name}_{key}": solution.W.squeeze(-1) for name, solution in solutions.items()}

            for name, number in OBJECTIVES[case].items():
                yield self.row(
                    f"|{name}|^2 / 2",
                    solutions[name].norm ** 2 / 2,
                    reference=None if number is None else (number, "recomputed"),
                    at={"case": case},
                )
            yield self.row(
                "support vectors of the head",
                float(targets.support.sum()),
                reference=(3.0 if case == "tight" else 2.0, "theory"),
                at={"case": case},
                n=3,
            )
            for name, number in COSINES[case].items():
                goal, factor = solutions[name].W.squeeze(-1), "p" if name != "v_mm" else "v"
                for variant, end in (("exact gradient", states[-1]), ("eps as released", released)):
                    comparable = end is released and self.at_defaults("steps", "rate")
                    yield self.row(
                        f"cosine of {factor} to {name}",
                        float(cosine(getattr(end, factor), goal)),
                        reference=(number, "recomputed") if comparable else None,
                        at={"case": case, "gradient": variant},
                        step=self.steps,
                        note=CASE_NOTES[case],
                    )
            for quantity, curve in (
                ((ATTENTION, attention), (PROBABILITY, probability)) if case == "tight" else ()
            ):
                known = CURVES[quantity] if self.at_defaults("rate") else {}
                for step, value in zip(steps, curve.tolist()):
                    if step <= PLOTTED_STEPS:
                        reference: Reference | None = (known[step], "recomputed") if step in known else None
                        here = {"unit": "share", "at": {"case": case}, "step": step, "n": 3}
                        yield self.row(
                            quantity, value, reference=reference, note="mean over the inputs", **here
                        )
        yield Arrays({f"{NAME}/{name}": value.numpy() for name, value in arrays.items()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the paths of p and v with the predicted directions and, for the tight case, both
        probabilities against the step.
        """
        a = arrays_of(result)
        figure, (left, middle, right) = axes(1, 3, width=7.0, height=3.1)
        for ax, case, title in (
            (left, "tight", "Tight: all support v"),
            (middle, "not_tight", "Not tight: one does not"),
        ):
            _plane(ax, a, case)
            ax.set(title=title, xlabel="first coordinate")
        left.set(ylabel="second coordinate")
        figure.legend(
            *middle.get_legend_handles_labels(), loc="outside upper center", ncols=5, handlelength=2.0
        )
        looks = {ATTENTION: {"label": "attention"}, PROBABILITY: {"label": "right label"}}
        panel = Panel(
            "Tight: probabilities",
            (ATTENTION, PROBABILITY),
            lines=("quantity", looks),
            legend="lower right",
            axes={"xlabel": "step", "ylim": (0, 1.04)},
        )
        draw_curves(right, result, panel, x="step")
        caption(
            figure,
            "Left and middle: paths of the prompt p and the head v from the dots, and the predicted "
            "directions; stars are the three selected tokens, the grey dot is the other token of every "
            "input. Right: means over the inputs.",
        )
        return figure

    @classmethod
    def quick(cls) -> "Joint":
        """Returns a small version: 150 steps, a fifth of a second."""
        return cls(steps=150)


def _plane(ax: "Axes", a: dict[str, np.ndarray], case: str) -> None:
    """Plots the tokens, the paths of p and v, and the predicted directions in one case."""
    for name, tint in (("p", PROMPT), ("v", HEAD)):
        path = a[f"{name}_{case}"]
        ax.plot(*path.T, color=tint, zorder=3, label=f"path of {name}")
        ax.plot(*path[0], marker="o", markersize=3.5, color=tint, zorder=4)
    for name, tint, dashes, label in (
        ("p_mm", PROMPT, DASHED, "$p_{mm}$"),
        ("p_relax", "black", DOTTED, "$p_{relax}$"),
        ("v_mm", HEAD, DASHED, "$v_{mm}$"),
    ):
        if name == "p_relax" and case == "tight":
            continue
        end = 99 * a[f"{name}_{case}"] / np.linalg.norm(a[f"{name}_{case}"])
        ax.plot([0, end[0]], [0, end[1]], color=tint, linestyle=dashes, linewidth=1.2, zorder=2, label=label)
    for key in a[f"tokens_{case}"]:
        ax.scatter(*key, s=60, marker="*", color=STARS, edgecolors="black", linewidths=0.6, zorder=5)
    ax.scatter(0, 0, s=25, color=GREY, edgecolors="black", linewidths=0.6, zorder=5)
    ax.set(xlim=(-1.7, 4.4), ylim=(-2.4, 3.7), aspect="equal")
