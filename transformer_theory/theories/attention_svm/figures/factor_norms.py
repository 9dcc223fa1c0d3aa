"""Descent on K and Q: with the published penalty, with separate norms, and with one common norm."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ....core.experiment import RANGE, RandomExperiment, setting
from ....core.figure import Panel, bands
from ....core.measurement import Measurement
from ....core.sources import Source
from ....maths.linalg import cosine
from ..balance import common_norm_trajectory, imbalance, penalised_residual
from ..builders import constraints
from ..dynamics import Factors, normalised_descent, random_factors, trajectory
from ..problem import Instance
from ..published import published_instances
from ..solvers import nuclear_max_margins
from .common import median_and_range
from .long_run import logarithmic_steps

SOURCE = Source("tarzanagh2023transformers")
PENALTY = torch.finfo(torch.float64).eps  # weight of the squared norms of K and Q, as published
RUNS = {
    "penalised": "separate norms, published penalty",
    "separate": "separate norms, no penalty",
    "common": "one common norm, no penalty",
}
LOOKS = dict(
    zip(
        RUNS.values(),
        ({"label": text} for text in ("published penalty", "separate norms", "one common norm")),
    )
)
DISTANCE = "1 - cosine to the nuclear solution"
NORM = "nuclear norm of K Q^T"
IMBALANCE = "imbalance of K and Q relative to the nuclear norm"
RESIDUAL = "residual of the stationarity equations"
TITLES = {DISTANCE: "1 − cosine, nuclear", NORM: "Nuclear norm of $KQ^\\top$", IMBALANCE: "Imbalance"}
SHORTER = (0.01, 1e-3, 1e-4)  # lengths of the steps before the residual is measured


def quantities(instance: Instance, states: list[Factors]) -> dict[str, Tensor]:
    """Returns distance, norm and imbalance ``[steps, trials]`` of the states of one run; NaN where the
    selection has no solution.
    """
    W = torch.stack([state.W for state in states])
    solutions = nuclear_max_margins(constraints(instance.tokens, instance.query, instance.selected(W[-1])))
    distance = 1 - cosine(W, solutions.W.expand_as(W), dim=(-2, -1))
    norm = torch.linalg.matrix_norm(W, ord="nuc")
    unequal = torch.stack([torch.linalg.matrix_norm(imbalance(state), ord="nuc") for state in states])
    return {
        DISTANCE: distance.masked_fill(~solutions.solved, torch.nan),
        NORM: norm,
        IMBALANCE: unequal / norm,
    }


@dataclass(frozen=True)
class FactorNorms(RandomExperiment):
    """Normalised descent on the factors of W = K Q^T, in three variants, over a hundred thousand steps, on
    published data.

    As published: K and Q are normalised separately, and the loss has the rounding unit times their squared
    norms as a penalty. This run stops at a finite point, where the gradient of the loss balances the penalty.
    Without the penalty the norm grows; 1 - cosine to the nuclear solution of the selected tokens reaches a
    plateau if K and Q are normalised separately, and falls if both are divided by one common norm. The
    imbalance of K and Q, ||K^T K - Q^T Q||_* relative to ||K Q^T||_*, shows why: it must vanish for a nuclear
    solution, and without penalty it does so only with the common norm.
    """

    inputs: int = setting(6, ge=1, help="number n of inputs")
    tokens: int = setting(8, ge=2, help="number T of tokens per input")
    dim: int = setting(10, ge=2, help="dimension d of the tokens")
    trials: int = setting(20, ge=1, help="random problems")
    steps: int = setting(100_000, ge=2, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=10, help="length of a step")

    name = "attention_svm.factor_norms"
    sources = (SOURCE,)

    view = bands(
        spread=RANGE,
        panels=[
            Panel(title, quantity, lines=("descent", LOOKS), legend="upper left" if quantity == NORM else "")
            for quantity, title in TITLES.items()
        ],
        log="xy",
        caption="Median of {trials} random problems; bands: smallest to largest. The run with the penalty "
        "has separate norms. Solutions are those of the tokens selected at the last step. Imbalance: "
        "$\\|K^\\top K - Q^\\top Q\\|_* / \\|KQ^\\top\\|_*$.",
        size=(7.0, 3.3),
    )

    def measure(self) -> Iterator[Measurement]:
        """Yields medians and ranges over the steps, and the residual of the penalised run."""
        sizes = {"inputs": self.inputs, "tokens": self.tokens, "dim": self.dim}
        instance = published_instances(range(self.trials), **sizes)
        first = random_factors(instance, generator=self.generator())
        steps = logarithmic_steps(self.steps)
        runs = {
            "penalised": trajectory(instance, first, steps=steps, rate=self.rate, penalty=PENALTY),
            "separate": trajectory(instance, first, steps=steps, rate=self.rate),
            "common": common_norm_trajectory(instance, first, steps=steps, rate=self.rate),
        }
        for run, states in runs.items():
            states, at = list(states), {"descent": RUNS[run]}
            for quantity, curve in quantities(instance, states).items():
                for step, values in zip(steps, curve):
                    yield from median_and_range(self, quantity, values, at=at, step=step)
            if run == "penalised":
                end = states[-1]
                for rate in SHORTER:
                    end = normalised_descent(instance, end, steps=200, rate=rate, penalty=PENALTY)
                residual = penalised_residual(instance, end, penalty=PENALTY)
                limit = {"predicted": 0.0, "basis": "limit"}
                yield from median_and_range(self, RESIDUAL, residual, at=at, step=end.step, **limit)

    @classmethod
    def quick(cls) -> "FactorNorms":
        """Returns a small version: four problems and 2,000 steps, about a second."""
        return cls(trials=4, steps=2000)
