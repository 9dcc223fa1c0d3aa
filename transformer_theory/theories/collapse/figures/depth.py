"""Depth: the collapse without skip connections by the size of the scores, and the cosine of the tokens with
skip connections.

Source: :cite:t:`dong2021attention`, :cite:t:`noci2022signal`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement
from ....core.plotting import TINTS
from ....core.sources import Source
from ....metrics.geometry import rank_collapse_residual
from ..initialisation import depth_cosine, mean_cosine, stream

DONG, NOCI = Source("dong2021attention", status="own"), Source("noci2022signal", status="own")
RESIDUAL, COSINE = "relative residual without skip connection", "mean cosine with skip connections"
DEVIATIONS, SMALLEST = (0.3, 1.0, 3.0, 9.0), 1e-12  # residuals below are rounding errors
FULL, SCALED = "alpha = 1", "alpha = 1 / root L"
LOOKS = {
    FULL: {"label": r"$\alpha = 1$", "color": "collapse", "linestyle": ""},
    SCALED: {"label": r"$\alpha = 1 / \sqrt{L}$", "color": TINTS[2], "linestyle": ""},
}
COSINES = {
    "xscale": "log",
    "xlabel": "layers with skip connections",
    "ylabel": "mean cosine",
    "ylim": (-0.03, 1.03),
}


@dataclass(frozen=True)
class Depth(RandomExperiment):
    """Random weights over the layers."""

    tokens: int = setting(64, ge=2, le=1024, help="number of tokens, orthogonal at the start")
    width: int = setting(256, ge=2, le=4096, help="dimension of the tokens, at least their number")
    layers: int = setting(32, ge=1, le=512, help="largest number of layers")
    runs: int = setting(3, ge=1, le=100, help="runs of each setting")

    name = "collapse.depth"
    sources = (DONG, NOCI)

    view = curves(
        "layer",
        panels=(
            Panel(
                "",
                RESIDUAL,
                lines="score deviation",
                legend="center right",
                axes={
                    "yscale": "log",
                    "xlabel": "layer without skip connection",
                    "ylabel": "relative residual",
                },
            ),
            tuple(
                Panel(
                    "",
                    COSINE,
                    {"branch": branch},
                    ("branch", {branch: look}),
                    predicted=label,
                    legend="center left",
                    axes=COSINES,
                    x="layers",
                )
                for (branch, look), label in zip(LOOKS.items(), ("closed form", "_"))
            ),
        ),
        caption="{tokens} orthogonal tokens of {width} dimensions, random weights, means of {runs} runs. "
        "Left: "
        "small scores collapse in a few layers, large ones within about ten.",
        size=(7.6, 3.2),
    )

    @classmethod
    def quick(cls) -> "Depth":
        """Eight tokens, four layers, one run."""
        return cls(tokens=8, width=16, layers=4, runs=1)

    def depths(self) -> list[int]:
        """Returns the numbers of layers with skip connections: powers of 2, and the largest."""
        return sorted({2**k for k in range(self.layers.bit_length()) if 2**k <= self.layers} | {self.layers})

    def measure(self) -> Iterator[Measurement]:
        """Yields the residual after up to ten layers without skip connection, and the cosine after L layers
        with them.
        """
        generator, sizes = self.generator(), (self.tokens, self.width)
        for deviation in DEVIATIONS:
            for layer in range(min(self.layers, 10)):
                options = {"deviation": deviation, "skip": 0.0}
                runs = [
                    float(rank_collapse_residual(stream(*sizes, layer + 1, 1.0, generator, **options)))
                    for _ in range(self.runs)
                ]
                value, reason = float(np.mean(runs)), ""
                if not value > SMALLEST:
                    value, reason = None, f"below {SMALLEST:g}, which is rounding"
                place = {"at": {"score deviation": deviation}, "layer": layer, "n": self.runs}
                yield self.row(RESIDUAL, value, reason=reason, **place)
        for branch in LOOKS:
            for L in self.depths():
                alpha = L**-0.5 if branch == SCALED else 1.0
                runs = [
                    float(mean_cosine(stream(*sizes, L, alpha, generator, deviation=0.3)))
                    for _ in range(self.runs)
                ]
                predicted, at = depth_cosine(alpha, L, self.tokens), {"branch": branch, "layers": L}
                columns = {"predicted": predicted, "n": self.runs, "source": NOCI}
                yield self.row(COSINE, float(np.mean(runs)), at=at, **columns)
