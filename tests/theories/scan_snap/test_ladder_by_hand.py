"""The ladder's prediction, nulls and trainings against loops in numpy: unequal classes and frequencies."""

from itertools import combinations

import numpy as np
import pytest
import torch

from transformer_theory.core.statistics import permutations
from transformer_theory.data.text import Text, Vocabulary
from transformer_theory.theories.scan_snap.ladder import LADDER, agreement, rungs, text
from transformer_theory.theories.scan_snap.ladder.agreement import SplitSequences

RUNGS = {rung.name: rung for rung in LADDER.rungs}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def softmax(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def descent(
    x: np.ndarray, target: np.ndarray, weight: np.ndarray, M: int, *, steps: int, eta_y: float, eta_z: float
) -> np.ndarray:
    """Descent of the model of the theory from zero on sequences with counts x [n, S]; returns z."""
    S = x.shape[1]
    Y, z = np.zeros((S, M)), np.zeros(S)
    for _ in range(steps):
        to_Y, to_z = np.zeros_like(Y), np.zeros(S)
        for row, n, w in zip(x, target, weight):
            c = row * np.exp(z)
            f = c / np.linalg.norm(c)
            error = np.eye(M)[n] - softmax(f @ Y)
            g = Y @ error
            to_Y += w * np.outer(f, error)
            to_z += w * f * (g - f * (f @ g))
        Y, z = Y + eta_y * to_Y, z + eta_z * to_z
    return z


def kruskal(a: np.ndarray, b: np.ndarray) -> float:
    signs = [np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]) for i, j in combinations(range(len(a)), 2)]
    return sum(signs) / np.abs(signs).sum()


