"""Rows of the general metrics and their nulls against numbers from numpy: unequal heads and batches."""

import numpy as np
import pytest
import torch

from transformer_theory.core.metric import Activations
from transformer_theory.core.statistics import permutations
from transformer_theory.metrics.class_features import NC1, NC2_ANGLES, NC2_NORMS, NeuralCollapse
from transformer_theory.metrics.networks import AttentionSelection, AttentionStatistics, Geometry
from transformer_theory.metrics.responses import OutputChange, PositionLoss
from transformer_theory.metrics.token_layout import mean_query


def attention(weights: np.ndarray, **parts) -> Activations:
    tokens = torch.zeros(len(weights), weights.shape[2], 2)
    return Activations("", 3, "attention", tokens, tokens, weights=torch.from_numpy(weights), **parts)


def causal_weights(n: int, seed: int) -> np.ndarray:
    """Two heads over five tokens; the second is sharper."""
    scores = np.random.default_rng(seed).normal(size=(n, 2, 5, 5)) * np.array([0.5, 3.0])[:, None, None]
    weights = np.exp(scores) * np.tri(5)
    return weights / weights.sum(-1, keepdims=True)


def rows_by_head(metric, draws: int = 1) -> dict:
    return {(row.quantity, row.head): row for row in metric.compute(draws=draws)}


def test_statistics_of_two_heads_in_two_batches():
    parts, metric = [causal_weights(n, n) for n in (2, 5)], AttentionStatistics()
    for part in parts:
        metric.update(attention(part))
    rows, A = rows_by_head(metric), np.concatenate(parts)
    H = -np.where(A > 0, A * np.log(np.where(A > 0, A, 1)), 0).sum(-1)
    for head in (0, 1):
        for quantity, value in (
            ("attention entropy", H[:, head].mean()),
            ("top-1 mass", A[:, head].max(-1).mean()),
            ("effective support", np.exp(H[:, head]).mean()),
            ("sink mass", A[:, head].mean((0, 1)).max()),
        ):
            assert rows[quantity, head].value == pytest.approx(value, abs=1e-9), quantity
            assert rows[quantity, head].layer == 3


def test_gaps_and_own_weights_under_a_causal_mask():
    """The first query has one key, hence no gap; uniform weight on the token itself is the mean of 1/q."""
    A, metric = causal_weights(4, 0), AttentionSelection()
    metric.update(attention(A, mask=torch.ones(1, 1, 5, 5).tril().bool()))
    rows = rows_by_head(metric)
    for head in (0, 1):
        ordered = [np.sort(np.log(A[n, head, q, : q + 1]))[::-1] for n in range(4) for q in range(1, 5)]
        assert rows["gap of the scores", head].value == pytest.approx(np.mean([a[0] - a[1] for a in ordered]))
        own = rows["weight on the token itself", head]
        assert own.value == pytest.approx(np.mean([A[n, head, q, q] for n in range(4) for q in range(5)]))
        assert own.null.draws == pytest.approx([np.mean([1 / q for q in range(1, 6)])])


def test_the_residual_is_a_mean_of_ratios_and_ranks_are_those_of_all_tokens():
    rng, metric, outputs = np.random.default_rng(1), Geometry(), []
    for n in (3, 2):
        outputs.append(
            rng.standard_t(4, size=(n, 4, 3)) * [3.0, 1.0, 0.2] * rng.uniform(0.1, 9, size=(n, 1, 1))
        )
        output = torch.from_numpy(outputs[-1])
        metric.update(Activations("", 0, "features", output, output))
    x = np.concatenate(outputs)
    rows = {row.quantity: row.value for row in metric.compute()}
    ratios = np.linalg.norm(x - x.mean(1, keepdims=True), axis=(1, 2)) / np.linalg.norm(x, axis=(1, 2))
    singular = np.linalg.svd(x.reshape(-1, 3), compute_uv=False)
    shares = singular / singular.sum()
    stable, effective = (singular**2).sum() / singular[0] ** 2, np.exp(-(shares * np.log(shares)).sum())
    assert sorted(rows.values()) == pytest.approx(sorted([ratios.mean(), stable, effective]), rel=1e-6)


