"""CRATE-alpha: sizes from the formula, the forward pass in plain operations, and the size of the published files."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tests.problems.crate import alpha_layer
from transformer_theory import models
from transformer_theory.theories.crate.block import OvercompleteIsta

# patch size, parameters at 1000 classes
BASE = {32: 74_002_408, 16: 72_341_224, 8: 72_349_288}
LARGE = {32: 256_015_336, 14: 253_678_720, 8: 253_813_096}


def parameters(build, **sizes):
    with torch.device("meta"):
        model = build(**sizes)
    return sum(p.numel() for p in model.parameters())


def counted(dim, depth, patch_size):
    patch, seq = 3 * patch_size**2, (224 // patch_size) ** 2
    outside = 2 * patch + (patch + 1) * dim + 2 * dim + (seq + 1) * dim + dim + 2 * dim + 1000 * (dim + 1)
    return depth * (10 * dim**2 + 5 * dim) + outside


@pytest.mark.parametrize("patch_size", BASE)
def test_sizes_of_base(patch_size):
    assert parameters(models.crate_alpha_base, patch_size=patch_size) == counted(768, 12, patch_size) == BASE[patch_size]


@pytest.mark.parametrize("patch_size", LARGE)
def test_sizes_of_large(patch_size):
    assert parameters(models.crate_alpha_large, patch_size=patch_size) == counted(1024, 24, patch_size) == LARGE[patch_size]


def test_published_files_have_the_size_of_these_networks():
    assert round(4e-6 * parameters(models.crate_alpha_base)) == 289  # MB
    assert round(4e-9 * parameters(models.crate_alpha_large), 2) == 1.01  # GB


def test_forward_is_the_formula():
    sizes = {"image_size": 6, "patch_size": 2, "num_classes": 3, "dim": 12, "depth": 2, "heads": 3}
    model = models.build(lambda: models.crate_alpha(**sizes), torch.Generator().manual_seed(0)).double()
    images = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w = model.state_dict()
    assert w["transformer.layers.0.1.fn.weight"].shape == w["transformer.layers.0.1.fn.decoder"].shape == (12, 48)
    x = torch.cat([w["cls_token"].expand(4, -1, -1), model.to_patch_embedding(images)], 1) + w["pos_embedding"]
    for i in range(2):
        x = alpha_layer(x, w, f"transformer.layers.{i}", heads=3)
    assert_close(model(images), model.mlp_head(x[:, 0]))


def test_atoms_are_a_choice_and_sizes_must_fit():
    build = partial(models.crate_alpha, image_size=6, num_classes=3, dim=12, depth=1, heads=3)
    small, usual = (parameters(build, patch_size=2, sparsify=partial(OvercompleteIsta, ratio=ratio)) for ratio in (2, 4))
    assert usual - small == 2 * 2 * 12**2
    with pytest.raises(ValueError, match="patch_size must divide image_size, got 4 and 6"):
        build(patch_size=4)
