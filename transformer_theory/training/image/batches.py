"""Batches of images. The seed and the step number determine which images a batch holds, in which order, and
how they are augmented.

No state is carried from one step to the next, so a resumed training gets the same images and random numbers
as an uninterrupted one.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from ..augment import Augmentation
from .processes import share

if TYPE_CHECKING:
    from lightning_fabric import Fabric

ORDER, DRAWS, WEIGHTS, SPLIT = range(4)  # purposes for which seeds are derived


def seed_of(seed: int, purpose: int, number: int = 0) -> int:
    """Returns the seed for one purpose at one step or epoch; seeds for different purposes or numbers are
    independent.
    """
    return int(np.random.SeedSequence((seed, purpose, number)).generate_state(1, np.uint64)[0])


class Batches:
    """The batches of a training.

    Args:
        pixels, labels: ``[n, c, h, w]`` and ``[n]``; moved to the device once, and kept there.
        classes: number of classes.
        batch_size: images per step, summed over all processes; a larger number than n is reduced to n.
        augmentation: transformation applied to each batch.
        seed: determines the order and the augmentation of the images.
        fabric: this process's Fabric.
    Raises:
        ValueError: the batch size is not a multiple of the number of processes.
    """

    def __init__(
        self,
        pixels: UInt8[Tensor, "n c h w"],
        labels: Int[Tensor, " n"],
        *,
        classes: int,
        batch_size: int,
        augmentation: Augmentation,
        seed: int,
        fabric: "Fabric",
    ):
        self.size = min(batch_size, len(pixels))
        if self.size % fabric.world_size:
            raise ValueError(
                f"batch_size must be a multiple of the {fabric.world_size} processes, got {self.size}; "
                "choose another"
            )
        self.pixels, self.labels = pixels.to(fabric.device), labels.to(fabric.device)
        self.classes, self.augmentation, self.seed, self.fabric = classes, augmentation, seed, fabric
        self.steps_per_epoch = len(pixels) // self.size
        self._epoch, self._order = -1, torch.empty(0)

    def __getitem__(self, step: int) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b classes"]]:
        """Returns this process's images in [0, 1] and targets for a step, counted from 0; draws from torch's
        global generator.
        """
        epoch, number = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(seed_of(self.seed, ORDER, epoch))
            self._epoch, self._order = (
                epoch,
                torch.randperm(len(self.pixels), generator=generator).to(self.pixels.device),
            )
        # Every process augments the whole batch, so that all draw the same random numbers; each then takes
        # its part.
        positions = self._order[number * self.size : (number + 1) * self.size]
        images, targets = self.augmentation(self.pixels[positions], self.labels[positions], self.classes)
        part = share(self.fabric, self.size)
        return images[part], targets[part]
