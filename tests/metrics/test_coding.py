"""Coding rates: closed forms, the textbook formula, invariances, and bad input."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.problems.rate_reduction import flat_features, flat_rate, textbook_class_rate
from transformer_theory.metrics import coding

EPS = 0.5


def sample(n=60, d=7, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    labels[0] = classes - 1
    return torch.randn(n, d, dtype=torch.float64, generator=generator), labels


def test_rate_of_one_vector():
    x = torch.tensor([[3.0, 4.0, 0.0]], dtype=torch.float64)
    assert_close(float(coding.coding_rate(x, eps=EPS)), 0.5 * math.log(1 + 3 * 25 / EPS**2))


@pytest.mark.parametrize(("n", "d", "rank"), [(20, 6, 3), (5, 30, 5), (40, 8, 8)])
def test_rate_of_a_flat_spectrum(generator, n, d, rank):
    X = flat_features(n, d, rank, generator=generator)
    assert_close(float(coding.coding_rate(X, eps=EPS)), flat_rate(d, rank, EPS), rtol=1e-12, atol=0)


def test_eps_is_the_distortion_and_is_squared_inside(generator):
    X = flat_features(20, 6, 2, generator=generator)
    assert_close(float(coding.coding_rate(X, eps=0.1)), math.log(1 + 6 / (2 * 0.01)))


def test_class_rates_are_the_rates_of_the_classes():
    X, y = sample()
    rates = coding.class_coding_rates(X, y, eps=EPS)
    for j, rate in enumerate(rates):
        assert_close(rate, coding.coding_rate(X[y == j], eps=EPS))
    weights = torch.bincount(y) / len(y)
    assert_close(coding.class_coding_rate(X, y, eps=EPS), weights.double() @ rates, rtol=1e-6, atol=0)


@given(n=st.integers(2, 60), d=st.integers(1, 12), classes=st.integers(1, 8), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_class_rate_agrees_with_the_membership_matrices_of_the_papers(n, d, classes, seed):
    X, y = sample(n, d, classes, seed)
    assert_close(coding.class_coding_rate(X, y, eps=EPS), textbook_class_rate(X, y, EPS), rtol=1e-10, atol=1e-12)


def test_classes_of_very_different_sizes_and_gaps():
    X, _ = sample(300, 9)
    y = torch.zeros(300, dtype=torch.int64)
    y[:3], y[3:4], y[4:40] = 2, 5, 7
    y = y[torch.randperm(300, generator=torch.Generator().manual_seed(3))]
    rates = coding.class_coding_rates(X, y, eps=EPS)
    assert rates.shape == (8,)
    assert rates[[1, 3, 4, 6]].tolist() == [0.0] * 4
    for j in (0, 2, 5, 7):
        assert_close(rates[j], coding.coding_rate(X[y == j], eps=EPS))


def test_gradients():
    X, y = sample(14, 4, 3)
    X.requires_grad_()
    assert torch.autograd.gradcheck(lambda X: coding.rate_reduction(X, y, eps=EPS), X)
    assert torch.autograd.gradgradcheck(lambda X: coding.rate_reduction(X, y, eps=EPS), X)


def test_rate_reduction_is_rotation_and_permutation_invariant():
    X, y = sample()
    value = coding.rate_reduction(X, y, eps=EPS)
    rotation = torch.linalg.qr(sample(7, 7)[0]).Q
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(1))
    assert_close(coding.rate_reduction(X @ rotation, y, eps=EPS), value)
    assert_close(coding.rate_reduction(X[order], y[order], eps=EPS), value)
    assert_close(coding.rate_reduction(X, 3 - y, eps=EPS), value)


@given(n=st.integers(2, 40), d=st.integers(1, 10), classes=st.integers(1, 5), seed=st.integers(0, 1000), eps=st.floats(0.01, 10))
@settings(max_examples=40, deadline=None)
def test_rate_reduction_is_between_zero_and_the_rate(n, d, classes, seed, eps):
    X, y = sample(n, d, classes, seed)
    value = float(coding.rate_reduction(X, y, eps=eps))
    assert -1e-10 <= value <= float(coding.coding_rate(X, eps=eps)) + 1e-10


def test_float32_agrees_with_float64():
    X, y = sample(500, 32, 10)
    assert coding.rate_reduction(X.float(), y, eps=0.1).dtype == torch.float32
    assert_close(coding.class_coding_rates(X.float(), y, eps=0.1).double(), coding.class_coding_rates(X, y, eps=0.1), rtol=1e-5, atol=0)
    assert_close(coding.rate_reduction(X.float(), y, eps=0.1).double(), coding.rate_reduction(X, y, eps=0.1), rtol=1e-4, atol=0)


def test_float32_keeps_small_rates_of_ill_conditioned_features():
    X, y = sample(500, 32, 10)
    X = X * torch.logspace(0, -6, 32, dtype=X.dtype)
    for eps in (1.0, 1e-2, 1e-4):
        assert_close(coding.coding_rate(X.float(), eps=eps).double(), coding.coding_rate(X, eps=eps), rtol=1e-4, atol=0)
        assert_close(coding.class_coding_rates(X.float(), y, eps=eps).double(), coding.class_coding_rates(X, y, eps=eps), rtol=1e-4, atol=0)


def test_batches_of_features():
    X = torch.stack([sample(seed=s)[0] for s in range(3)])
    assert_close(coding.coding_rate(X, eps=EPS), torch.stack([coding.coding_rate(x, eps=EPS) for x in X]))


def test_subspace_rate_is_the_sum_over_projections(generator):
    X = torch.randn(2, 10, 8, dtype=torch.float64, generator=generator)
    bases = torch.randn(3, 8, 4, dtype=torch.float64, generator=generator)
    expected = [sum(float(coding.coding_rate(x @ U, eps=EPS)) for U in bases) for x in X]
    assert_close(coding.subspace_coding_rate(X, bases, eps=EPS), torch.tensor(expected, dtype=torch.float64))


def test_unit_norm_at_the_ends_of_the_number_line():
    X = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e-200, 4e-200], [3e200, -4e200]], dtype=torch.float64)
    expected = torch.tensor([[0.6, 0.8], [0, 0], [0.6, 0.8], [0.6, -0.8]], dtype=torch.float64)
    assert_close(coding.unit_norm(X), expected)


LABELS = torch.tensor([0, 1, 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coding.coding_rate(torch.ones(3, 2), eps=0.0), "eps must be a positive distortion"),
        (lambda: coding.coding_rate(torch.ones(3, 2), eps=-1.0), "got -1"),
        (lambda: coding.coding_rate(torch.ones(3, 2), eps=math.nan), "got nan"),
        (lambda: coding.coding_rate(torch.ones(0, 2), eps=1.0), "n, d >= 1"),
        (lambda: coding.coding_rate(torch.tensor([[1.0, math.inf]]), eps=1.0), "1 NaN or infinite values of 2"),
        (lambda: coding.rate_reduction(torch.ones(3, 2), LABELS[:2], eps=1.0), r"got \[3, 2\] and \[2\]"),
        (lambda: coding.rate_reduction(torch.ones(3, 2), LABELS.float(), eps=1.0), r"integers, got torch.float32; convert with .long\(\)"),
        (lambda: coding.rate_reduction(torch.ones(3, 2), LABELS > 0, eps=1.0), "integers, got torch.bool"),
        (lambda: coding.rate_reduction(torch.ones(3, 2), LABELS - 1, eps=1.0), "got -1; relabel from zero"),
        (lambda: coding.rate_reduction(torch.full((3, 2), math.nan), LABELS, eps=1.0), "finite"),
        (lambda: coding.subspace_coding_rate(torch.ones(3, 2), torch.ones(2, 3, 1), eps=1.0), r"d = 2, got \[2, 3, 1\]"),
        (lambda: coding.coding_rate(torch.ones(3, 2).half(), eps=1.0), r"float32 or float64, got torch.float16; convert with .float\(\)"),
        (lambda: coding.rate_reduction(torch.ones(3, 2).bfloat16(), LABELS, eps=1.0), "got torch.bfloat16"),
        (lambda: coding.subspace_coding_rate(torch.ones(3, 2).half(), torch.ones(2, 2, 1).half(), eps=1.0), "got torch.float16"),
        (lambda: coding.coding_rate(torch.ones(3, 2).long(), eps=1.0), "got torch.int64"),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()
