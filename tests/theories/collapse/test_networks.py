"""The metric of heads, random heads on data, and the ladder."""

import math
from dataclasses import replace

import pytest
import torch

from tests.cases import each_case
from tests.contract.instances import sequences
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.metric import Activations
from transformer_theory.core.statistics import fixed_generator
from transformer_theory.core.table import collect
from transformer_theory.core.theory import Unsupported
from transformer_theory.data import TokenData
from transformer_theory.models.attention import causal_mask, softmax
from transformer_theory.models.decoder import Decoder
from transformer_theory.models.vit import ViT
from transformer_theory.probes import probe
from transformer_theory.theories import collapse
from transformer_theory.theories.collapse import heads, in_networks, ladder, learning, on_data
from transformer_theory.theories.collapse.heads import permute_keys, permuted_keys
from transformer_theory.theories.collapse.in_networks import CONTRACTION, PEAKED, PHASE, RANDOM


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def attention(
    weights: torch.Tensor, tokens: torch.Tensor | None = None, mask: torch.Tensor | None = None
) -> Activations:
    if tokens is None:
        tokens = torch.randn(len(weights), weights.shape[-2], 8, generator=generator(9))
    return Activations("attention", 0, "attention", tokens, tokens, weights=weights, mask=mask)


def rows_of(*activations: Activations, draws: int = 0) -> dict[str, Measurement]:
    metric = collapse.HeadContraction()
    for each in activations:
        metric.update(each)
    rows = metric.compute(draws=draws)
    assert len({(row.quantity, row.head) for row in rows}) == len(rows)
    return {row.quantity: row for row in rows if row.head == 0}


def scores(n: int = 6, heads: int = 1, keys: int = 7, deviation: float = 1.0, seed: int = 0) -> torch.Tensor:
    return deviation * torch.randn(n, heads, keys, keys, generator=generator(seed))


def test_contraction_is_the_root_mean_square_over_sequences():
    weights, tokens = scores().softmax(-1), torch.randn(6, 7, 8, generator=generator(1))
    each = [float(collapse.contraction(weights[k, 0].double(), tokens[k].double())) ** 2 for k in range(6)]
    assert rows_of(attention(weights, tokens))[CONTRACTION].value == pytest.approx(
        (sum(each) / 6) ** 0.5, rel=1e-4
    )


def test_heads_that_pick_keys_at_random_are_within_their_null():
    weights = scores(16, keys=12, deviation=2.0).softmax(-1)
    row = rows_of(attention(weights), draws=19)[CONTRACTION]
    chance = (collapse.participation(weights).mean() - 1 / 12) ** 0.5
    assert row.null.low < row.value < row.null.high
    assert row.null.mean == pytest.approx(float(chance), rel=0.03)


def test_selective_heads_keep_more_and_sinks_less_than_their_null():
    tokens = torch.randn(8, 9, 8, generator=generator(1))
    near = (3 * torch.eye(9)).expand(8, 1, 9, 9).softmax(-1)
    assert (row := rows_of(attention(near, tokens), draws=19)[CONTRACTION]).value > row.null.high
    sink = (scores(8, keys=9, deviation=0.1) + 3 * torch.eye(9)[0]).softmax(-1)
    assert (row := rows_of(attention(sink, tokens), draws=19)[CONTRACTION]).value < row.null.low


def test_the_prediction_of_random_weights():
    n, T, d = 32, 24, 16
    tokens = torch.randn(n, T, d, generator=generator(), dtype=torch.float64)
    W = 0.05 * torch.randn(6, d, d, generator=generator(1), dtype=torch.float64)
    weights = (tokens[:, None] @ W @ tokens[:, None].mT).softmax(-1)
    metric = collapse.HeadContraction()
    metric.update(attention(weights, tokens))
    rows = metric.compute()
    found = [sum(row.value**2 for row in rows if row.quantity == name) for name in (CONTRACTION, RANDOM)]
    assert found[0] == pytest.approx(found[1], rel=0.25)
    large = rows_of(attention((20 * scores(4)).softmax(-1)))[RANDOM]
    assert large.value is None
    assert "scores vary more" in large.reason


