"""The settings of a training on images: one frozen record, whose fields are the options of
``transformer-theory train``.

:mod:`.recipes` holds tested settings, with the reason for each value.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from ...core.experiment import check_settings, setting
from ...data.image_data import Images
from ...models.crate.network import Pooling
from ...models.image_networks import Sizes, Stem
from ..augment import Augmentation
from ..optimisers import optimiser
from .batches import SPLIT, seed_of

# fields that define the network
SHAPE = ("patch_size", "dim", "depth", "heads", "stem", "pooling", "eta", "lam", "kappa")
SHIFTED = Augmentation(crop=4, flip=0.5)


@dataclass(frozen=True)
class Settings:
    """How a network is trained on images.

    The learning rate rises linearly over the share ``warm_up`` of the training, then falls to 0 along half a
    cosine. The training ends after ``epochs`` epochs or, if ``minutes`` is set, after that time; then the
    learning rate follows the clock too, and no two runs are equal.

    Attributes:
        network: name of the network, see :func:`.image_networks.builder`.
        recipe: name of the recipe that the settings come from (:data:`.recipes.IMAGE_RECIPES`); empty if
            there is none.

    Raises:
        ValueError: a value is out of range.
    """

    network: str = "crate"
    patch_size: int = setting(8, ge=1, help="side of a patch, pixels")
    dim: int = setting(192, ge=1, help="width of the tokens")
    depth: int = setting(4, ge=1, le=1000, help="number of layers")
    heads: int = setting(3, ge=1, help="number of attention heads")
    stem: Stem = field(
        default="patches",
        metadata={"help": "how an image becomes tokens: linear patches, or overlapping convolutions"},
    )

    pooling: Pooling = field(
        default="cls",
        metadata={"help": "input of the head of a CRATE: the class token, or the mean of all tokens"},
    )
    eta: float = setting(0.1, gt=0, help="step size of ISTA in a CRATE")
    lam: float = setting(0.1, gt=0, help="threshold of ISTA in a CRATE")
    kappa: float | None = field(
        default=None, metadata={"help": "step size of attention in crate-paper (1) and crate-exact (.5)"}
    )

    epochs: int = setting(30, ge=1, help="passes over the training images")
    minutes: float | None = field(
        default=None,
        metadata={"help": "duration in minutes, instead of epochs; the learning rate then follows the clock"},
    )
    batch_size: int = setting(128, ge=1, help="images per step, summed over all processes")
    optimiser: Literal["adamw", "muon"] = field(
        default="adamw", metadata={"help": "optimiser of the weights"}
    )
    learning_rate: float = setting(2e-3, gt=0, help="peak learning rate, at the end of the warm-up")
    weight_decay: float = setting(
        0.05, ge=0, help="weight decay of matrices; norms, biases, positions and the class token have none"
    )
    layer_decay: float = setting(
        1.0,
        ge=0,
        le=1,
        help="ratio of the learning rate of a layer to that of the next layer; 0 trains the last norm and "
        "the head alone",
    )
    warm_up: float = setting(
        0.05, ge=0, lt=1, help="share of the training during which the learning rate rises"
    )
    clip: float = setting(1.0, gt=0, help="upper limit on the norm of the gradient")
    average: float = setting(
        0.0,
        ge=0,
        lt=1,
        help="decay of a moving average of the weights, which is measured and stored in their place; 0 for "
        "none",
    )

    augmentation: Augmentation = field(default=SHIFTED)

    validation_share: float = setting(
        0.1, gt=0, lt=1, help="share of the training images held out to select the best network"
    )
    interval: int | None = field(
        default=None, metadata={"help": "steps between measurements and checkpoints (default: one epoch)"}
    )
    seed: int = setting(
        0,
        ge=0,
        le=2**32 - 1,
        help="seed of the split, the initial weights, the order and the augmentation of the images",
    )
    recipe: str = ""

    def __post_init__(self):
        check_settings(self)
        if self.minutes is not None and not (math.isfinite(self.minutes) and self.minutes > 0):
            raise ValueError(
                f"minutes must be a finite number above 0, got {self.minutes}; omit it to train for epochs"
            )
        if self.kappa is not None and not (math.isfinite(self.kappa) and self.kappa > 0):
            raise ValueError(
                f"kappa must be a finite number above 0, got {self.kappa}; omit it for the default of the "
                "network"
            )
        if self.interval is not None and self.interval < 1:
            raise ValueError(f"interval must be at least 1 step, got {self.interval}; omit it for an epoch")

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> "Settings":
        """Restores settings from the plain values of ``dataclasses.asdict``.

        Raises:
            ValueError: another version of the library wrote the values.
        """
        try:
            return cls(**{**values, "augmentation": Augmentation(**values["augmentation"])})
        except (TypeError, KeyError) as error:
            raise ValueError(
                f"settings must fit this version, got others ({error}); begin again without --resume"
            ) from error

    def sizes(self, *, image_size: int, channels: int, num_classes: int) -> Sizes:
        """Returns the sizes of the network for the given data."""
        shape = {name: getattr(self, name) for name in SHAPE}
        return Sizes(image_size=image_size, channels=channels, num_classes=num_classes, **shape)

    def split(self, images: Images) -> tuple[Images, Images]:
        """Splits training images into a training part and a validation part, each in random order.

        Raises:
            ValueError: there are too few images for both parts.
        """
        generator = torch.Generator().manual_seed(seed_of(self.seed, SPLIT))
        train, validation = (
            part.mixed(generator) for part in images.split(1 - self.validation_share, generator)
        )
        return train, validation

    def new_optimiser(self, network: nn.Module) -> torch.optim.Optimizer:
        """Returns the optimiser of a network."""
        rate, decay = self.learning_rate, self.weight_decay
        return optimiser(
            network, name=self.optimiser, learning_rate=rate, weight_decay=decay, layer_decay=self.layer_decay
        )
