"""Patches, words and layers against numbers from numpy: unequal heads and classes, grids that are not square,
features of different spectra.
"""

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.metric import NO_IMAGES, Activations, Grid
from transformer_theory.core.statistics import permutations
from transformer_theory.core.table import collect
from transformer_theory.data import TokenData
from transformer_theory.models.embedding import build
from transformer_theory.theories import vision
from transformer_theory.theories.vision import in_networks, ladder, learning, on_data, relevance, tokens
from transformer_theory.theories.vision.association import group_ranking
from transformer_theory.training.fitting import fit


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def attention(weights: np.ndarray, **parts) -> Activations:
    tokens = parts.pop("tokens", torch.zeros(len(weights), weights.shape[2], 2))
    columns = {"grid": NO_IMAGES, **parts}
    return Activations("", 0, "attention", tokens, tokens, weights=torch.from_numpy(weights), **columns)


class Counted:
    """Posteriors of words at places, with five images of the smoothed prior added to each word."""

    def __init__(self, ids: np.ndarray, labels: np.ndarray, words: int, classes: int):
        prior = np.array([(np.sum(labels == k) + 1) / (len(labels) + classes) for k in range(classes)])
        self.log_ratio = np.empty((ids.shape[1], words, classes))
        self.relevance = np.empty((ids.shape[1], words))
        for t, w in np.ndindex(*self.relevance.shape):
            with_word = labels[ids[:, t] == w]
            n = np.array([np.sum(with_word == k) for k in range(classes)])
            posterior = (n + 5 * prior) / (len(with_word) + 5)
            self.log_ratio[t, w] = np.log(posterior / prior)
            self.relevance[t, w] = max(0, np.sum(posterior * np.log(posterior / prior)))

    def gains(self, ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.array([[self.log_ratio[t, w, y] for t, w in enumerate(row)] for row, y in zip(ids, labels)])

    def share(self, ids: np.ndarray, labels: np.ndarray, threshold: float) -> float:
        """The share of patches whose word has a mean gain of at least the threshold at its place."""
        gains, right = self.gains(ids, labels), 0
        for t in range(ids.shape[1]):
            for w in set(ids[:, t].tolist()):
                same = ids[:, t] == w
                right += same.sum() * (gains[same, t].mean() >= threshold)
        return right / ids.size

    def top(self, ids: np.ndarray, count: int) -> np.ndarray:
        relevance = np.array([[self.relevance[t, w] for t, w in enumerate(row)] for row in ids])
        return relevance >= np.sort(relevance, 1)[:, -count][:, None]


# ---- on data


def words_and_labels(n: int = 90) -> on_data.LabelledWords:
    """Words of which those at place 1 tell the class, and those at place 2 a little; unequal classes."""
    rng = np.random.default_rng(0)
    labels = rng.choice(3, n, p=[0.6, 0.3, 0.1])
    ids = rng.integers(4, size=(n, 3))
    ids[:, 1] = np.where(rng.random(n) < 0.8, labels + 1, ids[:, 1])
    ids[:, 2] = np.where(rng.random(n) < 0.4, labels, ids[:, 2])
    order = rng.permutation(n)
    parts = (torch.from_numpy(each) for each in (ids, labels))
    return on_data.LabelledWords(*parts, 4, *torch.from_numpy(order).split([50, n - 50]))


def rows_of(problem: on_data.LabelledWords, draws: int) -> tuple[dict[str, Measurement], dict]:
    table, arrays = collect(on_data.measure(problem, generator(), draws=draws))
    return {row.quantity: row for row in table}, arrays


def test_shares_and_gains_on_the_measured_images():
    problem = words_and_labels()
    ids, labels = problem.ids.numpy(), problem.labels.numpy()
    counted, measured = problem.counted.numpy(), problem.measured.numpy()
    posteriors = Counted(ids[counted], labels[counted], 4, 3)
    p = np.bincount(labels[measured]) / 40
    threshold = -0.1 * np.sum(p * np.log(p))
    rows, arrays = rows_of(problem, 39)
    share, gain = rows[on_data.SHARE], rows[on_data.GAIN]
    assert share.value == pytest.approx(posteriors.share(ids[measured], labels[measured], threshold))
    shuffled = [labels[measured][order] for order in permutations(40, 39).numpy()]
    assert share.null.draws == pytest.approx(
        [posteriors.share(ids[measured], each, threshold) for each in shuffled]
    )
    assert share.value > np.mean(share.null.draws) + 0.1
    gains = posteriors.gains(ids[measured], labels[measured])
    assert gain.value == pytest.approx(gains.mean())
    assert arrays["vision/gain"] == pytest.approx(gains.mean(0))
    expected = [posteriors.gains(ids[measured], each).mean() for each in shuffled[:19]]
    assert gain.null.draws == pytest.approx(expected)
    for row in (share, gain):
        assert (row.side, row.n, row.split) == (">=", 40, "test")


def test_each_class_is_counted_and_measured_in_equal_parts():
    labels = np.repeat([4, 9, 1], [40, 20, 12])
    ids = np.random.default_rng(1).choice([5, 70, 12], size=(72, 4))
    data = TokenData(tokens=torch.zeros(72, 4, 1), labels=torch.from_numpy(labels), ids=torch.from_numpy(ids))
    problem = on_data.read(data)
    assert isinstance(problem, on_data.LabelledWords)
    chosen = permutations(72, 1)[0].numpy()
    assert problem.labels.tolist() == [{1: 0, 4: 1, 9: 2}[each] for each in labels[chosen]]
    assert problem.ids.tolist() == [[{5: 0, 12: 1, 70: 2}[word] for word in row] for row in ids[chosen]]
    assert problem.words == 3
    parts = [
        np.bincount(problem.labels[part].numpy()).tolist() for part in (problem.counted, problem.measured)
    ]
    assert parts == [[6, 20, 10], [6, 20, 10]]
    assert not set(problem.counted.tolist()) & set(problem.measured.tolist())


# ---- patches


@pytest.mark.parametrize("leading", [0, 1])
def test_shares_of_unequal_heads_on_a_grid_of_two_rows(leading: int):
    rng = np.random.default_rng(2)
    T = 6 + leading
    weights = rng.dirichlet(np.full(T, 0.5), size=(4, 2, T))
    weights[:, 1] = 0.8 * weights[:, 1] + 0.2 * np.eye(T)
    weights[2, 1, T - 1] = np.eye(T)[T - 1]  # no weight on other patches
    places = (torch.arange(T) - leading).clamp(min=-1).expand(4, T)
    metric = vision.PatchAttention()
    metric.update(attention(weights, grid=Grid(2, 3, places)))
    at = np.array([[p // 3, p % 3] for p in range(6)], float)
    distance = np.linalg.norm(at[:, None] - at, axis=-1)
    W = weights[..., leading:, leading:] * (1 - np.eye(6))
    total = W.sum(-1)
    used = total > 1e-12
    rows = {(row.quantity, row.head): row for row in metric.compute()}
    for head in (0, 1):
        for quantity, factor in ((in_networks.NEIGHBOURS, distance == 1), (in_networks.DISTANCE, distance)):
            each = (W * factor).sum(-1)[:, head][used[:, head]] / total[:, head][used[:, head]]
            row = rows[quantity, head]
            assert row.value == pytest.approx(each.mean(), rel=1e-6)
            assert row.n == 4
        assert rows[in_networks.NEIGHBOURS, head].side == ">="
        assert rows[in_networks.DISTANCE, head].bounds == (1, pytest.approx(math.sqrt(5)))
        near, far = (distance == 1).sum() / 30, distance.sum() / 30
        assert f"uniform attention: {near:.3f} and {far:.2f}" in rows[in_networks.NEIGHBOURS, head].note


def test_mass_on_relevant_patches_and_its_null(monkeypatch):
    """Ten patches, of which two count; the first query is read; the maps of one head depend on places only,
    those of the other on contents, and labels tell little.
    """
    rng = np.random.default_rng(73)
    n, T = 300, 10
    labels = rng.choice([2, 5, 11], n, p=[0.5, 0.3, 0.2])
    words = rng.choice(6, size=(n, T), p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.1])
    words[:, 4] = np.where(rng.random(n) < 0.7, np.searchsorted([2, 5, 11], labels), words[:, 4])
    weights = rng.dirichlet(np.ones(T + 1), size=(n, 2, T + 1))
    weights[:, 0, 0, 1:] = rng.dirichlet(np.ones(T)) * 0.7
    weights[:, 1, 0, 1:] *= np.where(words > 2, 4.0, 1.0)
    tokens = np.concatenate([np.zeros((n, 1)), words + np.linspace(0, 100, T)], 1)[..., None]
    seen = {}

    def words_of(centred: torch.Tensor) -> torch.Tensor:
        seen["mean"] = centred.mean(0).abs().max()
        return torch.from_numpy(words)

    monkeypatch.setattr(in_networks, "words_of", words_of)
    metric = vision.RelevantMass()
    first = (torch.arange(T + 1) == 0).expand(n, T + 1)
    parts = {"labels": torch.from_numpy(labels), "read": first, "content": ~first}
    metric.update(attention(weights, tokens=torch.from_numpy(tokens).float(), **parts))
    rows = metric.compute(draws=5)
    assert seen["mean"] < 1e-4  # words are those of tokens that are centred at each place
    y = np.searchsorted([2, 5, 11], labels)
    top = Counted(words[::2], y[::2], 6, 3).top(words[1::2], 2)
    maps = weights[1::2, :, 0, 1:] / weights[1::2, :, 0, 1:].sum(-1, keepdims=True)
    rest = maps - maps.mean(0)
    orders = permutations(150, 5).numpy()
    excess = [Counted(words[::2], y[::2][order], 6, 3).top(words[1::2], 2) for order in orders]
    assert all((each.sum(1) == 2).all() for each in [top, *excess])  # no ties
    for head, row in enumerate(rows):
        assert row.value == pytest.approx((maps[:, head] * top).sum(1).mean(), rel=1e-5)
        null = [
            (maps[:, head] * top[order]).sum(1).mean() + max(0.0, (rest[:, head] * other).sum(1).mean())
            for order, other in zip(orders, excess)
        ]
        assert row.null.draws == pytest.approx(null, rel=1e-5)
        assert (row.n, row.side, row.head) == (150, ">=", head)
    assert in_networks.IN_NETWORKS.side == ">="


def test_labels_of_the_measured_images_do_not_change_which_patches_are_relevant(monkeypatch):
    rng = np.random.default_rng(4)
    words, labels = rng.integers(5, size=(40, 5)), rng.integers(2, size=40)
    weights = rng.dirichlet(np.ones(5), size=(40, 1, 5))
    monkeypatch.setattr(in_networks, "words_of", lambda _: torch.from_numpy(words))
    other = labels.copy()
    other[1::2] = 1 - other[1::2]
    rows = []
    for each in (labels, other):
        metric = vision.RelevantMass()
        metric.update(attention(weights, labels=torch.from_numpy(each)))
        rows += metric.compute(draws=5)
    assert rows[0] == rows[1]


# ---- layers


def hsic(K: np.ndarray, L: np.ndarray) -> float:
    """The unbiased estimator of Song et al."""
    n = len(K)
    K, L = K - np.diag(np.diag(K)), L - np.diag(np.diag(L))
    cross = np.trace(K @ L) + K.sum() * L.sum() / ((n - 1) * (n - 2)) - 2 * (K @ L).sum() / (n - 2)
    return cross / (n * (n - 3))


def test_cka_of_layers_with_different_spectra_is_that_of_the_formula():
    """HSIC is summed over batches, of features with mean square 1; of 40 images 32 are compared, and one
    that is not finite is left out.
    """
    rng = np.random.default_rng(5)
    metric, sums = vision.LayerSimilarity(), np.zeros((3, 3))
    for n in (40, 12):
        x = rng.standard_t(5, size=(n, 2, 5)) * np.linspace(4, 0.2, 5)
        layers = [x, 30 * np.tanh(x[..., ::2]) ** 3 + 2, x[..., 2:] @ rng.normal(size=(3, 7))]
        layers[0][3, 1, 2] = np.nan if n == 40 else layers[0][3, 1, 2]
        layers[2][0, 0, 0] = np.inf
        finite = np.delete(np.arange(n), 3) if n == 40 else np.arange(n)
        used = finite[np.floor(np.linspace(0, len(finite) - 1, min(32, len(finite)))).astype(int)]
        grams = {}
        for layer, each in enumerate(layers):
            output = torch.from_numpy(each)
            metric.update(Activations(f"block {layer}", layer, "features", output, output))
            kept = used[np.isfinite(each[used]).all((1, 2))]
            flat = each[kept].reshape(len(kept), -1)
            flat = flat - flat.mean(0)
            flat = flat / math.sqrt((flat**2).mean())
            grams[layer] = kept, flat @ flat.T / flat.shape[1]
            places = np.isin(grams[0][0], kept)
            first = grams[0][1][np.ix_(places, places)]
            pairs = (first, grams[layer][1]), (grams[layer][1],) * 2, (first, first)
            sums[layer] += [hsic(*pair) for pair in pairs]
    rows = metric.compute()
    for row, (cross, own, reference) in zip(rows, sums[1:]):
        assert row.value == pytest.approx(cross / math.sqrt(own * reference))
        assert abs(row.value - cross / max(own, reference)) > 0.03
        assert row.n == 52
    assert len(rows) == 2


# ---- groups and the ladder


def random_attention(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(6, 0.5), size=6)


GROUPS = np.array([0, 1, 0, 2, 1, 2])


def mass(S: np.ndarray, groups: np.ndarray) -> float:
    return float(
        np.mean([
            sum(S[i, j] for j in range(6) if j != i and groups[j] == groups[i]) / (1 - S[i, i])
            for i in range(6)
        ])
    )  # fmt: skip


def test_rows_of_an_attention_matrix():
    S = random_attention(6)
    row, ranking, accuracy = ladder.rows_of(torch.from_numpy(S), torch.from_numpy(GROUPS), 0.6)
    assert row.value == pytest.approx(mass(S, GROUPS))
    orders = permutations(6, 399).numpy()
    assert row.null.draws == pytest.approx([mass(S, GROUPS[order]) for order in orders])
    assert np.mean(row.null.draws) == pytest.approx(1 / 5, abs=0.02)
    free = S - 2 * np.eye(6)
    assert ranking.value == pytest.approx(np.mean(GROUPS[free.argmax(1)] == GROUPS))
    assert accuracy.value == 0.6
    assert [each.side for each in (row, ranking, accuracy)] == [">="] * 3
    assert [each.predicted for each in (row, ranking, accuracy)] == [1, 1, None]


def test_tied_entries_share_the_places():
    """Groups of three: one entry is above, and three are tied for the second place, one of the own group."""
    A = np.full((6, 6), -1.0)
    A[:, :4] = 0.5
    A[0, :5] = 9, 0.5, 0.5, 2, 0.5
    groups = np.array([0, 0, 1, 0, 1, 1])
    expected = []
    for i in range(6):
        entries = sorted(((A[i, j], groups[j] == groups[i]) for j in range(6) if j != i), reverse=True)
        last = entries[1][0]
        above = [own for value, own in entries if value > last]
        tied = [own for value, own in entries if value == last]
        expected.append((sum(above) + (2 - len(above)) * np.mean(tied)) / 2)
    assert group_ranking(A, groups) == pytest.approx(np.mean(expected))
    assert expected[0] == pytest.approx((1 + 1 / 3) / 2)


def test_a_network_has_the_mean_map_of_its_heads_between_patches(monkeypatch):
    """Two layers with two heads, five images, a class token in front; rows are divided by their sums last."""
    rng = np.random.default_rng(7)
    sums = {(layer, 0): rng.dirichlet(np.full(7, 0.4), size=(5, 2, 7)) for layer in (0, 1)}
    seen = SimpleNamespace(sums={key: torch.from_numpy(each) for key, each in sums.items()})
    accumulate = SimpleNamespace(accumulate=lambda _: nullcontext())
    for name, fake in {
        "AttentionMaps": lambda keep: seen,
        "probe": lambda *_, **__: nullcontext(accumulate),
        "evaluation": lambda _: nullcontext(),
        "vit_for": lambda *_, **__: lambda _: None,
        "fit_classifier": lambda *_, **__: 0.7,
    }.items():
        monkeypatch.setattr(ladder, name, fake)
    data = TokenData(tokens=torch.zeros(5, 6, 2), labels=torch.arange(5) % 2)
    rows = list(ladder.measured(data, data, torch.from_numpy(GROUPS), generator(), depth=2, steps=1))
    mean = np.concatenate(list(sums.values()), 1).mean((0, 1))[1:, 1:]
    assert rows[0].value == pytest.approx(mass(mean / mean.sum(1, keepdims=True), GROUPS))
    assert rows[2].value == 0.7


def test_quadrants_of_a_grid_of_four_rows():
    expected = [[2 * (row // 2) + column // 2 for column in range(4)] for row in range(4)]
    assert ladder.QUADRANTS.reshape(4, 4).tolist() == expected


def test_the_mass_on_relevant_keys_is_the_mean_over_queries():
    rng = np.random.default_rng(8)
    weights, relevant = rng.dirichlet(np.ones(4), size=(3, 5)), rng.random((3, 4)) < 0.5
    found = vision.attention_mass(torch.from_numpy(weights), torch.from_numpy(relevant))
    assert found.tolist() == pytest.approx([np.mean(w[:, r].sum(1)) for w, r in zip(weights, relevant)])


def test_attention_to_another_group_is_that_to_the_next_one():
    """Three groups of two; the last attends to the first."""
    groups = np.array([2, 0, 1, 0, 2, 1])
    expected = [[float(groups[j] == (groups[i] + 1) % 3) / 2 for j in range(6)] for i in range(6)]
    assert vision.other_group_attention(torch.from_numpy(groups)).tolist() == expected


def test_rungs_train_positional_attention_as_their_names_say(monkeypatch):
    seen = []

    def known(data, **settings):
        settings.pop("generator")
        seen.append(settings)
        weights = torch.full((data.patches, data.patches), 1 / data.patches)
        return SimpleNamespace(model=SimpleNamespace(weights=lambda: weights), accuracy=0.5)

    monkeypatch.setattr(ladder, "train_patches", known)
    rungs = [rung for rung in ladder.LADDER.rungs if rung.measure.func is ladder.trained]
    for rung in rungs:
        mass_row, *_ = rung.measure(generator())
        assert mass_row.value == pytest.approx((ladder.DATA.group - 1) / (ladder.DATA.patches - 1))
    common = {"optimiser": "adam", "steps": 800, "diagonal": True, "spread": 0.1}
    assert dict(zip([rung.name for rung in rungs], seen)) == {
        "P P^T, trained": common | {"rank": ladder.DATA.patches, "stored": 0, "decay": 0.0},
        "free A": common | {"rank": 0, "stored": 0, "decay": 0.0},
        "AdamW, 1,024 images": common | {"rank": 0, "stored": 1024, "decay": 0.01},
    }


@pytest.mark.parametrize("stored", [0, 7])
def test_batches_are_drawn_by_the_generator_alone(stored: int):
    """Of new images, or with replacement from those that are stored."""
    data = vision.SpatialPatchData(patches=6, group=2, dim=3)
    w, batches = data.direction(generator(1)), []
    for seed in (10, 11):
        torch.manual_seed(seed)
        stream = learning._stream(data, w, 5, stored)(generator(2))
        batches.append([next(stream) for _ in range(3)])
    for first, second in zip(*batches):
        for name in ("patches", "labels", "active"):
            assert torch.equal(getattr(first, name), getattr(second, name))
    images = torch.cat([batch.patches for batch in batches[0]]).flatten(1)
    assert len(images) == 15
    assert len(images.unique(dim=0)) == 15 if not stored else len(images.unique(dim=0)) <= 7


@pytest.mark.parametrize(("lowest", "refused"), [(-1, True), (1, False)])
def test_labels_from_zero_on_have_a_relevant_share(lowest: int, refused: bool):
    """Measured images need not contain all classes."""
    ids, labels = torch.tensor([[0, 1], [1, 1], [0, 0]]), torch.tensor([0, 1, 2])
    posteriors = relevance.word_posteriors(ids, labels, words=2, classes=3)
    measured = torch.tensor([lowest, 2, 2])
    if refused:
        with pytest.raises(ValueError, match="must fit"):
            vision.relevant_share(posteriors, ids, measured, threshold=0.1)
    else:
        share = vision.relevant_share(posteriors, ids, measured, threshold=-100.0)
        assert share == 1.0


# ---- label-relevant tokens


class Kept(tokens.LabelRelevantTokens):
    """Remembers the sequences that it has drawn."""

    drawn: ClassVar[list] = []

    def sample(self, *shape: int, generator: torch.Generator):
        self.drawn.append((shape, super().sample(*shape, generator=generator)))
        return self.drawn[-1][1]


@pytest.fixture(name="trained")
def fixture_trained(monkeypatch):
    """A function that trains three models for five steps; returns the measurement, both sets of sequences,
    the weights before and after, and what is asked of the training.
    """

    def train(**settings):
        Kept.drawn, models, before, asked = [], [], [], []

        def built(make, g):
            models.append(build(make, g))
            before.append(weights_of(models[0]))
            return models[0]

        def fitted(model, task, **options):
            asked.append((task, options))
            fit(model, task, **options)

        monkeypatch.setattr(tokens, "build", built)
        monkeypatch.setattr(tokens, "fit", fitted)
        data = Kept(alpha=0.3, noise=0.4, tokens=9, patterns=4, dim=6)
        found = tokens.train_tokens(
            data, 70, networks=3, steps=5, rate=0.05, generator=generator(2), **settings
        )
        return found, Kept.drawn, before[0], weights_of(models[0]), asked[0]

    return train


def weights_of(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().double().numpy().copy() for name, value in model.state_dict().items()}


def attention_of(W: dict[str, np.ndarray], network: int, x: np.ndarray) -> np.ndarray:
    """Token i has the weights softmax(X W x_i), with W of the network."""
    scores = x @ W["score"][network] @ x.T
    e = np.exp(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_accuracy_and_mass_are_those_of_the_trained_models_on_new_sequences(trained):
    """F = 1/T sum_i a^T relu(V sum_j S_ij x_j) > 0 where the label is +1; the mass is that of 50 images."""
    found, drawn, before, after, _ = trained()
    (_, stored), (shape, test) = drawn
    assert shape == (3, 200)
    x, y, relevant = (each.double().numpy() for each in (test.tokens, test.labels, test.relevant))
    assert stored.tokens.shape == (3, 70, 9, 6)
    accuracy, masses = np.zeros(3), np.zeros((2, 3))
    for network in range(3):
        for image in range(200):
            S = attention_of(after, network, x[network, image])
            F = np.mean(np.maximum(S @ x[network, image] @ after["value"][network], 0) @ after["output"])
            accuracy[network] += (y[network, image] * F > 0) / 200
            for number, W in enumerate((before, after)):
                if image < 50:
                    S = attention_of(W, network, x[network, image])
                    masses[number, network] += (S @ relevant[network, image]).mean() / 50
    assert found.accuracy.tolist() == pytest.approx(accuracy)
    assert found.mass.tolist() == pytest.approx(masses[1], rel=1e-4)
    assert found.mass_before.tolist() == pytest.approx(masses[0], rel=1e-4)
    assert np.abs(masses[1] - masses[0]).min() > 1e-3
    assert np.abs(accuracy - masses[1]).min() > 0.01


@pytest.mark.parametrize("random_labels", [False, True])
def test_batches_pair_sequences_with_their_labels_or_with_random_ones(trained, random_labels: bool):
    _, drawn, _, _, (task, settings) = trained(random_labels=random_labels)
    stored = drawn[0][1]
    x, y = next(task.batches(generator(3)))
    assert x.shape[:2] == (3, 64)
    agree = []
    for network in range(3):
        for sequence, label in zip(x[network], y[network]):
            (place,) = (stored.tokens[network] == sequence).all(2).all(1).nonzero().flatten().tolist()
            agree.append(bool(stored.labels[network, place] == label))
    assert set(y.flatten().tolist()) == {-1.0, 1.0}
    assert abs(np.mean(agree) - 0.5) < 0.15 if random_labels else all(agree)
    assert settings["steps"] == 5
    assert settings["optimiser"].param_groups[0]["lr"] == 0.05


def test_the_law_of_label_relevant_tokens():
    """Three of nine tokens carry the first or the second pattern, the others are uniform among the rest."""
    data = tokens.LabelRelevantTokens(alpha=0.3, noise=0.0, tokens=9, patterns=5, dim=6)
    found = data.sample(2, 2000, generator=generator(4))
    pattern = found.tokens.argmax(-1)
    assert found.tokens.sum(-1).unique().tolist() == [1.0]
    assert torch.equal(pattern[..., :3], (found.labels == -1).long()[..., None].expand(-1, -1, 3))
    share = torch.bincount(pattern[..., 3:].flatten(), minlength=6).double() / pattern[..., 3:].numel()
    assert share.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 3, 1 / 3, 0], abs=0.02)
    assert abs(float(found.labels.mean())) < 0.1
    assert found.relevant[1, 7].tolist() == [True] * 3 + [False] * 6
    noisy = tokens.LabelRelevantTokens(alpha=0.3, noise=0.4, tokens=9, patterns=5, dim=6)
    residual = noisy.sample(2, 2000, generator=generator(4)).tokens
    residual = residual - torch.nn.functional.one_hot(
        data.sample(2, 2000, generator=generator(4)).tokens.argmax(-1), 6
    )
    assert float(residual.std()) == pytest.approx(0.4, rel=0.02)
    assert abs(float(residual.mean())) < 0.01
    few = [tokens.LabelRelevantTokens(alpha=alpha, tokens=9).relevant for alpha in (0.01, 0.2, 0.94)]
    assert few == [1, 2, 8]


def test_the_hinge_loss_is_a_sum_over_models_of_means():
    outputs, labels = (
        torch.tensor([[0.5, -2.0, 3.0], [0.0, 1.0, -1.5]]),
        torch.tensor([[1.0, 1, 1], [-1, -1, -1]]),
    )
    loss = tokens.hinge_loss(torch.nn.Identity(), (outputs, labels))
    assert float(loss) == pytest.approx((0.5 + 3 + 0) / 3 + (1 + 2 + 0) / 3)


@each_case(
    ("accuracies", "target", "expected"),
    [
        ((0.5, 0.7, 0.9), 0.8, 80.0),
        ((0.5, 0.9, 0.6), 0.7, 20.0),  # the running maximum does not fall
        ((0.5, 0.9, 0.6), 0.9, 40.0),
        ((0.5, 0.7, 0.9), 0.95, None),
        ((0.9, 0.7, 0.9), 0.8, None),
        ((0.8, 0.8, 0.9), 0.8, None),
        ((0.5, 0.5, 0.9), 0.7, 80.0),
    ],
)
def test_needed_samples_are_interpolated_in_the_logarithm(accuracies, target: float, expected: float | None):
    found = tokens.needed_samples((10, 40, 160), accuracies, target)
    assert found == (None if expected is None else pytest.approx(expected))


def test_the_mass_of_a_batch_of_attention_matrices():
    """Of each matrix, without the diagonal; a row that attends to itself alone counts as chance."""
    rng, groups = np.random.default_rng(9), np.array([0, 1, 1, 0, 2, 2])
    S = rng.dirichlet(np.full(6, 0.5), size=(2, 3, 6))
    S[1, 2, 4] = np.eye(6)[4]
    expected = np.zeros((2, 3))
    for place in np.ndindex(2, 3):
        shares = []
        for i in range(6):
            others = [j for j in range(6) if j != i]
            total = S[place][i, others].sum()
            own = sum(S[place][i, j] for j in others if groups[i] == groups[j])
            shares.append(own / total if total > 1e-9 else 1 / 5)
        expected[place] = np.mean(shares)
    found = vision.group_mass(torch.from_numpy(S), torch.from_numpy(groups))
    assert found.numpy() == pytest.approx(expected)


@each_case(
    "S",
    [torch.full((6, 5), 0.2), torch.full((2, 5, 6), 1 / 6), torch.full((6, 6), 0.2), torch.full((5, 5), 0.2)],
)
def test_weights_that_do_not_fit_the_groups_are_refused(S: torch.Tensor, unchecked):
    groups = torch.tensor([0, 1, 1, 0, 2, 2])
    with pytest.raises(ValueError, match="S must be attention weights of shape"):
        vision.group_mass(S.double(), groups)


def test_shares_are_computed_where_the_weights_are(monkeypatch):
    """New tensors lie on torch's default device, here one without values, unless they are told where."""
    rng = np.random.default_rng(14)
    weights = rng.dirichlet(np.full(5, 0.5), size=(3, 2, 5))
    at = np.array([[p // 2, p % 2] for p in range(4)], float)
    distance = np.linalg.norm(at[:, None] - at, axis=-1)
    near = torch.from_numpy((distance == 1).astype(float))
    monkeypatch.setattr(in_networks, "grid_distances", lambda *_: (near, torch.from_numpy(distance)))
    places = (torch.arange(5) - 1).clamp(min=-1).expand(3, 5)
    given = torch.from_numpy(weights)
    with torch.device("meta"):
        sums = in_networks._grid_sums(given, Grid(2, 2, places))
    W = weights[..., 1:, 1:] * (1 - np.eye(4))
    total = W.sum(-1)
    expected = [np.full(2, 3.0), np.full(2, 12.0)]
    expected += [((W * each).sum(-1) / total).sum((0, 2)) for each in ((distance == 1), distance)]
    assert sums.numpy() == pytest.approx(np.stack(expected, 1))