def test_participation_of_gaussian_scores_and_of_two_peaks():
    row = rows_of(attention(scores(32, keys=16, deviation=2.0).softmax(-1)), draws=19)
    assert abs(row[PEAKED].value) < 3 * (row[PEAKED].null.high - row[PEAKED].null.low)
    assert row[PHASE].value == pytest.approx(2 / math.log(16) ** 0.5, rel=0.1)
    one, half = torch.zeros(4, 1, 16, 16), torch.zeros(4, 1, 16, 16)
    one[..., 0], half[..., :8] = 4.0, 4.0  # one key holds the weight, or eight share it
    row = rows_of(attention(one.softmax(-1)), draws=19)[PEAKED]
    assert row.value > row.null.high
    row = rows_of(attention(half.softmax(-1)), draws=19)[PEAKED]
    assert row.value < row.null.low


def test_masks_of_padding_and_causal_masks():
    mask = torch.ones(5, 1, 1, 7, dtype=torch.bool)
    mask[:, :, :, 5:] = False
    mask = mask.expand(5, 1, 7, 7)
    weights, tokens = softmax(scores(5), mask), torch.randn(5, 7, 8, generator=generator(2))
    row = rows_of(attention(weights, tokens, mask), draws=5)
    assert row[PHASE].value == pytest.approx(1 / math.log(5) ** 0.5, rel=0.25)
    # the same sequences without padding
    cut = rows_of(attention(weights[:, :, :5, :5], tokens[:, :5]), draws=5)
    for quantity in (CONTRACTION, PEAKED, PHASE):
        assert row[quantity].value == pytest.approx(cut[quantity].value, abs=1e-5)
    assert row[CONTRACTION].note == ""
    causal = causal_mask(7, 7)[None, None]
    rows = rows_of(attention(softmax(scores(5), causal[0]), mask=causal), draws=5)
    assert rows[CONTRACTION].value > 0
    assert "different keys" in rows[CONTRACTION].note
    assert rows[RANDOM].value is None
    assert "a mask hides keys" in rows[RANDOM].reason
    assert rows[PEAKED].value is not None


def test_permutations_stay_within_the_allowed_keys():
    mask = causal_mask(6, 6)
    weights = softmax(scores(3, heads=2, keys=6), mask)
    permuted = permute_keys(weights, generator(), allowed=mask)
    assert not permuted.masked_select(~mask).any()
    assert torch.equal(permuted.sort(-1).values, weights.sort(-1).values)
    assert not torch.equal(permuted, weights)
    full = permute_keys(weights, generator())
    assert torch.equal(full.sort(-1).values, weights.sort(-1).values)


@pytest.mark.parametrize("most", [0, 10**6])
def test_draws_are_those_of_single_permutations_whether_their_orders_are_kept_or_not(most, monkeypatch):
    monkeypatch.setattr(heads, "ORDERS", most)
    weights = scores(3, heads=2, keys=6).softmax(-1)
    for other in (weights, scores(3, heads=1, keys=6, seed=1).softmax(-1), weights):
        drawn, used, by_hand = [], generator(4), generator(4)
        for permuted in permuted_keys(other, used, draws=3):
            order = torch.rand(3, 1, 6, 6, generator=by_hand).argsort(-1)
            assert torch.equal(permuted, other.gather(-1, order.expand(other.shape)))
            drawn.append(permuted)
        assert len(drawn) == 3
        assert torch.equal(torch.rand(2, generator=used), torch.rand(2, generator=by_hand))


def test_uniform_permutations():
    counts = torch.zeros(4, 4)
    for k in range(2000):
        counts += permute_keys(torch.eye(4)[None], generator(k))[0]
    assert float((counts / 2000 - 0.25).abs().max()) < 0.05


