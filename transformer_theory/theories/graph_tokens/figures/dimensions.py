"""The overlap of the fifteen heads with their patterns against the dimensions of the identifiers.

Source: :cite:t:`kim2022pure`; the identifiers in n - 1 dimensions are the library's own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, line, shades, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ..heads import attention_maps, overlap, query_rows
from ..identifiers import Identifiers, Laplacian, Orthonormal, RandomUnit, Simplex, tokenize_graph
from ..patterns import normalised_patterns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "graph_tokens", Source("kim2022pure", status="own")
BEST = "overlap at the best scale"
SCALES = tuple(float(a) for a in np.geomspace(0.5, 40, 20))


@dataclass(frozen=True)
class Dimensions(RandomExperiment):
    """Overlap of attention and pattern at the best scale, against the dimensions of four kinds of
    identifiers.
    """

    nodes: int = setting(6, ge=4, le=12, help="nodes of the graph")
    widths: tuple[int, ...] = setting(
        (2, 3, 4, 5, 8, 16, 64, 256, 1024, 4096), ge=1, le=2**15, help="dimensions of random identifiers"
    )
    draws: int = setting(5, ge=1, le=100, help="draws of each kind of identifiers")

    name: ClassVar[str] = "graph_tokens.dimensions"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "Dimensions":
        """One draw and four widths."""
        return cls(widths=(2, 5, 16, 64), draws=1)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the overlap by kind and dimensions, the mean over draws."""
        import networkx

        n, generator = self.nodes, self.generator()
        graph, targets, rows = (
            networkx.barabasi_albert_graph(n, 2, seed=self.seed),
            normalised_patterns(n),
            query_rows(n),
        )

        def best(identifiers: Identifiers) -> float:
            tokens = tokenize_graph(graph, identifiers, generator=generator)
            return max(overlap(attention_maps(tokens, scale=a), targets, rows) for a in SCALES)

        families: dict[str, dict[int, Identifiers]] = {
            "truncated orthonormal": {k: Orthonormal(kept=k) for k in range(1, n + 1)},
            "truncated Laplacian": {k: Laplacian(k) for k in range(1, n + 1)},
            "random unit vectors": {width: RandomUnit(width) for width in self.widths},
            "simplex": {n - 1: Simplex()},
        }
        for how, members in families.items():
            means = {
                k: float(np.mean([best(identifiers) for _ in range(self.draws)]))
                for k, identifiers in members.items()
            }
            yield Arrays({f"{NAME}/{how}": np.array(list(means.items()))})
            for k, value in means.items():
                yield Measurement(
                    NAME,
                    "figure",
                    BEST,
                    value,
                    unit="share",
                    at={"identifiers": how, "dimensions": k},
                    n=self.draws,
                    source=SOURCE,
                )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the overlap at the best scale against the dimensions."""
        if f"{NAME}/simplex" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, (ax,) = axes(height=3.0)
        for name, tint in zip(
            ("truncated orthonormal", "truncated Laplacian", "random unit vectors"), shades(3)
        ):
            line(ax, *result.arrays[f"{NAME}/{name}"].T, color=tint, marker="o", markersize=3, label=name)
        ax.plot(
            *result.arrays[f"{NAME}/simplex"].T,
            "*",
            color=COLOURS[NAME],
            markersize=9,
            label="simplex",
            zorder=5,
        )
        ax.axvline(self.nodes, color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        ax.set(
            title="Overlap at the best scale",
            xlabel="dimensions of the identifiers",
            ylabel="overlap",
            xscale="log",
            ylim=(0, 1.03),
        )
        ax.legend(loc="lower right")
        caption(figure, f"Dashed: n = {self.nodes} dimensions. Means over draws.")
        return figure
