"""Clusters on the circle over time, their number over beta, and the energy, which rises in steps.

Sources: :cite:t:`geshkovski2025mathematical`, :cite:t:`geshkovski2024dynamic`, :cite:t:`bruno2025emergence`.
"""

import math
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
from ....core.statistics import student_interval
from ..clusters import count_clusters, energy
from ..dynamics import flow, softmax_field, unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "particles", Source("geshkovski2025mathematical", status="own")
NUMBER, SLOPE = "clusters on the circle", "exponent of the number of clusters in beta"
BETAS = (1.0, 4.0, 9.0, 16.0, 25.0, 36.0, 49.0, 64.0, 81.0)
POINTS = 40


@dataclass(frozen=True)
class Clusters(RandomExperiment):
    """Sequences of uniform tokens on the circle that move by SA, for nine beta."""

    runs: int = setting(24, ge=1, le=10**4, help="sequences for each beta")
    tokens: int = setting(32, ge=2, le=1024, help="tokens of a sequence")
    time: float = setting(100.0, gt=0.0, le=10**4, help="end of the flow")

    name: ClassVar[str] = "particles.clusters"
    sources: ClassVar[tuple[Source, ...]] = (
        SOURCE,
        Source("geshkovski2024dynamic"),
        Source("bruno2025emergence"),
    )

    @classmethod
    def quick(cls) -> "Clusters":
        """Two sequences of eight tokens to time 5."""
        return cls(runs=2, tokens=8, time=5.0)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the mean number of clusters at the end for each beta, and the exponent over beta of at least
        9 at a fifth of the time.
        """
        generator = self.generator()
        times = np.geomspace(self.time / 1000, self.time, POINTS)
        counts, energies = np.zeros((len(BETAS), POINTS, self.runs)), np.zeros((len(BETAS), POINTS))
        for row, beta in enumerate(BETAS):
            X = unit(torch.randn(self.runs, self.tokens, 2, generator=generator, dtype=torch.float64))
            states = flow(X, partial(softmax_field, beta=beta), times=times.tolist(), tolerance=1e-5)
            counts[row] = np.stack([count_clusters(state).numpy() for state in states])
            energies[row] = energy(states[:, 0], beta=beta).numpy()
            values = counts[row, -1]
            ends = student_interval(values.tolist())
            columns = {} if ends is None else {"interval": ends, "interval_kind": "over sequences"}
            yield Measurement(
                NAME,
                "figure",
                NUMBER,
                float(values.mean()),
                at={"beta": beta},
                n=self.runs,
                source=SOURCE,
                **columns,
            )
        early = int(np.abs(times - self.time / 5).argmin())
        x, y = np.log(BETAS[2:]), np.log(counts[2:, early].mean(1))
        slope = float(np.polyfit(x, y, 1)[0])
        yield Measurement(
            NAME, "figure", SLOPE, slope, predicted=0.5, basis="limit", n=self.runs, source=SOURCE
        )
        yield Arrays({"times": times, "counts": counts, "energy": energies})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws the number of clusters over time and over beta, and the energy of one sequence."""
        if "counts" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        times, counts, energies = (result.arrays[name] for name in ("times", "counts", "energy"))
        figure, (left, middle, right) = axes(1, 3, width=8.4, height=3.0)
        chosen = [row for row, beta in enumerate(BETAS) if beta in (1.0, 4.0, 16.0, 36.0, 81.0)]
        for row, tint in zip(chosen, shades(len(chosen))):
            left.plot(times, counts[row].mean(1), color=tint, label=f"{BETAS[row]:g}")
            right.plot(times, energies[row], color=tint)
        left.set(xscale="log", yscale="log", xlabel="time", ylabel="clusters")
        left.legend(title=r"$\beta$", fontsize=7)
        early = int(np.abs(times - self.time / 5).argmin())
        for place, label, marker in (
            (early, f"time {times[early]:.3g}", "o"),
            (len(times) - 1, f"time {times[-1]:.3g}", "s"),
        ):
            middle.plot(
                BETAS,
                counts[:, place].mean(1),
                marker,
                color=COLOURS[NAME],
                label=label,
                markerfacecolor="none" if marker == "s" else None,
            )
        middle.plot(
            BETAS, [math.sqrt(beta) for beta in BETAS], "--", color=COLOURS["null"], label=r"$\sqrt{\beta}$"
        )
        middle.set(xscale="log", yscale="log", xlabel=r"$\beta$", ylabel="clusters")
        middle.legend(fontsize=7)
        right.set(xscale="log", xlabel="time", ylabel="energy of one sequence", ylim=(0, 1.04))
        caption(
            figure,
            f"SA from {self.tokens} uniform tokens on the circle; means of {self.runs} sequences. Clusters "
            "last longer the larger beta is, and their number grows like its square root. The energy rises "
            "when clusters join.",
        )
        return figure