@each_case(
    ("activations", "quantity", "reason"),
    [
        (attention(torch.ones(3, 1, 1, 1), torch.randn(3, 1, 4)), CONTRACTION, "single token"),
        (attention(torch.ones(3, 1, 1, 1), torch.randn(3, 1, 4)), PEAKED, "two allowed keys"),
        (attention(torch.full((3, 1, 4, 4), 0.25), torch.ones(3, 4, 2)), CONTRACTION, "equal"),
        (attention(torch.full((3, 1, 4, 4), 0.25), torch.zeros(3, 4, 2)), CONTRACTION, "equal"),
        (
            attention(torch.full((3, 1, 4, 4), 0.25), torch.full((3, 4, 2), torch.nan)),
            CONTRACTION,
            "not finite",
        ),
        (attention(torch.full((3, 1, 4, 4), torch.nan)), PHASE, "finite weights"),
        (attention(torch.full((3, 1, 4, 4), torch.nan)), CONTRACTION, "sum to 1"),
        (attention(torch.full((3, 1, 4, 4), 0.5)), CONTRACTION, "sum to 1"),
        (attention(torch.tensor([1.5, -0.5, 0.0]).expand(3, 1, 3, 3)), CONTRACTION, "not negative"),
        (attention(torch.full((6, 1, 2, 2), 0.5), torch.randn(3, 4, 2)), CONTRACTION, "windows"),
        (
            attention(torch.full((3, 1, 4, 5), 0.2), torch.randn(3, 4, 2)),
            CONTRACTION,
            "other than the module's own",
        ),
    ],
)
def test_inputs_that_do_not_fit_give_one_row_with_the_reason(
    activations: Activations, quantity: str, reason: str
):
    row = rows_of(activations, draws=2)[quantity]
    assert row.value is None
    assert reason in row.reason
    assert row.null is None


def test_attention_to_as_many_other_tokens_is_noticed():
    x, memory, K, Q = (
        torch.randn(*shape, generator=generator(seed))
        for seed, shape in enumerate(((4, 7, 6), (4, 7, 6), (6, 3), (6, 3)))
    )
    for keys, measured in ((x, True), (memory, False)):
        query, key = (x @ Q)[:, None], (keys @ K)[:, None]
        W = (K @ Q.mT)[None]
        seen = Activations(
            "a", 0, "attention", x, x, query=query, key=key, weights=(query @ key.mT).softmax(-1), bilinear=W
        )
        row = rows_of(seen)[CONTRACTION]
        assert (row.value is not None) == measured
        assert measured or "other than the module's own" in row.reason


def test_each_head_has_its_own_mask():
    mask = torch.stack([torch.ones(7, 7, dtype=torch.bool), causal_mask(7, 7)])[None]
    weights, tokens = softmax(scores(5, heads=2), mask), torch.randn(5, 7, 8, generator=generator(2))
    metric, alone = collapse.HeadContraction(), collapse.HeadContraction()
    metric.update(attention(weights, tokens, mask))
    alone.update(attention(weights[:, 1:], tokens, mask[:, 1:]))
    two, one = metric.compute(draws=5), alone.compute(draws=5)
    pairs = zip([r for r in two if r.head == 1], [r for r in one if r.head == 0])
    for first, second in pairs:
        if first.quantity == CONTRACTION:
            assert first.value == pytest.approx(second.value)
            assert first.null.draws == pytest.approx(second.null.draws)


def test_one_sequence_that_is_not_finite_changes_nothing_else():
    weights = scores(5).softmax(-1)
    spoilt = weights.clone()
    spoilt[2, 0, 0, 0] = torch.nan
    tokens, others = torch.randn(5, 7, 8, generator=generator(2)), [0, 1, 3, 4]
    rows, expected = rows_of(attention(spoilt, tokens)), rows_of(attention(weights[others], tokens[others]))
    assert rows[CONTRACTION].value == pytest.approx(expected[CONTRACTION].value)
    assert rows[RANDOM].value == pytest.approx(expected[RANDOM].value)


def test_a_zero_patch_has_no_effect_on_the_reasons():
    tokens = torch.randn(4, 5, 3, generator=generator())
    tokens[:, 2] = 0
    assert rows_of(attention(scores(4, keys=5).softmax(-1), tokens))[CONTRACTION].value > 0


def test_sequences_of_two_lengths_are_measured_together():
    rows = rows_of(attention(scores(4).softmax(-1)), attention(scores(4, keys=5).softmax(-1)), draws=3)
    assert rows[CONTRACTION].n == 8
    assert len(rows[PEAKED].null.draws) == 3


