"""Attention: definitions against loops, kernels against the definitions, and a function mode that records the
kernels.
"""

import math

import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.crate import gaussian
from tests.problems.networks import seen_in
from transformer_theory import models
from transformer_theory.models.attention import (
    PLAIN_BFLOAT16_TOKENS,
    PLAIN_TIED_TOKENS,
    Combined,
    Factored,
    Tied,
    attend,
    attention_weights,
    causal_mask,
    dot_scores,
    softmax,
    softmax_attention,
    tied_attention,
    token_scores,
)


def matrices(*, dtype=torch.float64, tokens=(5, 7), grad=True):
    """Queries, keys and values of two sequences and three heads."""
    shapes = ((2, 3, tokens[0], 8), (2, 3, tokens[1], 8), (2, 3, tokens[1], 6))
    return [gaussian(*shape, seed=seed).to(dtype).requires_grad_(grad) for seed, shape in enumerate(shapes)]


# definitions


def test_weights_are_the_softmax_of_scaled_inner_products():
    Q, K = gaussian(3, 4, 5), gaussian(3, 6, 5, seed=1)
    S, A = dot_scores(Q, K, scale=0.7), attention_weights(Q, K, scale=0.7)
    for b in range(3):
        for i in range(4):
            scores = [0.7 * float(Q[b, i] @ K[b, j]) for j in range(6)]
            total = sum(math.exp(score) for score in scores)
            assert_close(S[b, i], torch.tensor(scores, dtype=torch.float64))
            assert_close(
                A[b, i], torch.tensor([math.exp(score) / total for score in scores], dtype=torch.float64)
            )


@each_case("masked", ["all", "causal", "random"])
@each_case("dtype", [torch.float32, torch.float64])
def test_definitions_agree_with_the_fused_kernel(masked, dtype):
    Q, K, V = (x.detach() for x in matrices(dtype=dtype, tokens=(7, 5)))
    visible = torch.rand(2, 1, 7, 5, generator=torch.Generator().manual_seed(0)) > 0.5
    visible[..., 0] = True
    mask = {"all": None, "causal": causal_mask(7, 5), "random": visible}[masked]
    assert_close(attend(Q, K, V, mask=mask), functional.scaled_dot_product_attention(Q, K, V, attn_mask=mask))
    if masked == "causal":
        assert_close(
            attend(Q, K, V, mask=mask), functional.scaled_dot_product_attention(Q, K, V, is_causal=True)
        )


def test_masked_keys_have_no_weight():
    weights = softmax(torch.tensor([[1.0, 3.0, 100.0]]), torch.tensor([[True, True, False]]))
    assert_close(weights, torch.tensor([[1 / (1 + math.e**2), 1 / (1 + math.e**-2), 0.0]]))


def test_permuting_keys_permutes_weights():
    Q, K, order = gaussian(3, 4), gaussian(6, 4, seed=1), torch.tensor([3, 0, 5, 1, 4, 2])
    assert_close(attention_weights(Q, K[order]), attention_weights(Q, K)[:, order])


def test_weights_are_differentiable():
    Q, K = (gaussian(2, 3, 4, seed=seed).requires_grad_() for seed in range(2))
    assert torch.autograd.gradcheck(lambda q, k: attention_weights(q, k, mask=causal_mask(3, 3)), (Q, K))


@each_case("heads", [None, 3])
@each_case("kind", ["combined", "factored", "tied"])
def test_scores_of_tokens_are_bilinear(kind, heads):
    front = () if heads is None else (heads,)
    parameters = {
        "combined": lambda: Combined(gaussian(*front, 5, 5)),
        "factored": lambda: Factored(gaussian(*front, 5, 2), gaussian(*front, 5, 2, seed=1), scale=0.3),
        "tied": lambda: Tied(gaussian(*front, 5, 2), scale=0.3),
    }[kind]()
    x, z = gaussian(2, 4, 5, seed=2), gaussian(2, 6, 5, seed=3)
    W = parameters.bilinear()
    assert W.shape == (*front, 5, 5)
    expected = (
        torch.einsum("bjd,de,bie->bij", x, W, z)
        if heads is None
        else torch.einsum("bjd,hde,bie->bhij", x, W, z)
    )
    assert_close(token_scores(x, parameters, query_tokens=z), expected)
    assert_close(token_scores(x, parameters), token_scores(x, parameters, query_tokens=x))
    if kind == "factored":  # head by head: scale times the inner product of projected keys and queries
        S = torch.einsum("bjd,...dp,bie,...ep->b...ij", x, parameters.K, z, parameters.Q)
        assert_close(expected, 0.3 * S)
    if kind == "tied":
        assert_close(W, W.mT)
        assert float(torch.linalg.eigvalsh(W).min()) > -1e-12


