"""Descent on K and Q: with the published penalty, with separate norms, and with one common norm."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ..balance import common_norm_trajectory, imbalance, penalised_residual
from ..builders import constraints
from ..dynamics import Factors, normalised_descent, random_factors, trajectory
from ..problem import Instance
from ..published import published_instances
from ..solvers import nuclear_max_margins
from .common import NAME, arrays_of, figure_row
from .long_run import logarithmic_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023transformers")
PENALTY = torch.finfo(torch.float64).eps  # weight of the squared norms of K and Q, as published
RUNS = {
    "penalised": "separate norms, published penalty",
    "separate": "separate norms, no penalty",
    "common": "one common norm, no penalty",
}
LABELS = {"penalised": "published penalty", "separate": "separate norms", "common": "one common norm"}
TINTS = {
    "penalised": COLOURS["rate_reduction"],
    "separate": COLOURS["scan_snap"],
    "common": COLOURS["attention_svm"],
}
DISTANCE = "1 - cosine to the nuclear solution"
NORM = "nuclear norm of K Q^T"
IMBALANCE = "imbalance of K and Q relative to the nuclear norm"
RESIDUAL = "residual of the stationarity equations"
QUANTITIES = {"distance": DISTANCE, "norm": NORM, "imbalance": IMBALANCE}
SHORTER = (0.01, 1e-3, 1e-4)  # lengths of the steps before the residual is measured
MARKS = (1000, 10_000, 100_000)  # steps that have rows, besides the last


def curves(instance: Instance, states: list[Factors]) -> dict[str, Tensor]:
    """Returns distance, norm and imbalance ``[steps, trials]`` of the states of one run; NaN where the
    selection has no solution.
    """
    W = torch.stack([state.W for state in states])
    solutions = nuclear_max_margins(constraints(instance.tokens, instance.query, instance.selected(W[-1])))
    distance = 1 - cosine(W, solutions.W.expand_as(W), dim=(-2, -1))
    norm = torch.linalg.matrix_norm(W, ord="nuc")
    unequal = torch.stack([torch.linalg.matrix_norm(imbalance(state), ord="nuc") for state in states])
    return {
        "distance": distance.masked_fill(~solutions.solved, torch.nan),
        "norm": norm,
        "imbalance": unequal / norm,
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

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields medians at some steps and the residual of the penalised run, and arrays [steps, trials] of
        every run.
        """
        instance = published_instances(
            range(self.trials), inputs=self.inputs, tokens=self.tokens, dim=self.dim
        )
        first = random_factors(instance, generator=self.generator())
        steps = logarithmic_steps(self.steps)
        runs = {
            "penalised": trajectory(instance, first, steps=steps, rate=self.rate, penalty=PENALTY),
            "separate": trajectory(instance, first, steps=steps, rate=self.rate),
            "common": common_norm_trajectory(instance, first, steps=steps, rate=self.rate),
        }
        yield Arrays({f"{NAME}/steps": np.array(steps)})
        for run, states in runs.items():
            states = list(states)
            for name, values in curves(instance, states).items():
                for step in sorted({*MARKS, self.steps} & set(steps)):
                    yield self._row(QUANTITIES[name], run, step, values[steps.index(step)])
                yield Arrays({f"{NAME}/{run}_{name}": values.numpy()})
            if run == "penalised":
                end = states[-1]
                for rate in SHORTER:
                    end = normalised_descent(instance, end, steps=200, rate=rate, penalty=PENALTY)
                yield self._row(
                    RESIDUAL, run, end.step, penalised_residual(instance, end, penalty=PENALTY), limit=0.0
                )

    def _row(
        self, quantity: str, run: str, step: int, values: Tensor, *, limit: float | None = None
    ) -> Measurement:
        known = values[values.isfinite()]
        note = (
            f"median over the problems; range {float(known.min()):.3g} to {float(known.max()):.3g}"
            if len(known)
            else ""
        )
        return figure_row(
            quantity,
            float(known.median()) if len(known) else None,
            SOURCE,
            reference=None if limit is None else (limit, "limit"),
            at={"setting": RUNS[run]},
            step=step,
            n=len(known),
            note=note,
            reason="" if len(known) else "no selection has a solution",
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots 1 - cosine to the nuclear solution, the nuclear norm and the imbalance against the step:
        median and range.
        """
        a = arrays_of(result)
        figure, panels = axes(1, 3, width=7.0, height=3.3)
        for ax, name, title in zip(
            panels, QUANTITIES, ("1 − cosine, nuclear", "Nuclear norm of $KQ^\\top$", "Imbalance")
        ):
            for run, label in LABELS.items():
                values = a[f"{run}_{name}"]
                ax.fill_between(
                    a["steps"],
                    np.nanmin(values, 1),
                    np.nanmax(values, 1),
                    color=TINTS[run],
                    alpha=0.13,
                    linewidth=0,
                )
                ax.plot(a["steps"], np.nanmedian(values, 1), color=TINTS[run], label=label)
            ax.set(xscale="log", yscale="log", xlabel="step", title=title)
        panels[1].legend(loc="upper left", fontsize=7, handlelength=1.4)
        caption(
            figure,
            f"Median of {a['common_norm'].shape[1]} random problems; bands: smallest to largest. The run "
            "with the penalty has separate norms. Solutions are those of the tokens selected at the last "
            "step. Imbalance: $\\|K^\\top K - Q^\\top Q\\|_* / \\|KQ^\\top\\|_*$.",
        )
        return figure

    @classmethod
    def quick(cls) -> "FactorNorms":
        """Returns a small version: four problems and 2,000 steps, about a second."""
        return cls(trials=4, steps=2000)
