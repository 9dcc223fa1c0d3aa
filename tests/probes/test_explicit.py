"""Attention that is written out is seen, what only looks like it is not."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.networks import Keep, built, seen_in, tokens
from transformer_theory.probes import NoAttention, probe


def sdpa(module, q, k, v):
    return functional.scaled_dot_product_attention(q, k, v)


def timm(module, q, k, v):
    attention = (q * module.scale) @ k.transpose(-2, -1)
    return module.drop(attention.softmax(dim=-1)) @ v


def separate_softmax(module, q, k, v):
    return torch.matmul(module.drop(module.soft(torch.matmul(q, k.mT) / 2.0)), v)


def einsum(module, q, k, v):
    scores = torch.einsum("bhid, bhjd -> bhij", q, k) * module.scale
    return torch.einsum("b h i j, b h j d -> b h i d", functional.softmax(scores, -1), v)


def einsum_tokens_first(module, q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k).mul_(module.scale), dim=3)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).transpose(1, 2)


def folded(module, q, k, v):
    shape = q.shape
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.baddbmm(torch.zeros(1, 1, 1), q, k.mT, beta=0, alpha=module.scale)
    return torch.bmm(functional.dropout(scores.softmax(-1), 0.1, module.training), v).view(shape)


def masked(module, q, k, v):
    blocked = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
    scores = module.scale * (q @ k.mT)
    scores = scores.masked_fill_(blocked, torch.finfo(scores.dtype).min)
    return functional.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v


WAYS = (sdpa, timm, separate_softmax, einsum, einsum_tokens_first, folded, masked)


class Attention(nn.Module):
    """timm's attention: one matrix for queries, keys and values; ``way`` is how the rest is written."""

    def __init__(self, way, dim=8, heads=2):
        super().__init__()
        self.way, self.num_heads, self.scale = way, heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.drop, self.soft = nn.Dropout(0.1), nn.Softmax(dim=-1)
        with torch.no_grad():
            self.qkv.weight.mul_(3)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(self.way(self, q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attn, self.mlp = attention, nn.Linear(8, 8)

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.mlp(x)


def network(way) -> nn.Module:
    return built(lambda: nn.Sequential(*(Block(Attention(way)) for _ in range(2)), nn.Softmax(-1)))


@each_case("way", WAYS[1:])
def test_written_out_attention_is_seen_as_the_kernel_is(way):
    """Same weights, queries, keys and values in the same places; heads and masks as well."""
    x = tokens(3, 5, 8)
    keep = seen_in(network(way).eval(), x)
    options = {"is_causal": True} if way is masked else {}
    reference = seen_in(
        network(lambda module, q, k, v: functional.scaled_dot_product_attention(q, k, v, **options)).eval(), x
    )  # another way of the same
    assert [(seen.kind, seen.name, seen.layer) for seen in keep.seen] == [
        (s.kind, s.name, s.layer) for s in reference.seen
    ]
    for seen, expected in zip(keep.of("attention"), reference.of("attention"), strict=True):
        assert seen.weights.shape == (3, 2, 5, 5)
        assert_close(seen.weights, expected.weights)
        assert_close(seen.value, expected.value)
        assert_close(seen.key, expected.key)
        assert_close(seen.query @ seen.key.mT, expected.query @ expected.key.mT * (0.5 if way is timm else 1))
        assert (seen.mask is None) == (way is not masked)
        if way is masked:
            assert torch.equal(seen.mask, expected.mask.expand(3, 2, 5, 5))
    for seen, expected in zip(keep.of("features"), reference.of("features"), strict=True):
        assert_close(seen.after_attention, expected.after_attention)


@each_case("way", WAYS)
def test_nothing_changes(way):
    """Outputs, gradients and random state in training, with dropout."""
    results = []
    for probed in (True, False):
        model = network(way).train()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            with probe(model, [Keep()]) if probed else contextlib.nullcontext():
                out = model(tokens(3, 5, 8))
            out.square().sum().backward()
            results.append(
                [out, torch.get_rng_state(), *(parameter.grad for parameter in model.parameters())]
            )
    assert all(torch.equal(a, b) for a, b in zip(*results))


@each_case("way", WAYS)
def test_the_bilinear_form_is_found_in_the_projections(way):
    for seen in seen_in(network(way).eval(), tokens(3, 5, 8)).of("attention"):
        scores = torch.einsum("bjd,hde,bie->bhij", seen.tokens, seen.bilinear, seen.tokens)
        log, blocked = seen.weights.log(), 2 if way is masked else 5
        # centred over keys and queries: what the biases add drops out
        differences = (scores - log)[..., -2:, :blocked]
        differences = differences - differences.mean(-1, keepdim=True)
        assert_close(
            differences, differences.mean(-2, keepdim=True).expand_as(differences), rtol=0, atol=2e-4
        )
        assert float(scores.std()) > 0.5


def rotary(module, q, k, v):
    turn = torch.stack(
        [
            torch.linalg.matrix_exp(
                i * torch.tensor([[0.0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 2], [0, 0, -2, 0]])
            )
            for i in range(5)
        ]
    )
    q, k = (torch.einsum("bhtd,tde->bhte", x, turn) for x in (q, k))
    return sdpa(module, q, k, v)


def relative(module, q, k, v):
    bias = -(torch.arange(5)[:, None] - torch.arange(5)).abs().float()
    return (q @ k.mT * module.scale + bias).softmax(-1) @ v


def relative_in_the_kernel(module, q, k, v):
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=-(torch.arange(5)[:, None] - torch.arange(5)).abs().float()
    )


def temperature(module, q, k, v):
    return (q @ k.mT * torch.tensor([1.0, 2.0])[:, None, None]).softmax(-1) @ v


def normalised(module, q, k, v):
    return timm(module, functional.normalize(q, dim=-1), functional.normalize(k, dim=-1), v)


@each_case("way", [rotary, relative, relative_in_the_kernel, temperature, normalised])
def test_scores_that_are_no_bilinear_form_have_none(way):
    """Weights are seen; W is not claimed."""
    seen = seen_in(network(way).eval(), tokens(3, 5, 8)).of("attention")
    assert [one.weights.shape for one in seen] == [(3, 2, 5, 5)] * 2
    assert all(one.bilinear is None for one in seen)


class Router(nn.Module):
    """A mixture of experts: each token's gates weigh the experts' outputs."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4), nn.Parameter(torch.randn(4, 8, 8))

    def forward(self, x):
        gates = self.gate(x).softmax(-1)
        outputs = torch.einsum("bsd,edf->bsef", x, self.experts)
        return (gates.unsqueeze(-2) @ outputs).squeeze(-2)


class Dispatch(Router):
    """The same in products of three-dimensional tensors: slots made of tokens."""

    def forward(self, x):
        scores = torch.bmm(x, self.experts[:1].expand(len(x), 8, 8))
        return torch.bmm(scores.softmax(-1), self.experts[:1].expand(len(x), 8, 8))


class Pooling(nn.Module):
    """Softmax pooling: a learned score for each token."""

    def __init__(self):
        super().__init__()
        self.score, self.query = nn.Linear(8, 1), nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, x):
        one = self.score(x).mT.softmax(-1) @ x
        return one + (self.query.expand(len(x), 1, 8) @ x.mT).softmax(-1) @ x


class SoftWords(nn.Module):
    """Probabilities of words, and the mean embedding under them."""

    def __init__(self):
        super().__init__()
        self.words = nn.Parameter(torch.randn(11, 8))

    def forward(self, x):
        return functional.softmax(x @ self.words.mT, -1) @ self.words


class TalkingHeads(nn.Module):
    """The weights of heads are mixed: what acts on the values is no softmax."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(2, 2))

    def forward(self, x):
        q = x.unflatten(-1, (2, 4)).transpose(1, 2)
        weights = torch.einsum("gh,bhqk->bgqk", self.mix, (q @ q.mT).softmax(-1))
        return (weights @ q).transpose(1, 2).flatten(2)


class OverQueries(nn.Module):
    """Slots compete for tokens: the softmax is over the other axis."""

    def forward(self, x):
        return (x @ x.mT).softmax(1) @ x


@each_case("kind", [Router, Dispatch, Pooling, SoftWords, TalkingHeads, OverQueries])
def test_what_only_looks_like_attention_is_not_taken_for_it(kind):
    model = built(kind)
    with (
        pytest.raises(NoAttention, match=r"softmax\(Q K\^T\) V written out .*; [12] other softmaxes"),
        probe(model, [Keep()]),
    ):
        model(tokens(3, 5, 8))
    both = nn.Sequential(Block(Attention(timm)), model, nn.Softmax(-1))
    assert [seen.name for seen in seen_in(both, tokens(3, 5, 8)).of("attention")] == ["0.attn"]


def test_time_first_and_several_windows():
    """[time, batch * heads] as fairseq has it, and windows in front of the heads as Swin has them."""

    class TimeFirst(nn.Module):
        def forward(self, x):
            q = x.reshape(len(x), -1, 4).transpose(0, 1)
            return torch.bmm((torch.bmm(q, q.mT) / 2).softmax(-1), q).transpose(0, 1).reshape(x.shape)

    class Windows(nn.Module):
        def forward(self, x):
            q = x.unflatten(1, (2, 3)).unflatten(-1, (2, 4)).transpose(2, 3)  # [batch, windows, heads, 3, 4]
            scores = (q @ q.mT).flatten(0, 1) + torch.zeros(1, 1, 3, 3)
            return (scores.view(4, 2, 2, 3, 3).softmax(-1) @ q).transpose(2, 3).flatten(3).flatten(1, 2)

    x = tokens(4, 6, 8)
    (seen,) = seen_in(nn.Sequential(TimeFirst()), x.transpose(0, 1)).of("attention")
    assert seen.weights.shape == (4, 2, 6, 6)
    assert_close(seen.tokens, x)
    q = x.unflatten(-1, (2, 4)).transpose(1, 2)
    assert_close(seen.weights, (q @ q.mT / 2).softmax(-1))
    (seen,) = seen_in(nn.Sequential(Windows()), x).of("attention")
    assert seen.weights.shape == (8, 2, 3, 3)


def test_weights_that_are_changed_in_place_are_seen_as_they_were():
    def in_place(module, q, k, v):
        return (
            functional.dropout((q @ k.mT).mul(module.scale).softmax(-1), 0.5, training=True, inplace=True) @ v
        )

    for seen in seen_in(network(in_place), tokens(3, 5, 8)).of("attention"):
        assert_close(seen.weights.sum(-1), torch.ones(3, 2, 5))
