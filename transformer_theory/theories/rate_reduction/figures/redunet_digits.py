"""ReduNet on handwritten digits: the rate reduction by layer, and accuracy on unseen samples, over random
splits.

Source: :cite:t:`chan2022redunet`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement, judge
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....data import digits
from ....metrics.coding import unit_norm
from ..evaluation import nearest_subspace
from ..on_data import LAYERS_RAISE, class_spectra, cosines, plot
from ..optimum import optimum
from ..problem import MCR2, NAME, REDUNET
from ..redunet import ReduNet, TrainableReduNet, construct

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH = 100
REDUCTIONS = {  # quantity of one split, in nats -> source
    "rate reduction before ReduNet": MCR2,
    "rate reduction after one layer": REDUNET,
    "rate reduction after ReduNet": REDUNET,
    "rate reduction after ReduNet of permuted labels": REDUNET,
}
SHARES = {  # quantity of one split, a share -> source
    "share of the optimum after ReduNet": MCR2,
    LAYERS_RAISE: REDUNET,
    "accuracy of the nearest subspace before ReduNet": MCR2,
    "accuracy of the nearest subspace after ReduNet": REDUNET,
    "accuracy of the least ||x C_j|| before ReduNet": MCR2,
    "accuracy of the least ||x C_j|| after ReduNet": REDUNET,
    "accuracy of ReduNet of permuted labels": REDUNET,
}


@dataclass(frozen=True)
class ReduNetOnSplits(RandomExperiment):
    """ReduNet on random splits of a data set, the base of the experiments on digits and on iris."""

    splits: int = setting(5, ge=1, help="random splits into training samples and unseen samples")
    training: int = setting(1300, ge=100, help="training samples; the rest are unseen")
    layers: int = setting(100, ge=1, help="gradient steps")
    step: float = setting(0.5, gt=0, le=1e3, help="step size η")
    eps: float = setting(0.1**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside")
    rank: int = setting(6, ge=1, help="dimension of the nearest subspaces")

    def data(self) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]:
        """Returns features ``[n, d]`` of norm 1 and labels ``[n]``."""
        raise NotImplementedError(f"{type(self).__name__} must define data()")

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields means over the splits, and curves and cosines of the first split.

        Raises:
            ValueError: all samples are training samples.
        """
        features, labels = self.data()
        if self.training >= len(labels):
            raise ValueError(
                f"training must leave unseen samples, got {self.training} of {len(labels)}; take fewer"
            )
        generator, values = self.generator(), []
        for split in range(self.splits):
            order = torch.randperm(len(labels), generator=generator)
            train, unseen = order[: self.training], order[self.training :]
            x, y = features[train], labels[train]
            net = construct(x, y, layers=self.layers, eps=self.eps, step=self.step)
            permuted = y[torch.randperm(len(y), generator=generator)]
            null = construct(x, permuted, layers=self.layers, eps=self.eps, step=self.step)
            values.append(self.numbers(net, null, x, y, features[unseen], labels[unseen], generator))
            if split == 0:
                yield Arrays(
                    _curves(net, null, x, y)
                    | cosines(features[unseen], net.transform(features[unseen]), labels[unseen])
                )
                best = optimum(torch.bincount(y).tolist(), x.shape[1], eps=self.eps).value
                yield Arrays({f"{NAME}/optimum": torch.tensor(best).numpy()})
        for quantity in values[0]:
            yield self._mean(quantity, [split[quantity] for split in values], len(labels) - self.training)

    def numbers(
        self,
        net: ReduNet,
        null: ReduNet,
        x: Float[Tensor, "n d"],
        y: Int[Tensor, " n"],
        unseen: Float[Tensor, "m d"],
        truth: Int[Tensor, " m"],
        generator: Generator,
    ) -> dict[str, float]:
        """Returns the quantities of one split, for ReduNet and for its null, a ReduNet built from permuted
        labels.
        """
        transformed = net.transform(unseen)
        best = optimum(torch.bincount(y).tolist(), x.shape[1], eps=self.eps).value
        reductions = (net.reductions[0], net.reductions[1], net.reductions[-1], null.reductions[-1])
        hits = (
            nearest_subspace(x, y, unseen, rank=self.rank) == truth,
            nearest_subspace(net.features, y, transformed, rank=self.rank) == truth,
            net.layers[0].distances(unseen).argmin(1) == truth,
            net.predict(transformed) == truth,
            null.predict(null.transform(unseen)) == truth,
        )
        rising = float((net.reductions.diff() > 0).double().mean())
        shares = (float(net.reductions[-1]) / best, rising, *map(share, hits))
        return dict(zip(REDUCTIONS, map(float, reductions))) | dict(zip(SHARES, shares))

    def _mean(self, quantity: str, values: list[float], unseen: int) -> Measurement:
        mean = sum(values) / len(values)
        judged = {}
        if quantity == LAYERS_RAISE:
            judged = {"op": ">=", "threshold": 1.0, "predicted": 1.0, "verdict": judge(mean, ">=", 1.0)}
        return self.row(
            quantity,
            mean,
            unit="nats" if quantity in REDUCTIONS else "share",
            source=cast(Source, (REDUCTIONS | SHARES).get(quantity, REDUNET)),
            n=len(values),
            note=f"mean over splits, {min(values):.4g} to {max(values):.4g}; {self.training} training "
            f"samples, {unseen} unseen",
            **judged,
        )

    def plot(self, result: Result) -> "Figure":
        """Plots ΔR by layer for true and permuted labels, cosines of unseen samples before and after, and
        spectra of the classes.
        """
        return plot(result)


