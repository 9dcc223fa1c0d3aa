"""Attention maps beside the fifteen patterns: written by hand, learnt by gradient descent, and with too few
dimensions.

Source: :cite:t:`kim2022pure`, whose figure shows the maps of heads that learnt the patterns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement
from ....core.plotting import axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..heads import attention_maps, overlap, query_rows, worst_error
from ..identifiers import Laplacian, Orthonormal, tokenize_graph
from ..learning import draw_batch, train_heads
from ..patterns import PATTERNS, normalised_patterns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "graph_tokens"
OVERLAP, WORST = "overlap of attention and pattern", "worst error of an attention weight"
WRITTEN, LAPLACIAN, LEARNT, FEWER = "written", "Laplacian", "learnt", "3 dimensions fewer"


@dataclass(frozen=True)
class Maps(RandomExperiment):
    """The attention maps of fifteen heads on one graph, beside the row-normalised patterns.

    Heads written by hand with orthonormal and with Laplacian identifiers, heads that learnt, and heads
    written by hand with three dimensions fewer than nodes.
    """

    nodes: int = setting(6, ge=4, le=12, help="nodes of the graph")
    scale: float = setting(5.0, gt=0, le=1000, help="scale a of the heads that are written by hand")
    steps: int = setting(300, ge=1, le=10**5, help="batches from which the heads learn")

    name = "graph_tokens.maps"
    sources = (Source("kim2022pure", "Lemma 1", "second-hand"),)

    @classmethod
    def quick(cls) -> "Maps":
        """Four nodes and 60 batches."""
        return cls(nodes=4, steps=60)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields overlap and worst error of each kind of heads, and all maps."""
        import networkx

        n, generator = self.nodes, self.generator()
        graph, targets, rows = (
            networkx.barabasi_albert_graph(n, 2, seed=self.seed),
            normalised_patterns(n),
            query_rows(n),
        )
        kinds = {WRITTEN: Orthonormal(), LAPLACIAN: Laplacian(), FEWER: Orthonormal(kept=n - 3)}
        maps = {
            how: attention_maps(tokenize_graph(graph, identifiers, generator=generator), scale=self.scale)
            for how, identifiers in kinds.items()
        }
        model = train_heads(Orthonormal(), sizes=(n,), width=n, steps=self.steps, generator=generator)
        with torch.no_grad():
            maps[LEARNT] = model(draw_batch(n, 1, Orthonormal(), n, generator))[0].exp().double()
        for how, found in maps.items():
            place = {"at": {"heads": how}, "n": n}
            shared = overlap(found, targets, rows)
            yield self.row(OVERLAP, shared, unit="share", reference=(1.0, "limit"), **place)
            yield self.row(WORST, worst_error(found, n), reference=(0.0, "limit"), **place)
        # Rows of the wrong type are not part of a pattern.
        hidden = (~rows)[..., None]
        shown = {"patterns": targets, **maps}
        yield Arrays(
            {f"{NAME}/{how}": found.masked_fill(hidden, torch.nan).numpy() for how, found in shown.items()}
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws one column per pattern and one row per kind of heads."""
        kinds = {
            "patterns": "pattern",
            WRITTEN: "orthonormal",
            LAPLACIAN: "Laplacian",
            LEARNT: "learnt",
            FEWER: "too few\ndimensions",
        }
        figure, panels = axes(len(kinds), len(PATTERNS), width=7.0, height=3.6)
        grid = panels.reshape(len(kinds), len(PATTERNS))
        for line, (how, label) in zip(grid, kinds.items()):
            line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=7)
            for ax, found, pattern in zip(line, result.arrays[f"{NAME}/{how}"], PATTERNS):
                drop = np.isnan(found).all(1)
                wanted = result.arrays[f"{NAME}/patterns"][PATTERNS.index(pattern)][~drop]
                # Each panel has its own range, from 0 to 1.5 times the weight of a key of the pattern, but at
                # most to 1.
                ax.imshow(
                    found[~drop], vmin=0, vmax=min(1.0, 1.5 * wanted.max()), aspect="auto", cmap="viridis"
                )
                ax.grid(False)
                ax.set(xticks=[], yticks=[])
        for ax, pattern in zip(grid[0], PATTERNS):
            query, key = pattern.name.split(" to ")
            ax.set_title(f"{query}\nto {key}", fontsize=7, fontweight="normal", loc="center")
        caption(
            figure,
            "Rows of a panel: queries of the right type; columns: keys. Titles: query pair and key pair; "
            "different letters are different nodes. Bright: attention at least 1.5 times that of a key of "
            "the pattern, or all of it.",
        )
        return figure
