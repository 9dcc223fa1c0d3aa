"""Soft memberships: the papers' matrices, labels as their corner, gradients at zero weights, and
bad input.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.metrics import coding

EPS = 0.5


def soft_sample(n=40, d=6, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(n, classes, dtype=torch.float64, generator=generator)
    return torch.randn(n, d, dtype=torch.float64, generator=generator), torch.softmax(scores, 1)


def by_matrices(X, memberships, eps):
    """R_j with a diagonal matrix each, as the papers write them."""
    d = X.shape[1]
    inside = [
        torch.eye(d, dtype=X.dtype) + d / (w.sum() * eps**2) * X.mT @ torch.diag(w) @ X
        for w in memberships.mT
    ]
    return 0.5 * torch.linalg.slogdet(torch.stack(inside)).logabsdet


@given(n=st.integers(1, 40), d=st.integers(1, 12), classes=st.integers(1, 5), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_rates_are_those_of_the_diagonal_matrices(n, d, classes, seed):
    X, P = soft_sample(n, d, classes, seed)
    expected = by_matrices(X, P, EPS)
    assert_close(coding.class_coding_rates(X, P, eps=EPS), expected, rtol=1e-9, atol=1e-12)
    assert_close(coding.class_coding_rate(X, P, eps=EPS), P.mean(0) @ expected, rtol=1e-9, atol=1e-12)
    assert float(coding.rate_reduction(X, P, eps=EPS)) >= -1e-10


def test_certain_memberships_are_labels():
    X, P = soft_sample()
    y = P.argmax(1)
    own = torch.nn.functional.one_hot(y, 4).double()  # the fourth class is empty
    assert_close(coding.class_coding_rates(X, own, eps=EPS)[:3], coding.class_coding_rates(X, y, eps=EPS))
    assert float(coding.class_coding_rates(X, own, eps=EPS)[3]) == 0
    assert_close(coding.rate_reduction(X, own, eps=EPS), coding.rate_reduction(X, y, eps=EPS))


def test_equal_memberships_save_nothing():
    X, _ = soft_sample()
    assert abs(float(coding.rate_reduction(X, torch.full((40, 5), 0.2, dtype=X.dtype), eps=EPS))) < 1e-12


@pytest.mark.parametrize(("n", "d"), [(9, 3), (4, 6)])
def test_gradients_reach_features_and_memberships(n, d):
    X, P = soft_sample(n, d, 3)
    scores = P.log().requires_grad_()
    X.requires_grad_()

    def value(X, scores):
        return coding.rate_reduction(X, torch.softmax(scores, 1), eps=EPS)

    assert torch.autograd.gradcheck(value, (X, scores))
    assert torch.autograd.gradgradcheck(value, (X, scores))


def test_gradients_at_weights_of_zero_are_finite_and_right():
    X, _ = soft_sample(12, 4)
    own = torch.nn.functional.one_hot(torch.arange(12) % 3, 3).double().requires_grad_()
    direction = torch.full_like(own, 1 / 3) - own.detach()
    (gradient,) = torch.autograd.grad(coding.class_coding_rate(X, own, eps=EPS), own)
    step = 1e-7
    slope = (
        coding.class_coding_rate(X, own + step * direction, eps=EPS)
        - coding.class_coding_rate(X, own, eps=EPS)
    ) / step
    assert_close((gradient * direction).sum(), slope.detach(), rtol=1e-5, atol=0)


def test_float32_agrees_with_float64():
    X, P = soft_sample(200, 16, 5)
    for eps in (0.5, 1e-3):
        assert coding.class_coding_rates(X.float(), P.float(), eps=eps).dtype == torch.float32
        single = coding.rate_reduction(X.float(), P.float(), eps=eps).double()
        assert_close(single, coding.rate_reduction(X, P, eps=eps), rtol=1e-3, atol=0)


X, HALVES = torch.ones(3, 2), torch.full((3, 2), 0.5)


@each_case(
    ("call", "message"),
    [
        (lambda: coding.class_coding_rates(X, 0.9 * HALVES, eps=1.0), "sum to 1, got one that is 0.1 off"),
        (lambda: coding.class_coding_rates(X, HALVES.mT, eps=1.0), r"got \[3, 2\] and \[2, 3\]"),
        (
            lambda: coding.class_coding_rates(X, HALVES + torch.tensor([1.0, -1.0]), eps=1.0),
            ">= 0, got a negative",
        ),
        (lambda: coding.class_coding_rates(X, HALVES * math.nan, eps=1.0), "negative or NaN"),
        (
            lambda: coding.class_coding_rates(X, HALVES.half(), eps=1.0),
            "float32 or float64, got torch.float16",
        ),
        (lambda: coding.class_coding_rates(X, HALVES.long(), eps=1.0), "got torch.int64"),
        (lambda: coding.class_coding_rates(X, torch.ones(3, 0), eps=1.0), "sum to 1"),
        (lambda: coding.class_coding_rates(X * math.inf, HALVES, eps=1.0), "6 NaN or infinite values of 6"),
        (
            lambda: coding.class_coding_rates(X.double() * 1e200, HALVES, eps=1.0),
            "must be finite, got inf; normalise",
        ),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()