@dataclass(frozen=True)
class ReduNetDigits(ReduNetOnSplits):
    """ReduNet on 8 x 8 handwritten digits, and a network of fewer layers that is also trained by
    back-propagation.

    Permuted labels are the null: with them the ascent reaches nearly the same rate reduction but learns
    nothing.
    """

    short: int = setting(5, ge=1, help="layers of the network for back-propagation")
    epochs: int = setting(10, ge=1, help="epochs of back-propagation, in batches of 100")
    rate: float = setting(1e-3, gt=0, le=1.0, help="learning rate of back-propagation; the momentum is 0.9")

    name = "rate_reduction.redunet_digits"
    sources = (REDUNET,)

    @classmethod
    def quick(cls) -> "ReduNetDigits":
        """Returns a small version: one split, 20 layers and one epoch."""
        return cls(splits=1, layers=20, epochs=1)

    def data(self) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]:
        """Returns the pixels ``[1797, 64]``, scaled to norm 1, and the digits ``[1797]``."""
        images, labels = digit_images()
        return unit_norm(images.flatten(1)), labels

    def numbers(
        self,
        net: ReduNet,
        null: ReduNet,
        x: Float[Tensor, "n d"],
        y: Int[Tensor, " n"],
        unseen: Float[Tensor, "m d"],
        truth: Int[Tensor, " m"],
        generator: Generator,
    ) -> dict[str, float]:
        """Returns the quantities of one split, and the accuracy of a shorter network before and after
        back-propagation.
        """
        values = super().numbers(net, null, x, y, unseen, truth, generator)
        module = TrainableReduNet(construct(x, y, layers=self.short, eps=self.eps, step=self.step))
        before, training_before = share(_predict(module, unseen) == truth), share(_predict(module, x) == y)
        optimiser = torch.optim.SGD(module.parameters(), lr=self.rate, momentum=0.9)
        for _ in range(self.epochs):
            for batch in torch.randperm(len(y), generator=generator).split(BATCH):
                loss = torch.nn.functional.cross_entropy(module(x[batch]), y[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        return values | {
            f"training accuracy, {self.short} layers as built": training_before,
            f"training accuracy, {self.short} layers after back-propagation": share(_predict(module, x) == y),
            f"accuracy, {self.short} layers as built": before,
            f"accuracy, {self.short} layers after back-propagation": share(_predict(module, unseen) == truth),
        }


@lru_cache(maxsize=1)
def digit_images() -> tuple[Float[Tensor, "n 1 8 8"], Int[Tensor, " n"]]:
    """Returns the 1797 images and their labels. They are cached, so callers must not change them in place."""
    data = digits(words=2)
    return cast(Tensor, data.images), cast(Tensor, data.labels)


def share(hits: Tensor) -> float:
    """Returns the share of the entries ``[n]`` that are true."""
    return float(hits.double().mean())


def _predict(module: TrainableReduNet, features: Tensor) -> Tensor:
    with torch.no_grad():
        return module(features).argmax(1)


def _curves(net: ReduNet, null: ReduNet, x: Tensor, y: Tensor) -> dict[str, np.ndarray]:
    return {
        f"{NAME}/rates": net.rates.numpy(),
        f"{NAME}/null_reductions": null.reductions.numpy(),
        f"{NAME}/spectra_before": class_spectra(x, y),
        f"{NAME}/spectra_after": class_spectra(net.features, y),
    }
