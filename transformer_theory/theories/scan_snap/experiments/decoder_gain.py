"""The decoder's gain under gradient descent against its closed form, as in the paper's Figure 8."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ....core.claims import Evidence
from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Row, finding
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import h, h_discrete
from ..figures import decoder_gain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"

FIGURE = Source(PAPER, "Fig. 8")


@dataclass(frozen=True)
class DecoderGain(Experiment):
    """The recursion of h with steps of finite length, and the root of the continuous equation: their distance over the first steps."""

    vocab_sizes: tuple[int, ...] = setting((50, 1000), ge=2, help="vocabulary M, one a panel")
    eta_y: tuple[float, ...] = setting((0.1, 0.2, 0.5, 1.0, 2.0, 4.0), ge=1e-3, le=10, help="learning rates of the decoder")
    steps: int = setting(80, ge=2, le=10**6, help="steps")

    name: ClassVar[str] = "scan_snap.decoder_gain"
    sources: ClassVar[tuple[Source, ...]] = (FIGURE,)

    def measure(self) -> Iterator[Row | Arrays]:
        """The largest distance, in units of 2 eta_Y / M, and both curves."""
        t = torch.arange(self.steps, dtype=torch.float64)
        for panel, M in enumerate(self.vocab_sizes):
            closed, stepped = [], []
            for eta_y in self.eta_y:
                closed.append(h(t, vocab_size=M, eta_y=eta_y))
                stepped.append(h_discrete(self.steps, vocab_size=M, eta_y=eta_y))
                gap = (stepped[-1] - closed[-1]).abs()
                yield finding(
                    NAME,
                    f"largest distance of h to its closed form, in units of 2 eta_Y / M, M = {M}, eta_Y = {eta_y:g}",
                    Evidence(float(gap.max()) * M / (2 * eta_y), 1.0, "<="),
                    source=FIGURE,
                    note=f"relative distance at the end {float(gap[-1] / closed[-1][-1]):.1e}",
                )
            arrays = {"closed": torch.stack(closed).numpy(), "stepped": torch.stack(stepped).numpy()}
            yield Arrays({f"{NAME}/{key}_{panel}": value for key, value in arrays.items()})

    def draw(self, result: Result) -> "Figure":
        return decoder_gain(result)
