"""Fine-tuning: a trained CRATE or ViT for images of another size, for other classes, or with the mean of the
tokens as input of its head.

Each function returns a new network with copies of the weights, in the mode and dtype of the given network,
which does not change.

    pretrained = CRATE.from_released(load_weights(path), 224, 16)
    model = with_pooling(with_head(at_resolution(pretrained, 256), 10, generator=generator), "mean")

Source: :cite:t:`dosovitskiy2021image` (interpolated positions, new head).
"""

import copy
from typing import TypeVar

import torch
from torch import nn

from ...core.validation import integers
from ..embedding import Patches, build, resized_positions
from ..vit import ViT
from .network import CRATE, Pooling, checked_pooling

Classifier = TypeVar("Classifier", CRATE, ViT)


def at_resolution(model: Classifier, image_size: int) -> Classifier:
    """Returns the network for square images of another size, with the same patches and interpolated
    positions.

    The positions are interpolated by :func:`.resized_positions`; the class token keeps its own. With the size
    of the network nothing changes.

    Args:
        model: a network for images, whose number of patches is a square.
        image_size: side of the new images in pixels.
    Raises:
        ValueError: the network does not read images, or its patches do not tile images of this size.
    """
    patches = _patches(model)
    new = Patches(image_size=image_size, patch_size=patches.patch_size, channels=patches.channels)
    resized = copy.deepcopy(model)
    if isinstance(resized, ViT):
        resized.reader = new
    else:
        assert isinstance(resized.to_patch_embedding, nn.Sequential)
        resized.to_patch_embedding[0] = new
    if new.seq != patches.seq:
        side = image_size // patches.patch_size
        resized.pos_embedding = nn.Parameter(resized_positions(model.pos_embedding.detach(), (side, side)))
    return resized


def with_head(model: Classifier, num_classes: int, *, generator: torch.Generator) -> Classifier:
    """Returns the network with a new last linear map for ``num_classes`` classes, initialised as torch
    initialises linear maps.

    Args:
        model: any CRATE or ViT.
        num_classes: number of the new classes.
        generator: source of the new weights.
    Raises:
        ValueError: there is less than one class.
    """
    integers(num_classes=num_classes)
    adapted = copy.deepcopy(model)
    last = adapted.head if isinstance(adapted, ViT) else adapted.mlp_head[-1]
    assert isinstance(last, nn.Linear)
    new = build(lambda: nn.Linear(last.in_features, num_classes), generator).to(last.weight)
    if isinstance(adapted, ViT):
        adapted.head = new  # pyright: ignore[reportAttributeAccessIssue]
    else:
        adapted.mlp_head[-1] = new
    return adapted


def with_pooling(model: CRATE, pooling: Pooling) -> CRATE:
    """Returns the network with another input of its head: "cls", the class token, or "mean", the mean of all
    tokens.

    Raises:
        ValueError: ``pooling`` is unknown.
    """
    adapted = copy.deepcopy(model)
    adapted.pooling = checked_pooling(pooling)
    return adapted


def _patches(model: nn.Module) -> Patches:
    """Returns the module that cuts images into patches. Raises ValueError if the network does not begin with
    one.
    """
    embedding = model.reader if isinstance(model, ViT) else getattr(model, "to_patch_embedding", None)
    first = embedding[0] if isinstance(embedding, nn.Sequential) else embedding
    if not isinstance(first, Patches):
        raise ValueError(
            "model must read images, got a network for tokens; build one with for_images or from_released"
        )
    return first
