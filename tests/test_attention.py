"""Attention: the parts against loops and torch's fused kernel."""

import math
from functools import partial

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from transformer_theory.models import attention
from transformer_theory.models.attention import Combined, Factored, Tied, attend, attention_weights


def normal(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("masked", ["all", "causal", "random"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_explicit_equals_fused(generator, masked, dtype):
    Q, K, V = (normal(2, 3, n, d, generator=generator).to(dtype) for n, d in ((7, 8), (5, 8), (5, 6)))
    allowed = {"all": None, "causal": attention.causal(7, 5), "random": torch.rand(2, 1, 7, 5, generator=generator) > 0.5}[masked]
    if masked == "random":
        allowed[..., 0] = True
    fused = functional.scaled_dot_product_attention(Q, K, V, attn_mask=allowed)
    assert_close(attend(Q, K, V, allowed=allowed), fused)


def test_causal_is_torchs_is_causal(generator):
    Q, K, V = (normal(4, 6, 5, generator=generator) for _ in range(3))
    fused = functional.scaled_dot_product_attention(Q, K, V, is_causal=True)
    assert_close(attend(Q, K, V, allowed=attention.causal(6, 6)), fused)


@pytest.mark.parametrize(
    ("score", "one"),
    [
        (attention.dot, lambda q, k, i, j: q @ k),
        (attention.scaled_dot, lambda q, k, i, j: q @ k / math.sqrt(len(q))),
        (attention.negative_magnitude, lambda q, k, i, j: -abs(q @ k)),
        (attention.positional(torch.arange(42.0, dtype=torch.float64).reshape(6, 7)), lambda q, k, i, j: torch.tensor(7.0 * i + j)),
        (
            attention.combined(attention.dot, attention.positional(torch.arange(42.0, dtype=torch.float64).reshape(6, 7))),
            lambda q, k, i, j: q @ k + 7.0 * i + j,
        ),
    ],
)
def test_scores_are_their_formula(generator, score, one):
    Q, K = normal(3, 4, 5, generator=generator), normal(3, 6, 5, generator=generator)
    S = score(Q, K)
    assert S.shape == (3, 4, 6)
    for b in range(3):
        for i in range(4):
            for j in range(6):
                assert_close(S[b, i, j], one(Q[b, i], K[b, j], i, j).double())


def test_normalisers_on_a_row_by_hand():
    S = torch.tensor([[[1.0, 3.0, 3.0 - 1e-12, -2.0]]], dtype=torch.float64)
    allowed = torch.tensor([[True, True, True, True]])
    first_three = torch.tensor([[True, False, True, True]])
    half = torch.tensor([0, 0.5, 0.5, 0], dtype=torch.float64)
    assert attention.hardmax(S, allowed)[0, 0].tolist() == [0, 1, 0, 0]
    assert_close(attention.hardmax(S, allowed, tolerance=1e-9)[0, 0], half)
    assert attention.hardmax(S, first_three)[0, 0].tolist() == [0, 0, 1, 0]
    assert attention.linear(S, first_three)[0, 0].tolist() == [1, 0, 3.0 - 1e-12, -2]
    assert_close(attention.relu_over_n(S, first_three)[0, 0], torch.tensor([1 / 3, 0, 1, 0], dtype=torch.float64))
    assert_close(attention.uniform(S, first_three)[0, 0], torch.tensor([1 / 3, 0, 1 / 3, 1 / 3], dtype=torch.float64))
    e = math.e
    assert_close(attention.softmax(S, torch.tensor([[True, True, False, False]]))[0, 0, 0], torch.tensor(1 / (1 + e * e)).double())


def test_softmax_of_growing_scores_tends_to_hardmax(generator):
    Q, K = normal(5, 4, generator=generator), normal(6, 4, generator=generator)
    hard = attention_weights(Q, K, normalise=partial(attention.hardmax, tolerance=1e-9))
    distances = [float((attention_weights(scale * Q, K) - hard).abs().max()) for scale in (1, 10, 1e4)]
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 1e-12


def test_gumbel_draws_with_the_probabilities_of_softmax(generator):
    S = torch.tensor([0.0, 1.0, 2.0, 5.0], dtype=torch.float64).expand(40_000, 4)
    allowed = torch.tensor([True, True, True, False]).expand(40_000, 4)
    drawn = attention.straight_through_gumbel(generator=generator)(S, allowed)
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert bool((drawn.sum(-1) == 1).all())
    expected = torch.cat([S[0, :3].softmax(0), torch.zeros(1, dtype=torch.float64)])
    assert float((drawn.mean(0) - expected).abs().max()) < 4 * 0.5 / math.sqrt(40_000)  # four standard errors


def test_gumbel_has_the_gradient_of_the_soft_sample():
    S = torch.tensor([[0.3, -0.2, 0.9]], dtype=torch.float64, requires_grad=True)
    allowed = attention.all_keys(1, 3)
    v = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    normalise = attention.straight_through_gumbel(generator=torch.Generator().manual_seed(3), temperature=0.7)
    (normalise(S, allowed) @ v).sum().backward()
    exponential = torch.empty_like(S, requires_grad=False).exponential_(generator=torch.Generator().manual_seed(3))
    again = S.detach().clone().requires_grad_()
    ((((again - exponential.log()) / 0.7).softmax(-1)) @ v).sum().backward()
    assert_close(S.grad, again.grad)
    assert float(S.grad.abs().max()) > 0.01


def test_gumbel_is_reproducible_and_leaves_the_global_generator_alone():
    S, allowed = torch.zeros(50, 4), attention.all_keys(50, 4)
    before = torch.get_rng_state()
    draws = [attention.straight_through_gumbel(generator=torch.Generator().manual_seed(seed))(S, allowed) for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("kind", ["combined", "factored", "tied"])
def test_score_is_bilinear_key_first(generator, kind, heads):
    """score(key token x, query token z) = x^T W z, entry [query, key]."""
    front = () if heads is None else (heads,)
    matrix = lambda *shape: normal(*front, *shape, generator=generator)  # noqa: E731
    parameters = {
        "combined": lambda: Combined(matrix(5, 5)),
        "factored": lambda: Factored(matrix(5, 2), matrix(5, 2), scale=0.3),
        "tied": lambda: Tied(matrix(5, 2), scale=0.3),
    }[kind]()
    x, z = normal(2, 4, 5, generator=generator), normal(2, 6, 5, generator=generator)
    W = parameters.bilinear()
    assert W.shape == (*front, 5, 5)
    S = attention.token_scores(x, parameters, query_tokens=z)
    expected = torch.einsum("bjd,de,bie->bij", x, W, z) if heads is None else torch.einsum("bjd,hde,bie->bhij", x, W, z)
    assert_close(S, expected)
    assert_close(attention.dot(parameters.queries(z), parameters.keys(x)), expected)
    if kind == "tied":
        assert_close(W, W.mT)


def test_self_attention_is_the_default_of_token_scores(generator):
    x, K, Q = normal(4, 5, generator=generator), normal(5, 2, generator=generator), normal(5, 2, generator=generator)
    parameters = Factored(K, Q)
    assert_close(attention.token_scores(x, parameters), attention.token_scores(x, parameters, query_tokens=x))


def test_weights_are_differentiable(generator):
    Q, K = (normal(2, 3, 4, generator=generator).requires_grad_() for _ in range(2))
    assert torch.autograd.gradcheck(lambda q, k: attention_weights(q, k, allowed=attention.causal(3, 3)), (Q, K))


def test_permuting_keys_permutes_weights(generator):
    Q, K = normal(3, 4, generator=generator), normal(6, 4, generator=generator)
    order = torch.randperm(6, generator=generator)
    for normalise in (attention.softmax, attention.hardmax, attention.linear, attention.relu_over_n, attention.uniform):
        assert_close(attention_weights(Q, K[order], normalise=normalise), attention_weights(Q, K, normalise=normalise)[:, order])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: attention_weights(torch.zeros(2, 3), torch.zeros(2, 4)), r"must share d, got \[2, 3\] and \[2, 4\]"),
        (lambda: attention_weights(torch.zeros(2, 3), torch.zeros(0, 3)), "at least one key"),
        (lambda: attention_weights(torch.zeros(2, 3), torch.zeros(2, 3), allowed=torch.ones(2, 2)), "boolean mask"),
        (lambda: attention_weights(torch.zeros(2, 3), torch.zeros(2, 3), allowed=torch.ones(3, 2, dtype=torch.bool)), r"\[\*batch, 2, 2\]"),
        (
            lambda: attention_weights(torch.zeros(2, 3), torch.zeros(2, 3), allowed=torch.tensor([[True, True], [False, False]])),
            r"\[1\]",
        ),
        (lambda: attend(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3, 3)), r"one row a key, 2, got \[3, 3\]"),
        (lambda: attention.hardmax(torch.zeros(1, 1), torch.ones(1, 1).bool(), tolerance=-1.0), "tolerance must be >= 0"),
        (lambda: attention.straight_through_gumbel(generator=torch.Generator(), temperature=0.0), "temperature must be positive"),
        (lambda: attention.combined(), "at least one score"),
        (lambda: attention.positional(torch.zeros(2, 2))(torch.zeros(3, 1), torch.zeros(2, 1)), "must cover 3 queries and 2 keys"),
        (lambda: attention.token_scores(torch.zeros(2, 3), Tied(torch.zeros(4, 2))), r"tokens must have shape \[\*batch, tokens, 4\]"),
    ],
)
def test_bad_input_says_what_to_do(call, says):
    with pytest.raises(ValueError, match=says):
        call()
