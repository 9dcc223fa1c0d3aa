"""The grids and the contextual mapping, against plain Python written from the formulas."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from tests.cases import each_case
from transformer_theory import universal
from transformer_theory.theories.universal import ContextualMapping
from transformer_theory.theories.universal.grids import (
    column_codes,
    contexts,
    excluded_share,
    has_distinct_tokens,
    number_of_grids,
    powers,
    resolution,
)


def formula(tokens: list[int], states: int, factor: int) -> list[int]:
    """The codes of increasing, distinct token codes by the closed form of the module's docstring, one
    sequence at a time.
    """
    shifted = [tokens[0] + states * (tokens[-1] - tokens[0])]
    for token in tokens[1:]:
        shifted.append(token + states * (shifted[-1] - token))
    return [code + factor * shifted[-1] for code in shifted]


def simulated(tokens: list[int], states: int, scanned: list[int], factor: int) -> list[int]:
    """The codes by the definition of the shifts, with loops."""
    codes = list(tokens)
    for t in scanned:
        spread = max(codes) - min(codes)
        codes = [code + states * spread if code == t else code for code in codes]
    return [code + factor * max(codes) for code in codes]


@each_case(("k", "d", "n"), [(4, 1, 3), (2, 2, 3), (3, 2, 2), (5, 1, 4)])
def test_codes_of_distinct_tokens_are_those_of_the_closed_form(k: int, d: int, n: int):
    mapping = ContextualMapping(d, n, Fraction(1, k))
    assert mapping.factor == k ** (d * (n + 1))
    for chosen in itertools.combinations(range(k**d), n):
        grid = [[token // k**i % k for i in range(d)] for token in chosen]
        assert mapping.codes(grid).tolist() == formula(list(chosen), k**d, mapping.factor)


@pytest.mark.parametrize("positions", ["none", "integers", "steps"])
def test_codes_of_all_grids_are_those_of_a_simulation(positions):
    k, n = 3, 3
    mapping = ContextualMapping(1, n, 1 / k, positions)
    step = {"none": 0, "integers": k, "steps": 1}[positions]
    scanned = sorted({j * step + t for j in range(n) for t in range(k)})
    grids = list(itertools.product(range(k), repeat=n))
    expected = [
        simulated([x + j * step for j, x in enumerate(grid)], k, scanned, mapping.factor) for grid in grids
    ]
    assert mapping.codes(np.array(grids)[..., None]).tolist() == expected


def test_all_grids_are_enumerated_once_in_lexicographic_order():
    grids = universal.all_grids(3, 2, 2)
    assert [tuple(grid.ravel()) for grid in grids] == list(itertools.product(range(3), repeat=4))


def test_the_excluded_share_is_counted():
    for k, d, n in [(4, 1, 3), (2, 2, 3), (3, 1, 5)]:
        grids = list(itertools.product(itertools.product(range(k), repeat=d), repeat=n))
        repeated = sum(len(set(grid)) < n for grid in grids)
        assert universal.excluded_share(k, d, n) == Fraction(repeated, len(grids))


def test_contexts_number_tokens_of_multisets():
    grids = universal.all_grids(3, 1, 3)
    number = universal.contexts(grids, 3)
    names = [[(tuple(sorted(grid)), token) for token in grid] for grid in grids[..., 0].tolist()]
    flat = list(itertools.chain(*names))
    assert len(set(flat)) == number.max() + 1
    assert all(
        (flat[i] == flat[j]) == (number.ravel()[i] == number.ravel()[j])
        for i, j in itertools.combinations(range(len(flat)), 2)
    )


def test_collisions_count_the_codes_that_are_shared():
    number = np.array([[0, 1, 2], [0, 3, 4]])
    assert universal.collisions(number, np.array([[5, 6, 7], [5, 8, 9]])) == 0
    assert universal.collisions(number, np.array([[5, 6, 7], [5, 6, 6]])) == 2
    assert universal.collisions(number[:1], np.array([[2**70, 2**70 + 1, 2**70]], dtype=object)) == 1


def test_the_collision_of_the_smaller_factor():
    grids = np.array([[[0], [2], [2]], [[2], [4], [4]]])
    small = ContextualMapping(1, 3, 1 / 5, "integers", 5**4).codes(grids)
    assert small[0, 2] == small[1, 0]
    large = ContextualMapping(1, 3, 1 / 5, "integers").codes(grids)
    assert len(set(large.ravel().tolist())) == 6


def test_large_codes_are_python_integers_and_exact():
    mapping = ContextualMapping(2, 5, Fraction(1, 10))
    chosen = [3, 17, 40, 71, 99]
    grid = [[token % 10, token // 10] for token in chosen]
    codes = mapping.codes(grid)
    assert codes.dtype == object
    assert all(isinstance(code, int) for code in codes.tolist())
    assert codes.tolist() == formula(chosen, 100, 100**6)
    assert max(codes.tolist()) > 2**63
    assert mapping.decode(codes).tolist() == [chosen] * 5


def test_no_code_exceeds_the_bound_that_chooses_the_dtype():
    for k, d, n, positions in [
        (2, 1, 2, "integers"),
        (4, 1, 3, "integers"),
        (3, 2, 2, "none"),
        (2, 1, 5, "integers"),
    ]:
        mapping = ContextualMapping(d, n, Fraction(1, k), positions)
        before = universal.column_codes(
            universal.run(mapping.layers()[:-1], mapping.embed(mapping.grids())), k
        )
        assert before.max() < mapping.range
        assert mapping.codes(mapping.grids()).max() <= mapping.largest_code


def test_decoding_with_positions():
    mapping = ContextualMapping(1, 3, 1 / 4, "integers")
    grids = mapping.grids()
    expected = np.repeat((grids[..., 0] + 4 * np.arange(3))[:, None], 3, axis=1)
    assert (mapping.decode(mapping.codes(grids).ravel()).reshape(-1, 3, 3) == expected).all()


def test_layers_have_two_heads_of_size_one():
    *shifts, last = ContextualMapping(2, 3, 1 / 2).layers()
    assert len(shifts) == 4
    assert all(len(layer.heads) == 2 for layer in shifts)
    assert len(last.heads) == 1
    assert shifts[1].heads[0].weight.tolist() == powers(2, 2).tolist() == [1, 2]
    assert [head.twice_threshold for head in shifts[1].heads] == [1, 3]
    assert [head.output.tolist() for head in shifts[1].heads] == [[4, 0], [-4, 0]]


def test_sizes_of_numpy_do_not_overflow():
    assert ContextualMapping(1, np.int64(3), 1 / 4).codes([[0], [1], [3]]).tolist() == [43788, 43821, 43947]
    assert (
        ContextualMapping(np.int8(2), np.int8(5), 1 / 4).largest_code
        == ContextualMapping(2, 5, 1 / 4).largest_code
        > 0
    )
    assert ContextualMapping(1, 3, np.float32(1 / 3)).k == 3


@pytest.mark.parametrize("n", [2, 3])
def test_codes_grow_like_the_power_2n_plus_2(n: int):
    k = 64
    largest = max(
        ContextualMapping(1, n, 1 / k)
        .codes([[[k - 1 - j] for j in reversed(range(n))], [[j] for j in (*range(n - 1), k - 1)]])
        .max(0)
    )
    assert math.log(largest, k) == pytest.approx(2 * n + 2, abs=0.01)


def test_functions_of_grids_take_lists():
    grids = [[[0], [1]], [[1], [1]]]
    assert universal.column_codes(grids, 2).tolist() == [[0, 1], [1, 1]]
    assert universal.has_distinct_tokens(grids, 2).tolist() == [True, False]
    assert universal.contexts(grids, 2).tolist() == [[0, 1], [2, 2]]


def test_hard_attention_is_the_limit_of_softmax_attention():
    mapping = ContextualMapping(1, 3, 1 / 3, "integers")
    exact = mapping.codes(mapping.grids())
    errors = [
        np.abs(mapping.codes(mapping.grids(), dtype=np.float64, inverse_temperature=beta) - exact).max()
        for beta in (1e1, 1e2, 1e3, 1e4)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1
    assert errors[-1] == 0
    beta = universal.sufficient_inverse_temperature(mapping)
    # T S (n - 1), R = F = S^n (1 + max l), (1 + 2 S)^n, 1 + F
    terms = [8 * 9 * 3 * 2, 3**3 * 9, 7**3, 1 + 3**3 * 9]
    assert beta == pytest.approx(2 * 9 * math.log(math.prod(terms)))


@pytest.mark.parametrize(("delta", "k"), [(0.25, 4), (Fraction(1, 3), 3), (1 / 7, 7)])
def test_resolution(delta, k):
    assert resolution(delta) == k


@each_case(
    ("sizes", "error", "message"),
    [
        ((-1, 2, 3), ValueError, "k must be at least 1, got -1"),
        ((0, 2, 3), ValueError, "k must be at least 1, got 0"),
        ((2.5, 2, 3), TypeError, "k must be an integer"),
        ((2, 0, 3), ValueError, "d must be at least 1, got 0"),
        ((2, -1, 3), ValueError, "d must be at least 1, got -1"),
        ((2, 2, 0), ValueError, "n must be at least 1, got 0"),
        ((2, 2, -1), ValueError, "n must be at least 1, got -1"),
    ],
)
def test_sizes_of_grids_are_named(sizes, error, message: str, unchecked):
    for function in (excluded_share, number_of_grids):
        with pytest.raises(error, match=message):
            function(*sizes)


@each_case(("k", "d", "n"), [(2, 1, 2), (3, 1, 2), (2, 2, 3), (3, 1, 4), (2, 3, 2)])
def test_grids_their_codes_and_their_repeated_tokens_by_loops(k: int, d: int, n: int):
    """Digits from the last entry of the last token on; codes have the first entry as their lowest digit."""
    grids = [np.reshape(entries, (n, d)).tolist() for entries in itertools.product(range(k), repeat=n * d)]
    assert universal.all_grids(k, d, n).tolist() == grids
    assert number_of_grids(k, d, n) == len(grids) == k ** (d * n)
    codes = [[sum(x * k**i for i, x in enumerate(token)) for token in grid] for grid in grids]
    assert column_codes(grids, k).tolist() == codes
    distinct = [len(set(code)) == n for code in codes]
    assert has_distinct_tokens(grids, k).tolist() == distinct
    assert excluded_share(k, d, n) == Fraction(len(grids) - sum(distinct), len(grids))
    named = {}
    for code in codes:
        for one in code:
            named.setdefault((tuple(sorted(code)), one), len(named))
    numbers = contexts(np.array(grids), k)
    expected = [[named[tuple(sorted(code)), one] for one in code] for code in codes]
    pairs = set(zip(numbers.ravel().tolist(), np.ravel(expected).tolist()))
    assert len(pairs) == len(named) == numbers.max() + 1  # the same partition


@each_case(("delta", "k"), [(1e-6, 10**6), (0.5, 2), (0.25 * (1 + 0.9e-9), 4), (np.float32(1 / 3), 3)])
def test_widths_at_the_limits(delta, k: int):
    assert resolution(delta) == k


@each_case("delta", [0.9e-6, 1.0, 0.25 * (1 + 1.1e-9), 1.5, 0.0, -0.5, 0.3])
def test_widths_that_do_not_tile(delta: float):
    with pytest.raises(ValueError, match="delta must be 1/k for an integer k >= 2"):
        resolution(delta)
