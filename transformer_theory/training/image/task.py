"""The task of a training on images, see :class:`~.fitting.Task`: an objective (:mod:`.objectives`) on
augmented images learns classes, masked patches, or rates of a theory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..objectives.protocol import Objective
from .batches import DRAWS, Batches, seed_of
from .processes import gathered


@dataclass(frozen=True, eq=False)
class ImageTask:
    """An objective on augmented images, on this process's share of each batch.

    Each step seeds torch's global generator, so that augmentation, dropout and masks depend on the seed and
    the step only. A resumed training therefore draws the same numbers.

    Attributes:
        objective: objective that computes the loss of a batch.
        images: batches, indexed by the step number.
    """

    objective: Objective
    images: Batches

    def batches(self, generator: torch.Generator, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields images ``[b, c, h, w]`` in [0, 1] and targets ``[b, classes]``."""
        for step in count(start):
            torch.manual_seed(seed_of(self.images.seed, DRAWS, step))
            yield self.images[step]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Float[Tensor, ""]:
        """Returns the objective's loss. Objectives whose loss couples images gather the outputs of all
        processes.
        """
        return self.objective.loss(model, *batch, lambda part: gathered(self.images.fabric, part))
