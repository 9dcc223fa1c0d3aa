"""Contractions, their predictions and nulls, participation, and the rows of the ladder against numpy, on
anisotropic tokens whose dimension is far below their coordinates.
"""

import math

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.metric import Activations
from transformer_theory.core.table import Table, collect
from transformer_theory.data import TokenData
from transformer_theory.theories.collapse import ladder, on_data, phases
from transformer_theory.theories.collapse.heads import normalised_gram, squared_contraction_of
from transformer_theory.theories.collapse.in_networks import (
    CONTRACTION,
    IN_NETWORKS,
    PEAKED,
    PHASE,
    RANDOM,
    HeadContraction,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tokens(n: int = 5, T: int = 6, d: int = 12, *, common: float = 1.5) -> np.ndarray:
    """Heavy-tailed tokens with a mean of their own, of which three coordinates have nearly all variance."""
    rng, scale = np.random.default_rng(0), np.where(np.arange(d) < 3, 2.0, 0.1)
    own = rng.standard_t(5, size=(n, T, d)) * scale * np.linspace(0.5, 2, n)[:, None, None]
    return own + common * rng.normal(size=(n, 1, d)) * scale


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def centred(x: np.ndarray) -> np.ndarray:
    return x - x.mean(-2, keepdims=True)


def squared_contraction(A: np.ndarray, x: np.ndarray) -> np.ndarray:
    return (centred(A @ x) ** 2).sum((-2, -1)) / (centred(x) ** 2).sum((-2, -1))


def geometry(x: np.ndarray) -> tuple[float, float]:
    """Mean cosine of different tokens over the mean squared norm, and tr(C)^2 / |C|^2."""
    gram, C = x @ x.T, np.cov(x.T)
    rho = (gram.sum() - np.trace(gram)) / (len(x) - 1) / np.trace(gram)
    return rho, np.trace(C) ** 2 / (C**2).sum()


def predicted(v: float, x: np.ndarray) -> float:
    (rho, D), n = geometry(x), len(x)
    rest = max((1 - 1 / n) / D - 1 / n, 0.0)
    return (math.exp(v) - math.exp(rho * v)) / n + (1 - rho) * v * rest


# ---- on data


def test_the_contraction_of_random_heads_and_its_prediction():
    """One factor for all sequences brings the variance within rows to .09; D is below four of twelve."""
    problem = on_data.read(TokenData(torch.from_numpy(tokens())))
    table, arrays = collect(on_data.measure(problem, generator(3), draws=0))
    rows, x, g = {row.quantity: row for row in table}, problem.tokens.numpy(), generator(3)
    found, formula = np.empty((16, 5)), np.empty((16, 5))
    for head in range(16):
        scores = x @ torch.randn(12, 12, generator=g, dtype=torch.float64).numpy() @ x.transpose(0, 2, 1)
        scores *= 0.3 / math.sqrt(scores.var(-1).mean())
        found[head] = squared_contraction(softmax(scores), x)
        formula[head] = [predicted(s.var(-1).mean(), each) for s, each in zip(scores, x)]
    row = rows[on_data.HEADLINE]
    assert row.value == pytest.approx(math.sqrt(found.mean()))
    assert row.predicted == pytest.approx(math.sqrt(formula.mean()))
    half = 2.13145 * found.mean(1).std(ddof=1) / 4  # t of 15 degrees of freedom
    assert row.interval == pytest.approx(
        [math.sqrt(found.mean() + sign * half) for sign in (-1, 1)], rel=1e-4
    )
    assert (row.side, row.n, row.quantity) == ("==", 5, on_data.ON_DATA.headline)
    assert arrays["collapse/measured"] == pytest.approx(np.sqrt(found.mean(0)))
    assert arrays["collapse/predicted"] == pytest.approx(np.sqrt(formula.mean(0)))
    rho, D = np.mean([geometry(each) for each in x], 0)
    assert rows[on_data.COSINE].value == pytest.approx(rho)
    assert rows[on_data.DIMENSION].value == pytest.approx(D)
    assert D < 4
    norms = np.linalg.norm(x, axis=-1)
    assert rows[on_data.EQUIANGULAR].value == pytest.approx((norms.std(-1) / norms.mean(-1)).mean())
    assert rows[on_data.EQUIANGULAR].verdict == "fails"


def test_tokens_are_scaled_and_some_sequences_and_tokens_are_chosen():
    """Each sequence has the mean squared norm d; of 300 tokens 256 are evenly spaced, with both ends."""
    x = tokens(4, 300, 2)
    x[1] = 7.0
    x[2] *= 1e150
    found = on_data.read(TokenData(torch.from_numpy(x))).tokens.numpy()
    assert (found**2).sum(-1).mean(-1) == pytest.approx([2.0] * 3)
    places = np.linspace(0, 299, 256).astype(int)
    sizes = [np.abs(each).max() for each in x]
    expected = [(each / size)[places] for each, size in zip(x, sizes)]
    expected = [math.sqrt(2) * each / np.sqrt((each**2).sum(-1).mean()) for each in expected]
    order = torch.randperm(3, generator=generator(4_019_217_653)).tolist()
    for each, place in zip(found, order):
        assert each == pytest.approx(expected[(0, 2, 3)[place]])


# ---- in networks


def head_rows(
    x: np.ndarray, weights: np.ndarray, mask: torch.Tensor | None = None, draws: int = 0
) -> dict[tuple[str, int], Measurement]:
    metric = HeadContraction(most_draws=max(draws, 1))
    inputs = torch.from_numpy(x)
    parts = {"weights": torch.from_numpy(weights), "mask": mask}
    metric.update(Activations("a", 0, "attention", inputs, inputs, **parts))
    return {(row.quantity, row.head): row for row in metric.compute(draws=draws)}


def scores_of(x: np.ndarray, sizes: tuple[float, ...] = (0.2, 0.7)) -> np.ndarray:
    """Scores of two random heads with these deviations, ``[n, heads, T, T]``."""
    W = np.random.default_rng(5).normal(size=(len(sizes), x.shape[2], x.shape[2]))
    scores = np.einsum("nid,hde,nje->nhij", x, W, x)
    return scores * np.array(sizes)[:, None, None] / np.sqrt(scores.var(-1).mean((0, 2)))[:, None, None]


@each_case("kind", ["causal", "window", "not causal"])
@each_case("padded", [0, 37])
def test_long_causal_maps_are_contracted_in_blocks(kind: str, padded: int):
    """Heads with a sink, with diffuse attention and with attention to the previous token; rows of padding are
    not finite.
    """
    n = 300
    rng, size = np.random.default_rng(5), n - padded
    x = rng.standard_normal((n, 6)) * np.array([9.0, 3, 1, 1, 1, 0.1])
    x[0] *= 20
    scores = rng.standard_normal((3, n, n))
    scores[0, :, 0] += 8
    scores[1] *= 0.1
    scores[2] += 9 * np.eye(n, k=-1)
    allowed = np.tril(np.ones((n, n), dtype=bool), 0 if kind == "causal" else 40)
    if kind == "window":
        allowed = np.tril(np.ones((n, n), dtype=bool)) & ~np.tril(np.ones((n, n), dtype=bool), -60)
    allowed[:size, size:] = False
    A = softmax(np.where(allowed, scores, -np.inf))
    expected = [squared_contraction(head[:size, :size], x[:size]) for head in A]
    A[:, size:] = np.nan
    inside = torch.arange(n) < size
    gram = normalised_gram(torch.tensor(np.where(inside.numpy()[:, None], x, 0.0)), inside)
    found = squared_contraction_of(
        torch.tensor(A, dtype=torch.float32), gram.float(), inside if padded else None
    )
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5)


