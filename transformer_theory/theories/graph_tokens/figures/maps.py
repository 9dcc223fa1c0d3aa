"""Attention maps beside the fifteen patterns: written by hand, learnt by gradient descent, and with too few
dimensions.

Source: :cite:t:`kim2022pure`, whose figure shows the maps of heads that learnt the patterns.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Reading, figure, reading
from ....core.plotting import axes, caption, heatmap, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..heads import attention_maps, overlap, query_rows, worst_error
from ..identifiers import Laplacian, Orthonormal, tokenize_graph
from ..learning import draw_batch, train_heads
from ..patterns import PATTERNS, normalised_patterns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OVERLAP, WORST = "overlap of attention and pattern", "worst error of an attention weight"
WRITTEN, LAPLACIAN, LEARNT, FEWER = "written", "Laplacian", "learnt", "3 dimensions fewer"
LABELS = {  # of the rows of maps
    "patterns": "pattern",
    WRITTEN: "orthonormal",
    LAPLACIAN: "Laplacian",
    LEARNT: "learnt",
    FEWER: "too few\ndimensions",
}


@style()
def draw(result: Result) -> "Figure":
    """Draws one column per pattern and one row per kind of heads."""
    drawn, panels = axes(len(LABELS), len(PATTERNS), width=7.0, height=3.6)
    grid = panels.reshape(len(LABELS), len(PATTERNS))
    patterns = result.arrays["graph_tokens/patterns"]
    for line, (how, label) in zip(grid, LABELS.items()):
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=7)
        for ax, found, pattern in zip(line, result.arrays[f"graph_tokens/{how}"], patterns):
            shown = ~np.isnan(found).all(1)
            # Each panel has its own range, from 0 to 1.5 times the weight of a key of the pattern, but at
            # most to 1.
            heatmap(ax, found[shown], bar=False, vmin=0, vmax=min(1.0, 1.5 * pattern[shown].max()))
            ax.set(xticks=[], yticks=[], aspect="auto")
    for ax, pattern in zip(grid[0], PATTERNS):
        ax.set_title(pattern.name.replace(" to ", "\nto "), fontsize=7, fontweight="normal", loc="center")
    caption(
        drawn,
        "Rows of a panel: queries of the right type; columns: keys. Titles: query pair and key pair; "
        "different letters are different nodes. Bright: attention at least 1.5 times that of a key of the "
        "pattern, or all of it.",
    )
    return drawn


@figure(
    "graph_tokens.maps",
    source=Source("kim2022pure", "Lemma 1", "second-hand"),
    view=draw,
    quick={"nodes": 4, "steps": 60},
)
def maps(
    *,
    nodes: int = setting(6, ge=4, le=12, help="nodes of the graph"),
    scale: float = setting(5.0, gt=0, le=1000, help="scale a of the heads that are written by hand"),
    steps: int = setting(300, ge=1, le=10**5, help="batches from which the heads learn"),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
    """The attention maps of fifteen heads on one graph, beside the row-normalised patterns.

    Heads written by hand with orthonormal and with Laplacian identifiers, heads that learnt, and heads
    written by hand with three dimensions fewer than nodes.
    """
    import networkx

    generator = torch.Generator().manual_seed(seed)
    graph = networkx.barabasi_albert_graph(nodes, 2, seed=seed)
    targets, rows = normalised_patterns(nodes), query_rows(nodes)
    kinds = {WRITTEN: Orthonormal(), LAPLACIAN: Laplacian(), FEWER: Orthonormal(kept=nodes - 3)}
    found = {
        how: attention_maps(tokenize_graph(graph, identifiers, generator=generator), scale=scale)
        for how, identifiers in kinds.items()
    }
    model = train_heads(Orthonormal(), sizes=(nodes,), width=nodes, steps=steps, generator=generator)
    with torch.no_grad():
        found[LEARNT] = model(draw_batch(nodes, 1, Orthonormal(), nodes, generator))[0].exp().double()
    for how, heads in found.items():
        place = {"at": {"heads": how}, "n": nodes}
        shared = overlap(heads, targets, rows)
        yield reading(OVERLAP, shared, unit="share", reference=(1.0, "limit"), **place)
        yield reading(WORST, worst_error(heads, nodes), reference=(0.0, "limit"), **place)
    # Rows of the wrong type are not part of a pattern.
    hidden = (~rows)[..., None]
    shown = {"patterns": targets, **found}
    yield Arrays(
        {f"graph_tokens/{how}": heads.masked_fill(hidden, torch.nan).numpy() for how, heads in shown.items()}
    )
