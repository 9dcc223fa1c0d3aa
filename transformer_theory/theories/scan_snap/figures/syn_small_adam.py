"""The paper's Syn-Small training with Adam (Figure 5)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement
from ....core.plotting import axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..dynamics import Adam
from ..problem import synthetic
from .syn_small import NAME, PAPER, final_attention, plot_attention, train_side_by_side

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class SynSmallAdam(RandomExperiment):
    """Syn-Small with Adam. Both matrices have the same learning rate, which determines the distinct tokens
    that keep attention.
    """

    rates: tuple[float, ...] = setting((0.1, 0.5, 1.0), gt=0, le=100, help="learning rates of both matrices")
    batch: int = setting(128, ge=1, help="sequences per step")
    length: int = setting(128, ge=2, help="tokens per sequence, including the query")
    steps: int = setting(100, ge=1, help="steps of training")
    seeds: int = setting(10, ge=1, help="independent runs")

    name: ClassVar[str] = "scan_snap.syn_small_adam"
    sources: ClassVar[tuple[Source, ...]] = (Source(PAPER, "Fig. 5"),)

    @classmethod
    def quick(cls) -> "SynSmallAdam":
        return cls(steps=20, seeds=2)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the final attention, means over the seeds."""
        classes = synthetic(2)
        rates = [rate for rate in self.rates for _ in range(self.seeds)]
        seeds = torch.randint(2**31, (self.seeds,), generator=self.generator()).tolist() * len(self.rates)
        sizes = {"batch": self.batch, "length": self.length, "steps": self.steps}
        path = train_side_by_side(classes, rates, rates, seeds=seeds, optimiser=Adam(), **sizes)
        c = classes.attended(path.attention).unflatten(1, (len(self.rates), self.seeds))
        for i, rate in enumerate(self.rates):
            yield from final_attention(self, classes, c[:, i], {"optimiser": "Adam", "eta": rate})
        yield Arrays(
            {
                f"{NAME}/steps": path.steps.numpy(),
                f"{NAME}/attended": c[:, :, 0, 0, classes.conditional[0] > 0].numpy(),
            }
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots attention of the first class in one run, one panel per learning rate."""
        rates, c = self.rates, result.arrays[f"{NAME}/attended"]
        figure, panels = axes(1, len(rates), width=max(4.0, 2.5 * len(rates)), height=3.0)
        for i, (ax, rate) in enumerate(zip(panels, rates)):
            title = f"Adam, $\\eta$ = {rate:g}"
            plot_attention(
                ax, result.arrays[f"{NAME}/steps"], c[:, i], title, float(c.max()), bar=i == len(rates) - 1
            )
        caption(
            figure,
            "Attention of the first class in one run; tokens below the white line are common to both "
            "classes.",
        )
        return figure
