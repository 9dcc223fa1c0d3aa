r"""Random changes of images that leave their class alone, each image changed on its own: crops, flips, colours, blur.

All take ``[n, channels, height, width]`` in [0, 1] and draw from torch's global generator, which :func:`~..descent.descend` seeds and puts
back. A pipeline is a function: ``lambda images: flip(crop(images, padding=8))``.

Source: :cite:t:`yu2020learning` (supervised: crop and flip), :cite:t:`chen2020simple` (the colours and blur of the self-supervised runs).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

Images = Float[Tensor, "n c h w"]

GREY = (0.299, 0.587, 0.114)  # of red, green and blue in the brightness that is seen


def crop(images: Images, *, padding: int) -> Images:
    """A window of the old size from the image with a black frame of ``padding`` pixels.

    Raises:
        ValueError: padding < 1.
    """
    if padding < 1:
        raise ValueError(f"padding must be at least 1, got {padding}")
    n, _, height, width = images.shape
    framed = functional.pad(images, [padding] * 4)
    down, right = torch.randint(2 * padding + 1, (2, n, 1))
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    return framed.permute(0, 2, 3, 1)[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def flip(images: Images) -> Images:
    """Left for right, in half of the images."""
    return torch.where(_chance(len(images), 0.5), images.flip(-1), images)


def resized_crop(images: Images, *, least: float = 0.08) -> Images:
    """A window of ``least`` to 1 of the area and of 3/4 to 4/3 of its proportions, drawn out to the old size bilinearly.

    Raises:
        ValueError: least is not in (0, 1].
    """
    if not 0 < least <= 1:
        raise ValueError(f"least must be a share of the area in (0, 1], got {least}")
    n = len(images)
    area, tilt = torch.empty(n).uniform_(least, 1), torch.empty(n).uniform_(math.log(3 / 4), math.log(4 / 3))
    sizes = (area[:, None] * torch.stack([tilt, -tilt], 1).exp()).sqrt().clamp(max=1)
    middles = (1 - sizes) * (2 * torch.rand(n, 2) - 1)
    maps = torch.cat([torch.diag_embed(sizes), middles[:, :, None]], 2).to(images.dtype)
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def jitter(images: Images, *, strength: float = 0.4, hue: float = 0.1, share: float = 0.8) -> Images:
    """Brightness, contrast and saturation times 1 ± strength and the hue turned by ± ``hue`` of a circle, in a share of the images.

    Raises:
        ValueError: the images are not of three colours.
    """
    _of_three_colours(images)
    n = len(images)

    def factor() -> Tensor:
        return torch.empty(n, 1, 1, 1).uniform_(1 - strength, 1 + strength).to(images.dtype)

    changed = (images * factor()).clamp(0, 1)
    mean = _brightness(changed).mean((2, 3), keepdim=True)
    changed = (mean + factor() * (changed - mean)).clamp(0, 1)
    grey = _brightness(changed)
    changed = (grey + factor() * (changed - grey)).clamp(0, 1)
    return torch.where(_chance(n, share), _turned(changed, 2 * math.pi * torch.empty(n).uniform_(-hue, hue)), images)


def greyed(images: Images, *, share: float = 0.2) -> Images:
    """Without colour, in a share of the images.

    Raises:
        ValueError: the images are not of three colours.
    """
    _of_three_colours(images)
    return torch.where(_chance(len(images), share), _brightness(images).expand_as(images), images)


def blurred(images: Images, *, size: int = 9, share: float = 0.5) -> Images:
    """Smoothed by a Gaussian of 0.1 to 2 pixels, cut off at ``size`` pixels, in a share of the images.

    Raises:
        ValueError: size is even, or half of it does not fit into the image.
    """
    n, channels, height, width = images.shape
    if size % 2 == 0 or size // 2 >= min(height, width):
        raise ValueError(f"size must be odd and at most twice the image less 1, got {size} for {height} x {width} pixels")
    spread = torch.empty(n, 1).uniform_(0.1, 2.0)
    weights = torch.exp(-0.5 * ((torch.arange(size) - size // 2) / spread) ** 2)
    weights = (weights / weights.sum(1, keepdim=True)).to(images.dtype).repeat_interleave(channels, 0)[:, None]
    whole = functional.pad(images, [size // 2] * 4, mode="reflect").flatten(0, 1)[None]
    smooth = functional.conv2d(whole, weights[:, :, :, None], groups=n * channels)
    smooth = functional.conv2d(smooth, weights[:, :, None, :], groups=n * channels)
    return torch.where(_chance(n, share), smooth.view_as(images), images)


def _chance(n: int, share: float) -> Tensor:
    return torch.rand(n, 1, 1, 1) < share


def _of_three_colours(images: Tensor) -> None:
    if images.shape[1] != 3:
        raise ValueError(f"colours change only in images [n, 3, h, w] of three, got {list(images.shape)}; leave this step out")


def _brightness(images: Tensor) -> Tensor:
    return (images * images.new_tensor(GREY)[:, None, None]).sum(1, keepdim=True)


def _turned(images: Tensor, angles: Tensor) -> Tensor:
    """Colours turned about the grey axis: the hue of the plane across it, at equal mean of the three colours."""
    axis = torch.full((3,), 3**-0.5, dtype=images.dtype)
    cross = torch.linalg.cross(axis.expand(3, 3), torch.eye(3, dtype=images.dtype)).mT  # cross @ v is axis x v
    cosine, sine = angles.cos().to(images.dtype)[:, None, None], angles.sin().to(images.dtype)[:, None, None]
    turn = cosine * torch.eye(3, dtype=images.dtype) + sine * cross + (1 - cosine) * torch.outer(axis, axis)
    return torch.einsum("nij,njhw->nihw", turn, images).clamp(0, 1)
