"""ReduNet on iris and on handwritten digits: the rate reduction by layer, and samples that the network has not seen, over random splits.

Source: :cite:t:`chan2022redunet`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Generator, Tensor

from ....core.claims import Evidence
from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Row, finding
from ....core.result import Result
from ....data import digits
from ....metrics.coding import unit_norm
from ..analysis import MCR2, NAME, REDUNET, class_spectra
from ..figures import draw
from ..optimum import optimum
from ..redunet import ReduNet, TrainableReduNet, construct, nearest_subspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 150  # samples in a picture of cosines
BATCH = 100


@dataclass(frozen=True)
class OnData(RandomExperiment):
    """What the two experiments share; they differ in data and settings."""

    splits: int = setting(5, ge=1, help="random splits into training samples and samples that the network has not seen")
    training: int = setting(1300, ge=100, help="training samples; the rest are not seen")
    layers: int = setting(100, ge=1, help="gradient steps")
    step: float = setting(0.5, gt=0, le=1e3, help="step size η")
    eps: float = setting(0.1**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside")
    rank: int = setting(6, ge=1, help="dimensions of the nearest subspaces")

    def data(self) -> tuple[Tensor, Tensor]:
        """Features ``[n, d]`` of norm 1 and labels ``[n]``."""
        raise NotImplementedError

    def measure(self) -> Iterator[Row | Arrays]:
        """Means over the splits, with the range; curves and cosines of the first split."""
        features, labels = self.data()
        if self.training >= len(labels):
            raise ValueError(f"training must leave samples that are not seen, got {self.training} of {len(labels)}; take fewer")
        generator, found = self.generator(), []
        for split in range(self.splits):
            order = torch.randperm(len(labels), generator=generator)
            train, unseen = order[: self.training], order[self.training :]
            x, y = features[train], labels[train]
            net = construct(x, y, layers=self.layers, eps=self.eps, step=self.step)
            shuffled = y[torch.randperm(len(y), generator=generator)]
            null = construct(x, shuffled, layers=self.layers, eps=self.eps, step=self.step)
            found.append(self._numbers(net, null, x, y, features[unseen], labels[unseen], generator))
            if split == 0:
                yield Arrays(_curves(net, null, x, y, features[unseen], labels[unseen]))
                best = optimum(torch.bincount(y).tolist(), x.shape[1], eps=self.eps).value
                yield Arrays({f"{NAME}/optimum": torch.tensor(best).numpy()})
        yield from self._rows(found, len(labels) - self.training)

    def _numbers(
        self, net: ReduNet, null: ReduNet, x: Tensor, y: Tensor, unseen: Tensor, truth: Tensor, generator: Generator
    ) -> dict[str, float]:
        moved = net.transform(unseen)
        best = optimum(torch.bincount(y).tolist(), x.shape[1], eps=self.eps).value
        return {
            "rate reduction before": float(net.reductions[0]),
            "rate reduction after one layer": float(net.reductions[1]),
            "rate reduction after": float(net.reductions[-1]),
            "rate reduction after, from shuffled labels": float(null.reductions[-1]),
            "share of the optimum after": float(net.reductions[-1]) / best,
            "share of the layers that raise the rate reduction": float((net.reductions.diff() > 0).double().mean()),
            "accuracy, nearest subspace before": _share(nearest_subspace(x, y, unseen, rank=self.rank) == truth),
            "accuracy, nearest subspace after": _share(nearest_subspace(net.features, y, moved, rank=self.rank) == truth),
            "accuracy, least ||x C_j|| before": _share(net.layers[0].distances(unseen).argmin(1) == truth),
            "accuracy, least ||x C_j|| after": _share(net.predict(moved) == truth),
            "accuracy from shuffled labels": _share(null.predict(null.transform(unseen)) == truth),
        }

    def _rows(self, found: list[dict[str, float]], unseen: int) -> Iterator[Row]:
        for quantity in found[0]:
            values = [one[quantity] for one in found]
            mean = sum(values) / len(values)
            note = f"Mean over {len(values)} splits, {min(values):.4g} to {max(values):.4g}; {self.training} training samples, "
            note += f"{unseen} not seen"
            source = MCR2 if "optimum" in quantity or "before" in quantity else REDUNET
            if quantity.startswith("share of the layers"):
                yield finding(NAME, quantity, Evidence(mean, 1.0, ">="), source=source, note=note, basis="theory")
            else:
                yield Row(theory=NAME, quantity=quantity, value=mean, source=str(source), note=note)

    def draw(self, result: Result) -> "Figure":
        """ΔR by layer with the null of shuffled labels, cosines of unseen samples before and after, spectra of the classes."""
        return draw(result)


@dataclass(frozen=True)
class ReduNetIris(OnData):
    """ReduNet on Fisher's iris: four measurements of 150 flowers as directions, η = 0.1 as published, on random fifths not seen."""

    training: int = setting(120, ge=30, help="training samples of 150; the rest are not seen")
    layers: int = setting(4000, ge=1, help="gradient steps")
    step: float = setting(0.1, gt=0, le=1e3, help="step size η")
    rank: int = setting(1, ge=1, help="dimensions of the nearest subspaces")

    name = "rate_reduction.redunet_iris"
    sources = (REDUNET,)

    @classmethod
    def quick(cls) -> "ReduNetIris":
        return cls(splits=2, layers=100)

    def data(self) -> tuple[Tensor, Tensor]:
        from sklearn.datasets import load_iris

        measurements, species = load_iris(return_X_y=True)
        return unit_norm(torch.from_numpy(measurements).double()), torch.from_numpy(species).long()


