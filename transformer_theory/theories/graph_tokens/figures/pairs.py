"""Pairs of graphs with the verdicts of six methods.

Source: :cite:t:`cai1992optimal` (tests), :cite:t:`xu2019powerful` (message passing),
:cite:t:`velickovic2018graph` (graph attention), :cite:t:`kim2022pure` (graph tokens).
"""

from collections.abc import Iterator
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Reading, distinct, figure, reading
from ....core.plotting import COLOURS, axes, caption, colour, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays, Table
from ..baselines import GraphAttention, MessagePassing, TokenTransformer
from ..identifiers import Laplacian, adjacency, tokenize_graph
from ..layers import random_network, relative_difference
from ..pairs import known_pairs
from ..refinement import distinguished, folklore_weisfeiler_leman, weisfeiler_leman

if TYPE_CHECKING:
    import networkx
    from matplotlib.figure import Figure

APART, DIFFERENCE, SIGNS = (
    "distinguished",
    "relative difference of outputs",
    "relative difference of outputs by the signs of eigenvectors",
)
EQUAL, DIFFERENT, VARIANT = "equal", "apart", "not invariant"
TESTS = {"1-WL": weisfeiler_leman, "folklore 2-WL": folklore_weisfeiler_leman}
MESSAGES, ATTENTION, ORDER_TWO, LAPLACIAN = (
    "message passing",
    "graph attention",
    "order two",
    "Laplacian identifiers",
)
SOURCES = {
    "1-WL": Source("cai1992optimal", status="second-hand"),
    "folklore 2-WL": Source("cai1992optimal", status="second-hand"),
    MESSAGES: Source("xu2019powerful", status="second-hand"),
    ATTENTION: Source("velickovic2018graph", status="second-hand"),
    ORDER_TWO: Source("geerts2020expressive", status="second-hand"),
    LAPLACIAN: Source("kim2022pure", status="second-hand"),
}
# relative difference of outputs above which graphs are distinguished; equal outputs differ by rounding, 1e-16
THRESHOLD = 1e-9


@style()
def draw(result: Result) -> "Figure":
    """Draws the graphs of each pair, and the verdict of each method."""
    from matplotlib.collections import LineCollection

    names = distinct(result.table, "pair")
    drawn, (ax,) = axes(width=7.0, height=1.0 + 0.72 * len(names))
    tints = {EQUAL: COLOURS["null"], DIFFERENT: colour("graph_tokens"), VARIANT: colour(VARIANT)}
    look = {"ha": "center", "va": "center", "fontsize": 7.5}
    places = {method: 5.9 + 1.18 * column for column, method in enumerate(SOURCES)}
    for row, name in enumerate(names):
        base = -1.35 * row
        for side in (0, 1):
            points = result.arrays[f"graph_tokens/points_{row}_{side}"] * 0.48 + (0.8 + 1.3 * side, base)
            edges = points[result.arrays[f"graph_tokens/edges_{row}_{side}"]]
            ax.add_collection(
                LineCollection(list(edges), colors=COLOURS["network"], linewidths=0.7, zorder=1)
            )
            ax.plot(*points.T, "o", color=COLOURS["raw"], markersize=2.6, zorder=2)
        ax.text(2.85, base, fill(name, 20), va="center", fontsize=7.5)
        for method, place in places.items():
            label = verdict(result.select(at={"method": method, "pair": name}))
            ax.text(place, base, label.replace(" ", "\n"), color=tints[label], **look)
    for method, place in places.items():
        ax.text(place, 1.0, method.replace(" ", "\n"), fontweight="bold", **look)
    ax.set(xlim=(0.1, 12.5), ylim=(-1.35 * len(names) + 0.6, 1.5), aspect="equal")
    ax.axis("off")
    caption(
        drawn,
        "equal: same colours, or outputs of random networks equal up to rounding. apart: different. not "
        "invariant: different, but other signs of the eigenvectors give the same graph another output too.",
    )
    return drawn


