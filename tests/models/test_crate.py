"""CRATE: sizes and names of the released networks, and their forward pass written out in plain operations."""

import math

import pytest
import torch
from torch.testing import assert_close

from transformer_theory import models
from transformer_theory.theories.crate.block import ExactAttention, PaperAttention

SIZES = {
    "crate_tiny": (6_090_856, 384, 6, 12),
    "crate_small": (13_116_328, 576, 12, 12),
    "crate_base": (22_796_008, 768, 12, 12),
    "crate_large": (77_641_192, 1024, 16, 24),
}


@pytest.fixture(scope="module")
def weights():
    """Random weights with the names and shapes of a released network: dim 128, two heads of width 64, two layers, 32 px, patches of 4."""
    generator = torch.Generator().manual_seed(0)
    dim, patch, classes, depth = 128, 48, 10, 2

    def randn(*shape, scale=1.0):
        return scale * torch.randn(*shape, generator=generator)

    def norm(name, width):
        return {f"{name}.weight": 1 + randn(width, scale=0.1), f"{name}.bias": randn(width, scale=0.1)}

    found = {"pos_embedding": randn(1, 65, dim), "cls_token": randn(1, 1, dim)}
    found |= norm("to_patch_embedding.1", patch) | norm("to_patch_embedding.3", dim) | norm("mlp_head.0", dim)
    found |= {"to_patch_embedding.2.weight": randn(dim, patch, scale=0.1), "to_patch_embedding.2.bias": randn(dim, scale=0.1)}
    for i in range(depth):
        layer = f"transformer.layers.{i}"
        found |= norm(f"{layer}.0.norm", dim) | norm(f"{layer}.1.norm", dim)
        found[f"{layer}.0.fn.qkv.weight"] = randn(128, dim, scale=0.1)
        found |= {f"{layer}.0.fn.to_out.0.weight": randn(dim, 128, scale=0.1), f"{layer}.0.fn.to_out.0.bias": randn(dim, scale=0.1)}
        found[f"{layer}.1.fn.weight"] = randn(dim, dim, scale=0.1)
    found |= {"mlp_head.1.weight": randn(classes, dim, scale=0.1), "mlp_head.1.bias": randn(classes, scale=0.1)}
    return found


