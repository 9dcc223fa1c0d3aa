"""Closed-form gradients and operators of coding rates against autograd of the textbook formula."""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.rate_reduction import textbook_class_rate
from transformer_theory.metrics import coding

EPS = 0.5
# classes larger than d, all samples fewer, classes smaller, classes of d
SHAPES = [(40, 6, 3), (10, 20, 3), (30, 8, 12), (18, 6, 3)]


def sample(n, d, classes):
    generator = torch.Generator().manual_seed(n)
    labels = torch.arange(n)[torch.randperm(n, generator=generator)] % classes
    return torch.randn(n, d, dtype=torch.float64, generator=generator), labels


def plain_rate(X, eps):
    n, d = X.shape
    return 0.5 * torch.linalg.slogdet(torch.eye(d, dtype=X.dtype) + d / (n * eps**2) * X.mT @ X).logabsdet


def autograd(function, X):
    leaf = X.clone().requires_grad_()
    return torch.autograd.grad(function(leaf), leaf)[0]


@each_case(("n", "d", "classes"), SHAPES)
def test_gradients_are_autograds(n, d, classes):
    X, y = sample(n, d, classes)
    rate, class_rate = (
        autograd(lambda X: plain_rate(X, EPS), X),
        autograd(lambda X: textbook_class_rate(X, y, EPS), X),
    )
    assert_close(coding.coding_rate_gradient(X, eps=EPS), rate, rtol=1e-10, atol=1e-13)
    assert_close(coding.class_coding_rate_gradient(X, y, eps=EPS), class_rate, rtol=1e-10, atol=1e-13)
    assert_close(coding.rate_reduction_gradient(X, y, eps=EPS), rate - class_rate, rtol=1e-10, atol=1e-13)
    gap = 2 * y + 1  # empty classes between
    assert_close(coding.rate_reduction_gradient(X, gap, eps=EPS), rate - class_rate, rtol=1e-10, atol=1e-13)


@each_case(("n", "d", "classes"), SHAPES)
def test_soft_gradients_are_autograds(n, d, classes):
    X, _ = sample(n, d, classes)
    P = torch.softmax(torch.randn(n, classes, dtype=X.dtype, generator=torch.Generator().manual_seed(1)), 1)
    P[0] = torch.nn.functional.one_hot(torch.tensor(0), classes)
    expected = autograd(lambda X: coding.rate_reduction(X, P, eps=EPS), X)
    assert_close(coding.rate_reduction_gradient(X, P, eps=EPS), expected, rtol=1e-10, atol=1e-13)


@each_case(("n", "d", "classes"), SHAPES)
def test_operators_are_the_inverses_and_make_the_gradient(n, d, classes):
    X, y = sample(n, d, classes)
    E, C = coding.expansion_operator(X, eps=EPS), coding.compression_operators(X, y, eps=EPS)
    alpha, identity = d / (n * EPS**2), torch.eye(d, dtype=X.dtype)
    assert_close(E @ (identity + alpha * X.mT @ X), alpha * identity, rtol=0, atol=1e-11)
    shares = torch.bincount(y).double() / n
    own = torch.nn.functional.one_hot(y).double()
    for j in range(classes):
        inside = identity + alpha / shares[j] * X[y == j].mT @ X[y == j]
        assert_close(C[j] @ inside, alpha / shares[j] * identity, rtol=0, atol=1e-10)
    gradient = X @ E - torch.einsum("nj,jnd->nd", own * shares, X @ C)
    assert_close(coding.rate_reduction_gradient(X, y, eps=EPS), gradient, rtol=1e-9, atol=1e-12)
    assert_close(coding.compression_operators(X, own, eps=EPS), C, rtol=1e-9, atol=1e-12)


def test_float32_agrees_with_float64_on_ill_conditioned_features():
    X, y = sample(200, 16, 4)
    X = X * torch.logspace(0, -5, 16, dtype=X.dtype)
    for eps in (0.5, 1e-3):
        for function in (
            coding.class_coding_rate_gradient,
            coding.rate_reduction_gradient,
            coding.compression_operators,
        ):
            exact, single = function(X, y, eps=eps), function(X.float(), y, eps=eps)
            assert single.dtype == torch.float32
            assert float((single.double() - exact).norm() / exact.norm()) < 1e-3, (function.__name__, eps)


@pytest.mark.parametrize(
    "function",
    [coding.class_coding_rate_gradient, coding.rate_reduction_gradient, coding.compression_operators],
)
def test_bad_input_is_named(unchecked, function):
    X, y = torch.ones(3, 2), torch.tensor([0, 1, 1])
    for features, labels, eps, message in (
        (X, y, 0.0, "eps must be a positive distortion"),
        (X, y.float(), 1.0, "labels must be integers"),
        (X, torch.full((3, 2), 0.6), 1.0, "sum to 1, got one that is 0.2 off"),
        (X * math.nan, y, 1.0, "finite, got 6 NaN or infinite values of 6"),
        (X.double() * 1e200, y, 1.0, "must be finite, got inf; normalise"),
    ):
        with pytest.raises(ValueError, match=message):
            function(features, labels, eps=eps)


def test_an_operator_of_an_empty_class_is_refused():
    with pytest.raises(ValueError, match="got none for class 1"):
        coding.compression_operators(torch.ones(3, 2), torch.tensor([0, 2, 2]), eps=1.0)


def test_a_lost_identity_is_refused():
    with pytest.raises(ValueError, match=r"at most 1e\+10.*larger eps"):
        coding.rate_reduction_gradient(
            1e9 * torch.ones(3, 2, dtype=torch.float64), torch.tensor([0, 0, 0]), eps=1e-3
        )
