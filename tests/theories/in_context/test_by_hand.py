"""Dual share, in-context score, the closed forms on the user's tokens and the rows of the ladder against
numpy, on heavy-tailed and anisotropic inputs.
"""

import math
from collections import Counter
from collections.abc import Callable
from itertools import permutations as permutations_of

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.metric import Activations
from transformer_theory.core.table import collect
from transformer_theory.data import TokenData
from transformer_theory.models import Decoder, build
from transformer_theory.probes.respond import respond
from transformer_theory.theories.in_context import ladder, on_data
from transformer_theory.theories.in_context.claims import algorithms
from transformer_theory.theories.in_context.in_networks import (
    IN_NETWORKS,
    DualShare,
    InContextScore,
    PermutedContexts,
    own_context,
    own_pairs,
    paired_contexts,
    repeated_context,
    repeated_pairs,
)
from transformer_theory.theories.in_context.inputs import TokenInputs
from transformer_theory.theories.in_context.prompts import Prompts

FIXED = 4_019_217_653  # seed of all fixed numbers of the package


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- the dual share


def dual_by_hand(scores: np.ndarray, value: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """The mean over the allowed keys of (s - mean s) v, ``[q, v]``."""
    dual = np.zeros((len(scores), value.shape[1]))
    for q, keys in enumerate(allowed):
        if keys.any():
            own = scores[q, keys]
            dual[q] = (own - own.mean()) @ value[keys] / keys.sum()
    return dual


def activations(query, key, value, mask, infinite: np.ndarray) -> Activations:
    scores = query @ key.mT
    hidden = torch.from_numpy(infinite) if mask is None else torch.from_numpy(infinite) | ~mask
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1).nan_to_num(0.0)
    return Activations(
        "a",
        0,
        "attention",
        value[:, 0],
        value[:, 0],
        query=query,
        key=key,
        value=value,
        weights=weights,
        mask=mask,
    )


CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()
SEVERAL = torch.stack([CAUSAL, CAUSAL.flip(0)]).expand(4, 2, 6, 6)


@each_case("mask", [None, CAUSAL[None, None], SEVERAL], ids=["all", "causal", "of each head"])
@each_case("infinite", [False, True], ids=["finite", "infinite scores"])
def test_draws_take_the_scores_of_another_query_and_the_own_keys(mask, infinite: bool):
    """Heads differ in their scores and values; a key with infinite scores is none."""
    query, key = (torch.randn(4, 2, 6, 3, generator=generator(s), dtype=torch.float64) for s in (1, 2))
    value = torch.randn(4, 2, 6, 5, generator=generator(3), dtype=torch.float64) + 2
    query[:, 1] *= 3
    spoilt = np.zeros((4, 2, 6, 6), bool)
    if infinite:
        query[0, 0] = query[0, 0].abs()
        key[0, 0, 4] = -math.inf
        spoilt[0, 0, :, 4] = True
    found = activations(query, key, value, mask, spoilt)
    metric = DualShare()
    metric.draws = 19
    metric.update(found)
    orders = [list(range(6))]
    g = generator(FIXED)
    orders += [torch.randperm(6, generator=g).tolist() for _ in range(19)]
    allowed = np.ones((4, 2, 6, 6), bool) if mask is None else mask.expand(4, 2, 6, 6).numpy()
    allowed = allowed & ~spoilt
    with np.errstate(all="ignore"):
        scores = np.where(spoilt, 0.0, np.einsum("bhqd,bhkd->bhqk", query.numpy(), key.numpy()))
    for head, row in enumerate(metric.compute(draws=19)):
        shares = []
        for order in orders:
            inner = own = other = 0.0
            for b in range(4):
                v, keys = value[b, head].numpy(), allowed[b, head]
                mean = keys @ v / np.maximum(keys.sum(1, keepdims=True), 1)
                output = found.weights[b, head].numpy() @ v - mean
                dual = dual_by_hand(scores[b, head][order], v, keys)
                inner, own, other = (
                    inner + (output * dual).sum(),
                    own + (output**2).sum(),
                    other + (dual**2).sum(),
                )
            shares.append(inner**2 / (own * other))
        assert row.value == pytest.approx(shares[0], rel=1e-4)
        assert row.null.draws == pytest.approx(shares[1:], rel=1e-3, abs=1e-6)
        assert row.value > 1.5 * row.null.median
        assert (row.side, IN_NETWORKS.side) == (">=", None)


# ---- the in-context score


