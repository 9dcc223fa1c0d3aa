"""Shares, alignment, clusters of the flow and rungs against numbers from numpy: unequal heads, lengths and
missing tokens.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from sklearn.datasets import load_digits

from tests.cases import each_case
from transformer_theory.core.metric import Activations
from transformer_theory.core.statistics import permutations
from transformer_theory.core.table import collect
from transformer_theory.data import TokenData
from transformer_theory.theories import particles
from transformer_theory.theories.particles import in_networks, ladder, on_data
from transformer_theory.theories.particles.claims import equiangular, flows
from transformer_theory.theories.particles.within_between import position_permutations

Pairs = tuple[float, float, float, float]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def units(x: np.ndarray) -> np.ndarray:
    """Directions; zero where there is none."""
    size = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(size > 0, size, 1.0)


def tokens(n: int, T: int, d: int, *, shared: float, seed: int) -> np.ndarray:
    """Heavy-tailed tokens with positions of unequal length and a part that a sequence shares."""
    rng = np.random.default_rng(seed)
    own, common = rng.standard_t(4, size=(n, T, d)), rng.standard_t(4, size=(n, 1, d))
    spread = np.linspace(2, 0.3, d)
    return (
        spread * (shared * common + (1 - shared) * own)
        + rng.normal(size=(T, d)) * np.linspace(0, 2, T)[:, None]
    )


def by_pairs(u: np.ndarray, valid: np.ndarray, means: np.ndarray | None = None) -> Pairs:
    """D, its share, and the mean cosine within sequences, by loops over pairs; and the largest value of D."""
    n, T, _ = u.shape
    c = valid.sum(0)
    m = np.array([u[valid[:, i], i].mean(0) for i in range(T)]) if means is None else means
    products = expected = squares = cosines = pairs = 0.0
    for i in range(T):
        squares += sum(np.sum((u[s, i] - m[i]) ** 2) for s in range(n) if valid[s, i])
        for j in range(T):
            both = [s for s in range(n) if i != j and valid[s, i] and valid[s, j]]
            products += sum((u[s, i] - m[i]) @ (u[s, j] - m[j]) for s in both)
            expected += len(both) * (1 - 1 / c[i] - 1 / c[j] + len(both) / (c[i] * c[j]))
            cosines += sum(u[s, i] @ u[s, j] for s in both)
            pairs += len(both)
    scale = squares / (c - 1).sum()
    return products / expected, products / expected / scale, cosines / pairs, scale


def permuted(array: np.ndarray, order: np.ndarray) -> np.ndarray:
    return np.stack([array[order[:, t], t] for t in range(array.shape[1])], 1)


# ---- clusters of sequences


@pytest.mark.parametrize("missing", [False, True])
def test_the_share_and_its_null_by_pairs(missing: bool):
    x = tokens(12, 4, 3, shared=0.5, seed=0)
    valid = np.ones((12, 4), bool)
    if missing:
        valid[:6, 3] = valid[0, 1] = valid[4, 0] = False
    given = torch.from_numpy(np.where(valid[..., None], x, 5.0))
    real = torch.from_numpy(valid) if missing else None
    metric = particles.SequenceClusters()
    metric.update(Activations("", 2, "features", given, given, after_attention=given, real=real))
    rows = {row.quantity: row for row in metric.compute(draws=19)}
    u = units(x) * valid[..., None]
    D, share, within, _ = by_pairs(u, valid)
    found = rows[in_networks.SHARE], rows[in_networks.DIFFERENCE]
    assert [row.value for row in found] == pytest.approx([share, D], abs=1e-5)
    assert rows[in_networks.WITHIN].value == pytest.approx(within, abs=1e-5)
    assert rows[in_networks.BETWEEN].value == pytest.approx(within - D, abs=1e-5)
    orders = position_permutations(12, 4, 19).numpy()
    null = [by_pairs(permuted(u, order), permuted(valid, order)) for order in orders]
    scale = by_pairs(u, valid)[3]
    assert found[0].null.draws == pytest.approx([each[0] / scale for each in null], abs=1e-4)
    assert found[1].null.draws == pytest.approx([each[0] for each in null], abs=1e-5)
    assert {row.side for row in found} == {">="}
    assert {row.n for row in found} == {12}
    assert in_networks.IN_NETWORKS.side == ">="


def test_positions_are_permuted_independently():
    orders = position_permutations(50, 6, 20).numpy()
    assert all(sorted(order[:, t]) == list(range(50)) for order in orders for t in range(6))
    fixed = [np.mean(order[:, s] == order[:, t]) for order in orders for s in range(6) for t in range(s)]
    assert np.mean(fixed) == pytest.approx(1 / 50, abs=0.01)


def test_the_stream_after_attention_is_measured():
    x, y = (torch.from_numpy(tokens(12, 4, 3, shared=share, seed=1)) for share in (0.2, 0.8))
    metric = particles.SequenceClusters()
    metric.update(Activations("", 0, "features", x, x * 0 + 1, after_attention=y))
    value = metric.compute()[0].value
    assert value == pytest.approx(by_pairs(units(y.numpy()), np.ones((12, 4), bool))[1], abs=1e-5)


# ---- alignment


def across(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The component of a across x."""
    return a - (a * units(x)).sum(-1, keepdims=True) * units(x)


