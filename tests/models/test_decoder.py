"""The decoder against torch's own layers, its causality, and invalid input."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory import models
from transformer_theory.models.decoder import Decoder, PostNorm, PreNorm, Sinusoidal

IDS = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(1))


def small(**settings):
    sizes = {"vocabulary": 11, "dim": 12, "depth": 2, "heads": 3, "hidden": 20} | settings
    return models.build(lambda: Decoder(**sizes), torch.Generator().manual_seed(0)).double().eval()


@pytest.mark.parametrize(("block", "first"), [(PostNorm, False), (PreNorm, True)])
def test_layers_are_those_of_torch(block, first):
    model = small(block=block)
    for layer in model.blocks:
        torch.nn.init.normal_(layer.attention_norm.weight, generator=torch.Generator().manual_seed(2))
    tokens = torch.randn(3, 7, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for ours in model.blocks:
        theirs = nn.TransformerEncoderLayer(
            12, 3, 20, batch_first=True, norm_first=first, dropout=0.0, dtype=torch.float64
        ).eval()
        state = {
            "self_attn.in_proj_weight": ours.attention.qkv.weight,
            "self_attn.in_proj_bias": torch.zeros(36),
            "self_attn.out_proj.weight": ours.attention.out.weight,
            "self_attn.out_proj.bias": ours.attention.out.bias,
        }
        pairs = {
            "linear1": ours.mlp[0],
            "linear2": ours.mlp[3],
            "norm1": ours.attention_norm,
            "norm2": ours.mlp_norm,
        }
        state |= {
            f"{name}.{part}": getattr(module, part)
            for name, module in pairs.items()
            for part in ("weight", "bias")
        }
        theirs.load_state_dict(state)
        mask = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
        assert_close(ours(tokens), theirs(tokens, src_mask=mask))


def test_forward_is_the_formula():
    model = small()
    stream = model.embedding.weight[IDS] * math.sqrt(12)
    for t in range(7):
        for k in range(6):
            stream[:, t, 2 * k] += math.sin(t / 10000 ** (2 * k / 12))
            stream[:, t, 2 * k + 1] += math.cos(t / 10000 ** (2 * k / 12))
    for block in model.blocks:
        stream = block(stream)
    # frequencies are made in float32
    assert_close(model(IDS), stream @ model.head.weight.T + model.head.bias, rtol=1e-6, atol=1e-7)


def test_scores_are_bilinear():
    attention = small(heads=1).blocks[0].attention
    x = torch.randn(1, 7, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (W,) = attention.bilinear()
    scores = torch.einsum("bid,de,bje->bji", x, W, x).masked_fill(torch.ones(7, 7).triu(1) > 0, -math.inf)
    value = x @ attention.qkv.weight[24:].T
    assert_close(attention(x), scores.softmax(-1) @ value @ attention.out.weight.T + attention.out.bias)


@pytest.mark.parametrize("block", [PostNorm, PreNorm])
def test_logits_do_not_depend_on_later_words(block):
    model, changed = small(block=block), IDS.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % 11
    assert torch.equal(model(IDS)[:, :4], model(changed)[:, :4])
    assert not torch.allclose(model(IDS)[:, 4:], model(changed)[:, 4:])


def test_without_positions_order_does_not_matter():
    swapped = IDS[:, [1, 0, 2, 3, 4, 5, 6]]
    for positions, alike in ((nn.Identity, True), (Sinusoidal, False)):
        model = small(positions=positions, depth=1)
        assert torch.allclose(model(IDS)[:, -1], model(swapped)[:, -1]) is alike


def test_dropout_only_in_training():
    model = small(dropout=0.5)
    assert torch.equal(model(IDS), model(IDS))
    model.train()
    assert not torch.equal(model(IDS), model(IDS))


def test_start_is_near_uniform():
    model = models.build(lambda: Decoder(vocabulary=1000), torch.Generator().manual_seed(0)).eval()
    assert float(model.embedding.weight.detach().abs().max()) <= 0.1
    spread = model(torch.arange(40)[None]).log_softmax(-1).detach()
    assert_close(-spread.mean(), torch.tensor(math.log(1000)), rtol=0.1, atol=0.0)


@each_case(
    ("call", "message"),
    [
        (lambda: small(vocabulary=1), "vocabulary must be at least 2"),
        (lambda: small(dropout=1.0), r"dropout must lie in \[0, 1\), got 1.0"),
        (lambda: small(heads=5), "heads must divide dim"),
        (lambda: small(dim=9), "dim must be even"),
        (lambda: small()(IDS[0]), r"ids .*got \[7\]"),
        (lambda: small()(IDS.float()), "got torch.float32"),
        (lambda: small()(IDS + 1), r"ids must lie in \[0, 11\), got 1 to 11; pass vocabulary=12"),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
