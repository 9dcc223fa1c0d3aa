"""Normalised descent for a million steps, compared with the same descent by automatic differentiation."""

import math
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
from ..builders import constraints
from ..claims.common import direction_error
from ..dynamics import start, trajectory
from ..problem import Instance, cross_attention
from ..solvers import frobenius_max_margins
from .common import NAME, Reference, arrays_of, figure_row, mark_steps, references

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("vasudeva2025implicit")
DISTANCE = "1 - cosine to the max-margin solution"
SMALLEST, SLOPE = (
    "smallest 1 - cosine to the max-margin solution",
    "slope of the logarithm of the direction error",
)
EXACT = "exact gradient"
AUTOGRAD = {"naive": "autograd", "naive_eps": "autograd, eps in the norm"}
# step -> median of 1 - cosine at the default sizes, from a separate implementation of the same descent:
# another draw of the data.
KNOWN = {30: 0.41, 100: 0.25, 300: 0.044, 1000: 4.7e-3, 3000: 6.4e-4, 10_000: 6.4e-5}
EPS = {"naive": 0.0, "naive_eps": torch.finfo(torch.float64).eps}
BLUE, RED, AMBER, GREY = (COLOURS[name] for name in ("attention_svm", "scan_snap", "joma", "null"))


def by_differentiation(instance: Instance, *, steps: list[int], rate: float, eps: float) -> list[Tensor]:
    """Returns W at ``steps`` of normalised descent from W = 0, with the gradient by autograd through softmax
    and loss.
    """
    W, checkpoints = start(instance).W, []
    for step in range(steps[-1] + 1):
        if step in steps:
            checkpoints.append(W)
        W = W.detach().requires_grad_()
        attention = (instance.tokens @ (instance.query @ W.mT)[..., None]).squeeze(-1).softmax(-1)
        # Trials do not interact, so the gradient of the sum over trials holds the gradient of each trial.
        loss = torch.nn.functional.softplus(-(attention * instance.scores).sum(-1)).mean(-1).sum()
        (gradient,) = torch.autograd.grad(loss, W)
        W = W.detach() - rate * gradient / (torch.linalg.matrix_norm(gradient)[..., None, None] + eps)
    return checkpoints


def logarithmic_steps(steps: int) -> list[int]:
    """Returns about twelve steps per decade, including 1, 3, 10, 30, ... and the last step."""
    decades = range(math.ceil(math.log10(max(steps, 10))))
    round_steps = {f * 10**k for k in decades for f in (1, 3)}
    return sorted(
        {s for s in round_steps | {round(10 ** (k / 12)) for k in range(12 * len(decades))} if s <= steps}
        | {steps}
    )


