"""Prompt and head trained together: two max-margin directions at once, and the relaxed one where an input has label margin to spare."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Basis, Row
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ..dynamics.joint import JointInstance, JointState, joint_descent, joint_targets
from ..figures import joint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("tarzanagh2023maxmargin")
CASES = {"tight": 1.0, "not tight": 1.5}  # the second coordinate of the last input's token
# The paper shows this example as pictures; these numbers come from its settings by plain autograd and a general convex solver.
ATTENTION = {"tight": {0: 0.423, 10: 0.389, 30: 0.719, 60: 0.967, 90: 0.996}}  # on the selected token, mean over the inputs
PROBABILITY = {"tight": {0: 0.525, 10: 0.625, 30: 0.869, 60: 0.996, 90: 1.0}}  # of the right label, mean over the inputs
COSINES = {  # at step 1000 with the released EPS
    "tight": {"p_mm": 0.99996, "v_mm": 0.99996},
    "not tight": {"p_mm": 0.9875, "p_relax": 0.9992},
}
EPS = (1e-19, 1e-9)  # added to the norms of the two gradients in the released run
OBJECTIVES = {"tight": (0.94444, 0.5)}  # |p_mm|^2 / 2 and |v_mm|^2 / 2


def published_joint(case: str) -> JointInstance:
    """The published example: three inputs of two tokens, one of them zero; ``"tight"`` or ``"not tight"``.

    Source: :cite:t:`tarzanagh2023maxmargin`.
    """
    chosen = torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.5, CASES[case]]], dtype=torch.float64)
    return JointInstance(torch.stack([torch.zeros_like(chosen), chosen], 1), torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64))


@dataclass(frozen=True)
class Joint(Experiment):
    """Normalised descent on prompt and head at once, where every input is a support vector of the head (tight) and where one is not.

    Tight: p goes to p_mm, which separates the selected token of every input by one. Not tight: p goes to p_relax, which separates those of
    the support vectors by one and asks of the others only that their selected token is not below. The data are the published ones, and
    nothing is drawn at random.
    """

    steps: int = setting(1000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")

    name = "attention_svm.joint"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Row | Arrays]:
        """Rows beside the published numbers; arrays with the paths and both probabilities."""
        at = sorted({*range(0, min(151, self.steps), 2), *range(0, self.steps, 20), self.steps})
        arrays = {"steps": torch.tensor(at)}
        for case in CASES:
            instance, select = published_joint(case), torch.ones(3, dtype=torch.long)
            targets = joint_targets(instance, select)
            state = JointState(torch.tensor([0.0, -1.0], dtype=torch.float64), torch.tensor([-1.0, 0.0], dtype=torch.float64))
            states = []
            for step in at:
                state = joint_descent(instance, state, steps=step - state.step, rate=self.rate)
                states.append(state)
            p, v = torch.stack([s.p for s in states]), torch.stack([s.v for s in states])
            attention = torch.stack([instance.attention(s.p)[:, 1].mean() for s in states])
            probability = torch.stack([instance.predictions(s).sigmoid().mean() for s in states])
            solved = {"p_mm": targets.sharp, "p_relax": targets.relaxed, "v_mm": targets.head}
            key = case.replace(" ", "_")
            arrays |= {f"tokens_{key}": instance.tokens[:, 1], f"p_{key}": p, f"v_{key}": v}
            arrays |= {f"attention_{key}": attention, f"probability_{key}": probability}
            arrays |= {f"{name}_{key}": solution.W.squeeze(-1) for name, solution in solved.items()}
            for (name, solution), known in zip((("p_mm", targets.sharp), ("v_mm", targets.head)), OBJECTIVES.get(case, (None, None))):
                yield self._row(f"|{name}|^2 / 2, {case}", solution.norm**2 / 2, known, note="objective of the max-margin problem")
            yield self._row(
                f"support vectors of the head, {case}",
                float(targets.support.sum()),
                3.0 if case == "tight" else 2.0,
                basis="theory",
                note="of three inputs",
            )
            begin = JointState(p[0], v[0])
            released = joint_descent(instance, begin, steps=self.steps, rate=self.rate, eps=EPS)
            for name, known in COSINES[case].items():
                goal, which = solved[name].W.squeeze(-1), name[0]
                for how, ends in (("exact gradient", states[-1]), ("eps as released", released)):
                    shown = known if ends is released and self.at_defaults("steps", "rate") else None
                    value = float(cosine(getattr(ends, which), goal))
                    yield self._row(f"cosine of {which} to {name}, {case}, {how}", value, shown, step=self.steps, note=NOTES[case])
            for words, curve, known in (
                ("attention on the selected token", attention, ATTENTION),
                ("probability of the right label", probability, PROBABILITY),
            ):
                for step, value in known.get(case, {}).items():
                    if step in at:
                        shown = value if self.at_defaults("rate") else None
                        yield self._row(f"{words}, {case}", float(curve[at.index(step)]), shown, step=step, note="mean over the inputs")
        yield Arrays({f"{NAME}/{name}": value.numpy() for name, value in arrays.items()})

    def _row(self, quantity: str, value: float, predicted: float | None, *, basis: Basis = "recomputed", **where) -> Row:
        row = Row(theory=NAME, quantity=quantity, value=value, source=str(SOURCE), **where)
        if predicted is not None:
            row["predicted"], row["basis"] = predicted, basis
        return row

    def draw(self, result: Result) -> "Figure":
        """Paths of p and v with the directions that the theory says; both probabilities over the steps, with the published numbers."""
        return joint(result)

    @classmethod
    def quick(cls) -> "Joint":
        """150 steps: a fifth of a second."""
        return cls(steps=150)


NOTES = {
    "tight": "every input is a support vector of the head: p should go to p_mm",
    "not tight": "the last input is no support vector of the head: p should go to p_relax",
}
