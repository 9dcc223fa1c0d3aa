"""The split, the penalty, the accuracies with their null and the rows of the ladder against numpy; what is
held out must not change what is fitted.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.table import collect
from transformer_theory.data import TokenData
from transformer_theory.theories.random_features import (
    RandomFeatureAttention,
    claims,
    kernels,
    ladder,
    on_data,
)

FIXED = 4_019_217_653  # seed of all fixed numbers of the package
PENALTIES = 10.0 ** np.arange(-8, 3, 0.5)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def order_of(n: int, draws: int) -> list[np.ndarray]:
    g = generator(FIXED)
    return [torch.randperm(n, generator=g).numpy() for _ in range(draws)]


def noisy(n: int = 90, d: int = 3) -> TokenData:
    """Unequal coordinates with a mean, heavy tails, and three unequal classes that the keys hardly show."""
    rng = np.random.default_rng(0)
    labels = rng.choice(3, size=n, p=[0.5, 0.3, 0.2])
    tokens = rng.standard_t(4, size=(n, 5, d)) * np.linspace(2.0, 0.3, d) + 1.5
    tokens[:, :, 0] *= 1 + 0.4 * labels[:, None]
    query = rng.normal(size=(n, d))
    return TokenData(torch.from_numpy(tokens), labels=torch.from_numpy(labels), query=torch.from_numpy(query))


def split_by_hand(data: TokenData) -> tuple[np.ndarray, np.ndarray, int, int]:
    order = order_of(len(data), 1)[0]
    x = np.concatenate([data.query.numpy()[:, None], data.tokens.numpy()], 1)[order]
    train = len(x) // 2
    x = x - x[:train].reshape(-1, x.shape[2]).mean(0)
    if x.shape[2] > 32:
        x = x @ np.linalg.svd(x[:train].reshape(-1, x.shape[2]), full_matrices=False)[2][:32].T
    x = x / np.sqrt((x[:train] ** 2).sum(-1).mean())
    return x, data.labels.numpy()[order], train, len(x) // 4


@pytest.mark.parametrize("d", [3, 40])
def test_tokens_are_scaled_by_those_of_the_training_part(d: int):
    data = noisy(d=d)
    problem, (x, labels, train, validation) = on_data.split(data), split_by_hand(data)
    found = problem.inputs.numpy()
    assert found.shape == (90, 6, min(d, 32))
    # principal components have a sign of their own
    assert np.abs(found) == pytest.approx(np.abs(x), rel=1e-6, abs=1e-9)
    assert problem.labels.tolist() == labels.tolist()
    assert (problem.train, problem.validation) == (train, validation) == (45, 22)
    assert [list(range(90))[part] for part in problem.parts] == [
        [*range(45)],
        [*range(45, 67)],
        [*range(67, 90)],
    ]


@pytest.mark.parametrize("d", [3, 40])
def test_held_out_and_validation_tokens_do_not_change_the_training_tokens(d: int):
    data = noisy(d=d)
    others = order_of(90, 1)[0][45:]
    tokens = data.tokens.clone()
    tokens[others] = tokens[others] * 3 + 1
    before, after = (
        on_data.split(each).inputs[:45] for each in (data, dataclasses.replace(data, tokens=tokens))
    )
    # the largest number of all tokens is divided out again, up to rounding
    assert np.abs(after.numpy()) == pytest.approx(np.abs(before.numpy()), rel=1e-9, abs=1e-12)


def features_of(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Mean over keys of relu(query W key) key, over root heads."""
    tilde = np.concatenate([x, np.ones_like(x[..., :1])], -1)
    scores = np.maximum(np.einsum("na,mab,nib->nmi", tilde[:, 0], weights, tilde[:, 1:]), 0)
    return (np.einsum("nmi,nib->nmb", scores, tilde[:, 1:]) / (x.shape[1] - 1)).reshape(
        len(x), -1
    ) / math.sqrt(len(weights))


