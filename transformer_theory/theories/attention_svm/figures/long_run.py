"""Normalised descent for a million steps, compared with the same descent by automatic differentiation."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ....core.experiment import RANGE, RandomExperiment, setting
from ....core.figure import Panel, bands
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ..builders import constraints
from ..claims.common import direction_error
from ..dynamics import start, trajectory
from ..problem import Instance, cross_attention
from ..solvers import frobenius_max_margins
from .common import median_and_range

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
TIMES_STEP = "direction error times the step"
LOOKS = {
    EXACT: {"label": "exact gradient", "zorder": 4},
    AUTOGRAD["naive"]: {"label": "by autograd"},
    AUTOGRAD["naive_eps"]: {"label": "by autograd, eps in the norm"},
}


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

    view = bands(
        spread=RANGE,
        panels=(
            Panel(
                "1 − cosine to the max-margin solution",
                DISTANCE,
                lines=("gradient", LOOKS),
                legend="lower left",
            ),
            Panel("Direction error times t", TIMES_STEP, lines="problem", legend=""),
        ),
        log="xy",
        caption="Left: median of {trials} random problems; bands: smallest to largest. Crosses: medians "
        "over other random data, by a separate implementation. Right: one curve per problem; the error is "
        "the distance of W/|W| from the unit max-margin solution, and a level curve means an error like "
        "1/t.",
        size=(7.0, 3.4),
    )

    def measure(self) -> Iterator[Measurement]:
        """Yields medians and ranges over the steps, the error of every trial, and the slope."""
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
            distance = naive[name] ** 2 / 2
            for step, values in zip(early, distance):
                yield from self._row(DISTANCE, values, variant, step)
            best = int(distance.median(-1).values.argmin())
            yield from self._row(SMALLEST, distance[best], variant, early[best])

    def _rows(self, steps: list[int], error: Tensor) -> Iterator[Measurement]:
        """Yields the medians and the slope of descent with the exact gradient; ``error`` is
        [steps, trials].
        """
        comparable = self.at_defaults("inputs", "tokens", "dim", "trials", "rate")
        for step, errors in zip(steps, error):
            reference = (KNOWN[step], "recomputed") if comparable and step in KNOWN else None
            yield from self._row(DISTANCE, errors**2 / 2, EXACT, step, reference=reference)
            for problem, value in enumerate((step * errors).tolist()):
                yield self.row(TIMES_STEP, value, at={"problem": problem}, step=step)
        # Least squares in logarithms over the last two decades of steps; -1 means an error like 1/t.
        numbers = torch.tensor(steps, dtype=torch.float64)
        late = numbers >= self.steps / 100
        x, y = numbers[late].log(), error[late].median(-1).values.log()
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
        here = {"at": {"gradient": EXACT}, "step": steps[-1], "n": self.trials}
        note = "least squares over the last two decades of steps"
        yield self.row(SLOPE, slope, reference=(-1.0, "limit"), note=note, **here)

    def _row(
        self, quantity: str, values: Tensor, gradient: str, step: int, **columns: Any
    ) -> Iterator[Measurement]:
        here = {"at": {"gradient": gradient}, "step": step, "note": "median over the problems"}
        yield from median_and_range(self, quantity, values, **here, **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds a line with the slope of 1/t^2 below the curve of the exact gradient."""
        figure = super().plot(result)
        rows = result.select(quantity=DISTANCE, at={"gradient": EXACT})
        step, value = rows.column("step")[-1], rows.column("value")[-1]
        # The reference line ends at a quarter of the last median.
        line = np.array([min(300, step / 3), step])
        look = {
            "color": COLOURS["null"],
            "linestyle": (0, (4, 3)),
            "linewidth": 1,
            "label": "slope of $1/t^2$",
        }
        figure.axes[0].plot(line, 0.25 * value * (step / line) ** 2, **look)
        figure.axes[0].legend(loc="lower left")
        return figure

    @classmethod
    def quick(cls) -> "LongRun":
        """Returns a small version: 3,000 steps, of which 1,500 also by autograd, about a second."""
        return cls(trials=4, steps=3000, naive_steps=1500)
