"""Compression against closed forms, autograd, loops and the definitions."""

import pytest
import torch
from torch.testing import assert_close
from transformer_theory.models.crate.network.subspace_attention import expansion

from tests.problems.crate import axis_subspaces, flat_step, flat_subspace_rate, flat_tokens, gaussian, mssa_by_loops, subspaces
from transformer_theory.metrics.coding import subspace_coding_rate
from transformer_theory.theories import crate


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


@pytest.mark.parametrize("eps", [1.0, 0.3, 0.1, 0.03, 0.01])
def test_float32_keeps_three_digits_of_the_gradient_of_collapsed_tokens(eps):
    """17 tokens of which two are distinct, layer-normalised, in bases as networks start: the identity is lost to float32 early."""
    torch.manual_seed(0)
    bases = crate.ExactAttention(192, heads=3, head_dim=64).subspaces().detach()
    tokens = torch.nn.functional.layer_norm(gaussian(2, 192).float(), (192,))[torch.arange(17) % 2]
    exact = crate.rate_gradient(tokens.double(), bases.double(), eps=eps)
    found = crate.rate_gradient(tokens, bases, eps=eps)
    assert found.dtype == torch.float32
    assert (found - exact).norm() < 1e-3 * exact.norm()
    causal = crate.causal_rate_gradient(tokens, bases, eps=eps, context=17)
    exact = crate.causal_rate_gradient(tokens.double(), bases.double(), eps=eps, context=17)
    assert (causal - exact).norm() < 1e-3 * exact.norm()
    added = crate.added_rates(tokens, bases, eps=eps, context=17)
    assert_close(added.double(), crate.added_rates(tokens.double(), bases.double(), eps=eps, context=17), atol=0, rtol=1e-6)


def test_long_collapsed_tokens_do_not_stop_a_network():
    torch.manual_seed(0)
    block = crate.ExactAttention(192, heads=3, head_dim=64)
    tokens = (1e3 * gaussian(1, 192).float()).expand(1, 17, 192).clone().requires_grad_()
    change = block(tokens)
    exact = crate.rate_gradient(tokens.detach().double(), block.subspaces().detach().double(), eps=block.eps)
    assert_close(change.detach().double(), -block.kappa * exact, atol=0, rtol=1e-4)
    change.square().sum().backward()
    assert tokens.grad.isfinite().all()


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


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_step_sizes_and_distortion_must_be_positive_and_finite(value):
    tokens, bases, pi = gaussian(5, 12), subspaces(), torch.full((3, 5), 1 / 3, dtype=torch.float64)
    for call in (
        lambda: crate.mssa(tokens, bases, eps=value),
        lambda: crate.rate_gradient(tokens, bases, eps=value),
        lambda: crate.tssa_gradient(tokens, bases, pi, eps=value),
        lambda: crate.variational_rate(tokens, bases, pi, eps=value),
        lambda: crate.causal_exact_step(tokens, bases, kappa=0.1, eps=value, context=5),
        lambda: crate.PaperAttention(12, heads=3, head_dim=4, eps=value),
        lambda: crate.ExactAttention(12, heads=3, head_dim=4, eps=value),
    ):
        with pytest.raises(ValueError, match=f"eps must be positive and finite, got {value}; it is the distortion, squared inside"):
            call()
    for step in (crate.paper_step, crate.exact_step, crate.tssa_step):
        with pytest.raises(ValueError, match=f"kappa must be positive and finite, got {value}"):
            step(tokens, bases, kappa=value, eps=0.5)
    with pytest.raises(ValueError, match=f"sigma must be positive and finite, got {value}"):
        crate.denoise(tokens, bases, sigma=value)
    with pytest.raises(ValueError, match=f"step must be positive and finite, got {value}"):
        crate.TokenStatisticsAttention(12, heads=3, head_dim=4, step=value)


def test_shapes_and_dtypes_are_named(unchecked):
    tokens, bases = gaussian(5, 11), subspaces()
    for step in (crate.mssa, crate.rate_gradient):
        with pytest.raises(ValueError, match=r"must share d, got \[5, 11\] and \[3, 12, 4\]"):
            step(tokens, bases, eps=0.5)
    with pytest.raises(ValueError, match=r"tokens on a CPU must be float32 or float64, got float16; pass tokens.float\(\)"):
        crate.mssa(gaussian(5, 12).half(), bases.half(), eps=0.5)
    with pytest.raises(ValueError, match="tokens and bases must share a dtype"):
        crate.rate_gradient(gaussian(5, 12).float(), bases, eps=0.5)
    with pytest.raises(ValueError, match="must be finite and keep its identity"):
        crate.rate_gradient(torch.full((5, 12), 1e12), torch.ones(3, 12, 4), eps=0.5)