def ridge_by_hand(
    features: np.ndarray, targets: np.ndarray, train: int, validation: int
) -> tuple[float, np.ndarray]:
    """The penalty with the least error on the validation part, and the predictions for the held-out part."""
    F, y = features - features[:train].mean(0), targets - targets[:train].mean(0)
    scale, found = (F[:train] ** 2).sum(1).mean(), []
    for penalty in PENALTIES:
        A = F[:train].T @ F[:train] + penalty * train * scale * np.eye(F.shape[1])
        predicted = F @ np.linalg.solve(A, F[:train].T @ y[:train])
        part = slice(train, train + validation)
        found.append((((predicted - y)[part] ** 2).mean(), penalty, predicted[train + validation :]))
    _, penalty, predicted = min(found, key=lambda each: each[0])
    return penalty, predicted + targets[:train].mean(0)


HEADS = RandomFeatureAttention.draw(20, 3, generator=generator(2))


def test_the_accuracy_is_that_of_ridge_with_the_penalty_of_the_validation_part():
    problem = on_data.split(noisy())
    value, fitted = on_data.accuracy(HEADS, problem)
    x, labels = problem.inputs.numpy(), problem.labels.numpy()
    targets = np.eye(3)[labels]
    penalty, predicted = ridge_by_hand(features_of(HEADS.weights.numpy(), x), targets, 45, 22)
    assert fitted.penalty == pytest.approx(penalty)
    assert fitted.test.numpy() == pytest.approx(predicted, rel=1e-4, abs=1e-6)
    assert value == pytest.approx((predicted.argmax(1) == labels[67:]).mean())


def test_what_is_held_out_changes_neither_the_penalty_nor_the_predictions():
    problem = on_data.split(noisy())
    _, before = on_data.accuracy(HEADS, problem)
    labels = problem.labels.clone()
    labels[67:] = (labels[67:] + 1) % 3
    value, after = on_data.accuracy(HEADS, dataclasses.replace(problem, labels=labels))
    assert after.penalty == before.penalty
    assert torch.equal(after.test, before.test)
    assert value == pytest.approx(float((before.test.argmax(1) == labels[67:]).double().mean()))
    inputs = problem.inputs.clone()
    inputs[67:] = inputs[67:].flip(0) * 2
    _, after = on_data.accuracy(HEADS, dataclasses.replace(problem, inputs=inputs))
    assert after.penalty == before.penalty
    labels = problem.labels.clone()
    labels[45:67] = labels[45:67].flip(0)
    _, after = on_data.accuracy(HEADS, dataclasses.replace(problem, labels=labels))
    assert after.penalty != before.penalty, "the validation part decides"


def test_a_draw_is_the_accuracy_with_permuted_held_out_labels(monkeypatch):
    """Twelve draws for 23 held-out sequences; the models have 8, 32 and 128 heads, or as many units."""
    problem, seen = on_data.split(noisy()), []
    predictions = torch.from_numpy(np.random.default_rng(3).normal([0.8, 0.2, 0.0], size=(23, 3)))

    def known(model, problem):
        seen.append(model)
        return len(model.weights) / 1000, on_data.Ridge(0.1, 0.5, predictions)

    monkeypatch.setattr(on_data, "accuracy", known)
    table, arrays = collect(on_data.measure(problem, generator(), draws=12))
    guesses, truth = predictions.numpy().argmax(1), problem.labels[67:].numpy()
    chance = [(guesses == truth[order]).mean() for order in order_of(23, 12)]
    for row, value in zip(table, (0.128, 0.128, 0.512)):
        assert row.null.draws == pytest.approx(chance)
        assert (row.value, row.side, row.n, row.split) == (value, ">=", 23, "validation")
    assert [row.quantity for row in table] == list(on_data.MODELS.values())
    assert [len(model.weights) for model in seen] == [8, 8, 32, 32, 32, 128, 128, 128, 512]
    spreads = [float((model.weights[:, 0, 0] + model.weights[:, 1, 1]).std()) for model in seen[6:8]]
    assert spreads[0] == pytest.approx(math.sqrt(2), rel=0.3)
    assert spreads[1] == pytest.approx(math.sqrt(2 + 4 * 16), rel=0.3)
    assert arrays["random_features/trained"].tolist() == [32, 128, 512]
    assert arrays["random_features/attention"].tolist() == [0.008, 0.032, 0.128]
    assert arrays["random_features/MLP"].tolist() == [0.032, 0.128, 0.512]
    assert arrays["random_features/chance"] == pytest.approx(chance)
    assert on_data.ON_DATA.headline == table[0].quantity


