"""The null of the user's graphs and the rows of the ladder against loops in numpy."""

import itertools

import networkx
import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.table import collect
from transformer_theory.data.graphs import Graphs
from transformer_theory.theories.graph_tokens import identifiers, ladder, layers, on_data

FIXED = 4_019_217_653  # seed of all fixed numbers of the package


def changed(graph: networkx.Graph, seed: int) -> float:
    """The share of the edges that the rewired copy does not have."""
    kept = {frozenset(edge) for edge in graph.edges} & {
        frozenset(edge) for edge in on_data.rewired(graph, seed).edges
    }
    return 1 - len(kept) / graph.number_of_edges()


def test_five_swaps_per_edge_leave_hardly_an_edge_in_its_place():
    """Of m edges of a random graph with these degrees about the share d/n is met again by chance; one swap
    per edge would leave e^-2 of them untouched, one per graph nearly all.
    """
    graph = networkx.random_regular_graph(4, 200, seed=1)
    shares = [changed(graph, seed) for seed in range(4)]
    assert np.mean(shares) > 0.965
    assert len(set(shares)) > 1
    assert networkx.is_regular(on_data.rewired(graph, 0))


@pytest.mark.parametrize(
    ("graph", "swaps"),
    [
        (networkx.Graph([(0, 1), (2, 3)]), 1.0),  # the smallest graph that allows a swap
        (networkx.path_graph(3), 0.0),
        (networkx.complete_graph(4), 0.0),
    ],
)
def test_small_graphs_are_rewired_if_they_allow_it(graph: networkx.Graph, swaps: float):
    assert max(changed(graph, seed) for seed in range(8)) == swaps


def test_a_draw_is_the_share_of_blind_pairs_of_the_rewired_copies(monkeypatch):
    """Copies are a path or a star by the parity of their seed; two of one kind are not distinguished."""

    def known(graph, seed):
        return networkx.path_graph(4) if seed % 2 else networkx.star_graph(3)

    monkeypatch.setattr(on_data, "rewired", known)
    graphs = Graphs(tuple(networkx.path_graph(n) for n in (4, 4, 5, 6, 7)))
    rows, _ = collect(on_data.ON_DATA.measure(on_data.ON_DATA.read(graphs), torch.Generator(), draws=7))
    seeds = torch.randint(2**31, (7, 5), generator=torch.Generator().manual_seed(FIXED)).numpy() % 2
    odd = seeds.sum(1)
    expected = (odd * (odd - 1) + (5 - odd) * (4 - odd)) / 2 / 10
    row = rows.select(quantity=on_data.BLIND).one()
    assert row.null.draws == pytest.approx(expected)
    assert (row.value, row.n, row.side) == (0.1, 10, None)
    assert len(set(expected)) > 1


def test_at_most_nineteen_draws_are_taken():
    graphs = Graphs((networkx.path_graph(4), networkx.star_graph(3)))
    rows, _ = collect(on_data.ON_DATA.measure(on_data.ON_DATA.read(graphs), torch.Generator(), draws=50))
    assert len(rows.select(quantity=on_data.BLIND).one().null.draws) == 19


def test_verdicts_classes_and_counts_of_a_known_set():
    """Two hexagons, two triangles, a path and a graph that is too large; in the order of the user."""
    hexagon, path = networkx.cycle_graph(6), networkx.path_graph(6)
    triangles = networkx.disjoint_union(networkx.cycle_graph(3), networkx.cycle_graph(3))
    data = Graphs((path, hexagon, networkx.path_graph(101), triangles, hexagon.copy()))
    rows, arrays = collect(on_data.ON_DATA.measure(on_data.ON_DATA.read(data), torch.Generator(), draws=0))
    value = {row.quantity: (row.value, row.n) for row in rows}
    assert value[on_data.BLIND] == (3 / 6, 6)
    assert value[on_data.LOST] == (2 / 3, 3)
    assert value[on_data.SMALL] == (101, 5)
    assert arrays["graph_tokens/classes"].tolist() == [0, 1, 1, 1]
    assert arrays["graph_tokens/verdicts"].tolist() == [
        [0, 0, 0, 0],
        [0, 0, 1, 2],
        [0, 1, 0, 1],
        [0, 2, 1, 0],
    ]
    assert arrays["graph_tokens/names"].tolist() == [data.names[place] for place in (0, 1, 3, 4)]


def test_graphs_of_one_hundred_nodes_are_kept():
    problem = on_data.ON_DATA.read(Graphs((networkx.path_graph(100), networkx.path_graph(100))))
    rows, _ = collect(on_data.ON_DATA.measure(problem, torch.Generator(), draws=0))
    assert rows.select(kind="assumption").one().verdict == "holds"
    assert problem.left_out == 0


