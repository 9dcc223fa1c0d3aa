"""MCR² against cross-entropy when some labels are wrong: the same network on handwritten digits, trained as long on each loss.

Whoever has wrong labels has them in the validation samples too, so those are corrupted alike; learning rate, rank of the subspaces and,
where training may stop early, the step are chosen by them. Accuracy is measured with the true labels of samples that nothing was chosen by.
The classifier is no part of the loss: cross-entropy is read by its largest logit and by nearest subspaces of its features as well, and
nearest subspaces of the pixels, which need no training, are the null.

Source: :cite:t:`yu2020learning`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....data.corruption import relabel_uniformly
from ....metrics.coding import unit_norm
from ....training.descent import descend, permuted
from ..analysis import MCR2, NAME
from ..figures import label_corruption
from ..loss import MaximalCodingRateReduction
from ..redunet import nearest_subspace
from .on_data import digit_images

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSSES = ("rate reduction", "cross-entropy")
PIXELS = "pixels, nearest subspace"
METHODS = ("rate reduction, nearest subspace", "cross-entropy, largest logit", "cross-entropy, nearest subspace", PIXELS)
TRAIN, VALIDATION = 1200, 300  # of 1797; the other 297 are measured on
CLASSES, FEATURES, HIDDEN = 10, 64, 256
READINGS = 8  # times at which training might stop, evenly spaced
MOMENTUM, WEIGHT_DECAY, DROPS = 0.9, 5e-4, (0.4, 0.8)  # of the published runs; the rate falls to a tenth after these shares of the steps


@dataclass(frozen=True)
class LabelCorruption(RandomExperiment):
    """Accuracy of MCR² and of cross-entropy on digits, some of whose training labels are drawn anew from all classes."""

    ratios: tuple[float, ...] = setting((0.0, 0.1, 0.2, 0.3, 0.4, 0.5), ge=0, le=1, help="shares of labels drawn anew")
    seeds: int = setting(5, ge=1, help="repetitions: splits, corruptions and initial weights")
    steps: int = setting(300, ge=READINGS, help="of stochastic gradient descent with momentum 0.9")
    batch: int = setting(400, ge=10, le=TRAIN, help="samples a step")
    rates: tuple[float, ...] = setting((0.0003, 0.001, 0.003, 0.01, 0.03, 0.1), gt=0, le=1, help="learning rates to choose from")
    ranks: tuple[int, ...] = setting((1, 4, 8), ge=1, help="dimensions of the nearest subspaces to choose from")
    eps: float = setting(0.5**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside")

    name = "rate_reduction.label_corruption"
    sources = (MCR2,)

    @classmethod
    def quick(cls) -> "LabelCorruption":
        return cls(ratios=(0.0, 0.4), seeds=1, steps=40, rates=(0.01,), ranks=(4,))

    def measure(self) -> Iterator[Row | Arrays]:
        """Means over the seeds with their range; curves by step."""
        shared = {"steps": self.steps, "batch": self.batch, "ranks": self.ranks, "eps": self.eps}
        starts = torch.randint(2**31, (self.seeds,), generator=self.generator()).tolist()
        places = [(ratio, start) for ratio in self.ratios for start in starts]
        trained = sweep(
            read_training,
            [{"loss": loss, "rate": rate, "ratio": r, "seed": s, **shared} for r, s in places for loss in LOSSES for rate in self.rates],
        )
        untrained = [read_pixels(ratio=ratio, seed=start, ranks=self.ranks) for ratio, start in places]
        shape = (len(self.ratios), self.seeds)
        # [ratios, seeds, losses, rates, readings, classifiers (logits, then the ranks), (validation, test)]
        readings = np.array(trained).reshape(*shape, len(LOSSES), len(self.rates), READINGS, 1 + len(self.ranks), 2)
        found = {
            METHODS[0]: readings[:, :, 0, :, :, 1:],
            METHODS[1]: readings[:, :, 1, :, :, :1],
            METHODS[2]: readings[:, :, 1, :, :, 1:],
            PIXELS: np.array(untrained).reshape(*shape, 1, 1, len(self.ranks), 2),
        }
        to_the_end = {method: chosen(values[:, :, :, -1:]) for method, values in found.items()}
        stopped = {method: chosen(values) for method, values in found.items()}
        for words, choices in (("", to_the_end), (", stopped by validation", stopped)):
            yield from self._accuracies(words, choices)
            yield from self._differences(words, choices)
        yield Arrays(
            {
                f"{NAME}/ratios": np.array(self.ratios),
                f"{NAME}/to_the_end": np.stack([to_the_end[method][0] for method in METHODS]),
                f"{NAME}/stopped": np.stack([stopped[method][0] for method in METHODS]),
                f"{NAME}/steps": np.array(_stops(self.steps)),
                f"{NAME}/curves": np.stack([by_step(found[method])[-1] for method in METHODS[:2]]),
            }
        )

    def _accuracies(self, words: str, choices: dict[str, tuple[np.ndarray, np.ndarray]]) -> Iterator[Row]:
        for method, (accuracies, rates) in choices.items():
            for ratio, values, null, places in zip(self.ratios, accuracies, choices[PIXELS][0], rates):
                note = f"Mean over {len(values)} seeds, {values.min():.3f} to {values.max():.3f}"
                if method != PIXELS:
                    used = ", ".join(f"{self.rates[i]:g}" for i in sorted(set(places.tolist())))
                    note += f"; learning rates chosen: {used}; null: {PIXELS}"
                yield Row(
                    theory=NAME,
                    quantity=f"accuracy{words}, {ratio:g} of the labels drawn anew",
                    value=float(values.mean()),
                    null=float(null.mean()),
                    model=method,
                    source=str(MCR2),
                    note=note,
                )

    def _differences(self, words: str, choices: dict[str, tuple[np.ndarray, np.ndarray]]) -> Iterator[Row]:
        """MCR² less cross-entropy, each with its own classifier, on the same split, corruption and seed."""
        for ratio, values in zip(self.ratios, choices[METHODS[0]][0] - choices[METHODS[1]][0]):
            quantity = f"accuracy of rate reduction less that of cross-entropy{words}, {ratio:g} of the labels drawn anew"
            note = f"Mean over {len(values)} seeds, {values.min():+.3f} to {values.max():+.3f}; above 0 in {int((values > 0).sum())}"
            yield Row(theory=NAME, quantity=quantity, value=float(values.mean()), source=str(MCR2), note=note)

    def draw(self, result: Result) -> "Figure":
        """Accuracy by share of wrong labels, trained to the end and stopped early, and by step at the largest share."""
        return label_corruption(result)


def chosen(readings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Test accuracy where validation accuracy is largest, and the place of the learning rate there.

    ``[ratios, seeds, rates, readings, classifiers, 2] -> [ratios, seeds]`` twice; of equals the first.
    """
    flat = readings.reshape(*readings.shape[:2], -1, 2)
    best = flat[..., 0].argmax(-1)
    return np.take_along_axis(flat[..., 1], best[..., None], -1)[..., 0], best // np.prod(readings.shape[3:5])


