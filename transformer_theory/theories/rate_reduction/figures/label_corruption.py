"""MCR² compared with cross-entropy under label noise: the same network, trained on handwritten digits for the
same number of steps.

In practice validation samples also have wrong labels, so they are corrupted at the same rate here. The
validation accuracy determines the learning rate, the rank of the subspaces and, with early stopping, the
step. Accuracy is measured with the true labels of test samples. To separate the effects of loss and
classifier, the features of the network trained by cross-entropy are also classified by nearest subspaces. The
null is the nearest subspace of the pixels, which needs no training.

Source: :cite:t:`yu2020learning`.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ....core.experiment import setting, sweep
from ....core.figure import RANGE, Panel, Reading, bands, figure, reading, with_range
from ....core.measurement import Null
from ....metrics.coding import unit_norm
from ....training.fitting import at_steps, permuted
from ....training.tasks import StreamTask
from ..digit_training import CLASSES, FEATURES, TRAIN, descend, perceptron, samples
from ..evaluation import nearest_subspace
from ..loss import MaximalCodingRateReduction
from ..problem import MCR2

ACCURACY, DIFFERENCE = "accuracy", "accuracy of rate reduction less that of cross-entropy"
TO_THE_END, STOPPED, BY_STEP = "trained to the end", "stopped by validation", "by step"
LOSSES = ("rate reduction", "cross-entropy")
PIXELS = "pixels, nearest subspace"
METHODS = (
    "rate reduction, nearest subspace",
    "cross-entropy, largest logit",
    "cross-entropy, nearest subspace",
    PIXELS,
)
STOPS = 8  # number of evenly spaced steps at which training may stop
DRAWN = {"model": METHODS[:3]}  # the pixels are the null of the others


@figure(
    "rate_reduction.label_corruption",
    source=MCR2,
    view=bands(
        x="drawn anew",
        spread=RANGE,
        panels=(
            Panel("Trained to the end", ACCURACY, DRAWN | {"training": TO_THE_END}, "model"),
            Panel("Stopped by validation", ACCURACY, DRAWN | {"training": STOPPED}, "model", legend=""),
            Panel(
                "By step, most drawn anew",
                ACCURACY,
                {"training": BY_STEP},
                "model",
                legend="",
                axes={"xlabel": "step"},
                x="step",
            ),
        ),
        ylabel="accuracy on unseen samples",
        caption="Against the share of labels drawn anew. Lines: mean of the seeds; bands: their range. Grey: "
        "nearest subspace of the pixels, which needs no training.",
        size=(8.4, 3.1),
    ),
    quick={"ratios": (0.0, 0.4), "seeds": 1, "steps": 16, "rates": (0.01,), "ranks": (4,)},
)
def label_corruption(
    *,
    ratios: tuple[float, ...] = setting(
        (0.0, 0.1, 0.2, 0.3, 0.4, 0.5), ge=0, le=1, help="shares of labels drawn anew"
    ),
    seeds: int = setting(
        5, ge=1, help="repetitions, each with its own split, corruption and initial weights"
    ),
    steps: int = setting(300, ge=STOPS, help="steps of stochastic gradient descent with momentum 0.9"),
    batch: int = setting(400, ge=10, le=TRAIN, help="samples per step"),
    rates: tuple[float, ...] = setting(
        (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1), gt=0, le=1, help="learning rates to choose from"
    ),
    ranks: tuple[int, ...] = setting(
        (1, 4, 8), ge=1, help="dimensions of the nearest subspaces to choose from"
    ),
    eps: float = setting(0.5**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside"),
    seed: int = 0,
) -> Iterator[Reading | list[Reading]]:
    """Accuracy of MCR² and of cross-entropy on digits, with a share of the labels drawn anew from all
    classes: means over the seeds, by share of wrong labels and by step.
    """
    repetitions = torch.randint(2**31, (seeds,), generator=torch.Generator().manual_seed(seed)).tolist()
    cases = [{"ratio": ratio, "seed": repetition} for ratio, repetition in product(ratios, repetitions)]
    shared = {"steps": steps, "batch": batch, "ranks": ranks, "eps": eps}
    trained = sweep(
        training_accuracies,
        [case | shared | {"loss": loss, "rate": rate} for case, loss, rate in product(cases, LOSSES, rates)],
    )
    untrained = [pixel_accuracies(**case, ranks=ranks) for case in cases]
    # [ratios, seeds, losses, rates, stops, classifiers (logits, then the ranks), (validation, test)]
    shape = (len(ratios), seeds, len(LOSSES), len(rates), STOPS, 1 + len(ranks), 2)
    accuracies = np.array(trained).reshape(shape)
    candidates = {
        METHODS[0]: accuracies[:, :, 0, :, :, 1:],
        METHODS[1]: accuracies[:, :, 1, :, :, :1],
        METHODS[2]: accuracies[:, :, 1, :, :, 1:],
        PIXELS: np.array(untrained).reshape(len(ratios), seeds, 1, 1, len(ranks), 2),
    }
    for training, stops in ((TO_THE_END, np.s_[-1:]), (STOPPED, np.s_[:])):
        choices = {method: chosen(values[:, :, :, stops]) for method, values in candidates.items()}
        for index, ratio in enumerate(ratios):
            at = {"drawn anew": ratio, "training": training}
            found = {method: test[index] for method, (test, _) in choices.items()}
            null = Null(PIXELS, tuple(found[PIXELS]))
            for method, values in found.items():
                note = f"mean over seeds, {values.min():.3f} to {values.max():.3f}"
                if method != PIXELS:
                    best = ", ".join(f"{rates[i]:g}" for i in sorted({*choices[method][1][index].tolist()}))
                    note += f"; learning rates chosen: {best}"
                yield _accuracy(values, at=at, model=method, nulls=(null,), side=">=", note=note)
            gain = found[METHODS[0]] - found[METHODS[1]]
            note = f"mean over seeds, {gain.min():+.3f} to {gain.max():+.3f}; above 0 in {(gain > 0).sum()}"
            yield reading(DIFFERENCE, float(gain.mean()), n=seeds, split="test", at=at, note=note)
    at = {"drawn anew": ratios[-1], "training": BY_STEP}
    for method in METHODS[:2]:
        for step, values in zip(_stops(steps), by_step(candidates[method])[-1].T):
            yield _accuracy(values, at=at, model=method, step=step)


def _accuracy(values: np.ndarray, **columns: Any) -> list[Reading]:
    """Returns the mean accuracy over the seeds, and the smallest and the largest."""
    columns |= {"unit": "share", "split": "test", "n": len(values)}
    return with_range(reading(ACCURACY, float(values.mean()), **columns), values)


def chosen(accuracies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the test accuracy of the candidate with the largest validation accuracy, and the index of its
    learning rate.

    If several candidates tie, the first one counts.

    Args:
        accuracies: validation and test accuracy, ``[ratios, seeds, rates, stops, classifiers, 2]``.
    Returns:
        Both ``[ratios, seeds]``.
    """
    flat = accuracies.reshape(*accuracies.shape[:2], -1, 2)  # [ratios, seeds, candidates, 2]
    best = flat[..., 0].argmax(-1)
    # A candidate has the number (rate * stops + stop) * classifiers + classifier, so the quotient is the
    # index of the rate.
    return np.take_along_axis(flat[..., 1], best[..., None], -1)[..., 0], best // np.prod(
        accuracies.shape[3:5]
    )


