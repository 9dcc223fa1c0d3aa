"""Training on the rate reduction, with labels (correct or corrupted) or without. Without labels the copies of
an image form a class.

The recipes follow the published commands, with their networks, but samples are permuted in each epoch; the
released loader keeps one order. Without labels, the first copy of each image is the image itself, as in the
released loader. For the published label corruption, apply
:func:`~transformer_theory.data.corruption.relabel_uniformly` to the labels first.

Source: :cite:t:`yu2020learning`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...metrics.coding import unit_norm
from ...models.resnet import ResNet18, ResNet18Control, ResNet18STL
from ...probes.evaluation import evaluation
from ...training.augment import blurred, crop, flip, greyed, jitter, resized_crop
from ...training.fitting import State, fit, permuted
from ...training.tasks import StreamTask
from .loss import MaximalCodingRateReduction

Images = Float[Tensor, "n c h w"]
DECAY = 0.1  # factor of the learning rate at each milestone


@dataclass(frozen=True)
class RateReductionRecipe:
    """A network and its training on the rate reduction, by stochastic gradient descent with momentum.

    Attributes:
        name: name of the data and the task.
        build: creates the network, which maps images ``[n, c, h, w]`` to features ``[n, d]``; training
            normalises the features.
        augment: random change of images ``[n, c, h, w]`` that preserves their shape and class.
        epochs: passes over all images.
        learning_rate: the learning rate until the first milestone.
        milestones: epochs after which the learning rate is divided by ten.
        description: data and augmentation, in one sentence.
        batch_size: samples per step: ``copies`` copies of each of ``batch_size / copies`` images.
        copies: copies per image. With labels: 1, augmented. Without labels: the size of each class; the first
            copy is the image itself.
        eps, gamma1, gamma2: see :class:`~.loss.MaximalCodingRateReduction`; eps is squared inside.
        momentum, weight_decay: parameters of stochastic gradient descent.
    Raises:
        ValueError: a size is below 1, ``copies`` does not divide ``batch_size``, or the learning rate is not
            positive.
    """

    name: str
    build: Callable[[], nn.Module] = field(repr=False)
    augment: Callable[[Tensor], Tensor] = field(repr=False)
    epochs: int
    learning_rate: float
    milestones: tuple[int, ...]
    description: str
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
            raise ValueError(
                "epochs, batch_size and copies must be at least 1, and copies must divide batch_size, got "
                f"{sizes}"
            )
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")


def fit_supervised(
    recipe: RateReductionRecipe,
    model: nn.Module,
    images: Images,
    labels: Int[Tensor, " n"],
    *,
    generator: torch.Generator,
) -> Float[Tensor, " steps"]:
    """Trains on the rate reduction of the labels, in place; the model ends in evaluation mode.

    Args:
        recipe: recipe with one copy of each image.
        model: network from ``recipe.build``, or another network with inputs and outputs of the same shapes.
        images: training images in [0, 1], in the precision of the model, ``[n, c, h, w]``.
        labels: classes, integers >= 0, correct or corrupted, ``[n]``.
        generator: random generator of the batches and augmentations.
    Returns:
        The loss of each step, nats per sample (-ΔR of the batch for the supervised recipe), ``[steps]``.
    Raises:
        ValueError: the recipe is for training without labels, there are fewer images than a batch holds, or
            images and labels differ in number.
        NotConverged: a loss is not finite.
    """
    if recipe.copies != 1:
        raise ValueError(
            f"{recipe.name} makes a class of each image's {recipe.copies} copies; call fit_self_supervised, "
            "without labels"
        )
    if len(images) != len(labels):
        raise ValueError(f"images and labels must be equal in number, got {len(images)} and {len(labels)}")

    def batch(positions: Tensor) -> tuple[Tensor, Tensor]:
        return recipe.augment(images[positions]), labels[positions]

    return _fit(recipe, model, images, batch, generator)


def fit_self_supervised(
    recipe: RateReductionRecipe, model: nn.Module, images: Images, *, generator: torch.Generator
) -> Float[Tensor, " steps"]:
    """Trains without labels, in place: an image and its augmented copies form a class. The model ends in
    evaluation mode.

    Args:
        recipe: recipe with at least two copies of each image.
        model: network from ``recipe.build``, or another network with inputs and outputs of the same shapes.
        images: training images in [0, 1], in the precision of the model, ``[n, c, h, w]``.
        generator: random generator of the batches and augmentations.
    Returns:
        The loss of each step, nats per sample, ``[steps]``.
    Raises:
        ValueError: the recipe has one copy of each image, or there are fewer images than a batch holds.
        NotConverged: a loss is not finite.
    """
    if recipe.copies < 2:
        raise ValueError(
            f"{recipe.name} has one copy of each image, which makes no class; call fit_supervised, with "
            "labels"
        )

    def batch(positions: Tensor) -> tuple[Tensor, Tensor]:
        # position of the image in the batch
        classes = torch.arange(len(positions)).repeat_interleave(recipe.copies)
        copies = recipe.augment(images[positions[classes]])
        copies[:: recipe.copies] = images[positions]
        return copies, classes

    return _fit(recipe, model, images, batch, generator)


def features_of(model: nn.Module, images: Images, *, batch_size: int = 512) -> Float[Tensor, "n d"]:
    """Computes normalised features of images, without gradients and in evaluation mode; the mode of the model
    is restored.

    Args:
        model: network that maps images to features.
        images: images, ``[n, c, h, w]``.
        batch_size: images per forward pass.
    Returns:
        Features of norm 1, ``[n, d]``.
    """
    with evaluation(model):
        return torch.cat([unit_norm(model(part)) for part in images.split(batch_size)])


def _fit(
    recipe: RateReductionRecipe, model: nn.Module, images: Tensor, batch, generator: torch.Generator
) -> Tensor:
    size = recipe.batch_size // recipe.copies
    if len(images) < size:
        raise ValueError(
            f"a batch of {recipe.name} holds {size} images, got {len(images)}; lower batch_size with "
            "dataclasses.replace"
        )
    epoch_steps = len(images) // size
    loss = MaximalCodingRateReduction(eps=recipe.eps, gamma1=recipe.gamma1, gamma2=recipe.gamma2)
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )
    milestones = [epoch * epoch_steps for epoch in recipe.milestones]

    def loss_of(network: nn.Module, positions: Tensor) -> Tensor:
        augmented, classes = batch(positions)
        return loss(unit_norm(network(augmented)), classes).loss

    def schedule(state: State) -> float:
        return DECAY ** sum(state.step >= milestone for milestone in milestones)

    task = StreamTask(loss_of, lambda draws: permuted(len(images), size, draws))
    return fit(
        model,
        task,
        optimiser=optimiser,
        steps=recipe.epochs * epoch_steps,
        schedule=schedule,
        generator=generator,
    ).losses


def _supervised(images: Tensor) -> Tensor:
    return flip(crop(images, padding=8))


def _self_supervised(images: Tensor) -> Tensor:
    return greyed(jitter(flip(resized_crop(images))))


def _self_supervised_stl(images: Tensor) -> Tensor:
    return blurred(greyed(jitter(flip(resized_crop(images)), strength=0.8, hue=0.2)))


def _without_labels(
    name: str, build: Callable[[], nn.Module], augment: Callable[[Tensor], Tensor], description: str
) -> RateReductionRecipe:
    return RateReductionRecipe(
        name,
        build,
        augment,
        epochs=100,
        learning_rate=0.1,
        milestones=(30, 60),
        description=description,
        copies=50,
        gamma1=20.0,
        gamma2=0.05,
    )


CIFAR = "20 images per step, 50 copies each, with crops and colour jitter"
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
            description="labels, right or corrupted; images of 32 pixels, cropped after padding by 8 and "
            "flipped",
        ),
        _without_labels("CIFAR-10, self-supervised", ResNet18Control, _self_supervised, CIFAR),
        _without_labels("CIFAR-100, self-supervised", ResNet18Control, _self_supervised, CIFAR),
        _without_labels(
            "STL-10, self-supervised",
            ResNet18STL,
            _self_supervised_stl,
            "as CIFAR-10, with images of 96 pixels, stronger jitter and blur",
        ),
    )
}
