"""Gaps, kept shares, sinks, responses and the rows of the ladder, with their nulls, against numpy: unequal
heads and unequal numbers of keys.
"""

import math

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.metric import Activations
from transformer_theory.theories.length import claims, in_networks, ladder, retrieval
from transformer_theory.theories.length.in_networks import (
    GAP,
    HALVED,
    IN_NETWORKS,
    KEPT,
    PREDICTED,
    KeptShare,
    ScoreGaps,
)
from transformer_theory.theories.length.responses import (
    DoubledWeight,
    SinkValue,
    TokenChange,
    joined_halves,
    one_exchanged,
)

FIXED = 4_019_217_653  # seed of all fixed numbers of the package


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def attention(n: int = 6, T: int = 7, mask: torch.Tensor | None = None, seed: int = 0) -> Activations:
    """Two heads with scores of deviation 1 and 3, and unequal values."""
    g = generator(seed)
    query, key, value = (torch.randn(n, 2, T, 3, generator=g, dtype=torch.float64) for _ in range(3))
    query = query * torch.tensor([0.6, 1.8])[:, None, None]
    value = value * torch.arange(1, T + 1)[:, None] ** 0.5
    scores = 0.5 * query @ key.mT
    weights = (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1)
    tokens = torch.zeros(n, T, 2)
    parts = {"query": query, "key": key, "value": value, "weights": weights.nan_to_num(0.0), "mask": mask}
    return Activations("a", 0, "attention", tokens, tokens, **parts)


def rows_of(metric, *activations: Activations, draws: int = 0) -> list:
    metric.draws = draws
    for each in activations:
        metric.update(each)
    return list(metric.compute(draws=draws))


CAUSAL = torch.ones(7, 7, dtype=torch.bool).tril()
PADDED = torch.arange(7) < torch.tensor([7, 5, 6, 7, 4, 3])[:, None]
MASKS = {"all": None, "causal": CAUSAL[None, None], "padded": PADDED[:, None, None] & CAUSAL}
of_masks = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def allowed_of(found: Activations) -> np.ndarray:
    shape = found.weights.shape
    return np.ones(shape, bool) if found.mask is None else found.mask.expand(shape).numpy()


# ---- the gap


def measured_rows(found: Activations, head: int) -> list[tuple[int, float, float]]:
    """Number of keys, deviation of the scores and gap of each query with three keys."""
    rows = []
    for a, keys in zip(
        found.weights[:, head].flatten(0, 1).numpy(), allowed_of(found)[:, head].reshape(-1, 7)
    ):
        own = np.sort(a[keys])
        if len(own) > 2:
            rows.append((len(own), np.log(own).std(), math.log(own[-1] * (len(own) - 1) / own[:-1].sum())))
    return rows


def gaussian_draws(rows: list[tuple[int, float, float]], draws: int) -> list[float]:
    """Rows of n Gaussian numbers with mean 0 and variance 1 over n, times the deviation of the row."""
    longest, g, found = max(n for n, *_ in rows), generator(FIXED), []
    for _ in range(draws):
        ratios = []
        for z, (n, spread, _) in zip(
            torch.randn(len(rows), longest, generator=g, dtype=torch.float64).numpy(), rows
        ):
            scores = np.sort(spread * (z[:n] - z[:n].mean()) / z[:n].std())
            gap = scores[-1] - math.log(np.exp(scores[:-1]).mean())
            ratios.append(gap / math.log(n - 1))
        found.append(float(np.mean(ratios)))
    return found


@of_masks
def test_the_gap_its_predictions_and_its_null(mask):
    found = attention(mask=mask)
    table = rows_of(ScoreGaps(), found, draws=9)
    for head in (0, 1):
        rows = measured_rows(found, head)
        n, _, gap = np.array(rows).T
        own = [row for row in table if row.head == head]
        assert own[0].value == pytest.approx((gap / np.log(n - 1)).mean(), rel=1e-5)
        assert own[0].null.draws == pytest.approx(gaussian_draws(rows, 9), rel=1e-5)
        assert (own[0].n, own[0].side, IN_NETWORKS.side, own[0].quantity) == (len(rows), ">=", ">=", GAP)
        now = 1 / (1 + (n - 1) * np.exp(-gap))
        for row in own[1:]:
            m = row.at["keys over n"]
            expected = 1 / (1 + (m * n - 1) * np.exp(-gap)) if row.at["case"] == "one winner" else now / m
            assert row.value == pytest.approx(expected.mean(), rel=1e-5)
            assert row.note == f"with n keys {now.mean():.3f}"
            assert row.quantity == PREDICTED
        assert {(row.at["keys over n"], row.at["case"]) for row in own[1:]} == {
            (m, case) for m in (2, 16) for case in ("one winner", "same source")
        }


