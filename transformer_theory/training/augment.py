r"""Augmentation of images: crops, flips, cutout, colours, blur, and mixtures of pairs. Random numbers are
drawn per image.

All functions take ``[n, channels, height, width]`` and draw from torch's global CPU generator, which the
training loop seeds and restores; the numbers are moved to the images' device. :func:`crop`, :func:`flip` and
:func:`cutout` take any dtype, so that images can stay bytes as long as possible; the others take floats in
[0, 1]. A pipeline is an :class:`Augmentation`, or a function such as ``lambda images: flip(crop(images,
padding=8))``.

:func:`mixup` and :func:`cutmix` mix each image x with the previous image of the batch, whose order is random.
The share of x is
:math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)`, drawn per image:

    mixup     x' = λ x + (1 - λ) x_previous,                                y' = λ y + (1 - λ) y_previous
    cutmix    x' = x_previous in a box of area 1 - λ, x outside,
              y' as for mixup, with λ the area outside the box

Source: :cite:t:`yu2020learning` (supervised: crop and flip), :cite:t:`chen2020simple` (the colours and blur
of the self-supervised runs), :cite:t:`devries2017improved` (cutout), :cite:t:`zhang2018mixup`,
:cite:t:`yun2019cutmix`.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor
from torch.distributions import Beta
from torch.nn import functional

from ..core.experiment import check_settings, setting
from .rand_augment import GREY, LARGEST, rand_augment

Images = Float[Tensor, "n c h w"]
Pixels = Shaped[Tensor, "n c h w"]
Targets = Float[Tensor, "n classes"]


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of a batch of images; ``Augmentation()`` changes nothing.

    The order is crop, flip, operations, cutout, then mixup or cutmix. If both of these are on, one of the two
    is drawn per batch.

    Raises:
        ValueError: a field is out of range.
    """

    crop: int = setting(0, ge=0, help="width of the black border that is added before a random crop, pixels")
    flip: float = setting(0.0, ge=0, le=1, help="share of images that are mirrored left to right")
    operations: int = setting(0, ge=0, help="random operations on each image (RandAugment)")
    magnitude: float = setting(9.0, ge=0, le=LARGEST, help="strength of the random operations")
    cutout: int = setting(0, ge=0, help="side of a black square in each image, pixels")
    mixup: float = setting(0.0, ge=0, help="alpha of mixup; 0 turns it off")
    cutmix: float = setting(0.0, ge=0, help="alpha of cutmix; 0 turns it off")

    def __post_init__(self):
        check_settings(self)

    def __call__(
        self, pixels: UInt8[Tensor, "n c h w"], labels: Int[Tensor, " n"], classes: int
    ) -> tuple[Images, Float[Tensor, "n classes"]]:
        """Returns augmented images in [0, 1], ``[n, c, h, w]``, and the shares of the classes in each, ``[n,
        classes]``, which sum to 1.
        """
        if self.crop:
            pixels = crop(pixels, padding=self.crop)
        if self.flip:
            pixels = flip(pixels, share=self.flip)
        if self.operations:
            pixels = rand_augment(pixels, operations=self.operations, magnitude=self.magnitude)
        if self.cutout:
            pixels = cutout(pixels, size=self.cutout)
        images, targets = pixels / 255, functional.one_hot(labels.long(), classes).float()
        mixings = [mix for mix, alpha in ((mixup, self.mixup), (cutmix, self.cutmix)) if alpha]
        if not mixings:
            return images, targets
        mix = mixings[int(torch.randint(len(mixings), ()))]
        return mix(images, targets, alpha=self.mixup if mix is mixup else self.cutmix)


def crop(images: Pixels, *, padding: int, mode: str = "constant") -> Pixels:
    """Adds a frame of ``padding`` pixels to each image and cuts out a random window of the original size.

    Args:
        images: images of any dtype, ``[n, c, h, w]``.
        padding: width of the frame, pixels.
        mode: contents of the frame, as in ``torch.nn.functional.pad``: "constant" (black) or "reflect" (the
            image mirrored at its border).
    Raises:
        ValueError: padding < 1, the mode is unknown, or an image is too small to be mirrored.
    """
    if padding < 1:
        raise ValueError(f"padding must be at least 1, got {padding}")
    n, channels, height, width = images.shape
    if mode == "constant":
        framed = functional.pad(images, [padding] * 4)
    elif mode != "reflect":
        raise ValueError(f"mode must be 'constant' or 'reflect', got {mode!r}")
    elif padding >= min(height, width):
        raise ValueError(
            f"padding must be below the sides of the images to mirror them, got {padding} for {height} x "
            f"{width} pixels"
        )
    else:  # functional.pad cannot mirror bytes
        rows, columns = (_mirror_positions(side, padding).to(images.device) for side in (height, width))
        framed = images.index_select(2, rows).index_select(3, columns)
    down, right = torch.randint(2 * padding + 1, (2, n)).to(images.device)
    # The pixels of a window's row are adjacent in memory, so one look-up per row suffices: unfold(0, width,
    # 1) is a view of all runs of `width` adjacent pixels, indexed by their first pixel. `planes` and `rows`
    # number the rows of all framed channels consecutively.
    planes = torch.arange(n * channels, device=images.device).view(n, channels, 1) * (height + 2 * padding)
    rows = planes + down[:, None, None] + torch.arange(height, device=images.device)
    starts = rows * (width + 2 * padding) + right[:, None, None]
    return framed.flatten().unfold(0, width, 1).index_select(0, starts.flatten()).view(images.shape)


