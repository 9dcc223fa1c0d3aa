"""Steps of compression against closed forms, autograd, loops and definitions: exact, paper, released, token
statistics, causal forms.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.crate import (
    axis_subspaces,
    flat_step,
    flat_subspace_rate,
    flat_tokens,
    gaussian,
    memberships_by_loops,
    mssa_by_loops,
    subspaces,
    tssa_gradient_by_loops,
)
from transformer_theory.metrics.coding import subspace_coding_rate
from transformer_theory.models import crate as blocks
from transformer_theory.models.crate import compression
from transformer_theory.models.crate.compression import coordinates, expansion, rate_gradient
from transformer_theory.theories import crate
from transformer_theory.theories.crate import approximations, steps, unrolled

EPS = 0.6


def test_flat_tokens_have_the_closed_form():
    tokens, bases = flat_tokens(3, 4, 0.7), axis_subspaces(3, 4)
    assert float(subspace_coding_rate(tokens, bases, eps=0.5)) == pytest.approx(
        flat_subspace_rate(3, 4, 0.7, 0.5), rel=1e-12
    )
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
            difference = crate.rate_gradient(a + size * step, bases, eps=eps) - crate.rate_gradient(
                a, bases, eps=eps
            )
            ratios.append(float(difference.norm() / (size * step.norm())))
    assert max(ratios) <= L
    whole = bases.transpose(0, 1).flatten(1)
    # at zero the bound is met along the leading direction
    worst = torch.linalg.svd(whole)[0][:, :1] @ gaussian(1, 7)
    assert float(
        crate.rate_gradient(1e-6 * worst.T, bases, eps=eps).norm() / (1e-6 * worst.norm())
    ) == pytest.approx(L, rel=1e-6)


@each_case("eps", [1.0, 0.3, 0.1, 0.03, 0.01])
def test_float32_keeps_three_digits_of_the_gradient_of_collapsed_tokens(eps):
    """17 tokens of which two are distinct, layer-normalised, in bases as networks start: the identity is lost
    to float32 early.
    """
    torch.manual_seed(0)
    bases = blocks.ExactAttention(192, heads=3, head_dim=64).subspaces().detach()
    tokens = torch.nn.functional.layer_norm(gaussian(2, 192).float(), (192,))[torch.arange(17) % 2]
    exact = crate.rate_gradient(tokens.double(), bases.double(), eps=eps)
    found = crate.rate_gradient(tokens, bases, eps=eps)
    assert found.dtype == torch.float32
    assert (found - exact).norm() < 1e-3 * exact.norm()
    causal = compression.causal_rate_gradient(tokens, bases, eps=eps, context=17)
    exact = compression.causal_rate_gradient(tokens.double(), bases.double(), eps=eps, context=17)
    assert (causal - exact).norm() < 1e-3 * exact.norm()
    added = steps.added_rates(tokens, bases, eps=eps, context=17)
    assert_close(
        added.double(),
        steps.added_rates(tokens.double(), bases.double(), eps=eps, context=17),
        atol=0,
        rtol=1e-6,
    )


def test_long_collapsed_tokens_do_not_stop_a_network():
    torch.manual_seed(0)
    block = blocks.ExactAttention(192, heads=3, head_dim=64)
    tokens = (1e3 * gaussian(1, 192).float()).expand(1, 17, 192).clone().requires_grad_()
    change = block(tokens)
    exact = crate.rate_gradient(tokens.detach().double(), block.subspaces().detach().double(), eps=block.eps)
    assert_close(change.detach().double(), -block.kappa * exact, atol=0, rtol=1e-4)
    change.square().sum().backward()
    assert tokens.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_mssa_is_the_explicit_sum(scale):
    tokens, bases = gaussian(5, 12), subspaces()
    assert_close(
        crate.mssa(tokens, bases, eps=0.6, scale=scale), mssa_by_loops(tokens, bases, eps=0.6, scale=scale)
    )


def test_the_three_forms_are_their_formulas():
    tokens, bases = gaussian(2, 5, 12), subspaces()
    beta = 4 / (5 * 0.6**2)
    paper = torch.stack(
        [(1 - 0.3 * beta) * z + 0.3 * beta * mssa_by_loops(z, bases, eps=0.6, scale=1.0) for z in tokens]
    )
    assert_close(crate.paper_step(tokens, bases, kappa=0.3, eps=0.6), paper)
    tied = torch.stack([z + mssa_by_loops(z, bases, eps=0.6, scale=0.5) / beta for z in tokens])
    assert_close(crate.released_step(tokens, bases, bases.mT), tied)


def test_paper_step_is_the_gradient_step_to_first_order():
    """Complete subspaces, weak coupling and the Neumann series in place of the softmax: both steps agree up
    to second order in beta.
    """
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


def test_steps_are_equivariant_and_act_sequence_by_sequence():
    tokens, bases = gaussian(3, 5, 12), subspaces()
    rotation = torch.linalg.qr(gaussian(12, 12, seed=3))[0]
    order = torch.tensor([4, 2, 0, 1, 3])
    for step in unrolled.forms(bases, n=5, eps=0.5).values():
        assert_close(step(tokens[:, order]), step(tokens)[:, order])
        assert_close(torch.stack([step(z) for z in tokens]), step(tokens))
    rotated = unrolled.forms(rotation @ bases, n=5, eps=0.5)
    for name, step in unrolled.forms(bases, n=5, eps=0.5).items():
        assert_close(rotated[name](tokens @ rotation.T), step(tokens) @ rotation.T)


@each_case("value", [0, -1.0, float("nan"), float("inf")])
def test_step_sizes_and_distortion_must_be_positive_and_finite(value):
    tokens, bases, pi = gaussian(5, 12), subspaces(), torch.full((3, 5), 1 / 3, dtype=torch.float64)
    for call in (
        lambda: crate.mssa(tokens, bases, eps=value),
        lambda: crate.rate_gradient(tokens, bases, eps=value),
        lambda: steps.tssa_gradient(tokens, bases, pi, eps=value),
        lambda: steps.variational_rate(tokens, bases, pi, eps=value),
        lambda: crate.causal_exact_step(tokens, bases, kappa=0.1, eps=value, context=5),
        lambda: blocks.PaperAttention(12, heads=3, head_dim=4, eps=value),
        lambda: blocks.ExactAttention(12, heads=3, head_dim=4, eps=value),
    ):
        with pytest.raises(ValueError, match=f"eps .*{value}"):
            call()
    for step in (crate.paper_step, crate.exact_step, crate.tssa_step):
        with pytest.raises(ValueError, match=f"kappa .*{value}"):
            step(tokens, bases, kappa=value, eps=0.5)
    with pytest.raises(ValueError, match=f"sigma .*{value}"):
        approximations.denoise(tokens, bases, sigma=value)
    with pytest.raises(ValueError, match=f"step .*{value}"):
        blocks.TokenStatisticsAttention(12, heads=3, head_dim=4, step=value)


def test_shapes_and_dtypes_are_named(unchecked):
    tokens, bases = gaussian(5, 11), subspaces()
    for step in (crate.mssa, crate.rate_gradient):
        with pytest.raises(ValueError, match=r"must share d, got \[5, 11\] and \[3, 12, 4\]"):
            step(tokens, bases, eps=0.5)
    with pytest.raises(ValueError, match=r"tokens .* float16; pass tokens.float\(\)"):
        rate_gradient(gaussian(5, 12).half(), bases.half(), eps=0.5)
    with pytest.raises(ValueError, match="tokens and bases must share a dtype"):
        crate.rate_gradient(gaussian(5, 12).float(), bases, eps=0.5)
    with pytest.raises(ValueError, match="positive definite"):
        crate.rate_gradient(torch.full((5, 12), 1e12), torch.ones(3, 12, 4), eps=0.5)


# token statistics


def test_memberships_and_gradient_are_their_sums():
    tokens, bases = gaussian(5, 12), subspaces()
    pi = compression.memberships(coordinates(tokens, bases), temperature=2.5)
    assert_close(pi, memberships_by_loops(tokens, bases, temperature=2.5))
    assert_close(pi.sum(0), torch.ones(5, dtype=torch.float64))
    assert_close(
        steps.tssa_gradient(tokens, bases, pi, eps=0.6), tssa_gradient_by_loops(tokens, bases, pi, eps=0.6)
    )


def test_gradient_is_that_of_autograd_at_fixed_memberships():
    tokens, bases = gaussian(2, 7, 12).requires_grad_(), gaussian(5, 12, 4, seed=1)
    pi = gaussian(2, 5, 7, seed=2).softmax(-2)
    steps.variational_rate(tokens, bases, pi, eps=0.4).sum().backward()
    assert_close(
        steps.tssa_gradient(tokens.detach(), bases, pi, eps=0.4), tokens.grad, atol=1e-13, rtol=1e-11
    )


def test_full_membership_gives_the_rate_and_diagonal_moments_meet_the_bound():
    tokens, bases = gaussian(2, 7, 12), subspaces()
    everyone = torch.ones(2, 3, 7, dtype=torch.float64)
    assert_close(
        steps.membership_rate(tokens, bases, everyone, eps=0.5), subspace_coding_rate(tokens, bases, eps=0.5)
    )
    assert (
        steps.variational_rate(tokens, bases, everyone, eps=0.5)
        > subspace_coding_rate(tokens, bases, eps=0.5)
    ).all()
    flat, axes = flat_tokens(3, 4, 0.7), axis_subspaces(3, 4)
    alike = torch.ones(3, 4, dtype=torch.float64)
    assert_close(
        steps.variational_rate(flat, axes, alike, eps=0.5), steps.membership_rate(flat, axes, alike, eps=0.5)
    )


def test_where_moments_are_diagonal_the_step_is_the_exact_one():
    tokens, bases = flat_tokens(3, 4, 0.7), axis_subspaces(3, 4)
    gradient = steps.tssa_gradient(tokens, bases, torch.ones(3, 4, dtype=torch.float64), eps=0.5)
    assert_close(gradient, crate.rate_gradient(tokens, bases, eps=0.5))


def test_step_goes_along_the_gradient_with_the_tokens_own_memberships():
    tokens, bases = gaussian(2, 5, 12), subspaces()
    pi = compression.memberships(coordinates(tokens, bases), temperature=1.0)
    stepped = crate.tssa_step(tokens, bases, kappa=0.3, eps=0.6)
    assert_close(stepped, tokens - 0.3 * steps.tssa_gradient(tokens, bases, pi, eps=0.6))
    order = torch.tensor([4, 2, 0, 1, 3])
    assert_close(crate.tssa_step(tokens[:, order], bases, kappa=0.3, eps=0.6), stepped[:, order])


def test_a_channel_without_energy_gives_no_nan():
    tokens = torch.zeros(2, 5, 12, dtype=torch.float64)
    assert_close(crate.tssa_step(tokens, subspaces(), kappa=0.3, eps=0.6), tokens)


def test_a_subspace_without_members_contributes_nothing():
    """Memberships of nothing but the first two subspaces: rate, bound and gradient are those of the two, with
    finite gradients.
    """
    tokens, bases = gaussian(5, 12), subspaces()
    pi = torch.cat(
        [gaussian(2, 5, seed=2).softmax(0), torch.zeros(1, 5, dtype=torch.float64)]
    ).requires_grad_()
    for quantity in (steps.tssa_gradient, steps.variational_rate, steps.membership_rate):
        assert_close(quantity(tokens, bases, pi, eps=0.6), quantity(tokens, bases[:2], pi[:2], eps=0.6))
    steps.variational_rate(tokens, bases, pi, eps=0.6).backward()
    assert pi.grad.isfinite().all()


def test_the_papers_eps_differs_by_the_root_of_a_ratio_of_dimensions():
    """log(1 + d/eps^2 x) of the paper is log(1 + p/eps^2 x) here, with eps sqrt(p/d)."""
    tokens, bases = gaussian(5, 12), subspaces()
    pi = compression.memberships(coordinates(tokens, bases))
    size = pi.sum(-1)
    moments = (pi.unsqueeze(-1) * coordinates(tokens, bases).square()).sum(-2) / size.unsqueeze(-1)
    theirs = 0.5 * (size / 5 * torch.log1p(12 / 0.6**2 * moments).sum(-1)).sum()
    assert_close(steps.variational_rate(tokens, bases, pi, eps=0.6 * (4 / 12) ** 0.5), theirs)


# causal forms


def rate_of(prefix, bases, context):
    """R^c with beta of ``context`` tokens: a sequence padded with zeros, which add nothing."""
    padded = torch.cat([prefix, prefix.new_zeros(context - len(prefix), prefix.shape[1])])
    return subspace_coding_rate(padded, bases, eps=EPS)


def test_added_rates_are_differences_of_rates_of_prefixes():
    tokens, bases = gaussian(6, 12), subspaces(4, 12, 5)
    rates = torch.stack([rate_of(tokens[:i], bases, 9) for i in range(7)])
    assert_close(steps.added_rates(tokens, bases, eps=EPS, context=9), rates.diff(), atol=1e-13, rtol=1e-12)
    whole = steps.added_rates(tokens, bases, eps=EPS, context=6).sum()
    assert_close(whole, subspace_coding_rate(tokens, bases, eps=EPS))


def test_the_gradient_is_that_of_every_tokens_own_term():
    tokens, bases = gaussian(2, 6, 12), gaussian(4, 12, 5, seed=1)
    gradient = compression.causal_rate_gradient(tokens, bases, eps=EPS, context=8)
    for i in range(6):
        leaf = tokens.clone().requires_grad_()
        steps.added_rates(leaf, bases, eps=EPS, context=8)[:, i].sum().backward()
        assert_close(gradient[:, i], leaf.grad[:, i], atol=1e-12, rtol=1e-10)
    last = crate.rate_gradient(tokens, bases, eps=EPS)[:, -1]
    assert_close(compression.causal_rate_gradient(tokens, bases, eps=EPS, context=6)[:, -1], last)


def test_masked_steps_are_those_of_every_prefix():
    """Token i after the causal step is the last token of the plain step on tokens 1 ... i, with eps scaled so
    that beta is the same.
    """
    tokens, bases = gaussian(5, 12), subspaces()
    output = gaussian(3, 4, 12, seed=3)
    paper = steps.causal_paper_step(tokens, bases, kappa=0.3, eps=EPS, context=5)
    released = steps.causal_released_step(tokens, bases, output, 0.1)
    for i in range(1, 6):
        eps = EPS * (5 / i) ** 0.5
        assert_close(paper[i - 1], crate.paper_step(tokens[:i], bases, kappa=0.3, eps=eps)[-1])
        assert_close(released[i - 1], crate.released_step(tokens[:i], bases, output, 0.1)[-1])


def test_token_statistics_of_every_prefix():
    coords = gaussian(2, 3, 5, 4)
    pi = compression.causal_memberships(
        coords, temperature=torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    )
    change = compression.causal_shrinkage(coords, pi, eps=EPS)
    for i in range(1, 6):
        alone = compression.memberships(
            coords[:, :, :i], temperature=torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
        )
        assert_close(pi[..., i - 1], alone[..., -1])
        assert_close(
            change[:, :, i - 1], compression.shrinkage(coords[:, :, :i], pi[..., :i], eps=EPS)[:, :, -1]
        )


def test_a_sequence_longer_than_the_context_is_refused():
    with pytest.raises(ValueError, match=r"context .* 5, got 4"):
        crate.causal_exact_step(gaussian(5, 12), subspaces(), kappa=0.1, eps=EPS, context=4)
    block = blocks.CausalPaperAttention(12, heads=3, head_dim=4, context=4)
    with pytest.raises(ValueError, match="context"):
        block(gaussian(1, 5, 12).float())


def test_counts_must_be_integers(unchecked):
    tokens, bases = gaussian(5, 12), subspaces()
    for value, text in ((7.5, r"float 7\.5"), ("7", "str '7'")):
        for step in (crate.causal_exact_step, steps.causal_paper_step):
            with pytest.raises(TypeError, match=f"context must be an integer, got {text}"):
                step(tokens, bases, kappa=0.1, eps=EPS, context=value)
        with pytest.raises(TypeError, match=f"n must be an integer, got {text}"):
            crate.lipschitz(bases, n=value, eps=EPS)
        with pytest.raises(TypeError, match=f"layers must be an integer, got {text}"):
            unrolled.unroll(tokens[None], bases, lambda z: z, eps=EPS, layers=value)
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        crate.lipschitz(bases, n=0, eps=EPS)


def test_numpy_float32_and_integers_are_accepted(unchecked):
    tokens, bases = gaussian(5, 12), subspaces()
    expected = crate.exact_step(tokens, bases, kappa=0.1, eps=0.5)
    assert_close(crate.exact_step(tokens.numpy(), bases.numpy(), kappa=0.1, eps=0.5), expected)
    assert crate.paper_step(tokens.float(), bases.float(), kappa=0.1, eps=0.5).dtype == torch.float32
    whole = np.arange(24).reshape(2, 12)
    assert_close(
        crate.exact_step(whole, bases, kappa=0.1, eps=0.5),
        crate.exact_step(torch.from_numpy(whole).double(), bases, kappa=0.1, eps=0.5),
    )
