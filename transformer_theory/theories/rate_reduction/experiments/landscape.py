"""Where ascents of the rate reduction end.

Source: :cite:t:`yu2020learning`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ....claims import Evidence
from ....experiment import RandomExperiment, Result, parameter
from ....metrics.coding import rate_reduction
from ....rows import Arrays, Row, finding
from ..analysis import MCR2, NAME
from ..claims.instance import DIM, RANKS, SIZES
from ..figures import landscape
from ..optimum import flat_reduction, maximise

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Landscape(RandomExperiment):
    """Where random starts end: every maximiser is orthogonal and flat, but only the best of them keeps all dimensions."""

    starts: int = parameter(100, at_least=1, says="ascents, of three classes of 20 samples with rank at most 4 in 12 dimensions")
    eps: float = parameter(0.5**0.5, at_least=1e-3, at_most=1e3, says="distortion ε; squared inside")

    name = "rate_reduction.landscape"
    sources = (MCR2,)

    @classmethod
    def quick(cls) -> "Landscape":
        return cls(starts=10)

    def measure(self) -> Iterator[Row | Arrays]:
        generator = self.generator()
        best = flat_reduction(SIZES, RANKS, DIM, eps=self.eps)
        reached = []
        for _ in range(self.starts):
            features, labels, _ = maximise(SIZES, RANKS, DIM, eps=self.eps, generator=generator)
            reached.append(float(rate_reduction(features, labels, eps=self.eps)))
        values = torch.tensor(reached, dtype=torch.float64)
        yield finding(NAME, "excess of the best start over the closed form", Evidence(max(reached) - best, 1e-9, "<="), source=MCR2)
        share = float((values > best - 1e-9).double().mean())
        yield Row(theory=NAME, quantity="share of starts that reach the optimum", value=share, source=str(MCR2))
        yield Arrays({f"{NAME}/reached": values.sort().values.numpy(), f"{NAME}/closed_form": torch.tensor(best).numpy()})

    def draw(self, result: Result) -> "Figure":
        return landscape(result)
