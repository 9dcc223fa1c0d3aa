"""Margins in bits and close calls of attention against a loop over bfloat16 numbers, their null, and the
responses.
"""

import math

import pytest
import torch
from torch import nn

from transformer_theory.core.metric import Activations
from transformer_theory.models import ViT, build
from transformer_theory.probes.respond import responses
from transformer_theory.theories.turing import THEORY, Margins
from transformer_theory.theories.turing.in_networks import (
    CLOSE,
    MARGIN,
    close_calls,
    gaussian_tops,
    margin_bits,
    permuted,
    repeated,
    resolution,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def attention(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None = None) -> Activations:
    tokens = torch.zeros(query.shape[0], query.shape[2], 3)
    return Activations(
        "attention", 0, "attention", tokens, tokens, query=query, key=key, value=key, mask=mask
    )


def measured(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None = None,
    draws: int = 0,
    quantity: str = CLOSE,
):
    metric = Margins()
    metric.update(attention(query, key, mask))
    rows = metric.compute(draws=draws)
    return [row for row in rows if row.quantity == quantity] or rows


def test_the_resolution_is_the_distance_of_bfloat16_numbers():
    scores = torch.randn(500, generator=generator()) * 10
    rounded = scores.bfloat16()
    toward = torch.nextafter(rounded.abs(), torch.full_like(rounded, math.inf)) - rounded.abs()
    # a score that is rounded up to a power of two has another one
    inside = rounded.abs().frexp().exponent == scores.frexp().exponent
    assert torch.equal(resolution(scores)[inside], toward.float()[inside])
    assert int(inside.sum()) > 490
    assert float(resolution(torch.zeros(1))) == 0


def test_close_calls_are_counted_one_by_one():
    g = generator(1)
    query, key = torch.randn(3, 2, 5, 4, generator=g), torch.randn(3, 2, 6, 4, generator=g)
    key[:, :, 5] = key[:, :, 4] * (1 + 1e-3)  # two keys that differ by less than a bfloat16 number
    rows = measured(query, key)
    for head, row in enumerate(rows):
        count = 0
        for b in range(3):
            for q in range(5):
                first, second = sorted((float(query[b, head, q] @ k) for k in key[b, head]), reverse=True)[:2]
                count += first - second < 2.0 ** (math.floor(math.log2(max(abs(first), abs(second)))) - 7)
        assert row.value == pytest.approx(count / 15)
    assert any(row.value > 0 for row in rows)


def test_equal_scores_are_close_and_distant_ones_are_not():
    assert close_calls(
        torch.tensor([[0.0, 0.0], [5.0, 5.0], [5.0, 4.9], [5.0, 4.99], [0.001, -5.0]])
    ).tolist() == [
        True,
        True,
        False,
        True,
        False,
    ]


def test_margin_bits_are_those_that_the_scores_can_lose():
    """Neighbours of 5 in bfloat16 are 1/32 apart, those of 100 are 1/2, those of 1 are 1/128."""
    pairs = [(5.0, 4.0), (5.0, 4.99), (-1.0, -100.0), (1.0, -1.0), (0.0, 0.0), (2.0, 2.0), (3.0, 0.0)]
    expected = [5.0, 0.0, math.log2(99 / 0.5), 8.0, 0.0, 0.0, math.log2(3 * 64)]
    assert margin_bits(torch.tensor(pairs)).tolist() == pytest.approx(expected)
    # a common power of two changes nothing, and no pair has more than nine
    scores = torch.randn(500, 2, generator=generator(3)).sort(descending=True).values
    assert torch.equal(margin_bits(scores * 1024), margin_bits(scores))
    assert float(margin_bits(torch.tensor([[1.999, -1.999]]))) == pytest.approx(9, abs=1e-2)
    assert bool(((margin_bits(scores) == 0) >= close_calls(scores)).all())


def test_the_margin_bits_of_a_head_are_their_mean_over_the_queries():
    g = generator(1)
    query, key = torch.randn(3, 2, 5, 4, generator=g), torch.randn(3, 2, 6, 4, generator=g)
    key[:, 1, 5] = key[:, 1, 4] * (1 + 1e-3)  # close in the second head
    means = []
    for head, row in enumerate(measured(query, key, quantity=MARGIN)):
        total = 0.0
        for b in range(3):
            for q in range(5):
                first, second = sorted((float(query[b, head, q] @ k) for k in key[b, head]), reverse=True)[:2]
                unit = 2.0 ** (math.floor(math.log2(max(abs(first), abs(second)))) - 7)
                total += max(0.0, math.log2((first - second) / unit))
        assert row.value == pytest.approx(total / 15, rel=1e-4)
        assert (row.side, row.bounds) == (">=", (0.0, 9.0))
        means.append(row.value)
    assert means[1] < means[0] - 0.3


def test_masked_keys_do_not_count():
    query, key = torch.ones(1, 1, 3, 1), torch.tensor([1.0, 3.0, 3.0]).view(1, 1, 3, 1)
    (row,) = measured(query, key)
    assert row.value == 1
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    # the first query has one key; of the others, the last has a tie
    (row,) = measured(query, key, causal[None, None])
    assert row.value == 0.5
    (row,) = measured(query[:, :, :1], key[:, :, :1])
    assert row.value is None
    assert "two allowed keys" in row.reason


def test_the_null_is_that_of_gaussian_scores():
    g = generator(2)
    query = torch.ones(400, 1, 8, 1)
    key = torch.randn(400, 1, 8, 1, generator=g)
    (row,) = measured(query, key, draws=19)
    assert len(row.null.draws) == 19
    assert row.null.low <= row.value <= row.null.high
    assert row.value > 0.002
    spread = measured(query, torch.cat([key[:, :, :6], key[:, :, 6:7], key[:, :, 6:7]], 2), draws=19)[0]
    assert spread.value > spread.null.high


def test_the_table_holds_the_two_largest():
    tops = gaussian_tops(5)
    assert bool((tops[:, :, 0, 1] == -math.inf).all())
    assert bool((tops[:, :, 1:, 0] >= tops[:, :, 1:, 1]).all())
    assert float(tops[:, :, 4, 0].mean()) == pytest.approx(1.163, abs=0.05)  # expected largest of five
    assert float(tops[:, :, 4, 1].mean()) == pytest.approx(0.495, abs=0.05)


class Bag(nn.Module):
    """Attention without positions over tokens of any number, and its mean."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, tokens):
        return self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1)


def test_responses_are_zero_without_positions_only():
    data = torch.randn(8, 6, 4, generator=generator())
    vit = build(lambda: ViT.for_tokens(6, 4, 3, dim=8, depth=1, heads=2), generator())
    bag = build(Bag, generator())
    found = {}
    for name, model, limits in (
        ("bag", bag, {"length": 12}),
        ("short bag", bag, {"length": 6}),
        ("vit", vit, {"length": 6}),
    ):
        rows = responses(model, THEORY, data, limits=limits, generator=generator(3), name=name)
        assert [row.setting for row in rows] == ["permuted tokens", "repeated sequence"]
        assert all(row.null.kind == "another sequence" and row.null.draws[0] > 0.1 for row in rows)
        found[name] = [row.value for row in rows]
    assert max(*found["bag"], *found["short bag"]) < 1e-5
    assert min(found["vit"]) > 1e-4


def test_the_channels_of_images_are_not_taken_for_tokens():
    images = torch.randn(4, 3, 8, 8, generator=generator())
    for make in (permuted, repeated):
        with pytest.raises(ValueError, match=r"order cannot be changed; got inputs \[4, 3, 8, 8\]"):
            make(images, {}, generator())


def test_synthetic_inputs_have_the_same_proportions():
    data = torch.arange(14).view(2, 7)
    parts = repeated(data, {"length": 7}, generator())
    assert parts["value"].tolist()[0] == [0, 1, 2, 0, 1, 2, 6]
    assert parts["reference"].tolist()[0] == [0, 0, 1, 1, 2, 2, 6]
    # networks of ids have an output per position
    assert repeated(data, {"length": 14}, generator())["value"].shape == (2, 7)
    assert repeated(data[..., None].double(), {"length": 14}, generator())["value"].shape == (2, 14, 1)
    assert sorted(permuted(data, {}, generator())["value"][0].tolist()) == list(range(7))
