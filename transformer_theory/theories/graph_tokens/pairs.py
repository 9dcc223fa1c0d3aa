"""Pairs of graphs that are hard, or easy, to distinguish.

Source: the graphs are standard, see :cite:t:`cai1992optimal` for the tests; decalin and bicyclopentyl are
molecules of ten carbon atoms.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...core.errors import NotConverged
from .identifiers import adjacency
from .refinement import distinguished

if TYPE_CHECKING:
    import networkx

TRIES = 200


@dataclass(frozen=True, eq=False)
class Pair:
    """Two graphs with equal numbers of nodes and edges.

    Attributes:
        name: names of both.
        first, second: the graphs.
    """

    name: str
    first: "networkx.Graph"
    second: "networkx.Graph"


def rook() -> "networkx.Graph":
    """Returns the graph of a rook on a 4 x 4 board, strongly regular with parameters (16, 6, 2, 2)."""
    import networkx

    return networkx.convert_node_labels_to_integers(
        networkx.line_graph(networkx.complete_bipartite_graph(4, 4))
    )


def shrikhande() -> "networkx.Graph":
    """Returns the Shrikhande graph: strongly regular with the rook's parameters, but not isomorphic to it."""
    import networkx

    steps = ((0, 1), (1, 0), (1, 1))  # and their negatives, on the torus of 4 x 4 points
    points = [(x, y) for x in range(4) for y in range(4)]
    edges = [((x, y), ((x + a) % 4, (y + b) % 4)) for x, y in points for a, b in steps]
    return networkx.convert_node_labels_to_integers(networkx.Graph(edges))


def shuffled(graph: "networkx.Graph", generator: torch.Generator) -> "networkx.Graph":
    """Returns an isomorphic graph with its nodes in a random order."""
    import networkx

    order = torch.randperm(len(graph), generator=generator)
    return networkx.from_numpy_array(adjacency(graph)[order][:, order].numpy())


def two_cycles(first: int, second: int) -> "networkx.Graph":
    """Returns the disjoint union of two cycles."""
    import networkx

    return networkx.disjoint_union(networkx.cycle_graph(first), networkx.cycle_graph(second))


def known_pairs() -> tuple[Pair, ...]:
    """Returns six pairs: one that every method should distinguish, then harder ones."""
    import networkx

    decalin = networkx.cycle_graph(10)
    decalin.add_edge(0, 5)
    bicyclopentyl = two_cycles(5, 5)
    bicyclopentyl.add_edge(0, 5)
    path = networkx.path_graph(6)
    star = networkx.Graph([(0, 1), (1, 2), (2, 3), (3, 4), (2, 5)])
    return (
        Pair("path and spider, 6 nodes", path, star),
        Pair("hexagon and two triangles", networkx.cycle_graph(6), two_cycles(3, 3)),
        Pair("decalin and bicyclopentyl", decalin, bicyclopentyl),
        Pair(
            "11-cycles with links of 2 and of 3",
            networkx.circulant_graph(11, [1, 2]),
            networkx.circulant_graph(11, [1, 3]),
        ),
        Pair("prism and K(3, 3)", networkx.circular_ladder_graph(3), networkx.complete_bipartite_graph(3, 3)),
        Pair("rook and Shrikhande", rook(), shrikhande()),
    )


def lift_pair(generator: torch.Generator) -> Pair:
    """Draws two connected 2-lifts of one irregular graph whose adjacency matrices have different spectra, so
    that they are not isomorphic.

    A 2-lift has two copies of each node and of each edge; edges join equal or unequal copies, at random. The
    colours of 1-WL are those of the graph below, so 1-WL does not distinguish 2-lifts of one graph.

    Raises:
        NotConverged: no such pair was found.
    """
    import networkx

    def lift() -> "networkx.Graph":
        edges = zip(base.edges, torch.randint(2, (base.number_of_edges(),), generator=generator).tolist())
        lifted = networkx.empty_graph(2 * len(base))
        lifted.add_edges_from(
            (2 * u + copy, 2 * v + (copy ^ crossed)) for (u, v), crossed in edges for copy in (0, 1)
        )
        return shuffled(lifted, generator)

    for _ in range(TRIES):
        base = networkx.barabasi_albert_graph(6, 2, seed=int(torch.randint(2**31, (), generator=generator)))
        first, second = lift(), lift()
        spectra = [torch.linalg.eigvalsh(adjacency(graph)) for graph in (first, second)]
        if (
            networkx.is_connected(first)
            and networkx.is_connected(second)
            and float((spectra[0] - spectra[1]).abs().max()) > 1e-3
        ):
            return Pair("2-lifts of an irregular graph", first, second)
    raise NotConverged(f"no two connected 2-lifts with different spectra in {TRIES} draws")


def cycle_pair(generator: torch.Generator) -> Pair:
    """Draws a cycle and two disjoint cycles with as many nodes, 6 to 12."""
    import networkx

    first, second = torch.randint(3, 7, (2,), generator=generator).tolist()
    return Pair(
        f"cycle of {first + second} and cycles of {first}, {second}",
        networkx.cycle_graph(first + second),
        two_cycles(first, second),
    )


def separable_pair(generator: torch.Generator, *, nodes: int = 10) -> Pair:
    """Draws two trees with equal degree sequences that 1-WL distinguishes.

    Raises:
        NotConverged: no such pair was found.
    """
    import networkx

    def draw() -> "networkx.Graph":
        code = torch.randint(nodes, (nodes - 2,), generator=generator).tolist()
        return networkx.from_prufer_sequence(code)

    for _ in range(100 * TRIES):
        first, second = draw(), draw()
        if sorted(dict(first.degree).values()) == sorted(dict(second.degree).values()) and distinguished(
            first, second
        ):
            return Pair("trees with equal degrees", first, second)
    raise NotConverged(
        f"no two trees of {nodes} nodes with equal degrees that 1-WL distinguishes in {100 * TRIES} draws"
    )
