"""Images changed one at a time by Pillow, as data loaders do, and a crop that looks up each pixel."""

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional


def crop_and_flip(images: Tensor, *, padding: int) -> Tensor:
    """A window of each framed image, mirrored in half of the cases; bytes in and out, windows are drawn as ours are."""
    n, _, height, width = images.shape
    down, right = torch.randint(2 * padding + 1, (2, n)).tolist()
    mirrored = (torch.rand(n) < 0.5).tolist()
    changed = []
    for image, top, left, mirror in zip(images.permute(0, 2, 3, 1).numpy(), down, right, mirrored):
        window = ImageOps.expand(Image.fromarray(image), padding).crop((left, top, left + width, top + height))
        changed.append(np.array(ImageOps.mirror(window) if mirror else window))
    return torch.from_numpy(np.stack(changed)).permute(0, 3, 1, 2).contiguous()


def crop_by_pixels(images: Tensor, *, padding: int) -> Tensor:
    """A window of each framed image, every pixel by its own index."""
    n, _, height, width = images.shape
    framed = functional.pad(images, [padding] * 4).permute(0, 2, 3, 1)
    down, right = torch.randint(2 * padding + 1, (2, n, 1))
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    return framed[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
