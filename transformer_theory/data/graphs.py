"""Sets of graphs: read from GraphML or edge lists, validated, with nodes 0, ..., n - 1."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..core.format import counted
from ..core.reading import check_name
from ..core.sources import Source
from .graph_files import read_edge_list, read_graphml

if TYPE_CHECKING:
    import networkx as nx

SUFFIXES = (".graphml", ".edgelist", ".edges")
# formats of graphs that are not read; beside graphs that are, they would be missed
OTHER_SUFFIXES = (".gml", ".gexf", ".net", ".mtx", ".dot", ".gv", ".graphmlz", ".g6", ".s6", ".lgl", ".ncol")
KINDS = ", ".join(SUFFIXES[:-1]) + f" or {SUFFIXES[-1]}"


@dataclass(frozen=True, eq=False, repr=False)
class Graphs:
    """A set of simple undirected graphs.

    Nodes may have any names; they are renamed to 0, ..., n - 1 in the order of the graph, and attributes are
    dropped.

    Attributes:
        graphs: networkx graphs, each with at least one node.
        names: name of each graph; if empty, "graph 0", "graph 1", ...
        name: name of the set in headings.
        sources: publications from which the graphs come.

    Raises:
        ValueError: there is no graph, a graph is directed, has parallel edges, self-loops or no node, or the
            names do not fit.
        TypeError: an entry is not a networkx graph, or a single graph is passed.
    """

    graphs: Sequence["nx.Graph"]
    names: tuple[str, ...] = ()
    name: str = "graphs"
    sources: tuple[Source, ...] = ()

    def __post_init__(self):
        import networkx as nx

        if isinstance(self.graphs, nx.Graph):
            raise TypeError(
                f"graphs must be a sequence of graphs, got a single {type(self.graphs).__name__}; pass "
                "Graphs([graph])"
            )
        graphs = tuple(self.graphs)
        if not graphs:
            raise ValueError("graphs must hold at least one graph, got none")
        names = tuple(self.names) or tuple(f"graph {index}" for index in range(len(graphs)))
        if len(names) != len(graphs):
            raise ValueError(
                f"names must hold one name for each of the {len(graphs)} graphs, got {len(names)}"
            )
        object.__setattr__(self, "graphs", tuple(_simple(graph, name) for graph, name in zip(graphs, names)))
        object.__setattr__(self, "names", names)

    def __len__(self) -> int:
        return len(self.graphs)

    def __repr__(self) -> str:
        """Returns ``Graphs('molecules', 12 graphs of 5 to 9 nodes)``."""
        sizes = sorted(len(graph) for graph in self.graphs)
        nodes = counted(sizes[0], "node") if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]} nodes"
        return f"Graphs({self.name!r}, {counted(len(self), 'graph')} of {nodes})"

    def checksum(self) -> str:
        """Returns the first 16 digits of the SHA-256 of the sizes and edges; equal sets have
        equal checksums.
        """
        parts = [(len(graph), sorted(tuple(sorted(edge)) for edge in graph.edges)) for graph in self.graphs]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def noise_like(self, generator: torch.Generator) -> "Graphs":
        """Returns random graphs with the same numbers of nodes and edges, drawn uniformly."""
        import networkx as nx

        seeds = torch.randint(2**31 - 1, (len(self),), generator=generator).tolist()
        drawn = [
            nx.gnm_random_graph(len(graph), graph.number_of_edges(), seed=seed)
            for graph, seed in zip(self.graphs, seeds)
        ]
        return Graphs(drawn, self.names, name=f"random graphs of the sizes of {self.name}")

    @classmethod
    def load(cls, path: str | Path) -> "Graphs":
        """Reads a GraphML file, an edge list, or a folder of such files; see :mod:`.graph_files`.

        A graph has the name of its file, without the suffix if that is enough to tell the files apart. If a
        GraphML file holds several graphs, all are read, and their ids follow the name.

        Raises:
            ValueError: a file cannot be read, can be read in two ways, or holds no simple undirected graph,
                or the folder holds no such file, or a graph in a format that is not read.
            FileNotFoundError: the path does not exist.
        """
        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; expected {KINDS}, or a folder of such files")
        files = (
            sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
            if path.is_dir()
            else [path]
        )
        if not files:
            raise ValueError(f"{path} must hold files that end in {KINDS}, got none")
        if path.is_dir() and (
            others := sorted(file.name for file in path.iterdir() if file.suffix.lower() in OTHER_SUFFIXES)
        ):
            raise ValueError(
                f"{path} must hold graphs as {KINDS}, got {others[0]} among them; convert it, or move it away"
            )
        for file in (path.absolute(), *files):
            check_name(file)
        stems = [file.stem for file in files]
        read = [
            (stem if stems.count(stem) == 1 else file.name, _read(file)) for stem, file in zip(stems, files)
        ]
        names = [
            name if len(graphs) == 1 else f"{name}, graph {key}" for name, graphs in read for key, _ in graphs
        ]
        return cls([graph for _, graphs in read for _, graph in graphs], tuple(names), name=path.stem)


def holds_graphs(path: Path) -> bool:
    """Returns whether a path is a file of a graph, or a folder with such a file."""
    return path.suffix.lower() in SUFFIXES or (
        path.is_dir() and any(file.suffix.lower() in SUFFIXES for file in path.iterdir())
    )


def _read(file: Path) -> "list[tuple[str, nx.Graph]]":
    """Reads the graphs of one file, with their ids.

    Raises:
        ValueError: the file cannot be read, or has another suffix.
    """
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{file} must end in {KINDS}, got {suffix or 'no suffix'!r}")
    if not file.is_file():  # opening a pipe would wait for its writer
        raise ValueError(f"{file} must be a file, got a folder, a pipe, a socket or a device")
    return read_graphml(file) if suffix == ".graphml" else [("", read_edge_list(file))]


def check_simple(graph: Any, name: str = "graph") -> None:
    """Checks that a graph is simple, undirected and has nodes, whose names may be anything.

    Raises:
        ValueError: the graph is directed, has parallel edges, self-loops or no node.
        TypeError: this is no networkx graph.
    """
    import networkx as nx

    if not isinstance(graph, nx.Graph):
        raise TypeError(
            f"{name} must be a networkx graph, got {type(graph).__name__}; build one, e.g. "
            "networkx.Graph(edges)"
        )
    for wrong, problem, remedy in (
        (graph.is_directed(), "is directed", "pass graph.to_undirected()"),
        (graph.is_multigraph(), "has parallel edges", "pass nx.Graph(graph)"),
        (len(graph) == 0, "has no node", "drop it"),
        (
            nx.number_of_selfloops(graph) > 0,
            "has an edge from a node to itself",
            "remove nx.selfloop_edges(graph)",
        ),
    ):
        if wrong:
            raise ValueError(
                f"{name} must be a simple undirected graph with at least one node, but it {problem}; {remedy}"
            )


def _simple(graph: Any, name: str) -> "nx.Graph":
    """Returns a copy with nodes 0, ..., n - 1 and without attributes; see :func:`check_simple`."""
    import networkx as nx

    check_simple(graph, name)
    position = {node: index for index, node in enumerate(graph)}
    plain = nx.Graph()
    plain.add_nodes_from(range(len(position)))
    plain.add_edges_from((position[a], position[b]) for a, b in graph.edges)
    return plain
