"""The fifteen patterns against their definition by loops, and heads against scores that are added up term by
term.
"""

import itertools
import math

import networkx
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.theories.graph_tokens.heads import (
    attention_maps,
    head_scores,
    in_precision,
    overlap,
    pattern_head,
    pattern_heads,
    query_rows,
    smallest_gap,
    worst_error,
)
from transformer_theory.theories.graph_tokens.identifiers import (
    Laplacian,
    Orthonormal,
    RandomUnit,
    tokenize_graph,
)
from transformer_theory.theories.graph_tokens.patterns import (
    PATTERNS,
    equivalence_patterns,
    normalised_patterns,
    pattern_sums,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def equalities(four: tuple[int, ...]) -> tuple[bool, ...]:
    return tuple(a == b for a, b in itertools.combinations(four, 2))


def test_the_patterns_are_the_partitions_of_four_indices():
    wanted = {equalities(four) for four in itertools.product(range(4), repeat=4)}
    assert len(equivalence_patterns()) == len(wanted) == 15  # the Bell number of 4
    assert {equalities(pattern.labels) for pattern in PATTERNS} == wanted


@each_case("n", [1, 2, 4, 5])
def test_each_matrix_holds_the_pairs_of_its_pattern(n: int):
    pairs = list(itertools.product(range(n), repeat=2))
    for pattern in PATTERNS:
        matrix = pattern.matrix(n)
        for row, i in enumerate(pairs):
            count = 0
            for col, j in enumerate(pairs):
                belongs = equalities(i + j) == equalities(pattern.labels)
                count += belongs
                assert bool(matrix[row, col]) == belongs
            kind = "node" if i[0] == i[1] else "edge"
            assert count == (pattern.keys_per_query(n) if kind == pattern.query else 0)


def test_the_key_is_of_the_right_type():
    for pattern in PATTERNS:
        for n in (1, 2, 3, 4):
            assert torch.equal(query_rows(n)[PATTERNS.index(pattern)], pattern.matrix(n).any(1))
        diagonal = torch.eye(4, dtype=torch.bool).flatten()
        keys = pattern.matrix(4).any(0)
        assert bool((keys == (diagonal if pattern.key == "node" else ~diagonal)).all())


@each_case("n", [1, 2, 3, 6])
def test_sums_are_products_with_the_matrices(n: int):
    X = torch.randn(n, n, 3, generator=generator(), dtype=torch.float64)
    products = torch.stack(
        [pattern.matrix(n).double() @ X.reshape(n * n, 3) for pattern in PATTERNS]
    ).reshape(15, n, n, 3)
    assert_close(pattern_sums(X), products, rtol=0, atol=1e-12)


def test_scores_are_the_sum_of_the_definition():
    graph = networkx.path_graph(4)
    tokens = tokenize_graph(graph, RandomUnit(5), generator=generator())
    P = tokens.structure.reshape(16, 2, 5)
    scores = head_scores(tokens)
    assert_close(scores, head_scores(tokens, pattern_heads(5)), rtol=0, atol=1e-12)  # matrices W, [12, 12]
    for number, pattern in enumerate(PATTERNS):
        i1, i2, j1, j2 = pattern.labels
        for i, j in itertools.product(range(16), repeat=2):
            score = sum(
                (1 if x == y else -1) * float(P[i, a] @ P[j, b])
                for (a, x), (b, y) in itertools.product(enumerate((i1, i2)), enumerate((j1, j2)))
            )
            is_node = 1 if j in (0, 5, 10, 15) else -1
            score += 2 * (1 if j1 == j2 else -1) * is_node
            assert float(scores[number, i, j]) == pytest.approx(score, abs=1e-12)


def test_a_head_is_a_matrix_of_key_and_query():
    tokens = tokenize_graph(networkx.path_graph(4), generator=generator())
    z = tokens.addresses
    W = pattern_head(PATTERNS[7], 4)
    # query (0, 1), key (0, 0)
    assert float(z[0] @ W @ z[1]) == pytest.approx(float(head_scores(tokens)[7, 1, 0]), abs=1e-12)
    assert float(z[1] @ W @ z[0]) != pytest.approx(float(head_scores(tokens)[7, 1, 0]), abs=1e-3)


@each_case(("scale", "expected"), [(1.0, 0.83), (5.0, 0.052), (10.0, 3.6e-4), (20.0, 1.7e-8)])
def test_the_worst_error_of_six_nodes(scale: float, expected: float):
    """Recomputed independently, to two digits."""
    tokens = tokenize_graph(networkx.cycle_graph(6), generator=generator())
    error = worst_error(attention_maps(tokens, scale=scale), 6)
    assert error == pytest.approx(expected, rel=0.04)
    assert error <= 36 * math.exp(-scale)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_small_graphs_lack_some_patterns(n: int):
    """Patterns without keys have no queries, so the bound and the overlap concern the others."""
    maps = attention_maps(tokenize_graph(networkx.path_graph(n), generator=generator()), scale=20)
    assert worst_error(maps, n) <= max(1e-15, n**2 * math.exp(-20))
    assert overlap(normalised_patterns(n), normalised_patterns(n), query_rows(n)) == pytest.approx(1)


def test_the_attention_of_one_head_in_closed_form():
    """Pattern uu to uu: the key itself scores 6, the other nodes 2, edges at u -2 + 0 and other edges -2."""
    n, a = 5, 1.5
    maps = attention_maps(tokenize_graph(networkx.cycle_graph(n), generator=generator()), scale=a)
    touching, others = 2 * (n - 1), (n - 1) * (n - 2)
    total = math.exp(6 * a) + (n - 1) * math.exp(2 * a) + touching * math.exp(0) + others * math.exp(-2 * a)
    assert float(maps[0, 0, 0]) == pytest.approx(math.exp(6 * a) / total, rel=1e-12)


def test_hard_max_is_exact_in_all_precisions():
    tokens = tokenize_graph(networkx.path_graph(5), generator=generator())
    for dtype, atol in ((torch.float64, 1e-15), (torch.float32, 1e-7), (torch.bfloat16, 4e-3)):
        maps = attention_maps(in_precision(tokens, dtype), scale=math.inf)
        assert maps.dtype == dtype
        assert worst_error(maps, 5) <= atol
    assert smallest_gap(head_scores(tokens), 5) == pytest.approx(1, abs=1e-12)
    assert smallest_gap(head_scores(tokens, torch.zeros(15, 12, 12)), 5) == 0


def test_eigenvectors_of_the_laplacian():
    graph = networkx.lollipop_graph(4, 3)
    P = Laplacian()(graph, generator())
    L = torch.from_numpy(networkx.normalized_laplacian_matrix(graph).toarray())
    values = torch.linalg.eigvalsh(L)
    assert_close(L @ P, P * values, rtol=0, atol=1e-12)
    assert_close(P @ P.mT, torch.eye(7, dtype=torch.float64), rtol=0, atol=1e-12)
    assert Laplacian(3)(graph, generator()).shape == (7, 3)


def test_overlap_is_one_minus_the_total_variation():
    n = 4
    targets, rows = normalised_patterns(n), query_rows(n)
    uniform = torch.full_like(targets, 1 / n**2)
    expected = [min(1, pattern.keys_per_query(n) / n**2) for pattern in PATTERNS]
    assert overlap(uniform, targets, rows) == pytest.approx(sum(expected) / 15)
    assert overlap(targets, targets, rows) == pytest.approx(1)
    variation = (uniform - targets).abs().sum(-1) / 2
    assert overlap(uniform, targets, rows) == pytest.approx(
        1 - float(((variation * rows).sum(1) / rows.sum(1)).mean())
    )


def test_tokens_of_a_graph():
    graph = networkx.Graph([("b", "a"), ("a", "c")])
    dense = tokenize_graph(graph, Orthonormal(width=5), generator=generator())
    assert dense.vectors.shape == (9, 1 + 10 + 2)
    assert dense.features[:, 0].tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]  # in the order b, a, c
    assert dense.types[:, 0].tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 1]
    sparse = tokenize_graph(graph, Orthonormal(width=5), tokens="sparse", generator=generator())
    assert sparse.pairs.tolist() == [[0, 0], [1, 1], [2, 2], [0, 1], [1, 0], [1, 2], [2, 1]]
    rows = [3 * first + second for first, second in sparse.pairs.tolist()]
    assert_close(dense.vectors[rows], sparse.vectors)