def flip(images: Pixels, *, share: float = 0.5) -> Pixels:
    """Mirrors a share of the images left to right."""
    indices = _random_mask(images, share).flatten().nonzero()[:, 0]
    return images.index_copy(0, indices, images[indices].flip(-1))


def cutout(images: Pixels, *, size: int) -> Pixels:
    """Blackens a square of ``size`` x ``size`` pixels around a random pixel of each image; parts beyond the
    border are cut off.

    Raises:
        ValueError: size is below 1 or above a side of the images.
    """
    n, _, height, width = images.shape
    if not 1 <= size <= min(height, width):
        raise ValueError(
            f"size must be from 1 to the sides of the images, {height} x {width} pixels, got {size}"
        )
    first = [(torch.randint(side, (n, 1)) - size // 2).to(images.device) for side in (height, width)]
    inside = [
        ((i := torch.arange(side, device=images.device)) >= low) & (i < low + size)
        for side, low in zip((height, width), first)
    ]
    return images.masked_fill((inside[0][:, :, None] & inside[1][:, None, :])[:, None], 0)


def resized_crop(images: Images, *, smallest: float = 0.08) -> Images:
    """Cuts out a window with a share ``smallest`` to 1 of the area and an aspect ratio of 3/4 to 4/3, and
    resizes it bilinearly.

    Raises:
        ValueError: ``smallest`` is not in (0, 1].
    """
    if not 0 < smallest <= 1:
        raise ValueError(f"smallest must be a share of the area in (0, 1], got {smallest}")
    n = len(images)
    # Window coordinates are in half sides from the middle of the image, as in affine_grid; `maps` sends [-1,
    # 1]^2 to the window.
    area, tilt = (
        torch.empty(n).uniform_(smallest, 1),
        torch.empty(n).uniform_(math.log(3 / 4), math.log(4 / 3)),
    )
    sizes = (area[:, None] * torch.stack([tilt, -tilt], 1).exp()).sqrt().clamp(max=1)
    middles = (1 - sizes) * (2 * torch.rand(n, 2) - 1)
    maps = torch.cat([torch.diag_embed(sizes), middles[:, :, None]], 2).to(images)
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def jitter(images: Images, *, strength: float = 0.4, hue: float = 0.1, share: float = 0.8) -> Images:
    """Changes brightness, contrast and saturation by factors of 1 ± strength and the hue by ± ``hue`` turns,
    in a share of the images.

    Raises:
        ValueError: the images do not have three colours.
    """
    _check_three_colours(images)
    n = len(images)

    def factor() -> Tensor:
        return torch.empty(n, 1, 1, 1).uniform_(1 - strength, 1 + strength).to(images)

    changed = (images * factor()).clamp(0, 1)
    mean = _brightness(changed).mean((2, 3), keepdim=True)
    changed = (mean + factor() * (changed - mean)).clamp(0, 1)
    grey = _brightness(changed)
    changed = (grey + factor() * (changed - grey)).clamp(0, 1)
    return torch.where(
        _random_mask(images, share),
        _rotate_hue(changed, 2 * math.pi * torch.empty(n).uniform_(-hue, hue)),
        images,
    )


def greyed(images: Images, *, share: float = 0.2) -> Images:
    """Removes the colour of a share of the images.

    Raises:
        ValueError: the images do not have three colours.
    """
    _check_three_colours(images)
    return torch.where(_random_mask(images, share), _brightness(images).expand_as(images), images)


def blurred(images: Images, *, size: int = 9, share: float = 0.5) -> Images:
    """Smooths a share of the images with a Gaussian of 0.1 to 2 pixels, cut off at ``size`` pixels.

    Raises:
        ValueError: size is even or negative, or half of it exceeds the image.
    """
    n, channels, height, width = images.shape
    if size < 1 or size % 2 == 0 or size // 2 >= min(height, width):
        raise ValueError(
            f"size must be odd and at most twice the side of the images less 1, got {size} for {height} x "
            f"{width} pixels"
        )
    # The kernel is separable: one convolution per axis, with one group per channel and image since the widths
    # differ by image.
    spread = torch.empty(n, 1).uniform_(0.1, 2.0)
    weights = torch.exp(-0.5 * ((torch.arange(size) - size // 2) / spread) ** 2)
    weights = (weights / weights.sum(1, keepdim=True)).to(images).repeat_interleave(channels, 0)[:, None]
    whole = functional.pad(images, [size // 2] * 4, mode="reflect").flatten(0, 1)[None]
    smooth = functional.conv2d(whole, weights[:, :, :, None], groups=n * channels)
    smooth = functional.conv2d(smooth, weights[:, :, None, :], groups=n * channels)
    return torch.where(_random_mask(images, share), smooth.view_as(images), images)


def mixup(images: Images, targets: Targets, *, alpha: float) -> tuple[Images, Targets]:
    """Averages pairs of images and their targets with the same random weights.

    Args:
        images, targets: ``[n, c, h, w]`` and ``[n, classes]``.
        alpha: parameter of the Beta distribution, > 0; large values give nearly equal weights.
    Raises:
        ValueError: alpha is not positive.
    """
    weights = _draw_weights(len(images), alpha)
    return _blend(images, weights.to(images)), _blend(targets, weights.to(targets))


def cutmix(images: Images, targets: Targets, *, alpha: float) -> tuple[Images, Targets]:
    """Replaces a box of each image by that of the previous image. The weights of the targets are the areas
    within the image.

    Args:
        images, targets: ``[n, c, h, w]`` and ``[n, classes]``.
        alpha: parameter of the Beta distribution, > 0.
    Raises:
        ValueError: alpha is not positive.
    """
    n, _, height, width = images.shape
    sides = (1 - _draw_weights(n, alpha)).sqrt()[:, None]
    inside = []
    for pixels in (height, width):
        middle, half = torch.randint(pixels, (n, 1)), (pixels * sides).long() // 2
        places = torch.arange(pixels)
        inside.append((places >= middle - half) & (places < middle + half))
    box = inside[0][:, :, None] & inside[1][:, None, :]
    weights = 1 - box.float().mean((1, 2))
    return torch.where(box[:, None].to(images.device), images.roll(1, 0), images), _blend(
        targets, weights.to(targets)
    )


def _draw_weights(n: int, alpha: float) -> Tensor:
    """Draws the weight of each image in its mixture, ``[n]``."""
    if not 0 < alpha < float("inf"):
        raise ValueError(
            f"alpha must be positive and finite, got {alpha}; omit mixup or cutmix to turn it off"
        )
    return Beta(alpha, alpha).sample((n,))


def _blend(values: Tensor, weights: Tensor) -> Tensor:
    """Averages each entry ``[...]`` of ``[n, ...]``, with its weight, and the previous entry."""
    return torch.lerp(values.roll(1, 0), values, weights.view(-1, *[1] * (values.ndim - 1)))


def _random_mask(images: Tensor, share: float) -> Tensor:
    """Draws a mask that is true for a share of the images, ``[n, 1, 1, 1]``."""
    return (torch.rand(len(images), 1, 1, 1) < share).to(images.device)


def _mirror_positions(side: int, padding: int) -> Tensor:
    """Returns the source positions of a row with a mirrored frame, [side + 2 padding]; the border pixel is
    not repeated.
    """
    # One absolute value reflects positions at 0, the other at side - 1.
    return (side - 1) - ((side - 1) - torch.arange(-padding, side + padding).abs()).abs()


def _check_three_colours(images: Tensor) -> None:
    """Raises :class:`ValueError` unless images have three channels."""
    if images.shape[1] != 3:
        raise ValueError(
            f"images must have three colours, [n, 3, h, w], got {list(images.shape)}; omit this step"
        )


def _brightness(images: Tensor) -> Tensor:
    """Returns the perceived brightness, ``[n, 1, h, w]``."""
    return (images * images.new_tensor(GREY)[:, None, None]).sum(1, keepdim=True)


def _rotate_hue(images: Tensor, angles: Tensor) -> Tensor:
    """Rotates the colours about the grey axis by angles ``[n]``; this changes the hue and keeps the mean of
    the three channels.
    """
    # Rodrigues' formula: R = cos a I + sin a [u]_x + (1 - cos a) u u^T.
    axis, identity = images.new_full((3,), 3**-0.5), torch.eye(3).to(images)
    cross = torch.linalg.cross(axis.expand(3, 3), identity).mT  # cross @ v is axis x v
    cosine, sine = angles.cos().to(images)[:, None, None], angles.sin().to(images)[:, None, None]
    rotation = cosine * identity + sine * cross + (1 - cosine) * torch.outer(axis, axis)
    return torch.einsum("nij,njhw->nihw", rotation, images).clamp(0, 1)
