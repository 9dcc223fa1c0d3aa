"""Interventions: their parts, and sets and orders of keys by hand."""

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.core.intervention import (
    Attended,
    Control,
    Intervention,
    at_random,
    in_every_row,
    largest,
    largest_mass,
    moved_at_random,
    normalised,
    random_order,
    taken_at_random,
)
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.sources import Source
from transformer_theory.theories import theory

SOURCE = Source("tian2023scan", status="own")


def attended(weights, mask=None) -> Attended:
    weights = torch.as_tensor(weights, dtype=torch.float32)
    weights = weights.reshape(1, 1, *weights.shape)
    mask = torch.ones_like(weights, dtype=torch.bool) if mask is None else torch.as_tensor(mask)[None, None]
    q, k = weights.shape[-2:]
    vectors = torch.zeros(1, 1, q, 2), torch.zeros(1, 1, k, 2), torch.zeros(1, 1, k, 2)
    return Attended(0, 0, 1, *vectors, weights, 1.0, mask, torch.Generator().manual_seed(0))


def test_the_fewest_keys_with_a_share_of_the_weight():
    weights = torch.tensor([[0.5, 0.1, 0.4], [0.05, 0.9, 0.05], [0.0, 0.0, 0.0]])
    assert largest_mass(weights, 0.89).tolist() == [[True, False, True], [False, True, False], [False] * 3]
    assert largest_mass(weights, 1.0)[0].tolist() == [True] * 3


def test_rows_are_divided_by_their_sums():
    assert_close(normalised(torch.tensor([[1.0, 3.0], [0.0, 0.0]])), torch.tensor([[0.25, 0.75], [0.0, 0.0]]))


def test_random_keys_are_allowed_ones_and_as_many_as_asked_for():
    mask = [[True, True, False, True]] * 500
    at = attended(torch.zeros(500, 4), mask)
    drawn = at_random(at, torch.full((1, 1, 500), 2))[0, 0]
    assert drawn.sum(1).tolist() == [2] * 500
    assert not drawn[:, 2].any()
    # each of the three allowed keys in two thirds of the draws
    assert_close(drawn[:, [0, 1, 3]].double().mean(0), torch.full((3,), 2 / 3).double(), atol=0.07, rtol=0)
    assert at_random(at, torch.full((1, 1, 500), 9)).sum() == 1500


def test_allowed_keys_come_first_in_a_random_order():
    mask = [[False, True, True, False]] * 50
    order = random_order(attended(torch.zeros(50, 4), mask))[0, 0]
    assert {tuple(sorted(row[:2])) for row in order.tolist()} == {(1, 2)}
    assert {tuple(row[:2]) for row in order.tolist()} == {(1, 2), (2, 1)}


@each_case("keys", [1, 2, 3, 17, 300, 5000])
@each_case("dtype", [torch.float32, torch.float64])
def test_the_largest_weights_are_those_of_a_stable_order(keys, dtype):
    generator = torch.Generator().manual_seed(keys)
    weights = torch.rand(2, 2, 5, keys, generator=generator, dtype=dtype)
    weights *= torch.rand(weights.shape, generator=generator) < 0.7
    if keys < 300:
        weights = (weights * 8).round() / 8  # equal ones
    counts = torch.randint(0, keys + 1, weights.shape[:-1], generator=generator)
    rank = weights.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    assert torch.equal(largest(weights, counts), rank < counts[..., None])
    values, order = weights.sort(dim=-1, descending=True, stable=True)
    keep = (values.cumsum(-1) - values < 0.9 * weights.sum(-1, keepdim=True)) & (values > 0)
    assert torch.equal(largest_mass(weights, 0.9), torch.zeros_like(keep).scatter(-1, order, keep))


