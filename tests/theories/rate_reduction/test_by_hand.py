"""Rates, shares of the optimum and accuracies with their nulls against numbers from numpy; unequal classes
and anisotropic features.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from transformer_theory.core.metric import Activations
from transformer_theory.core.statistics import permutations
from transformer_theory.core.table import collect
from transformer_theory.data import TokenData
from transformer_theory.metrics.class_features import CLASS_CODING_RATE, CODING_RATE, RATE_REDUCTION
from transformer_theory.theories.rate_reduction import in_networks, ladder, on_data


def rate(x: np.ndarray, eps2: float) -> float:
    n, d = x.shape
    return 0.5 * np.linalg.slogdet(np.eye(d) + d / (n * eps2) * x.T @ x)[1]


def reduction(x: np.ndarray, y: np.ndarray, eps2: float) -> tuple[float, float]:
    """R and R^c."""
    parts = [x[y == k] for k in set(y.tolist())]
    return rate(x, eps2), sum(len(part) / len(x) * rate(part, eps2) for part in parts)


def optimum(sizes: tuple[int, int], eps2: float) -> float:
    """The largest reduction of two classes in three dimensions: one has a plane, the other a line.
    Energies of the two directions of the plane are searched.
    """
    n, best = sum(sizes), 0.0

    def gain(count: int, energies: list[float]) -> float:
        own = count / n * sum(np.log1p(3 * e / (count * eps2)) for e in energies)
        return 0.5 * (sum(np.log1p(3 * e / (n * eps2)) for e in energies) - own)

    for plane, line in (sizes, sizes[::-1]):
        found = minimize_scalar(
            lambda e, plane=plane: -gain(plane, [e, plane - e]), bounds=(0, plane / 2), method="bounded",
            options={"xatol": 1e-10},
        )  # fmt: skip
        best = max(best, -found.fun + gain(line, [line]), gain(plane, [plane / 2] * 2) + gain(line, [line]))
    return best


def classes(n: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_t(4, size=(sum(n), 3)) * [2.0, 0.7, 0.3]
    x[: n[0]] += [0.5, 1.0, 0.0]
    order = rng.permutation(len(x))
    return x[order], np.repeat([0, 1], n)[order]


def units(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_rows_of_a_block():
    x, y = classes((14, 6), 0)
    tokens = torch.from_numpy(x)[:, None]
    metric = in_networks.RateReductionMetric()
    metric.update(Activations("", 1, "features", tokens, tokens, labels=torch.from_numpy(y)))
    rows = {row.quantity: row for row in metric.compute(draws=25)}
    u = units(x)
    whole, within = reduction(u, y, 0.5)
    best = optimum((14, 6), 0.5)
    share = rows[in_networks.SHARE]
    assert rows[CODING_RATE].value == pytest.approx(whole)
    assert rows[CLASS_CODING_RATE].value == pytest.approx(within)
    assert rows[RATE_REDUCTION].value == pytest.approx(whole - within)
    assert share.value == pytest.approx((whole - within) / best, rel=1e-6)
    assert [rows[name].side for name in (RATE_REDUCTION, CLASS_CODING_RATE, in_networks.SHARE)] == [
        ">=", "<=", ">=",
    ]  # fmt: skip
    # A draw cuts a permutation of the samples into groups of the sizes of the classes.
    groups, null = np.repeat([0, 1], [14, 6]), []
    for order in permutations(20, 25).numpy():
        null.append(np.subtract(*reduction(u[order], groups, 0.5)))
    assert rows[RATE_REDUCTION].null.draws == pytest.approx(null)
    assert rows[CLASS_CODING_RATE].null.draws == pytest.approx([whole - each for each in null])
    assert share.null.draws == pytest.approx([each / best for each in null], rel=1e-6)
    assert (share.predicted, share.n, share.layer) == (1.0, 20, 1)
    assert in_networks.IN_NETWORKS.side == ">="


def data(n: tuple[int, int], seed: int) -> tuple[TokenData, np.ndarray, np.ndarray]:
    x, y = classes(n, seed)
    return TokenData(tokens=torch.from_numpy(x)[:, None], labels=torch.from_numpy(y)), units(x), y


def rows_on(tokens: TokenData, draws: int = 39):
    table, arrays = collect(on_data.measure(on_data.read(tokens), torch.Generator(), draws=draws))
    return {row.quantity: row for row in table}, arrays


def test_rates_on_data():
    tokens, u, y = data((21, 11), 1)
    rows, _ = rows_on(tokens)
    whole, within = reduction(u, y, 0.1)
    best, groups = optimum((21, 11), 0.1), np.repeat([0, 1], [21, 11])
    null = [np.subtract(*reduction(u[order], groups, 0.1)) for order in permutations(32, 39).numpy()]
    for quantity, value, draws, side in (
        (RATE_REDUCTION, whole - within, null, ">="),
        (CLASS_CODING_RATE, within, [whole - each for each in null], "<="),
        (on_data.SHARE, (whole - within) / best, [each / best for each in null], ">="),
    ):
        row = rows[quantity]
        assert row.value == pytest.approx(value, rel=1e-6)
        assert row.null.draws == pytest.approx(draws, rel=1e-6)
        assert row.side == side
        assert row.n == 32
    assert rows[CODING_RATE].value == pytest.approx(whole)
    assert rows[on_data.SHARE].predicted == 1.0


def test_accuracies_are_those_of_the_samples_that_the_construction_does_not_see(monkeypatch):
    """A quarter of each class is unseen; predictions are given."""
    tokens, u, y = data((21, 11), 2)
    seen, rng = {}, np.random.default_rng(3)
    guesses = rng.integers(2, size=(2, 7))

    def nearest(x: torch.Tensor, labels: torch.Tensor, unseen: torch.Tensor, *, rank: int) -> torch.Tensor:
        seen.setdefault("calls", []).append((x, labels, unseen, rank))
        return torch.from_numpy(guesses[len(seen["calls"]) - 1])

    monkeypatch.setattr(on_data, "nearest_subspace", nearest)
    rows, _ = rows_on(tokens)
    x, labels, unseen, rank = seen["calls"][0]
    assert rank == 2
    together = np.concatenate([x.numpy(), unseen.numpy()])
    assert sorted(map(tuple, together.round(9))) == sorted(map(tuple, u.round(9)))
    assert np.bincount(labels.numpy()).tolist() == [16, 9]
    where = [int(np.argmin(((u - each) ** 2).sum(1))) for each in unseen.numpy()]
    truth = y[where]
    assert np.bincount(truth).tolist() == [5, 2]
    for quantity, guess in ((on_data.ACCURACY_BEFORE, guesses[0]), (on_data.ACCURACY_AFTER, guesses[1])):
        row = rows[quantity]
        assert row.value == pytest.approx(np.mean(guess == truth))
        orders = permutations(7, 39).numpy()
        assert row.null.draws == pytest.approx([np.mean(guess == truth[order]) for order in orders])
        assert (row.side, row.n, row.split) == (">=", 7, "validation")
    gains = (guesses[1] == truth).astype(float) - (guesses[0] == truth)
    threshold = np.mean(guesses[0] == truth) - 2 * gains.std(ddof=1) / np.sqrt(7)
    assert rows[on_data.ACCURACY_AFTER].threshold == pytest.approx(threshold)


def test_labels_of_unseen_samples_do_not_change_the_construction(monkeypatch):
    seen = []
    monkeypatch.setattr(on_data, "_test_mask", lambda labels: torch.arange(len(labels)) % 4 == 0)
    construct = on_data.construct
    monkeypatch.setattr(
        on_data, "construct", lambda x, y, **o: (seen.append((x, y)), construct(x, y, **o))[1]
    )
    tokens, _, y = data((21, 11), 4)
    other = np.where(np.arange(32) % 4 == 0, 1 - y, y)
    for labels in (y, other):
        rows_on(TokenData(tokens=tokens.tokens, labels=torch.from_numpy(labels)), draws=1)
    assert len(seen) == 4  # of the labels as given, then of permuted ones
    for first, second in zip(seen[:2], seen[2:]):
        assert torch.equal(first[0], second[0])
        assert torch.equal(first[1], second[1])
    order = permutations(24, 1)[0]
    assert torch.equal(seen[1][1], seen[0][1][order])


def test_trained_rungs_centre_by_the_tokens_that_they_trained_on(monkeypatch):
    """The digits by default, otherwise the training part of the images that were given."""

    class Given:
        def __init__(self, name):
            self.mixed = lambda generator: name

    seen = []
    monkeypatch.setattr(ladder, "digit_parts", lambda: ("train", "test"))
    monkeypatch.setattr(ladder.image_sets, "tokens_of", lambda images, generator: seen.append(images) or "of")
    ladder._training_tokens.cache_clear()
    assert ladder._training_tokens(None) == "train"
    images = tuple(Given(name) for name in ("first", "second"))
    assert ladder._training_tokens(images) == "of"
    assert seen == ["first"]
    ladder._training_tokens.cache_clear()
