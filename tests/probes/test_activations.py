"""Probes see what attention really computed, and the blocks around it."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.networks import WIDE, Attention, Block, Keep, Net, built, seen_in, tokens
from transformer_theory.metrics import AttentionStatistics, Geometry
from transformer_theory.models import CRATE, ViT
from transformer_theory.models.attention import Factored, token_scores
from transformer_theory.probes import probe
from transformer_theory.probes.attention_calls import of_scaled_dot_product


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.9},
        {"groups": 1},
        {"attn_mask": torch.arange(36).reshape(6, 6) % 5 != 1},
        {
            "attn_mask": torch.arange(36.0)
            .reshape(6, 6)
            .masked_fill(torch.arange(36).reshape(6, 6) % 5 == 1, -math.inf)
        },
        {"attn_mask": torch.tensor([True] * 4 + [False] * 2).expand(3, 1, 6, 6)},
    ],
    ids=["plain", "causal", "scale", "grouped", "boolean", "additive", "padding"],
)
def test_weights_and_values_reproduce_what_the_kernel_returned(options, request):
    attention = built(lambda: Attention(8, 2, **options)).double()
    x = tokens(3, 6, 8).double()
    (seen,) = seen_in(nn.Sequential(attention), x).of("attention")
    real = 4 if "padding" in request.node.callspec.id else 6  # padding is left out
    assert_close(seen.weights.sum(-1), torch.ones(3, 2, real, dtype=torch.float64))
    assert_close(attention.out((seen.weights @ seen.value).transpose(1, 2).flatten(-2)), seen.output)
    assert_close(seen.tokens, x[:, :real])
    assert seen.module is attention
    if seen.mask is not None:
        assert bool((seen.weights.masked_fill(seen.mask, 0) == 0).all())
        assert bool((seen.weights > 0).eq(seen.mask).all())


def test_scores_are_bilinear_in_the_tokens():
    """score(key token x, query token z) = x^T W z: for the library's networks and torch's own layer."""
    vit, crate = (
        built(lambda: ViT.for_tokens(9, 4, 3, **WIDE)),
        built(lambda: CRATE.for_tokens(9, 4, 3, **WIDE)),
    )
    torch_layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, bias=False).eval()
    for model in (vit, crate, nn.Sequential(torch_layer)):
        for seen in seen_in(model, tokens(5, 9, 4)).of("attention"):
            assert seen.bilinear is not None
            scores = torch.einsum("bjd,hde,bie->bhij", seen.tokens, seen.bilinear, seen.tokens)
            assert_close(scores.softmax(-1), seen.weights, rtol=1e-4, atol=1e-6)
    K, Q = vit.blocks[0].attention.qkv.weight.unflatten(0, (3, 4, 4)).transpose(-1, -2)[[1, 0]].detach()
    first = seen_in(vit, tokens(5, 9, 4)).of("attention")[0]
    assert_close(
        first.weights, token_scores(first.tokens, Factored(K, Q, scale=0.5)).softmax(-1), rtol=1e-4, atol=1e-6
    )


@each_case("batch_first", [True, False])
@each_case("masks", ["none", "padding", "boolean", "both", "additive", "per head"])
@each_case("kind", ["plain", "other widths", "extra keys"])
@each_case("asks_weights", [True, False])
def test_multihead_attention_reports_the_same_weights(batch_first, masks, kind, asks_weights):
    if kind == "other widths":
        layer = nn.MultiheadAttention(8, 2, kdim=5, vdim=3, batch_first=batch_first)
    else:
        layer = nn.MultiheadAttention(
            8,
            2,
            batch_first=batch_first,
            add_bias_kv=kind == "extra keys",
            add_zero_attn=kind == "extra keys",
        )
    layer = layer.double().eval()
    q, k, v = (tokens(3, n, d).double() for n, d in ((6, 8), (7, layer.kdim), (7, layer.vdim)))
    blocked = torch.arange(42).reshape(6, 7) % 5 == 1
    padding = torch.tensor([[False] * 7, [False] * 6 + [True], [False] * 4 + [True] * 3])
    options = {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "boolean": {"attn_mask": blocked},
        "both": {"attn_mask": blocked, "key_padding_mask": padding},
        "additive": {"attn_mask": torch.arange(42.0).reshape(6, 7).double() / 9},
        "per head": {"attn_mask": torch.stack([blocked, ~blocked] * 3)},
    }[masks]
    order = (lambda x: x) if batch_first else (lambda x: x.transpose(0, 1))
    said = layer(order(q), order(k), order(v), average_attn_weights=False, **options)[1]
    model = nn.ModuleDict({"layer": layer})
    model.forward = lambda: layer(order(q), order(k), order(v), need_weights=asks_weights, **options)
    (seen,) = seen_in(model).of("attention")
    keeps = ~padding if "key_padding_mask" in options else torch.ones_like(padding)
    keeps = torch.nn.functional.pad(keeps, (0, said.shape[-1] - 7), value=True)  # the extra keys
    for own, expected, keep in zip(seen.weights, said, keeps):
        assert_close(own[..., : keep.sum()], expected[..., keep])
        assert not own[..., keep.sum() :].any()
    assert_close(seen.tokens, q)
    assert seen.output.shape == (3, 6, 8)
    assert_close(
        (seen.weights @ seen.value).transpose(1, 2).flatten(2) @ layer.out_proj.weight.T
        + layer.out_proj.bias,
        seen.output,
    )


@each_case("norm_first", [True, False])
@each_case("batch_first", [True, False])
@each_case("training", [True, False])
def test_torchs_encoder_is_seen_in_spite_of_its_fused_path(norm_first, batch_first, training):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).train(training)
    x = tokens(4, 6, 8) if batch_first else tokens(6, 4, 8)
    keep = Keep()
    with torch.no_grad():
        plain = model(x)
        with probe(model, [keep, Geometry(), AttentionStatistics()]) as p:
            probed = model(x)
        again = model(x)
    assert torch.equal(plain, again)
    assert_close(plain, probed)  # to rounding: torch's fused layer is another kernel
    assert torch.equal(plain, probed) or not training
    assert [seen.layer for seen in keep.of("attention")] == [0, 1, 2]
    assert [seen.name for seen in keep.of("features")] == ["layers.0", "layers.1", "layers.2"]
    order = (lambda t: t) if batch_first else (lambda t: t.transpose(0, 1))
    assert_close(keep.of("features")[0].tokens, order(x))
    assert_close(keep.of("features")[2].output, order(probed))
    for attention, block in zip(keep.of("attention"), keep.of("features")):
        assert_close(block.after_attention, block.tokens + attention.output)
    assert {row.quantity for row in p.result().table if row.theory == "network"} >= {"rank-collapse residual"}


def test_blocks_are_seen_before_inside_and_after():
    """The stream is changed in place afterwards; what was seen must not follow."""
    model = built(Net).eval()
    x = tokens(2, 5, 8)
    keep = seen_in(model, x)
    assert [(seen.kind, seen.layer, seen.name) for seen in keep.seen] == [
        ("attention", 0, "blocks.0.attention"),
        ("features", 0, "blocks.0"),
        ("attention", 1, "blocks.1.attention"),
        ("features", 1, "blocks.1"),
    ]
    stream = x
    with torch.no_grad():
        for block, attention, features in zip(model.blocks, keep.of("attention"), keep.of("features")):
            assert torch.equal(features.tokens, stream)
            assert torch.equal(attention.tokens, block.norm(stream))
            inside = stream + block.attention(block.norm(stream))
            assert_close(features.after_attention, inside)
            stream = inside + block.mlp(block.second(inside))
            assert_close(features.output, stream)


@pytest.mark.parametrize(
    "make", [lambda: ViT.for_tokens(9, 4, 3, **WIDE), lambda: CRATE.for_tokens(9, 4, 3, **WIDE)]
)
def test_the_librarys_networks_show_their_stream(make):
    keep = seen_in(built(make), tokens(5, 9, 4))
    for attention, block in zip(keep.of("attention"), keep.of("features"), strict=True):
        assert_close(block.after_attention, block.tokens + attention.output)
    assert len(keep.of("features")) == 2


def test_blocks_of_other_shapes():
    plain = nn.Sequential(nn.Linear(8, 8), nn.Sequential(Block(8), Block(8), Block(8)), nn.Linear(8, 2))
    assert [seen.name for seen in seen_in(plain, tokens(2, 5, 8)).of("features")] == ["1.0", "1.1", "1.2"]
    single = Attention(8, 2)
    (attention, block) = seen_in(single, tokens(2, 5, 8)).seen
    assert (attention.name, attention.layer, block.kind, block.layer) == ("", 0, "features", 0)
    shared = nn.ModuleList([Block(8)])
    shared.forward = lambda x: shared[0](shared[0](shared[0](x)))
    assert [seen.layer for seen in seen_in(shared, tokens(2, 5, 8)).of("features")] == [0, 1, 2]


def test_several_attentions_of_a_block_count_their_heads_on():
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2).eval()
    keep = seen_in(decoder, tokens(3, 5, 8), tokens(3, 7, 8))
    assert [(s.name, s.layer, s.first_head) for s in keep.of("attention")] == [
        ("layers.0.self_attn", 0, 0),
        ("layers.0.multihead_attn", 0, 2),
        ("layers.1.self_attn", 1, 0),
        ("layers.1.multihead_attn", 1, 2),
    ]
    assert keep.of("attention")[1].weights.shape == (3, 2, 5, 7)
    statistics = AttentionStatistics()
    with probe(decoder, [statistics]), torch.no_grad():
        decoder(tokens(3, 5, 8), tokens(3, 7, 8))
    assert {(row.layer, row.head) for row in statistics.compute()} == {
        (layer, head) for layer in (0, 1) for head in range(4)
    }


@each_case("queries", [1, 2, 3, 4])
@each_case("keys", [1, 2, 3, 4])
@each_case("groups", [1, 2, 4])
def test_heads_share_keys_and_values_whatever_the_number_of_tokens(queries, keys, groups):
    query, key, value = tokens(2, 4, queries, 5), tokens(2, groups, keys, 5), tokens(2, groups, keys, 4)
    call = of_scaled_dot_product(query, key, value, enable_gqa=True)
    assert call.key.shape[1] == call.value.shape[1] == 4
    expected = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    assert_close(call.weights() @ call.value, expected)


def test_heads_may_share_one_query():
    """torch broadcasts a query of one head over the heads of the keys."""

    class OneQuery(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.rest = nn.Linear(8, 4, bias=False), nn.Linear(8, 16, bias=False)

        def parts(self, x):
            key, value = self.rest(x).view(*x.shape[:2], 2, 2, 4).permute(2, 0, 3, 1, 4)
            return self.query(x)[:, None], key, value

        def forward(self, x):
            return functional.scaled_dot_product_attention(*self.parts(x)).transpose(1, 2).flatten(2) + x

    model, keep, x = built(OneQuery), Keep(), tokens(3, 5, 8)
    with probe(model, [keep, AttentionStatistics()]), torch.no_grad():
        model(x)
    query, key, value = model.parts(x)
    (seen,) = keep.of("attention")
    assert_close(seen.weights, (query @ key.mT / 2).softmax(-1))
    assert_close(torch.einsum("bkd, hde, bqe -> bhqk", x, seen.bilinear.to(x), x), query @ key.mT / 2)
    assert_close(seen.query, query.expand(-1, 2, -1, -1))
    assert_close(seen.key, key)
    assert_close(seen.value, value)
