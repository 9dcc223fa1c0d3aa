"""The phases of a row of Gaussian scores: participation over b at several numbers of keys, with the limit.

Source: :cite:t:`giorlandino2025two`, :cite:t:`derrida1981random`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, colour, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import student_interval
from ..phases import FROZEN, WEAK, gaussian_participation, limit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTICIPATION = "mean participation of Gaussian scores"
KEYS, POINTS = (16, 256, 4096, 65536), tuple(0.25 * k for k in range(1, 17))


@dataclass(frozen=True)
class Phases(RandomExperiment):
    """Participation of rows of Gaussian scores."""

    rows: int = setting(100, ge=2, le=10**4, help="rows of each setting")
    largest: int = setting(65536, ge=16, le=2**20, help="largest number of keys")

    name = "collapse.phases"
    sources = (Source("giorlandino2025two", status="own"), Source("derrida1981random"))

    view = curves(
        "b",
        panels=(Panel("", PARTICIPATION, lines="keys", axes={"ylim": (0, 1)}),),
        xlabel=r"$b$ = score deviation / $\sqrt{\log n}$",
        ylabel="mean participation",
        caption="Means of {rows} rows. Dotted: the transitions; even 65,536 keys are far from the limit at "
        "the "
        "second one.",
        size=(4.8, 3.3),
    )

    @classmethod
    def quick(cls) -> "Phases":
        """Sixteen keys, eight rows."""
        return cls(rows=8, largest=16)

    def measure(self) -> Iterator[Measurement]:
        """Yields the mean participation at each number of keys and b."""
        generator = self.generator()
        for n in (n for n in KEYS if n <= self.largest):
            for b in POINTS:
                found = gaussian_participation(n, b, self.rows, generator)
                columns = {"interval": student_interval(found.tolist()), "interval_kind": "over rows"}
                columns |= {"predicted": limit(b, n), "at": {"keys": n, "b": b}, "n": self.rows}
                yield self.row(PARTICIPATION, float(found.mean()), **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds the limit beyond the second transition, and both transitions."""
        figure = super().plot(result)
        (ax,) = figure.axes
        b = np.linspace(FROZEN, POINTS[-1], 100)
        ax.plot(b, 1 - FROZEN / b, "--", color=colour("collapse"), label="limit")
        for place in (WEAK, FROZEN):
            ax.axvline(place, color=COLOURS["null"], linestyle=":")
        ax.legend(loc="lower right")
        return figure
