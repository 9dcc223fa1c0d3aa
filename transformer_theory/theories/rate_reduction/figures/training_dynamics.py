"""Training on the rate reduction, step by step: R rises, R^c rises much less, and ΔR approaches its optimum.

The network and the split of the handwritten digits are those of :mod:`.label_corruption`, with true labels.
The rates are computed from all training samples at once, in evaluation mode. Unseen samples are fewer, which
raises their ΔR, so compare it with its own null.

Source: :cite:t:`yu2020learning`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.figure import Panel, bands
from ....core.measurement import Measurement, Null
from ....core.plotting import TINTS, colour, style
from ....core.result import Result
from ....metrics.coding import class_coding_rate, coding_rate, unit_norm
from ....training.fitting import at_steps, permuted
from ....training.tasks import StreamTask
from ..loss import MaximalCodingRateReduction
from ..optimum import optimum
from ..problem import MCR2, NAME, OPTIMUM_THEOREM
from .label_corruption import FEATURES, TRAIN, descend, perceptron, samples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE, CLASS_RATE, REDUCTION = "coding rate", "class coding rate", "rate reduction"
SHARE = "share of the optimum after training"
OPTIMUM = "optimum of the rate reduction"
LOOKS = {
    RATE: {"label": "R", "color": TINTS[0]},
    CLASS_RATE: {"label": "$R^c$", "color": TINTS[1]},
    REDUCTION: {"label": "ΔR", "color": NAME},
}
SPLITS = ("train", "test")
PERMUTED = "permuted labels"
STOPS = 25  # number of steps at which the rates are computed, besides the start


@dataclass(frozen=True)
class TrainingDynamics(RandomExperiment):
    """R, R^c and ΔR of digits while a network is trained on the rate reduction with true labels."""

    seeds: int = setting(3, ge=1, help="repetitions, each with its own split and initial weights")
    steps: int = setting(300, ge=STOPS, help="steps of stochastic gradient descent with momentum 0.9")
    batch: int = setting(400, ge=10, le=TRAIN, help="samples per step")
    rate: float = setting(0.03, gt=0, le=1, help="learning rate until it drops")
    eps: float = setting(0.5**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside")

    name = "rate_reduction.training_dynamics"
    sources = (MCR2,)

    @classmethod
    def quick(cls) -> "TrainingDynamics":
        """Returns a small version: one seed and 100 steps."""
        return cls(seeds=1, steps=100)

    view = bands(
        x="trained",
        panels=tuple(
            Panel(
                title,
                tuple(LOOKS),
                {"split": split},
                ("quantity", LOOKS),
                axes={"xlabel": "share of the steps"},
            )
            for split, title in zip(SPLITS, ("Training samples", "Unseen samples"))
        ),
        ylabel="nats per sample",
        caption="Lines: mean of the seeds over {steps} steps. Grey: $R^c$ (above) and ΔR (below) of permuted "
        "labels, range of the seeds. Green, dashed: the optimum of ΔR.",
        size=(7.0, 2.8),
    )

    def measure(self) -> Iterator[Measurement]:
        """Yields rates from the start (at 0) to the end of training (at 1), means over the seeds with their
        range.
        """
        seeds = torch.randint(2**31, (self.seeds,), generator=self.generator()).tolist()
        shared = {"steps": self.steps, "batch": self.batch, "rate": self.rate, "eps": self.eps}
        trained = sweep(rates_by_step, [{"seed": seed, **shared} for seed in seeds])
        # [seeds, stops, splits, (R, R^c, R^c of permuted labels)]
        rates = np.array([rows for rows, _ in trained])
        best = np.array([value for _, value in trained])
        reductions = rates[..., 0] - rates[..., 1]
        nulls = rates[..., 0] - rates[..., 2]
        for number, split in enumerate(SPLITS):
            for stop in range(STOPS + 1):
                whole, within, permuted_within = rates[:, stop, number].T
                place = {"split": split, "at": {"trained": stop / STOPS}}
                yield self._mean(RATE, whole, **place)
                yield self._mean(CLASS_RATE, within, null=permuted_within, side="<=", **place)
                null = nulls[:, stop, number]
                yield self._mean(REDUCTION, reductions[:, stop, number], null=null, side=">=", **place)
        share, null = reductions[:, -1, 0] / best, nulls[:, -1, 0] / best
        columns = {"unit": "share", "source": OPTIMUM_THEOREM, "split": "train"}
        yield self._mean(SHARE, share, null=null, side=">=", **columns)
        yield self._mean(OPTIMUM, best, source=OPTIMUM_THEOREM, split="train")

    def _mean(
        self, quantity: str, values: np.ndarray, *, null: np.ndarray | None = None, **columns: Any
    ) -> Measurement:
        """Returns the mean over the seeds."""
        note = f"mean over seeds, {values.min():.4g} to {values.max():.4g}"
        draws = {} if null is None else {"nulls": (Null(PERMUTED, tuple(null.tolist())),)}
        columns = {"unit": "nats", **columns, **draws}
        return self.row(quantity, float(values.mean()), n=len(values), note=note, **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws the view with the optimum of the training samples."""
        figure = super().plot(result)
        (best,) = result.table.select(quantity=OPTIMUM).column("value")
        figure.axes[0].axhline(best, color=colour(NAME), linestyle=(0, (4, 3)), linewidth=1.0, zorder=1)
        return figure


def rates_by_step(
    *, seed: int, steps: int, batch: int, rate: float, eps: float
) -> tuple[list[list[tuple[float, ...]]], float]:
    """Trains one network; returns R, R^c and R^c of permuted labels by stop, for training and unseen samples,
    and the optimum of ΔR.
    """
    (x, y), _, (unseen, truth), generator = samples(0.0, seed)
    x, unseen = x.float(), unseen.float()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = perceptron()
    objective = MaximalCodingRateReduction(eps=eps)
    orders = [torch.randperm(len(labels), generator=generator) for labels in (y, truth)]
    found: list[list[tuple[float, ...]]] = []

    def evaluate(step: int, network: nn.Module) -> None:
        found.append(
            [
                _rates(network(pixels), labels, order, eps)
                for pixels, labels, order in zip((x, unseen), (y, truth), orders)
            ]
        )

    def loss_of(network: nn.Module, positions: Tensor) -> Tensor:
        return objective(unit_norm(network(x[positions])), y[positions]).loss

    task = StreamTask(loss_of, lambda draws: permuted(len(x), batch, draws))
    stops = at_steps(_stops(steps), evaluate, limit=steps)
    descend(model, task, stops, rate=rate, steps=steps, generator=generator)
    return found, optimum(torch.bincount(y).tolist(), FEATURES, eps=eps).value


def _rates(
    outputs: Float[Tensor, "n d"], labels: Int[Tensor, " n"], order: Int[Tensor, " n"], eps: float
) -> tuple[float, ...]:
    features = unit_norm(outputs.double())
    return (
        float(coding_rate(features, eps=eps)),
        float(class_coding_rate(features, labels, eps=eps)),
        float(class_coding_rate(features, labels[order], eps=eps)),
    )


def _stops(steps: int) -> list[int]:
    """Returns 0 and evenly spaced steps up to the last one."""
    return [round(steps * i / STOPS) for i in range(STOPS + 1)]
