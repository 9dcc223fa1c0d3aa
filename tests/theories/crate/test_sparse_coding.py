"""Sparse coding against closed forms, autograd and an independent solver."""

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.crate import gaussian, soft_threshold
from transformer_theory.core.errors import NotConverged
from transformer_theory.models.crate import sparsification
from transformer_theory.models.crate.sparsification import curvature, ista_step
from transformer_theory.theories import crate
from transformer_theory.theories.crate import sparse_coding


def test_ista_step_is_a_proximal_step_of_autograd():
    tokens, dictionary, code = (
        gaussian(6, 5),
        gaussian(5, 8, seed=1),
        gaussian(6, 8, seed=2).relu().requires_grad_(),
    )
    smooth = 0.5 * (tokens - code @ dictionary.mT).square().sum()
    smooth.backward()
    expected = (code.detach() - 0.05 * code.grad - 0.05 * 0.3).clamp(min=0)
    assert_close(crate.ista_step(code.detach(), tokens, dictionary, eta=0.05, lam=0.3), expected)


def test_lasso_with_an_orthonormal_dictionary_is_soft_thresholding():
    tokens = gaussian(6, 5)
    dictionary = torch.cat([torch.eye(5), -torch.eye(5)], dim=1).double()
    best = crate.fista(tokens, dictionary, lam=0.4, tol=1e-12).code
    assert_close(best, soft_threshold(tokens, 0.4), atol=1e-11, rtol=0)
    assert_close(
        crate.ista(tokens, dictionary, lam=0.4, steps=60), soft_threshold(tokens, 0.4), atol=1e-11, rtol=0
    )


def test_fista_finds_the_optimum_of_an_independent_solver():
    import cvxpy as cp

    tokens, dictionary = gaussian(4, 6), gaussian(6, 10, seed=1)
    code = cp.Variable((4, 10), nonneg=True)
    objective = 0.5 * cp.sum_squares(tokens.numpy() - code @ dictionary.numpy().T) + 0.3 * cp.sum(code)
    optimum = cp.Problem(cp.Minimize(objective)).solve(solver=cp.CLARABEL)
    ours = crate.fista(tokens, dictionary, lam=0.3)
    assert_close(ours.objective.sum(), crate.lasso(ours.code, tokens, dictionary, lam=0.3))
    assert float(ours.objective.sum()) == pytest.approx(optimum, rel=1e-7)
    assert float(ours.objective.sum()) <= optimum * (1 + 1e-9)
    assert_close(ours.gap, sparse_coding.duality_gap(ours.code, tokens, dictionary, lam=0.3))
    assert 0 <= float(ours.gap.sum()) <= 1e-10 * optimum


@each_case(("longer", "stronger"), [(1.0, 1e8), (1.0, 1e-8), (1e-9, 1.0), (1e9, 1.0)])
def test_the_verified_code_does_not_depend_on_units(longer, stronger):
    """Y in another unit scales the code, D in another scales it back, and lambda goes with both."""
    tokens, dictionary = gaussian(5, 8), gaussian(8, 12, seed=1)
    tokens[2] *= 0.1  # every token has its own unit
    best = crate.fista(tokens, dictionary, lam=0.1)
    scaled = crate.fista(longer * tokens, stronger * dictionary, lam=0.1 * longer * stronger)
    assert_close(scaled.objective / longer**2, best.objective, atol=0, rtol=1e-12)
    assert_close(scaled.code * stronger / longer, best.code, atol=1e-12, rtol=0)
    assert scaled.residual <= 1e-10
    assert (scaled.gap <= 1e-10 * scaled.objective).all()


def test_the_gap_bounds_the_distance_to_the_minimum():
    tokens, dictionary = gaussian(20, 12), gaussian(12, 24, seed=1)
    best = crate.fista(tokens, dictionary, lam=0.2, tol=1e-12)
    for steps in (0, 3, 30, 300):
        code = crate.ista(tokens, dictionary, lam=0.2, steps=steps)
        above = (
            torch.stack([crate.lasso(z[None], y[None], dictionary, lam=0.2) for z, y in zip(code, tokens)])
            - best.objective
        )
        gap = sparse_coding.duality_gap(code, tokens, dictionary, lam=0.2)
        assert (gap >= above * (1 - 1e-9)).all()
        assert float(gap.sum()) < 1e3 * float(above.sum())  # the bound is not vacuous
    alone = crate.fista(torch.zeros(2, 12, dtype=torch.float64), dictionary, lam=0.2)
    assert torch.equal(alone.code, torch.zeros(2, 24, dtype=torch.float64))
    assert torch.equal(alone.gap, torch.zeros(2, dtype=torch.float64))


