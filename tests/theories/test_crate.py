"""Compression and sparsification against closed forms, autograd, loops and an independent solver."""

import pytest
import torch
from torch.testing import assert_close

from tests.problems.crate import axis_subspaces, flat_step, flat_subspace_rate, flat_tokens, mssa_by_loops, soft_threshold
from transformer_theory.errors import NotConverged
from transformer_theory.metrics.coding import coding_rate, subspace_coding_rate
from transformer_theory.theories import crate
from transformer_theory.theories.crate.attention import expansion
from transformer_theory.theories.crate.sparse_coding import curvature


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def subspaces(K=3, d=12, p=4, seed=0):
    return crate.random_subspaces(K, d, p, generator=torch.Generator().manual_seed(seed))


def test_flat_tokens_have_the_closed_form():
    tokens, bases = flat_tokens(3, 4, 0.7), axis_subspaces(3, 4)
    assert float(subspace_coding_rate(tokens, bases, eps=0.5)) == pytest.approx(flat_subspace_rate(3, 4, 0.7, 0.5), rel=1e-12)
    stepped = crate.exact_step(tokens, bases, kappa=0.2, eps=0.5)
    assert_close(stepped, flat_tokens(3, 4, flat_step(0.7, 0.5, 0.2)), atol=1e-14, rtol=0)


def test_gradient_is_that_of_autograd_for_any_matrices():
    tokens, bases = gaussian(2, 7, 12).requires_grad_(), gaussian(5, 12, 4, seed=1)
    subspace_coding_rate(tokens, bases, eps=0.4).sum().backward()
    assert_close(crate.rate_gradient(tokens.detach(), bases, eps=0.4), tokens.grad, atol=1e-12, rtol=1e-10)


def test_gradient_is_lipschitz_with_the_stated_constant():
    bases, eps = gaussian(3, 12, 4), 0.5
    L = crate.lipschitz(bases, n=7, eps=eps)
    ratios = []
    for seed in range(20):
        a, step = 0.1 * gaussian(7, 12, seed=seed), gaussian(7, 12, seed=100 + seed)
        for size in (1e-3, 1.0):
            difference = crate.rate_gradient(a + size * step, bases, eps=eps) - crate.rate_gradient(a, bases, eps=eps)
            ratios.append(float(difference.norm() / (size * step.norm())))
    assert max(ratios) <= L
    whole = bases.transpose(0, 1).flatten(1)
    worst = torch.linalg.svd(whole)[0][:, :1] @ gaussian(1, 7)  # at zero the bound is met along the leading direction
    assert float(crate.rate_gradient(1e-6 * worst.T, bases, eps=eps).norm() / (1e-6 * worst.norm())) == pytest.approx(L, rel=1e-6)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_mssa_is_the_explicit_sum(scale):
    tokens, bases = gaussian(5, 12), subspaces()
    assert_close(crate.mssa(tokens, bases, eps=0.6, scale=scale), mssa_by_loops(tokens, bases, eps=0.6, scale=scale))


def test_the_three_forms_are_their_formulas():
    tokens, bases = gaussian(2, 5, 12), subspaces()
    beta = 4 / (5 * 0.6**2)
    paper = torch.stack([(1 - 0.3 * beta) * z + 0.3 * beta * mssa_by_loops(z, bases, eps=0.6, scale=1.0) for z in tokens])
    assert_close(crate.paper_step(tokens, bases, kappa=0.3, eps=0.6), paper)
    tied = torch.stack([z + mssa_by_loops(z, bases, eps=0.6, scale=0.5) / beta for z in tokens])
    assert_close(crate.released_step(tokens, bases, bases.mT), tied)


def test_the_paper_step_claim_measures_that_the_neumann_series_converges(generator):
    (claim,) = (each for each in crate.THEORY.claims if each.id == "crate/paper-step")
    evidence = claim.check(generator)
    assert 0.3 < evidence.detail["beta ||W_k||^2"] < 1
    assert evidence.in_assumptions
    bases = crate.random_subspaces(4, 24, 6, generator=generator)
    alike = torch.ones(20, 24, dtype=torch.float64) / 24**0.5  # beta = 0.3 < 1 does not make the series converge
    assert 0.3 * max(float(torch.linalg.matrix_norm(alike @ U, 2)) ** 2 for U in bases) > 1