def overlap_of(maps: np.ndarray, targets: np.ndarray, rows: np.ndarray) -> float:
    shared = np.minimum(maps, targets).sum(-1)
    return float(np.mean([each[queries].mean() for each, queries in zip(shared, rows) if queries.any()]))


def distributions(*shape: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).gamma(0.3, size=shape)
    return drawn / drawn.sum(-1, keepdims=True)


def test_draws_relabel_the_keys_of_a_map():
    """Key (u, v) of draw i is the key (order u, order v) of the map; queries stay."""
    n, rng = 3, np.random.default_rng(0)
    maps, targets = distributions(15, n * n, n * n, seed=1), distributions(15, n * n, n * n, seed=2)
    rows = rng.random((15, n * n)) < 0.4
    rows[4] = False
    g = torch.Generator().manual_seed(7)
    orders = [torch.randperm(n, generator=g).tolist() for _ in range(6)]
    expected = [
        overlap_of(maps[:, :, [order[u] * n + order[v] for u in range(n) for v in range(n)]], targets, rows)
        for order in orders
    ]
    parts = [torch.from_numpy(each) for each in (maps, targets, rows)]
    assert ladder.null_overlaps(*parts, torch.Generator().manual_seed(7), draws=6) == pytest.approx(expected)
    assert len(set(expected)) > 3


def test_a_learnt_rung_is_the_mean_over_held_out_graphs_and_the_worst_of_them(monkeypatch):
    """Later graphs have more noise."""
    n, seen = 3, {}
    targets, rows = distributions(15, 9, 9, seed=1), np.random.default_rng(0).random((15, 9)) < 0.5
    share = np.array([0.1, 0.3, 0.5])[:, None, None, None]
    maps = (1 - share) * targets + share * distributions(3, 15, 9, 9, seed=5)
    monkeypatch.setattr(ladder, "NODES", n)
    monkeypatch.setattr(ladder, "normalised_patterns", lambda n: torch.from_numpy(targets))
    monkeypatch.setattr(ladder, "query_rows", lambda n: torch.from_numpy(rows))
    monkeypatch.setattr(ladder, "worst_error", lambda maps, n: float(maps[0, 0, 0]))
    monkeypatch.setattr(
        ladder, "train_heads", lambda *_, **settings: lambda batch: torch.from_numpy(maps).log()
    )
    monkeypatch.setattr(ladder, "draw_batch", lambda *settings: seen.update(batch=settings[:2]))
    row, worst = ladder.learnt(torch.Generator().manual_seed(2), identifiers=ladder.ORTHONORMAL)
    assert row.value == pytest.approx(np.mean([overlap_of(each, targets, rows) for each in maps]))
    assert worst.value == pytest.approx(maps[:, 0, 0, 0].max())
    g, draws = torch.Generator().manual_seed(2), np.zeros(399)
    for each in maps:
        for draw in range(399):
            order = torch.randperm(n, generator=g).tolist()
            keys = [order[u] * n + order[v] for u in range(n) for v in range(n)]
            draws[draw] += overlap_of(each[:, :, keys], targets, rows) / 3
    assert row.null.draws == pytest.approx(draws)
    assert (row.predicted, row.side, worst.predicted) == (1.0, ">=", 0.0)
    assert seen["batch"] == (n, 4)


def test_rungs_have_the_precision_and_the_scale_that_their_names_say(monkeypatch):
    """Each rung changes one thing; what a former one relaxed stays so."""
    seen = []

    def known(tokens, dtype):
        seen.append([type(tokens).__name__, dtype])
        return tokens

    def maps(tokens, scale):
        seen[-1].append(scale)
        return torch.from_numpy(distributions(15, 9, 9, seed=3))

    monkeypatch.setattr(ladder, "NODES", 3)
    monkeypatch.setattr(ladder, "tokenize_graph", lambda graph, identifiers, generator: identifiers)
    monkeypatch.setattr(ladder, "in_precision", known)
    monkeypatch.setattr(ladder, "attention_maps", maps)
    monkeypatch.setattr(ladder, "null_overlaps", lambda *_: (0.1,))
    rungs = [rung for rung in ladder.LADDER.rungs if rung.measure.func is ladder.written]
    for rung in rungs:
        tuple(rung.measure(torch.Generator().manual_seed(0)))
    coarse = [torch.bfloat16, 5.0]
    assert dict(zip([rung.name for rung in rungs], seen)) == {
        "integers, hard-max": [type(ladder.permutation).__name__, torch.float64, np.inf],
        "float64": ["Orthonormal", torch.float64, np.inf],
        "float32": ["Orthonormal", torch.float32, np.inf],
        "bfloat16": ["Orthonormal", torch.bfloat16, np.inf],
        "softmax, a = 20": ["Orthonormal", torch.bfloat16, 20.0],
        "softmax, a = 10": ["Orthonormal", torch.bfloat16, 10.0],
        "softmax, a = 5": ["Orthonormal", *coarse],
        "Laplacian, all n": ["Laplacian", *coarse],
        "random, 1024 dimensions": ["RandomUnit", *coarse],
        "random, 64 dimensions": ["RandomUnit", *coarse],
        "Laplacian, 5 of 10": ["Laplacian", *coarse],
    }