def test_halves_merge_to_the_whole_and_are_limited():
    weights, tokens = scores(24, heads=2).softmax(-1), torch.randn(24, 7, 8, generator=generator(1))
    whole, halves = collapse.HeadContraction(), [collapse.HeadContraction() for _ in range(2)]
    for metrics, part in ((halves[0], slice(12)), (halves[1], slice(12, 24))):
        for metric in (whole, metrics):
            metric.update(attention(weights[part], tokens[part]))
    halves[0].merge(halves[1])
    restored = collapse.HeadContraction()
    restored.load_state_dict(whole.state_dict())
    assert whole.compute(draws=3) == halves[0].compute(draws=3) == restored.compute(draws=3)
    whole.update(attention(weights, tokens))
    (row, *_) = whole.compute()
    assert row.n == 32


@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences_are_measured_at_once_and_their_weights_are_not_kept(causal, monkeypatch):
    mask = causal_mask(24, 24)[None, None] if causal else None
    weights = scores(3, heads=2, keys=24, deviation=2.0)
    weights = weights.softmax(-1) if mask is None else softmax(weights, mask)
    tokens = torch.randn(3, 24, 8, generator=generator(1))
    short = collapse.HeadContraction()
    short.update(attention(weights[:1], tokens[:1], mask))
    of_all_queries = short.compute(draws=19)
    monkeypatch.setattr(in_networks, "NUMBERS", 1000)  # 1,152 weights of a sequence
    monkeypatch.setattr(in_networks, "PERMUTED_QUERIES", 6)
    queries = torch.tensor([0, 4, 9, 13, 18, 23])  # 4.6 j, as integers
    long, restored = collapse.HeadContraction(), collapse.HeadContraction()
    for _ in range(2):
        long.update(attention(weights, tokens, mask))
    ((_, state),) = long.sums.items()
    assert len(state) == 1
    assert state.numel() < 2 * 16 * 24 + 2 * 16 + (16 * 24 if causal else 0) + 2 * 23 + 10
    restored.load_state_dict(long.state_dict())
    rows = long.compute(draws=19)
    assert restored.compute(draws=19) == rows
    seen = None if mask is None else mask[:, :, queries]
    permuted = [*permuted_keys(weights[:1, :, queries], fixed_generator(), draws=19, allowed=seen)]

    def by_hand(weights: torch.Tensor) -> float:
        """Root mean square over the queries of the differences from their mean, before and after."""
        mixed = (weights.double() @ tokens[0].double()).numpy()
        before = tokens[0].double().numpy()
        after, before = mixed - mixed.mean(0), before - before.mean(0)
        return float(((after**2).sum(1).mean() / (before**2).sum(1).mean()) ** 0.5)

    for row, expected, stored in zip(rows, of_all_queries, short.compute(draws=19)):
        assert (row.quantity, row.head, row.n) == (expected.quantity, expected.head, 1)
        assert (row.value, row.note, row.reason) == (expected.value, expected.note, expected.reason)
        if row.quantity == CONTRACTION:
            head = row.head
            assert row.null.draws == pytest.approx([by_hand(each[0, head]) for each in permuted], rel=1e-4)
            assert row.null.value == pytest.approx(by_hand(weights[0, head, queries]), rel=1e-4)
            assert expected.null.value is None
            assert stored.null.draws == pytest.approx(row.null.draws, rel=1e-6)
            assert stored.null.value == pytest.approx(row.null.value, rel=1e-6)
        if row.quantity == PEAKED:
            assert len(row.null.draws) == 19
            assert abs(row.null.mean - expected.null.mean) < 0.02
    assert [len(row.null.draws) for row in long.compute(draws=4) if row.quantity == CONTRACTION] == [4, 4]


