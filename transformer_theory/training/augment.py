r"""Augmentation of images: crops, flips, cutout, colours, blur, and mixtures of pairs; each image draws its own random numbers.

All functions take ``[n, channels, height, width]`` and draw from torch's global CPU generator, which the training loop seeds and restores;
the numbers are moved to the images' device. :func:`crop`, :func:`flip` and :func:`cutout` take any dtype, so that images can stay bytes as
long as possible; the others take floats in [0, 1]. A pipeline is a function, ``lambda images: flip(crop(images, padding=8))``, or an
:class:`Augmentation`.

:func:`mixup` and :func:`cutmix` mix each image with the one before it in the batch, whose order is random. Each image draws the share
:math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)` that it keeps:

    mixup     x' = λ x + (1 - λ) x_before,                                  y' = λ y + (1 - λ) y_before
    cutmix    x' = x_before in a box of the area 1 - λ, x outside,          y' likewise, λ the area of x that remains

Source: :cite:t:`yu2020learning` (supervised: crop and flip), :cite:t:`chen2020simple` (the colours and blur of the self-supervised runs),
:cite:t:`devries2017improved` (cutout), :cite:t:`zhang2018mixup`, :cite:t:`yun2019cutmix`.
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
    """The augmentation of a batch of images; ``Augmentation()`` changes nothing.

    In this order: crop, flip, operations, cutout, then one of mixup and cutmix (if both are on, each is applied to half of the batches).

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
        """Augmented images in [0, 1], ``[n, c, h, w]``, and the share of each class in them, ``[n, classes]``, rows of sum 1."""
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
    """A random window of the original size from the image with a frame of ``padding`` pixels.

    Args:
        images: of any dtype, ``[n, c, h, w]``.
        mode: of the frame, as in ``torch.nn.functional.pad``: "constant" (black) or "reflect" (the image mirrored at its border).
    Raises:
        ValueError: padding < 1, another mode, or an image that is too small to be mirrored.
    """
    if padding < 1:
        raise ValueError(f"padding must be at least 1, got {padding}")
    n, channels, height, width = images.shape
    if mode == "constant":
        framed = functional.pad(images, [padding] * 4)
    elif mode != "reflect":
        raise ValueError(f"mode must be 'constant' or 'reflect', got {mode!r}")
    elif padding >= min(height, width):
        raise ValueError(f"padding must be below the sides of the images to mirror them, got {padding} for {height} x {width} pixels")
    else:  # torch does not mirror bytes
        rows, columns = (_mirrored(side, padding).to(images.device) for side in (height, width))
        framed = images.index_select(2, rows).index_select(3, columns)
    down, right = torch.randint(2 * padding + 1, (2, n)).to(images.device)
    # a row of a window is `width` neighbours in memory: one look-up per row instead of one per pixel
    planes = torch.arange(n * channels, device=images.device).view(n, channels, 1) * (height + 2 * padding)
    rows = planes + down[:, None, None] + torch.arange(height, device=images.device)
    starts = rows * (width + 2 * padding) + right[:, None, None]
    return framed.flatten().unfold(0, width, 1).index_select(0, starts.flatten()).view(images.shape)


def flip(images: Pixels, *, share: float = 0.5) -> Pixels:
    """Mirrors a share of the images left to right."""
    chosen = _chance(images, share).flatten().nonzero()[:, 0]
    return images.index_copy(0, chosen, images[chosen].flip(-1))


