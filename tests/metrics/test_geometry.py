"""Alignment, neural collapse and rank collapse: closed forms and invariances."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory import metrics


def normal(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def rotation(d: int, generator: torch.Generator) -> torch.Tensor:
    return torch.linalg.qr(normal(d, d, generator=generator))[0]


def simplex(classes: int, dim: int, generator: torch.Generator) -> torch.Tensor:
    """Centred vectors of equal norm and cosine -1/(classes - 1), rows, in a random position."""
    corners = torch.eye(classes, dim, dtype=torch.float64)
    corners[:, :classes] -= 1 / classes
    return corners @ rotation(dim, generator)


def test_alignment_is_the_cosine_of_each_pair_of_matrices(generator):
    A, B = normal(3, 4, 5, generator=generator), normal(3, 4, 5, generator=generator)
    expected = [np.vdot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)) for a, b in zip(A.numpy(), B.numpy())]
    assert_close(metrics.alignment(A, B), torch.tensor(expected))
    assert_close(metrics.alignment(A, -2 * A), -torch.ones(3, dtype=torch.float64))


def test_collapsed_features_read_zero(generator):
    means = simplex(4, 7, generator)
    labels = torch.arange(40) % 4
    found = metrics.neural_collapse(5 * means[labels] + 3.0, labels, classifier=2 * means)
    assert found.nc1 < 1e-20
    assert found.nc2 < 1e-12
    assert found.nc3 is not None
    assert found.nc3 < 1e-20


def test_variability_has_its_closed_form(generator):
    """Means of a simplex with noise of variance s^2 in every direction: tr(S_W S_B^+)/C = s^2 tr(S_B^+)/C,
    S_B = P/C on C-1 dimensions.
    """
    C, d, s = 3, 5, 0.1
    means = simplex(C, d, generator)
    # 2d points of covariance s^2 I about each mean
    axes = math.sqrt(d) * s * torch.cat([torch.eye(d), -torch.eye(d)]).double()
    features = torch.cat([mean + axes for mean in means])
    labels = torch.arange(C).repeat_interleave(2 * d)
    found = metrics.neural_collapse(features, labels)
    assert_close(found.nc1, s**2 * C * (C - 1) / C, rtol=1e-9, atol=0)
    assert found.nc2 < 1e-12
    assert found.nc3 is None


def test_neural_collapse_is_what_the_formulas_say_in_numpy(generator):
    X, y, W = normal(60, 6, generator=generator), torch.arange(60) % 5, normal(5, 6, generator=generator)
    x, labels = X.numpy(), y.numpy()
    means = np.stack([x[labels == c].mean(0) for c in range(5)])
    M = means - means.mean(0)
    within = sum(np.cov(x[labels == c].T, bias=True) for c in range(5)) / 5
    between = M.T @ M / 5
    norms = np.linalg.norm(M, axis=1)
    cosines = [M[i] @ M[j] / norms[i] / norms[j] + 1 / 4 for i in range(5) for j in range(5) if i != j]
    found = metrics.neural_collapse(X, y, classifier=W)
    assert_close(found.nc1, np.trace(within @ np.linalg.pinv(between, rcond=1e-10)) / 5, rtol=1e-8, atol=0)
    assert_close(found.nc2_norms, norms.std() / norms.mean())
    assert_close(found.nc2_angles, np.abs(cosines).mean())
    assert_close(found.nc3, ((W.numpy() / np.linalg.norm(W.numpy()) - M / np.linalg.norm(M)) ** 2).sum())
    assert found.nc2 == max(found.nc2_norms, found.nc2_angles)


def test_neural_collapse_is_invariant(generator):
    X, y, W = normal(40, 6, generator=generator), torch.arange(40) % 4, normal(4, 6, generator=generator)
    R, order = rotation(6, generator), torch.randperm(40, generator=generator)
    one = metrics.neural_collapse(X, y, classifier=W)
    other = metrics.neural_collapse((3 * X @ R + 1.5)[order], y[order], classifier=0.1 * W @ R)
    for name in ("nc1", "nc2_norms", "nc2_angles", "nc3"):
        assert_close(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-12)


def test_absent_classes_are_left_out(generator):
    X, y, W = normal(30, 6, generator=generator), torch.arange(30) % 3, normal(7, 6, generator=generator)
    gaps = torch.tensor([1, 4, 6])
    assert metrics.neural_collapse(X, y, classifier=W[gaps]) == metrics.neural_collapse(
        X, gaps[y], classifier=W
    )


def test_rank_collapse_residual(generator):
    x = normal(5, generator=generator)
    equal = x.expand(2, 7, 5)
    assert float(metrics.rank_collapse_residual(equal).max()) < 1e-15
    X = normal(2, 7, 5, generator=generator)
    projector = torch.eye(7, dtype=torch.float64) - 1 / 7
    expected = torch.linalg.matrix_norm(projector @ X) / torch.linalg.matrix_norm(X)
    assert_close(metrics.rank_collapse_residual(X), expected)
    assert_close(metrics.rank_collapse_residual(-4 * X @ rotation(5, generator)), expected)
    assert_close(
        metrics.rank_collapse_residual(X - X.mean(-2, keepdim=True)), torch.ones(2, dtype=torch.float64)
    )


def test_pure_attention_collapses_the_rank(generator):
    """Softmax attention without skips contracts the residual: what the source proves."""
    X = 0.3 * normal(12, 6, generator=generator)
    residuals = []
    for _ in range(4):
        residuals.append(float(metrics.rank_collapse_residual(X)))
        X = (X @ X.mT / math.sqrt(6)).softmax(-1) @ X
    assert all(after < 0.5 * before for before, after in pairwise(residuals))


def test_everything_exported_is_documented():
    for name in metrics.__all__:
        assert getattr(metrics, name).__doc__
    assert metrics.stable_rank(torch.eye(3)) == 3


@pytest.mark.usefixtures("unchecked")
@each_case(
    ("call", "message"),
    [
        (lambda: metrics.neural_collapse(torch.zeros(3, 2), torch.zeros(2).long()), "one label each"),
        (
            lambda: metrics.neural_collapse(torch.ones(3, 2), torch.zeros(3).long()),
            "at least two classes, got 1",
        ),
        (lambda: metrics.neural_collapse(torch.full((2, 2), math.nan), torch.arange(2)), "must be finite"),
        (
            lambda: metrics.neural_collapse(torch.ones(4, 2), torch.arange(4) % 2),
            "undefined where a class mean",
        ),
        (lambda: metrics.neural_collapse(torch.eye(2), torch.tensor([-1, 0])), "two classes, got 1"),
        (
            lambda: metrics.neural_collapse(torch.eye(2), torch.arange(2), classifier=torch.eye(1, 2)),
            "classifier must have shape",
        ),
        (
            lambda: metrics.neural_collapse(torch.eye(2), torch.arange(2), classifier=torch.zeros(2, 2)),
            "not zero",
        ),
        (lambda: metrics.rank_collapse_residual(torch.zeros(2, 3, 4)), "not zero"),
        (lambda: metrics.rank_collapse_residual(torch.full((3, 4), math.inf)), "finite"),
        (lambda: metrics.rank_collapse_residual(torch.zeros(2, 0, 4)), r"must have shape \[\*batch, n, d\]"),
        (lambda: metrics.alignment(torch.eye(2), torch.zeros(2, 2)), "needs finite, non-zero vectors"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


SCALES = [(torch.float32, scale) for scale in (1e-36, 1e-23, 1e18, 1e36)] + [
    (torch.float64, scale) for scale in (1e-300, 1e-160, 1e160, 1e300)
]


@each_case(("dtype", "scale"), SCALES)
def test_rank_collapse_does_not_depend_on_the_scale(generator, dtype, scale):
    X = normal(2, 7, 5, generator=generator) + 1.0
    expected = (X - X.mean(1, keepdim=True)).flatten(1).norm(dim=1) / X.flatten(1).norm(dim=1)
    found = metrics.rank_collapse_residual((scale * X).to(dtype))
    assert_close(found.double(), expected, rtol=1e-5, atol=0)
    # differences that are small next to the tokens, but not rounding errors
    power = 2.0 ** round(math.log2(scale))
    near = (torch.tensor([[1.0, 1.0], [1.0, 1.0 + 2**-20]], dtype=torch.float64) * power).to(dtype)
    assert float(metrics.rank_collapse_residual(near)) == pytest.approx(2**-20 * 0.5**0.5 / 2, rel=1e-4)


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e300])
def test_neural_collapse_does_not_depend_on_the_scale(generator, scale):
    X, labels = normal(30, 6, generator=generator), torch.arange(30) % 3
    X = X + 3 * torch.eye(3, 6, dtype=torch.float64)[labels]
    W = normal(3, 6, generator=generator)
    means = torch.stack([X[labels == c].mean(0) for c in range(3)])
    M = (means - means.mean(0)).numpy()
    within = sum(np.cov(X[labels == c].numpy().T, bias=True) for c in range(3)) / 3
    found = metrics.neural_collapse(scale * X, labels, classifier=scale * W)
    assert found.nc1 == pytest.approx(
        np.trace(within @ np.linalg.pinv(M.T @ M / 3, rcond=1e-8)) / 3, rel=1e-8
    )
    norms = np.linalg.norm(M, axis=1)
    assert found.nc2_norms == pytest.approx(norms.std() / norms.mean(), rel=1e-10)
    difference = W.numpy() / np.linalg.norm(W) - M / np.linalg.norm(M)
    assert found.nc3 == pytest.approx((difference**2).sum(), rel=1e-10)
