"""What heads hold on to, measured in networks: gaps, doubled keys, sinks, and tests on made inputs."""

import dataclasses
import math

import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.metric import Activations
from transformer_theory.models.decoder import Decoder
from transformer_theory.models.vit import ViT
from transformer_theory.probes import probe
from transformer_theory.probes.respond import responses
from transformer_theory.theories import length
from transformer_theory.theories.length.in_networks import (
    GAP,
    HALVED,
    KEPT,
    PREDICTED,
    doubled_weights,
    random_queries,
)
from transformer_theory.theories.length.responses import (
    CHANGE,
    DOUBLED,
    SINK_NORM,
    joined_halves,
    one_exchanged,
)

METRICS = (length.ScoreGaps, length.KeptShare, length.SinkValue)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def attention(
    scores: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    value: torch.Tensor | None = None,
    layer: int = 0,
    **columns,
) -> Activations:
    """Activations of a module whose queries and keys reproduce the scores [n, heads, q, k], if none are
    given.
    """
    n, heads, _, k = scores.shape
    weights = (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1)
    tokens = torch.randn(n, k, 3, generator=generator(9))
    value = torch.randn(n, heads, k, 2, generator=generator(8)) if value is None else value
    columns = {"query": scores, "key": torch.eye(k).expand(n, heads, k, k), **columns}
    return Activations(
        "attention", layer, "attention", tokens, tokens, weights=weights, value=value, mask=mask, **columns
    )


def head(n: int = 12, k: int = 9, heads: int = 2, seed: int = 0, scale: float = 0.25) -> Activations:
    """A head with random queries and keys."""
    query, key = torch.randn(2, n, heads, k, 4, generator=generator(seed))
    return attention(scale * query @ key.mT, query=query, key=key)


def rows_of(metric, *activations: Activations, draws: int = 0) -> list:
    metric = metric()
    for each in activations:
        metric.update(each)
    return list(metric.compute(draws=draws))


def test_the_gap_is_that_of_the_scores():
    scores = 2 * torch.randn(5, 2, 9, 9, generator=generator())
    rows = rows_of(length.ScoreGaps, attention(scores))
    expected = length.score_gap(scores.double()).mean((0, 2)) / math.log(8)
    assert [row.value for row in rows if row.quantity == GAP] == pytest.approx(expected.tolist(), rel=1e-5)


def test_the_first_query_counts_as_often_as_any_other():
    """One sharp first query among 64, the others uniform: the mean gap is a 64th of its gap, not a 16th."""
    n, T = 32, 64
    weights = torch.full((n, 1, T, T), 1 / T)
    weights[:, :, 0] = 0.1 / (T - 1)
    weights[:, :, 0, 5] = 0.9
    [value] = [
        row.value for row in rows_of(length.ScoreGaps, attention(weights.log())) if row.quantity == GAP
    ]
    sharp = math.log(0.9 / (0.1 / (T - 1))) / math.log(T - 1)
    share = value / sharp
    assert 0.3 / T < share < 2 / T
    counts = random_queries(4000, T).flatten().bincount(minlength=T)
    assert len(set(random_queries(1, T)[0].tolist())) == 16
    assert float((counts - 1000).abs().max()) < 5 * math.sqrt(4000 * 0.25 * 0.75)


def test_a_causal_mask_counts_allowed_keys():
    mask = torch.ones(8, 8, dtype=torch.bool).tril()[None, None]
    rows = rows_of(length.ScoreGaps, attention(torch.zeros(3, 1, 8, 8), mask=mask))
    assert rows[0].value == pytest.approx(0.0, abs=1e-6)  # equal scores: g = 0 for any number of keys
    assert rows[0].n == 3 * 6  # queries with three keys or more
    scores = 3 * torch.randn(2, 1, 8, 8, generator=generator())
    expected = [
        float(length.score_gap(scores[i, 0, q, : q + 1].double())) / math.log(q)
        for i in range(2)
        for q in range(2, 8)
    ]
    assert rows_of(length.ScoreGaps, attention(scores, mask=mask))[0].value == pytest.approx(
        sum(expected) / 12, rel=1e-5
    )


def test_predictions_at_longer_lengths():
    # One key of weight 1/2 among nine keys: g = log 8.
    scores = torch.zeros(4, 1, 9, 9)
    scores[..., 0] = math.log(8)
    rows = {
        tuple(row.at.values()): row
        for row in rows_of(length.ScoreGaps, attention(scores))
        if row.quantity == PREDICTED
    }
    assert rows[2, "one winner"].value == pytest.approx(8 / 25, rel=1e-5)
    assert rows[16, "one winner"].value == pytest.approx(8 / 151, rel=1e-5)
    assert rows[2, "same source"].value == pytest.approx(1 / 4, rel=1e-5)
    assert rows[16, "same source"].value == pytest.approx(1 / 32, rel=1e-5)
    # queries and keys are not known to be linear
    assert all(row.verdict == "not covered" for row in rows.values())


