"""Depth: the collapse without skip connections by the size of the scores, and the cosine of the tokens with
skip connections.

Source: :cite:t:`dong2021attention`, :cite:t:`noci2022signal`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, shades, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ....metrics.geometry import rank_collapse_residual
from ..initialisation import depth_cosine, mean_cosine, stream

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "collapse"
DONG, NOCI = Source("dong2021attention", status="own"), Source("noci2022signal", status="own")
RESIDUAL, COSINE = "relative residual without skip connection", "mean cosine with skip connections"
DEVIATIONS, SMALLEST = (0.3, 1.0, 3.0, 9.0), 1e-12  # residuals below are rounding errors
BRANCHES = {"alpha = 1": False, "alpha = 1 / root L": True}
LABELS = {"alpha = 1": r"$\alpha = 1$", "alpha = 1 / root L": r"$\alpha = 1 / \sqrt{L}$"}


@dataclass(frozen=True)
class Depth(RandomExperiment):
    """Random weights over the layers."""

    tokens: int = setting(64, ge=2, le=1024, help="number of tokens, orthogonal at the start")
    width: int = setting(256, ge=2, le=4096, help="dimension of the tokens, at least their number")
    layers: int = setting(32, ge=1, le=512, help="largest number of layers")
    runs: int = setting(3, ge=1, le=100, help="runs of each setting")

    name: ClassVar[str] = "collapse.depth"
    sources: ClassVar[tuple[Source, ...]] = (DONG, NOCI)

    @classmethod
    def quick(cls) -> "Depth":
        """Eight tokens, four layers, one run."""
        return cls(tokens=8, width=16, layers=4, runs=1)

    def depths(self) -> list[int]:
        """Returns the numbers of layers with skip connections: powers of 2, and the largest."""
        return sorted({2**k for k in range(self.layers.bit_length()) if 2**k <= self.layers} | {self.layers})

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the residual after up to ten layers without skip connection, and the cosine after L layers
        with them.
        """
        generator = self.generator()
        pure = np.full((len(DEVIATIONS), min(self.layers, 10)), np.nan)
        for row, deviation in enumerate(DEVIATIONS):
            for layer in range(pure.shape[1]):
                runs = [
                    float(
                        rank_collapse_residual(
                            stream(
                                self.tokens,
                                self.width,
                                layer + 1,
                                1.0,
                                generator,
                                deviation=deviation,
                                skip=0.0,
                            )
                        )
                    )
                    for _ in range(self.runs)
                ]
                value = float(np.mean(runs))
                pure[row, layer] = value if value > SMALLEST else np.nan
                reason = "" if value > SMALLEST else f"below {SMALLEST:g}, which is rounding"
                yield Measurement(
                    NAME,
                    "figure",
                    RESIDUAL,
                    value if value > SMALLEST else None,
                    reason=reason,
                    at={"score deviation": deviation},
                    layer=layer,
                    source=DONG,
                    n=self.runs,
                )
        cosines = np.zeros((len(BRANCHES), len(self.depths())))
        for row, (name, scaled) in enumerate(BRANCHES.items()):
            for place, L in enumerate(self.depths()):
                alpha = L**-0.5 if scaled else 1.0
                runs = [
                    float(mean_cosine(stream(self.tokens, self.width, L, alpha, generator, deviation=0.3)))
                    for _ in range(self.runs)
                ]
                cosines[row, place] = np.mean(runs)
                yield Measurement(
                    NAME,
                    "figure",
                    COSINE,
                    float(np.mean(runs)),
                    predicted=depth_cosine(alpha, L, self.tokens),
                    at={"branch": name, "layers": L},
                    source=NOCI,
                    n=self.runs,
                )
        yield Arrays({"residual": pure, "cosine": cosines})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws both over the layers; lines on the right are the formula."""
        if "cosine" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, (left, right) = axes(1, 2, width=7.6, height=3.2)
        for values, deviation, tint in zip(result.arrays["residual"], DEVIATIONS, shades(len(DEVIATIONS))):
            left.plot(
                range(1, len(values) + 1), values, "o-", color=tint, markersize=3, label=f"{deviation:g}"
            )
        left.set(yscale="log", xlabel="layers without skip connection", ylabel="relative residual")
        left.legend(title="score deviation", loc="center right", fontsize=7)
        for values, (name, scaled), colour in zip(
            result.arrays["cosine"], BRANCHES.items(), (COLOURS[NAME], "#DDAA33")
        ):
            depths = self.depths()
            right.plot(depths, values, "o", color=colour, markersize=4, label=LABELS[name])
            formula = [depth_cosine(L**-0.5 if scaled else 1.0, L, self.tokens) for L in depths]
            right.plot(depths, formula, "-", color=colour)
        right.set(
            xscale="log", xlabel="layers with skip connections", ylabel="mean cosine", ylim=(-0.03, 1.03)
        )
        right.set_xticks(self.depths(), [str(L) for L in self.depths()])
        right.minorticks_off()
        right.legend(loc="center left")
        caption(
            figure,
            f"{self.tokens} orthogonal tokens of {self.width} dimensions, random weights, means of "
            f"{self.runs} runs. Left: small scores collapse in a few layers, large ones within about ten. "
            "Right: lines are the closed form.",
        )
        return figure
