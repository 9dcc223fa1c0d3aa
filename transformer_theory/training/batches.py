"""Batches of images: their selection, order and augmentation are functions of the seed and the number of the step.

There is no state from step to step, so a resumed training gets the same images and the same random numbers as an uninterrupted one.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from .augment import Augmentation
from .processes import share

if TYPE_CHECKING:
    from lightning_fabric import Fabric

ORDER, DRAWS, WEIGHTS, SPLIT = range(4)  # purposes of a seed


def seed_of(seed: int, purpose: int, number: int = 0) -> int:
    """A seed for one purpose at one step or epoch; seeds of different purposes or numbers are independent."""
    return int(np.random.SeedSequence((seed, purpose, number)).generate_state(1, np.uint64)[0])


class Batches:
    """The batches of a training.

    Args:
        pixels, labels: ``[n, c, h, w]`` and ``[n]``; they stay on the device.
        classes: their number.
        batch_size: images per step in all processes together; at most n.
        augmentation: of the images.
        seed: of order and augmentation.
        fabric: of this process.
    Raises:
        ValueError: the number of processes does not divide the batch.
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
            raise ValueError(f"batch_size must be a multiple of the {fabric.world_size} processes, got {self.size}; choose another")
        self.pixels, self.labels = pixels.to(fabric.device), labels.to(fabric.device)
        self.classes, self.augmentation, self.seed, self.fabric = classes, augmentation, seed, fabric
        self.steps_per_epoch = len(pixels) // self.size
        self._epoch, self._order = -1, torch.empty(0)

    def __getitem__(self, step: int) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b classes"]]:
        """This process's images in [0, 1] and targets of a step, counted from 0; draws from torch's global generator."""
        epoch, number = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(seed_of(self.seed, ORDER, epoch))
            self._epoch, self._order = epoch, torch.randperm(len(self.pixels), generator=generator).to(self.pixels.device)
        positions = self._order[number * self.size : (number + 1) * self.size]
        images, targets = self.augmentation(self.pixels[positions], self.labels[positions], self.classes)
        part = share(self.fabric, self.size)
        return images[part], targets[part]
