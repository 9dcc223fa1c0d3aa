"""Lists of edges and GraphML as other programs write them: read as one graph, or refused with the line."""

import networkx as nx
import pytest

import transformer_theory as tt
from tests.cases import each_case
from transformer_theory.data import Graphs

PATH = {frozenset(pair) for pair in ((0, 1), (1, 2))}  # three nodes, in the order in which they are named


def load(tmp_path, text: str | bytes, name: str = "g.edges") -> Graphs:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return Graphs.load(path)


@each_case(
    "text",
    [
        "1 2\n2 3\n",
        "\ufeff1 2\n2 3\n",
        "1 2\n\ufeff2 3\n",
        "1 2\r\n2 3\r\n",
        "1 2\r2 3\r",
        "% sym unweighted\n% 2 3 3\n1 2\n2 3\n",
        "// comment\n1 2\n2 3 // another\n",
        "# FromNodeId\tToNodeId\n1\t2\n2\t3\n",
        "source,target\n1,2\n2,3\n",
        "Source,Target,Weight\na,b,1\nb,c,2\n",
        "Source,Target,Type,Id,Label,Weight\n1,2,Undirected,0,,1\n2,3,Undirected,1,,1\n",
        '"source","target"\n"a","b"\n"b","c"\n',
        "u v\n1 2\n2 3\n",
        "source target value\nA B 3\nB C 2\n",
        "node 1,node 2\nal,bo\nbo,cy\n",
        "1;2\n2;3\n",
        "a;b;0,5\nb;c;1,5\n",
        "1,2,\n2,3,\n",
        "1;2;\n2;3;\n",
        "1 2\t\n2 3\t\n",
        "1 , 2\n2 , 3\n",
        "1 2\n2\t3\n",
        "1,2\n,,\n2,3\n",
        '"Ann, A.","Bob"\n"Bob","Cy"\n',
        '"a b" "c d"\n"c d" e\n',
        "'a b','c'\n'c','d'\n",
        '"a ""b""",c\nc,d\n',
        "John Smith\tMary Jones\nMary Jones\tX\n",
        "John Smith,Mary Jones\nMary Jones,X\n",
        "1 2 1 1082040961\n2 3 1 108\n",
        "1 2 -1\n2 3 +0.5\n",
        "1.0,2.0\n2.0,3.0\n",
        "node1 node2\nnode2 node3\n",
        "a,b,friend\nb,c,\n",
        '"a",b,,\nb,c\n',
        'a,"b",,\nb,c\n',
        "alpha,beta,strength\na,b,.5\nb,c,1\n",
    ],
)
def test_a_path_of_three_nodes_is_read_as_such(tmp_path, text):
    (graph,) = load(tmp_path, text).graphs
    assert len(graph) == 3
    assert {frozenset(edge) for edge in graph.edges} == PATH


@each_case(
    ("text", "nodes", "edges"),
    [
        ("a b\nc d\n", 4, 2),  # single letters are no header
        ("node1 node2\nnode3 node4\n", 4, 2),
        ("source target\n", 2, 1),  # nothing follows that it could be the header of
        ("a b NaN\nc d 0.5\n", 4, 2),
        ("alone\n1 2\n", 3, 1),
    ],
)
def test_a_first_line_of_nodes_is_no_header(tmp_path, text, nodes, edges):
    (graph,) = load(tmp_path, text).graphs
    assert (len(graph), graph.number_of_edges()) == (nodes, edges)


