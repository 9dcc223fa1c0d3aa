"""Training on the rate reduction, step by step: R rises, R^c rises much less, and ΔR approaches its optimum.

The network and the split of the handwritten digits are those of :mod:`.label_corruption`, with true labels.
The rates are computed from all training samples at once, in evaluation mode. Unseen samples are fewer, which
raises their ΔR, so compare it with its own null.

Source: :cite:t:`yu2020learning`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ....core.experiment import setting, sweep
from ....core.figure import Panel, Reading, bands, figure, reading
from ....core.measurement import Null
from ....metrics.coding import class_coding_rate, coding_rate, unit_norm
from ....training.fitting import at_steps, permuted
from ....training.tasks import StreamTask
from ..digit_training import FEATURES, TRAIN, descend, perceptron, samples
from ..loss import MaximalCodingRateReduction
from ..optimum import optimum
from ..problem import MCR2, OPTIMUM_THEOREM

RATE, CLASS_RATE, REDUCTION = "coding rate", "class coding rate", "rate reduction"
SHARE = "share of the optimum after training"
OPTIMUM = "optimum of the rate reduction"
RATES = (RATE, CLASS_RATE, REDUCTION)
SPLITS = ("train", "test")
PERMUTED = "permuted labels"
STOPS = 25  # number of steps at which the rates are computed, besides the start


@figure(
    "rate_reduction.training_dynamics",
    source=MCR2,
    view=bands(
        x="trained",
        panels=(
            Panel(
                "Training samples", RATES, {"split": "train"}, "quantity", levels={"_": OPTIMUM}, legend=""
            ),
            Panel("Unseen samples", RATES, {"split": "test"}, "quantity", legend="ends"),
        ),
        ylabel="nats per sample",
        caption="Against the share of {steps} steps. Lines: mean of the seeds. Grey: class coding rate "
        "(above) and rate reduction (below) of permuted labels, range of the seeds; horizontal: its "
        "optimum.",
        size=(7.0, 2.8),
    ),
    quick={"seeds": 1, "steps": 100},
)
def training_dynamics(
    *,
    seeds: int = setting(3, ge=1, help="repetitions, each with its own split and initial weights"),
    steps: int = setting(300, ge=STOPS, help="steps of stochastic gradient descent with momentum 0.9"),
    batch: int = setting(400, ge=10, le=TRAIN, help="samples per step"),
    rate: float = setting(0.03, gt=0, le=1, help="learning rate until it drops"),
    eps: float = setting(0.5**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside"),
    seed: int = 0,
) -> Iterator[Reading]:
    """R, R^c and ΔR of digits while a network is trained on the rate reduction with true labels, from the
    start (at 0) to the end (at 1): means over the seeds.
    """
    repetitions = torch.randint(2**31, (seeds,), generator=torch.Generator().manual_seed(seed)).tolist()
    shared = {"steps": steps, "batch": batch, "rate": rate, "eps": eps}
    trained = sweep(rates_by_step, [shared | {"seed": repetition} for repetition in repetitions])
    rates = np.array([of_seed for of_seed, _ in trained])  # [seeds, stops, splits, numbers of rates_by_step]
    whole, within, null_within = np.moveaxis(rates, -1, 0)
    reductions, nulls = whole - within, whole - null_within
    for number, split in enumerate(SPLITS):
        for stop in range(STOPS + 1):
            now, place = np.s_[:, stop, number], {"split": split, "at": {"trained": stop / STOPS}}
            yield _mean(RATE, whole[now], **place)
            yield _mean(CLASS_RATE, within[now], null_within[now], side="<=", **place)
            yield _mean(REDUCTION, reductions[now], nulls[now], side=">=", **place)
    best = np.array([value for _, value in trained])
    columns = {"source": OPTIMUM_THEOREM, "split": "train"}
    yield _mean(
        SHARE, reductions[:, -1, 0] / best, nulls[:, -1, 0] / best, unit="share", side=">=", **columns
    )
    yield _mean(OPTIMUM, best, **columns)


def _mean(
    quantity: str, values: np.ndarray, null: np.ndarray | None = None, unit: str = "nats", **columns: Any
) -> Reading:
    """Returns the mean over the seeds."""
    note = f"mean over seeds, {values.min():.4g} to {values.max():.4g}"
    nulls = () if null is None else (Null(PERMUTED, tuple(null.tolist())),)
    return reading(
        quantity, float(values.mean()), n=len(values), unit=unit, note=note, nulls=nulls, **columns
    )


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
    descend(model, task, rate=rate, steps=steps, generator=generator, callbacks=[stops])
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
