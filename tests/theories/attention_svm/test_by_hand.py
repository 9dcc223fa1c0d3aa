"""Cosines to the max-margin direction, with flipped signs, and accuracies against cvxpy and numpy."""

from types import SimpleNamespace

import cvxpy as cp
import numpy as np
import pytest
import torch

from transformer_theory.core.metric import Activations
from transformer_theory.core.statistics import permutations
from transformer_theory.theories.attention_svm import in_networks, on_data
from transformer_theory.theories.attention_svm.claims import graph
from transformer_theory.theories.attention_svm.in_networks import AlignmentMetric, alignment


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_cvxpy(W: np.ndarray, x: np.ndarray, z: np.ndarray) -> tuple[float, float]:
    """Cosine of W to the solution of what it selects, and its smallest margin over the largest possible."""
    V, rows = cp.Variable(W.shape), []
    for tokens, query in zip(x, z):
        best = int(np.argmax(tokens @ W @ query))
        rows += [np.outer(tokens[best] - other, query) for t, other in enumerate(tokens) if t != best]
    cp.Problem(cp.Minimize(cp.sum_squares(V)), [cp.sum(cp.multiply(row, V)) >= 1 for row in rows]).solve(
        solver=cp.CLARABEL
    )
    margins = [float((row * W).sum()) for row in rows]
    size = np.linalg.norm(V.value)
    return float((W * V.value).sum() / np.linalg.norm(W) / size), min(margins) / np.linalg.norm(W) * size


def flipped(W: np.ndarray, x: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """W with signs along the principal axes of the tokens, on both sides."""
    rows = x.reshape(-1, x.shape[-1])
    axes = np.linalg.eigh(rows.T @ rows)[1]
    F = axes @ np.diag(signs) @ axes.T
    return F @ W @ F


def tokens(n: int = 5, T: int = 3, d: int = 4) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.standard_t(5, size=(n, T, d)) * np.array([2.0, 1.0, 0.6, 0.3]) + 0.4


@pytest.mark.parametrize("n", [3, 5])
def test_the_cosine_and_its_null_by_cvxpy(n: int):
    """Up to as many inputs as dimensions are solved in one batch, more of them one by one."""
    rng, x = np.random.default_rng(1), tokens(n)
    z, W = x[:, 0], rng.normal(size=(4, 4))
    found = alignment(*(torch.from_numpy(each) for each in (W, x, z)), generator=generator(2), draws=6)
    cosine, margin = by_cvxpy(W, x, z)
    assert found.cosine == pytest.approx(cosine, abs=1e-5)
    assert found.margin == pytest.approx(margin, abs=1e-4)
    g = generator(2)
    torch.randperm(n, generator=g)  # the subset of the pairs
    signs = (torch.randint(2, (6, 4), generator=g) * 2 - 1).numpy()
    null = [by_cvxpy(flipped(W, x, each), x, z)[0] for each in signs]
    assert found.null.draws == pytest.approx(null, abs=1e-5)
    assert len({round(each, 6) for each in null}) > 3


def test_the_metric_measures_each_head_with_the_tokens_as_queries():
    rng, x = np.random.default_rng(3), tokens(3)
    W = rng.normal(size=(2, 4, 4))
    stored = torch.from_numpy(x)
    metric = AlignmentMetric()
    metric.update(Activations("", 0, "attention", stored, stored, bilinear=torch.from_numpy(W)))
    rows = [row for row in metric.compute(draws=3) if row.quantity == in_networks.COSINE]
    several = np.repeat(x, 3, 0), x.reshape(-1, 4)
    for head, row in enumerate(rows):
        assert row.value == pytest.approx(by_cvxpy(W[head], *several)[0], abs=1e-4)
        assert (row.side, row.head, row.n, row.predicted) == (">=", head, 3, 1.0)
    assert in_networks.IN_NETWORKS.side == ">="


@pytest.mark.usefixtures("unchecked")
def test_the_accuracy_of_the_head_on_held_out_inputs():
    rng = np.random.default_rng(4)
    sign, predicted = (torch.from_numpy(rng.choice([-1, 1], 30, p=[0.7, 0.3])) for _ in range(2))
    row = on_data._head_accuracy(SimpleNamespace(sign=sign, predicted=predicted, positive=1), 50)
    assert row.value == pytest.approx(np.mean(sign.numpy() == predicted.numpy()))
    orders = permutations(30, 19).numpy()
    assert row.null.draws == pytest.approx([np.mean(sign.numpy()[o] == predicted.numpy()) for o in orders])
    assert (row.side, row.n, row.split) == (">=", 30, "validation")


def test_next_tokens_are_learnt_on_the_sizes_and_steps_of_the_assumptions(monkeypatch):
    """Eight unit vectors in ten dimensions; 1,600 steps of length .1, measured after half of them, and 100 of
    length .01.
    """
    drawn, seen = [], []

    def sequences(**sizes):
        drawn.append(sizes)
        return random_sequences(**sizes)

    def part(graph, embeddings, ids, labels):
        drawn.append(embeddings)
        assert ids.shape == (10, 4)
        return torch.full((10, 10), 0.01 if len(drawn) < 3 else 1.0).double()

    def descent(instance, state, *, steps: int, rate: float = 0.1, loss):
        seen.append((steps, rate))
        return SimpleNamespace(W=len(seen) * torch.ones(10, 10).double())

    random_sequences = graph.random_sequences
    monkeypatch.setattr(graph, "random_sequences", sequences)
    monkeypatch.setattr(graph, "finite_part", part)
    monkeypatch.setattr(graph, "normalised_descent", descent)
    run = graph._descend(generator(5))
    (sizes, first, again, second) = drawn  # the first finite part is too small
    for each in (sizes, again):
        each.pop("generator")
        assert each == {"sequences": 10, "length": 4, "tokens": 8, "last": 2, "cyclic": True}
    assert first is second
    assert first.shape == (8, 10)
    assert first.norm(dim=1).tolist() == pytest.approx([1.0] * 8)
    assert seen == [(800, 0.1), (800, 0.1), (100, 0.01)]
    assert (float(run.half[0, 0]), float(run.W[0, 0]), float(run.finite[0, 0])) == (1.0, 3.0, 1.0)


def test_both_distances_of_next_token_prediction():
    """The basis spans two of nine coordinates: the direction is compared outside of it, the finite part in
    it, relative to its norm.
    """
    rng = np.random.default_rng(6)
    half, W, finite, target = (rng.normal(size=(3, 3)) for _ in range(4))
    finite.flat[2:] = 0
    parts = [torch.from_numpy(each) for each in (half, W)]
    basis = torch.eye(9)[:2].double()
    run = graph._Run(*parts, basis.view(2, 3, 3), torch.from_numpy(finite), None, None)
    inside = np.zeros((3, 3))
    inside.flat[:2] = 1

    def distance(W: np.ndarray) -> float:
        outside = W * (1 - inside)
        return 1 - (outside * target).sum() / np.linalg.norm(outside) / np.linalg.norm(target)

    def error(W: np.ndarray, share: float) -> float:
        return np.linalg.norm(W * inside - share * finite) / np.linalg.norm(finite)

    found = run.distance(torch.from_numpy(target))
    assert (found.value, found.detail["distance before"]) == pytest.approx((distance(W), distance(half)))
    assert found.detail["norm"] == pytest.approx(np.linalg.norm(W))
    for share in (1.0, 0.0):
        found = run.error(share)
        expected = (error(W, share), error(half, share))
        assert (found.value, found.detail["distance before"]) == pytest.approx(expected)
        assert found.detail["norm"] == pytest.approx(np.linalg.norm(finite))
