"""Generated colour images of ten kinds of shapes, for tests and for machines without a data set.

An image shows one of five outlines, as a filled shape or as its rim, at a random place, in a random size and colour, on a background of
another colour under pixel noise. Colours, places and sizes are drawn alike for all classes.
"""

from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from ..core.validation import integers
from .image_data import Images

SIZE = 32
OUTLINES = ("disc", "square", "diamond", "triangle", "cross")
NAMES = tuple(f"{fill} {outline}" for outline, fill in product(OUTLINES, ("filled", "hollow")))
RADIUS = (7.0, 11.0)  # pixels
RIM = 2.0  # width of the line of a hollow shape, pixels
NOISE = 0.08  # standard deviation of each value of each pixel, of 1
CONTRAST = 0.5  # smallest distance between the colours of shape and background
CHUNK = 2000  # images drawn at once
SPLIT = (5000, 1000)  # training and test images


def shapes(n: int, *, generator: torch.Generator) -> Images:
    """Draws n images of 3 x 32 x 32, in equal numbers per class up to one.

    Raises:
        ValueError: n < 1.
    """
    integers(n=n)
    labels = (torch.arange(n) % len(NAMES))[torch.randperm(n, generator=generator)]
    pixels = torch.cat([_drawn(part, generator) for part in labels.split(CHUNK)])
    return Images(pixels, labels, NAMES, name="shapes")


def shapes_split() -> tuple[Images, Images]:
    """5,000 training and 1,000 test images, always the same."""
    generator = torch.Generator().manual_seed(0)
    train, test = (shapes(n, generator=generator) for n in SPLIT)
    return train, test


def _drawn(labels: Tensor, generator: torch.Generator) -> Tensor:
    n = len(labels)
    low, high = RADIUS
    radius = low + (high - low) * torch.rand(n, generator=generator)
    centres = radius + (SIZE - 2 * radius) * torch.rand(2, n, generator=generator)
    grid = torch.arange(SIZE) + 0.5
    down = (grid - centres[0, :, None])[:, :, None].expand(n, SIZE, SIZE)
    right = (grid - centres[1, :, None])[:, None, :].expand(n, SIZE, SIZE)
    outside = _outside(down, right, radius[:, None, None])[labels // 2, torch.arange(n)]
    hollow = (labels % 2 == 1)[:, None, None]
    # The rim is the band -RIM < distance < 0 inside the outline.
    outside = torch.where(hollow, (outside + RIM / 2).abs() - RIM / 2, outside)
    cover = (0.5 - outside).clamp(0, 1)[:, None]  # share of the pixel that the shape covers
    ground, colour = _colours(n, generator)
    images = ground + cover * (colour - ground) + NOISE * torch.randn(n, 3, SIZE, SIZE, generator=generator)
    return (255 * images.clamp(0, 1)).round().to(torch.uint8)


def _outside(down: Tensor, right: Tensor, radius: Tensor) -> Float[Tensor, "outlines n size size"]:
    """Signed distance of each pixel from each outline, in pixels; negative inside."""
    across, along = down.abs(), right.abs()
    wide = 0.35 * radius
    bar = torch.maximum(across - wide, along - 0.95 * radius)
    return torch.stack(
        [
            torch.hypot(down, right) - 0.9 * radius,
            torch.maximum(across, along) - 0.8 * radius,
            (across + along) / 2**0.5 - 0.75 * radius,
            torch.maximum(down - 0.7 * radius, (2 * along - down) / 5**0.5 - 0.42 * radius),
            torch.minimum(bar, torch.maximum(along - wide, across - 0.95 * radius)),
        ]
    )


def _colours(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Colours of background and shape, each [n, 3, 1, 1]: uniform, at least CONTRAST apart."""
    pairs = torch.rand(n, 2, 3, generator=generator)
    # Rejection: pairs that are too similar are drawn again until none is left.
    while bool((near := torch.linalg.vector_norm(pairs[:, 0] - pairs[:, 1], dim=-1) < CONTRAST).any()):
        pairs[near] = torch.rand(int(near.sum()), 2, 3, generator=generator)
    return pairs[:, 0, :, None, None], pairs[:, 1, :, None, None]
