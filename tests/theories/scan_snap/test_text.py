"""Attention of language models on text: counts and metrics against explicit loops, phases of known curves,
and runs.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.core.table import Table
from transformer_theory.data.text import Text, Vocabulary
from transformer_theory.metrics import attention
from transformer_theory.metrics.networks import ENTROPY
from transformer_theory.models.decoder import Decoder
from transformer_theory.models.embedding import build
from transformer_theory.probes import probe
from transformer_theory.theories.scan_snap.attended_words import (
    CONDITIONAL,
    DIAGONAL,
    DISTINCT,
    MARGINAL,
    MIN_WORDS,
    RANK,
    AttendedWords,
    count_continuations,
)
from transformer_theory.theories.scan_snap.figures.text_attention import text_attention
from transformer_theory.theories.scan_snap.figures.text_rates import text_rates
from transformer_theory.theories.scan_snap.text_runs import Phases, phases, shuffled, texts, train_and_measure

V, CONTEXT = 7, 5
IDS = torch.multinomial(
    torch.tensor([0.3, 0.3, 0.1, 0.1, 0.1, 0.05, 0.05]), 600, True, generator=torch.Generator().manual_seed(0)
)


def by_hand(query, following):
    """Counts of the words before the query, [V], and how often the pair occurs."""
    counts, pairs = np.zeros(V), 0
    ids = IDS.tolist()
    for t in range(CONTEXT - 1, len(ids) - 1):
        if (ids[t], ids[t + 1]) == (query, following):
            pairs += 1
            for word in ids[t - CONTEXT + 1 : t]:
                counts[word] += 1
    return counts, pairs


def test_counts_are_those_of_a_loop():
    counted = count_continuations(IDS, vocab_size=V, context=CONTEXT, max_pairs=1000, min_occurrences=12)
    for query in range(V):
        known = {}
        for following in range(V):
            counts, pairs = by_hand(query, following)
            place = int(counted.find(torch.tensor(query), torch.tensor(following)))
            assert (place >= 0) == (pairs >= 12)
            if place >= 0:
                known[place] = counts / counts.sum()
                assert_close(counted.conditional[place], torch.from_numpy(known[place]))
        for place in known:
            with np.errstate(invalid="ignore"):  # words that never stand before this query
                share = np.max(list(known.values()), 0) / np.sum(list(known.values()), 0)
            expected = (
                torch.from_numpy(share)
                if len(known) > 1
                else torch.full((V,), torch.nan, dtype=torch.float64)
            )
            assert_close(counted.distinctness[place], expected, equal_nan=True)
    assert_close(counted.frequency, torch.bincount(IDS, minlength=V) / len(IDS), check_dtype=False)


def test_the_most_frequent_pairs_are_kept():
    all_of_them = count_continuations(IDS, vocab_size=V, context=CONTEXT, max_pairs=1000, min_occurrences=1)
    few = count_continuations(IDS, vocab_size=V, context=CONTEXT, max_pairs=3, min_occurrences=1)
    most = sorted((by_hand(int(key) // V, int(key) % V)[1] for key in all_of_them.keys), reverse=True)
    assert sorted((by_hand(int(key) // V, int(key) % V)[1] for key in few.keys), reverse=True) == most[:3]


def model(depth=2):
    return build(
        lambda: Decoder(vocabulary=V, dim=8, depth=depth, heads=2, hidden=8), torch.Generator().manual_seed(0)
    ).eval()


def measured(metric, network, sequences, numbers) -> Table:
    with probe(network, [metric]) as p, torch.no_grad():
        p.labels = numbers
        network(sequences[numbers, :-1])
    return p.result().table


def test_the_metric_is_a_loop_over_queries():
    network, windows = model(), IDS[:480].view(20, 24)
    counted = count_continuations(IDS, vocab_size=V, context=CONTEXT, min_occurrences=15)
    rows = measured(AttendedWords(windows, counted), network, windows, torch.arange(20))
    weights = {}
    stream = network.positions(network.embedding(windows[:, :-1]) * 8**0.5)
    for layer, block in enumerate(network.blocks):
        scores = torch.einsum("bid,hde,bje->bhji", stream, block.attention.bilinear(), stream)
        weights[layer] = (
            scores.masked_fill(~torch.ones(23, 23).tril().bool(), -torch.inf)
            .softmax(-1)
            .detach()
            .double()
            .numpy()
        )
        stream = block(stream)
    for layer in (0, 1):
        for head in (0, 1):
            values = {name: [] for name in (CONDITIONAL, MARGINAL, DISTINCT, "uniform")}
            for b in range(20):
                for q in range(MIN_WORDS, 23):
                    place = int(counted.find(windows[b, q], windows[b, q + 1]))
                    if place < 0:
                        continue
                    a, words = weights[layer][b, head, q, :q], windows[b, :q]
                    for name, against in (
                        (CONDITIONAL, counted.conditional[place]),
                        (MARGINAL, counted.frequency),
                    ):
                        if len(set(against[words].tolist())) > 1:
                            values[name].append(np.corrcoef(a, against[words].numpy())[0, 1])
                    distinct = counted.distinctness[place][words].numpy()
                    if np.isfinite(distinct).any():
                        kept = np.isfinite(distinct)
                        values[DISTINCT].append(np.average(distinct[kept], weights=a[kept]))
                        values["uniform"].append(distinct[kept].mean())
            own = {row.quantity: row for row in rows.select(layer=layer, head=head)}
            for name in (CONDITIONAL, MARGINAL, DISTINCT):
                assert len(values[name]) > 50
                assert own[name].value == pytest.approx(np.mean(values[name]), abs=1e-5)
            assert own[DISTINCT].null.mean == pytest.approx(np.mean(values["uniform"]))
            assert own[CONDITIONAL].null.draws == (0.0,)
            assert own[DIAGONAL].value == pytest.approx(
                np.mean([np.diag(map_) for map_ in weights[layer][:, head]]), abs=1e-6
            )
            singular = torch.linalg.svdvals(
                network.blocks[layer].attention.bilinear()[head].detach().double()
            )
            assert own[RANK].value == pytest.approx(
                float(singular.square().sum() / singular[0] ** 2), rel=1e-5
            )


def test_uniform_attention_equals_its_null():
    windows = IDS[:480].view(20, 24)
    counted = count_continuations(IDS, vocab_size=V, context=CONTEXT, min_occurrences=15)
    network = model(depth=1)
    metric = AttendedWords(windows, counted)
    with torch.no_grad():
        for parameter in network.blocks[0].attention.qkv.parameters():
            parameter.zero_()
    rows = {
        row.quantity: row.value for row in measured(metric, network, windows, torch.arange(20)).select(head=0)
    }
    assert DISTINCT in rows
    assert CONDITIONAL not in rows, "uniform attention has no correlation"
    uniform = Table(metric.compute(draws=1)).select(quantity=DISTINCT)[0]
    assert uniform.value == pytest.approx(uniform.null.mean)
    assert [row.null for row in metric.compute(draws=0)] == [None] * len(metric.compute())


def test_merged_halves_are_the_whole():
    network, windows = model(), IDS[:480].view(20, 24)
    counted = count_continuations(IDS, vocab_size=V, context=CONTEXT, min_occurrences=15)
    whole, first, second = (AttendedWords(windows, counted) for _ in range(3))
    for metric, numbers in ((whole, range(20)), (first, range(7)), (second, range(7, 20))):
        measured(metric, network, windows, torch.tensor(list(numbers)))
    first.merge(second)
    for a, b in zip(first.compute(), whole.compute(), strict=True):
        assert a.quantity == b.quantity
        assert a.value == pytest.approx(b.value, abs=1e-9)
    copy = AttendedWords(windows, counted)
    copy.load_state_dict(first.state_dict())
    assert copy.compute() == first.compute()
    first.reset()
    assert first.compute() == []


def test_labels_must_number_the_windows():
    windows = IDS[:48].view(2, 24)
    metric = AttendedWords(
        windows, count_continuations(IDS, vocab_size=V, context=CONTEXT, min_occurrences=15)
    )
    with probe(model(), [metric]) as p:
        p.model(windows[:, :-1])
    assert "p.labels" in p.result().table[0].reason


@each_case(
    ("call", "words"),
    [
        (lambda: count_continuations(IDS, vocab_size=V, context=1), "context .* got 1"),
        (lambda: count_continuations(IDS, vocab_size=V, context=5, min_occurrences=10_000), "10000"),
        (lambda: count_continuations(IDS[:3], vocab_size=V, context=5), "got 0"),
        (lambda: phases([0, 1], [0.5, 0.5]), "overlaps, .* got 2 and 2"),
        (lambda: phases([0, 1, 1], [0.5, 0.5]), "steps"),
        (lambda: texts("no.txt", "", words=10), "no.txt"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_diagonal_mass(unchecked):
    assert float(attention.diagonal_mass(torch.eye(5))) == 1.0
    causal = torch.ones(4, 4).tril()
    assert float(attention.diagonal_mass(causal / causal.sum(1, keepdim=True))) == pytest.approx(
        (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4
    )
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        attention.diagonal_mass(torch.full((2, 3), 1 / 3))


def test_phases_of_known_curves():
    # rotating by these angles between readings: the overlap is the cosine, the chord 2 sin(angle / 2)
    angles = np.array([0.1, 0.8, 0.4, 0.02, 0.01])
    result = phases([0, 10, 20, 30, 40, 50], np.cos(angles).tolist())
    assert result.scanning == 15
    assert result.snapped == 30
    assert phases([0, 10, 20, 30, 40, 50], np.cos(angles[::-1]).tolist()).snapped is None, (
        "fast again at the end"
    )
    assert phases([0, 1, 11], np.cos([0.1, 0.2]).tolist()).scanning == 0.5, "speed is by step"
    assert phases([0, 5, 10], [1.0, 1.0]) == Phases(None, None), (
        "attention that never moved neither scans nor snaps"
    )


RUN = {
    "text": "",
    "held_out": "",
    "words": 60,
    "depth": 1,
    "rate": 1.0,
    "steps": 6,
    "measured": (0, 3, 6),
    "seed": 0,
}
SMALL = {"dim": 8, "batch": 4, "length": 10, "windows": 5}


def test_a_run_is_reproducible_and_has_one_untrained_null():
    run, again = train_and_measure(**RUN, **SMALL), train_and_measure(**RUN, **SMALL)
    assert np.array_equal(run.losses, again.losses)
    assert np.array_equal(run.maps, again.maps)
    assert run.maps.shape == (3, 1, 10, 10)
    assert_close(run.maps.sum(-1), np.ones((3, 1, 10)), rtol=1e-5, atol=1e-5, check_dtype=False)
    assert run.series(ENTROPY).shape == (3, 1)
    rows = run.table.select(quantity=ENTROPY)
    assert all(row.null.mean != row.value for row in rows)
    assert len({row.null for row in rows}) == 1, "one untrained network"
    assert len(run.held_out_losses) == 3


def test_shuffled_words_are_the_same_words():
    text, _ = texts("", "", words=50)
    other = shuffled(text, torch.Generator().manual_seed(0))
    assert torch.equal(other.ids.sort().values, text.ids.sort().values)
    assert not torch.equal(other.ids, text.ids)
    written, unordered = (
        train_and_measure(**RUN, **SMALL, order=order) for order in ("as written", "shuffled")
    )
    assert not np.array_equal(unordered.maps, written.maps)
    assert unordered.vocabulary == written.vocabulary


def test_a_users_own_text(tmp_path):
    words = [f"word{i * i % 17}" for i in range(300)]
    for name in ("learnt.txt", "other.txt"):
        (tmp_path / name).write_text(" ".join(words if name == "learnt.txt" else [*words[150:], "unheard"]))
    learnt, held_out = texts(str(tmp_path / "learnt.txt"), str(tmp_path / "other.txt"), words=100)
    vocabulary = Vocabulary.of(words, size=100)
    assert learnt.vocabulary == held_out.vocabulary == vocabulary
    assert torch.equal(held_out.ids, Text(vocabulary.numbers([*words[150:], "unheard"]), vocabulary).ids)
    assert int(held_out.ids[-1]) == 0


@pytest.mark.parametrize("kind", [text_attention, text_rates])
def test_settings_are_bounded(kind):
    with pytest.raises(ValueError, match="steps"):
        kind(steps=0)