def test_paper_step_is_the_gradient_step_to_first_order():
    """Complete subspaces, weak coupling and the Neumann series in place of the softmax: both steps agree up to second order in beta."""
    tokens, bases = gaussian(6, 12), subspaces()
    differences = []
    for eps in (20.0, 40.0):
        beta = expansion(bases, n=6, eps=eps)
        gram = torch.einsum("nd,kdp,kep,me->knm", tokens, bases, bases, tokens)
        neumann = tokens - beta * torch.einsum("knm,md,kdp,kep->ne", gram, tokens, bases, bases)
        exact = crate.rate_gradient(tokens, bases, eps=eps) / beta
        differences.append(float((exact - neumann).norm() / tokens.norm()))
    assert differences[1] < differences[0] / 12  # beta is a quarter, its square a sixteenth
    assert differences[0] < 1e-2


def test_symmetries_and_batches():
    tokens, bases = gaussian(3, 5, 12), subspaces()
    rotation = torch.linalg.qr(gaussian(12, 12, seed=3))[0]
    order = torch.tensor([4, 2, 0, 1, 3])
    for step in crate.forms(bases, n=5, eps=0.5).values():
        assert_close(step(tokens[:, order]), step(tokens)[:, order])
        assert_close(torch.stack([step(z) for z in tokens]), step(tokens))
    rotated = crate.forms(rotation @ bases, n=5, eps=0.5)
    for name, step in crate.forms(bases, n=5, eps=0.5).items():
        assert_close(rotated[name](tokens @ rotation.T), step(tokens) @ rotation.T)


def test_ista_step_is_a_proximal_step_of_autograd():
    tokens, dictionary, code = gaussian(6, 5), gaussian(5, 8, seed=1), gaussian(6, 8, seed=2).relu().requires_grad_()
    smooth = 0.5 * (tokens - code @ dictionary.mT).square().sum()
    smooth.backward()
    expected = (code.detach() - 0.05 * code.grad - 0.05 * 0.3).clamp(min=0)
    assert_close(crate.ista_step(code.detach(), tokens, dictionary, eta=0.05, lam=0.3), expected)


def test_lasso_with_an_orthonormal_dictionary_is_soft_thresholding():
    tokens = gaussian(6, 5)
    dictionary = torch.cat([torch.eye(5), -torch.eye(5)], dim=1).double()
    best = crate.fista(tokens, dictionary, lam=0.4, tol=1e-12)
    assert_close(best, soft_threshold(tokens, 0.4), atol=1e-11, rtol=0)
    assert_close(crate.ista(tokens, dictionary, lam=0.4, steps=60), soft_threshold(tokens, 0.4), atol=1e-11, rtol=0)


def test_fista_finds_the_optimum_of_an_independent_solver():
    import cvxpy as cp

    tokens, dictionary = gaussian(4, 6), gaussian(6, 10, seed=1)
    code = cp.Variable((4, 10), nonneg=True)
    objective = 0.5 * cp.sum_squares(tokens.numpy() - code @ dictionary.numpy().T) + 0.3 * cp.sum(code)
    optimum = cp.Problem(cp.Minimize(objective)).solve(solver=cp.CLARABEL)
    ours = crate.lasso(crate.fista(tokens, dictionary, lam=0.3), tokens, dictionary, lam=0.3)
    assert float(ours) == pytest.approx(optimum, rel=1e-7)
    assert float(ours) <= optimum * (1 + 1e-9)


