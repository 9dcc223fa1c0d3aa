r"""A function, its approximation and their difference on a slice of the input space.

Source: :cite:t:`yun2020transformers`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement
from ....core.plotting import axes, caption, heatmap, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..approximator import AttentionLayers, UniversalApproximator
from ..functions import random_function

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "universal"
ERROR = "mean error on the slice"
TARGET, WITH, WITHOUT = "target", "with attention", "without attention"


@dataclass(frozen=True)
class Slice(RandomExperiment):
    """The first output of a random smooth function of three tokens over the first two tokens, the third being
    fixed.
    """

    values: int = setting(8, ge=2, le=32, help="number k of values of an entry, 1/delta")
    third: float = setting(0.3, ge=0, lt=1, help="the third token")
    pixels: int = setting(128, ge=16, le=512, help="points per axis")

    name = "universal.slice"
    sources = (Source("yun2020transformers", "Theorem 3", "second-hand"),)

    @classmethod
    def quick(cls) -> "Slice":
        """A coarse picture."""
        return cls(values=4, pixels=32)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the mean error with and without attention layers, and the pictures."""
        f = random_function(self.generator(), n=3)
        line = (torch.arange(self.pixels, dtype=torch.float64) + 0.5) / self.pixels
        points = torch.stack(
            [*torch.meshgrid(line, line, indexing="ij"), torch.full((self.pixels, self.pixels), self.third)],
            dim=-1,
        )
        points = points.flatten(0, 1)[..., None]
        shape = (self.pixels, self.pixels)
        pictures = {TARGET: f(points)[:, 0, 0].reshape(shape).numpy()}
        networks: dict[str, AttentionLayers] = {WITH: "all", WITHOUT: "none"}
        for name, attention in networks.items():
            network = UniversalApproximator(f, 3, 1, Fraction(1, self.values), attention=attention).fit()
            pictures[name] = network(points)[:, 0, 0].reshape(shape).numpy()
            error = float(np.abs(pictures[name] - pictures[TARGET]).mean())
            yield self.row(ERROR, error, at={"network": name}, n=self.pixels**2)
        yield Arrays({f"{NAME}/{name}": picture for name, picture in pictures.items()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots target, approximation, difference, and the network without attention layers."""
        target, found, blind = (result.arrays[f"{NAME}/{name}"] for name in (TARGET, WITH, WITHOUT))
        figure, panels = axes(1, 4, height=2.35)
        limit = float(np.abs(target).max())
        pictures = (
            ("Target", target),
            ("Network", found),
            ("Difference", found - target),
            ("Without attention", blind),
        )
        for ax, (title, picture) in zip(panels, pictures):
            image = heatmap(ax, picture.T[::-1], title, vmin=-limit, vmax=limit, cmap="RdBu_r", bar=False)
            image.set_extent((0, 1, 0, 1))
            ax.set(xlabel="first token", xticks=[0, 1], yticks=[0, 1])
        panels[0].set_ylabel("second token")
        figure.colorbar(image, ax=list(panels), fraction=0.02, pad=0.01).outline.set_visible(False)
        errors = result.select(quantity=ERROR).column("value")
        texts = ", ".join(f"{value:.3f} {name}" for name, value in zip((WITH, WITHOUT), errors))
        caption(
            figure,
            f"The output at the first token, third token {self.third:g}, with cubes of width "
            f"1/{self.values}. Without attention layers it cannot depend on the second token. Mean errors "
            f"on the slice: {texts}.",
        )
        return figure
