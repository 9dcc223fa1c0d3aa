"""Two networks on the same inputs: differences, intervals and p-values against those computed by hand on each
group, and pairs of networks that differ by nothing.
"""

import copy
import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import t
from torch import nn

from transformer_theory.core.judgement import judge_differences
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.statistics import EXCHANGED, exchanged_networks, pseudo_values
from transformer_theory.models import ViT, build
from transformer_theory.probes.paired import (
    AGAINST,
    OVER_PAIRED_INPUTS,
    SUBTRACTED,
    compared,
    differences,
    other_places,
)
from transformer_theory.theories import choose

LAYERS, HEADS, DIM, TOKENS = 2, 2, 8, 6


class Layers(nn.Module):
    """Attention without anything else, whose weights a few lines compute by hand."""

    def __init__(self, layers: int = LAYERS, heads: int = HEADS):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(DIM, heads, batch_first=True, bias=False) for _ in range(layers)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x, x, x)[0]
        return x


def network(seed: int, **sizes: int) -> Layers:
    return build(lambda: Layers(**sizes), torch.Generator().manual_seed(seed)).eval()


def tokens(n: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, TOKENS, DIM, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def sharpness_by_hand(model: Layers, x: torch.Tensor) -> np.ndarray:
    """1 - entropy / log T of each sequence, averaged over queries, ``[n, layers, heads]``."""
    found = []
    for layer in model.layers:
        weight = layer.in_proj_weight
        query, key = (
            (x @ part.T).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in (weight[:DIM], weight[DIM : 2 * DIM])
        )
        attention = (query @ key.transpose(-1, -2) / math.sqrt(DIM // HEADS)).softmax(-1).double()
        entropy = -(attention * attention.log()).sum(-1)
        found.append(1 - entropy.mean(-1) / math.log(TOKENS))
        x = x + layer(x, x, x)[0]
    return torch.stack(found, 1).numpy()


def rows_of(first: Layers, second: Layers, x: torch.Tensor, *names: str, batch: int = 3) -> list[Measurement]:
    return differences(
        first,
        second,
        x,
        None,
        choose(names or ("scan_snap",)),
        name="after",
        against="before",
        batch_size=batch,
    )


def the(rows: list[Measurement], quantity: str = "sharpness", **columns) -> Measurement:
    columns = {"layer": None, "head": None, "at": {AGAINST: "before"}} | columns
    (row,) = (
        row
        for row in rows
        if row.quantity == quantity and all(getattr(row, name) == value for name, value in columns.items())
    )
    return row


def test_differences_are_those_of_values_by_hand_on_each_group():
    first, second, x = network(0), network(1), tokens(19)
    rows = rows_of(first, second, x)
    by_hand = [sharpness_by_hand(each, x) for each in (first, second)]
    groups = np.arange(19) % 8

    def difference(kept: np.ndarray) -> np.ndarray:
        return by_hand[0][kept].mean(0) - by_hand[1][kept].mean(0)

    whole = difference(groups >= 0)
    without = np.array([difference(groups != group) for group in range(8)])
    for layer, head in [*itertools.product(range(LAYERS), range(HEADS)), (None, None)]:
        if layer is None:
            value, values = whole.mean(), without.mean((1, 2))
            subtracted = by_hand[1].mean()
        else:
            value, values = whole[layer, head], without[:, layer, head]
            subtracted = by_hand[1][:, layer, head].mean()
        row = the(rows, layer=layer, head=head)
        assert row.value == pytest.approx(value, rel=1e-4)
        half = float(t.ppf(0.975, 7)) * math.sqrt(7 / 8 * ((values - values.mean()) ** 2).sum())
        assert row.interval == pytest.approx((value - half, value + half), rel=1e-3, abs=1e-6)
        assert (row.interval_kind, row.model, row.bounds) == (OVER_PAIRED_INPUTS, "after", (-1.0, 1.0))
        other = the(rows, layer=layer, head=head, at={SUBTRACTED: "before"})
        assert other.value == pytest.approx(subtracted, rel=1e-5)
        # the null by brute force: the mean of the pseudo-values under every pattern of signs but the own
        pseudo = value + 7 * (values.mean() - values)
        patterns = [signs for signs in itertools.product((1, -1), repeat=8) if -1 in signs]
        draws = [sum(s * v for s, v in zip(signs, pseudo)) / 8 for signs in patterns]
        (null,) = row.nulls
        assert null.kind == EXCHANGED
        assert null.draws == pytest.approx(draws, rel=1e-3, abs=1e-6)
        assert pseudo.mean() == pytest.approx(value)  # what is shown is what is tested
        exact = np.mean([abs(draw) >= abs(value) - 1e-9 for draw in [*draws, value]])
        (judged,) = judge_differences([row])
        assert judged.q == pytest.approx(exact)
        assert judged.outcome == ("differs" if exact <= 0.05 else "not significant")


def test_pseudo_values_of_a_mean_are_the_means_of_the_groups():
    groups = np.array([1.0, 5.0, 3.0, 7.0])
    without = [(groups.sum() - one) / 3 for one in groups]
    assert pseudo_values(float(groups.mean()), without) == pytest.approx(groups)
    # of another statistic they have its value as their mean, not the one that is corrected for bias
    assert pseudo_values(5.0, without) == pytest.approx(groups + 1)
    null = exchanged_networks([1.0, 2.0, 4.0])
    assert sorted(null.draws) == pytest.approx(sorted([-7 / 3, -5 / 3, -1, -1 / 3, 1 / 3, 1, 5 / 3]))
    assert null.value is None  # that of the row


def difference(
    *pseudo: float, quantity: str = "q", interval: tuple[float, float] = (0.1, 9.0)
) -> Measurement:
    columns = {"nulls": (exchanged_networks(pseudo),), "at": {AGAINST: "before"}, "interval": interval}
    return Measurement("scan_snap", "in network", quantity, sum(pseudo) / len(pseudo), **columns)


def test_the_family_is_adjusted_by_its_largest_standardised_difference():
    """Enumerated here: both tests are divided by the root mean square of their pseudo-values."""
    one = (3.0, 3.2, 2.9, 3.1, 3.0, 2.8, 3.3, 3.0)
    two = (1.0, -0.5, 0.7, 1.1, 0.2, -0.1, 0.9, 0.4)
    alone = judge_differences([difference(*one)])[0].q
    assert alone == pytest.approx(2 / 256)
    signs = np.array([*itertools.product((1, -1), repeat=8)])
    scaled = np.stack(
        [np.abs(signs @ each) / np.linalg.norm(each) for each in (np.array(one), np.array(two))]
    )
    largest = scaled.max(0)
    expected = [np.mean(largest >= scaled[0, 0] - 1e-9), np.mean(scaled[1] >= scaled[1, 0] - 1e-9)]
    judged = judge_differences([difference(*one), difference(*two, quantity="r")])
    assert [each.q for each in judged] == pytest.approx([expected[0], max(expected)])
    assert [each.outcome for each in judged] == ["differs", "not significant"]


def test_outcomes_without_a_test():
    columns = {"quantity": "q", "at": {AGAINST: "before"}}
    equal = Measurement("scan_snap", "in network", value=0.0, **columns)
    missing = Measurement("scan_snap", "in network", value=None, reason="no labels", **columns)
    other = Measurement("scan_snap", "in network", value=0.3, **columns)
    few = difference(1.0, 1.1, 0.9, 1.0, 1.2)  # five groups give p-values down to 1/16
    enough = difference(1.0, 1.1, 0.9, 1.0, 1.2, 0.8)
    judged = judge_differences([equal, missing, other, few, enough])
    assert [each.outcome for each in judged] == [
        "no difference",
        "not measured",
        "not tested",
        "too few draws",
        "differs",
    ]
    assert [each.q for each in judged] == [None, None, None, None, pytest.approx(2 / 64)]
    (within,) = judge_differences([difference(1.0, 1.1, 0.9, 1.0, 1.2, 0.8, interval=(-0.1, 2.1))])
    assert (within.outcome, within.q) == ("not significant", pytest.approx(2 / 64))


def test_a_network_against_itself_differs_nowhere():
    sizes = {"image_size": 8, "patch_size": 2, "num_classes": 3, "dim": 16, "depth": 2, "heads": 2}
    model = build(lambda: ViT.for_images(**sizes), torch.Generator().manual_seed(0)).eval()
    images = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    rows = differences(
        model,
        copy.deepcopy(model),
        images,
        torch.arange(16) % 3,
        choose(None),
        name="net",
        against="copy",
        batch_size=4,
    )
    found = [row for row in rows if AGAINST in row.at and row.value is not None]
    assert len(found) > 100
    assert {row.value for row in found} == {0.0}
    assert not any(row.nulls for row in found)
    assert {each.outcome for each in judge_differences(found)} == {"no difference"}


def test_a_change_of_one_layer_leaves_the_layers_before_without_a_difference():
    first = network(0)
    second = copy.deepcopy(first)
    with torch.no_grad():
        second.layers[1].in_proj_weight[:DIM] *= 3
    rows = rows_of(first, second, tokens(24))
    for head in range(HEADS):
        assert the(rows, layer=0, head=head).value == 0
        changed = the(rows, layer=1, head=head)
        assert changed.value < -0.05  # larger queries are sharper, and theirs is subtracted
        assert judge_differences([changed])[0].outcome == "differs"


def test_networks_of_other_depth_or_width_are_compared_by_their_headlines():
    rows = rows_of(network(0), network(1, layers=3), tokens(16))
    assert the(rows).value is not None
    assert not any(row.layer is not None for row in rows)
    (left_out,) = (row for row in rows if row.value is None)
    assert left_out.reason == (
        "after has 2 layers of 2 heads, before has 3 layers of 2 heads: layers and heads are left out, only "
        "quantities of the whole networks are compared"
    )
    other = [row for row in rows_of(network(0), network(1, heads=4), tokens(16)) if row.value is None]
    assert "2 layers of 2 heads, before has 2 layers of 4 heads" in other[0].reason
    assert other_places([], [], "a", "b") == ""


def test_a_quantity_of_one_network_alone_is_not_compared():
    def row(value: float, quantity: str = "q") -> Measurement:
        return Measurement("scan_snap", "in network", quantity, value, layer=0)

    first = [row(1.0), row(2.0, "r")], [[row(1.5), row(2.0, "r")], [row(0.5), row(1.0, "r")]]
    second = [row(3.0), row(2.0, "r")], [[row(3.5)], [row(2.0), row(1.0, "r")]]
    one, subtracted = compared(first, second, name="a", against="b", tested={"scan_snap": "r"})
    assert (one.quantity, one.value, subtracted.value) == ("q", -2.0, 3.0)
    assert not one.nulls  # no headline
    assert [each.outcome for each in judge_differences([one])] == ["not tested"]


def test_one_sequence_gives_a_reason():
    rows = rows_of(network(0), network(1), tokens(1))
    assert [row.reason for row in rows] == [
        "a difference that is paired over inputs needs at least two sequences"
    ]


def test_networks_that_differ_by_chance_alone_are_told_apart_at_the_level():
    """Families of ten correlated quantities, means and mean sizes of 24 inputs with heavy tails, in two
    networks of one law; then with one quantity that differs.
    """
    generator = np.random.default_rng(0)

    def family(shift: float) -> list[Measurement]:
        common = generator.standard_t(4, size=(24, 5))
        values = [common + generator.standard_t(4, size=(24, 5)) for _ in range(2)]
        values[0][:, 0] += shift
        groups = np.arange(24) % 8

        def statistics(kept: np.ndarray) -> np.ndarray:
            first, second = (np.r_[each[kept].mean(0), np.abs(each[kept]).mean(0)] for each in values)
            return first - second

        whole, without = statistics(groups >= 0), [statistics(groups != group) for group in range(8)]

        def rows(numbers: np.ndarray) -> list[Measurement]:
            return [
                Measurement("scan_snap", "in network", f"q{index}", float(number), layer=0)
                for index, number in enumerate(numbers)
            ]

        zeros = rows(np.zeros(10))  # the values that are subtracted: the rows hold differences already
        own = rows(whole), [rows(each) for each in without]
        found = compared(own, (zeros, [zeros] * 8), name="a", against="b", tested={})
        nulls = [
            exchanged_networks(pseudo_values(float(value), [float(each[number]) for each in without]))
            for number, value in enumerate(whole)
        ]
        differing = [row for row in found if AGAINST in row.at]
        return [dataclasses.replace(row, nulls=(null,)) for row, null in zip(differing, nulls)]

    found = {
        shift: [
            [each.outcome == "differs" for each in judge_differences(family(shift))] for _ in range(count)
        ]
        for shift, count in ((0.0, 300), (3.0, 60))
    }
    assert np.mean([any(each) for each in found[0.0]]) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 300)
    assert np.mean([each[0] for each in found[3.0]]) > 0.9