def test_the_null_is_centred_at_chance_for_a_perfect_model(monkeypatch):
    """A model that is always right has the chance level of the sum of squared shares of the classes."""
    problem = on_data.split(noisy())
    targets = torch.nn.functional.one_hot(problem.labels[67:], 3).double()
    monkeypatch.setattr(on_data, "accuracy", lambda *_: (1.0, on_data.Ridge(0.1, 0.5, targets)))
    row = collect(on_data.measure(problem, generator(), draws=400))[0][0]
    counts = np.bincount(problem.labels[67:].numpy())
    assert np.mean(row.null.draws) == pytest.approx((counts**2).sum() / 23**2, abs=0.02)
    assert row.null.p(row.value, row.side) == 1 / 401


# ---- the ladder


def correlation_by_hand(predicted: np.ndarray, target: np.ndarray, order: np.ndarray | None = None) -> float:
    """Over all outputs, each centred."""
    a, b = predicted - predicted.mean(0), target - target.mean(0)
    b = b if order is None else b[order]
    return float((a * b).sum() / math.sqrt((a**2).sum() * (b**2).sum()))


def test_a_row_is_the_correlation_over_all_outputs():
    rng = np.random.default_rng(4)
    target = rng.normal(size=(30, 3)) * [5.0, 1.0, 0.2] + [9.0, 0.0, -4.0]
    predicted = target * [0.2, 3.0, -1.0] + rng.normal(size=(30, 3)) + 7.0
    row = ladder.row(torch.from_numpy(predicted), torch.from_numpy(target))
    assert row.value == pytest.approx(correlation_by_hand(predicted, target))
    expected = [correlation_by_hand(predicted, target, order) for order in order_of(30, 399)]
    assert row.null.draws == pytest.approx(expected)
    assert (row.side, row.n) == (">=", 30)


def test_heads_read_held_out_targets_and_are_fitted_to_the_others(monkeypatch):
    monkeypatch.setattr(ladder, "HEADS", 15)
    problem = on_data.split(noisy())
    target = problem.inputs[:, 1:, 0].square().mean(1, keepdim=True) + problem.inputs[:, 1:3, 1]
    row = ladder.read_by_heads(problem, target, generator(5), spread=4.0)
    g, J = generator(5), np.diag([1.0, 1.0, 1.0, 0.0])
    weights = torch.randn(15, 4, 4, generator=g, dtype=torch.float64).numpy()
    weights = weights + 4.0 * torch.randn(15, 1, 1, generator=g, dtype=torch.float64).numpy() * J
    penalty, predicted = ridge_by_hand(features_of(weights, problem.inputs.numpy()), target.numpy(), 45, 22)
    assert row.value == pytest.approx(correlation_by_hand(predicted, target[67:].numpy()), rel=1e-4)
    assert row.note == f"penalty {penalty:.0e}"
    assert row.n == 23
    changed = target.clone()
    changed[67:] = changed[67:].flip(0)
    other = ladder.read_by_heads(problem, changed, generator(5), spread=4.0)
    assert other.note == row.note, "held-out targets must not change the penalty"
    assert other.value == pytest.approx(correlation_by_hand(predicted, changed[67:].numpy()), rel=1e-4)


