"""Rates, shares of the optimum and accuracies with their nulls against numbers from numpy; unequal classes
and anisotropic features.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import t

from tests.cases import each_case
from transformer_theory.core.metric import Activations
from transformer_theory.core.statistics import permutations
from transformer_theory.core.table import collect
from transformer_theory.data import TokenData
from transformer_theory.metrics.class_features import CLASS_CODING_RATE, CODING_RATE, RATE_REDUCTION
from transformer_theory.theories.rate_reduction import in_networks, ladder, on_data

FIXED = 4_019_217_653  # seed of all fixed numbers of the package


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


@pytest.mark.parametrize("flat", [0, 1])
def test_the_distortion_is_compared_in_the_class_with_the_smallest_margin(flat: int):
    """The bound of a class is sqrt(n_j / n) d / eps^2; one class is a line, the other fills the space."""
    x, y = classes((21, 11), 5)
    x[y == flat] = x[y == flat][:, :1] * [1.0, 2.0, -1.0]
    rows, _ = rows_on(TokenData(tokens=torch.from_numpy(x)[:, None], labels=torch.from_numpy(y)), draws=0)
    ranks = [1, 3] if flat == 0 else [3, 1]
    margins = [np.sqrt(size / 32) * 3 / 0.1 / rank for size, rank in zip((21, 11), ranks)]
    row = rows[on_data.SMALL_DISTORTION]
    assert row.value == pytest.approx(min(margins))
    assert max(margins) > 2 * min(margins)
    assert (row.op, row.threshold, row.verdict) == (">=", 1.0, "holds")
    row = rows[on_data.RANKS_FIT]
    assert (row.value, row.op, row.threshold, row.verdict) == (4.0, "<=", 3.0, "fails")


def test_the_ranks_may_fill_the_space_and_a_small_class_has_a_small_margin():
    """Two of 242 samples span a plane: the margin is sqrt(2 / 242) d / .1 / 2, d = 5 and d = 2."""
    rng, small = np.random.default_rng(6), np.array([[1.0, 0.4], [0.2, 1.0]])
    wide, narrow = np.zeros((242, 5)), np.zeros((242, 2))
    wide[:240, :3], wide[240:, 3:] = rng.normal(size=(240, 3)), small
    narrow[:240, 0], narrow[240:] = rng.normal(size=240), small
    for x, ranks, fits, distortion in ((wide, 5, "holds", "holds"), (narrow, 3, "fails", "fails")):
        labels = torch.from_numpy(np.repeat([0, 1], [240, 2]))
        data = TokenData(tokens=torch.from_numpy(x)[:, None], labels=labels)
        rows = {row.quantity: row for row in on_data._assumptions(on_data.features_of(on_data.read(data)))}
        margin = np.sqrt(2 / 242) * x.shape[1] / 0.1 / 2
        assert rows[on_data.SMALL_DISTORTION].value == pytest.approx(margin)
        assert rows[on_data.SMALL_DISTORTION].verdict == distortion
        assert (rows[on_data.RANKS_FIT].value, rows[on_data.RANKS_FIT].verdict) == (ranks, fits)


@each_case(("samples", "dims"), [(30, 10), (31, 10), (30, 11), (6, 10), (6, 11)])
def test_as_many_samples_and_dimensions_as_the_limits_are_kept(samples: int, dims: int, monkeypatch):
    monkeypatch.setattr(on_data, "MAX_SAMPLES", 30)
    monkeypatch.setattr(on_data, "MAX_DIM", 10)
    rng = np.random.default_rng(7)
    x, y = rng.normal(size=(samples, dims)) * np.linspace(3, 0.2, dims), np.arange(samples) % 2
    found = on_data.features_of(on_data.Sequences(torch.from_numpy(x), torch.from_numpy(y), "given"))
    cosines = found.vectors.numpy() @ found.vectors.numpy().T
    if samples == 31:
        assert len(found.vectors) == len(found.labels) == 30
        places = [int(np.argmin(((units(x) - each) ** 2).sum(1))) for each in found.vectors.numpy()]
        assert y[places].tolist() == found.labels.tolist()
        assert len(set(places)) == 30
    elif dims == 10:
        assert found.vectors.numpy() == pytest.approx(units(x))
    else:
        leading = x @ np.linalg.svd(x, full_matrices=False)[2][:10].T
        assert cosines == pytest.approx(units(leading) @ units(leading).T)
        assert found.vectors.shape[1] == min(10, samples)
    assert ("leading" in found.description) == (dims == 11)


@pytest.mark.parametrize(("width", "expected"), [(64, "all 2 tokens"), (65, "mean of 2 tokens")])
def test_up_to_128_entries_are_one_vector(width: int, expected: str):
    x = np.random.default_rng(8).normal(size=(4, 2, width))
    data = TokenData(tokens=torch.from_numpy(x), labels=torch.arange(4) % 2)
    found = on_data.read(data)
    assert expected in found.description
    assert found.vectors.numpy() == pytest.approx(x.reshape(4, -1) if width == 64 else x.mean(1))


@pytest.mark.parametrize(
    ("n", "classes", "dim", "layers"), [(1000, 10, 64, 100), (2000, 100, 128, 10), (2000, 10, 128, 45)]
)
def test_layers_cost_moments_factors_and_products(n: int, classes: int, dim: int, layers: int):
    """4e10 operations: k + 1 moments of n d^2 and factors of 8 d^3, and n k d^2 for the products."""
    cost = (classes + 1) * (n * dim**2 + 8 * dim**3) + n * classes * dim**2
    assert on_data.depth(n, classes, dim) == layers == min(100, max(10, int(4e10 / cost)))


def test_the_step_is_a_quarter_of_the_inverse_of_the_largest_operator():
    assert on_data.short_step(24, 3) == pytest.approx(0.2)
    assert on_data.short_step(60, 3) == pytest.approx(0.5)
    assert on_data.short_step(200, 3) == 0.5


class Known:
    """A construction with given reductions, whose features are those of the samples, rotated."""

    def __init__(self, x: torch.Tensor, reductions: list[float]):
        self.reductions = torch.tensor(reductions, dtype=torch.float64)
        self.rates = torch.stack([self.reductions + 1, torch.ones(len(reductions)).double()], 1)
        self.features = self.transform(x)

    def transform(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, [1, 2, 0]] * torch.tensor([1.0, -1.0, 1.0]).double()

    def predict(self, transformed: torch.Tensor) -> torch.Tensor:
        return (transformed[:, 0] > 0).long()


@pytest.mark.parametrize("draws", [0, 1, 39])
def test_rows_of_a_construction_and_of_its_only_null(monkeypatch, unchecked, draws: int):
    asked, given = [], ([1.0, 1.6, 1.5, 2.0, 2.0 - 1e-12], [1.0, 0.9, 0.8, 0.95, 1.2])

    def construct(x: torch.Tensor, y: torch.Tensor, **settings) -> Known:
        asked.append((x, y, settings))
        return Known(x, given[len(asked) - 1])

    monkeypatch.setattr(on_data, "construct", construct)
    tokens, u, y = data((21, 11), 9)
    rows, arrays = rows_on(tokens, draws)
    assert len(asked) == (2 if draws else 1)
    x, labels, settings = asked[0]
    assert np.bincount(labels.numpy()).tolist() == [16, 9]
    assert settings == {
        "layers": 100, "eps": 0.1**0.5, "step": pytest.approx(0.25 * 25 * 0.1 / 3), "sharpness": 500.0,
    }  # fmt: skip
    best = optimum((16, 9), 0.1)
    for quantity, value, null, unit in (
        (on_data.LAYERS_RAISE, 3 / 4, 2 / 4, "share"),
        (on_data.REDUCTION_AFTER, 2.0, 1.2, "nats"),
        (on_data.SHARE_AFTER, 2.0 / best, 1.2 / best, "share"),
    ):
        row = rows[quantity]
        assert row.value == pytest.approx(value, rel=1e-6)
        assert (row.unit, row.n, row.split, row.scope) == (unit, 25, "train", "any data")
        assert [null.draws for null in row.nulls] == ([pytest.approx((null,), rel=1e-6)] if draws else [])
    raised = rows[on_data.LAYERS_RAISE]
    assert (raised.op, raised.threshold, raised.verdict) == (">=", 1.0, "violated")
    assert {rows[name].side for name in (on_data.REDUCTION_AFTER, on_data.SHARE_AFTER)} == {">="}
    if draws:
        assert torch.equal(asked[1][0], x)
        assert torch.equal(asked[1][1], labels[permutations(25, 1)[0]])
        assert {name: value for name, value in asked[1][2].items() if name != "sharpness"} == {
            name: value for name, value in settings.items() if name != "sharpness"
        }
        assert arrays["rate_reduction/null_reductions"].tolist() == given[1]
    assert float(arrays["rate_reduction/optimum"]) == pytest.approx(best, rel=1e-6)
    for when, features in (("before", x.numpy()), ("after", x.numpy()[:, [1, 2, 0]])):
        for j, found in enumerate(arrays[f"rate_reduction/spectra_{when}"]):
            part = features[labels.numpy() == j]
            expected = np.linalg.svd(part, compute_uv=False) / np.sqrt(len(part))
            assert found == pytest.approx(expected)
    # the seven unseen samples, sorted by class
    unseen = np.array([each for each in u if np.abs(x.numpy() - each).sum(1).min() > 1e-9])
    truth = y[[int(np.argmin(((u - each) ** 2).sum(1))) for each in unseen]]
    shown = arrays["rate_reduction/labels"]
    assert shown.tolist() == sorted(truth.tolist())
    first = arrays["rate_reduction/cosines_before"]
    assert first == pytest.approx(arrays["rate_reduction/cosines_after"], abs=1e-6)  # rotations keep cosines
    together = [np.abs(unseen @ each).sum() for each in unseen]
    assert sorted(np.abs(first).sum(1)) == pytest.approx(sorted(together), rel=1e-5)
    compressed = rows[on_data.ACCURACY_COMPRESSED]
    assert compressed.value == pytest.approx(np.mean((unseen[:, 1] > 0) == truth))


def test_a_decrease_within_rounding_is_no_decrease():
    """Relative to the last reduction, or to one nat if that is larger."""
    for last, decrease, share in (
        (3.0, 2.9e-9, 1.0),
        (3.0, 3.1e-9, 0.5),
        (0.1, 0.9e-9, 1.0),
        (0.1, 1.1e-9, 0.5),
    ):
        reductions = torch.tensor([last, last - decrease, last], dtype=torch.float64)
        assert on_data._share_rising(reductions) == share


def test_intervals_are_a_jackknife_over_ten_groups_of_samples():
    """The samples in the order of the fixed seed; Student's t with nine degrees of freedom."""
    tokens, u, y = data((21, 11), 10)
    rows, _ = rows_on(tokens, draws=0)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(FIXED)).numpy()
    left = [order[np.arange(32) % 10 != group] for group in range(10)]
    values = [np.subtract(*reduction(u[some], y[some], 0.1)) for some in left]
    shares = [value / optimum(tuple(np.bincount(y[some])), 0.1) for value, some in zip(values, left)]
    for quantity, each in ((RATE_REDUCTION, values), (on_data.SHARE, shares)):
        row = rows[quantity]
        half = t.ppf(0.975, 9) * np.sqrt(9 * np.var(each))
        low = row.value - half if quantity == RATE_REDUCTION else max(row.value - half, 0.0)  # a share
        assert row.interval == pytest.approx((low, row.value + half), rel=1e-5)
        assert row.interval_kind == "over samples"
