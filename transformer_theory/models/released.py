"""Sizes of a released CRATE classifier, read off the names and shapes of its weights.

``to_patch_embedding.2.weight`` [dim, patch_dim], ``pos_embedding`` [1, 1 + seq, dim], ``transformer.layers.{i}.0.fn.qkv.weight``
[inner, dim], ``mlp_head.1.weight`` [classes, dim]. Source: :cite:t:`yu2023white`, released code.
"""

import re
from collections.abc import Mapping
from math import isqrt
from typing import Any

from torch import Tensor

from .weights import listed

TELLING = {"to_patch_embedding.2.weight": 2, "pos_embedding": 3, "transformer.layers.0.0.fn.qkv.weight": 2, "mlp_head.1.weight": 2}
HEADS = {576: 12}  # the released "small"; all other released networks have heads of width 64


def sizes_of(weights: Mapping[str, Tensor], *, image_size: int, patch_size: int, heads: int | None) -> dict[str, Any]:
    """The arguments of ``CRATE.for_images`` that give a network for these weights.

    Args:
        weights: by name, shapes as above.
        image_size, patch_size: of the training, in pixels.
        heads: their number, which no weight shows: if None, heads of width 64 (48 for inner width 576).
    Raises:
        ValueError: weights that tell a size are missing, or image, patches or heads do not fit them.
            Source: :cite:t:`yu2023white`, released code.
    """
    if missing := [name for name, axes in TELLING.items() if name not in weights or weights[name].ndim != axes]:
        came = f"{len(weights)} weights, {listed(weights)}" if weights else "none"
        raise ValueError(f"state_dict must hold a CRATE classifier as released, with {listed(missing)}, got {came}")
    if not weights["pos_embedding"].is_floating_point():
        raise ValueError(f"state_dict must hold floating-point weights, got {weights['pos_embedding'].dtype} in pos_embedding")
    dim, patch_dim = weights["to_patch_embedding.2.weight"].shape
    inner = len(weights["transformer.layers.0.0.fn.qkv.weight"])
    if min(image_size, patch_size) < 1:
        raise ValueError(f"image_size and patch_size must be at least 1, got {image_size} and {patch_size}; they are those of the training")
    channels, rest = divmod(patch_dim, patch_size**2)
    if rest or not channels:
        raise ValueError(f"patch_size must fit patches of {patch_dim} numbers, got {patch_size}; {_patch_sizes(patch_dim)}")
    if image_size % patch_size:
        raise ValueError(f"patch_size must divide image_size, got {patch_size} and {image_size}; both are those of the training")
    if (tokens := weights["pos_embedding"].shape[1] - 1) != (image_size // patch_size) ** 2:
        side = isqrt(tokens) * patch_size
        raise ValueError(f"image_size must fit {tokens} patches, got {image_size} with patch_size={patch_size}; pass image_size={side}")
    heads = HEADS.get(inner, inner // 64 if inner % 64 == 0 else None) if heads is None else heads
    if not heads or heads < 1 or inner % heads:
        raise ValueError(f"heads must divide the {inner} rows of qkv, got {heads}; pass heads=, which no weight shows")
    numbers = (int(match[1]) for name in weights if (match := re.match(r"transformer\.layers\.(\d+)\.", name)))
    return {
        "image_size": image_size,
        "patch_size": patch_size,
        "channels": channels,
        "num_classes": len(weights["mlp_head.1.weight"]),
        "dim": dim,
        "depth": min(1 + max(numbers), len(weights)),
        "heads": heads,
        "head_dim": inner // heads,
    }


def _patch_sizes(patch_dim: int) -> str:
    fits = [s for s in range(1, isqrt(patch_dim) + 1) if patch_dim % s**2 == 0 and patch_dim // s**2 <= 4]
    return "e.g. " + ", ".join(f"{s} for {patch_dim // s**2} channels" for s in fits) if fits else "no square patch does"
