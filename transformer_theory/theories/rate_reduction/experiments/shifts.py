"""Shift-invariant ReduNet on digits that stand anywhere on a torus, beside ReduNet on their pixels.

Source: :cite:t:`chan2022redunet`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ....core.claims import Evidence
from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Row, finding
from ....core.result import Result
from ..analysis import NAME, REDUNET
from ..figures import shifts
from ..redunet import construct, construct_shift_invariant, lift, random_filters
from .on_data import digit_images

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID = 8
NETWORKS = ("shift-invariant", "shift-invariant, balanced", "pixels")


@dataclass(frozen=True)
class Shifts(RandomExperiment):
    """Digits on a torus, learned where they stand and asked after any cyclic shift.

    The shift-invariant network answers each of the 64 places alike, because its features move with the image; the network on pixels knows
    one place. Both are built from the same digits as they are, without any shifted copy. "Balanced" is the same network with the class of
    least ``γ_j ||x C_j||`` instead of the published ``||x C_j||``.
    """

    training: int = setting(1300, ge=20, le=1700, help="training samples of 1797; the rest are not seen")
    channels: int = setting(32, ge=1, le=256, help="random filters, rectified")
    size: int = setting(5, ge=1, le=GRID, help="pixels along the side of a filter")
    layers: int = setting(20, ge=1, help="gradient steps")
    step: float = setting(0.5, gt=0, le=1e3, help="step size η")
    eps: float = setting(0.1**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside")
    unseen: int = setting(97, ge=1, le=97, help="samples not seen that are asked at each of the 64 places")

    name = "rate_reduction.shifts"
    sources = (REDUNET,)

    @classmethod
    def quick(cls) -> "Shifts":
        return cls(training=100, channels=4, size=3, layers=2, unseen=20)

    def measure(self) -> Iterator[Row | Arrays]:
        """Accuracy at each place of the torus for both networks, and how far features are from shifting with the image."""
        generator, (images, labels) = self.generator(), digit_images()
        order = torch.randperm(len(images), generator=generator)
        train, asked = order[: self.training], order[self.training :][: self.unseen]
        filters = random_filters(self.channels, 1, (self.size, self.size), generator=generator)
        settings = {"layers": self.layers, "eps": self.eps, "step": self.step}
        moving = construct_shift_invariant(lift(images[train], filters), labels[train], **settings)
        fixed = construct(images[train].flatten(1), labels[train], **settings)
        accuracy = {name: torch.zeros(GRID, GRID, dtype=torch.float64) for name in NETWORKS}
        gap, upright = 0.0, moving.transform(lift(images[asked], filters))
        for down in range(GRID):
            for across in range(GRID):
                there = images[asked].roll((down, across), (2, 3))
                features = moving.transform(lift(there, filters))
                gap = max(gap, float((features - upright.roll((down, across), (2, 3))).abs().max()))
                pixels = fixed.predict(fixed.transform(there.flatten(1)))
                for name, guess in zip(NETWORKS, (moving.predict(features), moving.predict_balanced(features), pixels)):
                    accuracy[name][down, across] = (guess == labels[asked]).double().mean()
        yield from self._rows(accuracy, gap, len(asked))
        yield finding(
            NAME,
            "share of the layers that raise the rate reduction of all shifts",
            Evidence(float((moving.reductions.diff() > 0).double().mean()), 1.0, ">="),
            source=REDUNET,
        )
        yield Arrays({f"{NAME}/reductions": moving.reductions.numpy(), f"{NAME}/example": images[asked[0], 0].numpy()})
        yield Arrays({f"{NAME}/accuracy/{name}": values.numpy() for name, values in accuracy.items()})

    def _rows(self, accuracy: dict[str, Tensor], gap: float, asked: int) -> Iterator[Row]:
        yield finding(
            NAME,
            "largest difference between features of shifted images and shifted features",
            Evidence(gap, 1e-9, "<="),
            source=REDUNET,
            predicted=0.0,
            basis="theory",
            note="Entries of features of norm 1",
        )
        for name, values in accuracy.items():
            elsewhere = values.flatten()[1:]
            note = f"{asked} digits not seen, {self.training} training digits"
            yield Row(theory=NAME, quantity=f"accuracy where learned, {name}", value=float(values[0, 0]), source=str(REDUNET), note=note)
            note += f"; mean over 63 shifts, {float(elsewhere.min()):.3f} to {float(elsewhere.max()):.3f}"
            yield Row(theory=NAME, quantity=f"accuracy elsewhere, {name}", value=float(elsewhere.mean()), source=str(REDUNET), note=note)

    def draw(self, result: Result) -> "Figure":
        """Accuracy by shift for both networks, and the rate reduction by layer."""
        return shifts(result)
