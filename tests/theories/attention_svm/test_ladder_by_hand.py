"""The ladder's numbers against cvxpy and enumeration: anisotropic tokens with heavy tails."""

from itertools import product

import cvxpy as cp
import numpy as np
import pytest
import torch

from tests.theories.attention_svm.test_by_hand import flipped
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.data import TokenData, digits
from transformer_theory.models import ViT, build
from transformer_theory.theories.attention_svm import ladder
from transformer_theory.theories.attention_svm.in_networks import COSINE, MARGIN
from transformer_theory.theories.attention_svm.ladder import quantities, trainings
from transformer_theory.theories.attention_svm.ladder.quantities import Head

RUNGS = {rung.name: rung for rung in ladder.LADDER.rungs}
N, T, D = 5, 4, 3


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def solution(x: np.ndarray, z: np.ndarray, chosen: np.ndarray, norm: str) -> np.ndarray:
    """The matrix of least norm with margin one for the chosen tokens."""
    V, rows = cp.Variable((x.shape[-1], z.shape[-1])), []
    for tokens, query, best in zip(x, z, chosen):
        rows += [np.outer(tokens[best] - other, query) for t, other in enumerate(tokens) if t != best]
    size = cp.normNuc(V) if norm == "nuclear" else cp.sum_squares(V)
    cp.Problem(cp.Minimize(size), [cp.sum(cp.multiply(row, V)) >= 1 for row in rows]).solve(
        solver=cp.CLARABEL
    )
    return V.value


def selected(x: np.ndarray, z: np.ndarray, W: np.ndarray) -> np.ndarray:
    return np.einsum("ntd,de,ne->nt", x, W, z).argmax(1)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


def size(W: np.ndarray, norm: str) -> float:
    return float(np.linalg.norm(W, "nuc" if norm == "nuclear" else "fro"))