@pytest.mark.usefixtures("unchecked")
@each_case(
    ("call", "message"),
    [
        (
            lambda: attention_weights(torch.zeros(2, 3), torch.zeros(2, 4)),
            r"share p, got \[2, 3\] and \[2, 4\]",
        ),
        (lambda: attention_weights(torch.zeros(2, 3), torch.zeros(0, 3)), "one key"),
        (lambda: attention_weights(torch.zeros(2, 3), torch.zeros(2, 3), mask=torch.ones(2, 2)), "mask"),
        (
            lambda: attention_weights(
                torch.zeros(2, 3), torch.zeros(2, 3), mask=torch.ones(3, 2, dtype=torch.bool)
            ),
            r"\[\*batch, 2, 2\]",
        ),
        (
            lambda: attention_weights(
                torch.zeros(2, 3), torch.zeros(2, 3), mask=torch.tensor([[True, True], [False, False]])
            ),
            r"\[1\]",
        ),
        (lambda: attend(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3, 3)), r"values.*2, got \[3, 3\]"),
        (lambda: token_scores(torch.zeros(2, 3), Tied(torch.zeros(4, 2))), r"tokens.*\[\*batch, tokens, 4\]"),
    ],
)
def test_shapes_that_do_not_fit_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# the kernel of three matrices


@pytest.mark.parametrize("is_causal", [False, True])
def test_softmax_attention_and_its_gradients_are_those_of_the_definition(is_causal):
    given = matrices()
    result = softmax_attention(*given, scale=0.3, is_causal=is_causal)
    expected = attend(*given, scale=0.3, mask=causal_mask(5, 7) if is_causal else None)
    assert_close(result, expected)
    direction = gaussian(*expected.shape, seed=9)
    assert_close(
        torch.autograd.grad(result, given, direction), torch.autograd.grad(expected, given, direction)
    )


@pytest.mark.parametrize("autocast", [False, True])
def test_in_bfloat16_the_kernel_is_the_definition_to_two_roundings(autocast):
    given = matrices(dtype=torch.bfloat16)
    exact = [matrix.detach().double().requires_grad_() for matrix in given]
    expected = attend(*exact, scale=0.3)
    direction = gaussian(*expected.shape, seed=9).bfloat16()
    truth = (expected, *torch.autograd.grad(expected, exact, direction.double()))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        result = softmax_attention(*given, scale=0.3)
    assert result.dtype == torch.bfloat16
    for value, true in zip((result, *torch.autograd.grad(result, given, direction)), truth):
        assert (value.double() - true).norm() < 2 * 2**-8 * true.norm()


@each_case(
    ("dtype", "tokens", "fused"),
    [
        (torch.bfloat16, (5, 7), False),
        (torch.bfloat16, (2, PLAIN_BFLOAT16_TOKENS + 1), True),
        (torch.float32, (5, 7), True),
        (torch.float64, (5, 7), True),
    ],
)
def test_the_kernel_depends_on_dtype_and_length(monkeypatch, dtype, tokens, fused):
    calls = []
    kernel = functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional,
        "scaled_dot_product_attention",
        lambda *args, **options: calls.append(1) or kernel(*args, **options),
    )
    softmax_attention(*matrices(dtype=dtype, tokens=tokens, grad=False), scale=0.3)
    assert bool(calls) == fused


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probes_see_the_kernel_and_do_not_change_the_output(dtype):
    model = models.build(
        lambda: models.ViT.for_tokens(6, 4, 3, dim=12, depth=2, heads=3), torch.Generator().manual_seed(0)
    ).to(dtype)
    tokens = gaussian(5, 6, 4).to(dtype)
    with torch.no_grad():
        before = model(tokens)
    seen = seen_in(model, tokens).of("attention")
    assert [activations.layer for activations in seen] == [0, 1]
    assert all(activations.weights.shape == (5, 3, 7, 7) for activations in seen)
    with torch.no_grad():
        assert torch.equal(model(tokens), before)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = model.float()(tokens.float())
        assert_close(low.float(), model(tokens.float()), atol=0.02, rtol=0.05)


# the kernel of one matrix


