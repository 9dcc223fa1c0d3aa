"""Margins in more digits than float64 has, against fractions, and the residuals that rest on them."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from transformer_theory.core.errors import Infeasible, NotConverged
from transformer_theory.theories import attention_svm as room
from transformer_theory.theories.attention_svm.solvers.exact_margins import EPSILON, SURE, beyond, surely_beyond


def exact(d, W, z, b) -> Fraction:
    """One margin above its right-hand side, as the floats say it."""
    terms = (Fraction(x) * Fraction(w) * Fraction(y) for x, row in zip(d.tolist(), W.tolist()) for w, y in zip(row, z.tolist()))
    return sum(terms, Fraction(0)) - Fraction(float(b))


def spread(rng, *shape):
    return rng.normal(size=shape) * 10.0 ** rng.integers(-12, 12, size=shape)


def test_margins_that_cancel_are_right_to_the_last_digit_or_within_the_bound():
    rng = np.random.default_rng(0)
    rounded, wrong = 0, 0
    for _ in range(40):
        m, dx, dz = rng.integers(1, 9, size=3)
        d, W, z = spread(rng, m, dx), spread(rng, dx, dz), spread(rng, m, dz)
        b = ((d @ W) * z).sum(1)  # the margin to rounding: what is above it is rounding alone
        above, lost = beyond(d, W, z, b)
        lengths = np.linalg.norm(d, axis=1) * np.linalg.norm(W) * np.linalg.norm(z, axis=1)
        assert (lost <= 1e-24 * lengths).all()
        for c in range(m):
            truth = exact(d[c], W, z[c], b[c])
            assert abs(Fraction(above[c]) - truth) <= Fraction(lost[c]) + abs(truth) * Fraction(EPSILON)
            rounded += truth != 0
            wrong += abs(truth) > Fraction(lost[c])
    assert wrong > 0.5 * rounded > 20  # the margins to rounding would not pass


def test_one_and_a_hundred_dimensions_and_zeros():
    rng = np.random.default_rng(1)
    for dx, dz in ((1, 1), (100, 1), (1, 130)):
        d, W, z = spread(rng, 2, dx), spread(rng, dx, dz), spread(rng, 2, dz)
        d[1] = 0
        above, lost = beyond(d, W, z, np.ones(2))
        for c in range(2):
            truth = exact(d[c], W, z[c], 1.0)
            assert abs(Fraction(above[c]) - truth) <= Fraction(lost[c]) + abs(truth) * Fraction(EPSILON)
        assert (above[1], lost[1]) == (-1, 0)


def nearly_equal_tokens(closeness, seed):
    generator = torch.Generator().manual_seed(seed)
    x, z = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in ((4, 4, 6), (4, 6)))
    x[0, 1] = x[0, 0] + closeness
    return room.constraints(x, z, torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize("closeness", [1e-5, 1e-8, 1e-10, 1e-13])
def test_no_margin_is_violated_by_more_than_the_residual(closeness):
    """Norms of 1e4 to 1e14, where rounded margins may all be one while the true ones are not."""
    for seed in (5, 8, 9):
        c = nearly_equal_tokens(closeness, seed)
        solve = {room.frobenius_max_margin: 0.0, room.nuclear_max_margin: SURE}
        for solver, sure in solve.items():
            try:
                found = solver(c)
            except NotConverged as refusal:
                found = refusal.state
            if found is None:
                continue
            short = max(-exact(d, found.W, z, 1.0) for d, z in zip(c.difference, c.query))
            assert short <= Fraction(found.kkt) * (1 + Fraction(1e-9)) + Fraction(sure)
        batch = room.frobenius_max_margins(c.problem(None))
        if batch.solved[0]:
            short = max(-exact(d, batch.W[0], z, 1.0) for d, z in zip(c.difference, c.query))
            assert short <= Fraction(float(batch.kkt[0])) * (1 + Fraction(1e-9)) + Fraction(SURE)


def test_batches_take_more_digits_where_rounding_could_be_seen():
    c = nearly_equal_tokens(1e-10, 5)
    near = room.frobenius_max_margins(c.problem(None), tol=1e-6)
    above, lost = surely_beyond(c.difference[None], near.W, c.query[None], c.rhs[None])
    assert (lost > 0).all()
    for w, d, z in zip(above[0].tolist(), c.difference, c.query):
        assert w == pytest.approx(float(exact(d, near.W[0], z, 1.0)), rel=1e-12, abs=1e-18)
    short = c.difference[None], near.W / near.norm, c.query[None], c.rhs[None]
    assert not surely_beyond(*short)[1].any()


def of(differences):
    rows = torch.tensor(differences, dtype=torch.float64)
    return room.Constraints(rows, torch.ones(len(rows), 1, dtype=torch.float64))


@pytest.mark.parametrize("small", [1e-4, 1e-7, 1e-9, 1e-10])
def test_constraints_of_different_scales_are_solved_where_the_entries_of_W_can_be_told(small):
    solution = room.frobenius_max_margin(of([[1, 0], [-1, small]]))
    assert solution.kkt < 1e-15
    assert_close(solution.W[:, 0], torch.tensor([1, 2 / small], dtype=torch.float64), rtol=1e-15, atol=0)


def test_weights_that_cancel_to_rounding_only_prove_no_more_than_a_norm():
    """W = (1, 2e15) meets these; the weights say that no shorter one does."""
    c = of([[1, 0], [-1, 1e-15]])
    assert_close(c.margins(torch.tensor([[1.0], [2e15]], dtype=torch.float64)), torch.ones(2, dtype=torch.float64))
    with pytest.raises(Infeasible, match=r"no W of norm below 1\.9\d\de\+15 selects these tokens.*up to rounding") as caught:
        room.frobenius_max_margin(c)
    assert caught.value.certificate.norm_at_least == pytest.approx(2e15, rel=0.01)
    with pytest.raises(Infeasible, match=r"no W selects these tokens.*combine to 0 >= 1;") as caught:
        room.frobenius_max_margin(of([[1, 0.3], [-1, -0.3]]))
    assert caught.value.certificate.norm_at_least > 1e15


def test_more_constraints_than_dimensions_are_infeasible_whatever_the_rounding():
    """Three directions in the plane around zero, perturbed: they combine to zero with positive weights nonetheless."""
    for seed in range(5):
        corners = torch.tensor([[1.0, 0.0], [-0.5, 0.8], [-0.6, -0.7]], dtype=torch.float64)
        noise = torch.randn(3, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        with pytest.raises(Infeasible, match=r"no W selects these tokens.*combine to 0 >= 1;"):
            room.frobenius_max_margin(of((corners + 0.05 * noise).tolist()))