def by_step(accuracies: np.ndarray) -> np.ndarray:
    """Returns the test accuracy at each stop, ``[ratios, seeds, stops]``, for the rate and classifier that
    are best at the last stop.

    The validation accuracy determines the best rate and classifier; ``accuracies`` are as for :func:`chosen`.
    """
    ratios, seeds, rates, stops, classifiers, _ = accuracies.shape
    flat = accuracies.transpose(0, 1, 2, 4, 3, 5).reshape(ratios, seeds, rates * classifiers, stops, 2)
    best = flat[..., -1, 0].argmax(-1)
    return np.take_along_axis(flat[..., 1], best[..., None, None], 2)[:, :, 0]


def training_accuracies(
    *,
    loss: str,
    rate: float,
    ratio: float,
    seed: int,
    steps: int,
    batch: int,
    ranks: tuple[int, ...],
    eps: float,
) -> list[list[tuple[float, float]]]:
    """Trains one network; returns, per stop, ``(validation, test)`` accuracy by logits, then by subspaces of
    each rank.
    """
    (x, y), (validation, noisy), (unseen, truth), generator = samples(ratio, seed)
    x, held_out = x.float(), torch.cat([validation, unseen]).float()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        body = perceptron()
        head = nn.Linear(FEATURES, CLASSES)
    model, objective = nn.Sequential(body, head), MaximalCodingRateReduction(eps=eps)
    accuracies = []

    def loss_of(network: nn.Module, positions: Tensor) -> Tensor:
        if loss == "rate reduction":
            return objective(unit_norm(body(x[positions])), y[positions]).loss
        return cross_entropy(network(x[positions]), y[positions])

    def evaluate(step: int, network: nn.Module) -> None:
        train_features, features = body(x), body(held_out)
        predictions = [
            head(features).argmax(1),
            *(nearest_subspace(train_features, y, features, rank=rank) for rank in ranks),
        ]
        accuracies.append([_accuracies(classes, noisy, truth) for classes in predictions])

    task = StreamTask(loss_of, lambda draws: permuted(len(x), batch, draws))
    stops = at_steps(_stops(steps), evaluate, limit=steps)
    descend(model, task, rate=rate, steps=steps, generator=generator, callbacks=[stops])
    return accuracies


def pixel_accuracies(*, ratio: float, seed: int, ranks: tuple[int, ...]) -> list[tuple[float, float]]:
    """Returns ``(validation, test)`` accuracy of nearest subspaces of the pixels, for each rank."""
    (x, y), (validation, noisy), (unseen, truth), _ = samples(ratio, seed)
    held_out = torch.cat([validation, unseen])
    return [
        _accuracies(nearest_subspace(unit_norm(x), y, held_out, rank=rank), noisy, truth) for rank in ranks
    ]


def _stops(steps: int) -> list[int]:
    """Returns the steps, evenly spaced, at which training may stop."""
    return [round(steps * (i + 1) / STOPS) for i in range(STOPS)]


def _accuracies(classes: Tensor, noisy: Tensor, truth: Tensor) -> tuple[float, float]:
    """Returns the accuracy of predicted classes on validation samples with labels ``noisy``, and on test
    samples with labels ``truth``.
    """
    hits = classes == torch.cat([noisy, truth])
    return float(hits[: len(noisy)].double().mean()), float(hits[len(noisy) :].double().mean())