def layer_norm(x, weights, name):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def reference(w, images, *, patch=4, heads=2, depth=2):
    """The released forward pass, patch by patch and head by head."""
    w = {name: value.double() for name, value in w.items()}
    batch, _, height, width = images.shape
    cut = []
    for i in range(0, height, patch):
        for j in range(0, width, patch):  # inside a patch: row, column, channel
            cut.append(images[:, :, i : i + patch, j : j + patch].permute(0, 2, 3, 1).reshape(batch, -1).double())
    x = layer_norm(torch.stack(cut, 1), w, "to_patch_embedding.1")
    x = layer_norm(x @ w["to_patch_embedding.2.weight"].T + w["to_patch_embedding.2.bias"], w, "to_patch_embedding.3")
    x = torch.cat([w["cls_token"].expand(batch, 1, -1), x], 1) + w["pos_embedding"]
    for i in range(depth):
        layer = f"transformer.layers.{i}"
        z = layer_norm(x, w, f"{layer}.0.norm") @ w[f"{layer}.0.fn.qkv.weight"].T
        mixed = []
        for u in z.chunk(heads, dim=-1):
            scores = u @ u.transpose(1, 2) / math.sqrt(u.shape[-1])
            mixed.append(scores.softmax(-1) @ u)
        x = x + torch.cat(mixed, -1) @ w[f"{layer}.0.fn.to_out.0.weight"].T + w[f"{layer}.0.fn.to_out.0.bias"]
        y, D = layer_norm(x, w, f"{layer}.1.norm"), w[f"{layer}.1.fn.weight"]
        x = (y + 0.1 * (y @ D - y @ D.T @ D) - 0.1 * 0.1).clamp(min=0)
    return layer_norm(x[:, 0], w, "mlp_head.0") @ w["mlp_head.1.weight"].T + w["mlp_head.1.bias"]


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_those_of_the_released_networks(name):
    parameters, dim, heads, depth = SIZES[name]
    with torch.device("meta"):
        model = getattr(models, name)()
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(model.transformer.layers) == depth
    assert model.transformer.layers[0][0].fn.subspaces().shape == (heads, dim, dim // heads)


def test_released_weights_give_the_released_logits(weights):
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    model = models.CRATE.from_released(weights)
    assert not model.training
    assert set(model.state_dict()) == set(weights)
    with torch.no_grad():
        logits = model(images)
    assert logits.shape == (3, 10)
    assert_close(logits.double(), reference(weights, images), atol=1e-5, rtol=0)


def test_round_trip_and_other_sizes(weights):
    own = models.CRATE.for_images(image_size=8, patch_size=2, channels=1, num_classes=3, dim=24, depth=1, heads=2, head_dim=5)
    back = models.CRATE.from_released(own.state_dict(), image_size=8, patch_size=2, heads=2)
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert_close(back(images), own.eval()(images), atol=0, rtol=0)
    parallel = {f"module.{name}": value.double() for name, value in weights.items()}
    assert models.CRATE.from_released(parallel)(torch.zeros(1, 3, 32, 32, dtype=torch.float64)).dtype == torch.float64
    small = {name: torch.empty(value.shape) for name, value in _meta(dim=576, heads=12).items()}
    assert models.CRATE.from_released(small).transformer.layers[0][0].fn.heads == 12  # the released "small": width 48


def _meta(**sizes):
    with torch.device("meta"):
        return models.CRATE.for_images(image_size=32, patch_size=4, num_classes=2, depth=1, **sizes).state_dict()


def test_reading_weights_leaves_the_global_generator_alone(weights):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    models.CRATE.from_released(weights)
    assert torch.equal(state, torch.get_rng_state())


def test_bad_weights_are_named(weights, unchecked):
    released = models.CRATE.from_released
    with pytest.raises(ValueError, match=r"must hold transformer\.layers\.0\..*, got nothing"):
        released({})
    with pytest.raises(ValueError, match=r"lacks 1 weights, e\.g\. 'mlp_head\.1\.bias'"):
        released({name: value for name, value in weights.items() if name != "mlp_head.1.bias"})
    with pytest.raises(ValueError, match=r"lacks 1 weights, e\.g\. 'pos_embedding'"):
        released({name: value for name, value in weights.items() if name != "pos_embedding"})
    with pytest.raises(ValueError, match=r"1 unknown weights, e\.g\. 'cls_tokens'; did you mean 'cls_token'"):
        released(weights | {"cls_tokens": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"mlp_head\.0\.weight must have shape \[128\], got \[7\]"):
        released(weights | {"mlp_head.0.weight": torch.zeros(7)})
    with pytest.raises(ValueError, match="image_size must fit 64 patches, got 224 with patch_size=4; pass image_size=32"):
        released(weights, image_size=224)
    with pytest.raises(ValueError, match="patch_size must fit patches of 48 numbers, got 5"):
        released(weights, patch_size=5)
    with pytest.raises(ValueError, match="heads must divide the 128 rows of qkv, got 3"):
        released(weights, heads=3)
    with pytest.raises(ValueError, match=r"images must have shape \[batch, 3, 32, 32\], got \[1, 3, 28, 28\]"):
        released(weights)(torch.zeros(1, 3, 28, 28))
    with pytest.raises(ValueError, match="heads must divide dim, got heads=5 and dim=96; choose among 1, 2, 3"):
        models.CRATE.for_tokens(16, 4, 10, heads=5)


@pytest.mark.parametrize("attention", [PaperAttention, ExactAttention])
def test_another_attention_is_a_block_that_one_passes(attention):
    model = models.build(lambda: models.CRATE.for_tokens(6, 4, 3, dim=12, depth=2, heads=3, attention=attention), torch.Generator())
    logits = model(torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(0)))
    assert logits.shape == (5, 3)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert "transformer.layers.0.0.fn.to_out.0.weight" not in model.state_dict()  # tied


def test_order_of_tokens_matters_only_through_positions():
    model = models.build(lambda: models.CRATE.for_tokens(6, 4, 3, dim=12, heads=3), torch.Generator().manual_seed(0))
    tokens = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    with torch.no_grad():
        assert (model(tokens[:, order]) - model(tokens)).abs().max() > 1e-4
        model.pos_embedding[:, 1:] = model.pos_embedding[:, 1:2].clone()
        assert_close(model(tokens[:, order]), model(tokens))