def test_the_score_is_the_mean_late_loss_less_the_mean_early_one():
    """Six targets are early, three late; those below zero do not count."""
    rng, targets = np.random.default_rng(0), np.full((3, 7), -100)
    logits = rng.normal(size=(3, 7, 5)) * 3
    targets[:, 0], targets[:, 2], targets[0, 3:6] = [1, 4, 0], [2, 2, 3], [0, 3, 4]
    losses: dict[bool, list[float]] = {True: [], False: []}
    for (row, place), target in np.ndenumerate(targets):
        if target >= 0:
            own = logits[row, place]
            losses[place >= 3].append(math.log(np.exp(own).sum()) - own[target])
    assert [len(losses[late]) for late in (False, True)] == [6, 3]
    metric, tokens = InContextScore(), torch.zeros(3, 7, 1)
    parts = {"outputs": torch.from_numpy(logits), "targets": torch.from_numpy(targets)}
    metric.update(Activations("", 0, "outputs", tokens, tokens, **parts))
    (row,) = metric.compute()
    assert row.value == pytest.approx(np.mean(losses[True]) - np.mean(losses[False]))
    assert row.side == "<="


def test_own_and_other_contexts_in_both_orders():
    data = torch.arange(5 * 8).view(5, 8) + 3
    inputs = own_context(data, {}, generator(1))
    context, block = data[:, :6], data[:, 6:]
    assert inputs["value"].tolist() == [*data.tolist(), *torch.cat([block, context], 1).tolist()]
    assert len(inputs["null"]) == 4
    seen = set()
    for null in inputs["null"]:
        assert null[:5, 6:].tolist() == null[5:, :2].tolist() == block.tolist()
        assert null[:5, :6].tolist() == null[5:, 2:].tolist()
        owners = [context.tolist().index(each) for each in null[:5, :6].tolist()]
        assert all(owner != place for place, owner in enumerate(owners)), "no context is that of the block"
        seen.add(tuple(owners))
    assert len(seen) == 4
    hidden = [-100] * 6
    assert inputs["targets"][:5].tolist() == [[*hidden, int(row[7]), -100] for row in data]
    assert inputs["targets"][5:].tolist() == [[int(row[7]), -100, *hidden] for row in data]


def test_each_block_is_read_behind_all_contexts_of_its_group():
    """Nine sequences are groups of five and four, 25 + 16 pairs; B C has the own contexts only."""
    data = torch.arange(9 * 8).view(9, 8) + 3
    inputs = paired_contexts(own_context(data, {}, generator(1), draws=0))
    value, targets = inputs["value"], inputs["targets"]
    assert value.shape == (25 + 16 + 9, 8)
    assert targets.shape == (50, 10)
    pairs = targets[:41, :2].tolist()
    same = [[i, j] for i in range(9) for j in range(9) if (i < 5) == (j < 5)]
    assert sorted(pairs) == same
    for (i, j), row, target in zip(pairs, value[:41].tolist(), targets[:41, 2:].tolist()):
        assert row == [*data[j, :6].tolist(), *data[i, 6:].tolist()]
        assert target == [-100] * 6 + [int(data[i, 7]), -100]
    assert targets[41:, :2].tolist() == [[i, i] for i in range(9)]
    assert value[41:].tolist() == torch.cat([data[:, 6:], data[:, :6]], 1).tolist()
    assert targets[41:, 2:].tolist() == [[int(row[7]), -100, *[-100] * 6] for row in data]


def test_the_null_of_a_score_has_all_permutations_of_the_contexts():
    """Three blocks in one group: six permutations, each in a sixth of the draws; the value is one of them."""
    rng = np.random.default_rng(2)
    late, early = rng.exponential(size=(3, 3)), rng.exponential(size=3)
    rows = [[i, j, 2 * late[i, j], 2, 0, 0] for i in range(3) for j in range(3)]
    rows += [[i, i, 0, 0, 2 * early[i], 2] for i in range(3)]
    metric = PermutedContexts()
    metric.add((), torch.tensor(rows, dtype=torch.float64)[torch.randperm(12, generator=generator())])
    (row,) = metric.compute(draws=1199)
    assert row.value == pytest.approx(np.trace(late) / 3 - early.mean(), abs=1e-8)
    expected = sorted(
        sum(late[i, j] for i, j in enumerate(order)) / 3 - early.mean() for order in permutations_of(range(3))
    )
    seen = Counter(row.null.draws)
    assert sorted(seen) == pytest.approx(expected, abs=1e-8)
    assert min(seen.values()) > 150
    assert row.value in seen, "the own contexts are one of the permutations, to the last digit"
    assert (row.side, row.n, row.null.kind) == ("<=", 3, "contexts of other sequences")
    rank = sum(each <= row.value for each in row.null.draws)
    assert row.null.p(row.value, row.side) == (1 + rank) / 1200