def test_a_part_of_the_rows_does_not_shift_the_null(monkeypatch):
    """Sixteen evenly spaced rows are drawn; measured ratios of all rows less those of these are added."""
    monkeypatch.setattr(in_networks, "BUDGET", 1)
    found = attention(mask=MASKS["padded"])
    row = rows_of(ScoreGaps(), found, draws=5)[0]
    rows = measured_rows(found, 0)
    used = [rows[place] for place in np.linspace(0, len(rows) - 1, 16).round().astype(int)]
    all_, some = (np.mean([gap / math.log(n - 1) for n, _, gap in part]) for part in (rows, used))
    assert row.null.draws == pytest.approx([draw + all_ - some for draw in gaussian_draws(used, 5)], rel=1e-5)
    assert abs(all_ - some) > 1e-3


def test_equal_largest_weights_count_as_rivals():
    """Weights .4, .4, .2 of three keys: the gap is log(.4 * 2 / .6)."""
    weights = torch.tensor([0.4, 0.2, 0.4]).expand(2, 1, 3, 3)
    tokens = torch.zeros(2, 3, 2)
    row = rows_of(ScoreGaps(), Activations("a", 0, "attention", tokens, tokens, weights=weights))[0]
    assert row.value == pytest.approx(math.log(0.8 / 0.6) / math.log(2))


# ---- doubled keys


@of_masks
def test_the_kept_share_and_keys_that_are_exchanged(mask):
    """Sequence i sees the keys of sequence i + 3 as well, those that this one may see at the same query."""
    found, T = attention(mask=mask), 7
    table = rows_of(KeptShare(), found, draws=19)
    allowed, g = allowed_of(found), generator(FIXED)
    kept = (torch.rand(19, T, generator=g) < 0.5).numpy()
    for head in (0, 1):
        shares, before, after, chance = [], [], [], []
        for b, q in np.ndindex(6, T):
            own, other = allowed[b, head, q], allowed[(b + 3) % 6, head, q]
            vector = found.query[b, head, q].numpy()
            first, second = (
                np.where(keys, np.exp(0.5 * found.key[place, head].numpy() @ vector), 0.0)
                for keys, place in ((own, b), (other, (b + 3) % 6))
            )
            total = first.sum() + second.sum()
            shares.append(first.sum() / total)
            before.append(first.max() / first.sum())
            after.append(first.max() / total)
            chance.append(np.where(kept, first, second).sum(1) / total)
        share, ratio = (row for row in table if row.head == head)
        assert (share.quantity, ratio.quantity) == (KEPT, HALVED)
        assert share.value == pytest.approx(np.mean(shares), rel=1e-4)
        assert share.null.draws == pytest.approx(np.mean(chance, 0), rel=1e-4)
        assert ratio.value == pytest.approx(2 * np.sum(after) / np.sum(before), rel=1e-4)
        assert ratio.predicted == 1.0
        assert share.side is None
        assert share.n == len(shares)


def test_the_null_of_lengths_is_that_of_all_rows_together():
    """Of four sequences with seven keys and two with five; both have the same draws from the start."""
    parts = attention(4, 7), attention(2, 5, seed=1)
    table = rows_of(KeptShare(), *parts, draws=6)
    alone = [rows_of(KeptShare(), part, draws=6) for part in parts]
    for place in (0, 2):
        weights = [each[place].n for each in alone]
        assert table[place].n == sum(weights) == 4 * 7 + 2 * 5
        expected = np.average([each[place].null.draws for each in alone], axis=0, weights=weights)
        assert table[place].null.draws == pytest.approx(expected)
        assert table[place].value == pytest.approx(
            np.average([each[place].value for each in alone], weights=weights)
        )


# ---- sinks


