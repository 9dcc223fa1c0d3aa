"""The MCR² optimum by routes that do not use its closed form, and budgets of ranks."""

import numpy as np
import pytest
import torch

from tests.problems.rate_reduction import MCR2_OPTIMUM
from transformer_theory.metrics.coding import rate_reduction
from transformer_theory.theories import rate_reduction as room

EPS = 0.5**0.5


def ascents(sizes, ranks, dim, *, eps, generator, starts):
    """The largest rate reduction that :func:`maximise` reaches."""
    found = (room.maximise(sizes, ranks, dim, eps=eps, generator=generator) for _ in range(starts))
    return max(float(rate_reduction(X, y, eps=eps)) for X, y, _ in found)


def test_projected_gradient_ascent_from_anywhere_ends_at_the_closed_form(unchecked):  # test_redunet checks the shapes of a layer
    """Plain steps on all of X, no budget of ranks: the spheres ||X_j||_F = sqrt(n_j) are the only constraint."""
    sizes, dim = (20, 20, 20), 12
    X, y = torch.randn(60, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), torch.arange(3).repeat_interleave(20)
    own, step = torch.nn.functional.one_hot(y).double(), 2 * room.guaranteed_step(60, dim, eps=EPS)
    for _ in range(300):  # at half of them the distance is rounding
        X = X + step * room.layer(X, y, eps=EPS).gradient(X, own)
        X = torch.cat([x * (len(x) ** 0.5 / x.norm()) for x in X.split(sizes)])
    assert float(rate_reduction(X, y, eps=EPS)) == pytest.approx(MCR2_OPTIMUM, abs=1e-9)
    assert room.optimum(sizes, dim, eps=EPS).value == pytest.approx(MCR2_OPTIMUM, abs=1e-12)
    for x in X.split(sizes):
        assert torch.linalg.svdvals(x)[:5].tolist() == pytest.approx([5**0.5] * 4 + [0], abs=1e-5)


@pytest.mark.parametrize(("sizes", "budget", "dim", "eps"), [((10, 20, 30), (2, 3, 5), 10, EPS), ((5, 12), (2, 4), 6, 0.8)])
def test_unequal_classes_reach_the_closed_form_and_no_more(generator, unchecked, sizes, budget, dim, eps):
    best = room.optimum(sizes, dim, eps=eps, budget=budget)
    reached = ascents(sizes, budget, dim, eps=eps, generator=generator, starts=4)
    assert reached == pytest.approx(best.value, abs=1e-9)
    assert reached <= best.value + 1e-12


def test_budgets_are_searched_by_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(30):
        k = int(rng.integers(1, 4))
        sizes, dim, eps = rng.integers(1, 12, k).tolist(), int(rng.integers(k, 9)), float(10 ** rng.uniform(-1, 1))
        budget = rng.integers(1, 6, k).tolist()
        allowed = (
            tuple(r + 1 for r in ranks)
            for ranks in np.ndindex(*(min(size, most) for size, most in zip(sizes, budget)))
            if sum(ranks) + k <= dim
        )
        values = {ranks: room.flat_reduction(sizes, ranks, dim, eps=eps) for ranks in allowed}
        best = room.optimum(sizes, dim, eps=eps, budget=budget)
        assert best.value == pytest.approx(max(values.values()), abs=1e-12)
        assert values[best.ranks] == pytest.approx(best.value, abs=1e-12)


def test_one_smaller_singular_value_never_pays():
    """ΔR along (a, b, ..., b) with a + (r - 1) b fixed is largest at an end: rank r - 1, or an even spread."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        alpha, share, total, r = 10 ** rng.uniform(-2, 2), rng.uniform(0.05, 0.95), 10 ** rng.uniform(-1, 2), int(rng.integers(2, 9))
        a = np.linspace(0, total / r, 400)
        b = (total - a) / (r - 1)
        values = sum(m * (np.log1p(alpha * x) - share * np.log1p(alpha * x / share)) / 2 for m, x in ((1, a), (r - 1, b)))
        assert values[1:-1].max() <= max(values[0], values[-1]) + 1e-12


def test_a_small_distortion_does_not_make_every_dimension_pay(generator):
    """The condition ε⁴ < (n_j/n) d²/r² holds at r = 14, yet ten dimensions are better, and an ascent finds more than rank 14 has."""
    sizes, budget, dim, eps = (43, 81), (14, 2), 16, 0.648
    assert room.largest_rank(43, 124, dim, eps=eps) > 22
    full, best = room.flat_reduction(sizes, budget, dim, eps=eps), room.optimum(sizes, dim, eps=eps, budget=budget)
    assert best.ranks == (10, 2)
    assert best.value > full + 0.02
    assert full + 0.01 < ascents(sizes, budget, dim, eps=eps, generator=generator, starts=2) <= best.value + 1e-12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: room.optimum([3, 3], 4, eps=1.0, budget=[1]), "one rank >= 1 for each of 2 classes"),
        (lambda: room.optimum([3, 3], 4, eps=1.0, budget=[1, 0]), "one rank >= 1"),
        (lambda: room.optimum([3, 3], 4, eps=float("nan")), "eps must be positive and finite, got nan"),
        (lambda: room.optimum([3, -3], 4, eps=1.0), "class sizes >= 0"),
        (lambda: room.maximise([3, 3], [1], 4, eps=1.0, generator=torch.Generator()), "ranks must be one a class"),
        (lambda: room.maximise([3, 3], [1, 4], 4, eps=1.0, generator=torch.Generator()), "between 1 and its samples"),
        (lambda: room.maximise([3, 3], [1, 1], 4, eps=-1.0, generator=torch.Generator()), "eps must be positive and finite"),
        (lambda: room.maximise([3, 3], [1, 1], 4, eps=1.0, steps=0, generator=torch.Generator()), "steps must be at least 1, got 0"),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()
