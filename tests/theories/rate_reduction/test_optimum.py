"""The MCR² optimum: its closed form, routes that do not use it, and budgets of ranks."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.rate_reduction import MCR2_OPTIMUM
from transformer_theory.metrics.coding import rate_reduction as reduction
from transformer_theory.theories import rate_reduction

EPS = 0.5**0.5


def ascents(sizes, ranks, dim, *, eps, generator, starts):
    """The largest rate reduction that :func:`maximise` reaches."""
    ends = (rate_reduction.maximise(sizes, ranks, dim, eps=eps, generator=generator) for _ in range(starts))
    return max(float(reduction(X, y, eps=eps)) for X, y, _ in ends)


# test_redunet checks the shapes of a layer
def test_projected_gradient_ascent_from_anywhere_ends_at_the_closed_form(unchecked):
    """Plain steps on all of X, no budget of ranks: the spheres ||X_j||_F = sqrt(n_j) are the
    only constraint.
    """
    sizes, dim = (20, 20, 20), 12
    X, y = (
        torch.randn(60, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
        torch.arange(3).repeat_interleave(20),
    )
    own, step = torch.nn.functional.one_hot(y).double(), 2 * rate_reduction.guaranteed_step(60, dim, eps=EPS)
    for _ in range(300):  # at half of them the distance is rounding
        X = X + step * rate_reduction.layer(X, y, eps=EPS).gradient(X, own)
        X = torch.cat([x * (len(x) ** 0.5 / x.norm()) for x in X.split(sizes)])
    assert float(reduction(X, y, eps=EPS)) == pytest.approx(MCR2_OPTIMUM, abs=1e-9)
    assert rate_reduction.optimum(sizes, dim, eps=EPS).value == pytest.approx(MCR2_OPTIMUM, abs=1e-12)
    for x in X.split(sizes):
        assert torch.linalg.svdvals(x)[:5].tolist() == pytest.approx([5**0.5] * 4 + [0], abs=1e-5)


@pytest.mark.parametrize(
    ("sizes", "budget", "dim", "eps"), [((10, 20, 30), (2, 3, 5), 10, EPS), ((5, 12), (2, 4), 6, 0.8)]
)
def test_unequal_classes_reach_the_closed_form_and_no_more(generator, unchecked, sizes, budget, dim, eps):
    best = rate_reduction.optimum(sizes, dim, eps=eps, budget=budget)
    reached = ascents(sizes, budget, dim, eps=eps, generator=generator, starts=4)
    assert reached == pytest.approx(best.value, abs=1e-9)
    assert reached <= best.value + 1e-12


def test_budgets_are_searched_by_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(30):
        k = int(rng.integers(1, 4))
        sizes, dim, eps = (
            rng.integers(1, 12, k).tolist(),
            int(rng.integers(k, 9)),
            float(10 ** rng.uniform(-1, 1)),
        )
        budget = rng.integers(1, 6, k).tolist()
        allowed = (
            tuple(r + 1 for r in ranks)
            for ranks in np.ndindex(*(min(size, rank) for size, rank in zip(sizes, budget)))
            if sum(ranks) + k <= dim
        )
        values = {ranks: rate_reduction.flat_reduction(sizes, ranks, dim, eps=eps) for ranks in allowed}
        best = rate_reduction.optimum(sizes, dim, eps=eps, budget=budget)
        assert best.value == pytest.approx(max(values.values()), abs=1e-12)
        assert values[best.ranks] == pytest.approx(best.value, abs=1e-12)


def test_one_smaller_singular_value_never_pays():
    """ΔR along (a, b, ..., b) with a + (r - 1) b fixed is largest at an end: rank r - 1, or an
    even spread.
    """
    rng = np.random.default_rng(1)
    for _ in range(200):
        alpha, share, total, r = (
            10 ** rng.uniform(-2, 2),
            rng.uniform(0.05, 0.95),
            10 ** rng.uniform(-1, 2),
            int(rng.integers(2, 9)),
        )
        a = np.linspace(0, total / r, 400)
        b = (total - a) / (r - 1)
        values = sum(
            m * (np.log1p(alpha * x) - share * np.log1p(alpha * x / share)) / 2
            for m, x in ((1, a), (r - 1, b))
        )
        assert values[1:-1].max() <= max(values[0], values[-1]) + 1e-12


def test_a_small_distortion_does_not_make_every_dimension_pay(generator):
    """The condition ε⁴ < (n_j/n) d²/r² holds at r = 14, yet ten dimensions are better, and an ascent finds
    more than rank 14 has.
    """
    sizes, budget, dim, eps = (43, 81), (14, 2), 16, 0.648
    assert rate_reduction.largest_rank(43, 124, dim, eps=eps) > 22
    full, best = (
        rate_reduction.flat_reduction(sizes, budget, dim, eps=eps),
        rate_reduction.optimum(sizes, dim, eps=eps, budget=budget),
    )
    assert best.ranks == (10, 2)
    assert best.value > full + 0.02
    assert (
        full + 0.01
        < ascents(sizes, budget, dim, eps=eps, generator=generator, starts=2)
        <= best.value + 1e-12
    )


def test_optimum_has_the_known_value_and_full_rank():
    best = rate_reduction.optimum([20, 20, 20], 12, eps=EPS)
    assert best.ranks == (4, 4, 4)
    assert abs(best.value - MCR2_OPTIMUM) < 1e-12
    by_rank = [rate_reduction.flat_reduction([20] * 3, [r] * 3, 12, eps=EPS) for r in (1, 2, 3, 4)]
    assert_close(by_rank, [1.686, 2.263, 2.551, 2.700], rtol=0, atol=5e-4)


@pytest.mark.parametrize(("sizes", "ranks", "dim"), [((20, 20, 20), (4, 4, 4), 12), ((10, 30), (2, 5), 9)])
def test_constructed_optimum_has_the_closed_form(generator, sizes, ranks, dim):
    X, y = rate_reduction.orthogonal_classes(sizes, ranks, dim, generator=generator)
    assert_close(
        float(reduction(X, y, eps=EPS)),
        rate_reduction.flat_reduction(sizes, ranks, dim, eps=EPS),
        rtol=1e-12,
        atol=0,
    )


def test_optimum_searches_all_ranks_by_brute_force():
    sizes, dim = (4, 9, 30), 8
    values = {
        ranks: rate_reduction.flat_reduction(sizes, ranks, dim, eps=0.8)
        for ranks in np.ndindex(9, 9, 9)
        if min(ranks) >= 1 and sum(ranks) <= dim and ranks[0] <= 4
    }
    best = rate_reduction.optimum(sizes, dim, eps=0.8)
    assert_close(best.value, max(values.values()), rtol=1e-12, atol=0)
    assert best.ranks == max(values, key=lambda ranks: values[ranks])
    assert rate_reduction.optimum([7, 0], 3, eps=1.0).value == 0.0


# the contract checks shapes
def test_no_ascent_with_more_rank_than_dimensions_exceeds_the_optimum(generator, unchecked):
    best = rate_reduction.optimum([20, 20, 20], 12, eps=EPS)
    reached = []
    for _ in range(2):
        X, y, gradient = rate_reduction.maximise([20] * 3, [6] * 3, 12, eps=EPS, generator=generator)
        assert gradient < 1e-6
        assert_close(
            torch.stack([x.square().sum() for x in X.split(20)]), torch.full((3,), 20.0, dtype=X.dtype)
        )
        reached.append(float(reduction(X, y, eps=EPS)))
    assert max(reached) <= best.value + 1e-9
    assert max(reached) > best.value - 0.2


def test_equal_second_moments_give_zero(generator):
    X, y = rate_reduction.equal_moments((8, 20, 13), 6, generator=generator)
    assert abs(float(reduction(X, y, eps=EPS))) < 1e-12
    X[0] *= 1.1  # the equality is strict
    assert float(reduction(X, y, eps=EPS)) > 1e-6


@each_case(
    ("call", "message"),
    [
        (
            lambda: rate_reduction.optimum([3, 3], 4, eps=1.0, budget=[1]),
            "one integer >= 1 for each of 2 classes",
        ),
        (lambda: rate_reduction.optimum([3, 3], 4, eps=1.0, budget=[1, 0]), "one integer >= 1"),
        (
            lambda: rate_reduction.optimum([3, 3], 4, eps=float("nan")),
            "eps must be positive and finite, got nan",
        ),
        (lambda: rate_reduction.optimum([3, -3], 4, eps=1.0), "class sizes must be integers >= 0"),
        (lambda: rate_reduction.optimum([3.5, 3], 4, eps=1.0), "class sizes must be integers >= 0"),
        (lambda: rate_reduction.optimum([3, 3, 3], 2, eps=1.0), "3 classes in 2 dimensions"),
        (lambda: rate_reduction.optimum([], 2, eps=1.0), "class sizes"),
        (lambda: rate_reduction.optimum([3], 2, eps=0.0), "eps must be positive"),
        (lambda: rate_reduction.flat_reduction([3, 3], [2, 2], 3, eps=1.0), "sum <= 3"),
        (lambda: rate_reduction.equal_moments((3,), 4, generator=torch.Generator()), "at least 4 samples"),
        (
            lambda: rate_reduction.maximise([3, 3], [1], 4, eps=1.0, generator=torch.Generator()),
            "ranks must be between 1",
        ),
        (
            lambda: rate_reduction.maximise([3, 3], [1, 4], 4, eps=1.0, generator=torch.Generator()),
            "ranks must be between 1",
        ),
        (
            lambda: rate_reduction.maximise([3, 3], [1, 1], 4, eps=-1.0, generator=torch.Generator()),
            "eps must be positive and finite",
        ),
        (
            lambda: rate_reduction.maximise([3, 3], [1, 1], 4, eps=1.0, steps=0, generator=torch.Generator()),
            "steps must be at least 1, got 0",
        ),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()


@each_case(
    ("call", "message"),
    [
        (
            lambda: rate_reduction.optimum([3.5, 3], 4, eps=0.5),
            r"class sizes must be integers >= 0 .* got \[3.5, 3\]",
        ),
        (
            lambda: rate_reduction.optimum([3, 3], 4, eps=0.5, budget=[1.5, 2]),
            r"budget must be one integer >= 1 .* got \[1.5, 2\]",
        ),
        (lambda: rate_reduction.flat_reduction([3.5, 3], [1, 1], 4, eps=0.5), "must be integers, got sizes"),
        (lambda: rate_reduction.flat_reduction([3, 3], [1.5, 1], 4, eps=0.5), "must be integers, got sizes"),
        (lambda: rate_reduction.flat_reduction([3, 3], [1, 1], 4, eps=-0.5), "eps must be positive"),
        (
            lambda: rate_reduction.maximise([3.5, 3], [1, 1], 4, eps=0.5, generator=torch.Generator()),
            "must be integers, got sizes",
        ),
        (
            lambda: rate_reduction.orthogonal_classes([3, 3], [1.5, 1], 4, generator=torch.Generator()),
            "must be integers, got sizes",
        ),
    ],
)
def test_fractions_of_samples_or_dimensions_are_refused(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()
