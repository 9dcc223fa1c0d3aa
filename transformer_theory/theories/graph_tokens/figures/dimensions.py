"""The error of the fifteen heads against the attention scale and against the dimensions of the identifiers.

Source: :cite:t:`kim2022pure`; the bound and the identifiers in n - 1 dimensions are the library's own.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement, judge
from ....core.plotting import COLOURS, axes, caption, label_ends, line, shades, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ..heads import attention_maps, overlap, query_rows, worst_error
from ..identifiers import Identifiers, Laplacian, Orthonormal, RandomUnit, Simplex, tokenize_graph
from ..patterns import normalised_patterns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE, OWN = "graph_tokens", Source("kim2022pure", "Lemma 1", "second-hand"), Source("kim2022pure", status="own")
WORST, BEST = "worst error of an attention weight", "overlap at the best scale"
ROUNDING = 1e-12  # bounds below it are not tested in float64
GRID = tuple(float(a) for a in np.geomspace(0.5, 40, 20))
ORTHONORMAL, SIMPLEX = "orthonormal, n", "simplex, n - 1"


@dataclass(frozen=True)
class Dimensions(RandomExperiment):
    """Worst error of the heads against the scale a, and overlap at the best scale against the dimensions of the identifiers."""

    nodes: int = setting(6, ge=4, le=12, help="nodes of the graph")
    scales: tuple[float, ...] = setting((1.0, 5.0, 10.0, 20.0), gt=0, le=1000, help="scales a in the table")
    widths: tuple[int, ...] = setting((2, 3, 4, 5, 8, 16, 64, 256, 1024, 4096), ge=1, le=2**15, help="dimensions of random identifiers")
    draws: int = setting(5, ge=1, le=100, help="draws of each kind of identifiers")

    name: ClassVar[str] = "graph_tokens.dimensions"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "Dimensions":
        """One draw and four widths."""
        return cls(widths=(2, 5, 16, 64), draws=1)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the worst error by scale, and the overlap by kind and dimensions."""
        import networkx

        n, generator = self.nodes, self.generator()
        graph = networkx.barabasi_albert_graph(n, 2, seed=self.seed)
        targets, rows = normalised_patterns(n), query_rows(n)

        def tokens(identifiers: Identifiers):
            return tokenize_graph(graph, identifiers, generator=generator)

        arrays = {"scales": np.array(GRID)}
        for number, (how, identifiers) in enumerate(self._kinds().items()):
            drawn, covered = tokens(identifiers), how in (ORTHONORMAL, SIMPLEX)
            arrays[f"error_{number}"] = np.array([worst_error(attention_maps(drawn, scale=a), n) for a in GRID])
            for a in self.scales:
                value, bound = worst_error(attention_maps(drawn, scale=a), n), n * n * math.exp(-a)
                verdict = judge(value, "<=", bound, covered=covered and bound > ROUNDING)
                columns: dict[str, Any] = {"op": "<=", "threshold": bound, "verdict": verdict, "setting": f"{how}, a = {a:g}"}
                yield Measurement(NAME, "figure", WORST, value, n=n, source=SOURCE if how == ORTHONORMAL else OWN, **columns)

        def best(identifiers: Identifiers) -> float:
            drawn = tokens(identifiers)
            return max(overlap(attention_maps(drawn, scale=a), targets, rows) for a in GRID)

        families = {
            "truncated orthonormal": {k: Orthonormal(kept=k) for k in range(1, n + 1)},
            "truncated Laplacian": {k: Laplacian(k) for k in range(1, n + 1)},
            "random unit vectors": {width: RandomUnit(width) for width in self.widths},
            "simplex": {n - 1: Simplex()},
        }
        for how, members in families.items():
            means = {k: float(torch.tensor([best(identifiers) for _ in range(self.draws)]).mean()) for k, identifiers in members.items()}
            arrays[f"overlap {how}"] = np.array(list(means.items()))
            for k, value in means.items():
                yield Measurement(NAME, "figure", BEST, value, unit="share", setting=f"{how}, {k} dimensions", n=self.draws, source=OWN)
        yield Arrays({f"{NAME}/{name}": values for name, values in arrays.items()})

    def _kinds(self) -> dict[str, Identifiers]:
        """Returns the identifiers whose error is measured against the scale."""
        kept = self.nodes - 1
        return {
            ORTHONORMAL: Orthonormal(),
            SIMPLEX: Simplex(),
            "random, 256": RandomUnit(256),
            f"truncated, {kept}": Orthonormal(kept=kept),
        }

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the worst error against the scale, and the overlap at the best scale against the dimensions."""
        if f"{NAME}/scales" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, (left, right) = axes(1, 2, height=3.0)
        a = result.arrays[f"{NAME}/scales"]
        names = list(self._kinds())
        left.plot(a, self.nodes**2 * np.exp(-a), color=COLOURS["null"], linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        for number, (name, tint) in enumerate(zip(names, shades(len(names)))):
            # Errors below the rounding of float64 are noise.
            line(left, a, np.maximum(result.arrays[f"{NAME}/error_{number}"], 1e-15), color=tint, label=name)
        left.set(title="Worst attention weight", xlabel="scale a", ylabel="error", xscale="log", yscale="log", ylim=(1e-15, 20))
        label_ends(left)
        for name, tint in zip(("truncated orthonormal", "truncated Laplacian", "random unit vectors"), shades(3)):
            k, overlaps = result.arrays[f"{NAME}/overlap {name}"].T
            line(right, k, overlaps, color=tint, marker="o", markersize=3, label=name)
        k, overlaps = result.arrays[f"{NAME}/overlap simplex"].T
        right.plot(k, overlaps, "*", color=COLOURS[NAME], markersize=9, label="simplex", zorder=5)
        right.axvline(self.nodes, color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        right.set(title="Overlap at the best scale", xlabel="dimensions of the identifiers", ylabel="overlap", xscale="log", ylim=(0, 1.03))
        right.legend(loc="lower right")
        caption(figure, f"Dashed: on the left the bound n² exp(-a), on the right n = {self.nodes} dimensions. Right: mean over draws.")
        return figure
