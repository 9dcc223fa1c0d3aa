"""Sets of graphs: files, validation, random graphs of the same sizes; a comparison of the theories that read
graphs.
"""

from dataclasses import replace

import networkx as nx
import pytest
import torch

import transformer_theory as tt
from tests.cases import each_case
from tests.stand_in import THEORY
from transformer_theory import report
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.theory import OnData
from transformer_theory.data import Graphs

TRIANGLE, PATH = nx.cycle_graph(3), nx.path_graph(4)


def test_nodes_are_numbered_and_attributes_are_dropped():
    graph = nx.Graph(title="a")
    graph.add_edge("b", "a", weight=3)
    graph.add_node(("c", 1), colour="red")
    (plain,) = Graphs([graph]).graphs
    assert list(plain.nodes(data=True)) == [(0, {}), (1, {}), (2, {})]
    assert list(plain.edges(data=True)) == [(0, 1, {})]
    assert graph["a"]["b"] == {"weight": 3}


def test_a_set_describes_itself():
    graphs = Graphs([TRIANGLE, PATH], ("triangle", "path"), name="two")
    assert len(graphs) == 2
    assert repr(graphs) == "Graphs('two', 2 graphs of 3 to 4 nodes)"
    assert repr(Graphs([PATH])) == "Graphs('graphs', 1 graph of 4 nodes)"
    assert Graphs([TRIANGLE, PATH]).names == ("graph 0", "graph 1")
    assert (
        graphs.checksum()
        == Graphs([nx.cycle_graph(3), nx.path_graph(4)]).checksum()
        != Graphs([PATH, TRIANGLE]).checksum()
    )


def test_random_graphs_have_the_same_sizes():
    graphs = Graphs([nx.complete_graph(6), nx.path_graph(30)])
    noise = graphs.noise_like(torch.Generator().manual_seed(0))
    assert [(len(one), one.number_of_edges()) for one in noise.graphs] == [(6, 15), (30, 29)]
    assert (
        noise.checksum()
        == graphs.noise_like(torch.Generator().manual_seed(0)).checksum()
        != graphs.checksum()
    )


@each_case(
    ("graphs", "message"),
    [
        ([], "at least one graph"),
        (
            [nx.DiGraph([(0, 1)])],
            r"graph 0 must be a simple undirected graph .* is directed; pass graph.to_undirected\(\)",
        ),
        ([PATH, nx.MultiGraph([(0, 1), (0, 1)])], "graph 1 .* has parallel edges"),
        ([nx.Graph()], "has no node; drop it"),
        ([nx.Graph([(0, 0)])], "has an edge from a node to itself; remove"),
    ],
)
def test_graphs_that_are_not_simple_are_refused(graphs, message):
    with pytest.raises(ValueError, match=message):
        Graphs(graphs)


def test_other_mistakes_are_named():
    with pytest.raises(TypeError, match="graph 0 must be a networkx graph, got list"):
        Graphs([[(0, 1)]])
    with pytest.raises(
        TypeError, match=r"graphs must be a sequence of graphs, got a single Graph; pass Graphs\(\[graph\]\)"
    ):
        Graphs(PATH)
    for data in (PATH, [PATH]):
        with pytest.raises(TypeError, match=r"data must be .* got (Graph|list); graphs: Graphs\(\[...\]\)"):
            tt.compare(data, theories=[READS])
    with pytest.raises(ValueError, match="one name for each of the 2 graphs, got 1"):
        Graphs([PATH, PATH], ("a",))


def test_files_and_folders_are_read(tmp_path):
    nx.write_graphml(TRIANGLE, tmp_path / "b.graphml")
    (tmp_path / "a.edgelist").write_text("# a path\nx, y\ny, z  # its end\n\nalone\n")
    graphs = Graphs.load(tmp_path)
    assert (graphs.names, graphs.name) == (("a", "b"), tmp_path.name)
    assert [len(graph) for graph in graphs.graphs] == [4, 3]
    assert [sorted(graph.edges) for graph in graphs.graphs] == [[(0, 1), (1, 2)], [(0, 1), (0, 2), (1, 2)]]
    assert Graphs.load(tmp_path / "b.graphml").names == ("b",)


