"""Words, the bottleneck of one half on the other, and the ladder against numbers from numpy; the words, the
onset and the solver are given.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.metric import Activations
from transformer_theory.core.statistics import permutations
from transformer_theory.core.table import collect
from transformer_theory.data import TokenData
from transformer_theory.theories.bottleneck import gaussian, in_networks, ladder, on_data
from transformer_theory.theories.bottleneck.curve import Curve
from transformer_theory.theories.bottleneck.information import corrected_information, divergence


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def law_information(law: np.ndarray) -> float:
    """I(X;Y) of a joint law or of counts, nats."""
    x, y = np.nonzero(law)
    p = law[x, y] / law.sum()
    return float((p * np.log(p * law.sum() ** 2 / (law.sum(1)[x] * law.sum(0)[y]))).sum())


def entropy(values: np.ndarray) -> float:
    """Entropy of samples with the correction of Miller and Madow, nats."""
    counts = np.unique(values, return_counts=True)[1]
    p = counts / len(values)
    return float(-(p * np.log(p)).sum() + (len(p) - 1) / (2 * len(values)))


def corrected(first: np.ndarray, second: np.ndarray) -> float:
    return entropy(first) + entropy(second) - entropy(first * 1000 + second)


# ---- the correction


def test_each_entropy_is_corrected():
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.5, 4, size=(5, 4, 3)))
    expected = []
    for each in counts:
        first, second = (axis.repeat(each.flatten()) for axis in np.indices(each.shape).reshape(2, -1))
        expected.append(corrected(first, second))
    found = corrected_information(torch.from_numpy(counts).double())
    assert found.tolist() == pytest.approx(expected)


def test_independent_samples_have_no_information_in_the_mean():
    """150 samples of 4 x 3 values: the bias of the plain estimate is .02."""
    rng = np.random.default_rng(1)
    law = np.outer([0.4, 0.3, 0.2, 0.1], [0.5, 0.3, 0.2]).flatten()
    counts = rng.multinomial(150, law, size=3000).reshape(-1, 4, 3)
    values = corrected_information(torch.from_numpy(counts).double()).numpy()
    assert abs(values.mean()) < 4 * values.std() / math.sqrt(3000)
    assert np.mean([law_information(each) for each in counts[:300]]) > 0.015


def test_the_divergence_is_not_symmetric():
    p, q = np.random.default_rng(2).dirichlet([0.5, 1, 2], size=(2, 6))
    found = divergence(torch.from_numpy(p), torch.from_numpy(q))
    assert found.tolist() == pytest.approx((p * np.log(p / q)).sum(1))


# ---- in networks


def measured_words(codes: np.ndarray, labels: np.ndarray, monkeypatch, draws: int):
    """Rows of features that hold the word of their sample, in the order in which they are stored."""
    seen = {}

    def words(features: torch.Tensor, k: int) -> torch.Tensor:
        seen["k"], seen["codes"] = k, features[:, 0].long()
        return seen["codes"]

    monkeypatch.setattr(in_networks, "words", words)
    tokens = torch.from_numpy(codes).double()[:, None, None].expand(-1, 2, 3)
    metric = in_networks.WordInformation()
    for part in (slice(0, 100), slice(100, None)):
        metric.update(
            Activations("", 3, "features", tokens[part], tokens[part], labels=torch.from_numpy(labels)[part])
        )
    rows = metric.compute(draws=draws)
    stored = metric.samples[3]
    order = stored[2].argsort()
    return rows, seen, stored[0][order, 0].long().numpy(), stored[1][order].numpy()


@pytest.mark.parametrize("words", [2, 6])
def test_words_and_labels_of_a_block(monkeypatch, words: int):
    """With two words H(Z) < H(Y), with six H(Y) < H(Z)."""
    rng = np.random.default_rng(words)
    labels = rng.choice([3, 4, 9], 184, p=[0.5, 0.3, 0.2])
    told = rng.random(184) < 0.6
    codes = np.where(told, np.searchsorted([3, 4, 9], labels) % words, rng.integers(words, size=184))
    rows, seen, z, y = measured_words(codes, labels, monkeypatch, 39)
    share, relevance, compression = rows
    assert sorted(zip(z, y)) == sorted(zip(codes, labels))
    assert seen["k"] == 23  # a word for each eight samples
    most = min(entropy(codes), entropy(labels))
    assert (entropy(codes) < entropy(labels)) == (words == 2)
    assert relevance.value == pytest.approx(corrected(codes, labels))
    assert compression.value == pytest.approx(entropy(codes))
    assert share.value == pytest.approx(corrected(codes, labels) / most)
    null = [corrected(z, y[order]) for order in permutations(184, 39).numpy()]
    assert relevance.null.draws == pytest.approx(null)
    assert share.null.draws == pytest.approx([each / most for each in null])
    assert [row.side for row in rows] == [">=", ">=", None]
    assert {(row.layer, row.n) for row in rows} == {(3, 184)}
    assert f"{most - relevance.value:.2f} nats below the curve" in share.note
    assert in_networks.IN_NETWORKS.side == ">="


def test_at_most_32_words(monkeypatch):
    codes = np.arange(400) % 5
    assert measured_words(codes, codes % 2, monkeypatch, 0)[1]["k"] == 32


# ---- on data


def test_frequent_ids_are_words_and_the_others_one_word():
    rng = np.random.default_rng(3)
    ids = rng.choice(1000 + rng.permutation(50) * 7, size=(80, 40), p=rng.dirichlet(np.full(50, 2.0)))
    labels = rng.choice([5, 2, 8], 80)
    data = TokenData(
        tokens=torch.zeros(80, 40, 1), ids=torch.from_numpy(ids), labels=torch.from_numpy(labels)
    )
    found = on_data.read(data)
    assert isinstance(found, on_data.WordLabels)
    assert found.labels.tolist() == np.searchsorted([2, 5, 8], labels).tolist()
    kinds, counts = np.unique(ids, return_counts=True)
    order = kinds[np.argsort(-counts, kind="stable")]
    expected = {word: min(rank, 31) for rank, word in enumerate(order)}
    assert found.ids.tolist() == [[expected[word] for word in row] for row in ids]


class Halves:
    """Sixty sequences of five words, of which the last word is in the second half only. Onset and encoder are
    known functions of the law.
    """

    def __init__(self, monkeypatch):
        rng = np.random.default_rng(4)
        self.order = permutations(60, 1)[0].numpy()
        self.labels = rng.choice(3, 60, p=[0.5, 0.3, 0.2])
        self.ids = np.where(rng.random((60, 5)) < 0.5, self.labels[:, None], rng.integers(4, size=(60, 5)))
        second = self.order[30:]
        self.ids[second, 0] = np.where(rng.random(30) < 0.4, 4, self.ids[second, 0])
        self.encoders = rng.dirichlet(np.full(3, 0.4), size=(len(on_data.FACTORS), 4))
        self.betas, self.laws = [], []
        monkeypatch.setattr(on_data, "onset", self.onset)
        monkeypatch.setattr(on_data, "information_bottleneck", self.solver)

    def law(self, part: np.ndarray, labels: np.ndarray) -> np.ndarray:
        counts = np.zeros((5, 3))
        np.add.at(counts, (self.ids[part], labels[:, None]), 1)
        return counts / counts.sum()

    def onset(self, law: torch.Tensor, *, starts: int, steps: int):
        assert (starts, steps) == (on_data.STARTS, on_data.STEPS)
        return SimpleNamespace(beta=1 + float(law[0, 0]), local_beta=3 + float(law[1, 1]))

    def solver(self, law: torch.Tensor, betas: list[float]):
        self.laws.append(law.numpy())
        self.betas += betas
        points = [SimpleNamespace(encoder=torch.from_numpy(each), relevance=0.1) for each in self.encoders]
        return SimpleNamespace(points=points, column=lambda _: [0.0] * len(points))

    def rows(self, draws: int):
        problem = on_data.WordLabels(torch.from_numpy(self.ids), torch.from_numpy(self.labels))
        table, arrays = collect(on_data.measure(problem, generator(), draws=draws))
        return {row.quantity: row for row in table}, arrays


def test_information_of_word_and_label_is_that_of_the_first_half_without_its_bias(monkeypatch):
    halves = Halves(monkeypatch)
    rows, arrays = halves.rows(39)
    first = halves.order[:30]
    labels = halves.labels[first]
    whole, bias = law_information(halves.law(first, labels)), 3 * 2 / (2 * 150)
    row = rows[on_data.WHOLE]
    assert row.value == pytest.approx(whole - bias)
    orders = permutations(30, 19).numpy()
    null = [law_information(halves.law(first, labels[order])) - bias for order in orders]
    assert row.null.draws == pytest.approx(null)
    assert rows[on_data.BIAS].value == pytest.approx(bias / whole)
    assert (row.side, rows[on_data.BIAS].op) == (">=", "<=")
    assert arrays["bottleneck/whole"] == pytest.approx([whole])


def test_onsets_have_permuted_labels_of_the_first_half(monkeypatch):
    halves = Halves(monkeypatch)
    rows, _ = halves.rows(39)
    first = halves.order[:30]
    labels = halves.labels[first]
    laws = [halves.law(first, labels[order]) for order in permutations(30, 19).numpy()]
    for quantity, found in (
        (on_data.ONSET, lambda law: 1 + law[0, 0]),
        (on_data.LOCAL, lambda law: 3 + law[1, 1]),
    ):
        assert rows[quantity].value == pytest.approx(found(halves.law(first, labels)))
        assert rows[quantity].null.draws == pytest.approx([found(law) for law in laws])
        assert rows[quantity].side == "<="


def test_the_encoder_of_the_first_half_is_measured_on_the_second(monkeypatch):
    """The encoder is that at four times the onset; a word that the first half lacks gets the mean encoder."""
    halves = Halves(monkeypatch)
    rows, arrays = halves.rows(39)
    first, second = halves.order[:30], halves.order[30:]
    law = halves.law(first, halves.labels[first])
    assert halves.laws[0] == pytest.approx(law)
    assert halves.betas == pytest.approx([(1 + law[0, 0]) * factor for factor in on_data.FACTORS])
    encoder = halves.encoders[on_data.FACTORS.index(4.0)]
    encoder = np.concatenate([encoder, law.sum(1)[None, :4] @ encoder])
    labels = halves.labels[second]
    row = rows[on_data.HELD_OUT]
    assert row.value == pytest.approx(law_information(encoder.T @ halves.law(second, labels)))
    orders = permutations(30, 39).numpy()
    null = [law_information(encoder.T @ halves.law(second, labels[order])) for order in orders]
    assert row.null.draws == pytest.approx(null)
    assert (row.side, row.n) == (">=", 60)
    marginal = halves.law(second, labels).sum(1)
    compression = law_information(encoder * marginal[:, None])
    assert arrays["bottleneck/held_out"] == pytest.approx([compression, row.value])


def test_labels_of_the_second_half_change_neither_onset_nor_encoder(monkeypatch):
    halves = Halves(monkeypatch)
    before, _ = halves.rows(19)
    second = halves.order[30:]
    halves.labels[second] = (halves.labels[second] + 1) % 3
    after, _ = halves.rows(19)
    for quantity in (on_data.WHOLE, on_data.ONSET, on_data.LOCAL, on_data.BIAS):
        assert before[quantity] == after[quantity]
    assert np.array_equal(*halves.laws)


# ---- the ladder


class KnownCurve(Curve):
    """A curve that allows .2 + compression squared."""

    def __init__(self, *points: SimpleNamespace):
        object.__setattr__(self, "points", points)

    def at(self, compression: float) -> float:
        return 0.2 + compression**2


def share_of(joint: np.ndarray, encoder: np.ndarray) -> float:
    compression = law_information(encoder * joint.sum(1)[:, None])
    return law_information(encoder.T @ joint) / (0.2 + compression**2)


def test_the_share_is_that_of_the_curve_at_the_compression_of_the_encoder():
    rng = np.random.default_rng(5)
    joint, encoder = rng.dirichlet(np.full(12, 0.5)).reshape(4, 3), rng.dirichlet([0.3, 0.3], size=4)
    found = ladder.share_of(torch.from_numpy(joint), torch.from_numpy(encoder), KnownCurve())
    assert float(found) == pytest.approx(share_of(joint, encoder))


def test_the_first_rung_permutes_the_values_of_a_uniform_x(monkeypatch):
    rng = np.random.default_rng(6)
    joint, encoder = rng.dirichlet(np.full(64, 0.5)).reshape(16, 4), rng.dirichlet([0.3] * 3, size=16)
    betas = []

    def solver(law: torch.Tensor, beta):
        betas.append(beta)
        return KnownCurve(SimpleNamespace(encoder=torch.from_numpy(encoder)))

    monkeypatch.setattr(ladder, "random_joint", lambda *_: torch.from_numpy(joint))
    monkeypatch.setattr(ladder, "onset", lambda _: SimpleNamespace(beta=2.0))
    monkeypatch.setattr(ladder, "information_bottleneck", solver)
    (row,) = ladder.own_setting(generator(7))
    uniform = joint / joint.sum(1, keepdims=True) / 16
    assert row.value == pytest.approx(share_of(uniform, encoder))
    orders = permutations(16, 399, generator(7)).numpy()
    assert row.null.draws == pytest.approx([share_of(uniform[order], encoder) for order in orders])
    assert betas == [pytest.approx([2 * each for each in ladder.AROUND]), pytest.approx(1.05 * 4 * 2)]
    assert (row.side, row.predicted, row.n) == (">=", 1.0, 16)


def test_rungs_on_words_permute_the_labels_of_the_images(monkeypatch):
    """Sixty images of four words; the encoder is made from the law of other images."""
    rng = np.random.default_rng(8)
    labels = rng.integers(10, size=60)
    ids = np.where(rng.random((60, 4)) < 0.5, labels[:, None], rng.integers(32, size=(60, 4)))
    law, encoder = rng.dirichlet(np.ones(320)).reshape(32, 10), rng.dirichlet([0.2] * 5, size=32)
    orders = permutations(60, 12)
    given = (torch.from_numpy(ids), torch.from_numpy(labels), torch.from_numpy(law), 6.0, KnownCurve())
    seen = []

    def solver(given_law: torch.Tensor, beta: float):
        seen.append((given_law.numpy(), beta))
        return SimpleNamespace(points=[SimpleNamespace(encoder=torch.from_numpy(encoder))])

    monkeypatch.setattr(ladder, "digit_words", lambda: (*given, orders))
    monkeypatch.setattr(ladder, "information_bottleneck", solver)
    (row,) = ladder.on_digits(generator(), how="solver")

    def share(y: np.ndarray) -> float:
        counts = np.zeros((32, 10))
        np.add.at(counts, (ids, y[:, None]), 1)
        return share_of(counts / 240, encoder)

    assert row.value == pytest.approx(share(labels))
    assert row.null.draws == pytest.approx([share(labels[order]) for order in orders.numpy()])
    assert row.n == 60
    assert np.array_equal(seen[0][0], law)
    assert seen[0][1] == 6.0


def test_the_digits_are_measured_on_the_half_that_the_law_does_not_contain():
    ids, labels, law, _, curve, orders = ladder.digit_words()
    counts = np.zeros((32, 10))
    np.add.at(counts, (ids.numpy(), labels.numpy()[:, None]), 1)
    measured = counts / counts.sum()
    # both halves have all digits equally often, but are different images
    assert law.sum(0).numpy() == pytest.approx(measured.sum(0), abs=2e-3)
    assert np.abs(law.numpy() - measured).max() > 1e-4
    assert curve.joint.numpy() == pytest.approx(
        measured[measured.sum(1) > 0], abs=1e-12
    )  # the curve is that of the measured half
    assert orders.shape == (399, len(labels))


def test_the_bound_of_an_encoder_and_the_laws_of_batches():
    rng = np.random.default_rng(9)
    model = ladder.TableEncoder(4, 3, 2, generator(1))
    with torch.no_grad():
        model.prior.copy_(torch.from_numpy(rng.normal(size=3)))
        model.decoder.copy_(torch.from_numpy(rng.normal(size=(3, 2))))
    softmax = lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)  # noqa: E731
    code, decoder, prior = (
        softmax(each.detach().numpy()) for each in (model.encoder, model.decoder, model.prior)
    )
    joint = rng.dirichlet(np.full(8, 0.5)).reshape(4, 2)
    rate = sum(
        joint[x].sum() * code[x, z] * np.log(code[x, z] / prior[z]) for x in range(4) for z in range(3)
    )
    loss = -sum(joint[x, y] * code[x, z] * np.log(decoder[z, y]) for x, y, z in np.ndindex(4, 2, 3))
    assert model.bound(torch.from_numpy(joint), 2.5).item() == pytest.approx(rate + 2.5 * loss)
    batches = torch.stack([ladder.batch_law(torch.from_numpy(joint), generator(seed)) for seed in range(200)])
    assert bool(((batches * 256).round() == batches * 256).all())
    assert batches.sum((1, 2)).tolist() == pytest.approx([1.0] * 200)
    assert batches.mean(0).numpy() == pytest.approx(joint, abs=0.01)


@pytest.mark.parametrize("how", ["law", "batches"])
def test_an_encoder_that_is_learnt_is_measured_on_the_other_images(how: str, monkeypatch):
    """Few steps, with and without decay; the encoder is a law of 16 codes for each word."""
    rng, kinds = np.random.default_rng(10), []
    labels, ids = rng.integers(10, size=20), rng.integers(32, size=(20, 4))
    law = rng.dirichlet(np.ones(320)).reshape(32, 10)
    given = (torch.from_numpy(ids), torch.from_numpy(labels), torch.from_numpy(law), 6.0, KnownCurve())
    shared = ladder.share_of

    def known(joint, encoder, curve):
        kinds.append(encoder)
        return shared(joint, encoder, curve)

    monkeypatch.setattr(ladder, "digit_words", lambda: (*given, permutations(20, 3)))
    monkeypatch.setattr(ladder, "STEPS", 3)
    monkeypatch.setattr(ladder, "share_of", known)
    (row,) = ladder.on_digits(generator(), how=how)
    assert kinds[0].shape == (32, 16)
    assert kinds[0].sum(1).tolist() == pytest.approx([1.0] * 32)
    counts = np.zeros((32, 10))
    np.add.at(counts, (ids, labels[:, None]), 1)
    assert row.value == pytest.approx(share_of(counts / 80, kinds[0].numpy()))


def test_learning_lowers_the_bound_of_the_law_that_it_is_given():
    """Of words that tell the class for certain, at a large beta: the encoder separates the classes."""
    law = torch.zeros(4, 2, dtype=torch.float64)
    law[:2, 0], law[2:, 1] = 0.25, 0.25
    code = ladder.learn(lambda _: law, (4, 2), 20.0, decay=False, generator=generator(2)).numpy()
    assert code[:2] @ code[2:].T == pytest.approx(np.zeros((2, 2)), abs=0.02)


def test_rate_and_cross_entropy_of_a_gaussian_encoder():
    """The rate is the divergence of N(m, s^2) from N(0, 1); the decoder sees m + s times the noise."""
    rng = np.random.default_rng(11)
    model = gaussian.VariationalBottleneck(3, 2, 4, generator(3))
    with torch.no_grad():
        model.log_noise.copy_(torch.from_numpy(rng.normal(size=4) - 0.5))
        model.log_error.copy_(torch.from_numpy(rng.normal(size=2)))
    x, y, noise = rng.standard_t(4, size=(6, 3)), rng.normal(size=(6, 2)), rng.normal(size=(6, 4))
    W, b, V, c = (
        each.detach().numpy() for part in (model.mean, model.decoder) for each in (part.weight, part.bias)
    )
    s, t = (np.exp(each.detach().numpy()) for each in (model.log_noise, model.log_error))
    m = x @ W.T + b
    rate = np.mean([(0.5 * (each**2 + s**2 - 1) - np.log(s)).sum() for each in m])
    error = y - ((m + s * noise) @ V.T + c)
    entropy = np.mean([(np.log(t * np.sqrt(2 * np.pi)) + (each / t) ** 2 / 2).sum() for each in error])
    found = model.terms(*(torch.from_numpy(each) for each in (x, y, noise)))
    assert [float(each.detach()) for each in found] == pytest.approx([rate, entropy])


@each_case(
    ("n", "classes", "reason"),
    [
        (16, 8, ""),
        (15, 7, "needs 16 samples, got 15: the bias would exceed the information"),
        (16, 9, "needs two samples per class on average"),
        (20, 10, ""),
        (21, 11, "needs two samples per class on average"),
        (16, 2, ""),
        (16, 1, "needs two classes"),
    ],
)
def test_blocks_need_two_words_two_classes_and_two_samples_of_each(monkeypatch, n, classes, reason: str):
    codes, labels = np.arange(n) % 2, np.arange(n) % classes
    rows, seen, *_ = measured_words(codes, labels, monkeypatch, 0)
    if reason:
        (row,) = rows
        assert (row.value, row.reason, row.n) == (None, reason, n)
    else:
        assert seen["k"] == 2
        _, relevance, _ = rows
        assert relevance.value == pytest.approx(corrected(codes, labels))