def test_gaussian_scores_are_inside_their_null_and_a_needle_is_above():
    scores = 2 * torch.randn(64, 1, 16, 16, generator=generator())
    row = rows_of(length.ScoreGaps, attention(scores), draws=99)[0]
    assert row.null.low - 0.01 <= row.value <= row.null.high + 0.01
    scores = 0.1 * torch.randn(64, 1, 16, 16, generator=generator())
    scores[..., 3] += 8
    row = rows_of(length.ScoreGaps, attention(scores), draws=19)[0]
    assert row.value > row.null.high + 0.3


def test_doubled_keys_agree_with_attention_over_both_sequences():
    activations = head(n=4, k=5, heads=1)
    own, other, before, valid = doubled_weights(activations)
    query, key = activations.query, activations.key
    partner = torch.tensor([2, 3, 0, 1])
    both = (0.25 * query @ torch.cat([key, key[partner]], 2).mT).softmax(-1)
    assert bool(valid.all())
    assert torch.allclose(torch.cat([own, other], -1), both, atol=1e-5)
    assert torch.allclose(before, activations.weights.amax(-1))
    kept, halved = rows_of(length.KeptShare, activations)
    assert kept.value == pytest.approx(float(both[..., :5].sum(-1).mean()), rel=1e-5)
    assert halved.value == pytest.approx(
        2 * float(both[..., :5].amax(-1).mean()) / float(before.mean()), rel=1e-5
    )


def test_doubled_keys_of_exchangeable_sequences_are_halved_and_own_contents_keep_more():
    row = rows_of(length.KeptShare, head(n=16, k=40, heads=1), draws=19)[0]
    assert row.value == pytest.approx(0.5, abs=0.03)
    assert row.null.low - 0.01 <= row.value <= row.null.high + 0.01
    # Queries that look for their own sequence keep nearly everything.
    mark = 3 * torch.randn(16, 1, 1, 4, generator=generator())
    key = mark + 0.1 * torch.randn(16, 1, 40, 4, generator=generator(1))
    query = mark.expand(16, 1, 40, 4)
    row = rows_of(length.KeptShare, attention(query @ key.mT, query=query, key=key), draws=19)[0]
    assert row.value > 0.9
    assert row.value > row.null.high + 0.1