@of_masks
def test_the_norm_at_the_key_with_the_largest_mean_weight(mask):
    found = attention(mask=mask)
    norms = np.linalg.norm(found.value.numpy(), axis=-1).mean(0)
    allowed = allowed_of(found)
    for row in rows_of(SinkValue(), found, draws=19):
        mass = found.weights[:, row.head].numpy().sum((0, 1)) / 42
        sink = int(mass.argmax())
        own = norms[row.head] / norms[row.head].mean()
        assert row.value == pytest.approx(own[sink], rel=1e-5)
        assert row.null.draws == pytest.approx(np.delete(own, sink), rel=1e-5)
        uniform = (allowed[:, row.head] / allowed[:, row.head].sum(-1, keepdims=True)).sum((0, 1))[sink] / 42
        assert (
            f"key {sink} has a mean weight of {mass[sink]:.3f}, uniform attention {uniform:.3f}" in row.note
        )
        assert (row.side, row.n) == ("<=", 42)


# ---- responses


def test_the_weight_with_doubled_keys_over_its_prediction():
    """Queries 6 and 7 of halves of eight tokens; predicted is (p + 1)/(p + 9) of the first half's weight."""
    rng = np.random.default_rng(0)
    weights = np.tril(np.exp(rng.normal(size=(3, 2, 16, 16)) * np.array([0.5, 2.0])[:, None, None]))
    weights /= weights.sum(-1, keepdims=True)
    tokens = torch.zeros(3, 16, 2)
    made = Activations("a", 0, "attention", tokens, tokens, weights=torch.from_numpy(weights))
    for row in rows_of(DoubledWeight(), made):
        A = weights[:, row.head]
        measured = sum(A[:, p + 8, 8:].max(-1).sum() for p in (6, 7))
        expected = sum(A[:, p, :8].max(-1).sum() * (p + 1) / (p + 9) for p in (6, 7))
        assert row.value == pytest.approx(measured / expected, rel=1e-5)
        assert (row.predicted, row.side) == (1.0, None)


@pytest.mark.parametrize("shape", [(5, 4, 3), (5, 3)], ids=["positions", "classes"])
def test_the_change_is_that_of_the_last_position_over_the_targets(shape: tuple[int, ...]):
    rng = np.random.default_rng(1)
    y, t = rng.normal(size=shape) * 3, rng.normal(size=shape)
    tokens = torch.zeros(5, 4, 1)
    parts = {"outputs": torch.from_numpy(y), "targets": torch.from_numpy(t)}
    (row,) = rows_of(TokenChange(), Activations("", 0, "outputs", tokens, tokens, **parts))
    y, t = (each[:, -1] if len(shape) == 3 else each for each in (y, t))
    assert row.value == pytest.approx(math.sqrt(((y - t) ** 2).sum() / (t**2).sum()))
    assert (row.n, row.side) == (5, "<=")


def test_halves_of_different_sequences_are_joined_in_both_orders():
    data = torch.arange(7 * 9).view(7, 9)
    parts = joined_halves(data, {}, generator(1))
    value, (null,) = parts["value"].tolist(), parts["null"]
    starts = [row[:4] for row in value]
    assert sorted(starts) == sorted([row[:4] for row in data.tolist() if row[:4] in starts])
    assert len(starts) == 6
    for place, row in enumerate(value):
        assert row[4:] == value[(place + 3) % 6][:4] != row[:4]
    assert null.tolist() == [start + start for start in starts]


def test_one_token_is_that_of_the_previous_sequence():
    data = torch.arange(40 * 5).view(40, 5)
    parts = one_exchanged(data, {}, generator(2))
    changed = parts["value"] != data
    assert changed.sum(1).tolist() == [1] * 40
    assert changed.any(0).tolist() == [True, True, True, True, False], "never the last token"
    previous = torch.cat([data[-1:], data[:-1]])
    assert torch.equal(parts["value"][changed], previous[changed])
    assert torch.equal(parts["null"][0], previous)
    assert torch.equal(parts["reference"], data)
    assert (one_exchanged(data[:, :1], {}, generator(2))["value"] != data[:, :1]).all()


def test_a_block_of_an_eighth_of_an_image_is_that_of_the_previous_image():
    data = torch.arange(6.0)[:, None, None, None].expand(6, 3, 16, 24).clone()
    parts = one_exchanged(data, {}, generator(3))
    places = set()
    for row, (before, after) in enumerate(zip(data, parts["value"])):
        changed = (before != after).nonzero()
        low, high = changed.amin(0).tolist(), changed.amax(0).tolist()
        assert (low[0], high[0]) == (0, 2)
        assert (high[1] - low[1], high[2] - low[2]) == (1, 2)
        assert len(changed) == 3 * 2 * 3
        assert set(after[before != after].tolist()) == {(row - 1) % 6}
        places.add((low[1], low[2]))
    assert len(places) > 3