def test_trained_heads_are_measured_by_their_probabilities_of_held_out_classes(monkeypatch):
    """The training is left out; the heads have their initial weights."""
    problem, seen = on_data.split(noisy()), {}
    monkeypatch.setattr(ladder, "digit_tokens", lambda: problem)
    monkeypatch.setattr(ladder, "HEADS", 6)

    def train(network, first, second, *, batch_size, **settings):
        seen.update(network=network, tokens=first.tokens, batch=batch_size)

    monkeypatch.setattr(ladder, "train_classifier", train)
    (row,) = ladder.trained(generator(6), model="heads", batch_size=64)
    state = {name: value.double().detach().numpy() for name, value in seen["network"].state_dict().items()}
    features = features_of(state["weights"], problem.inputs[67:].numpy()) * math.sqrt(6)
    logits = features @ state["values.weight"].T + state["values.bias"]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = correlation_by_hand(probabilities, np.eye(3)[problem.labels[67:].numpy()])
    assert row.value == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert torch.equal(seen["tokens"], problem.inputs[:45]), "held-out inputs are not trained on"
    assert seen["batch"] == 45, "at most all inputs"


@pytest.mark.parametrize(("name", "spread"), [("target of keys", 0.0), ("target of correlations", 4.0)])
def test_the_targets_of_the_own_setting(name: str, spread: float, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        ladder, "read_by_heads", lambda problem, target, generator, *, spread: seen.update(locals())
    )
    rung = next(each for each in ladder.LADDER.rungs if each.name == name)
    list(rung.measure(generator(7)))
    x = seen["problem"].inputs.numpy()
    keys = x[:, 1:, 0] if spread == 0 else np.einsum("nd,nid->ni", x[:, 0], x[:, 1:])
    assert seen["target"].numpy() == pytest.approx((keys**2).mean(1, keepdims=True))
    assert seen["spread"] == spread
    assert (seen["problem"].train, seen["problem"].validation, len(x)) == (512, 128, 1152)


@pytest.mark.parametrize("name", ["digits' patches", "labels of digits"])
def test_the_targets_of_the_digits(name: str, monkeypatch):
    """The query is the mean of the patches; a target is the mean squared correlation, or the class."""
    seen = {}
    monkeypatch.setattr(
        ladder, "read_by_heads", lambda problem, target, generator, *, spread: seen.update(locals())
    )
    rung = next(each for each in ladder.LADDER.rungs if each.name == name)
    list(rung.measure(generator(8)))
    problem, target, x = seen["problem"], seen["target"].numpy(), seen["problem"].inputs.numpy()
    assert x[:, 0] == pytest.approx(x[:, 1:].mean(1), abs=1e-9)
    if name == "labels of digits":
        assert (target == np.eye(10)[problem.labels.numpy()]).all()
    else:
        correlations = np.einsum("nd,nid->ni", x[:, 0], x[:, 1:])
        assert target[:, 0] == pytest.approx((correlations**2).mean(1))
    assert seen["spread"] == 4.0


def test_frozen_heads_read_the_classes_from_the_tokens_of_a_trained_network(monkeypatch):
    data, seen = noisy(), {}
    monkeypatch.setattr(ladder, "trained_network", lambda *_: ("network", data))
    monkeypatch.setattr(ladder, "features", lambda model, validation: validation)

    def read(problem, target, generator, **columns):
        seen.update(problem=problem, target=target, **columns)

    monkeypatch.setattr(ladder, "read_by_heads", read)
    list(ladder.in_trained_network(generator(9), recipe="any"))
    x, labels, *_ = split_by_hand(data)
    assert np.abs(seen["problem"].inputs.numpy()) == pytest.approx(np.abs(x), rel=1e-6, abs=1e-9)
    assert (seen["target"].numpy() == np.eye(3)[labels]).all()
    assert (seen["spread"], seen["model"]) == (4.0, "any")


