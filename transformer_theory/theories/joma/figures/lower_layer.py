"""The stable rank of the lower layer in the theory's dynamics: it falls and rises again if some tokens are
salient.

Source: :cite:t:`tian2024joma`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement, Null
from ....core.plotting import axes, caption, colour, heatmap, label_ends, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....maths.linalg import stable_rank
from ..nonlinear import equal_columns, gaussian_points, linear_layer, nonlinear_layer, rank_bounce
from ..orbit import blow_up_time
from .common import draw_range, with_range

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, JOMA = "joma", Source("tian2024joma", "end of Section 4", "second-hand")
NONLINEAR, LINEAR, EQUAL = "nonlinear", "linear", "no token salient"
RANK = "stable rank"
STABLE_RANK = {
    "start": "stable rank at the start",
    "least": "smallest stable rank",
    "end": "stable rank at the end",
}
DROP, REBOUND = "drop of the stable rank", "rebound of the stable rank"
LONGEST = 2  # largest ratio of the sides of a drawn matrix
FIRST_TIME = 1e-7  # first time of the curves; until then V is a multiple of the critical points


@dataclass(frozen=True)
class LowerLayer(RandomExperiment):
    """Stable rank of the lower layer over time: nonlinear units, linear units, and nonlinear units without a
    salient token.
    """

    units: int = setting(12, ge=2, le=500, help="units of the lower layer")
    tokens: int = setting(20, ge=2, le=500, help="tokens of the context")
    scale: float = setting(1.0, ge=1e-6, le=3, help="standard deviation of the critical points' entries")
    until: float = setting(1e3, ge=1, le=1e5, help="last time of the flow")
    seeds: int = setting(20, ge=1, le=1000, help="draws of the critical points")

    name: ClassVar[str] = "joma.lower_layer"
    sources: ClassVar[tuple[Source, ...]] = (JOMA, Source("rudelson2007sampling"))

    @classmethod
    def quick(cls) -> "LowerLayer":
        return cls(units=6, tokens=8, seeds=3)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the stable rank at the start, minimum and end, means over the draws, and the smallest drop
        and rebound.
        """
        times = torch.logspace(math.log10(FIRST_TIME), math.log10(self.until), 200, dtype=torch.float64)
        remaining, generator = torch.logspace(0, -12, 200, dtype=torch.float64)[1:], self.generator()
        draws = [
            gaussian_points(generator, units=self.units, tokens=self.tokens, scale=self.scale)
            for _ in range(self.seeds)
        ]
        equal = [equal_columns(points) for points in draws]
        flows = {  # the direction of V at the start, and V at later times
            NONLINEAR: (draws, [nonlinear_layer(points, times) for points in draws]),
            LINEAR: (draws, [linear_layer(points, remaining) for points in draws]),
            EQUAL: (equal, [nonlinear_layer(points, times) for points in equal]),
        }
        bounces = {how: [rank_bounce(*pair) for pair in zip(*flow)] for how, flow in flows.items()}
        for how, curves in bounces.items():
            for when, quantity in STABLE_RANK.items():
                values = [getattr(curve, when) for curve in curves]
                note = f"A mean over draws, from {min(values):.3g} to {max(values):.3g}."
                mean = sum(values) / len(values)
                yield self.row(quantity, mean, at={"units": how}, n=self.seeds, note=note)
        for quantity, name, null in ((DROP, "drop", EQUAL), (REBOUND, "rebound", LINEAR)):
            shares = {
                how: [getattr(curve, name) / curve.start for curve in curves]
                for how, curves in bounces.items()
            }
            yield self.row(
                quantity,
                min(shares[NONLINEAR]),
                nulls=(Null(null, tuple(shares[null])),),
                side=">=",
                n=self.seeds,
                note="As a share of the start; the smallest of the draws.",
            )
        blow_up = (1 - remaining) * blow_up_time(draws[0].norm(dim=0))
        layers = {how: layers for how, (_, layers) in flows.items()}
        yield from self._curves({NONLINEAR: times, LINEAR: blow_up, EQUAL: times}, layers)

    def _curves(
        self, times: dict[str, Tensor], layers: dict[str, list[Tensor]]
    ) -> Iterator[Measurement | Arrays]:
        """Yields the stable ranks while those of nonlinear units change, and pictures of V of the first draw.

        The rank of linear units is that of the first draw, because the blow-up differs between draws.
        """
        ranks = {how: torch.stack([stable_rank(layer) for layer in draws]) for how, draws in layers.items()}
        first, last = _moving(times[NONLINEAR].numpy(), ranks[NONLINEAR].numpy())
        for how, of_draws in ranks.items():
            for time, values in zip(times[how].tolist(), of_draws.T.tolist()):
                at = {"units": how, "time": time}
                if not first <= time <= last:
                    continue
                if how == LINEAR:
                    yield self.row(RANK, values[0], at=at, n=1)
                else:
                    yield from with_range(self, RANK, float(np.median(values)), values, at=at)
        shown = [0, int(ranks[NONLINEAR][0].argmin()), -1]
        yield Arrays({f"{NAME}/shown": times[NONLINEAR][shown].numpy()})
        yield Arrays({f"{NAME}/layers": layers[NONLINEAR][0][shown].numpy()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the stable rank over time, and V of the first draw at three times; of a long matrix it draws
        a part.

        Lines are medians and bands are ranges over the draws; the curve of the linear units is the first
        draw.
        """
        figure, (curve, *panels) = axes(1, 4, height=2.6, width=10.5)
        for how, name in ((NONLINEAR, NAME), (EQUAL, "null"), (LINEAR, "raw")):
            rows = result.table.select(at={"units": how})
            draw_range(curve, rows, RANK, "time", color=colour(name), label=how)
        curve.set(title="Stable rank", xlabel="time t", xscale="log", ylim=(0, None))
        layers = result.arrays[f"{NAME}/layers"]
        for time, layer, panel in zip(result.arrays[f"{NAME}/shown"], layers, panels):
            values, bar = _part(layer) / np.abs(layer).max(), panel is panels[-1]
            heatmap(panel, values, "V / largest entry", vmin=-1, vmax=1, cmap="RdBu_r", bar=bar)
            panel.set(title=f"V at t = {time:.2g}", xlabel="token", ylabel="unit")
        label_ends(curve)
        text = (
            "Bands: all draws. Linear units: first draw, up to its blow-up. Colour: V over its largest "
            "entry, first draw"
        )
        whole, part = layers[0].shape, values.shape
        shown = [
            f"the first {few} of {many} {name}"
            for few, many, name in zip(part, whole, ("units", "tokens"))
            if few < many
        ]
        caption(figure, "; ".join([text, *shown]) + ".")
        return figure


def _part(layer: np.ndarray) -> np.ndarray:
    """Returns the first rows and columns of a matrix, so many that neither side is more than :data:`LONGEST`
    times the other.
    """
    rows, columns = layer.shape
    return layer[: LONGEST * columns, : LONGEST * rows]


def _moving(times: np.ndarray, ranks: np.ndarray) -> tuple[float, float]:
    """Returns the time range in which the ranks change, with a margin of a decade on each side."""
    moved = np.flatnonzero((np.abs(ranks / ranks[:, :1] - 1) > 0.01).any(0))
    first, last = (moved[0], moved[-1]) if len(moved) else (0, len(times) - 1)
    return times[first] / 10, times[last] * 10