# ---- the ladder


def test_a_rung_has_the_means_over_heads_of_value_prediction_and_null(monkeypatch):
    """Three heads with their own scores; the prediction sees the short ones, the value the long ones."""
    rng, seen = np.random.default_rng(4), []
    short, long = ([rng.normal(size=(40, k)) * s + 3 for s in (1.0, 2.0, 5.0)] for k in (4, 11))

    def resampled(pool, n, *, generator, samples):
        assert (n, samples) == (11, 333)
        return float(pool.max()) / 100

    def gaussian(spread, n, *, generator):
        assert n == 11
        seen.append(spread)
        numbers = torch.arange(sum(map(len, seen)))[-len(spread) :]
        return spread[:, 0] * numbers / 1e5

    monkeypatch.setattr(ladder, "resampled_top_weight", resampled)
    monkeypatch.setattr(ladder, "gaussian_top_weight", gaussian)
    parts = [[torch.from_numpy(each) for each in part] for part in (short, long)]
    row, now, first = ladder.rows_of(*parts, generator(), first=2)

    def top(scores: np.ndarray) -> float:
        weights = np.exp(scores)
        return float((weights.max(1) / weights.sum(1)).mean())

    assert row.value == pytest.approx(np.mean([top(each) for each in long]))
    assert now.value == pytest.approx(np.mean([top(each) for each in short]))
    assert row.predicted == pytest.approx(np.mean([each.max() / 100 for each in short]))
    assert first.value == pytest.approx(np.mean([top(each) for each in long[:2]]))
    assert first.predicted == pytest.approx(np.mean([each.max() / 100 for each in short[:2]]))
    rows = 399 * 20  # sixty sequences of a draw, shared by the heads
    numbers = np.arange(3 * rows).reshape(3, 399, 20).mean(2) / 1e5
    expected = sum(each.std(ddof=1) * part / 3 for each, part in zip(short, numbers))
    assert row.null.draws == pytest.approx(expected, rel=1e-5)
    assert (row.side, row.n) == ("==", 40)


def test_the_class_token_sees_the_keys_of_the_next_images():
    """Scores are those of the first query, in the scale of the weights, with the keys of three images."""
    found, metric = attention(), ladder.ClassTokenScores(3)
    metric.update(found)
    scores = metric.sums[0, 0]
    assert scores.shape == (6, 2, 21)
    for b, head, image, key in np.ndindex(6, 2, 3, 7):
        product = found.query[b, head, 0] @ found.key[(b + image) % 6, head, key]
        assert float(scores[b, head, 7 * image + key]) == pytest.approx(
            0.5 * float(product), rel=1e-3, abs=1e-4
        )


def test_prediction_and_value_of_a_network_come_from_different_images(monkeypatch):
    """The first images are measured with the keys of sixteen; the prediction has the others."""
    seen = {}

    def collected(model, inputs, *, images=1):
        seen[images] = inputs
        return [torch.full((2, 3), float(images))], 0

    class Kept:
        tokens = torch.arange(11.0).view(11, 1, 1).double()

    monkeypatch.setattr(ladder, "collected", collected)
    monkeypatch.setattr(ladder, "trained_network", lambda *_: (None, Kept))
    monkeypatch.setattr(ladder, "rows_of", lambda short, long, *_, **__: iter([(short, long)]))
    ((short, long),) = ladder.in_network(generator(), recipe="any")
    assert (float(short[0][0, 0]), float(long[0][0, 0])) == (1.0, 16.0)
    assert seen[16].flatten().tolist() == [0, 1, 2, 3, 4]
    assert seen[1].flatten().tolist() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("keys", [16, 256])
def test_the_scores_of_the_written_head(keys: int, monkeypatch):
    monkeypatch.setattr(ladder, "rows_of", lambda short, long, *_, **__: iter([(short, long)]))
    ((short, long),) = ladder.written(generator(1))
    scores = (short if keys == 16 else long)[0]
    assert scores.shape == (1000, keys)
    assert float(scores.amin()) == pytest.approx(0, abs=0.5)
    assert float(scores.amax()) == pytest.approx(80, abs=0.5)
    assert float(scores.mean()) == pytest.approx(40, abs=1)


