"""The ladder of scan-and-snap: its prediction, its nulls, the logits of words in networks, and its rungs."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from transformer_theory.core.errors import NotConverged
from transformer_theory.core.ladder import COLUMNS
from transformer_theory.core.statistics import LADDER_DRAWS, RANGE_DRAWS, over_seeds
from transformer_theory.data.text import Text, Vocabulary
from transformer_theory.data.tokens import stratified
from transformer_theory.models.embedding import build
from transformer_theory.theories.scan_snap import SequenceClasses, exact_flow
from transformer_theory.theories.scan_snap.closed_form import scanning_time
from transformer_theory.theories.scan_snap.ladder import LADDER, agreement, rungs, text
from transformer_theory.theories.scan_snap.ladder.networks import SoftmaxAttention, WordNetwork, word_logits
from transformer_theory.theories.scan_snap.orders import rank_correlation

RUNGS = {rung.name: rung for rung in LADDER.rungs}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def own() -> agreement.SplitSequences:
    g = generator()
    return rungs.drawn(rungs.two_classes(g), context=rungs.LONG, generator=g)


@pytest.fixture(scope="module")
def prediction(own: agreement.SplitSequences) -> agreement.Prediction:
    return agreement.predict(own)


@pytest.fixture(scope="module")
def change(own: agreement.SplitSequences) -> torch.Tensor:
    return rungs.minimal_model(own, attention_rate=agreement.FAST_DECODER)


def headline(prediction: agreement.Prediction, change):
    rows = list(agreement.agreement_rows(prediction, change, ""))
    assert [row.kind for row in rows] == ["rung"] * len(rows)
    return rows[0]


# ---- the prediction


def test_the_prediction_is_the_exact_flow():
    classes = rungs.ten_classes(generator())
    time = agreement.HORIZON * scanning_time(classes=10, vocab_size=1000, eta_y=1.0)
    flow = exact_flow(
        classes, torch.tensor([time], dtype=torch.float64), eta_y=1.0, eta_z=agreement.FAST_DECODER
    ).logits[0, 0]
    predicted = agreement.predicted_change(classes.conditional[None], classes.weights, vocab_size=1000)[0]
    assert float((predicted - flow).norm() / flow.norm()) < 0.01
    assert float(rank_correlation(flow, predicted)) > 0.99


def test_conditionals_are_counted_per_run():
    counts = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 4.0]], dtype=torch.float64)
    P = agreement.conditionals(counts, torch.tensor([[0, 0, 1], [1, 1, 1]]), 2)
    torch.testing.assert_close(P[0], torch.tensor([[0.75, 0.25], [0.0, 1.0]], dtype=torch.float64))
    torch.testing.assert_close(P[1, 1], torch.tensor([3 / 8, 5 / 8], dtype=torch.float64))
    assert bool((P[1, 0] == 0.5).all())  # no sequence of class 0 is left


def test_tokens_of_one_part_only_are_not_compared(own: agreement.SplitSequences):
    held = own.held_counts.clone()
    held[:, 3] = 0
    prediction = agreement.predict(replace(own, held_counts=held, permuted=own.permuted[:2]))
    assert 3 not in prediction.tokens.tolist()
    assert len(prediction.tokens) == own.counts.shape[1] - 1


# ---- the theory's own setting


def test_the_assumptions_hold_in_the_covered_rung():
    assert all(rungs.two_classes(generator(seed)).weak_overlap().holds for seed in range(20))
    assert [rung.name for rung in LADDER.rungs if rung.covered] == ["two classes"]


def test_the_own_setting_agrees_and_broken_dynamics_do_not(own, prediction, change):
    row = headline(prediction, lambda: change)
    assert row.value > 0.9
    assert row.null.p(row.value, ">=") < 0.05
    reversed_row = headline(prediction, lambda: -change)  # attention that moves against the gradient
    assert reversed_row.value == pytest.approx(-row.value)
    # that rare tokens gain attention is not what the theory says
    rarity = headline(prediction, lambda: -own.counts.sum(0)).value
    assert rarity < row.value - 0.5


def test_the_headline_is_counted_on_the_held_out_sequences(own, change):
    # held-out sequences without their classes
    sequences = replace(own, held_target=own.permuted[0], permuted=own.permuted[1:20])
    by_name = {
        row.quantity: row.value
        for row in agreement.agreement_rows(agreement.predict(sequences), lambda: change, "")
    }
    assert by_name[LADDER.quantity] < 0.85
    assert by_name[agreement.LEARNT] > 0.95


def test_classes_that_do_not_differ_are_at_chance():
    g, p = generator(1), torch.linspace(0.2, 1, 12, dtype=torch.float64)
    classes = SequenceClasses((p / p.sum()).expand(3, -1), torch.zeros(3, dtype=torch.long), 50)
    sequences = rungs.drawn(classes, context=rungs.SHORT, generator=g)
    row = headline(agreement.predict(sequences), lambda: rungs.minimal_model(sequences, attention_rate=0.1))
    assert row.null.p(row.value, ">=") > 0.05


def test_a_diverged_training_is_a_row_with_its_reason(own, prediction):
    def diverge():
        raise NotConverged("the loss is not finite")

    row = headline(prediction, diverge)
    assert row.value is None
    assert "not finite" in row.reason


def test_a_change_without_an_order_has_a_reason(own, prediction):
    row = headline(prediction, lambda: torch.zeros(own.counts.shape[1]))
    assert row.value is None
    assert row.reason


# ---- logits of words in networks


@pytest.mark.parametrize("query", [-1, 0])
def test_word_logits_are_means_over_occurrences(query: int):
    model = build(lambda: WordNetwork(5, 4, 3, dim=6, positions=True, blocks=1), generator()).double().eval()
    ids = (
        torch.tensor([[1, 2, 1, 0], [2, 2, 3, 0]])
        if query == -1
        else torch.tensor([[0, 1, 2, 1], [0, 2, 2, 3]])
    )
    inputs = torch.nn.functional.one_hot(ids, 5).double()
    context = ids[:, :-1] if query == -1 else ids[:, 1:]
    block = model.blocks[0]
    x = block.attention_norm(model.embed(inputs) + model.positions).detach()
    query_weights, key_weights, _ = block.attention.qkv.weight.detach().chunk(3)
    scores = (x @ key_weights.T) @ (x[:, query] @ query_weights.T)[..., None] * 6**-0.5
    scores = (scores[:, :-1] if query == -1 else scores[:, 1:])[..., 0]
    logits = word_logits(model, inputs, context, count=5, query=query)
    for word in (1, 2, 3):
        assert float(logits[word]) == pytest.approx(float(scores[context == word].mean()), rel=1e-9)
    assert float(logits[4]) == 0.0


def test_softmax_attention_reads_weighted_counts():
    model = SoftmaxAttention(3, 2)
    with torch.no_grad():
        model.logits.copy_(torch.tensor([0.0, math.log(2.0), 5.0]))
        model.decoder.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [7.0, 7.0]]))
    # 2 and 1 e^{ln 2}; word 2 is absent
    torch.testing.assert_close(model(torch.tensor([[2.0, 1.0, 0.0]])), torch.tensor([[0.5, 0.5]]))


# ---- the rungs


def test_rungs_are_named_and_in_order():
    assert [rung.column for rung in LADDER.rungs] == sorted(
        (rung.column for rung in LADDER.rungs), key=COLUMNS.index
    )
    assert {rung.column for rung in LADDER.rungs} == set(COLUMNS)
    assert all(len(rung.name) <= 22 for rung in LADDER.rungs)
    assert [rung.name for rung in LADDER.rungs if rung.needs] == ["decoder on a text"]


@pytest.mark.parametrize("name", ["two classes", "one learning rate"])
def test_rungs_are_deterministic_and_have_a_null(name: str):
    first, again = (list(RUNGS[name].measure(generator(3))) for _ in range(2))
    assert first == again
    row = first[0]
    assert (row.kind, row.quantity, row.side, row.predicted) == ("rung", LADDER.quantity, ">=", 1.0)
    assert row.null is not None
    assert (row.null.kind, len(row.null.draws)) == (LADDER.null, LADDER_DRAWS)
    assert row.null.low < row.null.median < row.null.high


def test_seeds_split_the_digits_differently(monkeypatch, prediction):
    monkeypatch.setattr(rungs, "predict", lambda sequences: prediction)  # not needed, and slow
    first, second = (rungs.visual_words.__wrapped__(seed)[0] for seed in (0, 3))
    assert first.counts.shape == second.counts.shape == (757, 32)
    assert not torch.equal(first.counts, second.counts)
    assert bool((first.counts.sum(1) == rungs.SHORT).all())


def test_seeds_share_the_permutations_of_all_next_tokens(monkeypatch, prediction):
    monkeypatch.setattr(rungs, "predict", lambda sequences: prediction)  # not needed, and slow
    data, _ = rungs.commonest_query()
    held, permuted = {}, {}
    for seed in (0, 3):
        sequences, _ = rungs.visual_words.__wrapped__(seed)
        _, held[seed] = stratified(
            len(data), data.labels, rungs.LEARNT_SHARE, generator(seed), what="sequences"
        )
        assert torch.equal(sequences.held_target, data.labels[held[seed]])
        permuted[seed] = torch.full((LADDER_DRAWS, len(data)), -1)
        permuted[seed][:, held[seed]] = sequences.permuted
    both = (permuted[0][0] >= 0) & (permuted[3][0] >= 0)
    assert 50 < int(both.sum()) < 150  # about .3 * .3 * 1082
    assert torch.equal(permuted[0][:, both], permuted[3][:, both])
    # Next tokens of learnt sequences come into the held-out part as well, so its class sizes vary from draw
    # to draw.
    sizes = torch.stack([(permuted[0] == label).sum(1) for label in range(10)], 1)
    assert float(sizes.double().std(0).min()) > 1
    assert bool((permuted[0][:, held[0]] != data.labels[held[0]]).any(1).all())


def test_retrained_models_are_compared_with_the_prediction_for_their_own_next_tokens():
    """A model that follows the prediction for the next tokens that it has learnt: its null is as high as its
    value.
    """
    seen = []

    def train(sequences: agreement.SplitSequences, _: torch.Generator) -> torch.Tensor:
        assert torch.equal(sequences.data.labels, sequences.target)
        seen.append(sequences.target)
        learnt = agreement.conditionals(sequences.counts, sequences.target[None], sequences.classes)
        share = torch.bincount(sequences.target, minlength=sequences.classes).double() / len(sequences.target)
        return agreement.predicted_change(learnt, share, vocab_size=sequences.vocab_size)[0]

    sequences, prediction = rungs.visual_words(0)
    first, *others = rungs.retrained_rung(generator(0), train=train, note="")
    assert LADDER.quantity not in [row.quantity for row in others]
    _, second = first.nulls
    assert second.kind == rungs.RETRAINED
    assert len(second.draws) == RANGE_DRAWS == len(seen) - 1
    assert torch.equal(seen[3], sequences.permuted_learnt[2])
    expected = rank_correlation(
        train(replace(sequences, target=seen[3], data=replace(sequences.data, labels=seen[3])), generator())[
            prediction.tokens
        ],
        prediction.held_out[3],
    )
    assert second.draws[2] == pytest.approx(float(expected))
    # Both parts of a draw together are a permutation of all next tokens.
    assert torch.equal(
        torch.cat([sequences.permuted, sequences.permuted_learnt], 1).sort(1).values[0],
        torch.cat([sequences.target, sequences.held_target]).sort().values,
    )


def test_the_null_of_the_mean_narrows_as_much_as_the_seeds_are_independent():
    rows = []
    for seed in (0, 3):
        sequences, prediction = rungs.visual_words(seed)
        change = partial(rungs.minimal_model, sequences, attention_rate=1.0)
        rows.append(headline(prediction, change))
    single = [torch.tensor(row.null.draws).std() for row in rows]
    mean = torch.tensor(over_seeds(rows).null.draws).std()
    # Seeds that move together would give the mean of both, independent ones this divided by sqrt(2).
    assert float(mean) < 0.9 * float(sum(single)) / 2


def test_redrawn_words_have_the_frequencies_of_the_visual_words():
    classes = rungs.redrawn_words(generator())
    counts, labels, K, M = rungs._counted(*rungs.commonest_query())
    assert classes.conditional.shape == (K, counts.shape[1])
    assert (classes.vocab_size, classes.query.unique().tolist()) == (M, [0])
    weights = torch.bincount(labels).double() / len(labels)
    torch.testing.assert_close(classes.weights, weights)
    # All sequences have 15 words, so the frequencies of all classes together are those of all words.
    torch.testing.assert_close(classes.weights @ classes.conditional, counts.sum(0) / counts.sum())


def make_text(words: int) -> Text:
    ids = torch.randint(1, 12, (words,), generator=generator())
    ids[::5] = 1  # the most frequent word
    return Text(ids, Vocabulary(("<unk>", *"abcdefghijk")))


def test_the_text_rung_measures_held_out_stretches(monkeypatch):
    monkeypatch.setattr(text, "STEPS", 3)
    monkeypatch.setattr(text, "LADDER_DRAWS", 5)
    monkeypatch.setattr(text, "PROBED", 100)
    row, *_ = RUNGS["decoder on a text"].measure(generator(), make_text(8_000))
    assert row.value is not None
    assert row.null is not None
    assert "'a'" in row.note
    assert row.n == 11


def test_a_short_text_is_a_row_with_its_reason():
    (row,) = RUNGS["decoder on a text"].measure(generator(), make_text(2_000))
    assert row.value is None
    assert "7001 are needed" in row.reason