def test_contraction_and_prediction_of_a_module():
    """Root mean squares over sequences; the cosine is over pairs of different tokens, six of them."""
    x = tokens()
    scores = scores_of(x)
    rows = head_rows(x, softmax(scores))
    for head in (0, 1):
        c2 = squared_contraction(softmax(scores[:, head]), x)
        assert rows[CONTRACTION, head].value == pytest.approx(math.sqrt(c2.mean()), rel=1e-4)
        v = scores[:, head].var(-1).mean(-1)
        expected = np.mean([predicted(min(each, 1.0), own) for each, own in zip(v, x)])
        assert rows[RANDOM, head].value == pytest.approx(math.sqrt(expected), rel=1e-3)
        assert (rows[CONTRACTION, head].side, IN_NETWORKS.side) == (">=", None)


CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()


def measured(causal: bool, draws: int):
    """Tokens, allowed keys, weights of a broad and a peaked head, and the rows of both."""
    x = tokens()
    allowed = CAUSAL.numpy() if causal else np.ones((6, 6), bool)
    weights = softmax(np.where(allowed, scores_of(x, (0.5, 2.0)), -np.inf))
    return x, allowed, weights, head_rows(x, weights, CAUSAL[None, None] if causal else None, draws=draws)


@pytest.mark.parametrize("causal", [False, True])
def test_the_null_permutes_the_keys_of_each_row(causal: bool):
    """Within the allowed keys, independently in rows and sequences; the law of the root mean square."""
    rng = np.random.default_rng(6)
    x, allowed, weights, rows = measured(causal, draws=299)
    for head in (0, 1):
        A = weights[:, head]
        chance = []
        for _ in range(1500):
            drawn = np.zeros_like(A)
            for b, q in np.ndindex(5, 6):
                keys = np.flatnonzero(allowed[q])
                drawn[b, q, keys] = A[b, q, rng.permutation(keys)]
            chance.append(math.sqrt(squared_contraction(drawn, x).mean()))
        row = rows[CONTRACTION, head]
        assert len(row.null.draws) == 299
        assert row.value == pytest.approx(math.sqrt(squared_contraction(A, x).mean()), rel=1e-4)
        assert np.mean(row.null.draws) == pytest.approx(
            np.mean(chance), abs=5 * np.std(chance) / math.sqrt(299)
        )
        assert np.std(row.null.draws) == pytest.approx(np.std(chance), rel=0.2)
        assert (rows[RANDOM, head].value is None) == (causal or head == 1), "scores that vary too much"


