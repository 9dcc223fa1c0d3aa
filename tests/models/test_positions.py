"""Positions on another grid: against Pillow, against the cubic kernel in numpy, and what is refused."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory import models
from transformer_theory.models import resized_positions


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def cubic(x, a=-0.5):
    """The cubic kernel of Keys with a = -1/2, which reproduces affine functions."""
    x = np.abs(x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def along_one_axis(old, new):
    """The matrix [new, old] between centres: cell j has its centre at j + 1/2; where the grid becomes
    coarser, the kernel widens.
    """
    width = max(old / new, 1.0)
    centres = (np.arange(new) + 0.5) * old / new
    weights = cubic((np.arange(old) + 0.5 - centres[:, None]) / width)
    return weights / weights.sum(1, keepdims=True)


@each_case(
    ("old", "new"),
    [((4, 4), (8, 8)), ((8, 8), (3, 3)), ((14, 14), (16, 16)), ((6, 4), (5, 9)), ((2, 2), (7, 7))],
)
def test_interpolation_is_that_of_the_kernel_and_of_pillow(old, new):
    positions = torch.randn(1, 1 + old[0] * old[1], 5, generator=generator())
    resized = resized_positions(positions, new, source=old)
    assert torch.equal(resized[:, 0], positions[:, 0])  # the class token keeps its own
    grid = positions[0, 1:].reshape(*old, 5).double().numpy()
    expected = np.einsum(
        "ri,cj,ijd->rcd", along_one_axis(old[0], new[0]), along_one_axis(old[1], new[1]), grid
    )
    assert_close(resized[0, 1:], torch.tensor(expected).reshape(-1, 5).float(), atol=2e-6, rtol=0)
    for channel in range(5):
        image = Image.fromarray(grid[:, :, channel].astype(np.float32), mode=None).resize(
            new[::-1], Image.Resampling.BICUBIC
        )
        assert_close(resized[0, 1:, channel], torch.tensor(np.asarray(image)).flatten(), atol=2e-6, rtol=0)


def test_without_a_source_the_grid_is_a_square_and_an_equal_grid_changes_nothing():
    positions = torch.randn(1, 17, 3, generator=generator())
    assert torch.equal(
        resized_positions(positions, (6, 6)), resized_positions(positions, (6, 6), source=(4, 4))
    )
    assert resized_positions(positions, (4, 4)) is positions
    half = resized_positions(positions.half(), (6, 6))
    assert half.dtype == torch.float16
    assert_close(half.float(), resized_positions(positions, (6, 6)), atol=4e-3, rtol=0)
    without = resized_positions(positions[:, 1:], (6, 6), kept=0)
    assert torch.equal(without, resized_positions(positions, (6, 6))[:, 1:])


@each_case(
    ("shape", "arguments", "message"),
    [
        ((1, 18, 3), {}, r"a grid of 4 x 4 patches behind 1 kept, got 18 for a grid of 2 x 2; pass source="),
        ((1, 17, 3), {"source": (3, 5)}, r"a grid of 3 x 5 patches"),
        ((1, 1, 3), {}, r"a grid of 0 x 0 patches"),
        ((2, 17, 3), {}, r"floating-point \[1, n, dim\], got torch.float32 \[2, 17, 3\]"),
    ],
)
def test_positions_that_form_no_grid_are_refused(unchecked, shape, arguments, message):
    with pytest.raises(ValueError, match=message):
        resized_positions(torch.zeros(shape), (2, 2), **arguments)


@pytest.mark.parametrize("kind", [models.CRATE, models.ViT])
def test_networks_are_resized_and_get_a_new_head(kind):
    sizes = {"patch_size": 2, "num_classes": 3, "dim": 8, "depth": 1, "heads": 2}
    model = models.build(lambda: kind.for_images(image_size=8, **sizes), generator()).eval()
    larger = models.with_head(models.at_resolution(model, 12), 5, generator=generator(1))
    images = torch.randn(2, 3, 12, 12, generator=generator(2))
    reference = models.build(
        lambda: kind.for_images(image_size=12, **{**sizes, "num_classes": 5}), generator(3)
    ).eval()
    state = larger.state_dict()
    assert_close(
        state["pos_embedding"], resized_positions(model.pos_embedding.detach(), (6, 6)), atol=0, rtol=0
    )
    reference.load_state_dict(state)
    with torch.no_grad():
        assert_close(larger(images), reference(images), atol=0, rtol=0)
        assert torch.equal(models.at_resolution(model, 8)(images[..., :8, :8]), model(images[..., :8, :8]))
