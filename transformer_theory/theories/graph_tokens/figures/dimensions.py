"""The overlap of the fifteen heads with their patterns against the dimensions of the identifiers.

Source: :cite:t:`kim2022pure`; the identifiers in n - 1 dimensions are the library's own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.figure import DASHED, Panel, curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, TINTS, style
from ....core.result import Result
from ....core.sources import Source
from ..heads import attention_maps, overlap, query_rows
from ..identifiers import Identifiers, Laplacian, Orthonormal, RandomUnit, Simplex, tokenize_graph
from ..patterns import normalised_patterns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEST = "overlap at the best scale"
ORTHONORMAL, LAPLACIAN = "truncated orthonormal", "truncated Laplacian"
RANDOM, SIMPLEX = "random unit vectors", "simplex"
LOOKS = {kind: {"color": tint} for kind, tint in zip((ORTHONORMAL, LAPLACIAN, RANDOM), TINTS)}
LOOKS |= {SIMPLEX: {"color": "graph_tokens", "linestyle": "", "marker": "*", "markersize": 9, "zorder": 5}}
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

    name = "graph_tokens.dimensions"
    sources = (Source("kim2022pure", status="own"),)

    view = curves(
        "dimensions",
        panels=(
            Panel(
                "Overlap at the best scale",
                BEST,
                lines=("identifiers", LOOKS),
                legend="lower right",
                axes={"ylim": (0, 1.03)},
            ),
        ),
        xlabel="dimensions of the identifiers",
        ylabel="overlap",
        log="x",
        caption="Dashed: n = {nodes} dimensions. Means over draws.",
        size=(7.0, 3.0),
    )

    @classmethod
    def quick(cls) -> "Dimensions":
        """One draw and four widths."""
        return cls(widths=(2, 5, 16, 64), draws=1)

    def measure(self) -> Iterator[Measurement]:
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
            ORTHONORMAL: {k: Orthonormal(kept=k) for k in range(1, n + 1)},
            LAPLACIAN: {k: Laplacian(k) for k in range(1, n + 1)},
            RANDOM: {width: RandomUnit(width) for width in self.widths},
            SIMPLEX: {n - 1: Simplex()},
        }
        for how, members in families.items():
            for k, identifiers in members.items():
                value, at = (
                    float(np.mean([best(identifiers) for _ in range(self.draws)])),
                    {"identifiers": how},
                )
                yield self.row(BEST, value, unit="share", at=at | {"dimensions": k}, n=self.draws)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds the number of nodes."""
        figure = super().plot(result)
        figure.axes[0].axvline(self.nodes, color=COLOURS["null"], linewidth=0.9, linestyle=DASHED, zorder=1)
        return figure