def test_the_scores_of_the_patches_of_the_digits(monkeypatch):
    """A random query on all patches, of deviation 4; long sequences are those of sixteen other images."""
    monkeypatch.setattr(ladder, "rows_of", lambda short, long, *_, **__: iter([(short[0], long[0])]))
    tokens = torch.from_numpy(np.random.default_rng(9).standard_t(4, size=(70, 5, 3)) * [3.0, 1.0, 0.1])

    class Digits:
        pass

    Digits.tokens = tokens.float()
    monkeypatch.setattr(ladder, "load_digits", Digits)
    ((short, long),) = ladder.real_tokens(generator(2))
    g = generator(2)
    order = torch.randperm(70, generator=g).numpy()
    scores = tokens.float().numpy()[order] @ torch.randn(3, generator=g, dtype=torch.float64).numpy()
    scores *= 4 / scores.std(ddof=1)
    assert long.numpy() == pytest.approx(scores[:32].reshape(2, 80), rel=1e-6)
    assert short.numpy() == pytest.approx(scores[32:], rel=1e-6)


# ---- fits and the head that is run on long sequences


@pytest.mark.parametrize(("noise", "fits"), [(0.5e-5, True), (1.5e-5, False)])
def test_scores_are_fitted_up_to_a_residual_of_a_hundred_thousandth(noise: float, fits: bool):
    """Attention that is uniform up to noise which the products do not explain: residual and size agree."""
    products = torch.tensor([1.0, -1.0, 1.0, -1.0]).double().expand(2, 1, 3, 4)
    wanted = noise * torch.tensor([1.0, 1.0, -1.0, -1.0]).double()
    weights = wanted.softmax(-1).expand(2, 1, 3, 4)
    found = in_networks.fitted_scores(weights, products, None)
    assert (found is not None) == fits
    if found is not None:
        assert found[0].item() == pytest.approx(0, abs=1e-12)


def test_the_pooled_head_weighs_values_by_the_softmax_of_its_scores():
    model = retrieval.PooledHead(width=6).double()
    model.factor = 1.6
    tokens = np.random.default_rng(3).normal(size=(2, 5, 11))
    given = torch.from_numpy(tokens)
    hidden = model.embed(given).detach().numpy()
    scores = hidden @ model.key.weight.detach().numpy().T @ model.query.detach().numpy()
    assert model.scores(given).detach().numpy() == pytest.approx(scores)
    weights = np.exp(1.6 * scores) / np.exp(1.6 * scores).sum(1, keepdims=True)
    value = hidden @ model.value.weight.detach().numpy().T + model.value.bias.detach().numpy()
    pooled = torch.from_numpy((weights[..., None] * value).sum(1))
    assert model(given).detach().numpy() == pytest.approx(model.read(pooled).detach().numpy())


@pytest.mark.parametrize(("keys", "parts"), [(16, [200]), (4096, [32] * 6 + [8])])
def test_long_sequences_are_run_in_parts_of_131072_keys(keys: int, parts: list[int], monkeypatch):
    """The numbers are means over all of them, and the factor of the head is 1 again."""
    model, sizes, seen = retrieval.PooledHead(width=4), [], []
    draw = retrieval.draw

    def known(n, keys, *, kind, generator):
        sizes.append(n)
        seen.append(draw(n, keys, kind=kind, generator=generator))
        return seen[-1]

    monkeypatch.setattr(retrieval, "draw", known)
    pool = torch.randn(50, 16, generator=generator(4), dtype=torch.float64)
    found = retrieval.at_length(model, "needle", keys, pool, generator=generator(5), scaled=True)
    assert sizes == parts
    assert model.factor == 1.0
    factor, top, ranked = math.log(keys) / math.log(16), [], []
    for part in seen:
        scores = factor * model.scores(part.tokens).detach().double().numpy()
        top += list((np.exp(scores - scores.max(1, keepdims=True))).sum(1) ** -1)
        ranked += list(scores.argmax(1) == part.right.numpy())
    assert found.top == pytest.approx(np.mean(top), rel=1e-5)
    assert found.ranked == pytest.approx(np.mean(ranked))


def test_the_weights_of_a_written_needle_are_means_over_sequences(monkeypatch):
    """A needle with the lead g over n - 1 equal rivals has the weight 1 / (1 + (n - 1) e^-g)."""
    monkeypatch.setattr(claims, "_between", lambda _, low, high: low)  # ratio 1.5, equal rivals
    found = claims.needle_scaling.function(generator())
    gap = {n: 1.5 * math.log(16) * math.log(n) / math.log(16) for n in (16, 64, 256, 1024, 4096)}
    weight = {n: 1 / (1 + (n - 1) * math.exp(-gap[n])) for n in gap}
    assert [found.detail[f"{n} keys"] for n in gap] == pytest.approx(list(weight.values()))
    plain = 1 / (1 + 4095 * math.exp(-gap[16]))
    assert found.detail["4,096 keys, not scaled"] == pytest.approx(plain)
    assert found.value == pytest.approx(min(list(weight.values())[1:]) - weight[16])


