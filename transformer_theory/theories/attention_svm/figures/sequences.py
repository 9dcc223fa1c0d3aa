"""One W for many queries per input: where descent goes in causal and in sequence-to-sequence attention."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ....core.experiment import RANGE, RandomExperiment, setting
from ....core.figure import Panel, bands
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, TINTS
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import causal, sequence_to_sequence
from ..constraint_set import Constraints
from ..dynamics import start, trajectory
from ..problem import Instance
from ..sequences import causal_instance, causal_problem, sequence_instance, sequence_problem
from ..solvers import frobenius_max_margins
from .common import Reference, median_and_range

SOURCE = Source("tarzanagh2023transformers")
COSINE, BEST_SELECTED = "cosine to the max-margin solution", "share of trials that select every best token"
OWN, LAST, FULL = "all queries, allowed tokens", "last query only", "all queries, all tokens"
DISTANCE, ALL = "1 - cosine to the max-margin solution", "sequence to sequence"
TITLES = {"causal": "Causal", ALL: "Sequence to sequence"}
LINES = (
    "constraints",
    {
        OWN: {"label": "its own constraints", "color": TINTS[0]},
        FULL: {"label": "mask ignored", "color": TINTS[1], "linestyle": "--"},
        LAST: {"label": "last query only", "color": COLOURS["null"], "linestyle": ":"},
    },
)
AXES = {"ylabel": "cosine", "ylim": (0, 1.04)}


@dataclass(frozen=True)
class Sequences(RandomExperiment):
    """Normalised descent with many queries per input and one W, compared with the max-margin solution under
    the constraints of all queries.

    In the left panel attention is causal (a position attends to itself and earlier positions); in the middle
    panel every query attends to every token. Both panels also show the solution under the constraints of the
    last query alone, and the left one the solution under constraints that ignore the mask. The right panel
    shows 1 - cosine to the predicted solution. Each query has one best token, and all other tokens score the
    same. W starts at zero.
    """

    inputs: int = setting(3, ge=1, help="number n of inputs")
    tokens: int = setting(5, ge=2, help="number T of tokens per input")
    dim: int = setting(16, ge=1, help="dimension d of the tokens")
    trials: int = setting(20, ge=1, help="random problems")
    steps: int = setting(10_000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")

    name = "attention_svm.sequences"
    sources = (SOURCE,)

    view = bands(
        spread=RANGE,
        panels=(
            Panel(TITLES["causal"], COSINE, {"attention": "causal"}, LINES, legend="lower right", axes=AXES),
            Panel(TITLES[ALL], COSINE, {"attention": ALL}, LINES, legend="lower right", axes=AXES),
            Panel("1 − cosine, median", DISTANCE, {"constraints": OWN}, "attention", axes={"yscale": "log"}),
        ),
        log="x",
        caption="Lines: median over the feasible problems among {trials} random ones; bands: smallest to "
        "largest. Left and middle: cosine of W to the max-margin solutions under its own constraints, "
        "under constraints that ignore the mask, and under those of the last query only. Right: distance "
        "to the solution under its own constraints.",
        size=(7.0, 2.9),
    )

    def measure(self) -> Iterator[Measurement]:
        """Yields medians and ranges over the trials, at each step."""
        sizes = {"inputs": self.inputs, "tokens": self.tokens, "dim": self.dim, "trials": self.trials}
        generator = self.generator()
        x, scores, best = causal_problem(**sizes, generator=generator)
        all_queries = causal(x, best)
        targets = {OWN: all_queries, LAST: _last(all_queries), FULL: sequence_to_sequence(x, x, best)}
        yield from self._run("causal", causal_instance(x, scores), targets)
        x, z, scores, best = sequence_problem(**sizes, queries=self.tokens, generator=generator)
        all_queries = sequence_to_sequence(x, z, best)
        targets = {OWN: all_queries, LAST: _last(all_queries)}
        yield from self._run(ALL, sequence_instance(x, z, scores), targets)

    def _run(self, kind: str, instance: Instance, targets: dict[str, Constraints]) -> Iterator[Measurement]:
        """Yields the rows of one kind of attention."""
        steps = [s for s in (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000) if s < self.steps]
        steps.append(self.steps)
        states = list(trajectory(instance, start(instance), steps=steps, rate=self.rate))
        for target, constraints in targets.items():
            solutions, at = frobenius_max_margins(constraints), {"attention": kind, "constraints": target}
            solved = solutions.solved
            if not bool(solved.any()):
                yield self.row(COSINE, None, at=at, reason="infeasible in every trial")
                continue
            for step, state in zip(steps, states):
                values = cosine(state.W[solved], solutions.W[solved], dim=(-2, -1))
                note = (
                    f"median over the feasible trials among {self.trials}, smallest {float(values.min()):.5f}"
                )
                limit: Reference | None = (1.0, "limit") if target == OWN else None
                here = {"at": at, "step": step}
                yield from median_and_range(self, COSINE, values, note=note, reference=limit, **here)
                yield self.row(DISTANCE, float(np.median(1 - values)), n=len(values), **here)
        selected: Tensor = (instance.selected(states[-1].W) == instance.optimal()).all(-1)
        here = {"unit": "share", "at": {"attention": kind}, "step": self.steps, "n": self.trials}
        yield self.row(BEST_SELECTED, float(selected.double().mean()), **here)

    @classmethod
    def quick(cls) -> "Sequences":
        """Returns a small version: six trials and 1,000 steps, about half a second."""
        return cls(trials=6, steps=1000)


def _last(constraints: Constraints) -> Constraints:
    """Returns the constraints of the last position of each input."""
    # Every trial has equally many such constraints, so their indices form a matrix [trials, constraints].
    index = (
        (constraints.position == constraints.position.max())
        .nonzero()[:, -1]
        .reshape(len(constraints.position), -1)
    )
    rows = index[..., None]
    d, d_z = constraints.difference.shape[-1], constraints.query.shape[-1]
    return Constraints(
        constraints.difference.gather(-2, rows.expand(*index.shape, d)),
        constraints.query.gather(-2, rows.expand(*index.shape, d_z)),
    )
