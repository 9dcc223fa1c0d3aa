"""The interface between objectives and the training loop, and functions that objectives share.

With W processes, the loop keeps a copy of the network in each process, gives each copy the same number of
images per step, and averages the gradients of the copies, as ``DistributedDataParallel`` does. If the loss is
a mean over images, the averaged gradient is that of the whole batch. A loss that couples images needs the
outputs for all of them: ``gather`` concatenates the outputs of the copies in the order of the processes, so
that each copy computes the loss of *all* images. The backward pass of ``gather`` must multiply the gradient
of each copy's part by W, either by adding up the W equal losses or directly; the average then removes the
factor, and the gradient is that of one process.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from ...core.measurement import Measurement
from ...core.validation import SHARES_ATOL
from ...models.image_networks import Sizes
from ...probes.evaluation import evaluation

Gather = Callable[[Tensor], Tensor]
"""Concatenates the parts of all processes along the first axis, with gradients. A single process uses
:func:`alone`.
"""

Batch = Float[Tensor, "b c h w"]
Targets = Float[Tensor, "b k"]
Labelled = tuple[UInt8[Tensor, "_ c h w"], Int[Tensor, " _"]]
"""Images as bytes, ``[n, c, h, w]``, and the class of each, ``[n]``; training and test images may differ in
n.
"""

LOSS, ACCURACY = "loss", "accuracy"
UNTRAINED = "untrained network"  # kind of a null distribution


def alone(part: Tensor) -> Tensor:
    """Returns its argument ``[b, ...]``: the ``gather`` of a single process."""
    return part


@runtime_checkable
class Objective(Protocol):
    """The network, loss and measurements of a training. Objectives are frozen dataclasses.

    Attributes:
        name: name on the command line.
        score: quantity of :meth:`measure` that selects the best network; larger is better.
    """

    name: ClassVar[str]
    score: ClassVar[str]

    def network(self, name: str, sizes: Sizes) -> nn.Module:
        """Builds the network to train, which takes images ``[b, c, h, w]``.

        Raises:
            ValueError: the name is unknown, the sizes are invalid, or the objective cannot train this
                network.
        """
        ...

    def loss(self, model: nn.Module, images: Batch, targets: Targets, gather: Gather) -> Float[Tensor, ""]:
        """Returns the loss of a batch. ``model`` may be wrapped, so it must be called once and as a whole.

        Args:
            model: network built by :meth:`network`, possibly wrapped.
            images: images of this process, ``[b, c, h, w]``, in [0, 1].
            targets: shares of the classes, ``[b, k]``, with rows that sum to one.
            gather: function that concatenates the outputs of all processes, see :mod:`.protocol`.
        Raises:
            ValueError: targets have the wrong shape.
        """
        ...

    def measure(
        self, model: nn.Module, train: Labelled, images: Labelled, batch_size: int
    ) -> Sequence[Measurement]:
        """Measures the network in evaluation mode and without gradients; its mode is restored.

        Args:
            model: network built by :meth:`network`.
            train: training images: pixels ``[n, c, h, w]``, 0 to 255, and labels ``[n]``.
            images: images to measure, in the same form.
            batch_size: images per forward pass.
        Returns:
            Rows of :func:`measured`, without split, model and step. One row has the quantity :attr:`score`,
            no layer and no setting.
        Raises:
            ValueError: there is no image, or images and labels differ in number.
        """
        ...


Objectives = Mapping[str, Callable[..., Objective]]
"""Classes of objectives by name; calling a class with an objective's fields makes the objective."""


def measured(quantity: str, value: float, images: Labelled, **columns) -> Measurement:
    """Returns a row of theory and kind "network" with the number of images."""
    return Measurement("network", "network", quantity, value, n=len(images[0]), **columns)


def outputs(
    model: nn.Module,
    pixels: UInt8[Tensor, "n c h w"],
    *,
    batch_size: int,
    call: Callable[[Tensor], Tensor] | None = None,
) -> Float[Tensor, "n *shape"]:
    """Returns the network's outputs ``[n, ...]`` on the CPU in float64, in evaluation mode and without
    gradients; its mode is restored.

    Args:
        model: network on images in [0, 1].
        pixels: 0 to 255, ``[n, c, h, w]``; each batch is moved to the model's device and precision.
        batch_size: images per forward pass.
        call: function that is called on the images instead of the model, for example one of its methods.
    """
    parameter = next(model.parameters())
    with evaluation(model):
        return torch.cat(
            [(call or model)(scaled(part, parameter)).cpu().double() for part in pixels.split(batch_size)]
        )


def scaled(pixels: UInt8[Tensor, "n c h w"], like: Tensor) -> Float[Tensor, "n c h w"]:
    """Scales pixels to [0, 1], in the precision and on the device of another tensor."""
    return pixels.to(like.device, like.dtype) / 255


def spread(images: Labelled, limit: int) -> Labelled:
    """Returns at most ``limit`` of the images, evenly spaced so that every class occurs even if the images
    are sorted by class.
    """
    pixels, labels = images
    if len(pixels) <= limit:
        return images
    positions = torch.linspace(0, len(pixels) - 1, limit, dtype=torch.float64).round().long()
    return pixels[positions.to(pixels.device)], labels[positions.to(labels.device)]


def check_labelled(name: str, images: Labelled) -> None:
    """Checks images, uint8 ``[n, c, h, w]``, and their labels, integers >= 0.

    Raises:
        ValueError: there is no image, or a shape or type is wrong; the message begins with ``name``.
    """
    pixels, labels = images
    if pixels.dtype != torch.uint8 or pixels.ndim != 4 or not len(pixels):
        raise ValueError(
            f"{name} images must be torch.uint8 [n, c, h, w] with n >= 1, got {pixels.dtype} "
            f"{list(pixels.shape)}"
        )
    if labels.shape != pixels.shape[:1] or labels.is_floating_point() or int(labels.min()) < 0:
        description = f"{labels.dtype} {list(labels.shape)}" + (
            f" from {labels.min()}" if len(labels) else ""
        )
        raise ValueError(
            f"{name} labels must be {len(pixels)} integers >= 0, one for each image, got {description}"
        )


def check_targets(targets: Tensor, batch: int, *, classes: int | None = None) -> None:
    """Checks that targets are shares: ``[batch, classes]``, >= 0, with rows that sum to one.

    Values are checked on the CPU only, since on an accelerator each step would wait for their transfer.

    Raises:
        ValueError: targets have the wrong shape, or rows that are not shares.
    """
    if (
        targets.ndim != 2
        or not targets.is_floating_point()
        or len(targets) != batch
        or (classes or targets.shape[1]) != targets.shape[1]
    ):
        raise ValueError(
            f"targets must be the shares of each class, [{batch}, {classes or 'classes'}], got "
            f"{targets.dtype} {list(targets.shape)}; convert labels with "
            "torch.nn.functional.one_hot(labels, classes).float()"
        )
    shares = targets.detach()
    if shares.device.type == "cpu" and not bool(
        ((shares >= 0).all(1) & ((shares.double().sum(1) - 1).abs() <= SHARES_ATOL)).all()
    ):
        raise ValueError(
            f"targets must be >= 0 in rows that sum to 1, got rows from {shares.min():.3g} to "
            f"{shares.max():.3g} or other sums"
        )