def cutout(images: Pixels, *, size: int) -> Pixels:
    """A black square of ``size`` x ``size`` pixels around a random pixel, cut off at the border.

    Raises:
        ValueError: size is not from 1 to the sides of the images.
    """
    n, _, height, width = images.shape
    if not 1 <= size <= min(height, width):
        raise ValueError(f"size must be from 1 to the sides of the images, {height} x {width} pixels, got {size}")
    first = [(torch.randint(side, (n, 1)) - size // 2).to(images.device) for side in (height, width)]
    hit = [((at := torch.arange(side, device=images.device)) >= low) & (at < low + size) for side, low in zip((height, width), first)]
    return images.masked_fill((hit[0][:, :, None] & hit[1][:, None, :])[:, None], 0)


def resized_crop(images: Images, *, smallest: float = 0.08) -> Images:
    """A window of ``smallest`` to 1 of the area and of aspect ratio 3/4 to 4/3, resized to the original size bilinearly.

    Raises:
        ValueError: ``smallest`` is not in (0, 1].
    """
    if not 0 < smallest <= 1:
        raise ValueError(f"smallest must be a share of the area in (0, 1], got {smallest}")
    n = len(images)
    area, tilt = torch.empty(n).uniform_(smallest, 1), torch.empty(n).uniform_(math.log(3 / 4), math.log(4 / 3))
    sizes = (area[:, None] * torch.stack([tilt, -tilt], 1).exp()).sqrt().clamp(max=1)
    middles = (1 - sizes) * (2 * torch.rand(n, 2) - 1)
    maps = torch.cat([torch.diag_embed(sizes), middles[:, :, None]], 2).to(images)
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def jitter(images: Images, *, strength: float = 0.4, hue: float = 0.1, share: float = 0.8) -> Images:
    """Multiplies brightness, contrast and saturation by 1 ± strength and turns the hue by ± ``hue`` of a circle, in a share of the images.

    Raises:
        ValueError: the images do not have three colours.
    """
    _of_three_colours(images)
    n = len(images)

    def factor() -> Tensor:
        return torch.empty(n, 1, 1, 1).uniform_(1 - strength, 1 + strength).to(images)

    changed = (images * factor()).clamp(0, 1)
    mean = _brightness(changed).mean((2, 3), keepdim=True)
    changed = (mean + factor() * (changed - mean)).clamp(0, 1)
    grey = _brightness(changed)
    changed = (grey + factor() * (changed - grey)).clamp(0, 1)
    return torch.where(_chance(images, share), _turned(changed, 2 * math.pi * torch.empty(n).uniform_(-hue, hue)), images)


def greyed(images: Images, *, share: float = 0.2) -> Images:
    """Removes the colour of a share of the images.

    Raises:
        ValueError: the images do not have three colours.
    """
    _of_three_colours(images)
    return torch.where(_chance(images, share), _brightness(images).expand_as(images), images)


def blurred(images: Images, *, size: int = 9, share: float = 0.5) -> Images:
    """Smooths a share of the images with a Gaussian of 0.1 to 2 pixels, cut off at ``size`` pixels.

    Raises:
        ValueError: size is even, or half of it exceeds the image.
    """
    n, channels, height, width = images.shape
    if size % 2 == 0 or size // 2 >= min(height, width):
        raise ValueError(f"size must be odd and at most twice the image less 1, got {size} for {height} x {width} pixels")
    spread = torch.empty(n, 1).uniform_(0.1, 2.0)
    weights = torch.exp(-0.5 * ((torch.arange(size) - size // 2) / spread) ** 2)
    weights = (weights / weights.sum(1, keepdim=True)).to(images).repeat_interleave(channels, 0)[:, None]
    whole = functional.pad(images, [size // 2] * 4, mode="reflect").flatten(0, 1)[None]
    smooth = functional.conv2d(whole, weights[:, :, :, None], groups=n * channels)
    smooth = functional.conv2d(smooth, weights[:, :, None, :], groups=n * channels)
    return torch.where(_chance(images, share), smooth.view_as(images), images)


def mixup(images: Images, targets: Targets, *, alpha: float) -> tuple[Images, Targets]:
    """Sums of two images and of their targets with the same weights.

    Args:
        images, targets: ``[n, c, h, w]`` and ``[n, classes]``.
        alpha: of the Beta distribution, > 0; a large one mixes in equal parts.
    Raises:
        ValueError: alpha is not positive.
    """
    kept = _shares(len(images), alpha)
    return _blended(images, kept.to(images)), _blended(targets, kept.to(targets))


def cutmix(images: Images, targets: Targets, *, alpha: float) -> tuple[Images, Targets]:
    """Images with a box of another image; targets are weighted by the areas after the box is cut off at the border.

    Args:
        images, targets: ``[n, c, h, w]`` and ``[n, classes]``.
        alpha: of the Beta distribution, > 0.
    Raises:
        ValueError: alpha is not positive.
    """
    n, _, height, width = images.shape
    sides = (1 - _shares(n, alpha)).sqrt()[:, None]
    inside = []
    for pixels in (height, width):
        middle, half = torch.randint(pixels, (n, 1)), (pixels * sides).long() // 2
        places = torch.arange(pixels)
        inside.append((places >= middle - half) & (places < middle + half))
    box = inside[0][:, :, None] & inside[1][:, None, :]
    kept = 1 - box.float().mean((1, 2))
    return torch.where(box[:, None].to(images.device), images.roll(1, 0), images), _blended(targets, kept.to(targets))


def _shares(n: int, alpha: float) -> Tensor:
    if not 0 < alpha < float("inf"):
        raise ValueError(f"alpha must be positive and finite, got {alpha}; omit the mixing for none")
    return Beta(alpha, alpha).sample((n,))


def _blended(values: Tensor, kept: Tensor) -> Tensor:
    return torch.lerp(values.roll(1, 0), values, kept.view(-1, *[1] * (values.ndim - 1)))


def _chance(images: Tensor, share: float) -> Tensor:
    return (torch.rand(len(images), 1, 1, 1) < share).to(images.device)


def _mirrored(side: int, padding: int) -> Tensor:
    """Positions of the pixels of a mirrored frame, [side + 2 padding]; the border itself is not repeated."""
    return (side - 1) - ((side - 1) - torch.arange(-padding, side + padding).abs()).abs()


def _of_three_colours(images: Tensor) -> None:
    if images.shape[1] != 3:
        raise ValueError(f"images must have three colours, [n, 3, h, w], got {list(images.shape)}; omit this step")


def _brightness(images: Tensor) -> Tensor:
    return (images * images.new_tensor(GREY)[:, None, None]).sum(1, keepdim=True)


def _turned(images: Tensor, angles: Tensor) -> Tensor:
    """Turns the colours about the grey axis, which changes the hue and keeps the mean of the three colours."""
    axis, identity = images.new_full((3,), 3**-0.5), torch.eye(3).to(images)
    cross = torch.linalg.cross(axis.expand(3, 3), identity).mT  # cross @ v is axis x v
    cosine, sine = angles.cos().to(images)[:, None, None], angles.sin().to(images)[:, None, None]
    turn = cosine * identity + sine * cross + (1 - cosine) * torch.outer(axis, axis)
    return torch.einsum("nij,njhw->nihw", turn, images).clamp(0, 1)
