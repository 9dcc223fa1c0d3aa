"""Prepares stored attention maps for display: over the images if the tokens are a square grid of patches,
otherwise alone.
"""

import math
from dataclasses import dataclass

import numpy as np

from ..core.result import Result


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Attention maps of a network, averaged over heads.

    Attributes:
        steps: training steps of the maps, ``[s]``.
        maps: shares of attention, ``[s, layers, n, rows, columns]``. With images: the share that each patch
            receives from the class token, or from all patches if there is none. Without images: queries by
            keys.
        images: the images, ``[n, channels, height, width]``; None if the tokens are not a square grid of
            patches.
    """

    steps: np.ndarray
    maps: np.ndarray
    images: np.ndarray | None

    @property
    def largest(self) -> float:
        """The largest share in all maps, the upper end of the scale."""
        return float(np.nanmax(self.maps)) or 1.0


def attention_maps(result: Result, model: str, count: int) -> AttentionMaps | None:
    """Returns the maps of the first ``count`` images or sequences; None if the result stores no maps of this
    network.

    The stored maps have the shape [steps, layers, heads, n, queries, keys].
    """
    maps = result.arrays.get(f"network/{model}/attention")
    if maps is None or maps.ndim != 6 or not maps.size:
        return None
    steps = result.arrays.get(f"network/{model}/steps", np.arange(len(maps)))
    mean = maps[:, :, :, :count].mean(axis=2)  # over heads: [steps, layers, images, queries, keys]
    images, n, keys = result.arrays.get("network/images"), mean.shape[2], mean.shape[-1]
    # The side of the grid in patches, without class and register tokens before the patches, or with them.
    skip = int(result.settings.get("leading", 0 if image_grid(keys) else 1))
    side = image_grid(keys - skip)
    if (
        images is None
        or side is None
        or len(images) < n
        or images.shape[-1] % side
        or images.shape[-2] % side
    ):
        return AttentionMaps(steps, mean, None)
    # With a class token, row 0 is its query and column 0 its key. Otherwise: average over the patches.
    received = mean[..., 0, 1:] if skip == 1 else mean[..., skip:, skip:].mean(axis=-2)
    # maps: [steps, layers, n, side, side]
    return AttentionMaps(steps, received.reshape(*received.shape[:-1], side, side), images[:n])


def image_grid(count: int) -> int | None:
    """Returns the side of a square grid of ``count`` patches; None if ``count`` is not a square or the side
    is below 2.
    """
    side = math.isqrt(count)
    return side if side * side == count and side > 1 else None


def displayed(image: np.ndarray) -> np.ndarray:
    """Prepares an image ``[c, h, w]`` for display: in colour ``[h, w, 3]`` if it has three channels,
    otherwise as ink ``[h, w]``.
    """
    if len(image) != 3:
        return ink(image)
    colours = np.moveaxis(np.asarray(image, dtype=float), 0, -1)
    low, high = min(0.0, colours.min()), max(1.0, colours.max())  # normalised pixels may lie outside [0, 1]
    return (colours - low) / (high - low)


def ink(image: np.ndarray) -> np.ndarray:
    """Returns the darkness of each pixel of an image ``[c, h, w]``, scaled to [0, 1], as ``[h, w]``.

    With one channel, darkness is the value itself, because drawings store ink as 1; with several, it is minus
    the mean of the channels.
    """
    grey = np.asarray(image, dtype=float).mean(axis=0) * (1 if len(image) == 1 else -1)
    span = np.ptp(grey)
    return (grey - grey.min()) / span if span > 0 else np.zeros_like(grey)
