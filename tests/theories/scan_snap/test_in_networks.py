"""Sharpness and overlap of attention maps in networks."""

import math

import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.metric import Activations
from transformer_theory.theories.scan_snap import ScanAndSnap
from transformer_theory.theories.scan_snap.in_networks import OVERLAP, SHARPNESS


def activations(weights: torch.Tensor, **changed) -> Activations:
    tokens = torch.zeros(len(weights), weights.shape[2], 2)
    return Activations(
        name="attention", layer=0, kind="attention", tokens=tokens, output=tokens, weights=weights, **changed
    )


def maps(*rows: list[float], batch: int = 3) -> torch.Tensor:
    """One query per head; one row of weights for each head."""
    return torch.tensor(rows, dtype=torch.float64)[None, :, None, :].expand(batch, -1, -1, -1)


def by_head(metric: ScanAndSnap, quantity: str) -> dict[int, Measurement]:
    return {row.head: row for row in metric.compute(draws=1) if row.quantity == quantity}


def values(metric: ScanAndSnap) -> list[float | None]:
    return [row.value for row in metric.compute()]


def test_sharpness_of_uniform_and_hard_attention():
    metric = ScanAndSnap()
    metric.update(activations(maps([0.25] * 4, [0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0])))
    assert values(metric) == pytest.approx([0.0, 0.5, 1.0], abs=1e-12)


def test_a_mask_counts_the_allowed_keys_only():
    """Uniform attention over the past is not sharp, although most keys get nothing."""
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    uniform = (causal / causal.sum(-1, keepdim=True)).double().expand(3, 1, 4, 4)
    masked, unmasked = ScanAndSnap(), ScanAndSnap()
    masked.update(activations(uniform, mask=causal[None, None]))
    unmasked.update(activations(uniform))
    assert masked.compute()[0].value == pytest.approx(0.0, abs=1e-12)
    assert unmasked.compute()[0].value > 0.3


@each_case("spoilt", [float("nan"), 0.0])
@each_case("mask", [False, True])
def test_rows_that_are_not_distributions_are_omitted(spoilt, mask, generator):
    weights = torch.softmax(torch.randn(6, 2, 4, 5, generator=generator, dtype=torch.float64), dim=-1)
    cut, whole = ScanAndSnap(), ScanAndSnap()
    allowed = torch.ones(6, 1, 4, 5, dtype=torch.bool) if mask else None
    whole.update(activations(weights[1:]))
    weights[0] = spoilt
    if allowed is not None:
        allowed[0] = False
    for _ in range(2):
        cut.update(activations(weights, mask=allowed))
        assert values(cut)[:2] == pytest.approx(values(whole), rel=1e-12)
        cut.reset()
    cut.update(activations(torch.full((1, 2, 4, 5), spoilt)))
    assert values(cut) == [None, None]


def test_two_attentions_of_a_block_are_measured_separately(generator):
    metric = ScanAndSnap()
    own, cross = (
        torch.softmax(torch.randn(3, 2, 4, keys, generator=generator, dtype=torch.float64), dim=-1)
        for keys in (4, 7)
    )
    for _ in range(2):
        metric.reset()
        metric.update(activations(own))
        metric.update(activations(cross, first_head=2))
    assert list(by_head(metric, SHARPNESS)) == [0, 1, 2, 3]
    overlaps = by_head(metric, OVERLAP)
    assert [overlaps[head].value for head in range(4)] == pytest.approx([1.0] * 4)


def test_overlap_compares_measurements_and_heads():
    metric = ScanAndSnap()
    metric.update(activations(maps([0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.25] * 4)))
    assert not by_head(metric, OVERLAP)
    metric.reset()
    assert not metric.compute()
    metric.update(activations(maps([0.4, 0.2, 0.2, 0.2], [0.1, 0.1, 0.7, 0.1], [0.7, 0.1, 0.1, 0.1])))
    rows = by_head(metric, OVERLAP)
    assert set(rows) == {0, 1}  # head 2 was uniform: no direction
    # directions of e_i - 1/4: cosine 1 with itself, -1/3 with another key
    assert rows[0].value == pytest.approx(1.0)
    assert rows[1].value == pytest.approx(-1 / 3)
    assert rows[0].null.mean == pytest.approx(-1 / 3)
    assert rows[1].null.mean == pytest.approx(-1 / 3)
    assert {row.scope for row in rows.values()} == {"training"}
    assert [row.null for row in metric.compute(draws=0)] == [None] * 5
    assert metric.null_source == "networks"  # the null of sharpness