@pytest.mark.parametrize("n", [2, 4])
def test_random_weights_are_divided_by_the_number_of_keys(n: int):
    """The keys of one query are counted for each of the fifteen patterns; a pattern without keys counts as
    one. With two nodes some have none.
    """

    def equalities(*indices: int) -> tuple[int, ...]:
        return tuple(indices.index(each) for each in indices)

    layer = layers.random_layer(2, 3, n, generator=torch.Generator().manual_seed(5))
    g = torch.Generator().manual_seed(5)
    drawn = torch.randn(15, 2, 3, generator=g, dtype=torch.float64).numpy() / np.sqrt(2)
    for pattern, own, found in zip(layers.PATTERNS, drawn, layer.weights.numpy()):
        query = (0, 0) if pattern.labels[0] == pattern.labels[1] else (0, 1)
        pairs = itertools.product(range(n), repeat=2)
        keys = sum(equalities(*query, *pair) == equalities(*pattern.labels) for pair in pairs)
        assert found == pytest.approx(own / max(keys, 1))


@pytest.mark.parametrize("name", ["learnt, orthonormal", "learnt, Laplacian", "learnt, 5 of n"])
def test_heads_are_learnt_on_graphs_of_eight_to_ten_nodes(name: str, monkeypatch):
    """And measured on graphs of ten nodes that the same identifiers describe."""
    (rung,) = (rung for rung in ladder.LADDER.rungs if rung.name == name)
    seen, drawn = [], []

    def train(kind, *, generator: torch.Generator, **settings):
        seen.append((kind, settings))
        return lambda batch: torch.full((4, 15, 100, 100), 0.01, dtype=torch.float64).log()

    monkeypatch.setattr(ladder, "train_heads", train)
    monkeypatch.setattr(ladder, "draw_batch", lambda *settings: drawn.append(settings[:4]))
    monkeypatch.setattr(ladder, "null_overlaps", lambda *_: (0.1, 0.2))
    row, worst = rung.measure(torch.Generator().manual_seed(0))
    ((kind, settings),) = seen
    assert settings == {"sizes": (8, 9, 10), "width": 10, "steps": 300}
    assert drawn == [(10, 4, kind, 10)]
    assert (row.n, worst.n) == (4, 4)
    assert row.null.draws == pytest.approx((0.1, 0.2))


@each_case("kept", [0, -1, 2.0, True])
@each_case("kind", [identifiers.Laplacian, identifiers.Orthonormal])
def test_numbers_of_columns_below_one_and_other_numbers_are_refused(kind, kept):
    """-1 would leave the last column out, and 0 all of them."""
    with pytest.raises((ValueError, TypeError), match=r"kept must be (at least 1|an integer), got"):
        kind(kept=kept)(networkx.path_graph(4), torch.Generator())


@each_case("width", [0, -2, 5.0, True])
@each_case("kind", [identifiers.RandomUnit, identifiers.Orthonormal])
def test_numbers_of_dimensions_below_one_and_other_numbers_are_refused(kind, width):
    with pytest.raises((ValueError, TypeError), match=r"width must be (at least 1|an integer), got"):
        kind(width=width)(networkx.path_graph(4), torch.Generator())


@pytest.mark.parametrize("kept", [1, 3, 4])
def test_the_first_eigenvectors_of_the_normalised_laplacian_are_kept(kept: int):
    """Of a graph with different degrees and a node without edges; its row of the Laplacian is that of 1."""
    graph = networkx.Graph([(0, 1), (0, 2), (0, 3), (1, 2)])
    graph.add_node(4)
    found = identifiers.Laplacian(kept=kept)(graph, torch.Generator().manual_seed(1)).numpy()
    A = networkx.to_numpy_array(graph)
    root = np.diag([1 / np.sqrt(3), 1 / np.sqrt(2), 1 / np.sqrt(2), 1, 0])
    L = np.eye(5) - root @ A @ root
    values = np.linalg.eigvalsh(L)[:kept]
    assert found.shape == (5, kept)
    assert L @ found == pytest.approx(found * values, abs=1e-9)
    assert found.T @ found == pytest.approx(np.eye(kept), abs=1e-9)
