"""ViT against plain operations, and networks built from a generator."""

import pytest
import torch
from torch.testing import assert_close

from transformer_theory import models
from transformer_theory.models.embedding import Patches


def tokens(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def model():
    return models.build(
        lambda: models.ViT.for_tokens(6, 4, 3, dim=12, depth=2, heads=3), torch.Generator().manual_seed(0)
    ).eval()


def test_forward_is_the_formula(model):
    x = tokens(5, 6, 4)
    z = (
        torch.cat([model.cls_token.expand(5, -1, -1), x @ model.embed.weight.T + model.embed.bias], 1)
        + model.pos_embedding
    )
    for block in model.blocks:
        normed = block.attention_norm(z)
        mixed = []
        for head, W in enumerate(block.attention.bilinear()):
            # [batch, query j, key i]
            weights = torch.einsum("bid,de,bje->bji", normed, W, normed).softmax(-1)
            value = block.attention.qkv.weight[24 + 4 * head : 28 + 4 * head]
            mixed.append(weights @ normed @ value.T)
        z = z + torch.cat(mixed, -1) @ block.attention.out.weight.T + block.attention.out.bias
        z = z + block.mlp(block.mlp_norm(z))
    assert_close(model(x), model.head(model.norm(z[:, 0])))


def test_size_of_the_digits_network():
    model = models.ViT.for_tokens(16, 4, 10)
    layer = 4 * 96 * 96 + 96 + 2 * 4 * 96 * 96 + 4 * 96 + 96 + 4 * 96  # attention, MLP, two norms
    assert sum(p.numel() for p in model.parameters()) == 2 * layer + 5 * 96 + 18 * 96 + 2 * 96 + 970


def test_images_and_their_patches_give_the_same_logits():
    generator = torch.Generator().manual_seed(0)
    build = {"num_classes": 3, "dim": 12, "depth": 1, "heads": 3}
    by_image = models.build(
        lambda: models.ViT.for_images(image_size=4, patch_size=2, channels=2, **build), generator
    )
    by_token = models.ViT.for_tokens(4, 8, **build)
    by_token.load_state_dict(by_image.state_dict())
    images = tokens(2, 2, 4, 4)
    assert_close(by_image(images), by_token(by_image.reader(images)))
    assert (
        by_image.reader(images)[0, 1].tolist() == images[0, :, 0:2, 2:4].permute(1, 2, 0).flatten().tolist()
    )


def test_building_uses_the_given_generator_only():
    torch.manual_seed(3)
    state = torch.get_rng_state()

    def build(seed):
        return models.build(
            lambda: models.ViT.for_tokens(6, 4, 3, dim=12, heads=3), torch.Generator().manual_seed(seed)
        ).state_dict()

    first, again, other = build(0), build(0), build(1)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embed.weight"], other["embed.weight"])


def test_invalid_inputs_are_named(model, unchecked):
    with pytest.raises(ValueError, match=r"tokens must have shape \[batch, 6, 4\], got \[5, 7, 4\]"):
        model(tokens(5, 7, 4))
    with pytest.raises(ValueError, match="heads must divide dim, got heads=7 and dim=96"):
        models.ViT.for_tokens(6, 4, 3, heads=7)
    with pytest.raises(ValueError, match="patch_size must divide image_size, got 3 and 8"):
        Patches(image_size=8, patch_size=3, channels=1)
    with pytest.raises(ValueError, match="seq must be at least 1, got 0"):
        models.ViT.for_tokens(0, 4, 3)
