"""Network inputs (patches of images, tokens, ids), their checks, and the construction of networks from a
random generator.

Shapes: images [batch, channels, height, width], tokens [batch, seq, token_dim], hidden states [batch, 1 +
seq, dim]. Source: :cite:t:`dosovitskiy2021image`.
"""

from collections.abc import Callable
from math import isqrt

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..core.validation import integers

MAX_HEADS = 256  # largest number of heads that an error message suggests


class Patches(nn.Module):
    """Cuts images into square patches, row by row: [batch, c, h, w] -> [batch, (h/size)(w/size),
    size*size*c]; channels run fastest.

    Raises:
        ValueError: a size is below 1, ``patch_size`` does not divide ``image_size``, or the images do not
            have these sizes.
    """

    def __init__(self, *, image_size: int, patch_size: int, channels: int):
        super().__init__()
        integers(image_size=image_size, patch_size=patch_size, channels=channels)
        if image_size % patch_size:
            raise ValueError(
                f"patch_size must divide image_size, got {patch_size} and {image_size}; resize images or "
                "choose another patch"
            )
        self.image_size, self.patch_size, self.channels = image_size, patch_size, channels

    @property
    def seq(self) -> int:
        """Number of patches per image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def dim(self) -> int:
        """Number of values per patch."""
        return self.channels * self.patch_size**2

    def forward(self, images: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch seq dim"]:
        check_images(images, channels=self.channels, size=self.image_size)
        return rearrange(images, "b c (h p) (w q) -> b (h w) (p q c)", p=self.patch_size, q=self.patch_size)


class Tokens(nn.Module):
    """The identity on tokens [batch, seq, dim], which checks their shape.

    Raises:
        ValueError: a size is below 1, or the tokens have another shape.
    """

    def __init__(self, *, seq: int, dim: int):
        super().__init__()
        integers(seq=seq, token_dim=dim)
        self.seq, self.dim = seq, dim

    def forward(self, tokens: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        if tokens.ndim != 3 or tuple(tokens.shape[1:]) != (self.seq, self.dim):
            raise ValueError(
                f"tokens must have shape [batch, {self.seq}, {self.dim}], got {list(tokens.shape)}; build "
                "the model for this shape"
            )
        return tokens


def patch_matrix(kernel: Float[Tensor, "dim c row column"]) -> Float[Tensor, "dim patch_dim"]:
    """Reshapes a convolution kernel into the matrix that maps the vectors of :class:`Patches`, in which
    channels run fastest.
    """
    return kernel.permute(0, 2, 3, 1).flatten(1)


def resized_positions(
    positions: Float[Tensor, "1 n dim"],
    grid: tuple[int, int],
    *,
    source: tuple[int, int] | None = None,
    kept: int = 1,
) -> Float[Tensor, "1 m dim"]:
    """Interpolates the positions of patches to another grid, bicubically between the centres of the patches.

    The first ``kept`` positions (the class token) are copied. Both grids of centres cover the same image, so
    a position keeps its place in the image (``align_corners=False``); where the new grid is coarser,
    positions are averaged (``antialias=True``).

    Args:
        positions: ``[1, kept + rows * columns, dim]``, row by row.
        grid: rows and columns of the new grid.
        source: rows and columns of the given positions. None: they form a square.
        kept: number of positions in front that belong to no patch.
    Returns:
        ``[1, kept + rows * columns, dim]`` for the new grid, in the dtype of ``positions``; the positions
        themselves for an equal grid.
    Raises:
        ValueError: the positions do not form the source grid, or a grid has no patch.
    """
    if positions.ndim != 3 or len(positions) != 1 or not positions.is_floating_point():
        raise ValueError(
            f"positions must be floating-point [1, n, dim], got {positions.dtype} {list(positions.shape)}; "
            "pass pos_embedding"
        )
    count = positions.shape[1] - kept
    side = isqrt(max(count, 0))
    rows, columns = (side, side) if source is None else source
    if min(*grid, rows, columns) < 1 or rows * columns != count:
        expected = f"a grid of {rows} x {columns} patches behind {kept} kept"
        raise ValueError(
            f"positions must form {expected}, got {positions.shape[1]} for a grid of {grid[0]} x {grid[1]}; "
            "pass source="
        )
    if grid == (rows, columns):
        return positions
    # [1, rows * columns, dim] -> [1, dim, rows, columns]; in half precision the cubic weights would have
    # three digits.
    field = (
        positions[:, kept:]
        .to(torch.promote_types(positions.dtype, torch.float32))
        .unflatten(1, (rows, columns))
        .permute(0, 3, 1, 2)
    )
    # With antialias=True torch uses the cubic kernel with a = -1/2, which reproduces affine functions, also
    # where nothing is averaged.
    field = functional.interpolate(field, size=grid, mode="bicubic", align_corners=False, antialias=True)
    return torch.cat(
        [positions[:, :kept], field.permute(0, 2, 3, 1).flatten(1, 2).to(positions.dtype)], dim=1
    )


def check_images(images: Float[Tensor, "..."], *, channels: int, size: int) -> None:
    """Checks that images are [batch, channels, size, size].

    Raises:
        ValueError: the images have another shape.
    """
    expected = (channels, size, size)
    if images.ndim != 4 or tuple(images.shape[1:]) != expected:
        raise ValueError(
            f"images must have shape [batch, {', '.join(map(str, expected))}], got {list(images.shape)}; "
            "resize them"
        )


def check_ids(ids: Int[Tensor, "..."], *, vocabulary: int, context: int | None = None) -> None:
    """Checks that ids are integers [batch, n] in [0, vocabulary) with 1 <= n <= context. ``context=None``: no
    upper limit.

    Raises:
        ValueError: the shape, the dtype or a value does not fit.
    """
    if ids.ndim != 2 or ids.shape[1] < 1 or (context is not None and ids.shape[1] > context):
        limit = "n >= 1" if context is None else f"n from 1 to {context}"
        raise ValueError(
            f"ids must have shape [batch, n] with {limit}, got {list(ids.shape)}; stack or cut the sequences"
        )
    if ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"ids must be torch.int32 or torch.int64, got {ids.dtype}; convert them")
    # On an accelerator the comparison below would make the CPU wait at every step, so only ids on the CPU are
    # checked. A compiled or exported graph cannot depend on values.
    if not torch.compiler.is_compiling() and ids.device.type == "cpu" and ids.numel():
        low, high = (int(value) for value in torch.aminmax(ids))
        if low < 0 or high >= vocabulary:
            raise ValueError(
                f"ids must lie in [0, {vocabulary}), got {low} to {high}; pass vocabulary={high + 1}"
            )


def check_inputs(inputs: Float[Tensor, "..."], weight: Float[Tensor, "..."]) -> None:
    """Checks that inputs [...] have the dtype of a network's weights [...]; under autocast any dtype is
    accepted.

    Raises:
        ValueError: the inputs are not a tensor, or the dtypes differ.
    """
    if not isinstance(inputs, Tensor):
        raise ValueError(f"inputs must be a tensor, got {type(inputs).__name__}")
    if inputs.dtype != weight.dtype and not torch.is_autocast_enabled(inputs.device.type):
        raise ValueError(
            f"inputs must be {weight.dtype} as the weights are, got {inputs.dtype}; convert them, or the "
            "model, with .to(...)"
        )


def build(constructor: Callable[[], nn.Module], generator: torch.Generator) -> nn.Module:
    """Builds a network whose initial weights come from ``generator``; the global random state does not
    change.

    Args:
        constructor: function without arguments that builds the network, e.g. ``lambda: ViT.for_tokens(16, 4,
            10)``.
        generator: source of the seed, advanced by one draw.
    """
    # torch initialises modules from the global generator only, so seed that one for the duration of the call.
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return constructor()


def head_width(dim: int, heads: int) -> int:
    """Returns dim / heads.

    Raises:
        ValueError: heads do not divide dim.
    """
    if heads < 1 or dim % heads:
        divisors = ", ".join(str(k) for k in range(1, min(dim, MAX_HEADS) + 1) if dim % k == 0)
        raise ValueError(
            f"heads must divide dim, got heads={heads} and dim={dim}; choose heads among {divisors}, or "
            "another dim"
        )
    return dim // heads