# ---- how much is measured


@pytest.mark.parametrize(("n", "T", "rows"), [(40, 20, 32 * 16), (5, 20, 5 * 16), (40, 7, 32 * 7)])
def test_gaps_are_measured_at_sixteen_queries_of_32_sequences_and_1024_rows_in_all(n: int, T: int, rows: int):
    """Of each batch; the third one is not needed if two of them have enough."""
    metric, found = ScoreGaps(), attention(n, T)
    assert rows_of(metric, found)[0].n == rows
    for _ in range(4):
        metric.update(found)
    row = next(iter(metric.compute()))
    assert row.n == min(5 * rows, 1024)


@each_case(("n", "T", "rows"), [(40, 20, 16 * 16), (5, 20, 4 * 16), (40, 7, 16 * 7), (17, 16, 256)])
def test_doubled_keys_are_measured_at_sixteen_queries_of_sixteen_sequences(n: int, T: int, rows: int):
    """In pairs, so one of five sequences is left out."""
    assert rows_of(KeptShare(), attention(n, T))[0].n == rows


def test_queries_are_drawn_without_replacement_and_in_order():
    """Every position has the same chance; of up to sixteen all are taken."""
    chosen = in_networks.random_queries(4000, 20).numpy()
    assert chosen.shape == (4000, 16)
    assert (np.diff(chosen, axis=1) > 0).all()
    assert np.bincount(chosen.flatten(), minlength=20) / 4000 == pytest.approx(np.full(20, 0.8), abs=0.03)
    for size in (1, 16):
        assert (in_networks.random_queries(3, size).numpy() == np.arange(size)).all()


@pytest.mark.parametrize("wrong", [3, 256])
def test_the_weight_of_the_gap_is_judged_by_the_worst_query_of_all_lengths(wrong: int):
    """Up to 32 queries of four lengths. The gap of one query is too large by .5."""
    seen = {}

    def gap(scores: torch.Tensor) -> torch.Tensor:
        ordered = np.sort(scores.numpy(), 1)
        rest = ordered[:, -1:] - ordered[:, :-1]
        found = -np.log(np.exp(-rest).mean(1))
        n = scores.shape[1]
        seen[n] = (len(scores), found.copy())
        found[1] += 0.5 * (n == wrong)
        return torch.from_numpy(found)

    found = claims.identity.function(generator(9), gap=gap)
    assert {n: queries for n, (queries, _) in seen.items()} == {3: 3, 16: 16, 256: 32, 4096: 32}
    right = seen[wrong][1][1]
    weights = [1 / (1 + (wrong - 1) * math.exp(-g)) for g in (right, right + 0.5)]
    assert found == pytest.approx(weights[1] / weights[0] - 1)


def evenly(n: int, chosen: int) -> list[int]:
    return [round(i * (n - 1) / (chosen - 1)) for i in range(chosen)]


def test_sequences_that_are_measured_lie_evenly_between_the_first_and_the_last():
    """Of forty, 32 have a gap; sixteen are joined, the first eight of them with the others."""
    found = attention(40)
    gaps = rows_of(ScoreGaps(), found)
    shares = [row for row in rows_of(KeptShare(), found) if row.quantity == KEPT]
    scores = 0.5 * np.einsum("bhqd,bhkd->bhqk", found.query.numpy(), found.key.numpy())
    for head in (0, 1):
        ordered = np.sort(scores[evenly(40, 32), head].reshape(-1, 7), 1)
        ratios = (ordered[:, -1] - np.log(np.exp(ordered[:, :-1]).mean(1))) / math.log(6)
        assert next(row for row in gaps if row.head == head).value == pytest.approx(ratios.mean(), rel=1e-4)
        rows, kept = evenly(40, 16), []
        for first, second in zip(rows, rows[8:] + rows[:8]):
            query, key = found.query[first, head].numpy(), found.key[:, head].numpy()
            own, other = (np.exp(0.5 * query @ key[place].T).sum(1) for place in (first, second))
            kept.append(own / (own + other))
        assert shares[head].value == pytest.approx(np.mean(kept), rel=1e-4)
