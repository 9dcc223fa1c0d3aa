"""CRATE-MAE: sizes, the released forward pass in plain operations, what masks hide, and images that can be
completed exactly.
"""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tests.problems.crate import completed_patches
from transformer_theory import models
from transformer_theory.models.crate import Ista
from transformer_theory.models.crate.masked_autoencoder import sines_and_cosines

SIZES = {"image_size": 8, "patch_size": 2, "channels": 2, "dim": 12, "depth": 2, "heads": 3}
# dim, parameters, those of them that are trained
RELEASED = {
    "crate_mae_tiny": (384, 11_555_328, 11_404_032),
    "crate_mae_small": (576, 25_405_824, 25_178_880),
    "crate_mae_base": (768, 44_638_464, 44_335_872),
}


@pytest.fixture
def model():
    return models.build(lambda: models.CRATEMAE(**SIZES), torch.Generator().manual_seed(0)).double()


@pytest.fixture
def images():
    return torch.randn(5, 2, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def masked():
    return models.random_mask(5, 16, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", RELEASED)
def test_sizes_are_those_of_the_released_networks(name):
    dim, parameters, trained = RELEASED[name]
    with torch.device("meta"):
        model = getattr(models, name)()
    layers, tables = 24 * (3 * dim**2 + 5 * dim), 2 * 197 * dim
    outside = (768 + 1) * dim + 2 * dim + 2 * dim + (dim + 1) * dim + 2 * dim + (dim + 1) * 768
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == layers + outside == trained
    assert sum(p.numel() for p in model.parameters()) == layers + outside + tables == parameters


@pytest.fixture
def released():
    """Random weights with the names and shapes of a released autoencoder: width 128, two heads, two layers a
    half, 12 px, patches of 4.
    """
    generator = torch.Generator().manual_seed(0)

    def norm(name):
        return {f"{name}.weight": (128,), f"{name}.bias": (128,)}

    def attention(name):
        return {
            f"{name}.qkv.weight": (128, 128),
            f"{name}.to_out.0.weight": (128, 128),
            f"{name}.to_out.0.bias": (128,),
        }

    shapes = {
        "cls_token": (1, 1, 128),
        "mask_token": (1, 1, 128),
        "pos_embed": (1, 10, 128),
        "decoder_pos_embed": (1, 10, 128),
    }
    shapes |= {"patch_embed.proj.weight": (128, 3, 4, 4), "patch_embed.proj.bias": (128,)}
    for i in range(2):
        layer = f"blocks.{i}.layers.0"
        shapes |= (
            norm(f"{layer}.0.norm")
            | attention(f"{layer}.0.fn")
            | norm(f"{layer}.1.norm")
            | {f"{layer}.1.fn.weight": (128, 128)}
        )
    shapes |= norm("norm") | {"decoder_embed.weight": (128, 128), "decoder_embed.bias": (128,)}
    for i in range(2):
        layer = f"decoder_blocks.{i}.layers.0"
        shapes |= (
            norm(f"{layer}.0.norm")
            | {f"{layer}.0.fn.weight": (128, 128)}
            | norm(f"{layer}.1.norm")
            | attention(f"{layer}.1.fn")
        )
    shapes |= norm("decoder_norm") | {"decoder_pred.weight": (48, 128), "decoder_pred.bias": (48,)}
    weights = {name: 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: value + (1 if "norm.weight" in name else 0) for name, value in weights.items()}


@pytest.mark.parametrize("lam", [0.5, 5.0])
def test_released_weights_give_the_released_patches(released, lam):
    generator = torch.Generator().manual_seed(1)
    images, masked = (
        torch.randn(4, 3, 12, 12, generator=generator),
        models.random_mask(4, 9, generator=generator),
    )
    model = models.CRATEMAE.from_released({"epoch": 3, "model": released}, sparsify=partial(Ista, lam=lam))
    assert not model.training
    assert set(model.state_dict()) == set(released)
    with torch.no_grad():
        patches = model(images, masked)
    expected = completed_patches(released, images, masked, heads=2, depth=2, lam=lam)
    assert patches.shape == (4, 9, 48)
    assert expected.std() > 0.1
    assert_close(patches.double(), expected, atol=1e-5, rtol=0)
    other = completed_patches(released, images, masked, heads=2, depth=2, lam=lam + 1)
    assert (other - expected).abs().max() > 0.01  # the test depends on lambda


def test_weights_are_copied_in_their_own_precision(released):
    exact = {name: value.double() + 1e-12 for name, value in released.items()}
    state = torch.get_rng_state()
    model = models.CRATEMAE.from_released({f"module.{name}": value for name, value in exact.items()})
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, exact[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        model.mask_token.zero_()
    assert exact["mask_token"].abs().max() > 0
    assert models.CRATEMAE.from_released(released, heads=4).blocks[0].layers[0][0].fn.subspaces().shape == (
        4,
        128,
        32,
    )


def test_weights_that_are_not_those_of_a_released_autoencoder_are_named(released):
    read = models.CRATEMAE.from_released

    def without(name):
        return {other: value for other, value in released.items() if other != name}

    with pytest.raises(
        ValueError, match=r"CRATE-MAE as released, with patch_embed\.proj\.weight, pos_embed, .*, got none"
    ):
        read({})
    with pytest.raises(
        ValueError,
        match=r"must hold the 46 weights of CRATEMAE, got 1 missing: decoder_embed\.bias; 1 unknown: extra$",
    ):
        read(without("decoder_embed.bias") | {"extra": torch.zeros(1)})
    gap = {name.replace("decoder_blocks.1.", "decoder_blocks.2."): value for name, value in released.items()}
    with pytest.raises(
        ValueError,
        match=r"8 missing: decoder_blocks\.1\.layers\.0\.0\.norm\.weight, .*; 8 unknown: decoder_blocks\.2\.",
    ):
        read(gap)
    with pytest.raises(
        ValueError, match=r"1 of another shape: decoder_pos_embed \[1, 9, 128\] for \[1, 10, 128\]$"
    ):
        read(released | {"decoder_pos_embed": torch.zeros(1, 9, 128)})
    with pytest.raises(ValueError, match=r"square images in square patches, got 10 patches of 4 x 4 pixels"):
        read(released | {"pos_embed": torch.zeros(1, 11, 128)})
    with pytest.raises(ValueError, match="heads must divide the 128 rows of qkv, got 3; pass heads="):
        read(released, heads=3)
    with pytest.raises(ValueError, match=r"floating-point weights, got torch\.int64 in pos_embed"):
        read(released | {"pos_embed": torch.zeros(1, 10, 128, dtype=torch.long)})


def test_forward_is_the_formula(model, images, masked):
    expected = completed_patches(model.state_dict(), images, masked, heads=3, depth=2)
    assert_close(model(images, masked), expected)
    errors = [
        (expected[i, j] - model.patches(images)[i, j]).square().mean()
        for i in range(5)
        for j in range(16)
        if masked[i, j]
    ]
    assert_close(model.loss(images, masked), torch.stack(errors).mean())


def test_masked_pixels_are_hidden_and_visible_ones_not_scored(model, images, masked):
    hidden = (
        masked.unflatten(1, (4, 4)).repeat_interleave(2, 1).repeat_interleave(2, 2)[:, None].expand_as(images)
    )
    changed = torch.where(hidden, images + 1, images)
    assert torch.equal(model(changed, masked), model(images, masked))
    assert torch.equal(model.encode(changed, masked), model.encode(images, masked))
    assert not torch.equal(model.encode(changed), model.encode(images))
    assert not torch.equal(model.encode(images, masked), model.encode(images))
    assert not torch.equal(
        model(torch.where(hidden, images, images + images**2), masked), model(images, masked)
    )
    copy = model(images, masked).detach()
    model.forward = lambda *_: copy + (~masked)[..., None]
    far = model.loss(images, masked)
    model.forward = lambda *_: copy
    assert_close(far, model.loss(images, masked))


def test_every_weight_gets_a_gradient_but_fixed_positions_and_the_unused_map(model, images, masked):
    model.loss(images, masked).backward()
    without = {name for name, weight in model.named_parameters() if weight.grad is None}
    assert without == {"pos_embed", "decoder_pos_embed", "decoder_embed.weight", "decoder_embed.bias"}


def test_masks_have_the_same_size_and_are_uniform():
    draws = models.random_mask(4000, 12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(draws.sum(1), torch.full((4000,), 9))
    assert (draws.double().mean(0) - 0.75).abs().max() < 0.03  # over four standard deviations
    assert int(models.random_mask(1, 196, generator=torch.Generator()).sum()) == 147
    assert int(models.random_mask(1, 5, generator=torch.Generator(), share=0.5).sum()) == 3
    assert int(models.random_mask(1, 10, generator=torch.Generator(), share=0.9).sum()) == 9


def test_products_of_positions_depend_on_their_distance():
    table = sines_and_cosines(5, 24)[0].double()
    assert torch.equal(table[0], torch.zeros(24, dtype=torch.float64))
    grid = table[1:].unflatten(0, (5, 5))
    products = torch.einsum("rcd,sed->rcse", grid, grid)
    assert_close(products[:-1, :, :-1], products[1:, :, 1:], atol=1e-6, rtol=0)
    assert_close(products[:, :-1, :, :-1], products[:, 1:, :, 1:], atol=1e-6, rtol=0)
    assert_close(products[0, 0], products[0, 0].T, atol=1e-6, rtol=0)  # rows and columns alike
    assert products[0, 0, 0, 0] == pytest.approx(12)
    assert products[0, 0].flatten()[1:].max() < 11.99
    # the released table: the column in the first half, slower waves later
    assert_close(
        grid[2, 3, :6],
        torch.tensor([3 * 10_000.0 ** (-k / 6) for k in range(6)], dtype=torch.float64).sin(),
        atol=1e-6,
        rtol=0,
    )
    assert_close(
        grid[2, 3, 18:],
        torch.tensor([2 * 10_000.0 ** (-k / 6) for k in range(6)], dtype=torch.float64).cos(),
        atol=1e-6,
        rtol=0,
    )


def test_it_learns_to_complete_images_of_one_colour():
    """A pixel is a number drawn for its image: without the visible patches the error is 1, with them 0."""
    generator = torch.Generator().manual_seed(0)
    model = models.build(lambda: models.CRATEMAE(**{**SIZES, "dim": 24, "depth": 1}), generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    def sample(batch):
        colours = torch.randn(batch, 1, 1, 1, generator=generator).expand(-1, 2, 8, 8)
        return colours, models.random_mask(batch, 16, generator=generator)

    assert float(model.loss(*sample(2000)).detach()) > 0.8
    for _ in range(150):
        optimizer.zero_grad()
        model.loss(*sample(64)).backward()
        optimizer.step()
    with torch.no_grad():
        colours, masked = sample(2000)
        assert float(model.loss(colours, masked)) < 0.1
        shuffled = colours.roll(1, 0)  # the visible patches carry no information about another image
        assert float((model(shuffled, masked) - model.patches(colours)).square().mean(-1)[masked].mean()) > 1


def test_inputs_that_do_not_fit_are_named(model, images, masked, unchecked):
    with pytest.raises(
        ValueError,
        match=r"masked must be torch\.bool \[5, 16\], one for each patch, got torch\.bool \[5, 15\]",
    ):
        model(images, masked[:, 1:])
    with pytest.raises(ValueError, match=r"got torch\.float32 \[5, 16\]; see random_mask"):
        model(images, masked.float())
    with pytest.raises(ValueError, match="masked must hide at least one patch, got none"):
        model.loss(images, torch.zeros(5, 16, dtype=torch.bool))
    with pytest.raises(
        ValueError, match=r"inputs must be torch\.float64 as the weights are, got torch\.float16"
    ):
        model(images.half(), masked)
    with pytest.raises(ValueError, match=r"share must lie in \(0, 1\), got 1\.0"):
        models.random_mask(1, 16, generator=torch.Generator(), share=1.0)
    with pytest.raises(
        ValueError, match="dim must be a multiple of 4, for sines and cosines of rows and columns, got 18"
    ):
        models.CRATEMAE(**{**SIZES, "dim": 18})
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        models.CRATEMAE(**{**SIZES, "depth": 0})
    with pytest.raises(ValueError, match=r"images must have shape \[batch, 2, 8, 8\], got \[5, 2, 8, 6\]"):
        model(images[..., :6], masked)
    with pytest.raises(ValueError, match="patch_size must divide image_size, got 3 and 8"):
        models.CRATEMAE(**{**SIZES, "patch_size": 3})
