"""Shares, distances and the rows of the ladder against numpy, on vectors of unequal spread and groups of
unequal size.
"""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory import universal
from transformer_theory.core.metric import Activations
from transformer_theory.theories.universal import ladder
from transformer_theory.theories.universal.claims import codes, networks
from transformer_theory.theories.universal.in_networks import DISTANCE, IN_NETWORKS, SHARE, same_inputs

GROUP = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])  # the last one has a single member
CONTEXT = np.array([1.0, 2.0, 3.0, 1.0, 2.0, 5.0, 5.0, 6.0, 7.0, 1.0])


def vectors() -> np.ndarray:
    rng = np.random.default_rng(0)
    means = rng.normal(size=(4, 3)) * [5.0, 1.0, 0.2]
    return means[GROUP] + rng.normal(size=(10, 3)) * [1.0, 2.0, 0.1] + 3.0


def share_of(x: np.ndarray, group: np.ndarray, reference: np.ndarray) -> float:
    squares = []
    for number in np.unique(group):
        own = x[group == number]
        if len(own) > 1:
            squares += list(((own - own.mean(0)) ** 2).sum(1) * len(own) / (len(own) - 1))
    return np.mean(squares) / np.mean(((reference - reference.mean(0)) ** 2).sum(1))


def test_the_share_of_groups_of_unequal_size():
    x = vectors()
    share, used = universal.contextual_share(torch.from_numpy(x), torch.from_numpy(GROUP))
    assert share == pytest.approx(share_of(x, GROUP, x[GROUP < 3]))
    assert used == 9


def test_the_variance_of_a_single_group_is_compared_with_that_of_all_tokens():
    x, group = vectors(), np.array([0, 0, 0, 1, 2, 3, 4, 5, 6, 7])
    share, used = universal.contextual_share(torch.from_numpy(x), torch.from_numpy(group))
    assert share == pytest.approx(share_of(x, group, x))
    assert used == 3


def test_the_distance_is_that_of_vectors_in_units_of_their_spread():
    x = vectors()
    distances = [
        np.linalg.norm(x[i] - x[j])
        for i in range(10)
        for j in range(i)
        if GROUP[i] == GROUP[j] and CONTEXT[i] != CONTEXT[j]
    ]
    spread = np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean())  # of all tokens, over n
    found, pairs = universal.smallest_distance(*(torch.from_numpy(each) for each in (x, GROUP, CONTEXT)))
    assert found == pytest.approx(min(distances) / spread)
    assert pairs == len(distances) == 3 + 1 + 5


def test_rows_of_blocks_are_those_of_their_outputs_and_leave_out_infinite_ones():
    """Two inputs occur four and three times, each in different contexts; a sequence has an infinite token."""
    ids = torch.tensor([[0, 1, 2], [0, 3, 1], [1, 0, 4], [0, 1, 5]])
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)[ids]
    outputs = [torch.from_numpy(np.random.default_rng(s).normal(size=(4, 3, 2)) * [4, 1]) for s in (1, 2)]
    inputs[3, 2, 0], outputs[1][2, 1] = torch.inf, torch.nan
    metric = universal.Contexts()
    for layer, output in enumerate(outputs):
        metric.update(Activations("b", layer, "features", inputs, output))
    rows = {(row.quantity, row.layer): row for row in metric.compute()}
    group = ids[:3].flatten().numpy()
    for layer, output in enumerate(outputs):
        x = output[:3].reshape(9, 2).numpy()
        kept = np.isfinite(x).all(1)
        x, own, sequence = x[kept], group[kept], np.arange(9)[kept] // 3
        repeated = np.isin(own, [0, 1])
        assert rows[SHARE, layer].value == pytest.approx(share_of(x, own, x[repeated]), rel=1e-5)
        assert rows[SHARE, layer].n == repeated.sum() == 6 - layer
        pairs = [
            np.linalg.norm(x[i] - x[j])
            for i in range(len(x))
            for j in range(i)
            if own[i] == own[j] and sequence[i] != sequence[j]
        ]
        spread = np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean())
        assert rows[DISTANCE, layer].value == pytest.approx(min(pairs) / spread, rel=1e-5)
        assert rows[DISTANCE, layer].n == len(pairs)
        assert {row.side for row in rows.values()} == {IN_NETWORKS.side} == {">="}


