r"""The tests on the user's graphs: which pairs can colour refinement and the folklore test not distinguish?

All pairs of graphs with equal numbers of nodes and edges are compared; others are distinguished by counting.
A pair that 1-WL does not distinguish is *blind*: every message-passing network and every network of order two
gives both graphs the same output. Some blind pairs are isomorphic, and no invariant method may distinguish
these; the share of blind pairs that the folklore test distinguishes is lost by order two.

**Null.** Each graph is rewired by double edge swaps, which keep all degrees. If the user's graphs have more
blind pairs than their rewired copies, this is due to more than the degrees. The theory predicts no side.

Source: :cite:t:`cai1992optimal`, :cite:t:`geerts2020expressive`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Generator

from ...core.measurement import Measurement, Null
from ...core.plotting import axes, caption, style, text_figure
from ...core.result import Result
from ...core.sources import Source
from ...core.statistics import RANGE_DRAWS, fixed_generator
from ...core.table import Arrays
from ...core.theory import OnData, Unsupported
from ...data.graphs import Graphs
from .refinement import Colours, folklore_weisfeiler_leman, weisfeiler_leman

if TYPE_CHECKING:
    import networkx
    from matplotlib.figure import Figure

NAME = "graph_tokens"
SOURCE = Source("cai1992optimal", status="second-hand")
BLIND = "share of pairs of graphs that 1-WL cannot distinguish"
COUNT = "number of pairs of graphs that 1-WL cannot distinguish"
LOST = "share of these pairs that the folklore test distinguishes"
SMALL = "all graphs have at most 100 nodes"
NULL_KIND = "rewired by double edge swaps, which keep the degrees"
MAX_NODES = 100  # the folklore test takes n^3 numbers
SWAPS = 5  # per edge


@dataclass(frozen=True, eq=False)
class GraphSet:
    """Graphs to compare.

    Attributes:
        graphs: simple graphs with at most :data:`MAX_NODES` nodes.
        names: their names.
        largest: number of nodes of the largest of all graphs.
        left_out: number of larger graphs.
    """

    graphs: "Sequence[networkx.Graph]"
    names: tuple[str, ...]
    largest: int
    left_out: int


@lru_cache(maxsize=2)  # one problem for all seeds
def read(data: Graphs) -> GraphSet | Unsupported:
    """Selects the graphs with at most 100 nodes; at least two are needed."""
    chosen = [(graph, name) for graph, name in zip(data.graphs, data.names) if len(graph) <= MAX_NODES]
    if len(chosen) < 2:
        return Unsupported(f"needs at least two graphs of at most {MAX_NODES} nodes, got {len(chosen)}")
    graphs, names = zip(*chosen)
    return GraphSet(graphs, names, max(len(graph) for graph in data.graphs), len(data) - len(chosen))


def classes(
    graphs: "Sequence[networkx.Graph]", refine: Callable[..., Colours] = weisfeiler_leman
) -> list[list[int]]:
    """Returns the graphs, by their places, in classes that a test does not distinguish; the classes are in
    the order of their first graph.

    Args:
        graphs: the graphs.
        refine: :func:`.weisfeiler_leman` or :func:`.folklore_weisfeiler_leman`.
    """
    sizes: dict[Any, list[int]] = {}
    for place, graph in enumerate(graphs):
        sizes.setdefault((len(graph), graph.number_of_edges()), []).append(place)
    found = []
    for places in sizes.values():
        members: dict[Any, list[int]] = {}
        for place, colours in zip(places, refine(*(graphs[place] for place in places))):
            members.setdefault(frozenset(Counter(colours.flatten().tolist()).items()), []).append(place)
        found += members.values()
    return sorted(found)


def pairs_within(groups: list[list[int]]) -> list[tuple[int, int]]:
    """Returns all pairs of places that lie in one class."""
    return [pair for group in groups for pair in combinations(group, 2)]


def rewired(graph: "networkx.Graph", seed: int) -> "networkx.Graph":
    """Returns a copy after about five double edge swaps per edge; a graph that allows no swap, such as a
    star, is copied.
    """
    import networkx

    copy, edges = graph.copy(), graph.number_of_edges()
    if len(graph) >= 4 and edges >= 2:
        # If too few swaps are possible, networkx raises; the copy holds those that were.
        with suppress(networkx.NetworkXException):
            networkx.double_edge_swap(copy, nswap=SWAPS * edges, max_tries=20 * SWAPS * edges, seed=seed)
    return copy


@lru_cache(maxsize=2)
def tested(problem: GraphSet, draws: int) -> tuple[list[list[int]], set[tuple[int, int]], tuple[float, ...]]:
    """Returns the classes of 1-WL, the pairs that the folklore test does not distinguish, and the shares of
    blind pairs of rewired copies.

    Nothing of this depends on the seed, so it is computed once for all seeds.
    """
    graphs, total = problem.graphs, math.comb(len(problem.graphs), 2)
    groups = classes(graphs)
    # The folklore test is at least as strong as 1-WL, so only the pairs within a class are left to test.
    kept = {
        (group[first], group[second])
        for group in groups
        if len(group) > 1
        for first, second in pairs_within(
            classes([graphs[place] for place in group], folklore_weisfeiler_leman)
        )
    }
    seeds = torch.randint(2**31, (min(draws, RANGE_DRAWS), len(graphs)), generator=fixed_generator()).tolist()
    copies = (
        len(pairs_within(classes([rewired(graph, seed) for graph, seed in zip(graphs, row)]))) / total
        for row in seeds
    )
    return groups, kept, tuple(copies)


def measure(problem: GraphSet, generator: Generator, *, draws: int) -> Iterator[Measurement | Arrays]:
    """Yields the shares of pairs that the tests cannot distinguish.

    Args:
        problem: result of :func:`read`.
        generator: not used.
        draws: largest number of rewired copies of all graphs; there are at most 19.
    """
    graphs = problem.graphs
    total = math.comb(len(graphs), 2)
    groups, kept, copies = tested(problem, draws)
    blind = pairs_within(groups)
    lost = [pair for pair in blind if pair not in kept]
    null = Null(NULL_KIND, copies) if copies else None
    left_out = (
        f"; {problem.left_out} graphs of more than {MAX_NODES} nodes are left out" if problem.left_out else ""
    )
    verdict, n = "fails" if problem.left_out else "holds", len(graphs) + problem.left_out
    yield Measurement(NAME, "assumption", SMALL, problem.largest, verdict=verdict, n=n, source=SOURCE)
    # No interval: pairs that share a graph are not independent.
    note = f"{len(blind)} of {total} pairs of {len(graphs)} graphs{left_out}; isomorphic graphs count"
    yield _row(BLIND, len(blind) / total, nulls=(null,), n=total, note=note)
    reason = {} if blind else {"reason": "1-WL distinguishes all graphs"}
    note = (
        "Networks of order two and message passing give these graphs one output; the other pairs are "
        "isomorphic or harder still."
    )
    yield _row(LOST, len(lost) / len(blind) if blind else None, n=len(blind), note=note, **reason)
    labels = np.zeros(len(graphs), dtype=np.int64)
    for number, group in enumerate(groups):
        labels[group] = number
    # 0 distinguished by 1-WL, 1 by the folklore test only, 2 by neither
    folklore = np.zeros((len(graphs), len(graphs)), dtype=np.int8)
    for first, second in blind:
        folklore[first, second] = folklore[second, first] = 2 if (first, second) in kept else 1
    yield Arrays(
        {
            f"{NAME}/classes": labels,
            f"{NAME}/verdicts": folklore,
            f"{NAME}/names": np.array(problem.names, dtype=str),
        }
    )


def _row(quantity: str, value: float | None, **columns: Any) -> Measurement:
    return Measurement(NAME, "on data", quantity, value, unit="share", source=SOURCE, **columns)


@style()
def plot(result: Result) -> "Figure":
    """Draws a matrix of the graphs: which pairs 1-WL, only the folklore test, or neither distinguishes."""
    if f"{NAME}/verdicts" not in result.arrays:
        reasons = [row.reason for row in result.select(theory=NAME, kind="on data") if row.value is None]
        return text_figure(f"Graph tokens: {reasons[0] if reasons else 'nothing was measured'}")
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    verdicts, names = result.arrays[f"{NAME}/verdicts"], result.arrays[f"{NAME}/names"]
    order = np.argsort(result.arrays[f"{NAME}/classes"], kind="stable")
    tints, labels = ("#E4E7EB", "#117733", "#3F4751"), ("1-WL", "the folklore test only", "neither")
    figure, (ax,) = axes(width=7.0, height=4.2)
    shown = verdicts[order][:, order].astype(float)
    np.fill_diagonal(shown, np.nan)
    ax.imshow(shown, cmap=ListedColormap(tints), vmin=-0.5, vmax=2.5)
    ax.grid(False)
    if len(names) <= 30:
        shortened = [names[place][:24] for place in order]
        ax.set_yticks(range(len(names)), shortened, fontsize=7)
        ax.set_xticks(range(len(names)), shortened, fontsize=7, rotation=90)
    else:
        ax.set(xlabel="graph, sorted by colour classes", ylabel="graph")
    handles = [Patch(color=tint, label=label) for tint, label in zip(tints, labels)]
    ax.legend(handles=handles, title="distinguished by", loc="upper left", bbox_to_anchor=(1.02, 1.0))
    caption(
        figure,
        "Networks of order two and message passing give one output to both graphs of every pair that 1-WL "
        "does not distinguish.",
    )
    return figure


ON_DATA = OnData(read=read, measure=measure, headline=BLIND, plot=plot, reads=Graphs)