# ---- kernels and claims


@pytest.mark.parametrize("spread", [0.0, 1.5])
def test_a_kernel_that_is_computed_in_parts(spread: float, monkeypatch):
    """Two inputs at a time, of unequal numbers of keys; the kernel of relu of a and b with the angle t is
    |a||b| (sin t + (pi - t) cos t) / 2 pi.
    """
    rng = np.random.default_rng(4)
    x, y = rng.standard_t(4, size=(7, 4, 3)) * [2.0, 1.0, 0.2], rng.normal(size=(5, 3, 3)) + 0.5
    monkeypatch.setattr(kernels, "CHUNK", 2 * 5 * 3 * 4)
    found = kernels.attention_kernel(torch.from_numpy(x), torch.from_numpy(y), spread=spread)
    expected = np.zeros((7, 5))
    for n, m in np.ndindex(7, 5):
        (q, *keys), (other_q, *other_keys) = x[n], y[m]
        for key in keys:
            for other in other_keys:

                def inner(a, b, c, d):
                    return (1 + a @ c) * (1 + b @ d) + spread**2 * (a @ b) * (c @ d)

                norms = np.sqrt(inner(q, key, q, key) * inner(other_q, other, other_q, other))
                t = np.arccos(np.clip(inner(q, key, other_q, other) / norms, -1, 1))
                kappa = norms * (np.sin(t) + (np.pi - t) * np.cos(t)) / (2 * np.pi)
                expected[n, m] += kappa * (1 + key @ other) / 6
    assert found.numpy() == pytest.approx(expected)


def test_only_the_targets_of_the_own_setting_are_covered():
    covered = [rung.name for rung in ladder.LADDER.rungs if rung.covered]
    assert covered == ["target of keys", "target of correlations"]


def test_the_change_of_features_is_relative_to_the_largest_one():
    """Features of relu are often zero, so the smallest would not do."""
    values = [claims.permutation.function(generator(seed)) for seed in range(3)]
    assert all(0 < value < 1e-12 for value in values)
    control = claims.permutation.function(generator(), attention=False)
    assert 0.1 < control < 2


@each_case(("size", "refused"), [(1e45, False), (-1e45, False), (1.1e45, True), (-1.1e45, True)])
def test_a_single_number_above_the_limit_is_refused(size: float, refused: bool):
    """The other numbers are small; so are all other inputs."""
    x = torch.full((3, 4, 2), 0.5, dtype=torch.float64)
    x[1, 2, 1] = size
    for call in (kernels.attention_kernel, kernels.mlp_kernel):
        if refused:
            with pytest.raises(
                ValueError, match=r"x must have numbers of at most 1e\+45 in size, got 1.1e\+45"
            ):
                call(x)
            with pytest.raises(ValueError, match="y must have numbers of at most"):
                call(torch.ones(2, 4, 2).double(), x)
        else:
            assert call(x).isfinite().all()


def test_a_spread_above_the_limit_is_refused():
    x = torch.full((2, 3, 2), 1e-20, dtype=torch.float64)
    for spread in (1e45, -1e45):
        assert kernels.attention_kernel(x, spread=spread).isfinite().all()
    for spread in (2e45, -2e45, math.inf):
        with pytest.raises(ValueError, match="spread must be a finite number of at most 1e"):
            kernels.attention_kernel(x, spread=spread)


def kappa(inner: float, left: float, right: float) -> float:
    """The kernel of relu for vectors with this inner product and these norms."""
    cosine = np.clip(inner / (left * right), -1, 1)
    angle = np.arccos(cosine)
    return left * right / (2 * np.pi) * (np.sin(angle) + (np.pi - angle) * cosine)


