"""How networks read their input: images cut into patches, or tokens as they are, and a class token in front.

Shapes: images [batch, channels, height, width], tokens [batch, seq, token_dim], hidden states [batch, 1 + seq, dim].
Source: :cite:t:`dosovitskiy2021image`.
"""

from collections.abc import Callable
from numbers import Integral

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn


class Patches(nn.Module):
    """Cuts images into square patches, row by row: [batch, c, h, w] -> [batch, (h/size)(w/size), size*size*c]; channels run fastest.

    Raises:
        ValueError: a size is no whole number of at least 1, the patch does not divide the image, or images are not ``image_size`` x
            ``image_size`` with ``channels`` channels. Source: :cite:t:`dosovitskiy2021image`.
    """

    def __init__(self, *, image_size: int, patch_size: int, channels: int):
        super().__init__()
        counts(image_size=image_size, patch_size=patch_size, channels=channels)
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
    """Passes tokens [batch, seq, dim] on and says clearly when they do not fit.

    Raises:
        ValueError: a size is no whole number of at least 1, or other shapes. Source: :cite:t:`dosovitskiy2021image`.
    """

    def __init__(self, *, seq: int, dim: int):
        super().__init__()
        counts(seq=seq, token_dim=dim)
        self.seq, self.dim = seq, dim

    def forward(self, tokens: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        if tokens.ndim != 3 or tuple(tokens.shape[1:]) != (self.seq, self.dim):
            raise ValueError(f"tokens must have shape [batch, {self.seq}, {self.dim}], got {list(tokens.shape)}; build the model for them")
        return tokens


def check_inputs(inputs: Float[Tensor, "..."], weight: Float[Tensor, "..."]) -> None:
    """Nothing, if inputs [...] have the dtype of a network's weights [...] or autocast will see to it.

    Raises:
        ValueError: they are no tensor or differ in dtype. Source: none, this is machinery.
    """
    if not isinstance(inputs, Tensor):
        raise ValueError(f"inputs must be a tensor, got {type(inputs).__name__}")
    if inputs.dtype != weight.dtype and not torch.is_autocast_enabled(inputs.device.type):
        raise ValueError(f"inputs must be {weight.dtype} as the weights are, got {inputs.dtype}; convert them, or the model, with .to(...)")


def build(constructor: Callable[[], nn.Module], generator: torch.Generator) -> nn.Module:
    """A network whose initial weights come from ``generator``; the global random state is left as it was.

    Args:
        constructor: without arguments, e.g. ``lambda: ViT.for_tokens(16, 4, 10)``.
        generator: advanced by one draw.
    Returns:
        What the constructor returns. Source: none, this is machinery.
    """
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return constructor()


def counts(**sizes: object) -> None:
    """Nothing, if the sizes of a network are whole numbers of at least 1.

    Raises:
        ValueError: one is not; the message names it. Source: none, this is machinery.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}")


def divide(dim: int, heads: int) -> int:
    """dim / heads, the width of a head.

    Raises:
        ValueError: heads do not divide dim. Source: none, this is machinery.
    """
    if heads < 1 or dim % heads:
        divisors = ", ".join(str(k) for k in range(1, dim + 1) if dim % k == 0)
        raise ValueError(f"heads must divide dim, got heads={heads} and dim={dim}; choose heads among {divisors}, or another dim")
    return dim // heads
