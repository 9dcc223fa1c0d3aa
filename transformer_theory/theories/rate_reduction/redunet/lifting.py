r"""Lifting: from images to many channels on a cyclic grid, which is what the shift-invariant network reads.

* :func:`lift`: rectified cyclic convolutions :math:`\max(0, w_k \circledast x)` with random filters. The rectifier is no ornament: without
  it every sample's channels at frequency ω are multiples of one vector, :math:`v(\omega) = \hat x(\omega)\, \hat w(\omega)` for one channel
  in, so that no operator between channels could tell classes apart.
* :func:`polar`: the image on rings around its middle: a rotation is a cyclic shift over angles; the rings are the channels.

``lift`` commutes with cyclic shifts; ``polar`` makes a quarter turn of the image a shift by a quarter, both to rounding.

Source: :cite:t:`chan2022redunet`.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def random_filters(
    channels: int, inputs: int, size: tuple[int, ...], *, generator: torch.Generator
) -> Float[Tensor, "channels inputs *size"]:
    """Gaussian filters of norm 1, ``[channels, inputs, *size]`` float64.

    Args:
        channels: number of filters.
        inputs: channels of what they are applied to.
        size: places along each axis.
    Raises:
        ValueError: one of these is below 1, or there is no axis.
    """
    if not size or min(channels, inputs, *size) < 1:
        raise ValueError(f"filters need at least one channel, input and place along each axis, got {channels}, {inputs}, {list(size)}")
    drawn = torch.randn(channels, inputs, *size, dtype=torch.float64, generator=generator)
    return drawn / torch.linalg.vector_norm(drawn.flatten(1), dim=1).view(-1, *[1] * (1 + len(size)))


def lift(samples: Float[Tensor, "n c *grid"], filters: Float[Tensor, "channels c *size"]) -> Float[Tensor, "n channels *grid"]:
    r"""Rectified cyclic convolutions, :math:`\max(0, \sum_c w_{kc} \circledast x_c)`.

    Args:
        samples: ``[n, c, *grid]``.
        filters: ``[channels, c, *size]``, no larger than the grid.
    Returns:
        ``[n, channels, *grid]``, >= 0.
    Raises:
        ValueError: channels or axes differ, or a filter is larger than the grid.
    Source: :cite:t:`chan2022redunet`.
    """
    grid, size = tuple(samples.shape[2:]), tuple(filters.shape[2:])
    if not grid or len(grid) != len(size) or samples.shape[1] != filters.shape[1] or any(s > g for s, g in zip(size, grid)):
        raise ValueError(
            f"filters must have shape [channels, c, *size] for samples [n, c, *grid], no larger than the grid; "
            f"got {list(filters.shape)} for {list(samples.shape)}"
        )
    axes = tuple(range(2, samples.ndim))
    product = torch.einsum("nc...,kc...->nk...", torch.fft.rfftn(samples, dim=axes), torch.fft.rfftn(filters, s=grid, dim=axes))
    return torch.fft.irfftn(product, s=grid, dim=axes).clamp(min=0)


def polar(images: Float[Tensor, "n c h w"], *, rings: int, angles: int) -> Float[Tensor, "n rows angles"]:
    r"""Images on rings around their middle, by bilinear interpolation; outside the image there are zeros.

    Args:
        images: ``[n, c, h, w]``.
        rings: radii, evenly spaced up to the nearest edge.
        angles: places on each ring; a rotation by :math:`2\pi s/` ``angles`` is about a shift by s (exactly, for quarter turns of square
            images if 4 divides ``angles``).
    Returns:
        ``[n, rings * c, angles]``, ring by ring within each channel.
    Raises:
        ValueError: images are not [n, c, h, w], or rings or angles is below 1.
    Source: :cite:t:`chan2022redunet`.
    """
    if images.ndim != 4 or 0 in images.shape:
        raise ValueError(f"images must have shape [n, c, h, w], no side empty, got {list(images.shape)}; add a channel axis")
    if min(rings, angles) < 1:
        raise ValueError(f"rings and angles must be at least 1, got {rings} and {angles}")
    height, width = images.shape[2:]
    radius = min(height, width) / 2 * (torch.arange(rings, dtype=images.dtype) + 0.5) / rings  # in pixels
    turn = 2 * math.pi * torch.arange(angles, dtype=images.dtype) / angles
    across, down = radius[:, None] * turn.cos(), radius[:, None] * turn.sin()
    places = torch.stack([2 * across / width, 2 * down / height], -1).to(images.device)
    read = torch.nn.functional.grid_sample(images, places.expand(len(images), -1, -1, -1), align_corners=False)
    return read.flatten(1, 2)