@dataclass(frozen=True)
class LongRun(RandomExperiment):
    """Normalised descent on W from W = 0 for a million steps, on eight random problems (n = 6, T = 8, d = 10)
    at once.

    The error of the direction, relative to the max-margin solution of the selected tokens, falls like 1/t, so
    1 - cosine falls like 1/t^2 indefinitely. The same descent by autograd fails near step 1,000: attention
    saturates, the gradient consists of rounding errors, and normalisation scales these to a full step. The
    released runs add the rounding unit to the norm of the gradient, which stops descent there instead.
    """

    inputs: int = setting(6, ge=1, help="number n of inputs")
    tokens: int = setting(8, ge=2, help="number T of tokens per input")
    dim: int = setting(10, ge=2, help="dimension d of the tokens")
    trials: int = setting(8, ge=1, help="random problems")
    steps: int = setting(1_000_000, ge=2, help="steps of descent")
    naive_steps: int = setting(20_000, ge=1, help="steps of descent by autograd")
    rate: float = setting(0.1, gt=0, le=10, help="length of a step")

    name = "attention_svm.long_run"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields rows with slope and medians, and with the smallest and last medians by autograd; arrays with
        the error of every trial.
        """
        instance = cross_attention(
            inputs=self.inputs,
            tokens=self.tokens,
            dim=self.dim,
            trials=self.trials,
            generator=self.generator(),
        )
        steps, early = logarithmic_steps(self.steps), logarithmic_steps(self.naive_steps)
        states = list(trajectory(instance, start(instance), steps=steps, rate=self.rate))
        select = instance.selected(states[-1].W)
        targets = frobenius_max_margins(constraints(instance.tokens, instance.query, select))
        solved = targets.solved
        error = torch.stack([direction_error(state.W, targets.W)[solved] for state in states])
        naive = {
            name: torch.stack(
                [
                    direction_error(W, targets.W)[solved]
                    for W in by_differentiation(instance, steps=early, rate=self.rate, eps=eps)
                ]
            )
            for name, eps in EPS.items()
        }
        yield from self._rows(steps, error)
        for name, variant in AUTOGRAD.items():
            # 1 - cosine is half the squared distance of the unit matrices
            median = (naive[name] ** 2 / 2).median(-1).values
            best = int(median.argmin())
            yield self._row(SMALLEST, float(median[best]), variant, early[best])
            yield self._row(DISTANCE, float(median[-1]), variant, early[-1])
        arrays = {"steps": torch.tensor(steps), "error": error, "naive_steps": torch.tensor(early), **naive}
        yield Arrays({f"{NAME}/{name}": value.numpy() for name, value in arrays.items()})

    def _rows(self, steps: list[int], error: Tensor) -> Iterator[Measurement]:
        """Yields the medians and the slope of descent with the exact gradient; ``error`` is [steps, trials]."""
        median = (error**2 / 2).median(-1).values
        comparable = self.at_defaults("inputs", "tokens", "dim", "trials", "rate")
        for step in sorted({*KNOWN, steps[-1]} & set(steps)):
            reference: Reference | None = (
                (KNOWN[step], "recomputed") if comparable and step in KNOWN else None
            )
            yield self._row(DISTANCE, float(median[steps.index(step)]), EXACT, step, reference=reference)
        # Least squares in logarithms over the last two decades of steps; -1 means an error like 1/t.
        numbers = torch.tensor(steps, dtype=torch.float64)
        late = numbers >= self.steps / 100
        x, y = numbers[late].log(), error[late].median(-1).values.log()
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
        note = "least squares over the last two decades of steps"
        yield self._row(SLOPE, slope, EXACT, steps[-1], reference=(-1.0, "limit"), note=note)

    def _row(
        self,
        quantity: str,
        value: float,
        variant: str,
        step: int,
        *,
        note: str = "median over the problems",
        **columns,
    ) -> Measurement:
        return figure_row(
            quantity, value, SOURCE, at={"setting": variant}, step=step, n=self.trials, note=note, **columns
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots 1 - cosine (median and range, exact and by autograd) and the direction error times the step,
        both against the step.
        """
        a, reference_rows = arrays_of(result), references(result.table.select(quantity=DISTANCE))
        figure, (left, right) = axes(1, 2, width=7.0, height=3.4)
        for name, steps, tint, label in (
            ("error", "steps", BLUE, "exact gradient"),
            ("naive", "naive_steps", RED, "by autograd"),
            ("naive_eps", "naive_steps", AMBER, "by autograd, eps in the norm"),
        ):
            distance = a[name] ** 2 / 2
            left.fill_between(a[steps], distance.min(1), distance.max(1), color=tint, alpha=0.15, linewidth=0)
            left.plot(
                a[steps], np.median(distance, 1), color=tint, label=label, zorder=4 if name == "error" else 3
            )
        last, end = a["steps"][-1], np.median(a["error"][-1] ** 2) / 2
        # The reference line ends at a quarter of the last median, so that it lies below the curve.
        line = np.array([min(300, last / 3), last])
        left.plot(
            line,
            0.25 * end * (last / line) ** 2,
            color=GREY,
            linestyle=(0, (4, 3)),
            linewidth=1,
            label=r"slope of $1/t^2$",
        )
        mark_steps(left, reference_rows)
        left.set(xscale="log", yscale="log", title="1 − cosine to the max-margin solution", xlabel="step t")
        left.legend(loc="lower left")
        for curve in a["error"].T:
            right.plot(a["steps"], a["steps"] * curve, color=BLUE, linewidth=1, alpha=0.8)
        right.set(xscale="log", yscale="log", title="Direction error times t", xlabel="step t")
        note = (
            "Crosses: medians over other random data, by a separate implementation. "
            if len(reference_rows)
            else ""
        )
        caption(
            figure,
            f"Left: median of {a['error'].shape[1]} random problems; bands: smallest to largest. "
            f"{note}Right: one curve per problem; the error is the distance of W/|W| from the unit "
            "max-margin solution, and a level curve means an error like 1/t.",
        )
        return figure

    @classmethod
    def quick(cls) -> "LongRun":
        """Returns a small version: 3,000 steps, of which 1,500 also by autograd, about a second."""
        return cls(trials=4, steps=3000, naive_steps=1500)