@pytest.mark.parametrize(
    ("weights", "tokens", "reason"),
    [
        (torch.full((1, 1, 4, 4), 0.25), torch.ones(1, 4, 2), "equal"),
        (torch.full((1, 1, 4, 4), 0.5), torch.randn(1, 4, 2), "sum to 1"),
        (torch.full((1, 1, 2, 2), 0.5), torch.randn(1, 4, 2), "windows"),
    ],
)
def test_long_sequences_that_do_not_fit_have_the_same_reasons(weights, tokens, reason, monkeypatch):
    monkeypatch.setattr(in_networks, "NUMBERS", 3)
    row = rows_of(attention(weights, tokens), draws=2)[CONTRACTION]
    assert row.value is None
    assert reason in row.reason


def test_a_probe_measures_a_vit_and_a_decoder():
    model = ViT.for_tokens(9, 4, 3, dim=16, depth=2, heads=2)
    with probe(model, collapse.THEORY.in_networks.metrics(), draws=2) as p, p.accumulate(0):
        model(torch.randn(16, 9, 4, generator=generator()))
    rows = [row for row in p.result().table if row.quantity == CONTRACTION]
    assert [(row.layer, row.head) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(0 < row.value < 1 for row in rows)
    decoder = Decoder(vocabulary=20, dim=16, depth=2, heads=2, hidden=32)
    with probe(decoder, collapse.THEORY.in_networks.metrics(), draws=2) as p, p.accumulate(0):
        decoder(torch.randint(20, (4, 9), generator=generator()))
    rows = [row for row in p.result().table if row.quantity in (CONTRACTION, PEAKED)]
    assert len(rows) == 8
    assert all(row.value is not None for row in rows)


def test_random_heads_contract_tokens_as_predicted():
    data = TokenData(tokens=torch.randn(40, 12, 6, generator=generator(), dtype=torch.float64))
    table, _ = collect(on_data.measure(on_data.read(data), generator(), draws=0))
    row = table.select(quantity=on_data.HEADLINE).one()
    assert row.value == pytest.approx(row.predicted, rel=0.25)
    assert row.interval[0] < row.value < row.interval[1]
    assert table.select(quantity=on_data.EQUIANGULAR).one().verdict == "fails"


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (torch.randn(5, 1, 3).double(), "at least two tokens"),
        (torch.ones(5, 4, 3).double(), "two different tokens"),
    ],
)
def test_data_that_do_not_fit_have_a_reason(tokens: torch.Tensor, reason: str):
    found = on_data.read(TokenData(tokens=tokens))
    assert isinstance(found, Unsupported)
    assert reason in found.reason


def test_zero_sequences_are_left_out():
    data = sequences()
    tokens = data.tokens.clone()
    tokens[0] = 0
    assert len(on_data.read(replace(data, tokens=tokens)).tokens) == len(data.tokens) - 1


def test_the_first_rungs():
    row, contraction = ladder.random_weights(generator())
    assert row.value == pytest.approx(row.predicted, rel=0.1)
    assert row.value > row.null.high
    assert len(row.null.draws) == 399
    assert row.null.mean == pytest.approx(1, abs=0.01)
    assert contraction.value / contraction.predicted == pytest.approx(row.value / row.predicted)
    row, _ = ladder.digits_rows(generator())
    assert row.value > row.null.high
    assert row.predicted is not None


def test_a_head_learns(monkeypatch):
    x, labels = learning.digit_tokens(128)
    start = learning.Head.start(4, 10, 0.5, generator())
    found = learning.train_head(start, x, labels, generator(), steps=30, rate=0.5)
    assert not torch.equal(found.W, start.W)
    assert torch.isfinite(found.W).all()
    monkeypatch.setattr(ladder, "STORED", 64)
    monkeypatch.setattr(ladder, "ADAM_STEPS", 2)
    row, _ = ladder.one_head(generator(), batch=8)
    assert row.value is not None
    assert row.predicted is None


def test_frozen_scores_do_not_change():
    data = sequences(n=48)
    parts = data[:24], data[24:]
    for train_scores in (True, False):
        model, _ = learning.train_vit(
            *parts, generator(), depth=1, steps=3, width=16, train_scores=train_scores
        )
        start, _ = learning.train_vit(*parts, generator(), depth=1, steps=0, width=16)
        moved = (model.blocks[0].attention.qkv.weight - start.blocks[0].attention.qkv.weight).abs()
        assert bool(moved[:32].any()) == train_scores
        assert bool(moved[32:].any())
