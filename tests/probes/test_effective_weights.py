"""W of queries and keys that are several operations away from a plain weight (adapters, pruned and normalised
weights, sums and products of maps), against the matrix that the maps show on unit vectors; and the reason
where there is no W.
"""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.networks import Keep, theory_metrics, tokens
from transformer_theory.probes import probe

D, H, N, T = 8, 2, 3, 5


class Adapter(nn.Module):
    """W x + s B A x, not merged, with as many adapters as there are ranks."""

    def __init__(self, base: nn.Linear, *ranks: int, dropout: float = 0.0, in_place: bool = False):
        super().__init__()
        self.base, self.in_place, self.drop = base, in_place, nn.Dropout(dropout)
        self.down = nn.ModuleList([nn.Linear(base.in_features, rank, bias=False) for rank in ranks])
        self.up = nn.ModuleList([nn.Linear(rank, base.out_features, bias=False) for rank in ranks])

    def forward(self, x):
        out = self.base(x)
        for number, (down, up) in enumerate(zip(self.down, self.up), 1):
            part = up(down(self.drop(x))) * (2.0 / number)
            if self.in_place:
                out += part
            else:
                out = out + part
        return out


class Written(nn.Module):
    """A map written with tensors: ``how`` computes the output from the weight and the tokens."""

    def __init__(self, base: nn.Linear, how):
        super().__init__()
        self.weight, self.bias, self.how = base.weight, nn.Parameter(torch.randn(base.out_features)), how
        self.numbers = nn.Parameter(torch.rand(base.out_features) + 0.5)
        self.register_buffer("mask", (torch.arange(base.weight.numel()) % 3 > 0).view_as(base.weight))
        self.plain = (torch.arange(base.weight.numel()) % 4 > 0).view_as(base.weight).float()

    def forward(self, x):
        return self.how(self, x)


def pruned(linear):
    prune.l1_unstructured(linear, "weight", 0.3)
    return linear


def structured(linear):
    prune.ln_structured(linear, "weight", 0.25, n=2, dim=0)
    prune.random_unstructured(linear, "weight", 0.2)
    return linear


def old(name):
    def wrap(linear):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(nn.utils, name)(linear)

    return wrap


def written(how):
    return lambda linear: Written(linear, how)


WRAPS = {
    "plain": lambda linear: linear,
    "adapter": lambda linear: Adapter(linear, 2),
    "adapters": lambda linear: Adapter(linear, 2, 1, 3, dropout=0.5),
    "many adapters": lambda linear: Adapter(linear, *[1] * 12),
    "adapter in place": lambda linear: Adapter(linear, 2, in_place=True),
    "adapter of an adapter": lambda linear: Nested(linear),
    "adapter of a pruned map": lambda linear: Adapter(pruned(linear), 2),
    "pruned": pruned,
    "pruned twice": structured,
    "spectral norm": parametrizations.spectral_norm,
    "weight norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
    "orthogonal by Cayley": lambda linear: parametrizations.orthogonal(linear, orthogonal_map="cayley"),
    "old spectral norm": old("spectral_norm"),
    "old weight norm": old("weight_norm"),
    "scaled weight": written(lambda m, x: functional.linear(x, m.weight * 0.5)),
    "transposed": written(lambda m, x: x @ m.weight.T),
    "product and bias": written(lambda m, x: torch.matmul(x, m.weight.T) + m.bias),
    "masked by a buffer": written(lambda m, x: functional.linear(x, m.weight * m.mask)),
    "masked by a tensor": written(lambda m, x: functional.linear(x, m.weight * m.plain)),
    "joined weights": written(lambda m, x: functional.linear(x, torch.cat([m.weight[:3], m.weight[3:]]))),
    "learnt factors": written(lambda m, x: functional.linear(x, m.weight) * m.numbers),
    "learnt number": written(lambda m, x: m.numbers[0] * functional.linear(x, m.weight)),
    "difference": written(lambda m, x: functional.linear(x, m.weight) - x @ (m.weight * m.mask).T / 3),
    "weighted sum": written(lambda m, x: torch.add(x @ m.weight.T, x @ m.weight, alpha=0.3)),
    "product of maps": written(lambda m, x: (x @ m.weight) @ m.weight.T),
    "parts of the output": written(
        lambda m, x: torch.cat([x @ m.weight[:3].T, functional.linear(x, m.weight[3:] * 2)], -1)
    ),
    "a part without tokens": written(
        lambda m, x: x @ m.weight.T + torch.cat([x.new_zeros(*x.shape[:-1], 3), x @ m.weight[:5].T], -1)
    ),
}


