"""Shift-invariant ReduNet on digits at any position on a torus, compared with ReduNet on their pixels.

Source: :cite:t:`chan2022redunet`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement, judge
from ....core.plotting import axes, heatmap, line, style
from ....core.result import Result
from ....core.table import Arrays
from ..on_data import LAYERS_RAISE
from ..problem import NAME, REDUNET
from ..redunet import construct, construct_shift_invariant, lift, random_filters
from .redunet_digits import digit_images

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID = 8
INVARIANT, BALANCED, PIXELS = "shift-invariant", "shift-invariant, balanced", "pixels"
NETWORKS = (INVARIANT, BALANCED, PIXELS)
AT_ORIGIN, SHIFTED = "accuracy at the training position", "accuracy at shifted positions"
REDUCTION = "rate reduction of all shifts"
EQUIVARIANCE = "largest difference between features of shifted images and shifted features"


@dataclass(frozen=True)
class Shifts(RandomExperiment):
    """Two networks for digits on a torus, built at one position and tested after every cyclic shift.

    The shift-invariant network predicts the same class at each of the 64 positions, because its features move
    with the image. The network on pixels is built for one position. Both use the same digits without shifted
    copies. "Balanced" means that the shift-invariant network predicts by the smallest ``γ_j ||x C_j||``
    instead of the published ``||x C_j||``.
    """

    training: int = setting(1300, ge=20, le=1700, help="training samples of 1797; the rest are unseen")
    channels: int = setting(32, ge=1, le=256, help="random filters, rectified")
    size: int = setting(5, ge=1, le=GRID, help="pixels along the side of a filter")
    layers: int = setting(20, ge=1, help="gradient steps")
    step: float = setting(0.5, gt=0, le=1e3, help="step size η")
    eps: float = setting(0.1**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside")
    unseen: int = setting(
        97, ge=1, le=97, help="unseen samples that are classified at each of the 64 positions"
    )

    name = "rate_reduction.shifts"
    sources = (REDUNET,)

    @classmethod
    def quick(cls) -> "Shifts":
        """Returns a small version: 100 training samples, four filters and two layers."""
        return cls(training=100, channels=4, size=3, layers=2, unseen=20)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the accuracy of the networks at each position of the torus, and the deviation of the
        features from equivariance.
        """
        generator, (images, labels) = self.generator(), digit_images()
        order = torch.randperm(len(images), generator=generator)
        train, test = order[: self.training], order[self.training :][: self.unseen]
        filters = random_filters(self.channels, 1, (self.size, self.size), generator=generator)
        settings = {"layers": self.layers, "eps": self.eps, "step": self.step}
        invariant = construct_shift_invariant(lift(images[train], filters), labels[train], **settings)
        vector = construct(images[train].flatten(1), labels[train], **settings)
        accuracy = {name: torch.zeros(GRID, GRID, dtype=torch.float64) for name in NETWORKS}
        gap, features_unshifted = 0.0, invariant.transform(lift(images[test], filters))
        for down in range(GRID):
            for across in range(GRID):
                shifted = images[test].roll((down, across), (2, 3))
                features = invariant.transform(lift(shifted, filters))
                gap = max(
                    gap, float((features - features_unshifted.roll((down, across), (2, 3))).abs().max())
                )
                pixels = vector.predict(vector.transform(shifted.flatten(1)))
                for name, classes in zip(
                    NETWORKS, (invariant.predict(features), invariant.predict_balanced(features), pixels)
                ):
                    accuracy[name][down, across] = (classes == labels[test]).double().mean()
        rising = float((invariant.reductions.diff() > 0).double().mean())
        yield from self._rows(accuracy, gap, rising, len(test))
        for layer, value in enumerate(invariant.reductions.tolist()):
            yield self.row(REDUCTION, value, unit="nats", at={"network": INVARIANT}, layer=layer)
        yield Arrays({f"{NAME}/example": images[test[0], 0].numpy()})
        yield Arrays({f"{NAME}/accuracy/{name}": accuracy[name].numpy() for name in (PIXELS, INVARIANT)})

    def _rows(self, accuracy: dict[str, Tensor], gap: float, rising: float, n: int) -> Iterator[Measurement]:
        note = "entries of features of norm 1"
        yield self.row(
            EQUIVARIANCE,
            gap,
            predicted=0.0,
            op="<=",
            threshold=1e-9,
            verdict=judge(gap, "<=", 1e-9),
            note=note,
        )
        for name, values in accuracy.items():
            columns = {"unit": "share", "at": {"network": name}, "split": "test", "n": n}
            shifted = values.flatten()[1:]
            note = f"mean over 63 shifts, {float(shifted.min()):.3f} to {float(shifted.max()):.3f}"
            yield self.row(AT_ORIGIN, float(values[0, 0]), note=f"{self.training} training digits", **columns)
            yield self.row(SHIFTED, float(shifted.mean()), note=note, **columns)
        judged = {"predicted": 1.0, "op": ">=", "threshold": 1.0, "verdict": judge(rising, ">=", 1.0)}
        yield self.row(
            LAYERS_RAISE,
            rising,
            unit="share",
            at={"network": INVARIANT},
            note="rate reduction of all shifts",
            **judged,
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots a digit, the accuracy of two networks at each position of the torus, and the rate reduction
        of all shifts by layer.
        """
        figure, panels = axes(1, 4, width=8.4, height=2.3)
        heatmap(panels[0], result.arrays[f"{NAME}/example"], "A digit, as learnt", cmap="gray_r", bar=False)
        for ax, name in zip(panels[1:], (PIXELS, INVARIANT)):
            values = result.arrays[f"{NAME}/accuracy/{name}"]
            heatmap(
                ax, values, "accuracy" if name == INVARIANT else "", vmin=0, vmax=1, bar=name == INVARIANT
            )
            ax.set_title(f"Accuracy, {name}")
            for (down, across), value in [((0, 0), values[0, 0]), ((4, 4), values[4, 4])]:
                colour = "k" if value > 0.6 else "w"
                ax.annotate(
                    f"{100 * value:.0f} %",
                    (across, down),
                    ha="center",
                    va="center",
                    fontsize=5.5,
                    color=colour,
                )
            ax.set_xlabel("shift to the right")
            ax.set_ylabel("shift down")
            ax.set_xticks(range(0, values.shape[1], 2))
            ax.set_yticks(range(0, values.shape[0], 2))
        panels[0].set_xticks([])
        panels[0].set_yticks([])
        curve = result.table.select(quantity=REDUCTION)
        line(panels[3], curve.column("layer"), curve.column("value"), name=NAME)
        panels[3].set_title("Rate reduction")
        panels[3].set_ylabel("ΔR of all shifts, nats")
        panels[3].set_xlabel("layer")
        return figure
