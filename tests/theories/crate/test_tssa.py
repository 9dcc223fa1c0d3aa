"""Token statistics against loops, autograd and the rate they bound."""

import torch
from torch.testing import assert_close
from transformer_theory.models.crate.network.subspace_attention import coordinates

from tests.problems.crate import axis_subspaces, flat_tokens, gaussian, memberships_by_loops, subspaces, tssa_gradient_by_loops
from transformer_theory.metrics.coding import subspace_coding_rate
from transformer_theory.theories import crate


def test_memberships_and_gradient_are_their_sums():
    tokens, bases = gaussian(5, 12), subspaces()
    pi = crate.memberships(coordinates(tokens, bases), temperature=2.5)
    assert_close(pi, memberships_by_loops(tokens, bases, temperature=2.5))
    assert_close(pi.sum(0), torch.ones(5, dtype=torch.float64))
    assert_close(crate.tssa_gradient(tokens, bases, pi, eps=0.6), tssa_gradient_by_loops(tokens, bases, pi, eps=0.6))


def test_gradient_is_that_of_autograd_at_fixed_memberships():
    tokens, bases = gaussian(2, 7, 12).requires_grad_(), gaussian(5, 12, 4, seed=1)
    pi = gaussian(2, 5, 7, seed=2).softmax(-2)
    crate.variational_rate(tokens, bases, pi, eps=0.4).sum().backward()
    assert_close(crate.tssa_gradient(tokens.detach(), bases, pi, eps=0.4), tokens.grad, atol=1e-13, rtol=1e-11)


def test_rate_of_full_members_is_the_rate_in_the_subspaces_and_the_bound_is_met_where_moments_are_diagonal():
    tokens, bases = gaussian(2, 7, 12), subspaces()
    everyone = torch.ones(2, 3, 7, dtype=torch.float64)
    assert_close(crate.membership_rate(tokens, bases, everyone, eps=0.5), subspace_coding_rate(tokens, bases, eps=0.5))
    assert (crate.variational_rate(tokens, bases, everyone, eps=0.5) > subspace_coding_rate(tokens, bases, eps=0.5)).all()
    flat, axes = flat_tokens(3, 4, 0.7), axis_subspaces(3, 4)
    alike = torch.ones(3, 4, dtype=torch.float64)
    assert_close(crate.variational_rate(flat, axes, alike, eps=0.5), crate.membership_rate(flat, axes, alike, eps=0.5))


def test_where_moments_are_diagonal_the_step_is_the_exact_one():
    tokens, bases = flat_tokens(3, 4, 0.7), axis_subspaces(3, 4)
    gradient = crate.tssa_gradient(tokens, bases, torch.ones(3, 4, dtype=torch.float64), eps=0.5)
    assert_close(gradient, crate.rate_gradient(tokens, bases, eps=0.5))


def test_step_goes_along_the_gradient_with_the_tokens_own_memberships():
    tokens, bases = gaussian(2, 5, 12), subspaces()
    pi = crate.memberships(coordinates(tokens, bases), temperature=1.0)
    stepped = crate.tssa_step(tokens, bases, kappa=0.3, eps=0.6)
    assert_close(stepped, tokens - 0.3 * crate.tssa_gradient(tokens, bases, pi, eps=0.6))
    order = torch.tensor([4, 2, 0, 1, 3])
    assert_close(crate.tssa_step(tokens[:, order], bases, kappa=0.3, eps=0.6), stepped[:, order])


def test_a_channel_without_energy_is_no_nan():
    tokens = torch.zeros(2, 5, 12, dtype=torch.float64)
    assert_close(crate.tssa_step(tokens, subspaces(), kappa=0.3, eps=0.6), tokens)


def test_a_subspace_without_members_takes_no_part():
    """Memberships of nothing but the first two subspaces: rate, bound and gradient are those of the two, with finite gradients."""
    tokens, bases = gaussian(5, 12), subspaces()
    pi = torch.cat([gaussian(2, 5, seed=2).softmax(0), torch.zeros(1, 5, dtype=torch.float64)]).requires_grad_()
    for quantity in (crate.tssa_gradient, crate.variational_rate, crate.membership_rate):
        assert_close(quantity(tokens, bases, pi, eps=0.6), quantity(tokens, bases[:2], pi[:2], eps=0.6))
    crate.variational_rate(tokens, bases, pi, eps=0.6).backward()
    assert pi.grad.isfinite().all()


def test_an_eps_with_the_dimension_of_the_tokens_is_another_by_a_root():
    """log(1 + d/eps^2 x) of the paper is log(1 + p/eps^2 x) here, with eps sqrt(p/d)."""
    tokens, bases = gaussian(5, 12), subspaces()
    pi = crate.memberships(coordinates(tokens, bases))
    size = pi.sum(-1)
    moments = (pi.unsqueeze(-1) * coordinates(tokens, bases).square()).sum(-2) / size.unsqueeze(-1)
    theirs = 0.5 * (size / 5 * torch.log1p(12 / 0.6**2 * moments).sum(-1)).sum()
    assert_close(crate.variational_rate(tokens, bases, pi, eps=0.6 * (4 / 12) ** 0.5), theirs)
