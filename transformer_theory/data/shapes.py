"""Generated colour images of ten classes of shapes, for tests and for machines without a data set.

An image shows one of five outlines, filled or hollow, with a random position, size and colour, on a
background of another colour. Noise is added to each pixel. Position, size and colours have the same
distribution in all classes.
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
RADIUS = (7.0, 11.0)  # range of the radius in pixels; a shape extends about one radius from its centre
RIM = 2.0  # width of the rim of a hollow shape in pixels
NOISE = 0.08  # standard deviation of the noise on each channel; channels range from 0 to 1
CONTRAST = 0.5  # smallest Euclidean distance between the RGB colours of shape and background
CHUNK = 2000  # images per batch, which limits memory
SPLIT = (5000, 1000)  # numbers of training and test images


def shapes(n: int, *, generator: torch.Generator) -> Images:
    """Draws n images of 3 x 32 x 32; the sizes of the classes differ by at most one.

    Raises:
        ValueError: n < 1.
    """
    integers(n=n)
    labels = (torch.arange(n) % len(NAMES))[torch.randperm(n, generator=generator)]
    pixels = torch.cat([_draw(part, generator) for part in labels.split(CHUNK)])
    return Images(pixels, labels, NAMES, name="shapes")


def shapes_split() -> tuple[Images, Images]:
    """Returns 5,000 training and 1,000 test images, always the same."""
    generator = torch.Generator().manual_seed(0)
    train, test = (shapes(n, generator=generator) for n in SPLIT)
    return train, test


def _draw(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Draws one image per label, uint8 [n, 3, 32, 32]; label // 2 is the outline, and odd labels are hollow
    shapes.
    """
    n = len(labels)
    low, high = RADIUS
    radius = low + (high - low) * torch.rand(n, generator=generator)
    centres = radius + (SIZE - 2 * radius) * torch.rand(2, n, generator=generator)
    # Offsets of the centre of each pixel from the centre of the shape, [n, size, size].
    grid = torch.arange(SIZE) + 0.5
    down = (grid - centres[0, :, None])[:, :, None].expand(n, SIZE, SIZE)
    right = (grid - centres[1, :, None])[:, None, :].expand(n, SIZE, SIZE)
    distance = _distances(down, right, radius[:, None, None])[labels // 2, torch.arange(n)]
    hollow = (labels % 2 == 1)[:, None, None]
    # The rim of a hollow shape is the band -RIM < distance < 0 inside the outline; its own signed distance
    # replaces that of the outline.
    distance = torch.where(hollow, (distance + RIM / 2).abs() - RIM / 2, distance)
    # Anti-aliasing: as the distance rises from -1/2 to 1/2, the share of the pixel that the shape covers
    # falls from 1 to 0.
    cover = (0.5 - distance).clamp(0, 1)[:, None]
    background, colour = _colours(n, generator)
    images = (
        background
        + cover * (colour - background)
        + NOISE * torch.randn(n, 3, SIZE, SIZE, generator=generator)
    )
    return (255 * images.clamp(0, 1)).round().to(torch.uint8)


def _distances(down: Tensor, right: Tensor, radius: Tensor) -> Float[Tensor, "outlines n size size"]:
    """Computes the signed distance of each pixel from each outline, in pixels; negative inside.

    The signed distance from a half plane is linear in the offset. The maximum of two signed distances
    describes the intersection of two shapes, the minimum their union; near corners it differs slightly from
    the Euclidean distance. The factors of the radius give the outlines similar sizes.
    """
    vertical, horizontal = down.abs(), right.abs()
    half_width = 0.35 * radius  # half the width of a bar of the cross
    horizontal_bar = torch.maximum(vertical - half_width, horizontal - 0.95 * radius)
    vertical_bar = torch.maximum(horizontal - half_width, vertical - 0.95 * radius)
    return torch.stack(
        [
            torch.hypot(down, right) - 0.9 * radius,
            torch.maximum(vertical, horizontal) - 0.8 * radius,
            (vertical + horizontal) / 2**0.5 - 0.75 * radius,
            # an upright triangle: the base, and two sides of slope 2 that meet at the top; sqrt(5) normalises
            # (2, -1)
            torch.maximum(down - 0.7 * radius, (2 * horizontal - down) / 5**0.5 - 0.42 * radius),
            torch.minimum(horizontal_bar, vertical_bar),
        ]
    )


def _colours(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws colours of background and shape, each [n, 3, 1, 1]: uniform pairs with a distance of at least
    CONTRAST.
    """
    pairs = torch.rand(n, 2, 3, generator=generator)
    # Rejection sampling: pairs that are too similar are drawn again until none is left.
    while bool((similar := torch.linalg.vector_norm(pairs[:, 0] - pairs[:, 1], dim=-1) < CONTRAST).any()):
        pairs[similar] = torch.rand(int(similar.sum()), 2, 3, generator=generator)
    return pairs[:, 0, :, None, None], pairs[:, 1, :, None, None]