def mean_cosine(x: np.ndarray, length: int) -> float:
    u = units(x[:length])
    return np.mean([u[i] @ u[j] for i in range(length) for j in range(length) if i != j])


@pytest.mark.parametrize("padded", [False, True])
def test_alignment_and_rise_with_two_unequal_heads(padded: bool):
    """Of 21 sequences 16 are measured, whose weights are averaged over the heads."""
    rng = np.random.default_rng(2)
    n, T, d = 21, 5, 4
    lengths = np.where(np.arange(n) % 3 == 0, 3, 5) if padded else np.full(n, T)
    real = np.arange(T) < lengths[:, None]
    x = (rng.standard_t(5, size=(n, T, d)) + 0.7) * np.linspace(2, 0.4, d) * real[..., None]
    sharp = np.array([3.0, 0.1])[:, None, None]
    scores = np.exp(np.minimum(sharp * rng.normal(size=(n, 2, T, T)), 9)) * real[:, None, None]
    weights = scores / scores.sum(-1, keepdims=True)
    moved = 0.5 * (weights[:, 0] @ x @ rng.normal(size=(d, d)) + 2 * weights[:, 1] @ x) * real[..., None]
    metric, t = particles.ValueAlignment(), torch.from_numpy
    parts = {"real": t(real) if padded else None}
    metric.update(Activations("", 0, "attention", 1 * t(x), t(moved), weights=t(weights), **parts))
    metric.update(Activations("", 0, "features", t(x), t(x + moved), after_attention=t(x + moved), **parts))
    alignment, rise = metric.compute(draws=25)
    some = np.floor(np.linspace(0, n - 1, 16)).astype(int)
    x, moved, real, lengths = x[some], moved[some], real[some], lengths[some]
    field = weights[some].mean(1) @ x
    cosine = lambda a, b: (units(across(a, x)) * units(across(b, x))).sum(-1)  # noqa: E731
    value = cosine(moved, field)[real].mean()
    assert alignment.value == pytest.approx(value)
    null = []
    for order in permutations(16, 19).numpy():
        both = real & real[order]
        null.append(cosine(moved, field[order])[both].mean())
    assert alignment.null.draws == pytest.approx(null)
    length = np.linalg.norm(across(moved, x), axis=-1, keepdims=True)
    radial = moved - across(moved, x)
    expected = x + radial + length * units(across(field, x))
    change = lambda y: np.sum([  # noqa: E731
        length * (mean_cosine(b, length) - mean_cosine(a, length)) for a, b, length in zip(x, y, lengths)
    ]) / real.sum()  # fmt: skip
    assert rise.value == pytest.approx(change(x + moved))
    assert rise.predicted == pytest.approx(change(expected))
    assert (alignment.side, alignment.op, alignment.threshold) == (">=", ">=", 0.9)
    assert (rise.op, rise.threshold, alignment.n) == (">=", 0.0, 16)
    one = cosine(moved, weights[some][:, 0] @ x)[real].mean()
    assert abs(one - value) > 0.05  # the first head alone gives another number


# ---- on data


