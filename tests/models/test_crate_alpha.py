"""CRATE-alpha: sizes from the formula, the forward pass in plain operations, and the size of the published
files.
"""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tests.problems.crate import alpha_logits, published_alpha
from transformer_theory import models
from transformer_theory.models.crate import OvercompleteIsta

# patch size, parameters at 1000 classes
BASE = {32: 73_985_512, 16: 72_328_936, 8: 72_338_152}
LARGE = {32: 255_982_568, 14: 253_650_920, 8: 253_786_088}


def parameters(build, **sizes):
    with torch.device("meta"):
        model = build(**sizes)
    return sum(p.numel() for p in model.parameters())


def counted(dim, depth, patch_size):
    patch, seq = 3 * patch_size**2, (224 // patch_size) ** 2
    return (
        depth * (10 * dim**2 + 4 * dim)
        + (patch + 1) * dim
        + (seq + 1) * dim
        + dim
        + 2 * dim
        + 1000 * (dim + 1)
    )


@pytest.mark.parametrize("patch_size", BASE)
def test_sizes_of_base(patch_size):
    assert (
        parameters(models.crate_alpha_base, patch_size=patch_size)
        == counted(768, 12, patch_size)
        == BASE[patch_size]
    )


@pytest.mark.parametrize("patch_size", LARGE)
def test_sizes_of_large(patch_size):
    assert (
        parameters(models.crate_alpha_large, patch_size=patch_size)
        == counted(1024, 24, patch_size)
        == LARGE[patch_size]
    )


def test_published_files_have_the_size_of_these_networks():
    assert round(4e-6 * parameters(models.crate_alpha_base)) == 289  # MB
    assert round(4e-9 * parameters(models.crate_alpha_large), 2) == 1.01  # GB


@pytest.fixture
def published():
    return published_alpha()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_published_weights_give_the_published_logits(published, dtype):
    images = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model = models.crate_alpha_from_published(
        {"model": {name: value.to(dtype) for name, value in published.items()}}
    )
    assert not model.training
    with torch.no_grad():
        logits = model(images.to(dtype))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert_close(logits.double(), alpha_logits(published, images, heads=2, depth=2), atol=tolerance, rtol=0)


def test_weights_that_are_not_those_of_a_published_network_are_named(published):
    read = models.crate_alpha_from_published
    with pytest.raises(
        ValueError,
        match=r"CRATE-alpha classifier as published, with conv1\.weight, pos_embedding, .*, got none",
    ):
        read({})
    del published["transformer.layers.1.1.fn.D1"]
    with pytest.raises(
        ValueError, match=r"1 missing: transformer\.layers\.1\.1\.fn\.decoder; 1 unknown: extra$"
    ):
        read(published | {"extra": torch.zeros(1)})
    with pytest.raises(
        ValueError, match=r"1 of another shape: to_patch_embedding\.1\.weight \[128, 36\] for \[128, 48\]"
    ):
        read(
            published
            | {
                "conv1.weight": torch.zeros(128, 3, 4, 3),
                "transformer.layers.1.1.fn.D1": torch.zeros(128, 512),
            }
        )
    with pytest.raises(ValueError, match="qkv must have 128 rows, heads of width 64, got 64"):
        read(published | {"transformer.layers.0.0.fn.qkv.weight": torch.zeros(64, 128)})


def test_atoms_are_a_choice_and_sizes_must_fit():
    build = partial(models.crate_alpha, image_size=6, num_classes=3, dim=12, depth=1, heads=3)
    small, usual = (
        parameters(build, patch_size=2, sparsify=partial(OvercompleteIsta, ratio=ratio)) for ratio in (2, 4)
    )
    assert usual - small == 2 * 2 * 12**2
    with pytest.raises(ValueError, match="patch_size must divide image_size, got 4 and 6"):
        build(patch_size=4)
