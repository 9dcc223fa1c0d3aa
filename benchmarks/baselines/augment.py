"""Augmentation by Pillow, one image at a time, as in data loaders, and a crop that looks up each pixel."""

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional


def crop_and_flip(images: Tensor, *, padding: int) -> Tensor:
    """Crops a random window from each padded image and mirrors half of the windows.

    Images are bytes [n, 3, h, w] before and after. The random numbers are drawn in the same order as by our
    version, so the windows agree.
    """
    n, _, height, width = images.shape
    down, right = torch.randint(2 * padding + 1, (2, n)).tolist()
    mirrored = (torch.rand(n) < 0.5).tolist()
    windows = []
    for image, top, left, mirror in zip(images.permute(0, 2, 3, 1).numpy(), down, right, mirrored):
        window = ImageOps.expand(Image.fromarray(image), padding).crop(
            (left, top, left + width, top + height)
        )
        windows.append(np.array(ImageOps.mirror(window) if mirror else window))
    return torch.from_numpy(np.stack(windows)).permute(0, 3, 1, 2).contiguous()


def crop_by_pixels(images: Tensor, *, padding: int) -> Tensor:
    """Crops a random window from each padded image [n, c, h, w]; every pixel has a separate index."""
    n, _, height, width = images.shape
    padded = functional.pad(images, [padding] * 4).permute(0, 2, 3, 1)
    down, right = torch.randint(2 * padding + 1, (2, n, 1))
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    return padded[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
