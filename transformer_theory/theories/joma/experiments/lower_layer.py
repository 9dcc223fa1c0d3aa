"""The stable rank of the lower layer over the theory's own dynamics: it falls and comes back, if some tokens are salient.

Source: :cite:t:`tian2024joma`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import stable_rank
from ..figures import lower_layer
from ..lower_layer import alike, gaussian_points, linear_layer, nonlinear_layer, rank_bounce
from ..orbit import blow_up_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, JOMA = "joma", Source("tian2024joma")
FROM = 1e-7  # the first time that is drawn; V is a multiple of the critical points until then


@dataclass(frozen=True)
class LowerLayer(RandomExperiment):
    """Units with normal critical points: stable rank of the lower layer over time, nonlinear and linear, and with no token salient."""

    units: int = setting(12, ge=2, le=500, help="of the lower layer")
    tokens: int = setting(20, ge=2, le=500, help="that it reads")
    scale: float = setting(1.0, gt=0, le=3, help="standard deviation of the critical points' entries")
    until: float = setting(1e3, ge=1, le=1e5, help="time up to which the flow is followed")
    seeds: int = setting(20, ge=1, le=1000, help="draws of the critical points")

    name: ClassVar[str] = "joma.lower_layer"
    sources: ClassVar[tuple[Source, ...]] = (JOMA, Source("rudelson2007sampling"))

    @classmethod
    def quick(cls) -> "LowerLayer":
        return cls(units=6, tokens=8, seeds=3)

    def measure(self) -> Iterator[Row | Arrays]:
        """Start, least and end of the stable rank, means over the draws, and the least drop and rebound."""
        times = torch.logspace(math.log10(FROM), math.log10(self.until), 200, dtype=torch.float64)
        remaining, generator = torch.logspace(0, -12, 200, dtype=torch.float64)[1:], self.generator()
        draws = [gaussian_points(generator, units=self.units, tokens=self.tokens, scale=self.scale) for _ in range(self.seeds)]
        level = [alike(points) for points in draws]
        flows = {  # where V starts, up to a factor, and V at later times
            "nonlinear": (draws, [nonlinear_layer(points, times) for points in draws]),
            "linear": (draws, [linear_layer(points, remaining) for points in draws]),
            "no token salient": (level, [nonlinear_layer(points, times) for points in level]),
        }
        bounces = {how: [rank_bounce(*pair) for pair in zip(*flow)] for how, flow in flows.items()}
        for how in flows:
            for when in ("start", "least", "end"):
                values = [getattr(found, when) for found in bounces[how]]
                note, mean = f"{self.seeds} draws, {min(values):.3g} to {max(values):.3g}", sum(values) / len(values)
                yield Row(theory=NAME, quantity=f"stable rank, {when}, {how}", value=mean, source=str(JOMA), note=note)
        for what, null in (("drop", "no token salient"), ("rebound", "linear")):
            shares = {how: [getattr(one, what) / one.start for one in found] for how, found in bounces.items()}
            note = f"share of the start, least of {self.seeds} draws; null: the largest, {null}"
            value, chance = min(shares["nonlinear"]), max(shares[null])
            yield Row(theory=NAME, quantity=f"{what} of the stable rank", value=value, null=chance, source=str(JOMA), note=note)
        yield from self._arrays(times, remaining, draws[0], {how: layers for how, (_, layers) in flows.items()})

    def _arrays(self, times: Tensor, remaining: Tensor, points: Tensor, layers: dict[str, list[Tensor]]) -> Iterator[Arrays]:
        ranks = {how: torch.stack([stable_rank(layer) for layer in found]) for how, found in layers.items()}
        shown = [0, int(ranks["nonlinear"][0].argmin()), len(times) - 1]
        arrays = {"times": times, "shown": times[shown], "layers": layers["nonlinear"][0][shown], "points": points}
        arrays["blow_up"] = (1 - remaining) * blow_up_time(points.norm(dim=0))
        arrays |= {f"rank_{how}": curves for how, curves in ranks.items()}
        yield Arrays({f"{NAME}/{name}": values.numpy() for name, values in arrays.items()})

    def draw(self, result: Result) -> "Figure":
        """Stable rank over time, and the lower layer of the first draw at three times."""
        return lower_layer(result)
