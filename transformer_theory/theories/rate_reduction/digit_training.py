"""Training on handwritten digits, a share of whose labels may be wrong: the samples, a network, and gradient
descent with the published momentum, weight decay and schedule.

Source: :cite:t:`yu2020learning`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...data import digits
from ...data.corruption import relabel_uniformly
from ...training.fitting import Callback, State, Task, fit

TRAIN, VALIDATION = 1200, 300  # numbers of samples; the other 297 of 1797 are test samples
CLASSES, FEATURES, HIDDEN = 10, 64, 256
# as published; the learning rate is divided by ten after these shares of the steps
MOMENTUM, WEIGHT_DECAY, DROPS = 0.9, 5e-4, (0.4, 0.8)

Samples = tuple[Tensor, Tensor]


@lru_cache(maxsize=1)
def digit_images() -> tuple[Float[Tensor, "n 1 8 8"], Int[Tensor, " n"]]:
    """Returns the 1797 images and their labels. They are cached, so callers must not change them in place."""
    data = digits(words=2)
    return cast(Tensor, data.images), cast(Tensor, data.labels)


def samples(ratio: float, seed: int) -> tuple[Samples, Samples, Samples, torch.Generator]:
    """Returns pixels ``[n, 64]`` and labels ``[n]`` for training, validation (both corrupted) and test, and
    the generator afterwards.
    """
    generator = torch.Generator().manual_seed(seed)
    images, labels = digit_images()
    order = torch.randperm(len(labels), generator=generator)
    pixels, truth = images.flatten(1)[order], labels[order]
    corrupted = TRAIN + VALIDATION
    noisy = relabel_uniformly(truth[:corrupted], ratio, classes=CLASSES, generator=generator)
    train, validation = slice(TRAIN), slice(TRAIN, corrupted)
    test = (pixels[corrupted:], truth[corrupted:])
    return (pixels[train], noisy[train]), (pixels[validation], noisy[validation]), test, generator


def perceptron() -> nn.Sequential:
    """Returns the network for both losses: pixels ``[n, 64]`` to features ``[n, 64]``, wide enough for ten
    subspaces of rank six.
    """
    layers, width = [], FEATURES
    for _ in range(2):
        layers += [nn.Linear(width, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU()]
        width = HIDDEN
    return nn.Sequential(*layers, nn.Linear(width, FEATURES))


def drops(steps: int) -> tuple[int, ...]:
    """Returns the steps after which the learning rate is divided by ten."""
    return tuple(max(1, round(share * steps)) for share in DROPS)


def descend(
    model: nn.Module,
    task: Task[Any],
    *,
    rate: float,
    steps: int,
    generator: torch.Generator,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Trains a network in place; the learning rate begins at ``rate``."""
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    milestones = drops(steps)

    def schedule(state: State) -> float:
        return 0.1 ** sum(state.step >= milestone for milestone in milestones)

    fit(
        model,
        task,
        optimiser=optimiser,
        steps=steps,
        callbacks=callbacks,
        schedule=schedule,
        generator=generator,
    )
