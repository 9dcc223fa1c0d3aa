"""Causal compression against the definition by prefixes, autograd and the forms without a mask."""

import pytest
import torch
from torch.testing import assert_close

from tests.problems.crate import gaussian, subspaces
from transformer_theory.metrics.coding import subspace_coding_rate
from transformer_theory.theories import crate

EPS = 0.6


def rate_of(prefix, bases, context):
    """R^c with beta of ``context`` tokens: a sequence padded with zeros, which add nothing."""
    padded = torch.cat([prefix, prefix.new_zeros(context - len(prefix), prefix.shape[1])])
    return subspace_coding_rate(padded, bases, eps=EPS)


def test_added_rates_are_differences_of_rates_of_prefixes():
    tokens, bases = gaussian(6, 12), subspaces(4, 12, 5)
    rates = torch.stack([rate_of(tokens[:i], bases, 9) for i in range(7)])
    assert_close(crate.added_rates(tokens, bases, eps=EPS, context=9), rates.diff(), atol=1e-13, rtol=1e-12)
    whole = crate.added_rates(tokens, bases, eps=EPS, context=6).sum()
    assert_close(whole, subspace_coding_rate(tokens, bases, eps=EPS))


def test_the_gradient_is_that_of_every_tokens_own_term():
    tokens, bases = gaussian(2, 6, 12), gaussian(4, 12, 5, seed=1)
    found = crate.causal_rate_gradient(tokens, bases, eps=EPS, context=8)
    for i in range(6):
        own = tokens.clone().requires_grad_()
        crate.added_rates(own, bases, eps=EPS, context=8)[:, i].sum().backward()
        assert_close(found[:, i], own.grad[:, i], atol=1e-12, rtol=1e-10)
    last = crate.rate_gradient(tokens, bases, eps=EPS)[:, -1]
    assert_close(crate.causal_rate_gradient(tokens, bases, eps=EPS, context=6)[:, -1], last)


def test_masked_steps_are_those_of_every_prefix():
    """Token i after the causal step is the last token of the plain step on tokens 1 ... i; beta is held by the size of kappa and eps."""
    tokens, bases = gaussian(5, 12), subspaces()
    output = gaussian(3, 4, 12, seed=3)
    paper = crate.causal_paper_step(tokens, bases, kappa=0.3, eps=EPS, context=5)
    released = crate.causal_released_step(tokens, bases, output, 0.1)
    for i in range(1, 6):
        eps = EPS * (5 / i) ** 0.5
        assert_close(paper[i - 1], crate.paper_step(tokens[:i], bases, kappa=0.3, eps=eps)[-1])
        assert_close(released[i - 1], crate.released_step(tokens[:i], bases, output, 0.1)[-1])


def test_token_statistics_of_every_prefix():
    coords = gaussian(2, 3, 5, 4)
    pi = crate.causal_memberships(coords, temperature=torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64))
    taken = crate.causal_shrinkage(coords, pi, eps=EPS)
    for i in range(1, 6):
        alone = crate.memberships(coords[:, :, :i], temperature=torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64))
        assert_close(pi[..., i - 1], alone[..., -1])
        assert_close(taken[:, :, i - 1], crate.shrinkage(coords[:, :, :i], pi[..., :i], eps=EPS)[:, :, -1])


def test_a_sequence_beyond_the_context_is_refused():
    with pytest.raises(ValueError, match="context must count at least the tokens of a sequence, 5, got 4"):
        crate.causal_exact_step(gaussian(5, 12), subspaces(), kappa=0.1, eps=EPS, context=4)
    block = crate.CausalPaperAttention(12, heads=3, head_dim=4, context=4)
    with pytest.raises(ValueError, match="context must count at least"):
        block(gaussian(1, 5, 12).float())
