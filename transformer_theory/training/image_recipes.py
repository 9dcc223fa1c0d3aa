"""Settings for training on images that were tried, with the reason for each value and what came of it.

* ``minutes``: two cores of a CPU and colour images of 32 pixels. CIFAR-10 (JPEG copy), by the clock, 2 cores of an AMD EPYC in
  bfloat16, 22 November 2026, one run each, 10,000 test images: CRATE (.49 M parameters) 66.7 % in 5 minutes (19 epochs) and 74.3 % in 30
  (129), ViT (192 wide, 1.82 M) 63.9 % (13 epochs, 21 November) and 73.9 % (66). 2 cores of an Intel Xeon, float32, 5 minutes: CRATE 63.1 %
  (13 epochs), ViT (.51 M) 62.7 % (12).
* ``digits``: grey images of 8 pixels.
* ``hours``: an accelerator. Not measured: it has been run for a few steps on a CPU.

Source: docs/training.md.
"""

from dataclasses import replace

from ..core.errors import nearest
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
    stem="convolutions",  # overlapping tokens, which help transformers on small images
    dim=384,
    depth=8,
    heads=6,  # 4.3 M parameters as CRATE
    epochs=300,
    batch_size=512,
    learning_rate=2e-3,
    warm_up=10 / 300,
    average=0.9998,  # not reached in its 26,100 steps: the decay ends at 0.99966, a memory of 2,900 steps, 33 epochs
    changes=Augmentation(crop=4, flip=0.5, operations=2, magnitude=9.0, mixup=0.8, cutmix=1.0),  # against learning images by heart
)

RECIPES = {"minutes": MINUTES, "digits": DIGITS, "hours": HOURS}
WIDE = ("vit", "tost", "crate-alpha")  # networks with 4 dim neurons or atoms a layer
RATE = 0.5  # of the learning rate above: that is what they take
NARROW = {  # so that a ViT has as many parameters as CRATE, within 4 %; tost and crate-alpha have fewer
    "minutes": {"dim": 100, "heads": 4},  # .51 M and .49 M; 1.82 M at the width of CRATE learn less in five minutes: 53.8 against 62.7 %
    "hours": {"dim": 256, "depth": 5, "heads": 4},  # 4.3 M
}


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
    found = replace(RECIPES[name], network=network)
    if network not in WIDE:
        return found
    return replace(found, learning_rate=RATE * found.learning_rate, **NARROW.get(name, {}))
