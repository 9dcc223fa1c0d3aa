"""ReduNet on the Gaussian toy of its paper, in the plane and in space.

Source: :cite:t:`chan2022redunet`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement, judge
from ....core.plotting import TINTS, axes, colour, label_ends, line, style
from ....core.result import Result
from ....core.table import Arrays
from ..on_data import LAYERS_RAISE
from ..optimum import optimum
from ..problem import MCR2, NAME, REDUNET, gaussian_toy
from ..redunet import construct

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIMUM = "optimum of the rate reduction"
REDUCTION = "rate reduction"
DRAWN = 60  # points of a curve
REFERENCE_LAYERS = 300
REFERENCE = {2: 0.875, 3: 1.879}  # d -> ΔR after 300 layers, computed independently with other noise


@dataclass(frozen=True)
class ReduNetGaussians(RandomExperiment):
    """ReduNet on Gaussian classes around the axes of the plane and of space: ΔR rises at every layer and
    approaches its optimum.
    """

    per_class: int = setting(500, ge=1, help="samples of each class")
    layers: int = setting(2000, ge=1, help="gradient steps")
    step: float = setting(0.5, gt=0, help="step size η")
    noise: float = setting(
        0.1, ge=0, help="standard deviation of the classes before they are projected to the sphere"
    )
    eps: float = setting(0.1**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside")

    name = "rate_reduction.redunet_gaussians"
    sources = (REDUNET,)

    @classmethod
    def quick(cls) -> "ReduNetGaussians":
        """Returns a small version: 300 layers."""
        return cls(layers=300)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields rows with ΔR, by layer too, cosines and accuracy per dimension; arrays with the unseen
        samples in the plane.
        """
        generator = self.generator()
        for dim in (2, 3):
            train, labels = gaussian_toy(dim, self.per_class, noise=self.noise, generator=generator)
            unseen, truth = gaussian_toy(dim, self.per_class, noise=self.noise, generator=generator)
            net = construct(train, labels, layers=self.layers, eps=self.eps, step=self.step)
            transformed = net.transform(unseen)
            rising = float((net.reductions.diff() > 0).double().mean())
            best = optimum([self.per_class] * dim, dim, eps=self.eps).value
            cosine = (transformed @ transformed.mT).abs()[truth[:, None] != truth].mean()
            accuracy = float((net.predict(transformed) == truth).double().mean())

            row = partial(self.row, at={"d": dim})
            judged = {"op": ">=", "threshold": 1.0, "predicted": 1.0, "verdict": judge(rising, ">=", 1.0)}
            yield row(LAYERS_RAISE, rising, unit="share", **judged)
            yield row("rate reduction before", float(net.reductions[0]), unit="nats")
            yield row("rate reduction after", float(net.reductions[-1]), unit="nats")
            if self.layers >= REFERENCE_LAYERS and self.at_defaults("per_class", "step", "noise", "eps"):
                value = float(net.reductions[REFERENCE_LAYERS])
                quantity = f"rate reduction after {REFERENCE_LAYERS} layers"
                yield row(quantity, value, unit="nats", predicted=REFERENCE[dim], basis="recomputed")
            yield row(OPTIMUM, best, unit="nats", source=MCR2)
            yield row("mean |cosine| across classes", float(cosine), split="test")
            yield row("accuracy", accuracy, unit="share", split="test")
            for layer in (
                np.linspace(0, self.layers, min(DRAWN, self.layers + 1)).round().astype(int).tolist()
            ):
                yield row(REDUCTION, float(net.reductions[layer]), unit="nats", layer=layer)
            if dim == 2:
                yield Arrays(
                    {f"{NAME}/plane_before": unseen.numpy(), f"{NAME}/plane_after": transformed.numpy()}
                )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots ΔR by layer for each dimension with its optimum, and the plane before and after."""
        figure, panels = axes(1, 2, height=2.8)
        for tint, dim in zip(TINTS, (2, 3)):
            rows = result.table.select(at={"d": dim})
            curve, best = rows.select(quantity=REDUCTION), rows.select(quantity=OPTIMUM).one().value
            layers, values = curve.column("layer"), curve.column("value")
            line(panels[0], layers, values, color=tint, label=f"d = {dim}", null=best)
        panels[0].set_title("Rate reduction, nats (dashed: optimum)")
        panels[0].set_xlabel("layer of ReduNet")
        for key, name in (("before", "null"), ("after", NAME)):
            points = result.arrays[f"{NAME}/plane_{key}"]
            panels[1].plot(points[:, 0], points[:, 1], ".", color=colour(name), label=key, alpha=0.6)
        panels[1].set_aspect("equal")
        panels[1].set_title("Two classes in the plane")
        panels[1].legend(loc="lower left", fontsize=7.5, frameon=False)
        label_ends(panels[0])
        return figure