def test_the_change_of_outputs_and_its_null_within_batches():
    """Distances and sizes are summed over batches before the ratio; targets move within their batch."""
    rng, metric, sums = np.random.default_rng(2), OutputChange(), np.zeros(3)
    for n in (3, 4):
        t = rng.normal(size=(n, 2, 3)) * n
        y = t + rng.normal(size=t.shape)
        sums += [((y - t) ** 2).sum(), (t**2).sum(), ((y - np.roll(t, 1, 0)) ** 2).sum()]
        outputs, targets = torch.from_numpy(y), torch.from_numpy(t)
        metric.update(Activations("", 0, "outputs", outputs, outputs, outputs=outputs, targets=targets))
    (row,) = metric.compute(draws=5)
    assert row.value == pytest.approx(np.sqrt(sums[0] / sums[1]))
    assert row.null.draws == pytest.approx([np.sqrt(sums[2] / sums[1])])
    assert row.side == "<="


@pytest.mark.parametrize("blocks", [None, 2])
def test_losses_at_positions_and_with_targets_of_other_sequences(blocks: int | None):
    rng = np.random.default_rng(3)
    logits, ids = rng.normal(size=(3, 4, 5)) * 2, rng.integers(5, size=(3, 4))
    ids[0, 1] = ids[2, 3] = -1
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def losses(targets: np.ndarray) -> list[float]:
        each = [[-log_p[n, t, targets[n, t]] for n in range(3) if targets[n, t] >= 0] for t in range(4)]
        each = each if blocks is None else [each[0] + each[1], each[2] + each[3]]
        return [np.mean(part) for part in each]

    metric, outputs = PositionLoss(blocks=blocks), torch.from_numpy(logits)
    metric.update(
        Activations("", 0, "outputs", outputs, outputs, outputs=outputs, targets=torch.from_numpy(ids))
    )
    rows = metric.compute(draws=1)
    assert [row.value for row in rows] == pytest.approx(losses(ids))
    assert [row.null.draws[0] for row in rows] == pytest.approx(losses(np.roll(ids, 1, 0)))
    assert {row.side for row in rows} == {"<="}


def collapse(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """NC1 = tr(S_W S_B^+) / k and the spreads of norms and angles of the centred class means."""
    kinds = sorted(set(y.tolist()))
    k, means = len(kinds), np.stack([x[y == c].mean(0) for c in kinds])
    centre = means.mean(0)
    within = np.mean([np.cov(x[y == c].T, bias=True) for c in kinds], 0)  # classes count alike
    between = (means - centre).T @ (means - centre) / k
    norms = np.linalg.norm(means - centre, axis=1)
    cosines = (means - centre) @ (means - centre).T / np.outer(norms, norms)
    off = cosines[~np.eye(k, dtype=bool)]
    return (
        float(np.trace(within @ np.linalg.pinv(between, rcond=1e-10)) / k),
        float(norms.std() / norms.mean()),
        float(np.abs(off + 1 / (k - 1)).mean()),
    )


def test_neural_collapse_of_permuted_labels():
    rng = np.random.default_rng(4)
    y = np.repeat([0, 1, 2], [12, 7, 5])
    x = rng.standard_t(5, size=(24, 6)) + 2 * rng.normal(size=(3, 6))[y]
    tokens = torch.from_numpy(x)[:, None]
    metric = NeuralCollapse()
    metric.update(Activations("", 0, "features", tokens, tokens, labels=torch.from_numpy(y)))
    rows = metric.compute(draws=6)
    assert [row.quantity for row in rows] == [NC1, NC2_NORMS, NC2_ANGLES]
    assert [row.value for row in rows] == pytest.approx(collapse(x, y))
    null = [collapse(x, y[order]) for order in permutations(24, 6).numpy()]
    for row, draws in zip(rows, zip(*null)):
        assert row.null.draws == pytest.approx(draws)
        assert (row.side, row.n) == ("<=", 24)


def test_the_mean_over_queries_that_are_read():
    """Queries are read in different numbers: three, one, two."""
    A = causal_weights(3, 5)
    read = np.array([[1, 1, 0, 0, 1], [0, 0, 0, 1, 0], [0, 1, 1, 0, 0]], bool)
    found = mean_query(attention(A, read=torch.from_numpy(read))).numpy()
    assert found == pytest.approx(np.stack([a[:, r].mean(1) for a, r in zip(A, read)]))
    every = mean_query(attention(A)).numpy()
    assert every == pytest.approx(A.mean(2))
