"""Independent tokens in high dimension follow one curve: mean cosine over time, and the distance from the
curve over the dimension.

Source: :cite:t:`geshkovski2025mathematical`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, shades, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ..clusters import mean_cosine
from ..dynamics import flow, softmax_field, unit
from ..equiangular import common_cosine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "particles", Source("geshkovski2025mathematical", status="own")
DISTANCE, EXPONENT = "distance of cosines from the curve", "exponent of the distance in the dimension"
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
POINTS = 25


@dataclass(frozen=True)
class Dimension(RandomExperiment):
    """Independent uniform tokens that move by SA in eight to 1,024 dimensions."""

    runs: int = setting(4, ge=1, le=1000, help="sequences for each dimension")
    tokens: int = setting(32, ge=2, le=1024, help="tokens of a sequence")
    beta: float = setting(4.0, ge=0.0, le=20.0, help="inverse temperature")
    time: float = setting(20.0, gt=0.0, le=1000.0, help="end of the flow")

    name: ClassVar[str] = "particles.dimension"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "Dimension":
        """One sequence of four tokens to time 1."""
        return cls(runs=1, tokens=4, time=1.0)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the largest distance over time of the root mean square kind for each dimension, and its
        exponent from 64 on.
        """
        generator, times = self.generator(), np.linspace(0, self.time, POINTS)
        curve = common_cosine(times.tolist(), n=self.tokens, beta=self.beta)
        pairs = ~torch.eye(self.tokens, dtype=torch.bool)
        distances, means = [], []
        for d in SIZES:
            X = unit(torch.randn(self.runs, self.tokens, d, generator=generator, dtype=torch.float64))
            states = flow(X, partial(softmax_field, beta=self.beta), times=times.tolist(), tolerance=1e-5)
            gram = (states @ states.mT)[..., pairs]
            distance = float(
                (gram - torch.from_numpy(curve)[:, None, None]).square().mean((1, 2)).sqrt().max()
            )
            means.append(mean_cosine(states).mean(1).numpy())
            distances.append(distance)
            yield Measurement(NAME, "figure", DISTANCE, distance, at={"d": d}, n=self.runs, source=SOURCE)
        x, y = np.log(SIZES[3:]), np.log(distances[3:])
        yield Measurement(
            NAME,
            "figure",
            EXPONENT,
            float(np.polyfit(x, y, 1)[0]),
            predicted=-0.5,
            basis="limit",
            n=self.runs,
            source=SOURCE,
        )
        yield Arrays(
            {"times": times, "curve": curve, "means": np.array(means), "distances": np.array(distances)}
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws the mean cosine over time beside the curve, and the distance over the dimension."""
        if "curve" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, (left, right) = axes(1, 2, width=7.4, height=3.0)
        times, means, distances = (result.arrays[name] for name in ("times", "means", "distances"))
        rows = [0, 3, 5, 7]
        for row, tint in zip(rows, shades(len(rows))):
            left.plot(times, means[row], color=tint, label=f"d = {SIZES[row]}")
        left.plot(times, result.arrays["curve"], "--", color=COLOURS["null"], label="equation")
        left.set(xlabel="time", ylabel="mean cosine", ylim=(-0.05, 1.03))
        left.legend(fontsize=7)
        right.plot(SIZES, distances, "o", color=COLOURS[NAME], label="measured")
        right.plot(
            SIZES,
            distances[-1] * (np.array(SIZES) / SIZES[-1]) ** -0.5,
            "--",
            color=COLOURS["null"],
            label=r"$d^{-1/2}$",
        )
        right.set(
            xscale="log",
            yscale="log",
            xlabel="dimension",
            ylabel="largest distance from the curve",
            yticks=(0.05, 0.1, 0.2, 0.5),
        )
        right.set(
            xticks=SIZES[::2], xticklabels=[str(d) for d in SIZES[::2]], yticklabels=(".05", ".1", ".2", ".5")
        )
        right.minorticks_off()
        right.legend(fontsize=7)
        caption(
            figure,
            f"SA from {self.tokens} independent uniform tokens, beta = {self.beta:g}; {self.runs} sequences "
            "for each dimension. The distance is the root mean square over pairs, its largest value over "
            "time.",
        )
        return figure