def components(x: np.ndarray) -> int:
    """The number of clusters of neighbours with a cosine above .999."""
    near, left, count = units(x) @ units(x).T > 0.999, set(range(len(x))), 0
    while left:
        count, reached = count + 1, {left.pop()}
        while reached:
            following = {j for i in reached for j in left if near[i, j]}
            left -= following
            reached = following
    return count


def rows_on(x: np.ndarray, draws: int = 39):
    problem = on_data.read(TokenData(tokens=torch.from_numpy(x)))
    assert isinstance(problem, on_data.Particles)
    table, arrays = collect(on_data.measure(problem, generator(), draws=draws))
    return problem, {row.quantity: row for row in table}, arrays


def test_rows_on_data_by_pairs():
    x = tokens(14, 4, 3, shared=0.6, seed=3)
    x[:5, 2] = 0  # no direction
    problem, rows, _ = rows_on(x)
    order = permutations(14, 1)[0].numpy()
    valid = (x != 0).any(-1)[order]
    u = units(x[order])
    assert problem.u.numpy() == pytest.approx(u)
    D, share, _, scale = by_pairs(u, valid)
    null = [
        by_pairs(permuted(u, each), permuted(valid, each))[0]
        for each in position_permutations(14, 4, 39).numpy()
    ]
    for quantity, value, factor in ((in_networks.SHARE, share, scale), (in_networks.DIFFERENCE, D, 1.0)):
        assert rows[quantity].value == pytest.approx(value)
        assert rows[quantity].null.draws == pytest.approx([draw / factor for draw in null])
        assert rows[quantity].side == ">="
    assert rows[in_networks.SHARE].note == "5 of 56 tokens have no direction"


