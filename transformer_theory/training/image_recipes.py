"""Settings for training on images that were tried, with the reason for each value and what came of it.

``minutes`` are for two cores of a CPU and colour images of 32 pixels, ``digits`` for grey ones of 8, ``hours`` for an accelerator.
Source: docs/training.md, where hardware, date and n of every number stand.
"""

from dataclasses import replace

from ..errors import nearest
from .augment import Augmentation
from .settings import Settings

SMALL = 16  # pixels of images that are trained as the digits are

MINUTES = Settings(
    patch_size=8,  # 16 tokens an image: in minutes many passes over the images are worth more than fine patches
    dim=192,
    depth=4,
    heads=3,  # of width 64, as in the released networks
    epochs=30,
    batch_size=128,
    learning_rate=2e-3,
    changes=Augmentation(crop=4, flip=0.5),  # the usual ones; more of them only slow a short training down
)

DIGITS = replace(
    MINUTES,
    patch_size=2,
    dim=96,
    depth=2,
    heads=4,
    epochs=60,
    batch_size=64,
    learning_rate=3e-3,
    changes=Augmentation(),  # a flipped digit is another one or none
)

HOURS = replace(
    MINUTES,
    patch_size=4,  # 64 tokens
    stem="convolutions",  # overlapping tokens, without which small images are learnt far more slowly
    dim=256,
    depth=7,
    heads=4,
    epochs=300,
    batch_size=512,
    learning_rate=2e-3,
    warm_up=10 / 300,
    average=0.9998,
    changes=Augmentation(crop=4, flip=0.5, operations=2, magnitude=9.0, mixup=0.8, cutmix=1.0),
)

RECIPES = {"minutes": MINUTES, "digits": DIGITS, "hours": HOURS}
RATES = {"vit": 0.5, "tost": 0.5}  # of the learning rate above: with an MLP of width 4 dim they take smaller steps


def recipe(network: str, *, name: str | None = None, image_size: int = 32) -> Settings:
    """The settings for a network.

    Args:
        network: its name.
        name: of the recipe; chosen by the images if not given.
        image_size: pixels.
    Raises:
        ValueError: an unknown network or recipe.
    """
    name = ("digits" if image_size <= SMALL else "minutes") if name is None else name
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}{nearest(name, RECIPES)}")
    found = RECIPES[name]
    return replace(found, network=network, learning_rate=found.learning_rate * RATES.get(network, 1.0))
