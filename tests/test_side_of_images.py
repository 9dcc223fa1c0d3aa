"""The side of images that a network accepts besides the one in its configuration."""

import pytest
import torch
from transformers import Dinov2Config, Dinov2Model, ViTConfig, ViTModel

from transformer_theory.comparison.user_images import with_images
from transformer_theory.models.user_model import UserModel

SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
    "num_channels": 1,
}


def test_a_network_that_interpolates_its_positions_takes_another_side():
    user = UserModel(Dinov2Model(Dinov2Config(**SIZES)).eval(), "dino")
    inputs = with_images(user, "digits", size=8, max_samples=3)[0].inputs
    assert isinstance(inputs, torch.Tensor)
    assert inputs.shape == (3, 1, 8, 8)


def test_a_network_of_fixed_positions_refuses_another_side_in_one_line():
    user = UserModel(ViTModel(ViTConfig(**SIZES, intermediate_size=8)).eval(), "vit")
    with pytest.raises(ValueError, match=r"^size must be 16, the side .* of vit, got 8, which it refuses"):
        with_images(user, "digits", size=8, max_samples=3)
