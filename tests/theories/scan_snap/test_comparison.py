"""The parts of a comparison: query data, rank correlations, predictions from counts."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.scan_snap import ideal_sequences, one_common
from transformer_theory import scan_snap
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.statistics import permutations
from transformer_theory.data.synthetic import noise_like
from transformer_theory.data.text import SHIPPED, Text
from transformer_theory.theories.scan_snap import closed_form, exact_flow, minimal_model, on_data
from transformer_theory.theories.scan_snap import predictions as predictions_module
from transformer_theory.theories.scan_snap.on_data import ON_DATA, comparison_rows
from transformer_theory.theories.scan_snap.orders import (
    chance_level,
    correlate,
    rank_correlation,
    smallest_significant,
)
from transformer_theory.theories.scan_snap.predictions import half_way_step, predictions
from transformer_theory.theories.scan_snap.query_data import (
    QueryData,
    distinctness,
    select_query,
    token_groups,
)


def tensor(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_held_out_sequences_are_others_of_the_same_classes(generator):
    tokens = ideal_sequences(n=300, context=50, classes=3, generator=torch.Generator().manual_seed(0))
    ids, query, following = tokens.ids[:, :-1], tokens.ids[:, -1], tokens.next_id
    selected = select_query(
        ids, query, following, query_id=500, vocab_size=1000, max_classes=20, generator=generator
    )
    assert isinstance(selected, QueryData)
    assert selected.held_out is not None
    assert selected.used == 300
    assert torch.bincount(selected.held_out.target).tolist() == [30, 30, 30]
    both = torch.cat([selected.counted.counts, selected.held_out.counts])
    whole = scan_snap.count_sequences(ids, query, following, 1000)
    assert sorted(both.tolist()) == sorted(whole.counts.tolist())  # nothing twice, nothing lost


def test_every_class_has_a_held_out_sequence(generator):
    """Classes of two and three sequences too: 30 %, rounded down, but at least one."""
    following = torch.tensor([1] * 2 + [2] * 3 + [3] * 10)
    ids = torch.randint(6, (15, 4), generator=generator)
    selected = select_query(
        ids, torch.full((15,), 9), following, query_id=9, vocab_size=10, max_classes=20, generator=generator
    )
    assert isinstance(selected, QueryData)
    assert torch.bincount(selected.counted.target).tolist() == [1, 2, 7]
    assert selected.held_out is not None
    assert torch.bincount(selected.held_out.target).tolist() == [1, 1, 3]


def test_words_are_printed_in_the_place_of_ids():
    tokens = ideal_sequences(n=60, context=50, generator=torch.Generator().manual_seed(0))
    arrays = (tokens.ids[:, :-1], tokens.ids[:, -1], tokens.next_id)
    words = [f"word{k}" for k in range(1000)]
    text = str(scan_snap.analyse(*arrays, vocab_size=1000, steps=5, words=words))
    assert "query 'word500': 60 of 60 sequences" in text
    assert "tokens by measured gain, 5 steps: 'word" in text
    plain = str(scan_snap.analyse(*arrays, vocab_size=1000, steps=5))
    assert "query 500: 60 of 60" in plain
    skipped = str(
        scan_snap.analyse(
            arrays[0], arrays[1], torch.zeros(60, dtype=torch.long), vocab_size=1000, words=words
        )
    )
    assert "query 'word500'" in skipped
    data = Text.read(SHIPPED).sequences(count=300)
    context, query = data.context_and_query()
    printed = str(
        scan_snap.analyse(context, query, data.next_id, vocab_size=data.vocab_size, words=data.words, steps=5)
    )
    assert printed.splitlines()[1].startswith("query 'the'")
    with pytest.raises(ValueError, match="words must hold a word for each of the 1000 ids, got 3"):
        scan_snap.analyse(*arrays, vocab_size=1000, words=words[:3])


def test_random_next_tokens_are_learnt_by_heart_but_not_in_held_out_sequences(unchecked, monkeypatch):
    """Distinctness in the learnt sequences passes its threshold on noise: descent learns by heart what is
    distinct by chance.
    """
    # no order of tokens needs the flows
    monkeypatch.setattr(on_data, "predictions", lambda *classes, **rates: ())
    held_out = learnt = 0
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(30, (120, 20), generator=generator)
        following = torch.randint(4, (120,), generator=generator)
        (found,) = scan_snap.analyse(ids, torch.full((120,), 30), following, steps=100, seed=seed).comparisons
        assert found.by_held_out is not None
        held_out += found.by_held_out.value >= found.by_held_out.threshold
        learnt += found.by_distinctness.value >= found.by_distinctness.threshold
        assert "held-out" in ON_DATA.headline
        rows = {row.quantity: row for row in comparison_rows(found)}
        assert rows[ON_DATA.headline].value == found.by_held_out.value
        assert rows[ON_DATA.headline].split == "validation"
    assert learnt >= 4
    assert held_out <= 1


def test_p_values_on_noise_are_not_small(unchecked, monkeypatch):
    """The null permutes the held-out next tokens with the same training, which is an exact test."""
    monkeypatch.setattr(minimal_model, "MAX_STEPS", 60)
    # the headline does not need the flows
    monkeypatch.setattr(on_data, "predictions", lambda *classes, **rates: ())
    base = ideal_sequences(n=90, context=12, classes=3, generator=torch.Generator().manual_seed(0))
    small = 0
    for seed in range(12):
        problem = ON_DATA.read(noise_like(base, torch.Generator().manual_seed(seed)))
        rows = ON_DATA.measure(problem, torch.Generator().manual_seed(seed), draws=39)
        row = next(row for row in rows if isinstance(row, Measurement) and row.quantity == ON_DATA.headline)
        assert row.scope == "these data"
        small += row.null.p(row.value, row.side) <= 0.05
    assert small <= 4


def test_a_comparison_without_held_out_tokens_has_a_reason():
    tokens = ideal_sequences(n=60, context=50, generator=torch.Generator().manual_seed(0))
    (found,) = scan_snap.analyse(
        tokens.ids[:, :-1], tokens.ids[:, -1], tokens.next_id, vocab_size=1000, steps=5
    ).comparisons
    bare = replace(found, by_held_out=None)
    headline = next(row for row in comparison_rows(bare) if row.quantity == ON_DATA.headline)
    assert headline.value is None
    assert "fewer than two" in headline.reason
    assert bare.verdict == "inconclusive"
    assert "undefined" in str(bare)


def test_distinctness_by_hand():
    assert distinctness(tensor([0.5, 0.5, 0.0], [0.0, 0.25, 0.75])).tolist() == [
        1.0,
        pytest.approx(2 / 3),
        1.0,
    ]


def test_token_groups_fall_back_to_quarters():
    clear = token_groups(tensor(0.9, 1.0, 0.55), 2)
    assert clear.distinct.tolist() == [True, True, False]
    assert clear.common.tolist() == [False, False, True]
    vague = token_groups(torch.linspace(0.1, 0.4, 8, dtype=torch.float64), 10)
    assert vague.distinct.tolist() == [False] * 6 + [True] * 2
    assert vague.common.tolist() == [True] * 2 + [False] * 6


def test_null_distinctness_equals_a_recount():
    tokens = ideal_sequences(n=60, context=50, generator=torch.Generator().manual_seed(0))
    (comparison,) = scan_snap.analyse(
        tokens.ids[:, :-1], tokens.ids[:, -1], tokens.next_id, vocab_size=1000, steps=5
    ).comparisons
    values = []
    for target in comparison.runs.shuffled.tolist():
        counts = np.zeros((2, 11))
        for c, row in zip(target, comparison.data.counted.counts.numpy()):
            counts[c] += row
        counts /= counts.sum(1, keepdims=True)
        values.append(float((comparison.data.frequency.numpy() * counts.max(0) / counts.sum(0)).sum()))
    assert comparison.null_distinctness.draws == pytest.approx(values)


# ---- rank correlations


def test_rank_correlation_by_hand():
    a = tensor(1.0, 2.0, 2.0, 3.0)
    assert float(rank_correlation(a, a)) == 1.0
    assert float(rank_correlation(a, -a)) == -1.0
    # five pairs are not tied in a; (1, 5) is discordant in b, the others agree
    assert float(rank_correlation(a, tensor(1.0, 0.0, 5.0, 9.0))) == pytest.approx(3 / 5)
    assert bool(torch.isnan(rank_correlation(a, torch.ones(4, dtype=torch.float64))))


def test_rank_correlation_without_ties_is_kendalls(generator):
    a, b = torch.randn(2, 30, generator=generator, dtype=torch.float64)
    assert float(rank_correlation(a, b)) == pytest.approx(kendalltau(a.numpy(), b.numpy()).statistic)
    order = correlate(a, torch.stack([a.exp(), -a, b]), generator)
    assert (order.value, order.tokens) == (1.0, 30)
    assert order.null.mean == pytest.approx((-1 + float(rank_correlation(a, b))) / 2)
    assert order.threshold == chance_level(a, a, generator) > order.null.mean
    # shuffled next tokens reach the largest value
    assert math.isnan(correlate(a, torch.stack([b, a, a]), generator).threshold)
    tied = correlate(a, torch.stack([b, b, b]), generator)
    assert tied.threshold > tied.value


@pytest.mark.parametrize(("tokens", "smallest", "largest"), [(3, 0.0, 0.0), (11, 0.0, 0.0), (31, 0.01, 0.08)])
def test_random_changes_are_significant_in_at_most_five_per_cent(
    tokens: int, smallest: float, largest: float, generator
):
    """One common token among distinct ones: with ten or fewer the best order has a larger probability than 5
    %.
    """
    predicted = torch.ones(tokens, dtype=torch.float64)
    predicted[0] = 0.5
    changes = torch.randn(200, 1, tokens, generator=generator, dtype=torch.float64)
    orders = [correlate(predicted, change, generator) for change in changes]
    assert smallest <= sum(order.value >= order.threshold for order in orders) / 200 <= largest
    assert all(math.isnan(order.threshold) for order in orders) == (largest == 0)


@each_case("draws", [18, 19, 39, 199])
def test_the_threshold_is_the_smallest_value_with_a_small_p(draws: int, generator):
    null = Null("permuted", tuple((torch.randint(-9, 10, (draws,), generator=generator) / 10).tolist()))
    threshold = smallest_significant(null)
    for value in (*null.draws, 1.0):
        assert (value >= threshold) == (null.p(value, ">=") <= 0.05)
    assert math.isnan(threshold) == (draws < 19)
    assert math.isnan(smallest_significant(Null("permuted", (1.0,) * draws)))


def test_the_null_of_held_out_distinctness_equals_a_recount(generator):
    ids = torch.randint(9, (60, 6), generator=generator)
    following = torch.randint(3, (60,), generator=generator)
    arrays = (ids, torch.full((60,), 9), following)
    (found,) = scan_snap.analyse(*arrays, steps=5, draws=3).comparisons
    order = found.by_held_out
    assert order.null.kind == "permuted held-out next tokens"
    data, change = found.data, found.runs.change[0]
    values = []
    for target in [data.held_out.target, *data.held_out.target[permutations(len(data.held_out.target), 3)]]:
        conditional = scan_snap.problem.estimate_conditional(data.held_out.counts, target, 3)
        seen = conditional.sum(0) > 0
        values.append(float(rank_correlation(distinctness(conditional[:, seen]), change[seen])))
    assert order.value == pytest.approx(values[0])
    # Seeds with other splits are averaged as if they moved together.
    assert order.null.draws == pytest.approx(sorted(values[1:]))


def test_seeds_have_splits_and_batches_of_their_own(generator):
    ids, following = torch.randint(9, (300, 6), generator=generator), torch.arange(300) % 3
    first, second = (
        scan_snap.analyse(ids, torch.full((300,), 9), following, steps=5, draws=2, seed=seed).comparisons[0]
        for seed in (0, 1)
    )
    assert not first.data.held_out.counts.equal(second.data.held_out.counts)
    assert len(first.data.held_out.target) == len(second.data.held_out.target)
    assert not first.runs.change.equal(second.runs.change)


def test_without_draws_only_the_true_next_tokens_are_learnt(generator):
    ids, following = torch.randint(9, (60, 6), generator=generator), torch.arange(60) % 3
    none, some = (
        scan_snap.analyse(ids, torch.full((60,), 9), following, steps=20, draws=draws) for draws in (0, 5)
    )
    assert none.comparisons[0].runs.logits.shape[1] == 1
    assert some.comparisons[0].runs.logits.shape[1] == 6
    assert all(row.null is None for row in none.measurements())
    assert [row.value for row in none.measurements()] == [row.value for row in some.measurements()]
    assert str(none)
    assert none.plot().axes


def test_the_null_runs_learn_the_same_batches_in_float32(generator):
    """With all next tokens of the data in the place of shuffled ones, the other runs repeat run 0."""
    ids, following = torch.randint(9, (300, 6), generator=generator), torch.arange(300) % 3
    (found,) = scan_snap.analyse(ids, torch.full((300,), 9), following, steps=2, draws=0).comparisons
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minimal_model, "permutations", lambda n, draws: torch.arange(n).expand(draws, n))
        runs = minimal_model.train_minimal_model(
            found.data, steps=50, eta_y=1.0, eta_z=0.1, shuffles=2, generator=generator
        )
    assert_close(runs.change[1:], runs.change[:1].expand(2, -1), rtol=1e-4, atol=1e-6)
    assert runs.accuracy.tolist() == pytest.approx([float(runs.accuracy[0])] * 3)


def test_the_chance_level_falls_with_the_number_of_tokens(generator):
    few, many = torch.randn(8, generator=generator).double(), torch.randn(150, generator=generator).double()
    assert 0.3 < chance_level(few, few, generator) < 0.7
    assert chance_level(many, many, generator) < 0.15


# ---- predictions


def test_half_way_step_of_known_curves():
    t = tensor(0.0, 1.0, 2.0, 4.0)
    assert half_way_step(t, t[:, None] * tensor(3.0, 4.0)) == pytest.approx(2.0)
    assert half_way_step(t, tensor([0.0], [2.0], [0.0], [1.0])) == pytest.approx(3.0)  # the last crossing
    assert half_way_step(t, torch.zeros(4, 2, dtype=torch.float64)) == 0.0


def test_predictions_are_the_flows_and_the_closed_form_where_it_applies():
    classes, times = one_common(2, 1000, 0.2), tensor(0.0, 10.0, 1000.0)
    exact, _, _, closed = predictions(classes, times, eta_y=1.0, eta_z=0.01)
    assert_close(
        exact.logits,
        exact_flow(classes, times, eta_y=1.0, eta_z=0.01, tolerance=1e-11).logits[:, 0],
        rtol=0,
        atol=1e-6,
    )
    assert closed.tokens.tolist() == [0]
    B = closed_form.B(
        times, classes=2, vocab_size=1000, eta_y=1.0, eta_z=0.01, overlap=float(classes.overlap()[0, 1])
    )
    assert_close(closed.logits[:, 0], -B)
    uneven = replace(classes, share=tensor(0.2, 0.8))
    assert "120%" in predictions(uneven, times, eta_y=1.0, eta_z=0.01)[3].reason
    twice = scan_snap.SequenceClasses(classes.conditional[[0, 0]], classes.query, 1000)
    exact, modified, lemma4, closed = predictions(twice, times, eta_y=1.0, eta_z=0.01)
    assert "1e-08" in exact.reason
    assert "Lemma 3" in modified.reason
    assert modified.reason == lemma4.reason
    assert modified.resolved
    assert "got 11" in closed.reason


def test_a_flow_that_moves_by_less_than_its_error_is_not_resolved(monkeypatch):
    def rough(*arguments, **rates):
        path = exact_flow(*arguments, **rates)
        return replace(path, error=0.02 * float(path.logits.abs().max()))

    monkeypatch.setattr(predictions_module, "FLOWS", (("exact flow", rough),))
    prediction = predictions(one_common(2, 1000, 0.2), tensor(0.0, 10.0), eta_y=1.0, eta_z=0.01)[0]
    assert not prediction.resolved
    assert prediction.reason


def test_horizons_that_overflow_are_refused():
    with pytest.raises(ValueError, match=r"times .* 1e.297"):
        predictions(one_common(2, 1000, 0.2), tensor(1e299), eta_y=1.0, eta_z=0.1)
