"""Attention of one matrix against the three-matrix kernel of torch, its derivatives, and what watches it."""

import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

from tests.problems.crate import gaussian
from transformer_theory.models.tied_attention import USUALLY, tied_attention


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", [(7, 4), (3, 7, 4), (2, 3, 7, 4), (1, USUALLY + 1, 4)])
def test_it_is_attention_with_three_equal_matrices(shape, is_causal):
    W, weight = gaussian(*shape).requires_grad_(), gaussian(*shape, seed=1)
    found = tied_attention(W, scale=0.7, is_causal=is_causal)
    expected = functional.scaled_dot_product_attention(W, W, W, scale=0.7, is_causal=is_causal)
    assert_close(found, expected, atol=1e-13, rtol=0)
    (ours,), (theirs,) = (torch.autograd.grad((weight * out).sum(), W) for out in (found, expected))
    assert_close(ours, theirs, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("is_causal", [False, True])
def test_both_derivatives_are_those_of_finite_differences(is_causal):
    W = gaussian(2, 5, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda W: tied_attention(W, scale=0.5, is_causal=is_causal), W)
    assert torch.autograd.gradgradcheck(lambda W: tied_attention(W, scale=0.5, is_causal=is_causal), W)


def test_it_may_be_mapped_and_differentiated_by_torch_func():
    W = gaussian(4, 5, 3)
    each = torch.func.vmap(torch.func.grad(lambda W: tied_attention(W, scale=0.5).square().sum()))(W)
    given = W.clone().requires_grad_()
    tied_attention(given, scale=0.5).square().sum().backward()
    assert_close(each, given.grad)


def test_a_layout_by_tokens_gives_the_same_bits():
    W = gaussian(2, 5, 3, 4).transpose(1, 2)
    assert torch.equal(tied_attention(W, scale=0.5), tied_attention(W.contiguous(), scale=0.5))


def test_it_keeps_its_matrix_and_the_weights_alone():
    W = gaussian(2, 8, 3).requires_grad_()
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: (sizes.append(tuple(saved.shape)), saved)[1], lambda saved: saved):
        out = tied_attention(W, scale=0.5)
    assert sorted(sizes) == [(2, 8, 3), (2, 8, 8)]
    assert out.shape == W.shape


def test_bfloat16_stays_bfloat16_also_under_autocast():
    W = gaussian(2, 8, 3).bfloat16()
    plain = tied_attention(W, scale=0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(tied_attention(W, scale=0.5), plain)
    assert plain.dtype == torch.bfloat16
    assert (plain.double() - tied_attention(W.double(), scale=0.5)).norm() < 0.01 * plain.double().norm()


def test_a_watching_mode_sees_the_call_and_changes_no_bit():
    class Watch(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen.append((func, kwargs))
            return func(*args, **(kwargs or {}))

    W = gaussian(2, 8, 3)
    with Watch() as watch:
        watched = tied_attention(W, scale=0.5, is_causal=True)
    assert (tied_attention, {"scale": 0.5, "is_causal": True}) in watch.seen
    assert torch.equal(watched, tied_attention(W, scale=0.5, is_causal=True))