@each_case(
    ("text", "message"),
    [
        ("1 2;\n2 3;\n", "line 1 has several numbers in one column"),
        ("1 2, 0.5\n2 3, 0.1\n", "line 1 has several numbers in one column"),
        ("a b\t0.5\nb c\t0.1\n", "line 1 has two words in its first column"),
        ("1 2 x\t0.5\n2 3 y\t0.1\n", "line 1 has two words in its first column"),
        ("John Smith\nA,B\n", "line 1 has no ',', which separates columns elsewhere"),
        ("0 1 2 3\n1 2\n2 3\n", "line 2 has 2 columns and line 1 has 4, as in a list of neighbours"),
        ("a b friend\nc d\n", "line 2 has 2 columns and line 1 has 3"),
        ("0: 1 2\n1: 2 0\n", "line 1 has the name 0:"),
        ("# two counts\n3 2\n1 2\n2 3\n", "line 2 may hold the numbers of nodes and edges"),
        ("%%MatrixMarket matrix coordinate\n3 3 2\n1 2\n2 3\n", "line 1 belongs to a Matrix Market file"),
        ("c x\np edge 3 2\ne 1 2\n", "line 2 belongs to a DIMACS file"),
        ("e 1 2\ne 2 3\n", "line 1 begins as all lines of a DIMACS file"),
        ("*Vertices 2\n", "line 1 belongs to a Pajek file"),
        ("graph G {\na -- b;\n}\n", "line 1 belongs to a file with brackets"),
        ("graph [\n node [\n  id 1\n ]\n]\n", "line 1 belongs to a file with brackets"),
        ("[[0,1],[1,2]]", "line 1 belongs to a file with brackets"),
        ("(0, 0) (0, 1) {}\n", "line 1 belongs to a file with brackets"),
        ("<gexf></gexf>", "line 1 belongs to XML"),
        ("a -> b\nb -> c\n", "line 1 has -> in place of a node"),
        ("1-2\n2-3\n", "line 1 and all others name one node"),
        ("1|2\n2|3\n", "line 1 and all others name one node"),
        (",source,target\n0,a,b\n1,b,c\n", "line 1 is a header whose first column has no name"),
        ("id,source,target\n0,1,2\n1,2,3\n", "line 1 is a header that names nodes in the column 'target'"),
        ("person_a,person_b\nal,bo\nbo,cy\n", r"line 1 may be a header \(person_a, person_b\)"),
        ("1 2\n2.0 3\n", "line 2 names the node 2 as 2.0"),
        ("1,2\n,3\n", "line 2 has an empty name"),
        ('1 2\n"a b\n', 'line 2 has a quote " that is not closed'),
        ('"a"b c\n', "line 1 has text after the quoted 'a'"),
        ("C#,Java\n", "line 1 has # inside of C#"),
        ("a, #b\n", "line 1 has a comment in place of a name"),
        ("John Smith Mary Jones\nMary Jones Al Bo\n", "line 1 has four words"),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=rf"g\.edges: {message}") as error:
        load(tmp_path, text)
    assert "\n" not in str(error.value)


def test_other_encodings_are_refused(tmp_path):
    for content in ("1 2\n".encode("utf-16"), "1 2\n".encode("utf-16-le")):
        with pytest.raises(ValueError, match=r"g\.edges must be text in UTF-8"):
            load(tmp_path, content)


HEAD = '<?xml version="1.0"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
EDGE = '<node id="a"/><node id="b"/><edge source="a" target="b"/>'


def graphml(*graphs: str, default: str = "undirected") -> str:
    inside = (
        f'<graph id="G{index}" edgedefault="{default}">{text}</graph>' for index, text in enumerate(graphs)
    )
    return HEAD + "".join(inside) + "</graphml>"


def test_all_graphs_of_a_file_are_read(tmp_path):
    triangle = EDGE + '<node id="c"/><edge source="b" target="c"/><edge source="c" target="a"/>'
    graphs = load(tmp_path, graphml(EDGE, triangle), "two.graphml")
    assert graphs.names == ("two, graph G0", "two, graph G1")
    assert [sorted(graph.edges) for graph in graphs.graphs] == [[(0, 1)], [(0, 1), (0, 2), (1, 2)]]


def test_nodes_of_groups_belong_to_the_graph_around_them(tmp_path):
    inner = EDGE.replace('a"', 'a1"').replace('b"', 'a2"')
    group = f'<node id="a"><graph id="s" edgedefault="undirected">{inner}</graph></node>'
    text = group + '<node id="b"/><edge source="a" target="b"/><edge source="a1" target="b"/>'
    graphs = load(tmp_path, graphml(text), "group.graphml")
    assert graphs.names == ("group",)
    (graph,) = graphs.graphs  # a, b, then the group: a1, a2
    assert sorted(tuple(sorted(edge)) for edge in graph.edges) == [(0, 1), (1, 2), (2, 3)]


def test_graphs_are_those_of_networkx(tmp_path):
    for graph in (nx.karate_club_graph(), nx.petersen_graph(), nx.empty_graph(3)):
        nx.write_graphml(graph, tmp_path / "g.graphml")
        assert (
            Graphs.load(tmp_path / "g.graphml").checksum()
            == Graphs([nx.read_graphml(tmp_path / "g.graphml")]).checksum()
        )
    bare = graphml(EDGE).replace(' xmlns="http://graphml.graphdrawing.org/xmlns"', "")
    assert len(load(tmp_path, bare, "bare.graphml").graphs[0]) == 2


@each_case(
    ("text", "message"),
    [
        (graphml(EDGE, default="directed"), "is directed"),
        (graphml(EDGE.replace("<edge ", '<edge directed="true" ')), "is directed"),
        (graphml(EDGE + '<edge source="b" target="a"/>'), "has parallel edges"),
        (graphml(EDGE, ""), "G1 .* has no node"),
        (graphml(EDGE + '<edge source="a" target="c"/>'), "an edge ends at 'c', which is no node"),
        (graphml(EDGE + '<node id="a"/>'), "two nodes have the id 'a'"),
        (graphml(EDGE + "<hyperedge/>"), "it has a hyperedge"),
        (graphml(EDGE + "<node/>"), "a node has no id"),
        (HEAD + "</graphml>", "it holds no graph"),
        ("<gexf/>", "its outermost element is gexf"),
    ],
)
def test_graphml_of_another_kind_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as error:
        load(tmp_path, text, "bad.graphml")
    assert "bad" in str(error.value)


def test_graphs_load_as_all_data_do(tmp_path):
    nx.write_graphml(nx.path_graph(4), tmp_path / "x.graphml")
    for path in (tmp_path / "x.graphml", str(tmp_path / "x.graphml"), tmp_path):
        data = tt.data.load(path)
        assert isinstance(data, Graphs)
        assert data.checksum() == Graphs([nx.path_graph(4)]).checksum()
    (tmp_path / "y.gml").write_text("graph [ ]")
    with pytest.raises(ValueError, match=r"got y\.gml among them; convert it, or move it away"):
        tt.data.load(tmp_path)
    with pytest.raises(ValueError, match=r"y\.gml must be .* graphs as \.graphml, \.edgelist or \.edges"):
        tt.data.load(tmp_path / "y.gml")