def test_contexts_are_permuted_within_groups():
    """Losses of 1 within two groups of 5 and 4, those of other pairs are not known."""
    metric = PermutedContexts()
    pairs = [[i, j] for i in range(9) for j in range(9) if (i < 5) == (j < 5)]
    rows = [[i, j, 1.0, 1, 0, 0] for i, j in pairs] + [[i, i, 0, 0, 3.0, 1] for i in range(9)]
    metric.add((), torch.tensor(rows, dtype=torch.float64))
    (row,) = metric.compute(draws=99)
    assert row.value == -2
    assert set(row.null.draws) == {-2.0}


def test_the_score_of_a_network_is_that_of_its_own_contexts():
    model = build(lambda: Decoder(vocabulary=20, dim=16, depth=2, heads=2), generator()).eval()
    data = torch.randint(20, (11, 24), generator=generator(1))
    for make, pairs in ((own_context, own_pairs), (repeated_context, repeated_pairs)):
        limits = {"vocabulary": 20, "length": 24}
        found = []
        for inputs, metric in (
            (make(data, limits, generator(2)), InContextScore()),
            (pairs(data, limits, generator(2)), PermutedContexts()),
        ):
            targets = inputs.pop("targets")
            found += respond(model, inputs, [metric], targets=targets, batch_size=7).table
        assert found[1].value == pytest.approx(found[0].value, abs=1e-6)
        assert found[1].value != 0


def test_a_repeated_block_has_different_ids_and_stands_once_in_its_context():
    data = torch.randint(20, (40, 30), generator=generator())
    inputs = repeated_context(data, {"vocabulary": 50, "length": 12}, generator(1))
    value = inputs["value"]
    assert value.shape == (32, 12), "sixteen sequences in both orders"
    assert all(len(set(block.tolist())) == 3 for block in value[:16, 9:])
    assert torch.equal(value[:16, 6:9], value[:16, 9:])
    assert value.max() > 40, "ids of the whole vocabulary"
    assert sum(torch.equal(null[:16, 6:9], value[:16, 9:]) for null in inputs["null"]) == 0


# ---- on data


class Known:
    """A layer with a known matrix, which answers x^T G b + .1."""

    G = torch.tensor([[0.9, 0.2, 0.0], [0.0, 0.5, 0.1], [0.3, 0.0, 0.2]], dtype=torch.float64)

    def preconditioner(self) -> torch.Tensor:
        return self.G

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        x, y, query = tokens[:, :-1, :-1].double(), tokens[:, :-1, -1].double(), tokens[:, -1, :-1].double()
        return torch.einsum("nd,de,nje,nj->n", query, self.G, x, y) / x.shape[1] + 0.1


