"""The kernels of softmax attention agree with one another and with the formula, and probes see them all."""

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from tests.problems.networks import seen_in
from transformer_theory import models
from transformer_theory.models import softmax_attention
from transformer_theory.models.softmax_attention import LONGEST


def matrices(*, dtype=torch.float64, tokens=(5, 7), grad=True):
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, tokens[0], 8), (2, 3, tokens[1], 8), (2, 3, tokens[1], 6))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad) for shape in shapes]


def formula(query, key, value, scale):
    weights = (scale * torch.einsum("bhqp,bhkp->bhqk", query, key)).exp()
    return weights @ value / weights.sum(-1, keepdim=True)


def test_output_and_gradients_are_those_of_the_formula():
    given = matrices()
    found = softmax_attention.softmax_attention(*given, scale=0.3)
    expected = formula(*given, 0.3)
    assert_close(found, expected)
    direction = torch.randn_like(expected)
    assert_close(torch.autograd.grad(found, given, direction), torch.autograd.grad(expected, given, direction))


@pytest.mark.parametrize("autocast", [False, True])
def test_in_bfloat16_it_is_the_formula_to_two_roundings(autocast):
    given = matrices(dtype=torch.bfloat16)
    exact = [matrix.detach().double().requires_grad_() for matrix in given]
    expected = formula(*exact, 0.3)
    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    truth = (expected, *torch.autograd.grad(expected, exact, direction.double()))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        found = softmax_attention.softmax_attention(*given, scale=0.3)
    assert found.dtype == torch.bfloat16
    for mine, true in zip((found, *torch.autograd.grad(found, given, direction)), truth):
        assert (mine.double() - true).norm() < 2 * 2**-8 * true.norm()


@pytest.mark.parametrize(
    ("dtype", "tokens", "fused"),
    [
        (torch.bfloat16, (5, 7), False),
        (torch.bfloat16, (2, LONGEST + 1), True),
        (torch.float32, (5, 7), True),
        (torch.float64, (5, 7), True),
    ],
)
def test_which_kernel_is_taken(monkeypatch, dtype, tokens, fused):
    calls = []
    kernel = functional.scaled_dot_product_attention
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda *args, **options: calls.append(1) or kernel(*args, **options))
    softmax_attention.softmax_attention(*matrices(dtype=dtype, tokens=tokens, grad=False), scale=0.3)
    assert bool(calls) == fused


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probes_see_it_and_leave_the_output_as_it_is(dtype):
    model = models.build(lambda: models.ViT.for_tokens(6, 4, 3, dim=12, depth=2, heads=3), torch.Generator().manual_seed(0)).to(dtype)
    tokens = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.no_grad():
        before = model(tokens)
    seen = seen_in(model, tokens).of("attention")
    assert [observation.layer for observation in seen] == [0, 1]
    assert all(observation.weights.shape == (5, 3, 7, 7) for observation in seen)
    with torch.no_grad():
        assert torch.equal(model(tokens), before)


def test_the_network_in_bfloat16_follows_that_in_float32():
    model = models.build(lambda: models.ViT.for_tokens(6, 4, 3, dim=12, depth=2, heads=3), torch.Generator().manual_seed(0))
    tokens = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(tokens)
    assert_close(low.float(), model(tokens).detach(), atol=0.02, rtol=0.05)