def test_merging_equals_streaming(generator):
    weights = torch.softmax(torch.randn(7, 2, 4, 5, generator=generator, dtype=torch.float64), dim=-1)
    whole, left, right = ScanAndSnap(), ScanAndSnap(), ScanAndSnap()
    for part, metric in ((weights[:3], left), (weights[3:], right)):
        whole.update(activations(part))
        metric.update(activations(part))
    left.merge(right)
    assert values(left) == pytest.approx(values(whole), rel=1e-12)
    copy = ScanAndSnap()
    copy.load_state_dict(left.state_dict())
    assert copy.compute() == left.compute()


def test_maps_of_two_lengths_are_added_from_the_start():
    metric = ScanAndSnap()
    metric.update(activations(maps([0.5, 0.5])))
    metric.update(activations(maps([0.7, 0.1, 0.1, 0.1])))
    (total,) = metric.sums.values()
    assert total.shape == (1, 1, 6)
    count = float(total[0, 0, 0]) / 2  # maps() repeats the map
    assert (total[0, 0, 2:] / count).tolist() == pytest.approx([0.45, -0.15, -0.15, -0.15])
    entropy = -(0.7 * math.log(0.7) + 0.3 * math.log(0.1))
    (row,) = metric.compute()
    assert row.value == pytest.approx((0 + 1 - entropy / math.log(4)) / 2)


def test_memory_carries_the_previous_map_to_another_metric(generator):
    first, second = ScanAndSnap(), ScanAndSnap()
    weights = torch.softmax(torch.randn(3, 2, 4, 5, generator=generator, dtype=torch.float64), dim=-1)
    first.update(activations(weights))
    second.load_persistent_state(first.persistent_state())
    second.update(activations(weights))
    assert [row.value for row in by_head(second, OVERLAP).values()] == pytest.approx([1.0, 1.0])


def test_unrelated_causal_heads_do_not_overlap(generator):
    """The mask's own shape is not a direction: minus uniform attention over all keys, these two heads overlap
    by more than 0.8.
    """
    T = 32
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    scores = 0.5 * torch.randn(1, 2, T, T, generator=generator, dtype=torch.float64)
    weights = torch.softmax(scores.masked_fill(~causal, -torch.inf), dim=-1)
    metric = ScanAndSnap()
    for _ in range(2):
        metric.reset()
        metric.update(activations(weights, mask=causal[None, None]))
    for row in by_head(metric, OVERLAP).values():
        assert row.value == pytest.approx(1.0)
        assert abs(row.null.mean) < 0.15


def test_maps_of_long_sequences_are_kept_from_the_second_measurement_on(generator):
    weights = torch.randn(2, 3, 3, 210, 210, generator=generator).softmax(-1)
    short = torch.randn(3, 3, 7, 7, generator=generator).softmax(-1)
    metric, alone = ScanAndSnap(), ScanAndSnap()

    def measure() -> list[float]:
        metric.reset()
        for part in (*weights, short):
            metric.update(activations(part))
        sharp = [
            1 + (part.double().xlogy(part.double())).sum(-1) / math.log(part.shape[-1]) for part in weights
        ]
        sharp += [1 + (short.double().xlogy(short.double())).sum(-1) / math.log(7)]
        expected = torch.cat([each.transpose(0, 1).flatten(1) for each in sharp], 1).mean(1).tolist()
        assert [row.value for row in by_head(metric, SHARPNESS).values()] == pytest.approx(expected, rel=1e-5)
        return [row.value for row in by_head(metric, OVERLAP).values()]

    assert measure() == []
    assert max(sums.numel() for sums in metric.sums.values()) < 2000
    assert not any(map_.shape[-1] > 7 for map_ in metric.persistent_state().values())
    assert measure() == []
    assert measure() == pytest.approx([1.0] * 3)
    alone.load_persistent_state(metric.persistent_state())
    alone.update(activations(weights[0]))
    now = weights[0].double().mean(0) - 1 / 210
    (then,) = metric.persistent_state().values()
    expected = (now * then).sum((1, 2)) / now.square().sum((1, 2)).sqrt() / then.square().sum((1, 2)).sqrt()
    found = [row.value for row in by_head(alone, OVERLAP).values()]
    assert found == pytest.approx(expected.tolist(), rel=1e-5)