@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_the_kernel_of_two_sets_of_inputs_with_unequal_numbers_of_keys(spread: float):
    """Pair by pair of keys, from the outer products of query and key; the first token is the query."""
    rng = np.random.default_rng(20)
    x, y = rng.standard_t(4, size=(3, 5, 2)), rng.standard_t(4, size=(2, 4, 2)) + 0.5

    def parts(tokens: np.ndarray) -> list[np.ndarray]:
        ones = np.hstack([tokens, np.ones((len(tokens), 1))])
        outer = [np.outer(ones[0], key).ravel() for key in ones[1:]]
        return [np.append(w, spread * tokens[0] @ key) for w, key in zip(outer, tokens[1:])]

    def entry(a: np.ndarray, b: np.ndarray) -> float:
        found = [
            kappa(u @ v, np.linalg.norm(u), np.linalg.norm(v)) * (1 + p @ q)
            for u, p in zip(parts(a), a[1:])
            for v, q in zip(parts(b), b[1:])
        ]
        return float(np.mean(found))

    found = kernels.attention_kernel(torch.from_numpy(x), torch.from_numpy(y), spread=spread).numpy()
    assert found == pytest.approx(np.array([[entry(a, b) for b in y] for a in x]), rel=1e-9)
    rows = [np.append(each.ravel(), 1.0) for each in x]
    flat = [[kappa(a @ b, np.linalg.norm(a), np.linalg.norm(b)) for b in rows] for a in rows]
    assert kernels.mlp_kernel(torch.from_numpy(x)).numpy() == pytest.approx(np.array(flat), rel=1e-9)


def test_the_control_of_the_limit_has_half_the_weight_of_the_correlation():
    """Predictions of heads with s = 4 against a kernel with s = 2, and not with a larger one."""
    (limit,) = (claim for claim in claims.CLAIMS if claim.id == "random_features/limit")
    assert "s = 2" in limit.control_description
    assert any("s = 4" in assumption for assumption in limit.assumptions)
    assert limit.change.changed == {"spread": 2.0}
    heads = RandomFeatureAttention.draw(20_000, 3, spread=4.0, generator=torch.Generator().manual_seed(1))
    x = np.random.default_rng(21).normal(size=(2, 3, 3))
    features = heads.features(torch.from_numpy(x)).double().numpy()
    monte_carlo = features @ features.T
    distance = {
        spread: np.linalg.norm(
            kernels.attention_kernel(torch.from_numpy(x), spread=spread).numpy() - monte_carlo
        )
        for spread in (2.0, 4.0, 8.0)
    }
    assert min(distance, key=distance.get) == 4.0
    assert distance[4.0] < 0.05 * np.linalg.norm(monte_carlo)


@each_case(
    ("name", "kind", "depth", "batch"),
    [
        ("weights trained", "TrainedHeads", 0, 600),
        ("mini-batches", "TrainedHeads", 0, 64),
        ("transformer block", "ViT", 1, 64),
        ("two blocks", "ViT", 2, 64),
    ],
)
def test_rungs_train_as_their_names_say(monkeypatch, name: str, kind: str, depth: int, batch: int):
    """On half of 1,200 digits, all at once or 64 at a time, for 300 steps at the rate .003; in blocks of
    width 32 with two heads.
    """
    seen = {}

    class Stopped(Exception):
        pass

    def train(network, first, second, *, generator, **settings):
        seen.update(network=network, sizes=(len(first), len(second)), settings=settings)
        raise Stopped

    monkeypatch.setattr(ladder, "train_classifier", train)
    (rung,) = (rung for rung in ladder.LADDER.rungs if rung.name == name)
    with pytest.raises(Stopped):
        list(rung.measure(generator(10)))
    assert type(seen["network"]).__name__ == kind
    blocks = getattr(seen["network"], "blocks", ())
    assert len(blocks) == depth
    assert all((each.attention.heads, each.attention.head_dim) == (2, 16) for each in blocks)
    assert seen["settings"] == {"steps": 300, "learning_rate": 3e-3, "batch_size": batch}
    assert seen["sizes"] == (600, 300)
