"""ReduNet on the Gaussian toy of its paper, in the plane and in space.

Source: :cite:t:`chan2022redunet`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....core.claims import Evidence
from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Row, finding
from ....core.result import Result
from ..analysis import MCR2, NAME, REDUNET
from ..figures import gaussians
from ..optimum import optimum
from ..problem import gaussian_toy
from ..redunet import construct

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KNOWN = {2: 0.875, 3: 1.879}  # d -> ΔR after 300 layers of an independent computation, other noise


@dataclass(frozen=True)
class ReduNetGaussians(RandomExperiment):
    """ReduNet on Gaussian classes around the axes of the plane and of space: ΔR rises at every layer and approaches its optimum."""

    per_class: int = setting(500, ge=1, help="samples of each class")
    layers: int = setting(2000, ge=1, help="gradient steps")
    step: float = setting(0.5, gt=0, help="step size η")
    noise: float = setting(0.1, ge=0, help="standard deviation of the classes before they are projected to the sphere")
    eps: float = setting(0.1**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside")

    name = "rate_reduction.redunet_gaussians"
    sources = (REDUNET,)

    @classmethod
    def quick(cls) -> "ReduNetGaussians":
        return cls(layers=300)

    def measure(self) -> Iterator[Row | Arrays]:
        generator = self.generator()
        for dim in (2, 3):
            train, labels = gaussian_toy(dim, self.per_class, noise=self.noise, generator=generator)
            unseen, truth = gaussian_toy(dim, self.per_class, noise=self.noise, generator=generator)
            net = construct(train, labels, layers=self.layers, eps=self.eps, step=self.step)
            moved = net.transform(unseen)
            rises = net.reductions.diff()
            best = optimum([self.per_class] * dim, dim, eps=self.eps).value
            across = (moved @ moved.mT).abs()[truth[:, None] != truth].mean()
            yield finding(
                NAME,
                f"share of the layers that raise the rate reduction, d = {dim}",
                Evidence(float((rises > 0).double().mean()), 1.0, ">="),
                source=REDUNET,
            )
            yield Row(theory=NAME, quantity=f"rate reduction before, d = {dim}", value=float(net.reductions[0]), source=str(REDUNET))
            yield Row(theory=NAME, quantity=f"rate reduction after, d = {dim}", value=float(net.reductions[-1]), source=str(REDUNET))
            if self.layers >= 300 and self.at_defaults("per_class", "step", "noise", "eps"):
                quantity, value = f"rate reduction after 300 layers, d = {dim}", float(net.reductions[300])
                yield Row(theory=NAME, quantity=quantity, value=value, predicted=KNOWN[dim], basis="recomputed", source=str(REDUNET))
            yield Row(theory=NAME, quantity=f"optimum of the rate reduction, d = {dim}", value=best, source=str(MCR2))
            yield Row(theory=NAME, quantity=f"mean |cosine| across classes, unseen, d = {dim}", value=float(across), source=str(REDUNET))
            accuracy = float((net.predict(moved) == truth).double().mean())
            yield Row(theory=NAME, quantity=f"accuracy on unseen samples, d = {dim}", value=accuracy, source=str(REDUNET))
            yield Arrays({f"{NAME}/reductions_{dim}": net.reductions.numpy()})
            if dim == 2:
                yield Arrays({f"{NAME}/plane_before": unseen.numpy(), f"{NAME}/plane_after": moved.numpy()})

    def draw(self, result: Result) -> "Figure":
        return gaussians(result)
