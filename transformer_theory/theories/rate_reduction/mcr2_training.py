"""Training on the rate reduction: with labels, right or wrong, or without any, where the changed copies of an image are a class.

The recipes are the published commands. Samples are shuffled each epoch; the released loader goes through them in the same order each time.
The published label corruption is :func:`~..data.corruption.relabel_uniformly` before the supervised recipe.

Source: :cite:t:`yu2020learning`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...metrics.coding import unit_norm
from ...models.resnet import ResNet18
from ...training import augment
from ...training.descent import descend, permuted
from . import MaximalCodingRateReduction

Images = Float[Tensor, "n c h w"]
FALL = 0.1  # the learning rate is multiplied by it at each milestone


@dataclass(frozen=True)
class RateReductionRecipe:
    """A network and its training on the rate reduction, by stochastic gradient descent with momentum.

    Attributes:
        name: of the data and the task.
        build: the network, images ``[n, c, h, w]`` in, features ``[n, d]`` out; they are normalised after it.
        change: of images that leaves their class alone, ``[n, c, h, w]`` to the same.
        epochs: over all images.
        batch_size: samples a step; ``copies`` changed ones of each of ``batch_size / copies`` images.
        copies: 1 with labels; without, the size of a class.
        eps: distortion, squared inside; gamma1, gamma2: see :class:`~..theories.rate_reduction.MaximalCodingRateReduction`.
        learning_rate: until the first milestone.
        milestones: epochs at whose end it falls to a tenth.
        about: what it is, in one sentence.
    Raises:
        ValueError: a size is below 1, copies do not divide the batch, or the learning rate is not positive.
    """

    name: str
    build: Callable[[], nn.Module] = field(repr=False)
    change: Callable[[Tensor], Tensor] = field(repr=False)
    epochs: int
    learning_rate: float
    milestones: tuple[int, ...]
    about: str
    batch_size: int = 1000
    copies: int = 1
    eps: float = 0.5**0.5
    gamma1: float = 1.0
    gamma2: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def __post_init__(self):
        if min(self.epochs, self.batch_size, self.copies) < 1 or self.batch_size % self.copies:
            sizes = f"epochs {self.epochs}, batch_size {self.batch_size}, copies {self.copies}"
            raise ValueError(f"epochs, batch_size and copies must be at least 1, and copies divide the batch, got {sizes}")
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")


def train_supervised(
    recipe: RateReductionRecipe, model: nn.Module, images: Images, labels: Int[Tensor, " n"], *, generator: torch.Generator
) -> Float[Tensor, " steps"]:
    """Trains on the rate reduction of the labels, in place; the model ends in evaluation mode.

    Args:
        recipe: with one copy of each image.
        model: of ``recipe.build``, or another of that kind.
        images: in [0, 1], in the model's precision, ``[n, c, h, w]``.
        labels: ``[n]``, integers >= 0, right or corrupted.
        generator: of batches and changes.
    Returns:
        The loss of each step, nats a sample (-ΔR of the batch for the supervised recipe).
    Raises:
        ValueError: the recipe is for training without labels, there are fewer images than a batch holds, or images and labels do not fit.
        NotConverged: a loss is not finite.
    Source: :cite:t:`yu2020learning`.
    """
    if recipe.copies != 1:
        raise ValueError(f"{recipe.name} makes a class of each image's {recipe.copies} copies; call train_self_supervised, without labels")
    if len(images) != len(labels):
        raise ValueError(f"images and labels must be as many, got {len(images)} and {len(labels)}")

    def batch(positions: Tensor) -> tuple[Tensor, Tensor]:
        return recipe.change(images[positions]), labels[positions]

    return _train(recipe, model, images, batch, generator)


def train_self_supervised(recipe: RateReductionRecipe, model: nn.Module, images: Images, *, generator: torch.Generator) -> Tensor:
    """Trains without labels, in place: the changed copies of an image are a class. The model ends in evaluation mode.

    Args:
        recipe: with at least two copies of each image.
        model: of ``recipe.build``, or another of that kind.
        images: in [0, 1], in the model's precision, ``[n, c, h, w]``.
        generator: of batches and changes.
    Returns:
        The loss of each step, nats a sample, ``[steps]``.
    Raises:
        ValueError: the recipe has one copy of each image, or there are fewer images than a batch holds.
        NotConverged: a loss is not finite.
    Source: :cite:t:`yu2020learning`.
    """
    if recipe.copies < 2:
        raise ValueError(f"{recipe.name} has one copy of each image, which makes no class; call train_supervised, with labels")

    def batch(positions: Tensor) -> tuple[Tensor, Tensor]:
        own = torch.arange(len(positions)).repeat_interleave(recipe.copies)
        return recipe.change(images[positions[own]]), own

    return _train(recipe, model, images, batch, generator)


def features(model: nn.Module, images: Images, *, batch_size: int = 512) -> Float[Tensor, "n d"]:
    """Directions of images by a trained network, without gradients and in evaluation mode (its mode is restored).

    Args:
        model: images in, features out.
        images: ``[n, c, h, w]``.
        batch_size: at a time.
    Returns:
        ``[n, d]``, norms 1. Source: :cite:t:`yu2020learning`.
    """
    training = model.training
    model.eval()
    with torch.no_grad():
        rows = torch.cat([unit_norm(model(part)) for part in images.split(batch_size)])
    model.train(training)
    return rows


def _train(recipe: RateReductionRecipe, model: nn.Module, images: Tensor, batch, generator: torch.Generator) -> Tensor:
    size = recipe.batch_size // recipe.copies
    if len(images) < size:
        raise ValueError(f"a batch of {recipe.name} holds {size} images, got {len(images)}; lower batch_size with dataclasses.replace")
    a_round = len(images) // size
    loss = MaximalCodingRateReduction(eps=recipe.eps, gamma1=recipe.gamma1, gamma2=recipe.gamma2)
    optimiser = torch.optim.SGD(model.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [epoch * a_round for epoch in recipe.milestones], FALL)

    def loss_of(positions: Tensor) -> Tensor:
        changed, own = batch(positions)
        return loss(unit_norm(model(changed)), own).loss

    batches: Iterator[Tensor] = permuted(len(images), size, generator)
    return descend(model, loss_of, batches, steps=recipe.epochs * a_round, optimiser=optimiser, schedule=schedule, generator=generator)


def _supervised(images: Tensor) -> Tensor:
    return augment.flip(augment.crop(images, padding=8))


def _self_supervised(images: Tensor) -> Tensor:
    return augment.greyed(augment.jitter(augment.flip(augment.resized_crop(images))))


def _self_supervised_blurred(images: Tensor) -> Tensor:
    return augment.blurred(_self_supervised(images))


def _without_labels(name: str, change: Callable[[Tensor], Tensor], about: str) -> RateReductionRecipe:
    return RateReductionRecipe(
        name, ResNet18, change, epochs=100, learning_rate=0.1, milestones=(30, 60), copies=50, gamma1=20.0, gamma2=0.05, about=about
    )


RATE_REDUCTION_RECIPES = {
    recipe.name: recipe
    for recipe in (
        RateReductionRecipe(
            "CIFAR-10, supervised",
            ResNet18,
            _supervised,
            epochs=500,
            learning_rate=0.01,
            milestones=(200, 400),
            about="labels, right or corrupted; images of 32 pixels, cropped from a frame of 8 and flipped",
        ),
        _without_labels("CIFAR-10, self-supervised", _self_supervised, "20 images a step, 50 copies each, with crops and colours"),
        _without_labels("CIFAR-100, self-supervised", _self_supervised, "20 images a step, 50 copies each, with crops and colours"),
        _without_labels("STL-10, self-supervised", _self_supervised_blurred, "as CIFAR-10, with images of 96 pixels, also blurred"),
    )
}