@pytest.mark.parametrize("causal", [False, True])
def test_participation_less_that_of_gaussian_scores_and_the_phase(causal: bool):
    """Gaussian rows have mean 0 and the deviation of the row over n; rows of one key do not count."""
    rng = np.random.default_rng(7)
    _, allowed, weights, rows = measured(causal, draws=99)
    for head in (0, 1):
        excess, phases, variances = [], [], []
        for b, q in np.ndindex(5, 6):
            own = weights[b, head, q][allowed[q]]
            n = len(own)
            if n > 1:
                s = np.log(own).std()
                z = rng.normal(size=(3000, n))
                z = s * (z - z.mean(1, keepdims=True)) / z.std(1, keepdims=True)
                chance = (softmax(z) ** 2).sum(1)
                excess.append((own**2).sum() - chance.mean())
                variances.append(chance.var())
                phases.append(s**2 / math.log(n))
        peaked, deviation = rows[PEAKED, head], math.sqrt(sum(variances)) / len(excess)
        assert peaked.value == pytest.approx(np.mean(excess), abs=0.003)
        assert rows[PHASE, head].value == pytest.approx(math.sqrt(np.mean(phases)), rel=1e-4)
        assert np.mean(peaked.null.draws) == pytest.approx(0, abs=5 * deviation / math.sqrt(99) + 0.003)
        assert np.std(peaked.null.draws) == pytest.approx(deviation, rel=0.35)


# ---- the ladder


