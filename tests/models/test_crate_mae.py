"""CRATE-MAE: sizes, the forward pass in plain operations, what masks hide, and images that can be completed exactly."""

import pytest
import torch
from torch.testing import assert_close

from tests.problems.crate import completed_patches
from transformer_theory import models
from transformer_theory.models.crate_mae import sines_and_cosines

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


def test_forward_is_the_formula(model, images, masked):
    expected = completed_patches(model.state_dict(), model.patches(images), masked, heads=3, depth=2)
    assert_close(model(images, masked), expected)
    errors = [(expected[i, j] - model.patches(images)[i, j]).square().mean() for i in range(5) for j in range(16) if masked[i, j]]
    assert_close(model.loss(images, masked), torch.stack(errors).mean())


def test_masked_pixels_are_not_seen_and_the_others_are_not_scored(model, images, masked):
    hidden = masked.unflatten(1, (4, 4)).repeat_interleave(2, 1).repeat_interleave(2, 2)[:, None].expand_as(images)
    changed = torch.where(hidden, images + 1, images)
    assert torch.equal(model(changed, masked), model(images, masked))
    assert torch.equal(model.encode(changed, masked), model.encode(images, masked))
    assert not torch.equal(model.encode(changed), model.encode(images))
    assert not torch.equal(model.encode(images, masked), model.encode(images))
    assert not torch.equal(model(torch.where(hidden, images, images + images**2), masked), model(images, masked))
    copy = model(images, masked).detach()
    model.forward = lambda *_: copy + (~masked)[..., None]
    far = model.loss(images, masked)
    model.forward = lambda *_: copy
    assert_close(far, model.loss(images, masked))


def test_every_trained_weight_gets_a_gradient_and_positions_stay(model, images, masked):
    model.loss(images, masked).backward()
    without = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert without == ["encoder_positions", "decoder_positions"]


def test_as_many_patches_are_masked_in_each_image_and_all_alike():
    draws = models.random_mask(4000, 12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(draws.sum(1), torch.full((4000,), 9))
    assert (draws.double().mean(0) - 0.75).abs().max() < 0.03  # over four standard deviations
    assert int(models.random_mask(1, 196, generator=torch.Generator()).sum()) == 147
    assert int(models.random_mask(1, 5, generator=torch.Generator(), share=0.5).sum()) == 3


def test_products_of_positions_depend_on_how_far_apart_they_are():
    table = sines_and_cosines(5, 24)[0].double()
    assert torch.equal(table[0], torch.zeros(24, dtype=torch.float64))
    grid = table[1:].unflatten(0, (5, 5))
    products = torch.einsum("rcd,sed->rcse", grid, grid)
    assert_close(products[:-1, :, :-1], products[1:, :, 1:], atol=1e-6, rtol=0)
    assert_close(products[:, :-1, :, :-1], products[:, 1:, :, 1:], atol=1e-6, rtol=0)
    assert_close(products[0, 0], products[0, 0].T, atol=1e-6, rtol=0)  # rows and columns alike
    assert products[0, 0, 0, 0] == pytest.approx(12)
    assert products[0, 0].flatten()[1:].max() < 11.99


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
        shuffled = colours.roll(1, 0)  # what is visible says nothing of another image
        assert float((model(shuffled, masked) - model.patches(colours)).square().mean(-1)[masked].mean()) > 1


def test_inputs_that_do_not_fit_are_named(model, images, masked, unchecked):
    with pytest.raises(ValueError, match=r"masked must be torch\.bool \[5, 16\], one for each patch, got torch\.bool \[5, 15\]"):
        model(images, masked[:, 1:])
    with pytest.raises(ValueError, match=r"got torch\.float32 \[5, 16\]; see random_mask"):
        model(images, masked.float())
    with pytest.raises(ValueError, match="masked must hide at least one patch, got none"):
        model.loss(images, torch.zeros(5, 16, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"inputs must be torch\.float64 as the weights are, got torch\.float16"):
        model(images.half(), masked)
    with pytest.raises(ValueError, match=r"share must lie in \(0, 1\), got 1\.0"):
        models.random_mask(1, 16, generator=torch.Generator(), share=1.0)
    with pytest.raises(ValueError, match="dim must be a multiple of 4, for sines and cosines of rows and columns, got 18"):
        models.CRATEMAE(**{**SIZES, "dim": 18})
    with pytest.raises(ValueError, match="patch_size must divide image_size, got 3 and 8"):
        models.CRATEMAE(**{**SIZES, "patch_size": 3})
