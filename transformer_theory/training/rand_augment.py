r"""RandAugment: random operations from a list of fourteen, all of one strength; each image draws its own.

Images are bytes ``[n, c, h, w]``, in and out. The strength s is magnitude / 10, of a random sign where it has one:

    shear_x, shear_y                            by 0.3 s pixels a pixel
    translate_x, translate_y                    by 0.45 s of the side
    rotate                                      by 30 s degrees about the middle
    brightness, colour, contrast, sharpness     image + 0.9 s (image - the image without it: black, grey, its mean grey, smoothed)
    posterize                                   the lowest round(4 |s|) bits set to 0
    solarize                                    values v >= 256 (1 - |s|) become 255 - v
    identity, autocontrast, equalize            of no strength

Strengths grow with the magnitude, and at 0 the operations with a strength change nothing (the published posterize keeps 4 s bits: the
smaller s, the stronger). Shifts are shares of the image, the same for 32 pixels as for 224. Pixels from beyond the border are black, and
pixels are interpolated bilinearly. Draws are from torch's global CPU generator.
Source: :cite:t:`cubuk2020randaugment`, Sec. 3.
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

GREY = (0.299, 0.587, 0.114)  # shares of red, green and blue in perceived brightness
LARGEST = 10.0  # magnitude
SHEAR, ANGLE, SHIFT, BLEND, BITS = 0.3, math.pi / 6, 0.45, 0.9, 4  # at the largest magnitude


def rand_augment(images: Pixels, *, operations: int, magnitude: float) -> Pixels:
    """Applies ``operations`` operations to each image, drawn from :data:`OPERATIONS` with replacement, one after the other.

    Args:
        images: ``[n, c, h, w]``.
        operations: >= 0.
        magnitude: in [0, 10].
    Raises:
        ValueError: operations or magnitude are out of range.
    """
    if operations < 0 or not 0 <= magnitude <= LARGEST:
        raise ValueError(f"operations must be at least 0 and magnitude in [0, {LARGEST:g}], got {operations} and {magnitude}")
    n = len(images)
    for _ in range(operations):
        drawn, signs = torch.randint(len(OPERATIONS), (n,)), 2 * torch.randint(2, (n,)) - 1
        strengths, changed = (signs * magnitude / LARGEST).to(images.device), images.clone()
        for number, operation in enumerate(OPERATIONS.values()):
            chosen = (drawn == number).nonzero()[:, 0].to(images.device)
            if len(chosen):
                changed[chosen] = operation(images[chosen], strengths[chosen])
        images = changed
    return images


def _identity(images: Pixels, strengths: Strengths) -> Pixels:
    return images


def _moved(images: Pixels, maps: Float[Tensor, "n 2 3"]) -> Pixels:
    """Moves the pixel at ``maps @ (x, y, 1)`` to (x, y), measured from the middle in half sides."""
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
    return _bytes(functional.grid_sample(images.float(), grid, align_corners=False))


def _sheared(images: Pixels, strengths: Strengths, *, axis: int) -> Pixels:
    maps = _still(images)
    maps[:, axis, 1 - axis] = SHEAR * strengths * images.shape[2 + axis] / images.shape[3 - axis]
    return _moved(images, maps)


def _translated(images: Pixels, strengths: Strengths, *, axis: int) -> Pixels:
    maps = _still(images)
    maps[:, axis, 2] = 2 * SHIFT * strengths
    return _moved(images, maps)


def _rotated(images: Pixels, strengths: Strengths) -> Pixels:
    maps, angles, (height, width) = _still(images), ANGLE * strengths, images.shape[2:]
    maps[:, 0, 0] = maps[:, 1, 1] = angles.cos()
    maps[:, 0, 1], maps[:, 1, 0] = -angles.sin() * height / width, angles.sin() * width / height
    return _moved(images, maps)


def _still(images: Pixels) -> Float[Tensor, "n 2 3"]:
    return torch.eye(2, 3, device=images.device).repeat(len(images), 1, 1)


def _blended(images: Pixels, strengths: Strengths, *, without: Callable[[Tensor], Tensor]) -> Pixels:
    whole = images.float()
    return _bytes(whole + BLEND * strengths[:, None, None, None] * (whole - without(whole)))


def _black(images: Tensor) -> Tensor:
    return torch.zeros_like(images)


def _grey(images: Tensor) -> Tensor:
    """Perceived brightness of three colours, otherwise the mean of the channels, [n, 1, h, w]."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    return (images * images.new_tensor(GREY)[:, None, None]).sum(1, keepdim=True)


def _mean(images: Tensor) -> Tensor:
    return _grey(images).mean((2, 3), keepdim=True)


def _smooth(images: Tensor) -> Tensor:
    """The mean of 3 x 3 pixels, the middle weighted five times; the border stays."""
    smooth, channels = images.clone(), images.shape[1]
    weights = images.new_tensor([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    smooth[:, :, 1:-1, 1:-1] = functional.conv2d(images, weights.expand(channels, 1, 3, 3), groups=channels)
    return smooth


def _posterized(images: Pixels, strengths: Strengths) -> Pixels:
    lost = (BITS * strengths.abs()).round().to(torch.uint8)[:, None, None, None]
    return (images >> lost) << lost


def _solarized(images: Pixels, strengths: Strengths) -> Pixels:
    return torch.where(images >= 256 * (1 - strengths.abs()[:, None, None, None]), 255 - images, images)


def _autocontrasted(images: Pixels, strengths: Strengths) -> Pixels:
    """Stretches each channel to [0, 255]; a constant channel stays."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(high > low, _bytes((images - low) * (255 / (high - low))), images)


def _equalized(images: Pixels, strengths: Strengths) -> Pixels:
    """Equalises the histogram of each channel in 256 steps; images of fewer than 256 pixels stay unchanged, as in Pillow."""
    values = images.flatten(2).flatten(0, 1).long()
    counts = values.new_zeros(len(values), 256).scatter_add_(1, values, torch.ones_like(values))
    step = (values.shape[1] - counts.gather(1, values.amax(1, keepdim=True))) // 255
    table = ((counts.cumsum(1) - counts + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(1, values), values).to(torch.uint8).view(images.shape)


def _bytes(images: Tensor) -> Pixels:
    return images.round().clamp(0, 255).to(torch.uint8)


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": _identity,
    "autocontrast": _autocontrasted,
    "equalize": _equalized,
    "rotate": _rotated,
    "solarize": _solarized,
    "posterize": _posterized,
    "brightness": partial(_blended, without=_black),
    "colour": partial(_blended, without=_grey),
    "contrast": partial(_blended, without=_mean),
    "sharpness": partial(_blended, without=_smooth),
    "shear_x": partial(_sheared, axis=0),
    "shear_y": partial(_sheared, axis=1),
    "translate_x": partial(_translated, axis=0),
    "translate_y": partial(_translated, axis=1),
}