def clustered(n: int = 30) -> np.ndarray:
    """Five tokens near one of two directions of their sequence; some are missing."""
    rng = np.random.default_rng(4)
    centres = rng.normal(size=(n, 2, 3))
    x = np.stack([centres[s, rng.integers(2, size=5)] for s in range(n)]) + 0.005 * rng.normal(size=(n, 5, 3))
    x[: n // 4, 1] = 0
    return x


def test_clusters_are_those_of_the_first_sequences_and_their_null_has_more(monkeypatch):
    """The flow ends where the tokens are. Sequences that cluster more than their permutations have a small
    p.
    """

    def flowed(problem: on_data.Particles) -> torch.Tensor:
        return torch.cat([torch.ones_like(problem.u).expand(10, -1, -1, -1), problem.u[None]])

    monkeypatch.setattr(on_data, "flowed", flowed)
    problem, rows, arrays = rows_on(clustered())
    u, valid = problem.u[:24].numpy(), problem.valid[:24].numpy()
    row, counts = rows[on_data.CLUSTERS], [components(a[b]) for a, b in zip(u, valid)]
    assert row.value == pytest.approx(np.mean(counts))
    assert arrays["particles/counts"].tolist() == counts
    null, curves = [], []
    for order in position_permutations(24, 5, 9).numpy():
        a, b = permuted(u, order), permuted(valid, order)
        null.append(np.mean([components(c[d]) for c, d in zip(a, b)]))
        gram = np.einsum("sid,sjd->sij", a, a)
        total = gram.sum() - np.trace(gram, axis1=1, axis2=2).sum()
        curves.append(total / sum(k * (k - 1) for k in b.sum(1)))
    assert row.null.draws == pytest.approx(null)
    assert arrays["particles/permuted"][:, -1] == pytest.approx(curves)
    assert row.value < 2.2 < min(null)
    assert row.null.p(row.value, row.side) == pytest.approx(1 / 10)
    assert row.n == 24


def test_sequences_are_in_a_half_space_if_their_angles_have_a_gap():
    angles = np.random.default_rng(5).uniform(0, 2 * math.pi, size=(24, 4))
    x = np.stack([np.cos(angles), np.sin(angles)], -1)
    ordered = np.sort(angles, 1)
    gaps = np.concatenate([np.diff(ordered, axis=1), ordered[:, :1] + 2 * math.pi - ordered[:, -1:]], 1)
    row = rows_on(x, draws=0)[1][on_data.HALF_SPACE]
    assert row.value == pytest.approx(np.mean(gaps.max(1) > math.pi))
    assert 0.2 < row.value < 0.8
    assert (row.verdict, row.op, row.threshold) == ("fails", ">=", 1.0)


def test_the_flow_attracts_with_beta_nine_up_to_time_five():
    """Against Runge-Kutta steps of .01; one token is missing."""
    u, valid = units(np.random.default_rng(6).normal(size=(2, 4, 3))), np.ones((2, 4), bool)
    valid[1, 2] = False
    u = u * valid[..., None]

    def velocity(x: np.ndarray) -> np.ndarray:
        scores = np.exp(9.0 * x @ x.transpose(0, 2, 1)) * valid[:, None]
        v = scores / scores.sum(-1, keepdims=True) @ x
        return (v - (v * x).sum(-1, keepdims=True) * x) * valid[..., None]

    x, h, found = u, 0.01, on_data.flowed(on_data.Particles(*(torch.from_numpy(each) for each in (u, valid))))
    assert found.shape[0] == 11
    for step in range(501):
        if step % 50 == 0:
            assert found[step // 50].numpy() == pytest.approx(x, abs=3e-3)
        a = velocity(x)
        b = velocity(x + h / 2 * a)
        c = velocity(x + h / 2 * b)
        x = x + h / 6 * (a + 2 * b + 2 * c + velocity(x + h * c))


# ---- the ladder


def test_rows_of_a_rung():
    x = tokens(9, 4, 3, shared=0.4, seed=7)
    row, cosine = ladder.rows_of(torch.from_numpy(x))
    u, valid = units(x), np.ones((9, 4), bool)
    _, share, within, scale = by_pairs(u, valid)
    assert row.value == pytest.approx(share)
    orders = position_permutations(9, 4, 399).numpy()
    null = [by_pairs(permuted(u, order), valid)[0] / scale for order in orders[:20]]
    assert row.null.draws[:20] == pytest.approx(null)
    assert len(row.null.draws) == 399
    assert (row.side, row.predicted, row.basis, row.n) == (">=", 1.0, "limit", 9)
    assert cosine.value == pytest.approx(within)


@pytest.mark.parametrize("rung", ["independent", "digits", "scores"])
def test_tokens_move_by_sa_with_beta_one_up_to_time_six(monkeypatch, rung: str):
    seen = {}

    def flow(X, field, *, times, tolerance):
        seen.update(X=X, field=field, times=times)
        return torch.stack([X * 0 + 1, X])

    monkeypatch.setattr(ladder, "flow", flow)

    def rows_of(after: torch.Tensor, **_):
        assert torch.equal(after, seen["X"])  # the last of the times
        return iter(ladder_rows)

    monkeypatch.setattr(ladder, "rows_of", rows_of)
    monkeypatch.setattr(ladder, "common_cosine", lambda times, *, n, beta: [times[0] / 10 + n / 100 + beta])
    ladder_rows = [ladder.LADDER.row(0.5), ladder.LADDER.other_row(ladder.COSINE, 0.3)]
    if rung == "independent":
        rows = list(ladder.independent(generator(8)))
        assert rows[1].predicted == pytest.approx(0.6 + 0.16 + 1)
        assert seen["X"].shape == (64, 16, 128)
        assert np.linalg.norm(seen["X"].numpy(), axis=-1) == pytest.approx(np.ones((64, 16)))
    else:
        list(ladder.real(generator(8), scores=rung == "scores"))
    assert seen["times"] == (6.0,)
    X = seen["X"][:2].numpy()
    B = np.eye(X.shape[-1])
    if rung == "scores":
        B = seen["field"].keywords["bilinear"].numpy()
        assert B.std() == pytest.approx(1 / math.sqrt(len(B)), rel=0.4)
    x = units(X)
    scores = np.exp(x @ B @ x.transpose(0, 2, 1))
    v = scores / scores.sum(-1, keepdims=True) @ x
    expected = v - (v * x).sum(-1, keepdims=True) * x
    assert seen["field"](torch.from_numpy(X)).numpy() == pytest.approx(expected)


def test_patches_of_digits_without_those_that_are_zero():
    found = ladder.digit_tokens(generator(9)).numpy()
    images = load_digits().images.reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(-1, 16, 4)
    order = torch.randperm(len(images), generator=generator(9)).numpy()
    kept = [each[(each != 0).any(1)] for each in images[order]]
    expected = np.stack([each[:10] for each in kept if len(each) >= 10][:64])
    assert found / found.max() == pytest.approx(expected / expected.max())


def test_the_model_of_the_ladder_and_its_second_null(monkeypatch):
    """The draws are shares of exchanged inputs, beside the share of the same inputs as given."""
    x, seen = tokens(8, 4, 3, shared=0.5, seed=10), {}
    data = TokenData(tokens=torch.from_numpy(x), labels=torch.arange(8) % 2)
    monkeypatch.setattr(ladder, "digit_parts", lambda: (data, data))
    monkeypatch.setattr(ladder, "EXCHANGES", 7)
    monkeypatch.setattr(ladder, "MOSAIC_SEQUENCES", 5)

    def fitted(model, *_, **__):
        seen["model"] = model
        with torch.no_grad():
            model.value.add_(torch.randn(model.value.shape, generator=generator(11)) / 5)
        return 0.6

    monkeypatch.setattr(ladder, "fit_classifier", fitted)
    row, _, accuracy = ladder.trained(generator(12), free_value=True)
    parameters = {name: p.detach().double().numpy() for name, p in seen["model"].named_parameters()}

    def states(x: np.ndarray) -> np.ndarray:
        X = units(x @ parameters["embed.weight"].T + parameters["embed.bias"] + parameters["positions"])
        for B, V in zip(parameters["bilinear"], parameters["value"]):
            scores = np.exp(X @ B @ X.transpose(0, 2, 1))
            X = units(X + scores / scores.sum(-1, keepdims=True) @ X @ V)
        return X

    share = lambda x: by_pairs(states(x), np.ones(x.shape[:2], bool))[1]  # noqa: E731
    assert row.value == pytest.approx(share(x), abs=1e-3)
    _, second = row.nulls
    assert second.value == pytest.approx(share(x[:5]), abs=1e-3)
    draws = [share(permuted(x[:5], order)) for order in position_permutations(5, 4, 7).numpy()]
    assert second.draws == pytest.approx(draws, abs=1e-3)
    assert accuracy.value == 0.6


def test_a_network_has_its_value_on_exchanged_inputs_as_second_null(monkeypatch):
    x = torch.from_numpy(tokens(6, 4, 3, shared=0.5, seed=13)).float()
    seen = {}

    def respond(model, inputs, metrics, **options):
        seen.update(inputs)
        row = ladder.LADDER.row(0.4, nulls=(ladder.Null(options["null_kind"], (0.1, 0.2)),))
        return SimpleNamespace(table=SimpleNamespace(select=lambda quantity: [row]))

    own = ladder.LADDER.row(0.7, nulls=(ladder.Null("permuted", (0.0, 0.01)),))
    monkeypatch.setattr(ladder, "respond", respond)
    monkeypatch.setattr(ladder, "headline_in", lambda *_, **__: own)
    data = TokenData(tokens=x, labels=torch.arange(6) % 2)
    (row,) = ladder.in_network(torch.nn.Identity(), data, name="", steps=1)
    assert (row.value, row.predicted, row.null.draws) == (0.7, 1.0, (0.0, 0.01))
    assert (row.nulls[1].draws, row.nulls[1].value) == ((0.1, 0.2), 0.4)
    assert torch.equal(seen["value"], x)
    assert len(seen["null"]) == 99
    order = position_permutations(6, 4, 99).numpy()
    assert np.array_equal(seen["null"][5].numpy(), permuted(x.numpy(), order[5]))


@pytest.mark.parametrize("causal", [False, True])
def test_the_velocity_of_sa_with_all_matrices(causal: bool):
    """Attention moves x V; the part along the token is projected away."""
    rng = np.random.default_rng(12)
    x, B, V = rng.normal(size=(5, 4)), rng.normal(size=(4, 4)), rng.normal(size=(4, 4))
    u = units(x)
    weights = np.exp(1.7 * u @ B @ u.T) * (np.tri(5) if causal else 1)
    moved = weights / weights.sum(1, keepdims=True) @ u @ V
    expected = moved - (moved * u).sum(1, keepdims=True) * u
    found = particles.softmax_field(
        torch.from_numpy(x), beta=1.7, bilinear=torch.from_numpy(B), value=torch.from_numpy(V), causal=causal
    )
    assert found.numpy() == pytest.approx(expected)


@pytest.mark.parametrize("cosine", [0.0, 0.4, -0.5])
def test_the_time_for_which_two_tokens_stay_apart(cosine: float):
    """The integral of (e^{beta (1 - g)} + 1) / (2 (1 - g^2)) from the cosine up to .9, at beta = 100."""
    exact = quad(lambda g: (math.exp(100 * (1 - g)) + 1) / (2 * (1 - g * g)), cosine, 0.9, limit=500)[0]
    assert particles.separation_time(beta=100, cosine=cosine) == pytest.approx(exact, rel=0.02)


def test_the_velocity_of_usa_has_weights_that_do_not_sum_to_one():
    rng = np.random.default_rng(13)
    x, V = rng.normal(size=(5, 4)), rng.normal(size=(4, 4))
    u = units(x)
    moved = np.exp(0.8 * u @ u.T) @ u @ V / 5
    expected = moved - (moved * u).sum(1, keepdims=True) * u
    found = particles.unnormalised_field(torch.from_numpy(x), beta=0.8, value=torch.from_numpy(V))
    assert found.numpy() == pytest.approx(expected)


# ---- claims


@pytest.mark.parametrize("errors", [(0.25, 0.01), (-0.02, -0.4), (0.0, 0.0)])
def test_both_rates_of_consensus_are_judged_by_the_larger_error(monkeypatch, errors: tuple[float, float]):
    """Rates are logarithms of ratios of 1 - cos at two times, in SA at 1 and 2, in USA e^beta times as early.
    They are 2 and 2 e^beta up to relative errors.
    """
    seen, rates = [], []

    def flow(X, field, *, times, tolerance):
        seen.append((field.func, field.keywords["beta"], times))
        return len(seen)

    def cosines(number: int) -> torch.Tensor:
        rates.append(2 * (1 + errors[number - 1]))
        return 1 - 0.03 * torch.tensor([1.0, math.exp(-rates[-1])], dtype=torch.float64)

    monkeypatch.setattr(equiangular, "flow", flow)
    monkeypatch.setattr(equiangular, "mean_cosine", cosines)
    found = equiangular.consensus_rate.function(generator(1))
    beta = found.detail["beta"]
    assert 1 <= beta <= 2
    assert [field for field, *_ in seen] == [particles.softmax_field, particles.unnormalised_field]
    assert [b for _, b, _ in seen] == [beta, beta]
    for (*_, times), speed in zip(seen, (1, math.exp(beta))):
        assert times == pytest.approx((1 / speed, 2 / speed))
    assert found.value == pytest.approx(max(map(abs, errors)), abs=1e-9)
    assert found.detail["SA"] == pytest.approx(rates[0])
    assert found.detail["USA"] == pytest.approx(rates[1] * math.exp(beta))
    seen.clear()
    swapped = equiangular.consensus_rate.function(generator(1), swapped=True)
    expected = [
        abs((1 + errors[0]) / math.exp(beta) - 1),
        abs((1 + errors[1]) * math.exp(beta) - 1),
    ]
    assert swapped.value == pytest.approx(max(expected))


@pytest.mark.parametrize("place", [0, 3, 4])
def test_the_common_cosine_of_two_tokens_is_judged_at_its_worst_time(monkeypatch, place: int):
    def cosine(times, *, n, beta):
        assert (len(times), n, beta) == (5, 2, 0.0)
        return np.tanh(times) - 0.1 * (np.arange(5) == place) + 0.02 * (np.arange(5) == 1)

    monkeypatch.setattr(equiangular, "common_cosine", cosine)
    assert equiangular.two_tokens.function(generator(2)) == pytest.approx(0.1)


def test_orthogonal_starts_are_judged_by_the_worst_pair_at_the_worst_time(monkeypatch):
    """Sixteen orthogonal tokens, of which two have come closer at the third of four times."""
    steps = []

    def flow(X, field, *, times, tolerance):
        assert X.shape == (16, 20)
        assert (X @ X.mT).numpy() == pytest.approx(np.eye(16), abs=1e-9)
        steps.append(times)
        found = X.expand(4, 16, 20).clone()
        found[2, 5] = 0.3 * X[9] + math.sqrt(1 - 0.09) * X[5]
        return found

    monkeypatch.setattr(equiangular, "flow", flow)
    monkeypatch.setattr(equiangular, "common_cosine", lambda times, **_: np.array([0.0, 0.1, 0.05, 0.2]))
    for claim in (equiangular.orthogonal_start, equiangular.orthogonal_start_usa):
        found = claim.function(generator(3))
        assert found.value == pytest.approx(0.3 - 0.05)
        assert found.detail["last"] == 0.2
    assert steps == [pytest.approx([0.5, 1, 2, 4]), pytest.approx([0.1, 0.2, 0.4, 0.8])]


@each_case(
    ("share", "start", "expected"), [(0.7, 0.5, 1.0), (1.3, 0.5, 1.3), (0.7, 0.4, 1.25), (0.7, 0.7, 1.4)]
)
def test_the_estimate_is_judged_by_its_worst_ratio(monkeypatch, share: float, start: float, expected: float):
    """One of eighty values of 1 - g is this share of the estimate, the others are half of it; the estimate at
    t_0 is compared with 1/2 in both directions.
    """
    asked = []

    def estimate(t: float, *, n: int, beta: float) -> float:
        first = n * math.exp(beta) / 2
        return start if t == pytest.approx(first, rel=1e-12) else start * math.exp(first - t)

    def cosine(times, *, n: int, beta: float):
        asked.append((n, beta, times))
        shares = [share if len(asked) == 13 and place == 2 else 0.5 for place in range(4)]
        return np.array([1 - s * estimate(t, n=n, beta=beta) for s, t in zip(shares, times)])

    monkeypatch.setattr(equiangular, "consensus_estimate", estimate)
    monkeypatch.setattr(equiangular, "common_cosine", cosine)
    assert equiangular.estimate.function(generator(4)) == pytest.approx(expected)
    assert len(asked) == 20
    assert all(2 <= n <= 32 and 0 <= beta <= 2 for n, beta, _ in asked)
    assert all(0 <= t - n * math.exp(beta) / 2 <= 10 for n, beta, times in asked for t in times)


def test_the_exponent_of_the_number_of_clusters_is_a_slope_over_five_betas(monkeypatch):
    """From 16 to 81; the counts of sixteen sequences are those of a power with noise."""
    rng, asked = np.random.default_rng(15), []

    def counts(beta: float, _) -> torch.Tensor:
        asked.append((beta, beta**0.8 + rng.normal(size=16)))
        return torch.from_numpy(asked[-1][1])

    monkeypatch.setattr(flows, "_counts", counts)
    found = flows.square_root.function(generator())
    betas, means = [beta for beta, _ in asked], [values.mean() for _, values in asked]
    assert betas == [16, 25, 36, 49, 81]
    slope = np.polyfit(np.log(betas), np.log(means), 1)[0]
    assert found.value == pytest.approx(abs(slope - 0.5))
    assert found.detail == pytest.approx({"slope": slope, **{f"beta {b:g}": m for b, m in zip(betas, means)}})
    asked.clear()
    flows.square_root.function(generator(), **flows.square_root.change.changed)
    assert [beta for beta, _ in asked] == [0.1, 0.25, 0.5, 1.0]


@pytest.mark.parametrize("beta", [25.0, 1.0])
def test_clusters_are_several_if_they_are_two_to_twelve(monkeypatch, beta: float):
    def counts(given: float, _) -> torch.Tensor:
        assert given == beta
        return torch.tensor([1, 2, 3, 12, 13, 5, 1, 30]).double()

    monkeypatch.setattr(flows, "_counts", counts)
    found = flows.metastable.function(generator(), **({} if beta == 25 else flows.metastable.change.changed))
    assert found.value == 4 / 8
    assert found.detail == {"mean": 67 / 8, "smallest": 1, "largest": 30}
