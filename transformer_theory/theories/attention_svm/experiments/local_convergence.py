"""Runs that repeat the published figures."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ....citations import Source
from ....experiment import Experiment, Result
from ....linalg import cosine
from ....rows import Arrays, Row
from ..builders import constraints
from ..dynamics import random_start, trajectory
from ..figures import local_convergence
from ..problem import Instance, published_instance
from ..solvers import frobenius_max_margin, nuclear_max_margin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("tarzanagh2023transformers")


@dataclass(frozen=True)
class LocalConvergence(Experiment):
    """Normalised descent on W from a random start, against the max-margin solutions of the tokens that it selects in the end.

    The theory says the Frobenius solution; the nuclear one, of the same tokens, is where descent on the factors goes. The published figure
    (n = 6, T = 8, d = 10, 100 trials) shows about .99 and .86 at step 1000. Data are drawn as published; the starts are this seed's.
    """

    inputs: int = 6
    tokens: int = 8
    dim: int = 10
    trials: int = 100
    steps: int = 2000
    rate: float = 0.1

    name = "attention_svm.local_convergence"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Row | Arrays]:
        """Rows at step 1000 (or the last before) and at the end; arrays with every trial's cosines."""
        drawn = [published_instance(seed, inputs=self.inputs, tokens=self.tokens, dim=self.dim) for seed in range(self.trials)]
        instance = Instance(*(torch.stack([getattr(one, name) for one in drawn]) for name in ("tokens", "query", "scores")))
        at = [s for s in (0, 10, 20, 50, 100, 150, 200, 300, 400, 500, 700, 1000, 1500) if s < self.steps] + [self.steps]
        states = list(trajectory(instance, random_start(instance, generator=self.generator()), at=at, rate=self.rate))
        select = instance.selected(states[-1].W)
        pairs = [constraints(instance.tokens[b], instance.query[b], select[b]) for b in range(self.trials)]
        targets = {
            "frobenius": torch.stack([frobenius_max_margin(c).W for c in pairs]),
            "nuclear": torch.stack([nuclear_max_margin(c).W for c in pairs]),
        }
        curves = {name: torch.stack([cosine(state.W, target, dim=(-2, -1)) for state in states], 1) for name, target in targets.items()}
        for step in sorted({max(s for s in at if s <= 1000), self.steps}):
            for name, curve in curves.items():
                values = curve[:, at.index(step)]
                note = f"mean over {self.trials} trials, standard deviation {float(values.std(correction=0)):.4f}"
                yield Row(
                    theory=NAME,
                    quantity=f"cosine to the {name} max-margin solution",
                    value=float(values.mean()),
                    step=step,
                    source=str(SOURCE),
                    note=note,
                )
        attention = instance.attention(states[-1].W).amax(-1)
        best = (select == instance.optimal()).all(-1).double().mean()
        yield Row(theory=NAME, quantity="attention on the selected token, mean", value=float(attention.mean()), step=self.steps)
        yield Row(theory=NAME, quantity="share of trials that select every best token", value=float(best), step=self.steps)
        yield Arrays(
            {f"{NAME}/steps": torch.tensor(at).numpy(), **{f"{NAME}/cosine_{name}": curve.numpy() for name, curve in curves.items()}}
        )

    def draw(self, result: Result) -> "Figure":
        """Cosine against step, both norms."""
        return local_convergence(result)

    @classmethod
    def quick(cls) -> "LocalConvergence":
        """Eight trials, 600 steps: about a second."""
        return cls(trials=8, steps=600)
