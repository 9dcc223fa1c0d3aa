"""Recipes: tested settings of trainings on images, with the reason for each value.

:data:`IMAGE_RECIPES` are ``minutes`` for two CPU cores and colour images of 32 pixels, ``digits`` for grey
images of 8 pixels, and ``hours`` for an accelerator. For results see docs/training_reference.md.
"""

from dataclasses import replace

import torch

from ...core.errors import nearest
from ..augment import Augmentation
from .settings import Settings

SMALL = 16  # pixels; the recipe "digits" is the default for images up to this size

MINUTES = Settings(
    patch_size=8,  # 16 tokens per image: in a few minutes, more epochs help more than smaller patches
    stem="convolutions",  # overlapping receptive fields: better than patches from about five minutes on
    dim=192,
    depth=4,
    heads=3,  # each of width 64, as in the released networks
    epochs=30,
    batch_size=128,
    # a ViT on patches reaches 70 % in 10 epochs, with AdamW 68 % in 20; torch has it since 2.9
    optimiser="muon" if hasattr(torch.optim, "Muon") else "adamw",
    learning_rate=2e-3,
    # standard augmentation; a stronger one slows down a short training
    augmentation=Augmentation(crop=4, flip=0.5),
)

DIGITS = replace(
    MINUTES,
    stem="patches",
    optimiser="adamw",
    patch_size=2,
    dim=96,
    depth=2,
    heads=4,
    epochs=60,
    batch_size=64,
    learning_rate=3e-3,
    augmentation=Augmentation(),  # none: a flipped digit is a different digit, or not a digit
)

HOURS = replace(
    MINUTES,
    patch_size=4,  # 64 tokens
    optimiser="adamw",
    dim=384,
    depth=8,
    heads=6,  # the CRATE has 4.3 M parameters
    epochs=300,
    batch_size=512,
    learning_rate=2e-3,
    warm_up=10 / 300,
    # the ramp of the decay does not get there: after 26,100 steps it is 0.99966, an average over 2,900 steps
    # or 33 epochs
    average=0.9998,
    # against memorisation
    augmentation=Augmentation(crop=4, flip=0.5, operations=2, magnitude=9.0, mixup=0.8, cutmix=1.0),
)

IMAGE_RECIPES = {"minutes": MINUTES, "digits": DIGITS, "hours": HOURS}
PATCHES_ONLY = "crate-alpha-published"  # its published weights have a linear map of patches
# networks with 4 * dim neurons or atoms per layer
WIDE = ("vit", "tost", "crate-alpha", "crate-alpha-published")
RATE = 0.5  # factor of their learning rate with AdamW; Muon has one size of step for all matrices
# sizes of the networks in WIDE: a ViT has as many parameters as CRATE, within 5 %; tost and crate-alpha have
# fewer
NARROW = {
    "minutes": {"dim": 112, "heads": 4},
    "hours": {"dim": 256, "depth": 5, "heads": 4},  # 4.3 M
}


def image_recipe(network: str, *, name: str | None = None, image_size: int = 32) -> Settings:
    """Returns the settings of a recipe for a network on images.

    Args:
        network: name of the network, see :data:`.image_networks.NETWORKS`.
        name: name of the recipe. None: "digits" or "minutes", by the size of the images.
        image_size: side of the images, pixels.
    Raises:
        ValueError: the recipe is unknown.
    """
    name = ("digits" if image_size <= SMALL else "minutes") if name is None else name
    if name not in IMAGE_RECIPES:
        raise ValueError(f"unknown recipe {name!r}{nearest(name, IMAGE_RECIPES)}")
    settings = replace(IMAGE_RECIPES[name], network=network, recipe=name)
    if network == PATCHES_ONLY:
        settings = replace(settings, stem="patches")
    if network not in WIDE:
        return settings
    rate = settings.learning_rate * (RATE if settings.optimiser == "adamw" else 1.0)
    return replace(settings, learning_rate=rate, **NARROW.get(name, {}))
