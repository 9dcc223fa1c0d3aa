"""Clusters on the circle over time, their number over beta, and the energy, which rises in steps.

Sources: :cite:t:`geshkovski2025mathematical`, :cite:t:`geshkovski2024dynamic`, :cite:t:`bruno2025emergence`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting
from ....core.figure import Panel, distinct, draw_curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, axes, caption, colour, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import student_interval
from ..clusters import count_clusters, energy
from ..dynamics import flow, softmax_field, unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUMBER, SLOPE = "clusters on the circle", "exponent of the number of clusters in beta"
ENERGY = "energy of one sequence"
BETAS, DRAWN = (1.0, 4.0, 9.0, 16.0, 25.0, 36.0, 49.0, 64.0, 81.0), (1.0, 4.0, 16.0, 36.0, 81.0)
POINTS = 40


@dataclass(frozen=True)
class Clusters(RandomExperiment):
    """Sequences of uniform tokens on the circle that move by SA, for nine beta."""

    runs: int = setting(24, ge=1, le=10**4, help="sequences for each beta")
    tokens: int = setting(32, ge=2, le=1024, help="tokens of a sequence")
    time: float = setting(100.0, gt=0.0, le=10**4, help="end of the flow")

    name = "particles.clusters"
    sources = (
        Source("geshkovski2025mathematical", status="own"),
        Source("geshkovski2024dynamic"),
        Source("bruno2025emergence"),
    )

    @classmethod
    def quick(cls) -> "Clusters":
        """Two sequences of eight tokens to time 5."""
        return cls(runs=2, tokens=8, time=5.0)

    def measure(self) -> Iterator[Measurement]:
        """Yields the mean number of clusters and the energy of one sequence over time for each beta, and the
        exponent over beta of at least 9 at a fifth of the time.
        """
        generator = self.generator()
        times = np.geomspace(self.time / 1000, self.time, POINTS)
        early, early_means = int(np.abs(times - self.time / 5).argmin()), []
        for beta in BETAS:
            X = unit(torch.randn(self.runs, self.tokens, 2, generator=generator, dtype=torch.float64))
            states = flow(X, partial(softmax_field, beta=beta), times=times.tolist(), tolerance=1e-5)
            counts = np.stack([count_clusters(state).numpy() for state in states]).astype(float)
            early_means.append(counts[early].mean())
            for time, values, value in zip(times, counts, energy(states[:, 0], beta=beta).tolist()):
                ends, at = student_interval(values.tolist()), {"beta": beta, "time": float(time)}
                columns = {} if ends is None else {"interval": ends, "interval_kind": "over sequences"}
                yield self.row(NUMBER, float(values.mean()), at=at, n=self.runs, **columns)
                yield self.row(ENERGY, value, at=at)
        slope = float(np.polyfit(np.log(BETAS[2:]), np.log(early_means[2:]), 1)[0])
        yield self.row(SLOPE, slope, reference=(0.5, "limit"), n=self.runs)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws the number of clusters over time and over beta, and the energy of one sequence."""
        figure, (left, middle, right) = axes(1, 3, width=8.4, height=3.0)
        times = distinct(result.select(quantity=NUMBER), "time")
        early = min(times, key=lambda time: abs(time - self.time / 5))
        over_time = ("beta", {beta: {"label": rf"$\beta$ = {beta:g}", "band": False} for beta in DRAWN})
        dots = {"color": colour("particles"), "linestyle": "", "markersize": 4, "band": False}
        hollow = dots | {"marker": "s", "markerfacecolor": "none"}
        over_beta = {
            early: {"label": f"time {early:.3g}", **dots},
            times[-1]: {"label": f"time {times[-1]:.3g}", **hollow},
        }
        logs = {"xscale": "log", "yscale": "log", "ylabel": "clusters"}
        number = Panel("", NUMBER, lines=over_time, axes=logs | {"xlabel": "time"})
        draw_curves(left, result, number, x="time")
        middle.plot(BETAS, [math.sqrt(beta) for beta in BETAS], "--", color=COLOURS["null"], label="√β")
        number = Panel("", NUMBER, lines=("time", over_beta), axes=logs | {"xlabel": r"$\beta$"})
        draw_curves(middle, result, number, x="beta")
        looks = {"xscale": "log", "xlabel": "time", "ylabel": ENERGY, "ylim": (0, 1.04)}
        draw_curves(right, result, Panel("", ENERGY, lines=over_time, legend="", axes=looks), x="time")
        caption(
            figure,
            f"SA from {self.tokens} uniform tokens on the circle; means of {self.runs} sequences. Clusters "
            "last longer the larger beta is, and their number grows like its square root. The energy rises "
            "when clusters join.",
        )
        return figure