def q_of(outputs: np.ndarray, targets: np.ndarray) -> float:
    """1 minus the error over that of the medians of each token and position."""
    tokens = np.array([(i // 16, i // 4 % 4, i % 4) for i in range(64)])
    best = np.empty((64, 3))
    for position in range(3):
        for token in range(4):
            rows = tokens[:, position] == token
            best[rows, position] = np.median(targets[rows, position])
    outputs = np.clip(np.where(np.isnan(outputs), 0, outputs), 0, 1)
    return 1 - np.abs(outputs - targets).sum() / np.abs(best - targets).sum()


def test_the_row_of_a_rung_has_the_value_of_the_outputs_and_the_draws_of_both_nulls(monkeypatch):
    rng = np.random.default_rng(3)
    targets = rng.random((64, 3)) ** 2
    outputs = targets + rng.normal(size=(64, 3)) * [0.1, 0.5, 1.0]
    outputs[5] = np.nan
    others, blind = rng.random((4, 64, 3)), rng.random((4, 64, 3)) / 2
    monkeypatch.setattr(ladder, "permuted", lambda *_: torch.from_numpy(others))
    monkeypatch.setattr(ladder, "context_free", lambda *_: torch.from_numpy(blind))
    row = ladder.measured(torch.from_numpy(outputs), torch.from_numpy(targets), torch.Generator())
    assert row.value == pytest.approx(q_of(outputs, targets))
    assert row.nulls[0].draws == pytest.approx([q_of(outputs, each) for each in others])
    assert row.nulls[1].draws == pytest.approx([q_of(each, targets) for each in blind])
    assert (row.predicted, row.side, row.n) == (1.0, ">=", 192)


def test_draws_permute_targets_uniformly_among_the_contexts():
    """Each target of a token and position stays at its place in one of sixteen draws."""
    targets = torch.rand(64, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draws = ladder.permuted(targets, 400, torch.Generator().manual_seed(1))
    stays = (draws == targets).double().mean((0, 1))
    assert stays.tolist() == pytest.approx([1 / 16] * 3, abs=0.006)


def test_a_function_of_token_and_position_is_the_median_of_half_of_the_contexts():
    targets = torch.zeros(64, 3, dtype=torch.float64)
    targets[:16] = torch.arange(16.0, dtype=torch.float64)[:, None] ** 2  # first token 0, all contexts
    draws = ladder.context_free(targets, 500, torch.Generator().manual_seed(1))[:, 0, 0].numpy()
    rng, squares = np.random.default_rng(0), np.arange(16.0) ** 2
    law = np.array([np.median(rng.permutation(squares)[:8]) for _ in range(4000)])
    assert draws.mean() == pytest.approx(law.mean(), abs=4 * law.std() / 500**0.5)
    assert draws.std() == pytest.approx(law.std(), rel=0.15)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_inputs_are_equal_up_to_a_share_of_the_largest_entry_of_all(size: float):
    """The largest in size is negative; rounding is to 1e-4 of it."""
    x = size * torch.tensor([[-1.0, 0.5], [-1.0, 0.50001], [-1.0, 0.502], [0.1, 0.5], [0.10001, 0.5]])
    assert same_inputs(x).tolist() == [0, 0, 1, 2, 2]
    assert len(same_inputs(torch.zeros(3, 2)).unique()) == 1


def test_the_error_of_an_exact_network_is_zero_for_every_norm():
    network = universal.UniversalApproximator(lambda x: torch.zeros_like(x), n=2, d=1, delta=0.5).fit()
    assert [network.error(p, samples=50) for p in (1, 2, 7.5, np.inf)] == [0.0] * 4


@pytest.mark.parametrize("entry", [-1, 3])
def test_one_entry_outside_of_the_grid_is_refused(entry: int):
    mapping = universal.ContextualMapping(1, 2, Fraction(1, 3))
    with pytest.raises(ValueError, match=re.escape("integers in [0, 3)")):
        mapping.embed([[2], [entry]])


def test_the_control_of_the_global_factor_has_the_factor_of_theorem_2():
    """k^((n + 1) d) for the size that a seed draws; each of the four sizes has another one."""
    factors = {k ** ((n + 1) * d) for k, d, n in ((5, 1, 3), (2, 1, 4), (2, 1, 5), (3, 1, 5))}
    assert factors == {625, 32, 64, 729}
    seen = {
        codes.global_factor.function(torch.Generator().manual_seed(seed), of_theorem_2=True).detail["factor"]
        for seed in range(12)
    }
    assert seen == factors


@each_case(("k", "d", "n"), [(3, 1, 2), (2, 2, 2), (4, 1, 3), (3, 2, 2)])
def test_the_control_of_the_sizes_counts_the_leading_order_of_value_layers(k, d, n, monkeypatch):
    """n k^(dn) / n! layers in place of n C(k^d, n); everything else is as the theorem counts it."""
    monkeypatch.setattr(networks, "SIZES", ((k, d, n),))
    found = networks.size.function(torch.Generator().manual_seed(0), quotient=True)
    layers = n * math.comb(k**d, n)
    counted = {"quantise": d * k, "attention": k**d + 1, "value": layers}
    assert {name: found.detail[name] for name in counted} == counted
    assert found.value == pytest.approx(n * k ** (d * n) / math.factorial(n) - layers)
    assert networks.size.function(torch.Generator().manual_seed(0)).value == 0


def causal(fingerprints: list[list[float]], outputs: list[float], group: list[int]) -> bool:
    """Whether tokens with these two fingerprints, outputs and inputs are seen as those of a causal block."""
    metric = universal.Contexts()
    metric.sums[0, 0] = torch.tensor(outputs)[:, None]
    metric.finite, metric.group = torch.ones(len(group)).bool(), torch.tensor(group)
    return metric._causal(torch.tensor(fingerprints, dtype=torch.float64))


@pytest.mark.parametrize("sign", [1, -1])
def test_sequences_are_equal_up_to_a_billionth_of_the_largest_fingerprint(sign: int):
    """The block is causal, but of equal sequences nothing can be said. The fingerprints are numbers between
    whose billionths there is the difference.
    """
    difference = 4_503_600 * 2.0**-52
    large = difference * 1e9
    while 1e-9 * large < difference:
        large = np.nextafter(large, 2)
    small = large - difference
    assert large - small == difference > 1e-9 * small
    prefixes, outputs, group = [1.0, 2.0, 1.0, 3.0], [0.5, 1.0, 0.5, 2.0], [0, 1, 0, 2]
    for other, expected in ((small, False), (np.nextafter(small, 0), True)):
        whole = [sign * each for each in (large, large, other, other)]
        assert causal(list(zip(whole, prefixes)), outputs, group) == expected


@pytest.mark.parametrize(
    ("step", "outputs", "expected"),
    [
        (1e-10, [0.5, 1.0, 0.5, 2.0], True),
        (3e-8, [0.5, 1.0, 0.5, 2.0], False),  # no prefix occurs twice
        (1e-10, [0.5, 1.0, 0.7, 2.0], False),  # the outputs know what follows
    ],
)
def test_prefixes_are_equal_up_to_a_billionth_of_the_largest_one(step, outputs, expected: bool):
    prefixes = [1e-6, -7.0, 1e-6 + step, 1e-3]
    assert causal(list(zip([1.0, 1.0, 2.0, 2.0], prefixes)), outputs, [0, 1, 0, 2]) == expected


def test_a_prefix_and_an_input_make_a_pair():
    """Three prefixes, two inputs: the third prefix of the first input is not the first one of the second."""
    pairs = [(0, 2), (0, 2), (1, 0), (1, 0), (0, 1), (1, 1)]
    prefixes = [1.0 + number for _, number in pairs]
    outputs = [0.5, 0.5, 3.0, 3.0, 1.0, 2.0]
    whole = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]
    assert causal(list(zip(whole, prefixes)), outputs, [group for group, _ in pairs])