def test_fista_is_faster_than_ista_and_raises_when_it_has_not_converged():
    tokens, dictionary = gaussian(20, 12), gaussian(12, 24, seed=1)
    with pytest.raises(NotConverged, match="after 20 steps") as stopped:
        crate.fista(tokens, dictionary, lam=0.1, max_steps=20)
    best = crate.fista(tokens, dictionary, lam=0.1).objective.sum()
    state = stopped.value.state
    assert isinstance(state, crate.LassoSolution)
    fast = state.objective.sum()
    assert float(fast - best) <= float(state.gap.sum())
    slow = crate.lasso(crate.ista(tokens, dictionary, lam=0.1, steps=20), tokens, dictionary, lam=0.1)
    assert 0 < float(fast - best) < float(slow - best)


def test_ista_descends_up_to_the_stated_step_and_not_at_three_times_it():
    tokens, dictionary = gaussian(20, 12), gaussian(12, 12, seed=1)
    L = curvature(dictionary)

    def curve(eta):
        code, values = tokens.relu(), []
        for _ in range(12):
            values.append(float(crate.lasso(code, tokens, dictionary, lam=0.1)))
            code = crate.ista_step(code, tokens, dictionary, eta=eta, lam=0.1)
        return torch.tensor(values).diff()

    assert (curve(1 / L) <= 0).all()
    assert (curve(3 / L) > 0).any()


def nonnegative_least_squares(tokens, dictionary, lam):
    """The optimum token by token by an active-set method: the l1 norm of a non-negative code is linear, so it
    joins the square.
    """
    from scipy.optimize import nnls

    # 1/2 ||y - D z||^2 + lam 1'z = 1/2 ||b - A z||^2 + const with A'A = D'D and A'b = D'y - lam, solvable if
    # A has full column rank
    gram = dictionary.T @ dictionary
    A = torch.linalg.cholesky(gram).T
    targets = torch.linalg.solve_triangular(A.T, (tokens @ dictionary - lam).T, upper=False).T
    return torch.stack([torch.from_numpy(nnls(A.numpy(), b.numpy())[0]) for b in targets])


def test_fista_finds_the_code_of_an_active_set_method():
    tokens, dictionary = gaussian(6, 12), gaussian(12, 8, seed=1)
    best = nonnegative_least_squares(tokens, dictionary, 0.3)
    assert 0.2 < crate.nonzeros(best) < 0.8
    assert_close(crate.fista(tokens, dictionary, lam=0.3, tol=1e-12).code, best, atol=1e-9, rtol=0)
    L = curvature(dictionary)
    start, allowed = torch.zeros_like(best), 2 * L * best.square().sum() / 101**2
    after = sparsification.fista_steps(start, tokens, dictionary, eta=1 / L, lam=0.3, steps=100)
    distance = crate.lasso(after, tokens, dictionary, lam=0.3) - crate.lasso(
        best, tokens, dictionary, lam=0.3
    )
    assert -1e-12 < float(distance) <= float(allowed)


@pytest.mark.parametrize("few", [True, False])
def test_both_formulas_of_a_step_from_the_tokens_agree(few):
    """Value and gradients, for few tokens (two products with D) and many (one product with A)."""
    tokens, dictionary = (
        gaussian(2 if few else 50, 12).requires_grad_(),
        (0.3 * gaussian(12, 12, seed=1)).requires_grad_(),
    )
    weight = gaussian(*tokens.shape, seed=2)
    product = sparsification.from_tokens(tokens, dictionary, eta=0.1, lam=0.2)
    expected = (tokens + 0.1 * (tokens - tokens @ dictionary.T) @ dictionary - 0.02).relu()
    assert_close(product, expected, atol=1e-13, rtol=0)
    ours = torch.autograd.grad((weight * product).sum(), (tokens, dictionary))
    theirs = torch.autograd.grad((weight * expected).sum(), (tokens, dictionary))
    for one, other in zip(ours, theirs):
        assert_close(one, other, atol=1e-12, rtol=1e-13)


def test_the_first_step_of_fista_is_that_of_ista_and_later_ones_are_faster():
    tokens, dictionary = gaussian(20, 12), gaussian(12, 24, seed=1)
    start, L = torch.zeros(20, 24, dtype=torch.float64), curvature(dictionary)
    for steps in (0, 1):
        assert torch.equal(
            sparsification.fista_steps(start, tokens, dictionary, eta=1 / L, lam=0.1, steps=steps),
            crate.ista(tokens, dictionary, lam=0.1, steps=steps),
        )
    fast = sparsification.fista_steps(start, tokens, dictionary, eta=1 / L, lam=0.1, steps=20)
    slow = crate.ista(tokens, dictionary, lam=0.1, steps=20)
    assert crate.lasso(fast, tokens, dictionary, lam=0.1) < crate.lasso(slow, tokens, dictionary, lam=0.1)


