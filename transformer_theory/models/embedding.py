"""How networks read their input: images cut into patches, or tokens as they are; and how networks are built from a generator.

Shapes: images [batch, channels, height, width], tokens [batch, seq, token_dim], hidden states [batch, 1 + seq, dim].
Source: :cite:t:`dosovitskiy2021image`.
"""

from collections.abc import Callable

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from ..core.validation import integers


class Patches(nn.Module):
    """Cuts images into square patches, row by row: [batch, c, h, w] -> [batch, (h/size)(w/size), size*size*c]; channels run fastest.

    Raises:
        ValueError: a size is below 1, the patch does not divide the image, or images are not ``image_size`` x ``image_size`` with
            ``channels`` channels.
    """

    def __init__(self, *, image_size: int, patch_size: int, channels: int):
        super().__init__()
        integers(image_size=image_size, patch_size=patch_size, channels=channels)
        if image_size % patch_size:
            raise ValueError(f"patch_size must divide image_size, got {patch_size} and {image_size}; resize images or choose another patch")
        self.image_size, self.patch_size, self.channels = image_size, patch_size, channels

    @property
    def seq(self) -> int:
        """Number of patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def dim(self) -> int:
        """Numbers in a patch."""
        return self.channels * self.patch_size**2

    def forward(self, images: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch seq dim"]:
        expected = (self.channels, self.image_size, self.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ValueError(f"images must have shape [batch, {', '.join(map(str, expected))}], got {list(images.shape)}; resize them")
        return rearrange(images, "b c (h p) (w q) -> b (h w) (p q c)", p=self.patch_size, q=self.patch_size)


class Tokens(nn.Module):
    """Passes tokens [batch, seq, dim] on and checks their shape.

    Raises:
        ValueError: a size is below 1, or the tokens have another shape.
    """

    def __init__(self, *, seq: int, dim: int):
        super().__init__()
        integers(seq=seq, token_dim=dim)
        self.seq, self.dim = seq, dim

    def forward(self, tokens: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        if tokens.ndim != 3 or tuple(tokens.shape[1:]) != (self.seq, self.dim):
            raise ValueError(f"tokens must have shape [batch, {self.seq}, {self.dim}], got {list(tokens.shape)}; build the model for them")
        return tokens


def check_inputs(inputs: Float[Tensor, "..."], weight: Float[Tensor, "..."]) -> None:
    """Checks that inputs [...] have the dtype of a network's weights [...], unless autocast chooses it.

    Raises:
        ValueError: they are no tensor, or the dtypes differ.
    """
    if not isinstance(inputs, Tensor):
        raise ValueError(f"inputs must be a tensor, got {type(inputs).__name__}")
    if inputs.dtype != weight.dtype and not torch.is_autocast_enabled(inputs.device.type):
        raise ValueError(f"inputs must be {weight.dtype} as the weights are, got {inputs.dtype}; convert them, or the model, with .to(...)")


def build(constructor: Callable[[], nn.Module], generator: torch.Generator) -> nn.Module:
    """Builds a network whose initial weights come from ``generator``; the global random state does not change.

    Args:
        constructor: without arguments, e.g. ``lambda: ViT.for_tokens(16, 4, 10)``.
        generator: advanced by one draw.
    Returns:
        What the constructor returns.
    """
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return constructor()


def head_width(dim: int, heads: int) -> int:
    """dim / heads.

    Raises:
        ValueError: heads do not divide dim.
    """
    if heads < 1 or dim % heads:
        divisors = ", ".join(str(k) for k in range(1, dim + 1) if dim % k == 0)
        raise ValueError(f"heads must divide dim, got heads={heads} and dim={dim}; choose heads among {divisors}, or another dim")
    return dim // heads
