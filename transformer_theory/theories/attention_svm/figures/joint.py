"""Prompt and head trained together. Each goes to a max-margin direction; for the prompt it is relaxed if some
label margin exceeds one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import DASHED, Panel, Reading, draw_curves, figure, reading
from ....core.plotting import COLOURS, TINTS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....maths.linalg import cosine
from ..dynamics import JointState, joint_descent, joint_targets
from ..published import JOINT_CASES, published_joint
from .common import RATE, arrays, arrays_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ATTENTION, PROBABILITY = "attention on the selected token", "probability of the right label"
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
PLOTTED_STEPS = 100  # steps at which the probabilities are plotted
RAYS = {"p_mm": (TINTS[0], DASHED), "p_relax": ("black", (0, (1, 1.5))), "v_mm": (TINTS[1], DASHED)}


def plane(ax: "Axes", a: dict[str, np.ndarray], case: str) -> None:
    """Draws the tokens, the paths of p and v, and the predicted directions in one case."""
    for name, tint in zip("pv", TINTS):
        path = a[f"{name}_{case}"]
        ax.plot(*path.T, color=tint, label=f"path of {name}", marker="o", markersize=3.5, markevery=[0])
    for name, (tint, dashes) in RAYS.items():
        if name != "p_relax" or case != "tight":
            end = 99 * a[f"{name}_{case}"] / np.linalg.norm(a[f"{name}_{case}"])
            label = f"${name[0]}_{{{name[2:]}}}$"
            ax.plot(*zip((0, 0), end), color=tint, linestyle=dashes, linewidth=1.2, zorder=2, label=label)
    edge = {"edgecolors": "black", "linewidths": 0.6, "zorder": 5}
    ax.scatter(*a[f"tokens_{case}"].T, s=60, marker="*", color=TINTS[2], **edge)
    ax.scatter(0, 0, s=25, color=COLOURS["null"], **edge)
    ax.set(xlim=(-1.7, 4.4), ylim=(-2.4, 3.7), aspect="equal", xlabel="first coordinate")


@style()
def draw(result: Result) -> "Figure":
    """Draws the paths of p and v with the predicted directions and, for the tight case, both probabilities
    against the step.
    """
    a = arrays_of(result)
    drawn, (left, middle, right) = axes(1, 3, width=7.0, height=3.1)
    plane(left, a, "tight")
    left.set(title="Tight: all support v", ylabel="second coordinate")
    plane(middle, a, "not_tight")
    middle.set(title="Not tight: one does not")
    drawn.legend(*middle.get_legend_handles_labels(), loc="outside upper center", ncols=5)
    looks = {ATTENTION: {"label": "attention"}, PROBABILITY: {"label": "right label"}}
    panel = Panel("Tight: probabilities", (ATTENTION, PROBABILITY), lines=("quantity", looks))
    draw_curves(right, result, panel, x="step")
    right.set(xlabel="step", ylim=(0, 1.04))
    caption(
        drawn,
        "Left and middle: paths of the prompt p and the head v from the dots, and the predicted "
        "directions; stars are the three selected tokens, the grey dot is the other token of every "
        "input. Right: means over the inputs.",
    )
    return drawn


@figure("attention_svm.joint", source=Source("tarzanagh2023maxmargin"), view=draw, quick={"steps": 150})
def joint(
    *, steps: int = setting(1000, ge=1, help="steps of descent"), rate: float = RATE
) -> Iterator[Reading | Arrays]:
    """Normalised descent on prompt and head at once, in two cases: every input is a support vector of the
    head (tight), or one is not.

    Tight: p goes to p_mm, which separates the selected token of every input by one. Not tight: p goes to
    p_relax, which separates the selected tokens by one on support vectors and by at least zero on other
    inputs. The data are the published ones; nothing is random.
    """
    measured = sorted({*range(0, min(151, steps), 2), *range(0, steps, 20), steps})
    p, v = torch.tensor([[0.0, -1.0], [-1.0, 0.0]], dtype=torch.float64)
    for case in JOINT_CASES:
        instance, at = published_joint(case), {"case": case}
        targets = joint_targets(instance, torch.ones(3, dtype=torch.long))
        solutions = {"p_mm": targets.sharp, "p_relax": targets.relaxed, "v_mm": targets.head}
        states = [JointState(p, v)]
        for step in measured[1:]:
            states.append(joint_descent(instance, states[-1], steps=step - states[-1].step, rate=rate))
        released = joint_descent(instance, states[0], steps=steps, rate=rate, eps=EPS)
        for name, number in OBJECTIVES[case].items():
            known = None if number is None else (number, "recomputed")
            yield reading(f"|{name}|^2 / 2", solutions[name].norm ** 2 / 2, reference=known, needs=(), at=at)
        support = (3.0 if case == "tight" else 2.0, "theory")
        yield reading(
            "support vectors of the head", float(targets.support.sum()), reference=support, at=at, n=3
        )
        for name, number in COSINES[case].items():
            of, goal = name[0], solutions[name].W.squeeze(-1)
            for gradient, end in (("exact gradient", states[-1]), ("eps as released", released)):
                known = (number, "recomputed") if end is released else None
                here = {"at": {**at, "gradient": gradient}, "step": steps, "note": CASE_NOTES[case]}
                value = float(cosine(getattr(end, of), goal))
                yield reading(f"cosine of {of} to {name}", value, reference=known, **here)
        attention = [float(instance.attention(state.p)[:, 1].mean()) for state in states]
        probability = [float(instance.predictions(state).sigmoid().mean()) for state in states]
        for quantity, curve in {ATTENTION: attention, PROBABILITY: probability}.items():
            for step, value in zip(measured, curve):
                if case == "tight" and step <= PLOTTED_STEPS:
                    known = (CURVES[quantity][step], "recomputed") if step in CURVES[quantity] else None
                    here = {"unit": "share", "at": at, "step": step, "n": 3, "note": "mean over the inputs"}
                    yield reading(quantity, value, reference=known, needs=("rate",), **here)
        paths = {
            "p": torch.stack([state.p for state in states]),
            "v": torch.stack([state.v for state in states]),
        }
        rays = {name: solution.W.squeeze(-1) for name, solution in solutions.items()}
        key = case.replace(" ", "_")
        named = {"tokens": instance.tokens[:, 1], **paths, **rays}
        yield arrays({f"{name}_{key}": value for name, value in named.items()})