def test_fista_is_faster_than_ista_and_says_when_it_is_not_done():
    tokens, dictionary = gaussian(20, 12), gaussian(12, 24, seed=1)
    with pytest.raises(NotConverged, match="after 20 steps") as stopped:
        crate.fista(tokens, dictionary, lam=0.1, max_steps=20)
    best = crate.lasso(crate.fista(tokens, dictionary, lam=0.1), tokens, dictionary, lam=0.1)
    fast = crate.lasso(stopped.value.state, tokens, dictionary, lam=0.1)
    slow = crate.lasso(crate.ista(tokens, dictionary, lam=0.1, steps=20), tokens, dictionary, lam=0.1)
    assert 0 < float(fast - best) < float(slow - best)


def test_ista_descends_up_to_the_stated_step_and_not_far_beyond():
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


def test_random_subspaces_are_orthonormal_and_orthogonal_where_there_is_room():
    bases = subspaces(3, 12, 4)
    assert crate.incoherence(bases) < 1e-14
    assert crate.incompleteness(bases) < 1e-14
    crowded = subspaces(5, 12, 4)
    assert crowded.shape == (5, 12, 4)
    assert_close(crowded.mT @ crowded, torch.eye(4, dtype=torch.float64).expand(5, 4, 4))
    assert 0.1 < crate.incoherence(crowded) <= 1


def test_incoherence_and_incompleteness_of_planes_at_an_angle():
    angle = torch.tensor(0.3, dtype=torch.float64)
    bases = torch.stack([torch.tensor([[1.0], [0.0]], dtype=torch.float64), torch.stack([angle.cos(), angle.sin()])[:, None]])
    assert crate.incoherence(bases) == pytest.approx(float(angle.cos()))
    assert crate.incompleteness(bases) == pytest.approx(float(angle.cos()))  # eigenvalues of the sum are 1 +- cos


def test_fitted_subspaces_are_those_of_a_mixture():
    true = subspaces(3, 12, 2, seed=4)
    tokens = torch.cat([gaussian(60, 2, seed=k) @ true[k].T for k in range(3)])
    bases, owner = crate.fit_subspaces(tokens, K=3, p=2, generator=torch.Generator().manual_seed(0))
    assert len({tuple(owner[60 * k : 60 * k + 60].unique().tolist()) for k in range(3)}) == 3
    projected = torch.stack([z @ bases[k] @ bases[k].T for z, k in zip(tokens, owner)])
    assert_close(projected, tokens, atol=1e-10, rtol=0)


def test_objective_is_its_three_terms():
    tokens, bases = gaussian(2, 5, 12).relu(), subspaces()
    whole = crate.sparse_rate_objective(tokens, bases, eps=0.5, lam=0.1)
    count = torch.tensor([float((z > 0).sum()) for z in tokens], dtype=torch.float64)
    assert_close(whole, subspace_coding_rate(tokens, bases, eps=0.5) + 0.1 * count - coding_rate(tokens, eps=0.5))
    assert_close(crate.nonzeros(tokens), count / 60)


@pytest.mark.parametrize("claim", crate.THEORY.claims, ids=lambda claim: claim.id)
def test_claims_hold_and_their_controls_fail_on_twenty_seeds(claim):
    verdict = claim.verify(range(20))
    assert {evidence.verdict for evidence in verdict.evidence} == {"consistent"}
    assert {control.verdict for control in verdict.controls} == {"violated"}


def test_bad_input_is_named(unchecked):
    tokens, bases = gaussian(5, 11), subspaces()
    with pytest.raises(ValueError, match=r"must share d, got \[5, 11\] and \[3, 12, 4\]"):
        crate.mssa(tokens, bases, eps=0.5)
    with pytest.raises(ValueError, match="eps must be positive and finite, got 0"):
        crate.paper_step(gaussian(5, 12), bases, kappa=0.1, eps=0)
    with pytest.raises(ValueError, match=r"must share d, got \[5, 11\] and \[12, 3\]"):
        crate.ista_step(gaussian(5, 3), tokens, gaussian(12, 3), eta=0.1, lam=0.1)
    with pytest.raises(ValueError, match="dictionary must not be zero"):
        crate.fista(tokens, torch.zeros(11, 3, dtype=torch.float64), lam=0.1)
    with pytest.raises(ValueError, match="p=5, d=4"):
        subspaces(2, 4, 5)
