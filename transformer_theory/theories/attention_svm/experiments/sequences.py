"""One W for many queries an input: where descent goes in causal and in sequence-to-sequence attention."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import causal, sequence_to_sequence
from ..constraint_set import Constraints
from ..dynamics import start, trajectory
from ..figures import sequences
from ..problem import Instance
from ..sequences import causal_instance, causal_problem, sequence_instance, sequence_problem
from ..solvers import frobenius_max_margins

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("tarzanagh2023transformers")
OWN, LAST, FULL = "all queries, allowed tokens", "last query only", "all queries, all tokens"


@dataclass(frozen=True)
class Sequences(RandomExperiment):
    """Normalised descent when every position of an input asks with the same W, against the max-margin solution of all their constraints.

    On the left attention is causal (a position sees itself and those before it), on the right every query sees every token. The solutions
    of the last query's constraints alone, and of constraints that ignore the mask, are what descent does not go to. Each query has one best
    token, all others score the same; W starts at zero.
    """

    inputs: int = setting(3, ge=1, help="number n of inputs")
    tokens: int = setting(5, ge=2, help="number T of tokens of an input")
    dim: int = setting(16, ge=1, help="dimension d of the tokens")
    trials: int = setting(20, ge=1, help="random problems")
    steps: int = setting(10_000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")

    name = "attention_svm.sequences"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Row | Arrays]:
        """Rows at the last step; arrays with every trial's cosines."""
        sizes = {"inputs": self.inputs, "tokens": self.tokens, "dim": self.dim, "trials": self.trials}
        generator = self.generator()
        x, scores, best = causal_problem(**sizes, generator=generator)
        own = causal(x, best)
        targets = {OWN: own, LAST: _last(own), FULL: sequence_to_sequence(x, x, best)}
        yield from self._run("causal", causal_instance(x, scores), targets)
        x, z, scores, best = sequence_problem(**sizes, queries=self.tokens, generator=generator)
        own = sequence_to_sequence(x, z, best)
        yield from self._run("sequence to sequence", sequence_instance(x, z, scores), {OWN: own, LAST: _last(own)})

    def _run(self, kind: str, instance: Instance, targets: dict[str, Constraints]) -> Iterator[Row | Arrays]:
        at = [s for s in (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000) if s < self.steps] + [self.steps]
        states = list(trajectory(instance, start(instance), at=at, rate=self.rate))
        arrays = {f"{NAME}/{kind}/steps": torch.tensor(at).numpy()}
        for target, constraints in targets.items():
            solutions = frobenius_max_margins(constraints)
            solved = solutions.solved
            if not bool(solved.any()):
                yield Row(theory=NAME, quantity=f"{kind}: cosine to {target}", value=None, note="infeasible in every trial")
                continue
            curve = torch.stack([cosine(s.W[solved], solutions.W[solved], dim=(-2, -1)) for s in states], 1)
            arrays[f"{NAME}/{kind}/{target}"] = curve.numpy()
            end = curve[:, -1]
            row = Row(
                theory=NAME,
                quantity=f"{kind}: cosine to {target}",
                value=float(end.median()),
                step=self.steps,
                source=str(SOURCE),
                note=f"median over the {len(end)} of {self.trials} trials that are feasible, smallest {float(end.min()):.5f}",
            )
            if target == OWN:
                row["predicted"], row["basis"] = 1.0, "limit"
            yield row
        hit: Tensor = (instance.selected(states[-1].W) == instance.optimal()).all(-1)
        yield Row(
            theory=NAME,
            quantity=f"{kind}: share of trials that select every best token",
            value=float(hit.double().mean()),
            step=self.steps,
            source=str(SOURCE),
            note="descent from W = 0",
        )
        yield Arrays(arrays)

    def draw(self, result: Result) -> "Figure":
        """Cosines against steps, and how fast the distance falls."""
        return sequences(result)

    @classmethod
    def quick(cls) -> "Sequences":
        """Six trials, 1,000 steps: about half a second."""
        return cls(trials=6, steps=1000)


def _last(constraints: Constraints) -> Constraints:
    """The constraints of the last position of each input, as many in every trial."""
    assert constraints.position is not None
    where = (constraints.position == constraints.position.max()).nonzero()[:, -1].reshape(len(constraints.position), -1)
    rows = where[..., None]
    d, d_z = constraints.difference.shape[-1], constraints.query.shape[-1]
    return Constraints(
        constraints.difference.gather(-2, rows.expand(*where.shape, d)), constraints.query.gather(-2, rows.expand(*where.shape, d_z))
    )
