"""Generated images of two objects with known masks, with which attention maps can be compared.

An object is a disc or a square in one of four colours. An image shows two separate objects of different
colours on a grey background whose brightness changes along a random direction, with pixel noise. The class is
the pair of colours, so it depends only on the objects: shapes, positions, sizes and backgrounds have the same
distribution for all classes. :cite:t:`yu2024emergence` compare attention with objects in photographs.
"""

from dataclasses import dataclass
from itertools import combinations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core.sources import Source
from ..core.validation import integers
from .bridges import patches
from .tokens import TokenData

COLOURS = {
    "red": (0.8, 0.2, 0.2),
    "green": (0.2, 0.7, 0.2),
    "blue": (0.2, 0.3, 0.8),
    "yellow": (0.75, 0.7, 0.1),
}
PAIRS = tuple(combinations(range(len(COLOURS)), 2))
RADIUS = (0.16, 0.23)  # smallest and largest radius of an object, as a share of the image side


@dataclass(frozen=True, eq=False)
class TwoObjects:
    """Images, tokens and the masks of the objects.

    Attributes:
        data: tokens (patches), images [n, 3, size, size] in about [0, 1], labels (index of the pair of
            colours in PAIRS, 0 to 5).
        masks: True for the pixels of each object, [n, 2, size, size].
        patch: side of a patch, pixels.
    """

    data: TokenData
    masks: Bool[Tensor, "n 2 size size"]
    patch: int

    @property
    def shares(self) -> Float[Tensor, "n 2 seq"]:
        """Share of each patch that an object covers, in the order of the tokens, [n, 2, seq]."""
        # Both masks of an image are treated as images with one channel: [2 n, 1, size, size] -> [2 n, seq,
        # patch^2] -> [n, 2, seq].
        return patches(self.masks.flatten(0, 1).double()[:, None], self.patch).mean(-1).unflatten(0, (-1, 2))

    def __getitem__(self, index: slice | Tensor) -> "TwoObjects":
        """Selects images by a slice or a tensor of indices."""
        return TwoObjects(self.data[index], self.masks[index], self.patch)


def two_objects(
    n: int, *, generator: torch.Generator, size: int = 24, patch: int = 3, noise: float = 0.05
) -> TwoObjects:
    """Draws n images.

    Args:
        n: number of images.
        generator: source of the random images and labels.
        size: side of an image, pixels; a multiple of ``patch``.
        patch: side of a patch, pixels.
        noise: standard deviation of the noise in each channel of each pixel.
    Returns:
        Images, tokens and masks; real values in float64.
    Raises:
        ValueError: n is below 1, the size is below 12, or ``patch`` does not divide it.
    """
    integers(n=n)
    if size < 12 or patch < 1 or size % patch:
        raise ValueError(
            f"size must be at least 12 pixels and a multiple of patch, got size={size} and patch={patch}"
        )

    def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)

    labels = torch.randint(len(PAIRS), (n,), generator=generator)
    # Index of each object's colour, [n, 2]. The order of the two colours is random.
    colours = torch.tensor(PAIRS)[labels]
    colours = torch.where(torch.rand(n, 1, generator=generator) < 0.5, colours, colours.flip(1))
    radius = size * uniform(n, 2, low=RADIUS[0], high=RADIUS[1])
    centres = _separate_centres(n, size, radius, uniform)
    masks = _masks(centres, radius, torch.rand(n, 2, generator=generator) < 0.5, size)

    # The background: a base brightness [n, 1, 1, 1] plus a linear slope in a random direction [n, 1, size,
    # size].
    grid = (torch.arange(size, dtype=torch.float64) + 0.5) / size - 0.5
    angle = 2 * torch.pi * uniform(n, 1, 1)
    slope = torch.cos(angle) * grid[:, None] + torch.sin(angle) * grid[None]
    background = uniform(n, 1, 1, 1, low=0.2, high=0.8) + 0.5 * uniform(n, 1, 1, 1, low=-1) * slope[:, None]
    images = background.expand(-1, 3, -1, -1)
    for k in range(2):  # paint object k
        colour = torch.tensor(list(COLOURS.values()), dtype=torch.float64)[colours[:, k]] + uniform(
            n, 3, low=-0.1, high=0.1
        )
        images = torch.where(masks[:, k, None], colour[:, :, None, None], images)
    images = images + noise * torch.randn(images.shape, generator=generator, dtype=torch.float64)
    data = TokenData(
        tokens=patches(images, patch),
        labels=labels,
        images=images,
        name="two objects",
        sources=(Source("yu2024emergence"),),
    )
    return TwoObjects(data, masks, patch)


def _separate_centres(n: int, size: int, radius: Tensor, uniform) -> Tensor:
    """Draws centres [n, 2, 2] of two objects that lie inside the image and do not meet."""
    low, high = radius[..., None], size - radius[..., None]
    centres = low + (high - low) * uniform(n, 2, 2)
    # Redraw pairs that are too close. The factor 1.3 keeps the corners of squares apart: the half diagonal is
    # 0.9 sqrt(2) < 1.3 radii.
    while bool((near := _distance(centres) < 1.3 * radius.sum(1)).any()):
        centres[near] = (low + (high - low) * uniform(n, 2, 2))[near]
    return centres


def _distance(centres: Tensor) -> Tensor:
    """Computes the distance between the two centres of each image, [n]."""
    return torch.linalg.vector_norm(centres[:, 0] - centres[:, 1], dim=-1)


def _masks(centres: Tensor, radius: Tensor, square: Tensor, size: int) -> Bool[Tensor, "n 2 size size"]:
    """Draws a disc, or a square with a half side of 0.9 radii where ``square`` is True, around
    each centre.
    """
    # Offsets of the pixels from the centre in units of the radius: [n, 2, size, 1] and [n, 2, 1, size].
    pixels = torch.arange(size, dtype=torch.float64) + 0.5
    down = ((pixels - centres[..., :1]) / radius[..., None])[..., :, None]
    right = ((pixels - centres[..., 1:]) / radius[..., None])[..., None, :]
    return torch.where(
        square[..., None, None],
        torch.maximum(down.abs(), right.abs()) <= 0.9,
        (down**2 + right**2).sqrt() <= 1.0,
    )
