"""What a network says of many images, batch by batch, and what is asked of images and targets."""

from collections.abc import Callable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from ...metrics.coding.memberships import SUM_TOLERANCE
from .protocol import Labelled


def outputs(
    model: nn.Module, pixels: UInt8[Tensor, "n c h w"], *, batch_size: int, read: Callable[[Tensor], Tensor] | None = None
) -> Float[Tensor, "n *shape"]:
    """What the network puts out, on the CPU and in float64; in evaluation mode, which is restored, and without gradients.

    Args:
        model: images in [0, 1] in.
        pixels: 0 to 255, ``[n, c, h, w]``; they go to the model's device and precision batch by batch.
        batch_size: images at a time.
        read: called on the images in place of the model.
    Returns:
        ``[n, ...]``, without the rounding of later sums.
    """
    parameter = next(model.parameters())
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            parts = [(read or model)(scaled(part, parameter)).cpu().double() for part in pixels.split(batch_size)]
    finally:
        model.train(training)
    return torch.cat(parts)


def scaled(pixels: UInt8[Tensor, "n c h w"], like: Tensor) -> Float[Tensor, "n c h w"]:
    """Pixels in [0, 1], in the precision and on the device of another tensor."""
    return pixels.to(like.device, like.dtype) / 255


def spread(images: Labelled, most: int) -> Labelled:
    """At most so many of the images, evenly spread, so that sorted classes are all there."""
    pixels, labels = images
    if len(pixels) <= most:
        return images
    places = torch.linspace(0, len(pixels) - 1, most, dtype=torch.float64).round().long()
    return pixels[places.to(pixels.device)], labels[places.to(labels.device)]


def check_labelled(what: str, images: Labelled) -> None:
    """Raises ValueError unless there are images, uint8 ``[n, c, h, w]``, with as many labels, integers >= 0."""
    pixels, labels = images
    if pixels.dtype != torch.uint8 or pixels.ndim != 4 or not len(pixels):
        raise ValueError(f"{what} images must be torch.uint8 [n, c, h, w] with n >= 1, got {pixels.dtype} {list(pixels.shape)}")
    if labels.shape != pixels.shape[:1] or labels.is_floating_point() or int(labels.min()) < 0:
        shown = f"{labels.dtype} {list(labels.shape)}" + (f" from {labels.min()}" if len(labels) else "")
        raise ValueError(f"{what} labels must be {len(pixels)} integers >= 0, one for each image, got {shown}")


def check_targets(targets: Tensor, batch: int, *, classes: int | None = None) -> None:
    """Raises ValueError unless targets are shares ``[batch, classes]``, >= 0, rows summing to one.

    The numbers are looked at on the CPU alone: of an accelerator one would wait for them at each step.
    """
    if targets.ndim != 2 or not targets.is_floating_point() or len(targets) != batch or (classes or targets.shape[1]) != targets.shape[1]:
        raise ValueError(
            f"targets must be the shares of each class, [{batch}, {classes or 'classes'}], got {targets.dtype} {list(targets.shape)}; "
            "of labels take torch.nn.functional.one_hot(labels, classes).float()"
        )
    own = targets.detach()
    if own.device.type == "cpu" and not bool(((own >= 0).all(1) & ((own.double().sum(1) - 1).abs() <= SUM_TOLERANCE)).all()):
        raise ValueError(f"targets must be >= 0 in rows that sum to 1, got rows from {own.min():.3g} to {own.max():.3g} or other sums")