def test_the_overcomplete_code_is_two_steps_from_zero():
    tokens, dictionary = gaussian(3, 5, 12), gaussian(12, 30, seed=1) / 6
    eta = 0.5 * sparse_coding.largest_step(dictionary)
    assert_close(
        sparsification.overcomplete_code(tokens, dictionary, eta=eta, lam=0.2),
        crate.ista(tokens, dictionary, lam=0.2, steps=2, eta=eta),
    )


def test_the_largest_step_is_that_of_the_largest_singular_value_and_longer_ones_are_refused(unchecked):
    dictionary = torch.diag(torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64))
    assert sparse_coding.largest_step(dictionary) == pytest.approx(1 / 9)
    tokens = gaussian(4, 3)
    crate.ista(tokens, dictionary, lam=0.1, steps=2, eta=1 / 9)
    with pytest.raises(ValueError, match=r"0\.111111, .* got 0\.12"):
        crate.ista(tokens, dictionary, lam=0.1, steps=2, eta=0.12)
    with pytest.raises(ValueError, match="eta must be positive and finite"):
        crate.ista(tokens, dictionary, lam=0.1, steps=2, eta=-0.1)


def test_bad_input_is_named(unchecked):
    with pytest.raises(ValueError, match=r"must share d, got \[5, 11\] and \[12, 3\]"):
        crate.ista_step(gaussian(5, 3), gaussian(5, 11), gaussian(12, 3), eta=0.1, lam=0.1)
    with pytest.raises(ValueError, match="dictionary must not be zero"):
        crate.fista(gaussian(5, 11), torch.zeros(11, 3, dtype=torch.float64), lam=0.1)
    with pytest.raises(ValueError, match="lam must be positive and finite, got 0"):
        crate.fista(gaussian(5, 12), gaussian(12, 3), lam=0.0)
    half = [tensor.half() for tensor in (gaussian(5, 3), gaussian(5, 12), gaussian(12, 3))]
    with pytest.raises(ValueError, match=r"tokens .* float16"):
        ista_step(*half, eta=0.1, lam=0.1)
    wide = [tensor.float() for tensor in half]
    assert_close(crate.ista_step(*half, eta=0.1, lam=0.1), ista_step(*wide, eta=0.1, lam=0.1))
    with pytest.raises(ValueError, match="tokens and dictionary must share a dtype"):
        crate.fista(gaussian(5, 12).float(), gaussian(12, 3), lam=0.1)


def test_values_that_are_not_finite_are_refused_at_entry(unchecked):
    tokens, dictionary = gaussian(5, 12), gaussian(12, 16, seed=1)
    for value in (torch.nan, torch.inf):
        broken = tokens.clone()
        broken[1, 2] = value
        bad_dictionary = dictionary.clone()
        bad_dictionary[1, 2] = value
        start = torch.zeros(5, 16, dtype=torch.float64)
        start[0, 0] = value
        for solve in (lambda *args, **kwargs: crate.ista(*args, steps=2, **kwargs), crate.fista):
            with pytest.raises(ValueError, match="tokens must be finite, got 1 NaN or infinite"):
                solve(broken, dictionary, lam=0.1)
            with pytest.raises(ValueError, match="dictionary must be finite, got 1 NaN or infinite"):
                solve(tokens, bad_dictionary, lam=0.1)
            with pytest.raises(ValueError, match="start must be finite, got 1 NaN or infinite"):
                solve(tokens, dictionary, lam=0.1, start=start)


@each_case(
    ("call", "error", "message"),
    [
        (
            lambda Y, D: crate.ista(Y, D, lam=0.1, steps=1.5),
            TypeError,
            r"steps must be an integer, got float 1\.5",
        ),
        (lambda Y, D: crate.ista(Y, D, lam=0.1, steps=-1), ValueError, "steps must be at least 0, got -1"),
        (
            lambda Y, D: crate.ista(Y, D, lam=-0.1, steps=1),
            ValueError,
            "lam must be finite and at least 0, got -0.1",
        ),
        (
            lambda Y, D: crate.ista(Y, D, lam=float("nan"), steps=1),
            ValueError,
            "lam must be finite and at least 0, got nan",
        ),
        (
            lambda Y, D: crate.fista(Y, D, lam=0.1, max_steps=2.5),
            TypeError,
            r"max_steps must be an integer, got float 2\.5",
        ),
        (
            lambda Y, D: crate.fista(Y, D, lam=0.1, tol=float("nan")),
            ValueError,
            "tol must be positive and finite, got nan",
        ),
        (
            lambda Y, D: crate.fista(Y, D, lam=0.1, start=D),
            ValueError,
            r"start .* each token, \[5, 16\], got \[12, 16\]",
        ),
    ],
)
def test_settings_out_of_range_are_named(call, error, message, unchecked):
    with pytest.raises(error, match=message):
        call(gaussian(5, 12), gaussian(12, 16, seed=1))
