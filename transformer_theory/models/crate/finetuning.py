"""Fine-tuning: a trained CRATE for images of another size, for other classes, or with the mean of the tokens as the input of its head.

Each function returns a new network with copies of the weights, in the mode and dtype of the given network, which does not change.

    pretrained = CRATE.from_released(load_weights(path), 224, 16)
    model = with_pooling(with_head(at_resolution(pretrained, 256), 10, generator=generator), "mean")

Source: :cite:t:`dosovitskiy2021image` (interpolated positions, new head).
"""

import copy

import torch
from torch import nn
from torch.nn import functional

from ...core.validation import integers
from ..embedding import Patches, build
from .network import CRATE, Pooling, checked_pooling


def at_resolution(model: CRATE, image_size: int) -> CRATE:
    """Returns the network for square images of another size, with the same patches and interpolated positions.

    The positions of the patches, [side, side, dim], are interpolated bicubically between the centres of the patches; the class token keeps
    its own. With the size of the network nothing changes.

    Args:
        model: a network for images, whose number of patches is a square.
        image_size: side of the new images in pixels.
    Raises:
        ValueError: the network does not read images, or its patches do not tile images of this size.
    """
    patches = model.to_patch_embedding[0] if isinstance(model.to_patch_embedding, nn.Sequential) else None
    if not isinstance(patches, Patches):
        raise ValueError("model must read images, got a network for tokens; build one with for_images or from_released")
    resized = copy.deepcopy(model)
    assert isinstance(resized.to_patch_embedding, nn.Sequential)
    new = Patches(image_size=image_size, patch_size=patches.patch_size, channels=patches.channels)
    resized.to_patch_embedding[0] = new
    if new.seq != patches.seq:
        side, new_side = patches.image_size // patches.patch_size, image_size // patches.patch_size
        positions = model.pos_embedding.detach()
        grid = positions[:, 1:].unflatten(1, (side, side)).permute(0, 3, 1, 2)  # [1, dim, side, side]
        # With align_corners=False both grids of centres cover the same square, so a position keeps its place in the image. With
        # antialias=True torch uses the cubic kernel that reproduces affine functions, and averages when there are fewer patches.
        grid = functional.interpolate(grid, size=(new_side, new_side), mode="bicubic", align_corners=False, antialias=True)
        patch_positions = grid.permute(0, 2, 3, 1).flatten(1, 2)
        resized.pos_embedding = nn.Parameter(torch.cat([positions[:, :1], patch_positions], dim=1))
    return resized


def with_head(model: CRATE, num_classes: int, *, generator: torch.Generator) -> CRATE:
    """Returns the network with a new last linear map for ``num_classes`` classes, initialised as torch initialises linear maps.

    Args:
        model: any CRATE.
        num_classes: number of the new classes.
        generator: source of the new weights.
    Raises:
        ValueError: there is less than one class.
    """
    integers(num_classes=num_classes)
    adapted = copy.deepcopy(model)
    last = adapted.mlp_head[-1]
    assert isinstance(last, nn.Linear)
    adapted.mlp_head[-1] = build(lambda: nn.Linear(last.in_features, num_classes), generator).to(last.weight)
    return adapted


def with_pooling(model: CRATE, pooling: Pooling) -> CRATE:
    """Returns the network with another input of its head: "cls", the class token, or "mean", the mean of all tokens.

    Raises:
        ValueError: ``pooling`` is unknown.
    """
    adapted = copy.deepcopy(model)
    adapted.pooling = checked_pooling(pooling)
    return adapted