def test_edge_lists_of_networkx_are_read(tmp_path):
    """By default networkx writes ``0 1 {}``, and lists of weights have a third word as well."""
    nx.write_edgelist(PATH, tmp_path / "plain.edgelist")
    nx.write_edgelist(nx.Graph([(0, 1, {"a": 1, "b": 2}), (1, 2)]), tmp_path / "data.edgelist")
    nx.write_weighted_edgelist(
        nx.Graph([(0, 1, {"weight": 0.5}), (1, 2, {"weight": 2})]), tmp_path / "weights.edges"
    )
    assert [sorted(graph.edges) for graph in Graphs.load(tmp_path).graphs] == [
        [(0, 1), (1, 2)],
        [(0, 1), (1, 2), (2, 3)],
        [(0, 1), (1, 2)],
    ]


def test_files_of_one_stem_have_whole_names(tmp_path):
    for name in ("hex.edgelist", "hex.edges", "path.edgelist"):
        nx.write_edgelist(PATH, tmp_path / name)
    assert Graphs.load(tmp_path).names == ("hex.edgelist", "hex.edges", "path")


def test_files_that_are_no_graphs_are_named(tmp_path):
    bad = tmp_path / "bad.edgelist"
    bad.write_bytes("é f\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"bad.edgelist must be text in UTF-8"):
        Graphs.load(bad)
    xml = tmp_path / "bad.graphml"
    xml.write_text("no xml")
    with pytest.raises(ValueError, match=r"bad.graphml is not GraphML"):
        Graphs.load(xml)
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError, match=r"must hold files that end in .graphml, .edgelist or .edges, got none"
    ):
        Graphs.load(tmp_path / "empty")
    other = tmp_path / "graph.txt"
    other.write_text("a b")
    with pytest.raises(ValueError, match=r"must end in .graphml, .edgelist or .edges, got '.txt'"):
        Graphs.load(other)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        Graphs.load(tmp_path / "nothing.graphml")


# ---- comparison


def edges(graphs: Graphs, generator: torch.Generator, *, draws: int):
    count = sum(graph.number_of_edges() for graph in graphs.graphs)
    yield Measurement("stand_in", "on data", "edges", count, scope="any data", note="number of edges")


READS = replace(
    THEORY,
    on_data=OnData(
        read=lambda graphs: graphs, measure=edges, headline="edges", plot=lambda result: None, reads=Graphs
    ),
)


def test_a_comparison_of_graphs_has_the_theories_that_read_graphs(tmp_path):
    nx.write_graphml(TRIANGLE, tmp_path / "b.graphml")
    result = tt.compare(tmp_path, theories=[THEORY, READS], seeds=2, claim_seeds=0)
    row = result.select(kind="on data", quantity="edges", seed=0).one()
    assert (row.value, row.on_noise, row.data) == (3, 3, tmp_path.name)
    assert {row.kind for row in result.table} == {"on data"}
    assert result.settings["theories"] == ["stand_in"]
    assert result.settings["checksum"] == Graphs([TRIANGLE]).checksum()
    assert "edges" in report.page(result, theories=[READS])


def test_graphs_and_tokens_do_not_mix(tmp_path):
    with pytest.raises(ValueError, match="no theory among stand_in reads graphs"):
        tt.compare(Graphs([PATH], name="mine"), theories=[THEORY], claim_seeds=0)
    with pytest.raises(ValueError, match="models need images, got graphs"):
        tt.compare(Graphs([PATH]), theories=[READS], models=["x"], claim_seeds=0)
    tokens = tt.compare(
        tt.TokenData(torch.ones(2, 3, 4)), theories=[READS], networks=(), seeds=1, claim_seeds=0
    )
    assert not tokens.select(kind="on data")
