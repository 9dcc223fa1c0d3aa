"""A convolutional stem with overlapping tokens instead of patches. It helps transformers that are trained
from scratch on small images.

    images [batch, c, h, w]  ->  log2(patch) times (3 x 3 convolution, ReLU,
                             3 x 3 maximum of stride 2)  ->  [batch, hw / patch^2, dim]

Widths double from stage to stage and end at ``dim``. The stem adds no positions; the network adds them.
Source: :cite:t:`hassani2021escaping`.
"""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.validation import integers
from .embedding import check_images


class Convolutions(nn.Module):
    """Maps images [batch, channels, image_size, image_size] to tokens [batch, seq, dim]; an alternative to
    :class:`.Patches`.

    Args:
        image_size, channels: side of an image in pixels, number of channels.
        patch_size: distance between neighbouring tokens in pixels, a power of two (at least 2) that divides
            ``image_size``.
        dim: width of the tokens.
    Raises:
        ValueError: the sizes do not fit, or the images have another shape.
    """

    def __init__(self, *, image_size: int, patch_size: int, channels: int, dim: int):
        super().__init__()
        integers(image_size=image_size, patch_size=patch_size, channels=channels, dim=dim)
        stages = patch_size.bit_length() - 1
        if patch_size != 2**stages or stages < 1 or image_size % patch_size:
            raise ValueError(
                f"patch_size must be a power of two, at least 2, that divides image_size, got {patch_size} "
                f"and {image_size}; take 2, 4 or 8"
            )
        if dim % 2 ** (stages - 1):
            raise ValueError(
                f"dim must be a multiple of {2 ** (stages - 1)} for {stages} stages of doubling width, got "
                f"{dim}"
            )
        self.image_size, self.patch_size, self.channels, self.dim = image_size, patch_size, channels, dim
        widths = [channels, *(dim // 2 ** (stages - 1 - stage) for stage in range(stages))]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(width_in, width_out, 3, padding=1, bias=False),
                    nn.MaxPool2d(3, stride=2, padding=1),
                    nn.ReLU(),  # as before the maximum, of a quarter of the numbers
                )
                for width_in, width_out in pairwise(widths)
            )
        )

    @property
    def seq(self) -> int:
        """Number of tokens per image."""
        return (self.image_size // self.patch_size) ** 2

    def forward(self, images: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch seq dim"]:
        check_images(images, channels=self.channels, size=self.image_size)
        # with the channels last in memory, convolutions and maxima take half the time on a CPU
        images = images.contiguous(memory_format=torch.channels_last)
        return self.stages(images).flatten(2).transpose(1, 2)  # [batch, dim, h', w'] -> [batch, h' w', dim]
