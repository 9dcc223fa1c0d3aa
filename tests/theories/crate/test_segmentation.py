"""Attention maps and principal components against masks that are known."""

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.models import CRATE, ViT, build
from transformer_theory.theories import crate
from transformer_theory.theories.crate import segmentation


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_fewest_patches_that_hold_the_mass():
    maps = torch.rand(5, 3, 9, generator=generator(), dtype=torch.float64)
    chosen = crate.top_mass(maps, kept=0.6)
    for own, inside in zip(maps.flatten(0, 1), chosen.flatten(0, 1)):
        assert own[inside].sum() >= 0.6 * own.sum()
        assert own[inside].sum() - own[inside].min() < 0.6 * own.sum(), "one patch less would do"
        assert own[inside].min() >= own[~inside].max()
    assert crate.top_mass(torch.zeros(1, 1, 9)).sum() == 1


def test_overlap_of_known_patches():
    masks = torch.zeros(1, 2, 4, 4, dtype=torch.bool)
    masks[0, 0, :2, :2] = True  # the first patch
    masks[0, 1, 2:, 2:] = True  # the last
    chosen = torch.tensor([[[True, False, False, False], [True, False, False, True], [False, True, True, False]]])
    found = crate.overlap(chosen, masks)
    assert found.per_object == pytest.approx((1 + 0.5) / 2)  # the first candidate is the first object, the second holds both
    assert found.foreground == 1.0
    assert crate.overlap(chosen[:, 2:], masks) == segmentation.Overlap(0.0, 0.0)


def test_random_patches_are_as_many_and_fit_by_chance_only():
    masks = torch.zeros(400, 1, 8, 8, dtype=torch.bool)
    masks[..., :4, :] = True
    chosen = torch.zeros(400, 1, 64, dtype=torch.bool)
    chosen[..., :32] = True
    other = segmentation.random_patches(chosen, generator=generator())
    assert torch.equal(other.sum(-1), chosen.sum(-1))
    assert crate.overlap(chosen, masks).per_object == 1.0
    assert crate.overlap(other, masks).per_object == pytest.approx(1 / 3, abs=0.01)  # half of the half, over three quarters


@pytest.mark.parametrize("make", [CRATE, ViT])
def test_maps_are_what_the_class_token_of_the_last_block_attends_to(make):
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


def test_components_are_the_leading_ones_and_exceeding_takes_both_sides():
    model = build(lambda: ViT.for_tokens(9, 5, 3, dim=12, depth=1, heads=3), generator()).double().eval()
    inputs = torch.randn(6, 9, 5, generator=generator(1), dtype=torch.float64)
    with torch.no_grad():
        tokens = model.embed(inputs)
        tokens = torch.cat([model.cls_token.expand(6, -1, -1), tokens], 1) + model.pos_embedding
        tokens = model.blocks[0](tokens)[:, 1:].flatten(0, 1)
    centred = tokens - tokens.mean(0)
    left = torch.linalg.svd(centred, full_matrices=False)[0][:, :2]
    found = crate.components(model, inputs, count=2).transpose(1, 2).flatten(0, 1)
    cosine = torch.nn.functional.cosine_similarity(found, left, dim=0).abs()
    assert_close(cosine, torch.ones(2, dtype=torch.float64))
    maps = segmentation.exceeding(torch.tensor([[[1.0, 0.0, -1.0, 4.0]]]))
    assert_close(maps, torch.tensor([[[0.0, 0.0, 0.0, 3.0], [0.0, 1.0, 2.0, 0.0]]]))


def test_components_of_a_network_without_attention_maps_are_those_of_its_last_block():
    sizes = {"dim": 12, "depth": 2, "heads": 3}
    model = build(lambda: CRATE.for_tokens(9, 5, 3, **sizes, attention=crate.ExactAttention), generator()).double().eval()
    inputs = torch.randn(6, 9, 5, generator=generator(1), dtype=torch.float64)
    seen = []
    handle = model.transformer.register_forward_hook(lambda module, arguments, output: seen.append(output[:, 1:].detach()))
    found = crate.components(model, inputs)
    handle.remove()
    assert found.shape == (6, 2, 9)
    centred = seen[0] - seen[0].mean((0, 1))
    left = torch.linalg.svd(centred.flatten(0, 1), full_matrices=False)[0][:, :2]
    cosine = torch.nn.functional.cosine_similarity(found.transpose(1, 2).flatten(0, 1), left, dim=0).abs()
    assert_close(cosine, torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("attention", [crate.ExactAttention, crate.TokenStatisticsAttention])
def test_a_block_without_attention_map_says_so(attention):
    model = CRATE.for_tokens(9, 5, 3, dim=12, heads=3, attention=attention)
    with pytest.raises(ValueError, match=rf"attention maps, got blocks of {attention.__name__}, which compute none; take crate.components"):
        crate.class_attention(model, torch.zeros(2, 9, 5))


def test_bad_input_is_told(unchecked):
    with pytest.raises(ValueError, match=r"inside \(0, 1\), got 1"):
        crate.top_mass(torch.ones(1, 1, 4), kept=1)
    with pytest.raises(ValueError, match="non-negative numbers, got one of -1"):
        crate.top_mass(-torch.ones(1, 1, 4))
    with pytest.raises(ValueError, match="8 patches for 4 x 4 pixels"):
        crate.overlap(torch.ones(1, 1, 8, dtype=torch.bool), torch.ones(1, 1, 4, 4, dtype=torch.bool))
    model = CRATE.for_tokens(9, 5, 3, dim=12, heads=3)
    for count in (0, 13):
        with pytest.raises(ValueError, match=f"count must be at least 1 and at most 12, the width of the tokens, got {count}"):
            crate.components(model, torch.zeros(2, 9, 5), count=count)
    chosen, masks = torch.ones(2, 1, 4, dtype=torch.bool), torch.ones(2, 3, 4, 4, dtype=torch.bool)
    with pytest.raises(
        ValueError, match=r"masks must have shape \[2, objects, size, size\], got \[2, 4, 4\]; one object is masks\[:, :1\]"
    ):
        crate.overlap(chosen, masks[:, 0])
    with pytest.raises(ValueError, match=r"masks must have shape \[2, objects, size, size\], got \[1, 3, 4, 4\]"):
        crate.overlap(chosen, masks[:1])
    with pytest.raises(ValueError, match=r"chosen must have shape \[n, candidates, seq\], got \[2, 4\]; top_mass gives it"):
        crate.overlap(chosen[:, 0], masks)