def margins(x: np.ndarray, z: np.ndarray, W: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Margins over the other tokens, [n, T]; infinite at the chosen one."""
    scores = np.einsum("ntd,de,ne->nt", x, W, z)
    gaps = np.take_along_axis(scores, chosen[:, None], 1) - scores
    np.put_along_axis(gaps, chosen[:, None], np.inf, 1)
    return gaps


def head(norm: str = "Frobenius") -> tuple[Head, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.standard_t(5, size=(N, T, D)) * [2.0, 1.0, 0.5] + 0.3
    z, W, gamma = x[:, 1], 2.5 * rng.normal(size=(D, D)), rng.normal(size=(N, T))
    made = Head(*(torch.from_numpy(each) for each in (W, x, z, gamma)), norm)
    return made, x, z, W, gamma


def rows_of(made: Head, seed: int = 5, **options) -> dict[str, Measurement]:
    return {row.quantity: row for row in quantities.rows(made, generator(seed), **options)}


@pytest.mark.parametrize("norm", ["Frobenius", "nuclear"])
def test_the_cosine_its_margin_and_its_nulls(norm: str):
    """Four flips of three axes, up to a common sign, are equally frequent; permuted queries select anew."""
    made, x, z, W, _ = head(norm)
    rows = rows_of(made, limit=True, note="said")
    row, chosen = rows[COSINE], selected(x, z, W)
    best = solution(x, z, chosen, norm)
    assert row.value == pytest.approx(cosine(W, best), abs=1e-4)
    share = margins(x, z, W, chosen).min() / size(W, norm) * size(best, norm)
    assert rows[MARGIN].value == pytest.approx(share, abs=1e-3)
    values = []
    for signs in product((1, -1), repeat=2):
        F = flipped(W, x, np.array([1, *signs]))
        values.append(cosine(F, solution(x, z, selected(x, z, F), norm)))
    first, second = row.nulls
    assert len(first.draws) == 399
    nearest = np.abs(np.array(first.draws)[:, None] - values).argmin(1)
    assert first.draws == pytest.approx(np.array(values)[nearest], abs=1e-4)
    counts = np.bincount(nearest, minlength=4)
    assert len({round(each, 3) for each in values}) == 4
    # chi-square of three degrees of freedom, p = .001
    assert ((counts - 399 / 4) ** 2 / (399 / 4)).sum() < 16.3
    g = generator(5)
    others = []
    for _ in range(19):
        others.append(z[torch.randperm(N, generator=g).numpy()])
        if norm == "Frobenius":
            torch.randperm(N, generator=g)  # the order of the pairs, of which all are taken
    assert second.draws == pytest.approx(
        [cosine(W, solution(x, q, selected(x, q, W), norm)) for q in others], abs=1e-4
    )
    assert (row.side, row.predicted, row.basis, row.n, row.note) == (">=", 1.0, "limit", N, "said")
    if norm == "nuclear":
        other = rows[quantities.FROBENIUS]
        frobenius = solution(x, z, chosen, "Frobenius")
        assert other.value == pytest.approx(cosine(W, frobenius), abs=1e-4)
        assert len(other.null.draws) == 19
        assert other.side == ">="
        assert abs(row.value - other.value) > 0.001
    else:
        assert quantities.FROBENIUS not in rows
    assert rows_of(made)[COSINE].predicted is None


@pytest.mark.parametrize("norm", ["Frobenius", "nuclear"])
def test_norms_saturation_and_the_best_tokens(norm: str):
    made, x, z, W, gamma = head(norm)
    rows = rows_of(made)
    best = solution(x, z, selected(x, z, W), norm)
    assert rows[quantities.NORM].value == pytest.approx(size(W, norm) / size(best, norm), rel=1e-3)
    scores = np.einsum("ntd,de,ne->nt", x, W, z)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    assert rows[quantities.SATURATED].value == pytest.approx((weights.max(1) >= 0.999).mean())
    assert 0 < rows[quantities.SATURATED].value < 1
    highest = solution(x, z, gamma.argmax(1), norm)
    assert rows[quantities.BEST_COSINE].value == pytest.approx(cosine(W, highest), abs=1e-3)
    assert rows[quantities.BEST_COSINE].bounds == rows[COSINE].bounds == (-1.0, 1.0)


def test_shares_of_selected_tokens_and_their_random_stand_ins():
    """Probabilities that a random other token is the best one, or above the neighbours, are enumerated."""
    made, x, z, W, gamma = head()
    rows, chosen = rows_of(made), selected(x, z, W)
    gaps = margins(x, z, solution(x, z, chosen, "Frobenius"), chosen)
    near = gaps < 1 + 1e-3
    counted = near.any(1)
    assert counted.sum() > 0
    assert near.sum() > counted.sum()
    own = gamma[np.arange(N), chosen]
    best = rows[quantities.BEST]
    assert best.value == pytest.approx((own == gamma.max(1)).mean())
    chance = [np.mean([gamma[i, t] == gamma[i].max() for t in range(T) if t != chosen[i]]) for i in range(N)]
    deviation = np.sqrt(sum(p * (1 - p) for p in chance)) / N
    assert len(best.null.draws) == 399
    assert np.mean(best.null.draws) == pytest.approx(np.mean(chance), abs=4 * deviation / np.sqrt(399))
    optimal = [own[i] > gamma[i, near[i]].max() for i in range(N) if counted[i]]
    row = rows[quantities.LOCALLY_OPTIMAL]
    assert row.value == pytest.approx(np.mean(optimal))
    assert (row.n, row.side, best.n, best.side) == (counted.sum(), ">=", N, ">=")

    def stands_above(i: int, t: int) -> bool:
        """Token t in the place of the selected one, whose place among the rivals the latter takes."""
        rivals = {k for k in range(T) if near[i, k]}
        rivals = rivals - {t} | {chosen[i]} if t in rivals else rivals
        return all(gamma[i, t] > gamma[i, k] for k in rivals)

    shares = [
        np.mean([stands_above(i, t) for t in range(T) if t != chosen[i]]) for i in range(N) if counted[i]
    ]
    deviation = np.sqrt(sum(p * (1 - p) for p in shares)) / counted.sum()
    assert np.mean(row.null.draws) == pytest.approx(np.mean(shares), abs=4 * deviation / np.sqrt(399) + 1e-9)
    assert len(row.null.draws) == 399

    def above_random(i: int) -> float:
        """The probability that k random others all score below the selected token."""
        others, k = [t for t in range(T) if t != chosen[i]], near[i].sum()
        below = sum(gamma[i, t] < own[i] for t in others)
        return float(np.prod([(below - j) / (len(others) - j) for j in range(k)]))

    expected = [above_random(i) for i in range(N) if counted[i]]
    random = rows[quantities.ABOVE_RANDOM]
    deviation = np.sqrt(sum(p * (1 - p) for p in expected)) / counted.sum()
    assert random.value == pytest.approx(np.mean(expected), abs=4 * deviation / np.sqrt(399))
    assert random.side is None


def test_heads_have_their_mean():
    first = [
        Measurement("attention_svm", "rung", "q", v, nulls=(Null("n", d),), head=h)
        for h, (v, d) in enumerate([(1.0, (0.0, 4.0)), (3.0, (1.0, 2.0))])
    ]
    (row,) = quantities.mean_rows([[first[0]], [first[1]]], note="two")
    assert (row.value, row.null.draws, row.head, row.note) == (2.0, (0.5, 3.0), None, "two")


# ---- the rungs


def test_the_pair_of_digits():
    """Patches of root mean square norm one; ridge regression of the labels on the mean patches."""
    pair = trainings.Pair.draw(generator(3))
    stored = digits(words=2)
    x, y = stored.tokens.numpy(), stored.labels.numpy()
    kept = (x[:, 10] != 0).any(-1)
    scale = np.sqrt((x[kept] ** 2).sum(-1).mean())
    known = {tuple((each / scale).round(6).ravel()): label for each, label in zip(x[kept], y[kept])}
    found = [known[tuple(each.round(6).ravel())] for each in pair.tokens.numpy()]
    assert set(found) == set(pair.digits)
    assert pair.labels.tolist() == [int(label == pair.digits[1]) for label in found]
    assert len(found) == np.isin(y[kept], pair.digits).sum()
    assert pair.tokens.square().sum(-1).mean() == pytest.approx(1, abs=0.2)
    assert pair.sign.tolist() == [2 * label - 1 for label in pair.labels.tolist()]
    assert torch.equal(pair.query, pair.tokens[:, 10])
    gamma = pair.tokens.numpy() @ pair.head.numpy() * pair.sign.numpy()[:, None]
    assert pair.instance.scores.numpy() == pytest.approx(gamma)


def captured(monkeypatch) -> list[dict]:
    seen: list[dict] = []

    def rows(one: Head, g, **options):
        seen.append({"head": one, "seed": g.initial_seed(), **options})
        return iter([ladder.LADDER.row(float(len(seen)), nulls=(Null("n", (1.0,)),))])

    monkeypatch.setattr(ladder, "rows", rows)
    return seen


def test_descent_on_weights_and_on_factors(monkeypatch):
    """Sixteen images, balanced; factors have the nuclear norm, and the scores those of the last head."""
    seen = captured(monkeypatch)
    monkeypatch.setattr(ladder, "DESCENT", 5)
    for name in ("16 real inputs", "K and Q", "head trained"):
        list(RUNGS[name].measure(generator(2)))
    own, factors, both = seen
    pair = trainings.Pair.draw(generator(2)).few(16)
    for each, norm in ((own, "Frobenius"), (factors, "nuclear"), (both, "nuclear")):
        made = each["head"]
        assert made.norm == norm
        assert each["limit"]
        assert torch.equal(made.tokens, pair.tokens)
        assert torch.equal(made.query, pair.query)
        assert "draws" not in each
    assert torch.equal(factors["head"].scores, pair.instance.scores)
    assert torch.equal(own["head"].scores, pair.instance.scores)
    moved = both["head"].scores
    assert not torch.allclose(moved, pair.instance.scores)
    # scores of a head that has moved: linear in the tokens, with the sign of the label
    signed = (moved * pair.sign[:, None]).flatten().numpy()
    v, residual, *_ = np.linalg.lstsq(pair.tokens.flatten(0, 1).numpy(), signed, rcond=None)
    assert residual.sum() < 1e-18
    assert np.linalg.norm(v - pair.head.numpy()) == pytest.approx(5 * ladder.RATE, rel=0.9)


def kept_models(monkeypatch) -> list:
    """Returns a list that receives what the rungs train."""
    models, train = [], ladder.trained

    def trained(*arguments, **options):
        models.append(train(*arguments, **options))
        return models[-1]

    monkeypatch.setattr(ladder, "trained", trained)
    return models


@pytest.mark.parametrize(("name", "draws"), [("AdamW", 399), ("embedding and positions", 219)])
def test_one_head_is_measured_with_its_own_weights(monkeypatch, name: str, draws: int):
    seen = captured(monkeypatch)
    monkeypatch.setattr(ladder, "DESCENT", 3)
    models = kept_models(monkeypatch)
    list(RUNGS[name].measure(generator(2)))
    (found,), model = seen, models[0].model
    made, pair = found["head"], trainings.Pair.draw(generator(2)).few(16)
    assert found["draws"] == draws
    assert not found.get("limit")
    assert made.norm == "nuclear"
    assert made.W.numpy() == pytest.approx((model.K @ model.Q.T).detach().numpy())
    x = model.embedding(pair.tokens).detach()
    assert torch.equal(made.tokens, x)
    assert torch.equal(made.query, x[:, 10])
    difference = (model.head.weight[1] - model.head.weight[0]).detach().numpy()
    assert made.scores.detach().numpy() == pytest.approx(x.numpy() @ difference * pair.sign.numpy()[:, None])


def test_the_heads_of_the_last_layer_read_its_own_tokens(monkeypatch):
    """Each head with its keys and queries; the query is the token in place ten."""
    seen = captured(monkeypatch)
    monkeypatch.setattr(ladder, "BLOCK_STEPS", 2)
    models = kept_models(monkeypatch)
    (row,) = RUNGS["two layers"].measure(generator(2))
    model, pair = models[0].model, trainings.Pair.draw(generator(2)).few(16)
    assert len(model.blocks) == 2
    stream = model.blocks[0](model.embedding(pair.tokens))
    x = model.blocks[1].attention_norm(stream).detach()
    weight = model.blocks[1].attention.qkv.weight.detach().numpy()
    assert [each["seed"] for each in seen] == [2, 2]
    for number, each in enumerate(seen):
        Q, K = weight[16 * number : 16 * number + 16], weight[32 + 16 * number : 48 + 16 * number]
        assert each["head"].W.numpy() == pytest.approx(K.T @ Q / 4)
        assert torch.equal(each["head"].tokens, x)
        assert torch.equal(each["head"].query, x[:, 10])
        assert (each["draws"], each["head"].scores, each["head"].norm) == (219, None, "nuclear")
    assert row.value == 1.5
    assert row.note.endswith("last layer")


def test_a_network_of_a_comparison_is_measured_in_all_heads_of_all_layers(monkeypatch):
    """Sixteen images; the query of each is one of its tokens, and neither side nor null is tested."""
    rng, seen = np.random.default_rng(5), []
    model = build(lambda: ViT.for_tokens(6, 3, 2, dim=8, depth=2, heads=2), generator(1)).eval()
    data = TokenData(tokens=torch.from_numpy(rng.standard_t(4, size=(20, 6, 3))), labels=torch.arange(20) % 2)
    monkeypatch.setattr(
        ladder,
        "trained_network",
        lambda recipe, seed, images: (seen.append((recipe, seed)), (model, data))[1],
    )
    rows = {row.quantity: row for row in RUNGS["ViT on digits"].measure(generator(9))}
    assert seen == [("ViT", 9)]
    x = (
        torch.cat([model.cls_token.expand(16, -1, -1), model.embed(data.tokens[:16].float())], 1)
        + model.pos_embedding
    )
    g, cosines = generator(9), []
    for block in model.blocks:
        tokens = block.attention_norm(x).detach().numpy().astype(float)
        weight = block.attention.qkv.weight.detach().numpy().astype(float)
        z = tokens[np.arange(16), torch.randint(7, (16,), generator=g).numpy()]
        for number in (0, 1):
            Q, K = weight[4 * number : 4 * number + 4], weight[8 + 4 * number : 12 + 4 * number]
            W = K.T @ Q
            cosines.append(cosine(W, solution(tokens, z, selected(tokens, z, W), "Frobenius")))
            torch.randperm(16, generator=g)  # all pairs of an image and its query, in random order
            torch.randint(2, (0, 8), generator=g)
        x = block(x)
    assert rows[COSINE].value == pytest.approx(np.mean(cosines), abs=2e-3)
    assert rows[COSINE].nulls == ()
    assert rows[COSINE].predicted is None
    assert (rows[COSINE].layer, rows[COSINE].head, rows[COSINE].model) == (None, None, "ViT")
