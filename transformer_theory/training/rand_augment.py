r"""RandAugment: random operations from a list of fourteen, all with the same strength; operations are drawn
per image.

Input and output are bytes ``[n, c, h, w]``. The strength s is magnitude / 10, with a random sign:

    shear_x, shear_y                            by 0.3 s pixels per pixel
    translate_x, translate_y                    by 0.45 s of the side
    rotate                                      by 30 s degrees about the middle
    brightness, colour, contrast, sharpness
        image + 0.9 s (image - reference): black, the grey image, its mean, the smoothed image
    posterize                                   the lowest round(4 |s|) bits are set to 0
    solarize                                    values v >= 256 (1 - |s|) become 255 - v
    identity, autocontrast, equalize            no strength

The effect of an operation with a strength grows with |s|, and s = 0 changes nothing. (The published posterize
keeps 4 s bits, so its effect shrinks with s.) Translations are shares of the side, so they do not depend on
the resolution. Pixels from beyond the border are black, and pixels are interpolated bilinearly. Random
numbers come from torch's global CPU generator. Source: :cite:t:`cubuk2020randaugment`, Sec. 3.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

Pixels = UInt8[Tensor, "n c h w"]
Strengths = Float[Tensor, " n"]

GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue in perceived brightness
LARGEST = 10.0  # largest magnitude
SHEAR, ANGLE, SHIFT, BLEND, BITS = 0.3, math.pi / 6, 0.45, 0.9, 4  # effects at the largest magnitude


def rand_augment(images: Pixels, *, operations: int, magnitude: float) -> Pixels:
    """Applies to each image, one after the other, ``operations`` operations drawn from :data:`OPERATIONS`
    with replacement.

    Args:
        images: bytes, ``[n, c, h, w]``.
        operations: number of operations per image, >= 0.
        magnitude: strength of the operations, in [0, 10].
    Raises:
        ValueError: operations or magnitude is out of range.
    """
    if operations < 0 or not 0 <= magnitude <= LARGEST:
        raise ValueError(
            f"operations must be at least 0 and magnitude in [0, {LARGEST:g}], got {operations} and "
            f"{magnitude}"
        )
    n = len(images)
    for _ in range(operations):
        numbers, signs = torch.randint(len(OPERATIONS), (n,)), 2 * torch.randint(2, (n,)) - 1
        strengths, results = (signs * magnitude / LARGEST).to(images.device), images.clone()
        for number, operation in enumerate(OPERATIONS.values()):
            indices = (numbers == number).nonzero()[:, 0].to(images.device)
            if len(indices):
                results[indices] = operation(images[indices], strengths[indices])
        images = results
    return images


def _identity(images: Pixels, strengths: Strengths) -> Pixels:
    return images


def _warp(images: Pixels, maps: Float[Tensor, "n 2 3"]) -> Pixels:
    """Moves the pixel at ``maps @ (x, y, 1)`` to (x, y); coordinates are in half sides from the middle."""
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
    return _bytes(functional.grid_sample(images.float(), grid, align_corners=False))


def _shear(images: Pixels, strengths: Strengths, *, axis: int) -> Pixels:
    maps = _identity_maps(images)
    # In half sides a shear, or the sine of a rotation, scales with the ratio of the sides; image shapes are
    # [..., height, width].
    maps[:, axis, 1 - axis] = SHEAR * strengths * images.shape[2 + axis] / images.shape[3 - axis]
    return _warp(images, maps)


def _translate(images: Pixels, strengths: Strengths, *, axis: int) -> Pixels:
    maps = _identity_maps(images)
    maps[:, axis, 2] = 2 * SHIFT * strengths
    return _warp(images, maps)


def _rotate(images: Pixels, strengths: Strengths) -> Pixels:
    maps, angles, (height, width) = _identity_maps(images), ANGLE * strengths, images.shape[2:]
    maps[:, 0, 0] = maps[:, 1, 1] = angles.cos()
    maps[:, 0, 1], maps[:, 1, 0] = -angles.sin() * height / width, angles.sin() * width / height
    return _warp(images, maps)


def _identity_maps(images: Pixels) -> Float[Tensor, "n 2 3"]:
    return torch.eye(2, 3, device=images.device).repeat(len(images), 1, 1)


def _extrapolate(images: Pixels, strengths: Strengths, *, reference: Callable[[Tensor], Tensor]) -> Pixels:
    """Moves images away from their reference, or towards it if the strength is negative."""
    values = images.float()
    return _bytes(values + BLEND * strengths[:, None, None, None] * (values - reference(values)))


def _black(images: Tensor) -> Tensor:
    return torch.zeros_like(images)


def _grey(images: Tensor) -> Tensor:
    """Returns the perceived brightness of three colours, otherwise the mean of the channels, [n, 1, h, w]."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    return (images * images.new_tensor(GREY)[:, None, None]).sum(1, keepdim=True)


def _mean(images: Tensor) -> Tensor:
    return _grey(images).mean((2, 3), keepdim=True)


def _smooth(images: Tensor) -> Tensor:
    """Averages 3 x 3 pixels with weight 5 on the middle one; border pixels are not changed."""
    smooth, channels = images.clone(), images.shape[1]
    weights = images.new_tensor([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    smooth[:, :, 1:-1, 1:-1] = functional.conv2d(images, weights.expand(channels, 1, 3, 3), groups=channels)
    return smooth


def _posterize(images: Pixels, strengths: Strengths) -> Pixels:
    bits = (BITS * strengths.abs()).round().to(torch.uint8)[:, None, None, None]
    return (images >> bits) << bits


def _solarize(images: Pixels, strengths: Strengths) -> Pixels:
    return torch.where(images >= 256 * (1 - strengths.abs()[:, None, None, None]), 255 - images, images)


def _autocontrast(images: Pixels, strengths: Strengths) -> Pixels:
    """Stretches each channel to [0, 255]; a constant channel is not changed."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(high > low, _bytes((images - low) * (255 / (high - low))), images)


def _equalize(images: Pixels, strengths: Strengths) -> Pixels:
    """Equalises the histogram of each channel in 256 steps, as Pillow does; images of fewer than 256 pixels
    are not changed.
    """
    values = images.flatten(2).flatten(0, 1).long()
    counts = values.new_zeros(len(values), 256).scatter_add_(1, values, torch.ones_like(values))
    # One step of 1/255 takes this number of pixels; the pixels of the largest value do not count. The shift
    # by half a step rounds.
    step = (values.shape[1] - counts.gather(1, values.amax(1, keepdim=True))) // 255
    table = ((counts.cumsum(1) - counts + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(1, values), values).to(torch.uint8).view(images.shape)


def _bytes(images: Tensor) -> Pixels:
    """Rounds to bytes; values beyond [0, 255] are clamped."""
    return images.round().clamp(0, 255).to(torch.uint8)


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": _identity,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "rotate": _rotate,
    "solarize": _solarize,
    "posterize": _posterize,
    "brightness": partial(_extrapolate, reference=_black),
    "colour": partial(_extrapolate, reference=_grey),
    "contrast": partial(_extrapolate, reference=_mean),
    "sharpness": partial(_extrapolate, reference=_smooth),
    "shear_x": partial(_shear, axis=0),
    "shear_y": partial(_shear, axis=1),
    "translate_x": partial(_translate, axis=0),
    "translate_y": partial(_translate, axis=1),
}
