"""Attention maps and principal components against masks that are known."""

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.models import CRATE, ViT, build
from transformer_theory.models import crate as blocks
from transformer_theory.theories import crate
from transformer_theory.theories.crate import segmentation


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_fewest_patches_that_hold_the_mass():
    maps = torch.rand(5, 3, 9, generator=generator(), dtype=torch.float64)
    selection = crate.top_mass(maps, mass=0.6)
    for weights, inside in zip(maps.flatten(0, 1), selection.flatten(0, 1)):
        assert weights[inside].sum() >= 0.6 * weights.sum()
        assert weights[inside].sum() - weights[inside].min() < 0.6 * weights.sum(), "fewer patches suffice"
        assert weights[inside].min() >= weights[~inside].max()
    assert crate.top_mass(torch.zeros(1, 1, 9)).sum() == 1


def test_overlap_of_known_patches():
    masks = torch.zeros(1, 2, 4, 4, dtype=torch.bool)
    masks[0, 0, :2, :2] = True  # the first patch
    masks[0, 1, 2:, 2:] = True  # the last
    selection = torch.tensor(
        [[[True, False, False, False], [True, False, False, True], [False, True, True, False]]]
    )
    best = crate.overlap(selection, masks)
    # the first candidate is the first object, the second covers both
    assert best.per_object == pytest.approx((1 + 0.5) / 2)
    assert best.foreground == 1.0
    assert crate.overlap(selection[:, 2:], masks) == segmentation.Overlap(0.0, 0.0)


def test_random_patches_have_the_same_number_and_fit_by_chance():
    masks = torch.zeros(400, 1, 8, 8, dtype=torch.bool)
    masks[..., :4, :] = True
    selection = torch.zeros(400, 1, 64, dtype=torch.bool)
    selection[..., :32] = True
    other = segmentation.random_patches(selection, generator=generator())
    assert torch.equal(other.sum(-1), selection.sum(-1))
    assert crate.overlap(selection, masks).per_object == 1.0
    # a quarter over three quarters
    assert crate.overlap(other, masks).per_object == pytest.approx(1 / 3, abs=0.01)


@pytest.mark.parametrize("make", [CRATE, ViT])
def test_maps_are_the_attention_of_the_class_token_in_the_last_block(make):
    model = build(lambda: make.for_tokens(9, 5, 3, dim=12, depth=2, heads=3), generator()).double().eval()
    inputs = torch.randn(4, 9, 5, generator=generator(1), dtype=torch.float64)
    maps = crate.class_attention(model, inputs)
    assert maps.shape == (4, 3, 9)
    seen = []
    block = model.transformer.layers[-1][0].fn if make is CRATE else model.blocks[-1].attention
    handle = block.register_forward_hook(lambda module, arguments, output: seen.append(arguments[0]))
    model(inputs)
    handle.remove()
    scores = torch.einsum("bid,kde,be->bki", seen[0], block.bilinear(), seen[0][:, 0])  # keys i, query 0
    assert_close(maps, scores.softmax(-1)[..., 1:].detach())


def test_components_are_the_leading_ones_and_exceeding_uses_both_signs():
    model = build(lambda: ViT.for_tokens(9, 5, 3, dim=12, depth=1, heads=3), generator()).double().eval()
    inputs = torch.randn(6, 9, 5, generator=generator(1), dtype=torch.float64)
    with torch.no_grad():
        tokens = model.embed(inputs)
        tokens = torch.cat([model.cls_token.expand(6, -1, -1), tokens], 1) + model.pos_embedding
        tokens = model.blocks[0](tokens)[:, 1:].flatten(0, 1)
    centred = tokens - tokens.mean(0)
    left = torch.linalg.svd(centred, full_matrices=False)[0][:, :2]
    projected = crate.components(model, inputs, count=2).transpose(1, 2).flatten(0, 1)
    cosine = torch.nn.functional.cosine_similarity(projected, left, dim=0).abs()
    assert_close(cosine, torch.ones(2, dtype=torch.float64))
    maps = segmentation.exceeding(torch.tensor([[[1.0, 0.0, -1.0, 4.0]]]))
    assert_close(maps, torch.tensor([[[0.0, 0.0, 0.0, 3.0], [0.0, 1.0, 2.0, 0.0]]]))


def test_components_of_a_network_without_attention_maps_are_those_of_its_last_block():
    sizes = {"dim": 12, "depth": 2, "heads": 3}
    model = (
        build(lambda: CRATE.for_tokens(9, 5, 3, **sizes, attention=blocks.ExactAttention), generator())
        .double()
        .eval()
    )
    inputs = torch.randn(6, 9, 5, generator=generator(1), dtype=torch.float64)
    seen = []
    handle = model.transformer.register_forward_hook(
        lambda module, arguments, output: seen.append(output[:, 1:].detach())
    )
    projected = crate.components(model, inputs)
    handle.remove()
    assert projected.shape == (6, 2, 9)
    centred = seen[0] - seen[0].mean((0, 1))
    left = torch.linalg.svd(centred.flatten(0, 1), full_matrices=False)[0][:, :2]
    cosine = torch.nn.functional.cosine_similarity(projected.transpose(1, 2).flatten(0, 1), left, dim=0).abs()
    assert_close(cosine, torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("attention", [blocks.ExactAttention, blocks.TokenStatisticsAttention])
def test_a_block_without_attention_map_is_named(attention):
    model = CRATE.for_tokens(9, 5, 3, dim=12, heads=3, attention=attention)
    with pytest.raises(ValueError, match=rf"{attention.__name__}.*crate\.components"):
        crate.class_attention(model, torch.zeros(2, 9, 5))


def test_invalid_arguments_are_named(unchecked):
    with pytest.raises(ValueError, match=r"mass .*got 1"):
        crate.top_mass(torch.ones(1, 1, 4), mass=1)
    with pytest.raises(ValueError, match=r"non-negative .* -1"):
        crate.top_mass(-torch.ones(1, 1, 4))
    with pytest.raises(ValueError, match="8 patches for 4 x 4 pixels"):
        crate.overlap(torch.ones(1, 1, 8, dtype=torch.bool), torch.ones(1, 1, 4, 4, dtype=torch.bool))
    model = CRATE.for_tokens(9, 5, 3, dim=12, heads=3)
    for count in (0, 13):
        with pytest.raises(ValueError, match=rf"count .* 12, .*got {count}"):
            crate.components(model, torch.zeros(2, 9, 5), count=count)
    selection, masks = torch.ones(2, 1, 4, dtype=torch.bool), torch.ones(2, 3, 4, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"masks .*got \[2, 4, 4\]; one object is masks\[:, :1\]"):
        crate.overlap(selection, masks[:, 0])
    with pytest.raises(ValueError, match=r"masks .*got \[1, 3, 4, 4\]"):
        crate.overlap(selection, masks[:1])
    with pytest.raises(ValueError, match=r"selection .*got \[2, 4\]"):
        crate.overlap(selection[:, 0], masks)
