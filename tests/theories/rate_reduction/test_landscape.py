"""The regularised problem: its gradient and Hessian by autograd, its critical points, and where
ascents end.
"""

import itertools

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.metrics.coding import rate_reduction
from transformer_theory.theories.rate_reduction.ascent import ascend, polish
from transformer_theory.theories.rate_reduction.landscape import (
    Regularised,
    largest_penalty,
    orthogonal_critical_point,
    scales,
)
from transformer_theory.theories.rate_reduction.problem import sorted_labels

SIZES, DIM, EPS = (3, 4, 5), 4, 0.7


@pytest.fixture
def problem():
    return Regularised(SIZES, DIM, EPS, 0.4 * largest_penalty(SIZES, DIM, eps=EPS))


def test_derivatives_are_those_of_autograd(problem, generator):
    X = torch.randn(12, DIM, dtype=torch.float64, generator=generator)

    def value(x):
        return rate_reduction(x, sorted_labels(SIZES), eps=EPS) - problem.penalty / 2 * x.square().sum()

    assert_close(problem.value(X), float(value(X)), rtol=1e-12, atol=0)
    assert_close(problem.gradient(X), torch.autograd.functional.jacobian(value, X), rtol=0, atol=1e-13)
    assert_close(
        problem.hessian(X), torch.autograd.functional.hessian(value, X).reshape(48, 48), rtol=0, atol=1e-13
    )


def test_roots_are_where_the_derivative_along_a_singular_value_vanishes(problem):
    alpha, *alphas = scales(SIZES, DIM, eps=EPS)
    for (low, high), a in zip(problem.squares(), alphas):
        assert 0 < low < high
        for s in (low, high):
            assert_close(alpha / (1 + alpha * s) - alpha / (1 + a * s), problem.penalty, rtol=1e-12, atol=0)
    # the bound on the penalty is where the largest class's roots meet
    for share, exist in ((0.999, True), (1.001, False)):
        penalty, a = share * largest_penalty(SIZES, DIM, eps=EPS), alphas[2]
        top, middle = penalty * alpha * a, alpha * (a - alpha) - penalty * (alpha + a)
        assert (middle**2 >= 4 * top * penalty) is exist


def test_every_mixture_of_roots_is_critical_and_a_maximiser_only_without_the_smaller_one(problem, generator):
    for smaller in itertools.product((0, 1), repeat=3):
        for larger in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 1)):
            if sum(smaller) + sum(larger) > DIM:
                continue
            X = orthogonal_critical_point(problem, smaller, larger, generator=generator)
            assert float(problem.gradient(X).norm()) < 1e-12 * problem.penalty * 100
            if any(smaller):
                assert problem.steepest(X) > 0.5
                assert problem.disorder(X) > 0.01
            else:
                assert problem.steepest(X) < 1e-10
                assert problem.disorder(X) < 1e-12


def test_disorder_sees_overlap_and_uneven_spectra(problem, generator):
    X = orthogonal_critical_point(problem, (0, 0, 0), (1, 1, 1), generator=generator)
    turned = X.clone()
    turned[:3] = X[:3] @ torch.linalg.matrix_exp(
        0.1 * (A := torch.randn(DIM, DIM, dtype=X.dtype, generator=generator)) - 0.1 * A.mT
    )
    assert problem.disorder(turned) > 0.01
    assert problem.disorder(torch.cat([1.05 * X[:3], X[3:]])) == pytest.approx(0.05)


@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
def test_ascents_end_at_maximisers(problem, generator, scale):
    start = scale * torch.randn(12, DIM, dtype=torch.float64, generator=generator)
    X = ascend(problem, start)
    assert problem.value(X) >= problem.value(start)
    assert float(problem.gradient(X).norm()) < 1e-9 * problem.penalty
    assert problem.disorder(X) < 1e-9
    assert problem.steepest(X) < 1e-9


def test_a_step_down_from_a_saddle_ends_higher(problem, generator):
    """From beside a saddle the way up leads away from it, to a maximiser of larger value."""
    saddle = orthogonal_critical_point(problem, (1, 0, 0), (0, 1, 0), generator=generator)
    assert_close(polish(problem, saddle), saddle, rtol=0, atol=1e-9)
    beside = saddle + 1e-3 * torch.randn(saddle.shape, dtype=saddle.dtype, generator=generator)
    end = ascend(problem, beside)
    assert problem.disorder(end) < 1e-9
    assert problem.value(end) > problem.value(saddle) + 1e-3


@each_case(
    ("call", "message"),
    [
        (lambda: Regularised((3, 3), 2, 1.0, 1.0), "penalty must lie between 0 and"),
        (lambda: Regularised((3, 3), 2, 1.0, 0.0), "penalty must lie between 0 and"),
        (lambda: largest_penalty((3,), 2, eps=1.0), "two classes"),
        (lambda: largest_penalty((3, 0), 2, eps=1.0), "samples in each"),
        (lambda: largest_penalty((3, 3), 2, eps=-1.0), "eps must be positive"),
        (
            lambda: orthogonal_critical_point(
                Regularised((3, 3), 2, 1.0, 0.01), (1, 1), (1, 0), generator=torch.Generator()
            ),
            "do not fit into classes",
        ),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()