def sequences() -> SplitSequences:
    """Nine words, of which one is missing in each part; three classes of 20, 9 and 6 sequences."""
    rng = np.random.default_rng(0)
    law = rng.dirichlet(np.full(9, 0.8), 3)

    def part(sizes: tuple[int, ...], missing: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.permutation(np.repeat([0, 1, 2], sizes))
        x = np.stack([rng.multinomial(12, law[n]) for n in y])
        x[:, missing] = 0
        x[:, 0] += 1
        return x, y

    (x, y), (held_x, held_y) = part((20, 9, 6), 4), part((11, 5, 4), 7)
    permuted = np.stack([held_y[rng.permutation(20)] for _ in range(5)])
    tensors = [torch.from_numpy(each) for each in (x.astype(float), y, held_x.astype(float), held_y)]
    return SplitSequences(*tensors, 3, 15, torch.from_numpy(permuted))


def conditional(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    totals = np.stack([x[y == n].sum(0) for n in range(3)])
    return totals / totals.sum(1, keepdims=True)


def flow(x: np.ndarray, y: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The population flow up to 4 K ln M, in 200 steps, with a decoder that is ten times as fast."""
    step = 4 * 3 * np.log(15) / 200
    return descent(conditional(x, y), np.arange(3), share, 15, steps=200, eta_y=step, eta_z=0.1 * step)


@pytest.mark.parametrize("most", [200, 5])
def test_the_prediction_and_its_null(monkeypatch, most: int):
    """Words that occur in both parts, the most frequent of the learnt part; shares are those of the part."""
    monkeypatch.setattr(agreement, "MAX_TOKENS", most)
    split = sequences()
    x, y, held_x, held_y = (
        each.numpy() for each in (split.counts, split.target, split.held_counts, split.held_target)
    )
    found = agreement.predict(split)
    both = [word for word in range(9) if x[:, word].sum() and held_x[:, word].sum()]
    frequent = sorted(both, key=lambda word: -x[:, word].sum())[:most]
    words = sorted(frequent)
    assert len(both) == 7
    assert found.tokens.tolist() == words
    share, held_share = (np.bincount(part) / len(part) for part in (y, held_y))
    expected = [flow(held_x[:, words], labels, held_share) for labels in (held_y, *split.permuted.numpy())]
    assert found.held_out.numpy() == pytest.approx(np.array(expected), rel=1e-6, abs=1e-9)
    assert found.learnt.numpy() == pytest.approx(flow(x[:, words], y, share), rel=1e-6, abs=1e-9)
    for labels, distinctness in zip((held_y, *split.permuted.numpy()), found.distinctness.numpy()):
        P = conditional(held_x[:, words], labels)
        assert distinctness == pytest.approx(P.max(0) / P.sum(0))


def test_the_rows_of_a_change():
    """Each quantity beside the predictions from permuted next tokens; learnt sequences have no null."""
    split = sequences()
    found = agreement.predict(split)
    change = np.random.default_rng(1).standard_t(3, size=9)
    head, distinct, learnt, ceiling = agreement.agreement_rows(
        found, lambda: torch.from_numpy(change), "said"
    )
    moved = change[found.tokens.numpy()]
    held, own, distinctness = (each.numpy() for each in (found.held_out, found.learnt, found.distinctness))
    assert head.value == pytest.approx(kruskal(moved, held[0]))
    assert head.null.draws == pytest.approx([kruskal(moved, each) for each in held[1:]])
    assert distinct.value == pytest.approx(kruskal(moved, distinctness[0]))
    assert distinct.null.draws == pytest.approx([kruskal(moved, each) for each in distinctness[1:]])
    assert learnt.value == pytest.approx(kruskal(own, moved))
    assert learnt.null is None
    assert ceiling.value == pytest.approx(kruskal(own, held[0]))
    assert ceiling.null.draws == pytest.approx([kruskal(own, each) for each in held[1:]])
    rows = (head, distinct, learnt, ceiling)
    assert [row.side for row in rows] == [">="] * 4
    assert [row.n for row in rows] == [7] * 4
    assert {row.bounds for row in rows} == {(-1.0, 1.0)}
    assert [row.split for row in rows] == ["validation", "validation", "train", ""]
    assert (head.predicted, head.basis, head.note) == (1.0, "limit", "said")


def test_next_tokens_of_all_sequences_are_permuted_together():
    labels, part = torch.arange(12) % 5, torch.tensor([7, 2, 9])
    orders = permutations(12, 399).numpy()
    assert agreement.permuted_next_tokens(labels, part).tolist() == [
        [(orders[draw, i] % 5) for i in (7, 2, 9)] for draw in range(399)
    ]


def test_sequences_that_are_drawn_have_permutations_of_their_own():
    classes = rungs.ten_classes(generator(1))
    split = rungs.drawn(classes, context=15, generator=generator(2))
    assert split.counts.shape[0] == len(split.target) == 762
    assert split.held_counts.shape[0] == len(split.held_target) == 320
    assert split.permuted.shape == (399, 320)
    assert split.counts.sum(1).tolist() == [15.0] * 762
    for each in split.permuted[:20]:
        assert torch.equal(each.sort().values, split.held_target.sort().values)
    g = generator(2)
    classes.sample_counts(762, context=15, generator=g)
    classes.sample_counts(320, context=15, generator=g)
    orders = [torch.randperm(320, generator=g) for _ in range(3)]
    assert torch.equal(split.permuted[:3], torch.stack([split.held_target[order] for order in orders]))


# ---- the trainings


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_the_model_of_the_theory_learns_the_learnt_sequences(rate: float):
    """As many steps of length one as the prediction's time, 4 K ln M = 32, on the mean over sequences."""
    split = sequences()
    x, y = split.counts.numpy(), split.target.numpy()
    found = rungs.reparametrised(rate, split, generator()).numpy()
    expected = descent(x, y, np.full(35, 1 / 35), 15, steps=round(4 * 3 * np.log(15)), eta_y=1.0, eta_z=rate)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
    other = SplitSequences(
        **{**vars(split), "held_target": split.held_target.flip(0), "held_counts": split.held_counts.flip(0)}
    )
    assert torch.equal(rungs.reparametrised(rate, other, generator()), torch.from_numpy(found))


def test_softmax_attention_without_a_norm(monkeypatch):
    """Three steps of descent at rate 8 from zero."""
    monkeypatch.setattr(rungs, "SOFTMAX_STEPS", 3)
    split = sequences()
    x, y = split.counts.numpy(), split.target.numpy()
    z, D = np.zeros(9), np.zeros((9, 15))
    for _ in range(3):
        a = x * np.exp(z)
        a = a / a.sum(1, keepdims=True)
        error = softmax(a @ D) - np.eye(15)[y]
        to_a = error @ D.T / 35
        to_z = (a * (to_a - (a * to_a).sum(1, keepdims=True))).sum(0)
        z, D = z - 8 * to_z, D - 8 * a.T @ error / 35
    found = rungs.softmax_attention(split, generator()).numpy()
    assert found == pytest.approx(z, rel=1e-3, abs=1e-5)
    assert np.abs(z).max() > 0.1


def test_the_rungs_train_what_their_names_say():
    own = {
        "two classes": (rungs.two_classes, 20_000),
        "ten classes": (rungs.ten_classes, 20_000),
        "short sequences": (rungs.ten_classes, 15),
        "redrawn words": (rungs.redrawn_words, 15),
    }
    for name, (draw, context) in own.items():
        assert RUNGS[name].measure.func is rungs.own_rung
        assert RUNGS[name].measure.keywords == {"draw": draw, "context": context}
    trained = {
        "visual words": (rungs.reparametrised, (0.1,)),
        "one learning rate": (rungs.reparametrised, (1.0,)),
        "K, Q and V": (rungs.network, (False, 0, False)),
        "AdamW": (rungs.network, (False, 0, True)),
        "positions": (rungs.network, (True, 0, True)),
        "LayerNorm and MLP": (rungs.network, (True, 1, True)),
        "three layers": (rungs.network, (True, 3, True)),
    }
    for name, (function, arguments) in trained.items():
        train = RUNGS[name].measure.keywords["train"]
        assert (train.func, train.args) == (function, arguments)
        expected = rungs.retrained_rung if name == "three layers" else rungs.words_rung
        assert RUNGS[name].measure.func is expected
    assert RUNGS["softmax attention"].measure.keywords["train"] is rungs.softmax_attention


def test_two_classes_and_ten_classes():
    """Relative probabilities lie between .1 and 1; the common token of two classes has the probability .2."""
    two = rungs.two_classes(generator(4)).conditional.numpy()
    assert two.shape == (2, 21)
    common = (two > 0).all(0)
    assert common.sum() == 1
    assert two[:, common] == pytest.approx(np.full((2, 1), 0.2))
    for row in two:
        own = row[(row > 0) & ~common]
        assert len(own) == 10
        assert own.max() / own.min() <= 10
    ten = rungs.ten_classes(generator(4))
    assert len(ten.conditional) == 10
    assert ten.conditional.sum(1).numpy() == pytest.approx(np.ones(10))


@pytest.mark.parametrize("query", [0, -1])
def test_the_logit_of_a_word_changes_from_the_start_to_the_end_of_a_training(monkeypatch, query: int):
    """Given logits: the measured change is the later one less the earlier one."""
    logits = iter([torch.arange(50.0).double(), torch.arange(50.0).double() ** 2])
    asked = []

    def measured(model, inputs, words, *, count, query=-1):
        asked.append((inputs, words, count, query))
        return next(logits)[:count]

    monkeypatch.setattr(rungs, "word_logits", measured)
    monkeypatch.setattr(rungs, "BLOCK_STEPS", 1)
    if query:
        split, _ = rungs.visual_words(5)
        change = rungs.network(True, 1, True, split, generator(5))
        context = split.data.ids[:, :-1]
    else:
        seen = []
        monkeypatch.setattr(
            rungs,
            "agreement_rows",
            lambda prediction, change, note: iter([seen.append((prediction, change()))]),
        )
        list(rungs.vit_rung(generator(5)))
        split, prediction = rungs.whole_images(5)
        assert seen[0][0] is prediction
        change, context = seen[0][1], split.data.ids
        assert context.shape[1] == 16
    count = split.counts.shape[1]
    assert change.numpy() == pytest.approx(np.arange(count) ** 2 - np.arange(count))
    for inputs, words, number, place in asked:
        assert torch.equal(inputs.double(), split.data.tokens.double())
        assert torch.equal(words, context)
        assert (number, place) == (count, query)
    # words of the context are counted in the prediction as well
    counts = torch.nn.functional.one_hot(context, count).sum(1)
    assert torch.equal(counts.double(), split.counts)


def test_whole_images_have_a_class_token_as_query():
    split, _ = rungs.whole_images(3)
    assert split.counts.sum(1).unique().tolist() == [16.0]
    assert len(split.counts) + len(split.held_counts) == 1797
    assert len(split.counts) == pytest.approx(0.7 * 1797, abs=10)


# ---- the text


def words_of_a_text(seed: int) -> np.ndarray:
    """12,345 words; the rarer a word the larger its number, 0 is unknown; the query is word 1 or 2."""
    rng = np.random.default_rng(seed)
    p = 1 / np.arange(1, 41) ** 1.1
    ids = rng.choice(40, size=12_345, p=p / p.sum())
    follow = np.flatnonzero(ids[:-1] == 1)
    ids[follow + 1] = rng.integers(2, 20, size=len(follow))  # more next words than classes
    return ids


def a_text(ids: np.ndarray) -> Text:
    return Text(torch.from_numpy(ids), Vocabulary(("<unk>", *(f"w{i}" for i in range(1, 40)))), "own")


def test_the_sequences_of_a_text(monkeypatch):
    """Seven of ten stretches of 1,000 words are learnt; ten next words are classes, 30 words are counted."""
    monkeypatch.setattr(text, "KEPT", 30)
    ids = words_of_a_text(0)
    learnt, split, windows, kept = text.text_sequences(a_text(ids))
    stretches = [ids[start : start + 1000] for start in range(0, len(ids), 1000)]
    own = np.concatenate([each for i, each in enumerate(stretches) if i % 10 < 7])
    held = np.concatenate([each for i, each in enumerate(stretches) if i % 10 >= 7])
    assert learnt.ids.tolist() == own.tolist()
    query = 1 + np.bincount(own)[1:].argmax()

    def ends(part: np.ndarray) -> list[tuple[np.ndarray, int]]:
        return [(part[i - 34 : i + 1], part[i + 1]) for i in range(34, len(part) - 1) if part[i] == query]

    first, second = ends(own), ends(held)
    known = {word for _, word in second}
    number = np.bincount([word for _, word in first if word in known and word > 0])
    following = sorted(range(len(number)), key=lambda word: (-number[word], word))[:10]
    frequent = np.bincount(np.concatenate([window[:-1] for window, _ in first]))
    top = sorted(sorted(range(len(frequent)), key=lambda word: (-frequent[word], word))[:30])
    assert kept.tolist() == top
    for counts, target, part in (
        (split.counts, split.target, first),
        (split.held_counts, split.held_target, second),
    ):
        expected = [
            ([np.sum(w[:-1] == word) for word in top], following.index(n)) for w, n in part if n in following
        ]
        assert target.tolist() == [n for _, n in expected]
        assert counts.tolist() == [row for row, _ in expected]
    assert (split.classes, split.vocab_size) == (10, 40)
    orders = permutations(len(split.held_target), 399).numpy()
    assert split.permuted.numpy() == pytest.approx(split.held_target.numpy()[orders])
    assert windows.tolist() == [window.tolist() for window, _ in first]


def test_the_decoder_learns_the_learnt_stretches_alone(monkeypatch):
    """Other words in the held-out stretches change the prediction and not the training."""
    monkeypatch.setattr(text, "STEPS", 2)
    monkeypatch.setattr(text, "PROBED", 40)
    seen, asked = [], []
    monkeypatch.setattr(
        text,
        "agreement_rows",
        lambda prediction, change, note: iter([seen.append((prediction, change(), note))]),
    )
    logits = text.word_logits
    monkeypatch.setattr(
        text,
        "word_logits",
        lambda model, inputs, words, **o: (
            asked.append((model.training, inputs, words, logits(model, inputs, words, **o))),
            asked[-1][-1],
        )[1],
    )
    ids = words_of_a_text(1)
    other = ids.copy()
    for i in range(0, len(ids), 1000):
        if i // 1000 % 10 >= 7:
            other[i : i + 1000] = np.random.default_rng(2).permutation(ids[i : i + 1000])
    for each in (ids, other):
        list(text.text_rung(generator(3), a_text(each)))
    (first, change, note), (second, again, _) = seen
    assert torch.equal(change, again)
    assert not torch.equal(first.held_out[0], second.held_out[0])
    _, _, windows, kept = text.text_sequences(a_text(ids))
    assert len(windows) == 40
    assert change.numpy() == pytest.approx((asked[1][-1] - asked[0][-1]).numpy()[kept.numpy()])
    assert float(change.abs().max()) > 0
    for training, inputs, words, _ in asked:
        assert not training
        assert torch.equal(inputs, windows)
        assert torch.equal(words, windows[:, :-1])
    assert "'w" in note


def test_the_decoder_of_a_text_has_two_layers_of_width_96(monkeypatch):
    """Four heads, hidden units as many as the width; trained by Adam at the rate .001 for 400 steps."""
    asked, notes = [], []

    def train(model, learnt, *, optimiser, steps, generator):
        asked.append((model, learnt, optimiser(torch.nn.Linear(1, 1)), steps))

    monkeypatch.setattr(text, "train_decoder", train)
    monkeypatch.setattr(text, "word_logits", lambda *_, count, **__: torch.arange(count).float())
    monkeypatch.setattr(
        text, "agreement_rows", lambda prediction, change, note: iter([notes.append((change(), note))])
    )
    given = a_text(words_of_a_text(1))
    list(text.text_rung(generator(3), given))
    ((model, learnt, optimiser, steps),) = asked
    assert (len(model.blocks), model.blocks[0].attention.heads) == (2, 4)
    assert tuple(model.blocks[1].mlp[0].weight.shape) == (96, 96)
    assert model.embedding.weight.shape[1] == 96
    group = optimiser.param_groups[0]
    assert isinstance(optimiser, torch.optim.Adam)
    assert (group["lr"], steps) == (1e-3, 400)
    stretches = np.split(given.ids.numpy(), range(1000, len(given.ids), 1000))
    ids = np.concatenate([part for i, part in enumerate(stretches) if i % 10 < 7])
    assert learnt.ids.tolist() == ids.tolist()
    assert notes[0][1].endswith("400 steps of Adam")