def cosine_of(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


@pytest.fixture(name="measured")
def fixture_measured(monkeypatch) -> tuple[dict, dict, np.ndarray, list[Prompts]]:
    """Rows and arrays on tokens of three heavy-tailed components, their points, and the drawn prompts."""
    drawn: list[Prompts] = []
    make: Callable[..., Prompts] = on_data.linear_prompts
    monkeypatch.setattr(on_data, "linear_prompts", lambda *a, **k: drawn.append(make(*a, **k)) or drawn[-1])
    monkeypatch.setattr(on_data, "train_attention", lambda *_, **__: Known())
    monkeypatch.setattr(on_data, "TESTED", 400)
    tokens = np.random.default_rng(0).standard_t(2.5, size=(150, 4, 3)) * [3.0, 1.0, 0.4]
    problem = on_data.read(TokenData(torch.from_numpy(tokens)))
    table, arrays = collect(on_data.measure(problem, generator(5), draws=0))
    return {row.quantity: row for row in table}, arrays, problem.points.numpy(), drawn


def moments(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Covariance, E |x|^2 x x^T, and E b b^T for 20 examples."""
    L = points.T @ points / len(points)
    Q = (points * (points**2).sum(1, keepdims=True)).T @ points / len(points)
    return L, Q, Q / 20 + (1 - 1 / 20) * L @ L


def test_the_best_matrix_takes_the_fourth_moment_of_the_tokens(measured):
    rows, arrays, points, _ = measured
    L, Q, B = moments(points)
    best, step = L @ np.linalg.inv(B), np.trace(L @ L) / np.trace(L @ B)
    gaussian = np.linalg.inv((1 + 1 / 20) * L + np.trace(L) / 20 * np.eye(3))
    Q_gaussian = 2 * L @ L + np.trace(L) * L
    distance = np.linalg.norm(Q - Q_gaussian) / np.linalg.norm(Q_gaussian)
    assert not np.allclose(np.diag(best), np.diag(gaussian), rtol=0.2)
    assert rows[on_data.KURTOSIS].value == pytest.approx(distance)
    assert rows[on_data.KURTOSIS].verdict == "fails"
    assert rows[on_data.STEP].value == pytest.approx(step)
    assert rows[on_data.GAUSSIAN].value == pytest.approx(cosine_of(gaussian, best))
    assert rows[on_data.PLAIN].value == pytest.approx(cosine_of(np.eye(3), best))
    assert rows[on_data.INVERSE].value == pytest.approx(cosine_of(np.linalg.inv(L), best))
    assert rows[on_data.MATRIX].value == pytest.approx(cosine_of(Known.G.numpy(), best))
    expected = {"best": best, "gaussian": gaussian, "plain": step * np.eye(3), "trained": Known.G.numpy()}
    for name, matrix in expected.items():
        assert arrays[f"in_context/{name}"] == pytest.approx(np.diag(matrix), rel=1e-6, abs=1e-9)
    assert arrays["in_context/eigenvalues"] == pytest.approx(np.diag(L))


def test_the_headline_is_the_cosine_of_answers_over_prompts(measured):
    """E (x^T G b)(x^T H b) = tr L G B H^T, and by simulation."""
    rows, _, points, _ = measured
    L, _, B = moments(points)
    G, best = Known.G.numpy(), L @ np.linalg.inv(B)

    def inner(G: np.ndarray, H: np.ndarray) -> float:
        return float(np.trace(L @ G @ B @ H.T))

    row = rows[on_data.COSINE]
    assert row.value == pytest.approx(inner(G, best) / math.sqrt(inner(G, G) * inner(best, best)))
    assert (row.predicted, on_data.ON_DATA.headline) == (1.0, on_data.COSINE)
    rng = np.random.default_rng(1)
    x = points[rng.integers(len(points), size=(40_000, 21))]
    b = np.einsum("njd,njk,nk->nd", x[:, :20], x[:, :20], rng.normal(size=(40_000, 3))) / 20
    answers = [np.einsum("nd,de,ne->n", x[:, 20], matrix, b) for matrix in (G, best)]
    assert row.value == pytest.approx(cosine_of(*answers), abs=0.03)


def test_risks_are_those_of_their_matrices_and_their_predictions(measured):
    rows, _, points, drawn = measured
    L, _, B = moments(points)
    best, step = L @ np.linalg.inv(B), np.trace(L @ L) / np.trace(L @ B)
    x, y, query, target = (getattr(drawn[-1], name).numpy() for name in ("x", "y", "query", "target"))
    b = np.einsum("nj,njd->nd", y, x) / 20
    assert len(x) == 400

    def risk_of(G: np.ndarray) -> float:
        return float(np.trace(L @ (G @ B @ G.T - G @ L - L @ G.T + np.eye(3))))

    for name, G, constant, closed in (
        (on_data.TRAINED_RISK, Known.G.numpy(), 0.1, risk_of(best)),
        (on_data.BEST_RISK, best, 0.0, risk_of(best)),
        (on_data.PLAIN_RISK, step * np.eye(3), 0.0, risk_of(step * np.eye(3))),
    ):
        errors = (np.einsum("nd,de,ne->n", query, G, b) + constant - target) ** 2
        assert rows[name].value == pytest.approx(errors.mean(), rel=1e-4), name
        assert rows[name].predicted == pytest.approx(closed)
        half = 1.9659 * errors.std(ddof=1) / math.sqrt(400)  # t of 399 degrees of freedom
        assert rows[name].interval == pytest.approx((errors.mean() - half, errors.mean() + half), rel=1e-3)
    assert risk_of(best) < risk_of(step * np.eye(3)) < risk_of(np.zeros((3, 3)))


# ---- the ladder


def test_the_rows_of_a_rung(monkeypatch):
    """The step of the setting's moments and noise; nulls of other contexts and of nineteen algorithms."""
    monkeypatch.setattr(ladder, "TESTED", 60)
    points = np.random.default_rng(2).standard_t(3, size=(80, 3)) * [2.0, 1.0, 0.3]
    L = points.T @ points / 80
    Q = (points * (points**2).sum(1, keepdims=True)).T @ points / 80
    drawn: list[Prompts] = []

    def inputs(shape, generator):
        return torch.from_numpy(points)[torch.randint(80, shape, generator=generator)]

    def answers(prompts: Prompts) -> torch.Tensor:
        drawn.append(prompts)
        return prompts.query.sum(1) * prompts.y.mean(1) + prompts.target

    setting = ladder.Setting(inputs, torch.from_numpy(L), 0.7, torch.from_numpy(Q))
    row, *errors = ladder.compared(answers, setting, generator(4))
    x, y, query, target = (getattr(drawn[0], name).numpy() for name in ("x", "y", "query", "target"))
    found = query.sum(1) * y.mean(1) + target
    G = L @ np.linalg.inv(Q / 20 + (1 - 1 / 20) * L @ L + 0.7 / 20 * L)

    def step_of(order) -> np.ndarray:
        return np.einsum("nd,de,nje,nj->n", query, G, x[order], y[order]) / 20

    def ridge_of(strength: float) -> np.ndarray:
        w = [np.linalg.solve(a.T @ a / 20 + strength * np.eye(3), a.T @ b / 20) for a, b in zip(x, y)]
        return (query * np.array(w)).sum(1)

    def descent(steps: int) -> np.ndarray:
        w = np.zeros((60, 3))
        for _ in range(steps):
            w -= 0.3 * np.einsum("njd,nj->nd", x, np.einsum("njd,nd->nj", x, w) - y) / 20
        return (query * w).sum(1)

    step = step_of(np.arange(60))
    assert row.value == pytest.approx(cosine_of(found, step))
    g = generator(4)
    setting.draw(g, 60)  # the prompts come before the null
    orders = [torch.randperm(60, generator=g).numpy() for _ in range(399)]
    assert row.nulls[0].draws == pytest.approx([cosine_of(found, step_of(order)) for order in orders])
    strengths = 0.025 * 32 ** (np.arange(10) / 9)
    others = [ridge_of(strength) for strength in strengths] + [descent(steps) for steps in range(2, 11)]
    assert row.nulls[1].draws == pytest.approx([cosine_of(each, step) for each in others])
    assert (row.predicted, row.side, row.n) == (1.0, ">=", 60)
    expected = {"model": found, "one step": step, "ridge": ridge_of(0.7 / 20)}
    assert {each.at["answers of"]: each.value for each in errors} == pytest.approx(
        {name: ((each - target) ** 2).mean() / (target**2).mean() for name, each in expected.items()}
    )


def test_the_setting_of_the_digits_has_the_moments_of_its_points():
    setting = ladder.digit_setting()
    x = setting.inputs((60_000,), generator(1)).numpy()
    fourth = (x * (x**2).sum(1, keepdims=True)).T @ x / len(x)
    assert setting.covariance.numpy() == pytest.approx(x.T @ x / len(x), abs=0.05)
    assert setting.fourth.numpy() == pytest.approx(fourth, abs=0.6)
    assert np.trace(setting.covariance.numpy()) == pytest.approx(len(setting.covariance))
    assert setting.noise == 0.5


def test_the_written_layer_has_the_best_step_and_trained_ones_the_setting_of_their_rung(monkeypatch):
    """For five isotropic inputs without noise the best step is 1/(1 + 1/20 + 5/20)."""
    seen: list[tuple] = []
    monkeypatch.setattr(
        ladder, "compared", lambda answers, setting, *_: iter(seen.append((answers, setting)) or ())
    )
    monkeypatch.setattr(
        ladder, "train_attention", lambda draw, d, **settings: (draw(generator(1), 7), d, settings["softmax"])
    )
    rungs = {rung.name: rung for rung in ladder.LADDER.rungs}
    list(rungs["written layer"].measure(generator()))
    layer, setting = seen.pop()
    prompts = setting.draw(generator(2), 5)
    b = np.einsum("nj,njd->nd", prompts.y.numpy(), prompts.x.numpy()) / 20
    answers = (prompts.query.numpy() * b).sum(1) / (1 + 1 / 20 + 5 / 20)
    assert layer(prompts).numpy() == pytest.approx(answers, rel=1e-6)
    for name, spectrum, noise in (
        ("trained layer", [1.0] * 5, 0.0),
        ("noise", [1.0] * 5, 0.5),
        ("anisotropic inputs", [2.0, 1.0, 0.5, 0.25, 0.1], 0.5),
    ):
        list(rungs[name].measure(generator()))
        answers, setting = seen.pop()
        drawn, d, softmax = answers.args[0]
        assert (len(drawn), d, softmax, setting.noise, setting.fourth) == (7, 5, False, noise, None)
        assert setting.covariance.tolist() == np.diag(spectrum).tolist()
        x = setting.inputs((20_000,), generator(3)).numpy()
        assert np.diag(x.T @ x / 20_000) == pytest.approx(spectrum, rel=0.06)


@pytest.mark.parametrize(("limits", "shape"), [({}, (18, 8)), ({"sequences": 2}, (4, 8))])
def test_two_sequences_are_enough(limits: dict, shape: tuple[int, int]):
    inputs = own_context(torch.arange(72).view(9, 8), limits, generator())
    assert inputs["value"].shape == shape
    assert len(inputs["null"]) == min(4, shape[0] // 2 - 1)


@pytest.mark.parametrize(("share", "kept"), [(0.7e-6, 1), (1.5e-6, 2)])
def test_components_above_a_millionth_of_the_largest_variance_are_kept(share: float, kept: int):
    first, second = np.array([3.0, -3.0, 3.0, -3.0]), np.array([1.0, 1.0, -1.0, -1.0])
    tokens = np.stack([first, 3 * np.sqrt(share) * second], 1) + 7.0
    found = TokenInputs.of(torch.from_numpy(tokens))
    assert found is not None
    assert found.points.shape == (4, kept)


def test_selection_is_shown_beside_the_best_strength_on_all_examples(monkeypatch):
    """Fits whose error is ten times the strength: the smallest strength, .003, is the best."""
    monkeypatch.setattr(algorithms, "ridge", lambda prompts, strength: prompts.target + 10 * strength)
    detail = algorithms.selection.function(generator()).detail
    assert detail["best strength on all 24 examples"] == pytest.approx(0.03**2)
    risks = [detail[f"strength {strength}"] for strength in (0.003, 0.03, 0.3)]
    found = algorithms.selection.function(generator())
    assert found.value == pytest.approx(found.detail["selected"] / min(risks))


# ---- parts without finite numbers, and claims


@each_case("spoilt", ["value of the first head", "value of the second head", "weights"])
@each_case("masked", [False, True])
def test_sequences_without_finite_outputs_are_left_out_if_there_are_more_keys_than_queries(spoilt, masked):
    """Three queries and five keys; the second of three sequences is spoilt; a key of the first is none."""
    query = torch.randn(3, 2, 3, 4, generator=generator(1), dtype=torch.float64)
    key, value = (torch.randn(3, 2, 5, 4, generator=generator(s), dtype=torch.float64) for s in (2, 3))
    query[0, 1], key[0, 1, 4] = query[0, 1].abs(), -math.inf
    infinite = np.zeros((3, 2, 3, 5), bool)
    infinite[0, 1, :, 4] = True
    mask = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0], [1, 0, 1, 1, 1]]).bool() if masked else None
    found = activations(query, key, value, mask[None, None] if masked else None, infinite)
    if spoilt == "weights":
        found.weights[1, 1, 2, 3] = math.nan
    else:
        value[1, int("second" in spoilt), 2, 1] = math.inf
    metric = DualShare()
    metric.update(found)
    allowed = (np.ones((3, 5), bool) if mask is None else mask.numpy()) & ~infinite
    with np.errstate(all="ignore"):
        scores = np.where(infinite, 0.0, np.einsum("bhqd,bhkd->bhqk", query.numpy(), key.numpy()))
    for head, row in enumerate(metric.compute()):
        inner = own = other = 0.0
        for b in (0, 2):
            v, keys = value[b, head].numpy(), allowed[b, head]
            output = found.weights[b, head].numpy() @ v - keys @ v / keys.sum(1, keepdims=True)
            dual = dual_by_hand(scores[b, head], v, keys)
            inner, own, other = (
                inner + (output * dual).sum(),
                own + (output**2).sum(),
                other + (dual**2).sum(),
            )
        assert row.value == pytest.approx(inner**2 / (own * other))