@each_case("is_causal", [False, True])
@each_case("shape", [(7, 4), (3, 7, 4), (2, 3, 7, 4), (1, PLAIN_TIED_TOKENS + 1, 4)])
def test_tied_attention_is_attention_of_three_equal_matrices(shape, is_causal):
    W, weight = gaussian(*shape).requires_grad_(), gaussian(*shape, seed=1)
    result = tied_attention(W, scale=0.7, is_causal=is_causal)
    expected = functional.scaled_dot_product_attention(W, W, W, scale=0.7, is_causal=is_causal)
    assert_close(result, expected, atol=1e-13, rtol=0)
    (ours,), (theirs,) = (torch.autograd.grad((weight * out).sum(), W) for out in (result, expected))
    assert_close(ours, theirs, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("is_causal", [False, True])
def test_both_derivatives_of_tied_attention_are_those_of_finite_differences(is_causal):
    W = gaussian(2, 5, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda W: tied_attention(W, scale=0.5, is_causal=is_causal), W)
    assert torch.autograd.gradgradcheck(lambda W: tied_attention(W, scale=0.5, is_causal=is_causal), W)


@each_case("tokens", [5, PLAIN_TIED_TOKENS + 1])
@each_case("is_causal", [False, True])
def test_directional_derivatives_of_tied_attention_are_those_of_finite_differences(is_causal, tokens):
    W, V, h = gaussian(2, tokens, 3), gaussian(2, tokens, 3, seed=1), 1e-5

    def attention(W):
        return tied_attention(W, scale=0.7, is_causal=is_causal)

    values, derivative = torch.func.jvp(attention, (W,), (V,))
    assert_close(values, attention(W), atol=0, rtol=0)
    assert_close(derivative, (attention(W + h * V) - attention(W - h * V)) / (2 * h), atol=1e-8, rtol=0)
    batched = torch.func.vmap(lambda w, v: torch.func.jvp(attention, (w,), (v,))[1])(W, V)
    assert_close(batched, derivative)


def test_forward_mode_differentiates_the_backward_pass():
    W, V, h = gaussian(1, 4, 3), gaussian(1, 4, 3, seed=1), 1e-5

    def cubes(W):
        return tied_attention(W, scale=0.7).pow(3).sum()

    def gradient(W):
        leaf = W.clone().requires_grad_()
        return torch.autograd.grad(cubes(leaf), leaf)[0]

    expected = (gradient(W + h * V) - gradient(W - h * V)) / (2 * h)
    hessian = torch.func.hessian(cubes)(W).flatten(3).flatten(0, 2)
    assert_close((hessian @ V.flatten()).view_as(W), expected, atol=1e-7, rtol=0)
    with torch.autograd.forward_ad.dual_level():  # without create_graph the saved weights are constants
        leaf = torch.autograd.forward_ad.make_dual(W.clone().requires_grad_(), V)
        (dual,) = torch.autograd.grad(cubes(leaf), leaf)
        assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, expected, atol=1e-7, rtol=0)


def test_tied_attention_works_under_vmap_and_grad():
    W = gaussian(4, 5, 3)
    each = torch.func.vmap(torch.func.grad(lambda W: tied_attention(W, scale=0.5).square().sum()))(W)
    leaf = W.clone().requires_grad_()
    tied_attention(leaf, scale=0.5).square().sum().backward()
    assert_close(each, leaf.grad)


def test_the_layout_of_the_matrix_changes_no_bit():
    W = gaussian(2, 5, 3, 4).transpose(1, 2)
    assert torch.equal(tied_attention(W, scale=0.5), tied_attention(W.contiguous(), scale=0.5))


def test_tied_attention_saves_only_its_matrix_and_the_weights():
    W = gaussian(2, 8, 3).requires_grad_()
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda saved: (sizes.append(tuple(saved.shape)), saved)[1], lambda saved: saved
    ):
        out = tied_attention(W, scale=0.5)
    assert sorted(sizes) == [(2, 8, 3), (2, 8, 8)]
    assert out.shape == W.shape


def test_tied_attention_in_bfloat16_ignores_autocast():
    W = gaussian(2, 8, 3).bfloat16()
    plain = tied_attention(W, scale=0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(tied_attention(W, scale=0.5), plain)
    assert plain.dtype == torch.bfloat16
    assert (plain.double() - tied_attention(W.double(), scale=0.5)).norm() < 0.01 * plain.double().norm()


def test_a_function_mode_sees_both_kernels_and_changes_no_bit():
    class Record(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.calls = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.calls.append((func, kwargs))
            return func(*args, **(kwargs or {}))

    W = gaussian(2, 8, 3)
    with Record() as record:
        tied, separate = (
            tied_attention(W, scale=0.5, is_causal=True),
            softmax_attention(W, W, W, scale=0.5, dropout_p=0.0),
        )
    assert (tied_attention, {"scale": 0.5, "is_causal": True}) in record.calls
    assert (softmax_attention, {"scale": 0.5, "is_causal": False, "dropout_p": 0.0}) in record.calls
    assert torch.equal(tied, tied_attention(W, scale=0.5, is_causal=True))
    assert torch.equal(separate, softmax_attention(W, W, W, scale=0.5))
