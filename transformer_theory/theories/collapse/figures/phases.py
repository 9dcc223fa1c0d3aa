"""The phases of a row of Gaussian scores: participation over b at several numbers of keys, with the limit.

Source: :cite:t:`giorlandino2025two`, :cite:t:`derrida1981random`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, shades, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import student_interval
from ..phases import FROZEN, WEAK, gaussian_participation, limit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "collapse", Source("giorlandino2025two", status="own")
PARTICIPATION = "mean participation of Gaussian scores"
KEYS, POINTS = (16, 256, 4096, 65536), tuple(0.25 * k for k in range(1, 17))


@dataclass(frozen=True)
class Phases(RandomExperiment):
    """Participation of rows of Gaussian scores."""

    rows: int = setting(100, ge=2, le=10**4, help="rows of each setting")
    largest: int = setting(65536, ge=16, le=2**20, help="largest number of keys")

    name: ClassVar[str] = "collapse.phases"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE, Source("derrida1981random"))

    @classmethod
    def quick(cls) -> "Phases":
        """Sixteen keys, eight rows."""
        return cls(rows=8, largest=16)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the mean participation at each number of keys and b."""
        generator = self.generator()
        sizes = [n for n in KEYS if n <= self.largest]
        values = np.zeros((len(sizes), len(POINTS)))
        for row, n in enumerate(sizes):
            for column, b in enumerate(POINTS):
                found = gaussian_participation(n, b, self.rows, generator)
                values[row, column] = float(found.mean())
                yield Measurement(
                    NAME,
                    "figure",
                    PARTICIPATION,
                    float(found.mean()),
                    predicted=limit(b, n),
                    interval=student_interval(found.tolist()),
                    interval_kind="over rows",
                    at={"keys": n, "b": b},
                    n=self.rows,
                    source=SOURCE,
                )
        yield Arrays({"keys": np.array(sizes), "participation": values})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws the participation over b."""
        if "participation" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, (ax,) = axes(width=4.8, height=3.3)
        sizes = result.arrays["keys"]
        for n, values, tint in zip(sizes, result.arrays["participation"], shades(len(sizes))):
            ax.plot(POINTS, values, "o-", markersize=3, color=tint, label=f"{n:,}")
        b = np.linspace(FROZEN, POINTS[-1], 100)
        ax.plot(b, 1 - FROZEN / b, "--", color=COLOURS[NAME], label="limit")
        for place in (WEAK, FROZEN):
            ax.axvline(place, color=COLOURS["null"], linestyle=":")
        ax.set(xlabel=r"$b$ = score deviation / $\sqrt{\log n}$", ylabel="mean participation", ylim=(0, 1))
        ax.legend(title="keys", loc="lower right")
        caption(
            figure,
            f"Means of {self.rows} rows. Dotted: the transitions; even 65,536 keys are far from the limit "
            "at the second one.",
        )
        return figure