class Nested(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.inner, self.down, self.up = (
            Adapter(linear, 2),
            nn.Linear(D, 1),
            nn.Linear(1, linear.out_features),
        )

    def forward(self, x):
        return self.inner(x) + self.up(self.down(x))


class Attention(nn.Module):
    """Written-out attention whose maps of queries and keys are wrapped."""

    def __init__(self, wrap_query, wrap_key=None, *, change=lambda q, k: (q, k), scores=lambda s: s):
        super().__init__()
        self.q, self.k = wrap_query(nn.Linear(D, D)), (wrap_key or wrap_query)(nn.Linear(D, D))
        self.v, self.o, self.change, self.scores = nn.Linear(D, D), nn.Linear(D, D), change, scores

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (H, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.change(q, k)
        out = self.scores(q @ k.mT / (D // H) ** 0.5).softmax(-1) @ v
        return self.o(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(D), attention

    def forward(self, x):
        return x + self.attention(self.norm(x))


def network(make) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(make()), Block(make())).eval()


def bilinear(model: nn.Module, x=None, **options) -> list:
    keep = Keep()
    with probe(model, [keep], **options), torch.no_grad():
        model(tokens(N, T, D) if x is None else x)
    return [activations.bilinear for activations in keep.of("attention")]


def matrix(function) -> torch.Tensor:
    """The matrix [out, in] of an affine map, from its values at zero and at the unit vectors."""
    with torch.no_grad():
        return (function(torch.eye(D)[None]) - function(torch.zeros(1, D, D)))[0].T


def expected(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return key.unflatten(0, (H, -1)).mT @ query.unflatten(0, (H, -1)) / (D // H) ** 0.5


@each_case("wrap", WRAPS)
def test_the_effective_weight_is_found(wrap):
    model = network(lambda: Attention(WRAPS[wrap]))
    found = bilinear(model)
    for W, block in zip(found, model, strict=True):
        assert W is not None
        assert_close(W, expected(matrix(block.attention.q), matrix(block.attention.k)), rtol=1e-4, atol=1e-5)


def test_numbers_of_plain_layers_are_the_weights_themselves():
    model = network(lambda: Attention(WRAPS["plain"]))
    for W, block in zip(bilinear(model), model, strict=True):
        assert torch.equal(W, expected(block.attention.q.weight, block.attention.k.weight))


@each_case("query", ["adapter", "product of maps", "pruned", "plain"])
def test_queries_and_keys_may_be_computed_in_different_ways(query):
    model = network(
        lambda: Attention(WRAPS[query], lambda linear: nn.Sequential(nn.Linear(D, 3), nn.Linear(3, D)))
    )
    for W, block in zip(bilinear(model), model, strict=True):
        assert_close(W, expected(matrix(block.attention.q), matrix(block.attention.k)), rtol=1e-4, atol=1e-5)
        assert torch.linalg.matrix_rank(W, atol=1e-4).max() <= 3


class Fused(nn.Module):
    """Attention with one map of queries, keys and values, to which ``adapt`` adds."""

    def __init__(self, adapt):
        super().__init__()
        self.qkv, self.o, self.adapt = nn.Linear(D, 3 * D), nn.Linear(D, D), adapt
        self.down, self.up, self.all = nn.Linear(D, 2), nn.Linear(2, D), nn.Linear(2, 3 * D)

    def joint(self, x):
        return self.adapt(self, x, self.qkv(x))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (H, -1)).transpose(1, 2) for part in self.joint(x).chunk(3, -1))
        out = functional.scaled_dot_product_attention(q, k, v)
        return self.o(out.transpose(1, 2).flatten(2))


def overwritten(m, x, qkv):
    qkv[:, :, :D] += m.up(m.down(x))
    qkv[..., -D:] += m.up(m.down(x))
    return qkv


FUSED = {
    "of all": lambda m, x, qkv: qkv + m.all(m.down(x)) * 0.5,
    "of the queries, in place": overwritten,
    "of queries and values, with zeros": lambda m, x, qkv: (
        qkv + torch.cat([m.up(m.down(x)), torch.zeros(*x.shape[:-1], D), m.up(m.down(x)) * 2], -1)
    ),
    "of the parts": lambda m, x, qkv: torch.cat(
        [part + factor * m.up(m.down(x)) for part, factor in zip(qkv.split(D, -1), (1.0, -1.0, 0.5))], -1
    ),
}


@each_case("adapt", FUSED)
def test_adapters_of_a_fused_map(adapt):
    model = network(lambda: Fused(FUSED[adapt]))
    for W, block in zip(bilinear(model), model, strict=True):
        joint = matrix(block.attention.joint)
        assert_close(W, expected(joint[:D], joint[D : 2 * D]), rtol=1e-4, atol=1e-5)
        plain = block.attention.qkv.weight
        assert not torch.allclose(W, expected(plain[:D], plain[D : 2 * D]), atol=1e-2)


def test_adapters_with_dropout_have_no_weight_in_training():
    """The dropped inputs differ between tokens, so no matrix gives the scores."""
    model = network(lambda: Attention(lambda linear: Adapter(linear, 2, dropout=0.5))).train()
    assert bilinear(model) == [None, None]


def reason(model: nn.Module, x=None) -> str:
    keep = Keep()
    with probe(model, [keep, *theory_metrics("attention_svm")], draws=0) as p, torch.no_grad():
        model(tokens(N, T, D) if x is None else x)
    assert all(activations.bilinear is None for activations in keep.of("attention"))
    (row,) = (row for row in p.result().table if row.value is None and "no attention" in row.reason)
    return row.reason


def rotary(q, k):
    angles = torch.arange(T)[:, None] / 10.0 ** torch.arange(q.shape[-1] // 2)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def turned(x):
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    return turned(q), turned(k)


def partly_rotary(q, k):
    return tuple(torch.cat([rotary(x[..., :2], x[..., :2])[0], x[..., 2:]], -1) for x in (q, k))


def complex_rotary(q, k):
    turns = torch.polar(torch.ones(T, 2), torch.arange(T)[:, None] / torch.tensor([1.0, 10.0]))
    return tuple(
        torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turns).flatten(-2)
        for x in (q, k)
    )


def divided(q, k):
    return q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)


def root_mean_square(q, k):
    return tuple(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) for x in (q, k))


REASONS = {
    "rotary": ({"change": rotary}, "rotary positions"),
    "partly rotary": ({"change": partly_rotary}, "rotary positions"),
    "complex rotary": ({"change": complex_rotary}, "rotary positions"),
    "unit norm": ({"change": lambda q, k: (functional.normalize(q, dim=-1), k)}, "are normalised"),
    "divided by the norm": ({"change": divided}, "are normalised"),
    "layer norm": ({"change": lambda q, k: (functional.layer_norm(q, q.shape[-1:]), k)}, "are normalised"),
    "root mean square": ({"change": root_mean_square}, "are normalised"),
    "kernel": ({"change": lambda q, k: (q.relu(), k.relu())}, "changed by 'relu' after the projection"),
    "relative positions": (
        {"scores": lambda s: s + torch.arange(T).sub(1.5)},
        "a bias is added to the scores",
    ),
    "bounded": ({"scores": lambda s: 5 * torch.tanh(s / 5)}, "not scaled by one number"),
    "a scale of each head": (
        {"scores": lambda s: s * torch.tensor([1.0, 2.0])[:, None, None]},
        "not scaled by one number",
    ),
    "other tokens": ({"change": lambda q, k: (q, k.roll(1, 2))}, ""),
    "positions after the projection": (
        {"change": lambda q, k: (q + torch.arange(T * D // H).view(T, -1).sin(), k)},
        "do not reproduce the scores",
    ),
}


@each_case("case", sorted(REASONS.keys() - {"other tokens"}))
def test_the_reason_is_the_true_one(case):
    options, words = REASONS[case]
    found = reason(network(lambda: Attention(WRAPS["plain"], **options)))
    assert words in found
    others = {words for _, words in REASONS.values()} - {words, ""}
    assert not any(other in found for other in others), found


class Conv(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.map = nn.Conv1d(D, D, 3, padding=1)

    def forward(self, x):
        return self.map(x.mT).mT


def test_tokens_that_are_mixed_before_the_scores_have_their_reason():
    assert "they come from" in (found := reason(network(lambda: Attention(Conv))))
    assert "conv1d" in found


class Masked(nn.Module):
    """torch's attention with a float mask, or a float padding mask."""

    def __init__(self, mask=None, padding=None, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, H, batch_first=True, **options)
        self.mask, self.padding = mask, padding

    def forward(self, x):
        masks = {"attn_mask": self.mask, "key_padding_mask": self.padding}
        return self.attention(x, x, x, need_weights=False, **masks)[0]


FAR = (torch.arange(T)[:, None] - torch.arange(T)).abs().float()
CAUSAL = torch.full((T, T), -torch.inf).triu(1)
BIASES = {
    "distance": {"mask": -0.5 * FAR},
    "distance of each head": {"mask": (-torch.tensor([0.5, 0.25])[:, None, None] * FAR).repeat(N, 1, 1)},
    "distance and order": {"mask": CAUSAL - 0.5 * FAR},
    "importance of the keys": {"padding": torch.randn(N, T)},
    "half blocked": {"mask": CAUSAL.clamp(min=-2.0)},
}
NO_BIASES = {
    "order": {"mask": CAUSAL},
    "zeros": {"mask": torch.zeros(T, T)},
    "lowest number": {"mask": CAUSAL.clamp(min=torch.finfo(torch.float32).min)},
    "very low number": {"mask": CAUSAL.clamp(min=-1e9)},
    "padding": {"padding": torch.tensor([0.0, 0.0, 0.0, 0.0, -torch.inf]).expand(N, T)},
    "boolean": {"mask": CAUSAL < 0},
    "further keys": {"add_bias_kv": True, "add_zero_attn": True},
}


@each_case("case", BIASES)
def test_a_mask_of_numbers_is_a_bias(case):
    assert "a bias is added to the scores" in reason(network(lambda: Masked(**BIASES[case])))


@each_case("case", NO_BIASES)
def test_a_mask_that_only_blocks_is_no_bias(case):
    model = network(lambda: Masked(**NO_BIASES[case]))
    for W, block in zip(bilinear(model), model, strict=True):
        query, key, _ = block.attention.attention.in_proj_weight.chunk(3)
        assert_close(W, expected(query, key))


@pytest.mark.parametrize("mask", [-0.5 * FAR, CAUSAL])
def test_masks_of_torchs_encoder(mask):
    layer = nn.TransformerEncoderLayer(D, H, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder

        def forward(self, x):
            return self.encoder(x, mask=mask)

    known = [W is not None for W in bilinear(Encoder())]
    assert known == [bool(mask.isinf().any())] * 2