def test_value_prediction_and_draws_are_divided_by_the_level_of_the_null():
    """The level is the root mean square of the draws, each a mean over heads."""

    def row(value: float | None, *draws: float, head: int = 0) -> Measurement:
        nulls = (Null(ladder.PERMUTED, draws),) if draws else ()
        reason = "" if value is not None else "none"
        return Measurement(
            "collapse", "in network", CONTRACTION, value, nulls=nulls, head=head, n=4, reason=reason
        )

    table = Table([row(0.5, 0.1, 0.2, 0.6), row(0.7, 0.3, 0.1, 0.9, head=1)])
    ratio, plain = ladder.rows_of(table, predicted=0.3)
    means = np.array([0.2, 0.15, 0.75])
    level = math.sqrt((means**2).mean())
    assert ratio.value == pytest.approx(0.6 / level)
    assert ratio.predicted == pytest.approx(0.3 / level)
    assert ratio.null.draws == pytest.approx(means / level)
    assert (plain.value, plain.predicted) == pytest.approx((0.6, 0.3))
    assert (ratio.side, plain.side, ratio.n) == (">=", ">=", 4)
    (missing,) = ladder.rows_of(Table([row(0.0, 0.0, 0.0)]))
    assert (missing.value, missing.reason) == (None, "attention is uniform, so permuted keys keep nothing")
    (missing,) = ladder.rows_of(Table([row(None)]))
    assert (missing.value, missing.reason) == (None, "none")


def test_random_weights_are_compared_with_the_formula_of_equiangular_tokens(monkeypatch):
    """64 tokens of 32 dimensions, cosine .3, scores of variance .36, of which .7 lies within rows."""
    seen = {}
    monkeypatch.setattr(
        ladder, "head_rows", lambda x, A, **settings: iter([seen.update(x=x, A=A, **settings)])
    )
    list(ladder.random_weights(generator(8)))
    v = 0.36 * 0.7
    expected = (math.exp(v) - math.exp(0.3 * v)) / 64 + 0.7 * v / 32
    assert seen["predicted"] == pytest.approx(math.sqrt(expected))
    x, A = seen["x"].numpy(), seen["A"].numpy()
    assert x.shape == (8, 64, 32)
    assert np.log(A).var(-1).mean() == pytest.approx(v, rel=0.15)
    assert len({float(each[0, 0]) for each in A}) == 8, "new weights for each sequence"


def test_random_heads_have_their_own_prediction_and_trained_ones_none():
    x = tokens()
    A = softmax(scores_of(x, (0.3,)))[:, 0]
    first, second = ladder.head_rows(torch.from_numpy(x), torch.from_numpy(A), random=True)
    expected = np.mean([predicted(np.log(a).var(-1).mean(), own) for a, own in zip(A, x)])
    assert second.predicted == pytest.approx(math.sqrt(expected), rel=1e-3)
    assert second.value == pytest.approx(math.sqrt(squared_contraction(A, x).mean()), rel=1e-4)
    level = second.value / first.value
    assert first.predicted == pytest.approx(second.predicted / level)
    assert len(first.null.draws) == 399
    assert np.mean(np.square(first.null.draws)) == pytest.approx(1)
    trained, _ = ladder.head_rows(torch.from_numpy(x), torch.from_numpy(A))
    assert trained.predicted is None
    assert trained.value == pytest.approx(first.value)


def test_the_leading_term_at_the_ends_of_the_phases():
    """e^{b^2 log n} / n below 1/sqrt 2, nothing from there on, and 1 - sqrt 2 / b from sqrt 2 on."""
    weak, frozen = 0.5**0.5, 2**0.5
    assert phases.limit(0.5, 100) == pytest.approx(100 ** (0.25 - 1))
    assert phases.limit(math.nextafter(weak, 0), 100) == pytest.approx(0.1)
    assert [phases.limit(b, 100) for b in (weak, 1.0, frozen)] == [0.0] * 3
    assert phases.limit(2 * frozen, 100) == pytest.approx(0.5)
