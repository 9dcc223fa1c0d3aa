"""Objectives: what a training loop requires of them, what they require of the loop, and the functions that they share.

With W processes the loop keeps a copy of the network in each, gives each the same number of images of a step, and averages the gradients of
the copies, as ``DistributedDataParallel`` does. A loss that is a mean over images needs no more: the mean of the copies' gradients is the
gradient of the mean over all images. A loss that couples images needs all of them: ``gather`` concatenates what the copies computed, in the
order of the processes, so that each copy computes the loss of *all* images. In the backward pass it must multiply each copy's part by W,
either by adding up the W equal losses or at once; the average then removes the factor, and the gradient is that of one process.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from ...core.measurement import Measurement
from ...core.validation import SHARES_ATOL
from ..networks import Sizes

Gather = Callable[[Tensor], Tensor]
"""Concatenates along the first axis over all processes, with gradients; :func:`alone` for one process."""

Batch = Float[Tensor, "b c h w"]
Targets = Float[Tensor, "b k"]
Labelled = tuple[UInt8[Tensor, "_ c h w"], Int[Tensor, " _"]]
"""Images as they are stored, ``[n, c, h, w]``, with the class of each, ``[n]``; n differs between training and other images."""

LOSS, ACCURACY = "loss", "accuracy"
UNTRAINED = "untrained network"  # the setting of a row, or the kind of a null


def alone(part: Tensor) -> Tensor:
    """The gather of a single process, the identity: ``[b, ...]``."""
    return part


@runtime_checkable
class Objective(Protocol):
    """Which network is trained, on which loss, and what is measured of it. Objectives are frozen dataclasses.

    Attributes:
        name: as the command line knows it.
        score: the measured quantity by which the best network is chosen; larger is better.
    """

    name: ClassVar[str]
    score: ClassVar[str]

    def network(self, name: str, sizes: Sizes) -> nn.Module:
        """The network to train; its input is images ``[b, c, h, w]``.

        Raises:
            ValueError: no such network, invalid sizes, or a network that the objective does not train.
        """
        ...

    def loss(self, model: nn.Module, images: Batch, targets: Targets, gather: Gather) -> Float[Tensor, ""]:
        """Loss of a batch; ``model`` is called once, as a whole, so that it may be wrapped.

        Args:
            model: of :meth:`network`, wrapped or not.
            images: of this process, ``[b, c, h, w]``, in [0, 1].
            targets: share of each class, ``[b, k]``, rows summing to one.
            gather: see :mod:`.protocol`.
        Raises:
            ValueError: targets of another shape.
        """
        ...

    def measure(self, model: nn.Module, train: Labelled, images: Labelled, batch_size: int) -> Sequence[Measurement]:
        """What the network has learned, in evaluation mode, which is restored, and without gradients.

        Args:
            model: of :meth:`network`.
            train: the training images: pixels ``[n, c, h, w]``, 0 to 255, and labels ``[n]``.
            images: the images that are measured, likewise.
            batch_size: images per forward pass.
        Returns:
            Rows of :func:`measured`, without split, model and step. One has the quantity :attr:`score`, no layer and no setting.
        Raises:
            ValueError: there is no image, or images and labels differ in number.
        """
        ...


Objectives = Mapping[str, Callable[..., Objective]]
"""Classes of objectives by name, which make an objective from its fields."""


def measured(quantity: str, value: float, images: Labelled, **columns) -> Measurement:
    """A row of theory and kind "network" about the images."""
    return Measurement("network", "network", quantity, value, n=len(images[0]), **columns)


def outputs(
    model: nn.Module, pixels: UInt8[Tensor, "n c h w"], *, batch_size: int, call: Callable[[Tensor], Tensor] | None = None
) -> Float[Tensor, "n *shape"]:
    """The network's outputs on the CPU, ``[n, ...]`` float64; in evaluation mode, which is restored, and without gradients.

    Args:
        model: its input is images in [0, 1].
        pixels: 0 to 255, ``[n, c, h, w]``; they go to the model's device and precision batch by batch.
        batch_size: images per forward pass.
        call: is called on the images in place of the model.
    """
    parameter = next(model.parameters())
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            parts = [(call or model)(scaled(part, parameter)).cpu().double() for part in pixels.split(batch_size)]
    finally:
        model.train(training)
    return torch.cat(parts)


def scaled(pixels: UInt8[Tensor, "n c h w"], like: Tensor) -> Float[Tensor, "n c h w"]:
    """Pixels in [0, 1], in the precision and on the device of another tensor."""
    return pixels.to(like.device, like.dtype) / 255


def spread(images: Labelled, limit: int) -> Labelled:
    """At most ``limit`` of the images, evenly spaced, so that sorted classes all occur."""
    pixels, labels = images
    if len(pixels) <= limit:
        return images
    places = torch.linspace(0, len(pixels) - 1, limit, dtype=torch.float64).round().long()
    return pixels[places.to(pixels.device)], labels[places.to(labels.device)]


def check_labelled(name: str, images: Labelled) -> None:
    """Checks images, uint8 ``[n, c, h, w]``, and their labels, integers >= 0.

    Raises:
        ValueError: there is no image, or another shape or type; the message begins with ``name``.
    """
    pixels, labels = images
    if pixels.dtype != torch.uint8 or pixels.ndim != 4 or not len(pixels):
        raise ValueError(f"{name} images must be torch.uint8 [n, c, h, w] with n >= 1, got {pixels.dtype} {list(pixels.shape)}")
    if labels.shape != pixels.shape[:1] or labels.is_floating_point() or int(labels.min()) < 0:
        shown = f"{labels.dtype} {list(labels.shape)}" + (f" from {labels.min()}" if len(labels) else "")
        raise ValueError(f"{name} labels must be {len(pixels)} integers >= 0, one for each image, got {shown}")


def check_targets(targets: Tensor, batch: int, *, classes: int | None = None) -> None:
    """Checks targets: shares ``[batch, classes]``, >= 0, rows summing to one.

    The values are checked on the CPU only: on an accelerator each step would wait for them.

    Raises:
        ValueError: another shape, or rows that are not shares.
    """
    if targets.ndim != 2 or not targets.is_floating_point() or len(targets) != batch or (classes or targets.shape[1]) != targets.shape[1]:
        raise ValueError(
            f"targets must be the shares of each class, [{batch}, {classes or 'classes'}], got {targets.dtype} {list(targets.shape)}; "
            "convert labels with torch.nn.functional.one_hot(labels, classes).float()"
        )
    shares = targets.detach()
    if shares.device.type == "cpu" and not bool(((shares >= 0).all(1) & ((shares.double().sum(1) - 1).abs() <= SHARES_ATOL)).all()):
        raise ValueError(
            f"targets must be >= 0 in rows that sum to 1, got rows from {shares.min():.3g} to {shares.max():.3g} or other sums"
        )