def by_step(readings: np.ndarray) -> np.ndarray:
    """Test accuracy at each reading, with what validation chooses at the last one: ``[ratios, seeds, readings]``."""
    ratios, seeds, rates, times, classifiers, _ = readings.shape
    flat = readings.transpose(0, 1, 2, 4, 3, 5).reshape(ratios, seeds, rates * classifiers, times, 2)
    best = flat[..., -1, 0].argmax(-1)
    return np.take_along_axis(flat[..., 1], best[..., None, None], 2)[:, :, 0]


def read_training(
    *, loss: str, rate: float, ratio: float, seed: int, steps: int, batch: int, ranks: tuple[int, ...], eps: float
) -> list[list[tuple[float, float]]]:
    """One training: ``(validation, test)`` accuracy by logits and by subspaces of each rank, at each reading."""
    (x, y), (validation, noisy), (unseen, truth), generator = _data(ratio, seed)
    x, rest = x.float(), torch.cat([validation, unseen]).float()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        body = _body()
        head = nn.Linear(FEATURES, CLASSES)
    model, objective = nn.Sequential(body, head), MaximalCodingRateReduction(eps=eps)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [max(1, round(share * steps)) for share in DROPS], 0.1)
    stops, readings = _stops(steps), []

    def loss_of(positions: Tensor) -> Tensor:
        if loss == "rate reduction":
            return objective(unit_norm(body(x[positions])), y[positions]).loss
        return cross_entropy(model(x[positions]), y[positions])

    def read(step: int) -> None:
        if step not in stops:
            return
        model.eval()
        with torch.no_grad():
            features, others = body(x), body(rest)
            guesses = [head(others).argmax(1), *(nearest_subspace(features, y, others, rank=rank) for rank in ranks)]
            readings.append([_accuracies(guess, noisy, truth) for guess in guesses])
        model.train()

    batches = permuted(len(x), batch, generator)
    descend(model, loss_of, batches, steps=steps, optimiser=optimiser, schedule=schedule, generator=generator, after=read)
    return readings


def read_pixels(*, ratio: float, seed: int, ranks: tuple[int, ...]) -> list[tuple[float, float]]:
    """``(validation, test)`` accuracy of nearest subspaces of the pixels."""
    (x, y), (validation, noisy), (unseen, truth), _ = _data(ratio, seed)
    others = torch.cat([validation, unseen])
    return [_accuracies(nearest_subspace(unit_norm(x), y, others, rank=rank), noisy, truth) for rank in ranks]


def _data(ratio: float, seed: int):
    """Training, validation (both corrupted) and test samples with their labels, and a generator for what follows."""
    generator = torch.Generator().manual_seed(seed)
    images, labels = digit_images()
    order = torch.randperm(len(labels), generator=generator)
    pixels, truth = images.flatten(1)[order], labels[order]
    learned = TRAIN + VALIDATION
    noisy = relabel_uniformly(truth[:learned], ratio, classes=CLASSES, generator=generator)
    parts = (slice(TRAIN), slice(TRAIN, learned))
    return *((pixels[part], noisy[part]) for part in parts), (pixels[learned:], truth[learned:]), generator


def _body() -> nn.Sequential:
    """The network of both losses, pixels ``[n, 64]`` to features ``[n, 64]``: room for ten subspaces of six dimensions."""
    layers, width = [], FEATURES
    for _ in range(2):
        layers += [nn.Linear(width, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU()]
        width = HIDDEN
    return nn.Sequential(*layers, nn.Linear(width, FEATURES))


def _stops(steps: int) -> list[int]:
    return [round(steps * (i + 1) / READINGS) for i in range(READINGS)]


def _accuracies(guess: Tensor, noisy: Tensor, truth: Tensor) -> tuple[float, float]:
    hits = guess == torch.cat([noisy, truth])
    return float(hits[: len(noisy)].double().mean()), float(hits[len(noisy) :].double().mean())