@figure("graph_tokens.pairs", source=tuple(dict.fromkeys(SOURCES.values())), view=draw, quick={"networks": 1})
def pairs(
    *,
    networks: int = setting(5, ge=1, le=100, help="networks of each kind; the largest difference counts"),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
    """Six pairs of graphs, and whether 1-WL, folklore 2-WL and four kinds of networks with random weights
    distinguish them.

    A transformer that reads Laplacian identifiers as features gives every graph another output for other
    signs of the eigenvectors, so its verdict is "not invariant" if this difference exceeds the threshold too.
    """
    generator, arrays = torch.Generator().manual_seed(seed), {}
    for number, pair in enumerate(known_pairs()):
        columns = {
            method: {"at": {"method": method, "pair": pair.name}, "n": len(pair.first), "source": source}
            for method, source in SOURCES.items()
        }
        apart = {method: distinguished(pair.first, pair.second, refine) for method, refine in TESTS.items()}
        for method, answer in apart.items():
            yield reading(APART, float(answer), **columns[method])
        found = differences(pair.first, pair.second, networks, generator)
        for method in (MESSAGES, ATTENTION, ORDER_TWO, LAPLACIAN):
            predicted = 0.0 if method != LAPLACIAN and not apart["1-WL"] else None
            yield reading(DIFFERENCE, found[method], predicted=predicted, **columns[method])
        yield reading(SIGNS, found[SIGNS], **columns[LAPLACIAN])
        for side, graph in enumerate((pair.first, pair.second)):
            arrays[f"graph_tokens/points_{number}_{side}"] = layout(graph)
            arrays[f"graph_tokens/edges_{number}_{side}"] = np.array(list(graph.edges))
    yield Arrays(arrays)


def differences(
    first: "networkx.Graph", second: "networkx.Graph", networks: int, generator: torch.Generator
) -> dict[str, float]:
    """Returns the largest relative difference of the outputs by method, and that between two choices of signs
    for the first graph.
    """
    n, one, other = len(first), adjacency(first), adjacency(second)
    found = []
    for _ in range(networks):
        values = {}
        for method, kind in ((MESSAGES, MessagePassing), (ATTENTION, GraphAttention)):
            network = kind.draw(generator)
            values[method] = relative_difference(network(one), network(other))
        network = random_network(n, generator=generator)
        values[ORDER_TWO] = relative_difference(network(one[..., None]), network(other[..., None]))
        transformer = TokenTransformer.draw(2 * n + 3, generator)
        output, again, of_second = (
            transformer(tokenize_graph(graph, Laplacian(), tokens="sparse", generator=generator))
            for graph in (first, first, second)
        )
        values[SIGNS] = relative_difference(output, again)
        values[LAPLACIAN] = relative_difference(output, of_second)
        found.append(values)
    return {name: max(values[name] for values in found) for name in found[0]}


def verdict(rows: Table) -> str:
    """Returns the verdict of one method on one pair of graphs from its rows; outputs that also differ between
    two runs on one graph have a verdict of their own.
    """
    values = dict(zip(rows.column("quantity"), rows.column("value")))
    if APART in values:
        return DIFFERENT if values[APART] else EQUAL
    if values[DIFFERENCE] <= THRESHOLD:
        return EQUAL
    return VARIANT if values.get(SIGNS, 0.0) > THRESHOLD else DIFFERENT


def layout(graph: "networkx.Graph") -> np.ndarray:
    """Returns places of the nodes for a drawing, ``[n, 2]`` within [-1, 1]; connected components stand side
    by side.
    """
    import networkx

    place = {node: index for index, node in enumerate(graph)}
    components = [graph.subgraph(nodes) for nodes in networkx.connected_components(graph)]
    points = np.zeros((len(graph), 2))
    for number, part in enumerate(components):
        drawn = networkx.kamada_kawai_layout(part)
        centre = 2 * (number + 0.5) / len(components) - 1
        for node, point in drawn.items():
            points[place[node]] = np.asarray(point) / len(components) * 0.95 + (centre, 0.0)
    return points
