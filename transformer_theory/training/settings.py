"""The settings of a training on images: one frozen record, whose fields are the options of ``transformer-theory train``.

:mod:`.image_recipes` holds the ones that were tried, with their reasons and results.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ..core.errors import nearest
from ..core.experiment import check_settings, setting
from ..data.image_data import Images
from .augment import Augmentation
from .batches import SPLIT, seed_of
from .networks import NETWORKS, Sizes, Stem

SHIFTED = Augmentation(crop=4, flip=0.5)


@dataclass(frozen=True)
class Settings:
    """How a network is trained on images.

    The learning rate rises linearly over the first ``warm_up`` of the training, then falls to 0 as half a cosine. The training ends after
    ``epochs`` or, if ``minutes`` is given, by the clock: then the learning rate follows the clock too, and no two runs are equal.

    Raises:
        ValueError: an unknown network, or a value beyond its bounds.
    """

    network: str = "crate"
    patch_size: int = setting(8, ge=1, help="pixels from token to token")
    dim: int = setting(192, ge=1, help="width of the tokens")
    depth: int = setting(4, ge=1, help="layers")
    heads: int = setting(3, ge=1, help="attention heads")
    stem: Stem = field(default="patches", metadata={"says": "how an image becomes tokens: linear patches, or overlapping convolutions"})

    epochs: int = setting(30, ge=1, help="over the training images")
    minutes: float | None = field(
        default=None, metadata={"says": "of training, in place of epochs: learning rate and end follow the clock"}
    )
    batch_size: int = setting(128, ge=1, help="images a step, in all processes together")
    optimiser: Literal["adamw", "lion", "muon"] = field(default="adamw", metadata={"says": "of the weights"})
    learning_rate: float = setting(2e-3, gt=0, help="the largest, at the end of the warm-up")
    weight_decay: float = setting(0.05, ge=0, help="of matrices; norms, biases, positions and class token have none")
    layer_decay: float = setting(1.0, gt=0, le=1, help="learning rate of a layer over that of the next")
    warm_up: float = setting(0.05, ge=0, lt=1, help="share of the training in which the learning rate rises")
    clip: float = setting(1.0, gt=0, help="largest norm of the gradient")
    average: float = setting(
        0.0, ge=0, lt=1, help="decay of a running mean of the weights, which is then what is measured and kept; 0: none"
    )

    changes: Augmentation = field(default=SHIFTED)

    held_out: float = setting(0.1, gt=0, lt=1, help="share of the training images by which the best network is chosen")
    interval: int | None = field(
        default=None, metadata={"says": "steps from one reading and checkpoint to the next; an epoch if not given"}
    )
    seed: int = setting(0, ge=0, le=2**32 - 1, help="of split, weights, order and changes of images")

    def __post_init__(self):
        if self.network not in NETWORKS:
            raise ValueError(f"unknown network {self.network!r}{nearest(self.network, NETWORKS)}")
        check_settings(self)
        if self.minutes is not None and not (math.isfinite(self.minutes) and self.minutes > 0):
            raise ValueError(f"minutes must be a finite number above 0, got {self.minutes}; leave it out to train for epochs")
        if self.interval is not None and self.interval < 1:
            raise ValueError(f"interval must be at least 1 step, got {self.interval}; leave it out for an epoch")

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> "Settings":
        """The settings that ``dataclasses.asdict`` made plain values of.

        Raises:
            ValueError: they are of another version.
        """
        try:
            return cls(**{**values, "changes": Augmentation(**values["changes"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"settings must be those of this version, got others ({error}); begin again without --resume") from error

    def sizes(self, *, image_size: int, channels: int, num_classes: int) -> Sizes:
        """The sizes of its network for given data."""
        own = {name: getattr(self, name) for name in ("patch_size", "dim", "depth", "heads", "stem")}
        return Sizes(image_size=image_size, channels=channels, num_classes=num_classes, **own)

    def split(self, images: Images) -> tuple[Images, Images]:
        """Training images in two: those that the network learns from, and those held out; each in random order.

        Raises:
            ValueError: there are too few for both.
        """
        generator = torch.Generator().manual_seed(seed_of(self.seed, SPLIT))
        kept, held = (part.mixed(generator) for part in images.split(1 - self.held_out, generator))
        return kept, held
