"""The overlap of the fifteen heads with their patterns against the dimensions of the identifiers.

Source: :cite:t:`kim2022pure`; the identifiers in n - 1 dimensions are the library's own.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import DASHED, Panel, Reading, curves, figure, reading
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ..heads import attention_maps, overlap, query_rows
from ..identifiers import Identifiers, Laplacian, Orthonormal, RandomUnit, Simplex, tokenize_graph
from ..patterns import normalised_patterns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEST = "overlap at the best scale"
SCALES = tuple(float(a) for a in np.geomspace(0.5, 40, 20))


@style()
def draw(result: Result) -> "Figure":
    """Draws the overlaps and the number of nodes."""
    drawn = curves(
        "dimensions",
        panels=(Panel("", BEST, lines="identifiers", axes={"ylim": (0, 1.03)}),),
        xlabel="dimensions of the identifiers",
        ylabel=BEST,
        log="x",
        caption="Dashed: n = {nodes} dimensions. Means over draws.",
        size=(7.0, 3.0),
    )(result)
    look = {"color": COLOURS["null"], "linewidth": 0.9, "linestyle": DASHED, "zorder": 1}
    drawn.axes[0].axvline(result.settings["nodes"], **look)
    return drawn


@figure(
    "graph_tokens.dimensions",
    source=Source("kim2022pure", status="own"),
    view=draw,
    quick={"widths": (2, 5, 16, 64), "draws": 1},
)
def dimensions(
    *,
    nodes: int = setting(6, ge=4, le=12, help="nodes of the graph"),
    widths: tuple[int, ...] = setting(
        (2, 3, 4, 5, 8, 16, 64, 256, 1024, 4096), ge=1, le=2**15, help="dimensions of random identifiers"
    ),
    draws: int = setting(5, ge=1, le=100, help="draws of each kind of identifiers"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Overlap of attention and pattern at the best scale, against the dimensions of four kinds of
    identifiers.
    """
    import networkx

    generator = torch.Generator().manual_seed(seed)
    graph = networkx.barabasi_albert_graph(nodes, 2, seed=seed)
    targets, rows = normalised_patterns(nodes), query_rows(nodes)

    def best(identifiers: Identifiers) -> float:
        tokens = tokenize_graph(graph, identifiers, generator=generator)
        return max(overlap(attention_maps(tokens, scale=a), targets, rows) for a in SCALES)

    families: dict[str, dict[int, Identifiers]] = {
        "truncated orthonormal": {k: Orthonormal(kept=k) for k in range(1, nodes + 1)},
        "truncated Laplacian": {k: Laplacian(k) for k in range(1, nodes + 1)},
        "random unit vectors": {width: RandomUnit(width) for width in widths},
        "simplex": {nodes - 1: Simplex()},
    }
    for how, members in families.items():
        for k, identifiers in members.items():
            value = float(np.mean([best(identifiers) for _ in range(draws)]))
            yield reading(BEST, value, unit="share", at={"identifiers": how, "dimensions": k}, n=draws)