def test_doubled_keys_respect_masks():
    mask = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    query, key = torch.randn(2, 8, 1, 6, 4, generator=generator())
    activations = attention(0.5 * query @ key.mT, query=query, key=key, mask=mask)
    own, other, *_ = doubled_weights(activations)
    assert float(torch.cat([own, other], 2).triu(1)[..., :6, :].abs().max()) == 0.0
    assert own[:, :, 0, 0].tolist() != [1.0] * 8
    assert torch.allclose((own + other).sum(-1), torch.ones(8, 1, 6), atol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_halves_merge_to_the_whole(metric: type):
    parts = [head(seed=0), head(seed=1)]
    whole, halves = metric(), [metric(), metric()]
    for part, half in zip(parts, halves):
        whole.update(part)
        half.update(part)
    halves[0].merge(halves[1])
    restored = metric()
    restored.load_state_dict(whole.state_dict())
    found = list(whole.compute(draws=3))
    assert found == list(halves[0].compute(draws=3)) == list(restored.compute(draws=3))
    assert all(row.value is not None for row in found)


def test_half_precision_does_not_move_the_null():
    query, key = 2 * torch.randn(2, 16, 1, 12, 8, generator=generator())
    exact = attention(query @ key.mT / 8**0.5)
    half = dataclasses.replace(exact, weights=exact.weights.half())
    (row, *_), (found, *_) = (rows_of(length.ScoreGaps, each, draws=19) for each in (exact, half))
    assert found.value == pytest.approx(row.value, rel=0.1)
    assert found.null.median == pytest.approx(row.null.median, rel=0.25)


def test_the_weight_of_a_sink_is_shown_beside_uniform_attention_to_the_allowed_keys():
    mask = torch.ones(4, 4, dtype=torch.bool).tril()[None, None]
    (row,) = rows_of(length.SinkValue, attention(torch.zeros(3, 1, 4, 4), mask=mask))
    assert row.note == "key 0 has a mean weight of 0.521, uniform attention 0.521"


def test_a_sink_without_value_has_norm_zero():
    scores = torch.zeros(4, 1, 6, 6)
    scores[..., 2] = 3.0
    value = torch.ones(4, 1, 6, 2)
    value[:, :, 2] = 0.0
    row = rows_of(length.SinkValue, attention(scores, value=value), draws=19)[0]
    assert row.value == 0.0
    assert row.null.draws == pytest.approx((1.2,) * 5)


@each_case(
    ("metric", "activations", "reason"),
    [
        (length.ScoreGaps, attention(torch.zeros(4, 1, 1, 1)), "three allowed keys"),
        (length.ScoreGaps, attention(torch.zeros(4, 1, 2, 2)), "three allowed keys"),
        (length.ScoreGaps, attention(torch.full((4, 1, 5, 5), math.nan)), "finite weights"),
        (length.KeptShare, head(n=1), "batches of one sequence"),
        (length.KeptShare, attention(torch.zeros(4, 1, 5, 5), query=None, key=None), "unknown"),
        (
            length.KeptShare,
            attention(torch.randn(4, 1, 5, 5), query=torch.randn(4, 1, 5, 3), key=torch.randn(4, 1, 5, 3)),
            "a bias",
        ),
        (
            length.KeptShare,
            attention(
                1000 * torch.eye(5).expand(4, 1, 5, 5),
                **dict.fromkeys(("query", "key"), torch.randn(4, 1, 5, 3)),
            ),
            "underflow",
        ),
        (length.SinkValue, attention(torch.zeros(4, 1, 1, 1)), "one key"),
        (length.SinkValue, attention(torch.zeros(4, 1, 5, 5), value=torch.zeros(4, 1, 5, 2)), "zero"),
    ],
)
def test_inputs_that_do_not_fit_give_one_row_with_the_reason(
    metric: type, activations: Activations, reason: str
):
    (row,) = rows_of(metric, activations, draws=2)
    assert row.value is None
    assert reason in row.reason


def test_a_bias_is_found_in_a_network():
    query, key = torch.randn(2, 6, 1, 8, 4, generator=generator())
    distance = (torch.arange(8)[:, None] - torch.arange(8)).abs().float()
    (row,) = rows_of(length.KeptShare, attention(query @ key.mT - distance, query=query, key=key))
    assert "relative positions" in row.reason


def test_a_probe_measures_a_vit_and_predictions_are_covered():
    model = ViT.for_tokens(9, 4, 3, dim=16, depth=2, heads=2)
    with probe(model, length.THEORY.in_networks.metrics(), draws=19) as p, p.accumulate(0):
        model(torch.randn(16, 9, 4, generator=generator()))
    table = p.result().table.select(theory="length")
    for quantity, count in ((GAP, 4), (PREDICTED, 16), (KEPT, 4), (HALVED, 4), (SINK_NORM, 4)):
        rows = [row for row in table if row.quantity == quantity]
        assert len(rows) == count
        assert all(row.value is not None and row.value > 0 and row.verdict is None for row in rows)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(vocabulary=20, dim=16, depth=2, heads=2, hidden=32).eval()


def test_responses_of_a_decoder(decoder: Decoder):
    data = torch.randint(20, (24, 16), generator=generator())
    limits = {"length": 16, "sequences": 24, "vocabulary": 20}
    rows = responses(decoder, length.THEORY, data, limits=limits, generator=generator(1))
    doubled = [row for row in rows if row.quantity == DOUBLED]
    assert len(doubled) == 4
    # Untrained attention is nearly uniform, so that keys are exchangeable.
    assert all(row.value == pytest.approx(1.0, abs=0.15) and row.null is not None for row in doubled)
    (change,) = [row for row in rows if row.quantity == CHANGE]
    assert 0 < change.value < change.null.median


def test_predictions_behind_a_mask_are_not_covered(decoder: Decoder):
    with probe(decoder, [length.ScoreGaps()], draws=0) as p, p.accumulate(0):
        decoder(torch.randint(20, (4, 16), generator=generator()))
    rows = p.result().table.select(quantity=PREDICTED)
    assert len(rows) == 16
    assert {row.verdict for row in rows} == {"not covered"}


def test_doubled_weight_needs_causal_attention():
    (row,) = rows_of(length.DoubledWeight, attention(torch.zeros(4, 1, 8, 8)))
    assert row.value is None
    assert "later keys" in row.reason
    mask = torch.ones(8, 8, dtype=torch.bool).tril()[None, None]
    (row,) = rows_of(length.DoubledWeight, attention(torch.zeros(4, 1, 8, 8), mask=mask))
    assert row.value == pytest.approx(1.0, rel=1e-6)


def test_made_inputs():
    data = torch.arange(60).reshape(6, 10)
    made = joined_halves(data, {"length": 8}, generator())
    assert made["value"].shape == (6, 8)
    assert torch.equal(made["value"][:3].roll(4, 1), made["value"][3:])
    assert torch.equal(made["null"][0][:, :4], made["null"][0][:, 4:])
    assert joined_halves(data[:, :3], {}, generator())["value"].shape == (1, 2)
    changed = one_exchanged(data, {}, generator())["value"] != data
    assert changed.sum(1).tolist() == [1] * 6
    assert not bool(changed[:, -1].any())
    images = torch.arange(4.0).reshape(4, 1, 1, 1).expand(4, 2, 16, 16)
    changed = one_exchanged(images, {}, generator())["value"] != images
    assert changed.flatten(1).sum(1).tolist() == [8] * 4
