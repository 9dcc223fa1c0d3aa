"""Independent tokens in high dimension follow one curve: mean cosine over time, and the distance from the
curve over the dimension.

Source: :cite:t:`geshkovski2025mathematical`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ..clusters import mean_cosine
from ..dynamics import flow, softmax_field, unit
from ..equiangular import common_cosine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISTANCE, EXPONENT = "distance of cosines from the curve", "exponent of the distance in the dimension"
COSINE = "mean cosine of the tokens"
SIZES, DRAWN = (8, 16, 32, 64, 128, 256, 512, 1024), (8, 64, 256, 1024)
POINTS = 25


@dataclass(frozen=True)
class Dimension(RandomExperiment):
    """Independent uniform tokens that move by SA in eight to 1,024 dimensions."""

    runs: int = setting(4, ge=1, le=1000, help="sequences for each dimension")
    tokens: int = setting(32, ge=2, le=1024, help="tokens of a sequence")
    beta: float = setting(4.0, ge=0.0, le=20.0, help="inverse temperature")
    time: float = setting(20.0, gt=0.0, le=1000.0, help="end of the flow")

    name = "particles.dimension"
    sources = (Source("geshkovski2025mathematical", status="own"),)

    view = curves(
        "time",
        panels=(
            Panel(
                "",
                COSINE,
                lines=("d", {d: {} for d in DRAWN}),
                predicted="equation",
                axes={"ylabel": "mean cosine", "ylim": (-0.05, 1.03)},
            ),
            Panel(
                "",
                DISTANCE,
                lines=("quantity", {DISTANCE: {"linestyle": "", "label": "measured"}}),
                legend="",
                x="d",
                axes={
                    "xscale": "log",
                    "yscale": "log",
                    "xlabel": "dimension",
                    "ylabel": "largest distance from the curve",
                    "yticks": (0.05, 0.1, 0.2, 0.5),
                    "yticklabels": (".05", ".1", ".2", ".5"),
                },
            ),
        ),
        caption="SA from {tokens} independent uniform tokens, beta = {beta:g}; {runs} sequences for each "
        "dimension. The distance is the root mean square over pairs, its largest value over time.",
        size=(7.4, 3.0),
    )

    @classmethod
    def quick(cls) -> "Dimension":
        """One sequence of four tokens to time 1."""
        return cls(runs=1, tokens=4, time=1.0)

    def measure(self) -> Iterator[Measurement]:
        """Yields the mean cosine over time, the largest distance over time of the root mean square kind for
        each dimension, and its exponent from 64 on.
        """
        generator, times = self.generator(), np.linspace(0, self.time, POINTS)
        curve = common_cosine(times.tolist(), n=self.tokens, beta=self.beta)
        pairs = ~torch.eye(self.tokens, dtype=torch.bool)
        distances = []
        for d in SIZES:
            X = unit(torch.randn(self.runs, self.tokens, d, generator=generator, dtype=torch.float64))
            states = flow(X, partial(softmax_field, beta=self.beta), times=times.tolist(), tolerance=1e-5)
            gram = (states @ states.mT)[..., pairs]
            off = gram - torch.from_numpy(curve)[:, None, None]
            distances.append(float(off.square().mean((1, 2)).sqrt().max()))
            yield self.row(DISTANCE, distances[-1], at={"d": d}, n=self.runs)
            for time, value, limit in zip(times, mean_cosine(states).mean(1).tolist(), curve):
                at = {"d": d, "time": float(time)}
                yield self.row(COSINE, value, reference=(float(limit), "limit"), at=at, n=self.runs)
        slope = float(np.polyfit(np.log(SIZES[3:]), np.log(distances[3:]), 1)[0])
        yield self.row(EXPONENT, slope, reference=(-0.5, "limit"), n=self.runs)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds a line with the exponent of the limit through the last distance."""
        figure = super().plot(result)
        sizes, ax = np.array(SIZES), figure.axes[1]
        last = result.select(quantity=DISTANCE).column("value")[-1]
        look: dict[str, Any] = {"color": COLOURS["null"], "label": r"$d^{-1/2}$"}
        ax.plot(sizes, last * (sizes / sizes[-1]) ** -0.5, "--", **look)
        ax.minorticks_off()
        ax.legend()
        return figure