@dataclass(frozen=True)
class ReduNetDigits(OnData):
    """ReduNet on 8 x 8 handwritten digits, and the same network with fewer layers trained by back-propagation afterwards.

    Labels are the null: from shuffled ones an ascent builds nearly as large a rate reduction, and learns nothing.
    """

    short: int = setting(5, ge=1, help="layers of the network that is trained afterwards")
    epochs: int = setting(10, ge=1, help="of stochastic gradient descent on it, batches of 100")
    rate: float = setting(1e-3, gt=0, le=1.0, help="its learning rate, momentum 0.9")

    name = "rate_reduction.redunet_digits"
    sources = (REDUNET,)

    @classmethod
    def quick(cls) -> "ReduNetDigits":
        return cls(splits=1, layers=20, epochs=1)

    def data(self) -> tuple[Tensor, Tensor]:
        images, labels = digit_images()
        return unit_norm(images.flatten(1)), labels

    def _numbers(
        self, net: ReduNet, null: ReduNet, x: Tensor, y: Tensor, unseen: Tensor, truth: Tensor, generator: Generator
    ) -> dict[str, float]:
        found = super()._numbers(net, null, x, y, unseen, truth, generator)
        module = TrainableReduNet(construct(x, y, layers=self.short, eps=self.eps, step=self.step))
        before, training_before = _share(_guess(module, unseen) == truth), _share(_guess(module, x) == y)
        optimiser = torch.optim.SGD(module.parameters(), lr=self.rate, momentum=0.9)
        for _ in range(self.epochs):
            for batch in torch.randperm(len(y), generator=generator).split(BATCH):
                loss = torch.nn.functional.cross_entropy(module(x[batch]), y[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        return found | {
            f"training accuracy, {self.short} layers as built": training_before,
            f"training accuracy, {self.short} layers after back-propagation": _share(_guess(module, x) == y),
            f"accuracy, {self.short} layers as built": before,
            f"accuracy, {self.short} layers after back-propagation": _share(_guess(module, unseen) == truth),
        }


def digit_images() -> tuple[Tensor, Tensor]:
    """The images ``[1797, 1, 8, 8]`` and their labels ``[1797]``."""
    data = digits(words=2)
    return cast(Tensor, data.images), cast(Tensor, data.labels)


def _guess(module: TrainableReduNet, features: Tensor) -> Tensor:
    with torch.no_grad():
        return module(features).argmax(1)


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())


def _curves(net: ReduNet, null: ReduNet, x: Tensor, y: Tensor, unseen: Tensor, truth: Tensor) -> dict:
    order = torch.argsort(truth, stable=True)
    order = order[torch.linspace(0, len(order) - 1, min(len(order), SHOWN)).long()]
    before, after = unseen[order], net.transform(unseen[order])
    return {
        f"{NAME}/rates": net.rates.numpy(),
        f"{NAME}/null_reductions": null.reductions.numpy(),
        f"{NAME}/spectra_before": class_spectra(x, y),
        f"{NAME}/spectra_after": class_spectra(net.features, y),
        f"{NAME}/cosines_before": (before @ before.mT).float().numpy(),
        f"{NAME}/cosines_after": (after @ after.mT).float().numpy(),
        f"{NAME}/labels": truth[order].numpy(),
    }