@each_case("keys", [1, 4, 257, 2500])  # the order of more than 2048 keys needs 64 bits
def test_an_order_has_every_key_once_and_all_are_equally_likely(keys):
    at = attended(torch.zeros(100, keys), [[True] * keys] * 100)
    order = random_order(at)[0, 0]
    assert torch.equal(order.sort(1).values, torch.arange(keys).expand(100, keys))
    middle = (keys - 1) / 2
    error = ((keys**2 - 1) / 12 / 100) ** 0.5  # of the mean of 100 uniform keys
    assert float((order.double().mean(0) - middle).abs().max()) <= 4.5 * error
    new = in_every_row(at, torch.arange(keys).float().expand(1, 1, 100, keys))
    assert torch.equal(new[0, 0].sort(1).values, torch.arange(keys).float().expand(100, keys))
    assert keys == 1 or len({tuple(row) for row in new[0, 0].tolist()}) > 15


def test_weights_are_permuted_among_the_allowed_keys_of_their_row():
    mask = [[False, True, True, True]] * 60
    at = attended([[0.0, 0.5, 0.3, 0.2]] * 60, mask)
    new = in_every_row(at, at.weights)[0, 0]
    assert not new[:, 0].any()
    assert_close(new.sort(1).values, at.weights[0, 0].sort(1).values)
    assert len({tuple(row) for row in new.tolist()}) == 6


def test_weight_is_taken_from_keys_in_a_random_order():
    """Of .9 in three keys, .6 is taken: two keys give all or a part of theirs, in each of the orders."""
    mask = [[False, True, True, True]] * 90
    at = attended([[0.1, 0.4, 0.3, 0.2]] * 90, mask)
    found = {
        tuple(round(x, 4) for x in row)
        for row in taken_at_random(at, torch.full((1, 1, 90, 1), 0.6))[0, 0].tolist()
    }
    # of the six orders two pairs give the same
    by_hand = {(0.0, 0.4, 0.2, 0.0), (0.0, 0.3, 0.3, 0.0), (0.0, 0.4, 0.0, 0.2), (0.0, 0.1, 0.3, 0.2)}
    assert found == by_hand
    # none gives more than it has
    every = taken_at_random(at, torch.full((1, 1, 90, 1), 2.0))[0, 0]
    assert_close(every, torch.tensor([0.0, 0.4, 0.3, 0.2]).expand(90, 4))
    assert not taken_at_random(at, torch.zeros(1, 1, 90, 1)).any()


def test_scores_are_those_of_the_softmax():
    scores = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    found = attended(weights, mask).scores[0, 0]
    assert found[1, 2] == -torch.inf
    assert_close(found[0] - found[0, 0], scores[0] - scores[0, 0])
    assert_close(found[1, 1] - found[1, 0], torch.tensor(-3.0))


def test_an_intervention_needs_a_control_that_draws_something():
    def change(at):
        return at

    with pytest.raises(ValueError, match="no comma and no slash, got 'one, two'"):
        Intervention("one, two", change, "kept", (Control("other", change),), SOURCE)
    with pytest.raises(ValueError, match="alone must have a control, got none"):
        Intervention("alone", change, "kept", (), SOURCE)
    with pytest.raises(ValueError, match="the control 'other heads' of bare must have a change"):
        Intervention("bare", change, "kept", (Control("other heads"),), SOURCE)


def test_a_theory_names_each_of_its_interventions_once():
    from dataclasses import replace

    scan = theory("scan_snap")
    assert f"{len(scan.interventions)} interventions" in scan.parts
    with pytest.raises(ValueError, match="different names"):
        replace(scan, interventions=scan.interventions * 2)


def test_the_kind_of_their_rows():
    row = Measurement("scan_snap", "intervention", "keys", -0.1)
    assert Measurement.from_json(row.to_json()) == row
    assert row.scope == "these data"


def test_vectors_are_moved_as_far_in_random_directions():
    x, steps = torch.ones(40, 3, 5), torch.arange(40 * 15.0).reshape(40, 3, 5)
    moved = moved_at_random(x, steps, torch.Generator().manual_seed(0))
    assert_close((moved - x).norm(dim=-1), steps.norm(dim=-1))
    cosines = torch.cosine_similarity(moved - x, steps, dim=-1)
    assert cosines.abs().mean() < 0.5
    assert cosines.abs().max() < 0.999
    again, other = (moved_at_random(x, steps, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert torch.equal(moved, again)
    assert not torch.equal(moved, other)
