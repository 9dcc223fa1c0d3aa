"""Runs that reproduce figures of the papers."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ...claims import Evidence
from ...experiment import RandomExperiment, Result
from ...metrics.coding import rate_reduction
from ...rows import Arrays, Row, finding
from .analysis import MCR2, NAME, REDUNET
from .claims import SIZES
from .figures import draw_toy
from .problem import flat_reduction, gaussian_toy, maximise, optimum
from .redunet import construct


@dataclass(frozen=True)
class ReduNetGaussians(RandomExperiment):
    """ReduNet on Gaussian classes around the axes of the plane and of space: ΔR rises at every layer and approaches its optimum.

    Args:
        per_class: samples a class.
        layers: gradient steps.
        step: η.
        noise: standard deviation of the classes before they are projected to the sphere.
        eps: distortion ε; squared inside.
    """

    per_class: int = 500
    layers: int = 2000
    step: float = 0.5
    noise: float = 0.1
    eps: float = 0.1**0.5

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
                Evidence(float((rises > -1e-12).double().mean()), 1.0, ">="),
                source=REDUNET,
            )
            yield Row(theory=NAME, quantity=f"rate reduction before, d = {dim}", value=float(net.reductions[0]), source=str(REDUNET))
            yield Row(theory=NAME, quantity=f"rate reduction after, d = {dim}", value=float(net.reductions[-1]), source=str(REDUNET))
            yield Row(theory=NAME, quantity=f"optimum of the rate reduction, d = {dim}", value=best, source=str(MCR2))
            yield Row(theory=NAME, quantity=f"mean |cosine| across classes, unseen, d = {dim}", value=float(across), source=str(REDUNET))
            accuracy = float((net.predict(moved) == truth).double().mean())
            yield Row(theory=NAME, quantity=f"accuracy on unseen samples, d = {dim}", value=accuracy, source=str(REDUNET))
            yield Arrays({f"{NAME}/reductions_{dim}": net.reductions.numpy()})
            if dim == 2:
                yield Arrays({f"{NAME}/plane_before": unseen.numpy(), f"{NAME}/plane_after": moved.numpy()})

    def draw(self, result: Result):
        return draw_toy(result)


@dataclass(frozen=True)
class Landscape(RandomExperiment):
    """Where random starts end: every maximiser is orthogonal and flat, but only the best of them keeps all dimensions.

    Args:
        starts: number of ascents, three classes of 20 samples with rank at most 4 in 12 dimensions.
        eps: distortion ε; squared inside.
    """

    starts: int = 100
    eps: float = 0.5**0.5

    name = "rate_reduction.landscape"
    sources = (MCR2,)

    @classmethod
    def quick(cls) -> "Landscape":
        return cls(starts=10)

    def measure(self) -> Iterator[Row | Arrays]:
        generator = self.generator()
        best = flat_reduction(SIZES, (4, 4, 4), 12, eps=self.eps)
        reached = []
        for _ in range(self.starts):
            features, labels, _ = maximise(SIZES, (4, 4, 4), 12, eps=self.eps, generator=generator)
            reached.append(float(rate_reduction(features, labels, eps=self.eps)))
        values = torch.tensor(reached, dtype=torch.float64)
        yield finding(NAME, "excess of the best start over the closed form", Evidence(max(reached) - best, 1e-9, "<="), source=MCR2)
        share = float((values > best - 1e-9).double().mean())
        yield Row(theory=NAME, quantity="share of starts that reach the optimum", value=share, source=str(MCR2))
        yield Arrays({f"{NAME}/reached": values.sort().values.numpy(), f"{NAME}/closed_form": torch.tensor(best).numpy()})

    def draw(self, result: Result):
        from ...plotting import axes, line, null_band

        figure, (ax,) = axes(width=5, height=2.6)
        values = result.arrays[f"{NAME}/reached"]
        line(ax, range(1, len(values) + 1), values, name=NAME, marker=".", linestyle="none")
        null_band(ax, float(result.arrays[f"{NAME}/closed_form"]), label="optimum, closed form")
        ax.set_xlabel("start, sorted")
        ax.set_title("Rate reduction reached, nats")
        return figure
