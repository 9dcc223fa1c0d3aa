"""Sizes of released networks, computed from the names and shapes of their weights.

* Classifier: ``to_patch_embedding.2.weight`` [dim, patch_dim], ``pos_embedding`` [1, 1 + seq, dim],
  ``transformer.layers.{i}.0.fn.qkv.weight`` [inner, dim], ``mlp_head.1.weight`` [classes, dim]. In the
  fine-tuned layout ``mlp_head.1`` is a hidden layer, and a second map ``head.weight`` [classes, hidden]
  follows it (``mlp_head.2`` in this library).
* CRATE-alpha: as the classifier, with ``conv1.weight`` [dim, channels, patch, patch] in place of the first
  weight.
* Autoencoder: ``patch_embed.proj.weight`` [dim, channels, patch, patch], ``pos_embed`` [1, 1 + seq, dim],
  ``blocks.{i}.layers.0.0.fn.qkv.weight`` [dim, dim].
* Language model: ``transformer.wte.weight`` [vocabulary, dim], ``transformer.wpe.weight`` [context, dim],
  ``transformer.h.{i}.attn.c_attn.weight`` [dim, dim].

Source: :cite:t:`yu2023white`, :cite:t:`yang2024scaling`, :cite:t:`pai2024masked`, released code.
"""

import re
from collections.abc import Mapping
from math import isqrt
from typing import Any

from torch import Tensor

from ..weights import listed

# The weights that determine the sizes of each network, and their numbers of axes.
CLASSIFIER = {
    "to_patch_embedding.2.weight": 2,
    "pos_embedding": 3,
    "transformer.layers.0.0.fn.qkv.weight": 2,
    "mlp_head.1.weight": 2,
}
ALPHA = {
    "conv1.weight": 4,
    "pos_embedding": 3,
    "transformer.layers.0.0.fn.qkv.weight": 2,
    "mlp_head.1.weight": 2,
}
AUTOENCODER = {"patch_embed.proj.weight": 4, "pos_embed": 3, "blocks.0.layers.0.0.fn.qkv.weight": 2}
LANGUAGE = {"transformer.wte.weight": 2, "transformer.wpe.weight": 2, "transformer.h.0.attn.c_attn.weight": 2}
HEAD_DIM = 64  # width of the heads of released networks
# number of heads by inner width, where it differs: the released "small" has heads of width 48
HEADS = {576: 12}
# Inner widths with which classifiers of different numbers of heads were released: CRATE-B has 12, the network
# of the segmentation demo 6.
AMBIGUOUS = {768: (12, 6)}


def classifier_sizes(
    weights: Mapping[str, Tensor], *, image_size: int, patch_size: int, heads: int | None
) -> dict[str, Any]:
    """Returns the arguments of ``CRATE.for_images`` for a network with these weights.

    Args:
        weights: tensors by name, with the shapes above.
        image_size, patch_size: sides in pixels with which the network was trained.
        heads: number of heads, which the weights do not determine. None: heads of width 64 (48 for inner
            width 576).
    Raises:
        ValueError: weights that determine a size are missing, the image, the patches or the heads do not fit
            them, or ``heads`` is None and networks of this width were released with different numbers of
            heads (:data:`AMBIGUOUS`).
    """
    _check(weights, CLASSIFIER, "a CRATE classifier as released")
    dim, patch_dim = weights["to_patch_embedding.2.weight"].shape
    inner = len(weights["transformer.layers.0.0.fn.qkv.weight"])
    if min(image_size, patch_size) < 1:
        raise ValueError(
            f"image_size and patch_size must be at least 1, got {image_size} and {patch_size}; pass the "
            "sizes used in training"
        )
    channels, rest = divmod(patch_dim, patch_size**2)
    if rest or not channels:
        raise ValueError(
            f"patch_size must fit patches of {patch_dim} numbers, got {patch_size}; {_patch_sizes(patch_dim)}"
        )
    if image_size % patch_size:
        raise ValueError(
            f"patch_size must divide image_size, got {patch_size} and {image_size}; pass the sizes used in "
            "training"
        )
    if (tokens := weights["pos_embedding"].shape[1] - 1) != (image_size // patch_size) ** 2:
        side = isqrt(tokens) * patch_size
        raise ValueError(
            f"image_size must fit {tokens} patches, got {image_size} with patch_size={patch_size}; pass "
            f"image_size={side}"
        )
    if heads is None and inner in AMBIGUOUS:
        numbers = " or ".join(f"heads={count}" for count in AMBIGUOUS[inner])
        raise ValueError(
            f"heads must be given for width {inner}, since the released networks differ, got None; pass "
            f"{numbers}"
        )
    heads = _heads(inner, heads, "qkv")
    return {
        "image_size": image_size,
        "patch_size": patch_size,
        "channels": channels,
        "num_classes": len(weights["mlp_head.1.weight"]),
        "dim": dim,
        "depth": _depth(weights, r"transformer\.layers"),
        "heads": heads,
        "head_dim": inner // heads,
    }


def alpha_sizes(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns the arguments of ``crate_alpha`` for a network with these weights.

    Args:
        weights: tensors by name, with the shapes above.
    Raises:
        ValueError: weights that determine a size are missing, or the heads do not have width 64.
    """
    _check(weights, ALPHA, "a CRATE-alpha classifier as published")
    dim, channels, patch_size, _ = weights["conv1.weight"].shape
    inner, tokens = (
        len(weights["transformer.layers.0.0.fn.qkv.weight"]),
        weights["pos_embedding"].shape[1] - 1,
    )
    if inner != dim or dim % HEAD_DIM:
        raise ValueError(
            f"qkv must have {dim} rows, heads of width {HEAD_DIM}, got {inner}; build the network with "
            "crate_alpha"
        )
    return {
        "image_size": isqrt(tokens) * patch_size,
        "patch_size": patch_size,
        "channels": channels,
        "num_classes": len(weights["mlp_head.1.weight"]),
        "dim": dim,
        "depth": _depth(weights, r"transformer\.layers"),
        "heads": dim // HEAD_DIM,
    }


def autoencoder_sizes(weights: Mapping[str, Tensor], *, heads: int | None) -> dict[str, Any]:
    """Returns the arguments of ``CRATEMAE`` for a network with these weights.

    Args:
        weights: tensors by name, with the shapes above.
        heads: number of heads, which the weights do not determine. None: heads of width 64 (48 for width
            576).
    Raises:
        ValueError: weights that determine a size are missing, patches or images are not square, or the heads
            do not fit.
    """
    _check(weights, AUTOENCODER, "a CRATE-MAE as released")
    dim, channels, patch_size, width = weights["patch_embed.proj.weight"].shape
    tokens = weights["pos_embed"].shape[1] - 1
    if patch_size != width or tokens < 1 or isqrt(tokens) ** 2 != tokens:
        raise ValueError(
            f"state_dict must fit square images in square patches, got {tokens} patches of {patch_size} x "
            f"{width} pixels"
        )
    return {
        "image_size": isqrt(tokens) * patch_size,
        "patch_size": patch_size,
        "channels": channels,
        "dim": dim,
        "depth": _depth(weights, "blocks"),
        "heads": _heads(dim, heads, "qkv"),
    }


def language_model_sizes(weights: Mapping[str, Tensor], *, heads: int | None) -> dict[str, Any]:
    """Returns the arguments of ``CRATELanguageModel`` for a network with these weights.

    Args:
        weights: tensors by name, with the shapes above.
        heads: number of heads, which the weights do not determine. None: heads of width 64, as in all
            released sizes.
    Raises:
        ValueError: weights that determine a size are missing, or the heads do not fit.
    """
    _check(weights, LANGUAGE, "a causal CRATE as released")
    vocabulary, dim = weights["transformer.wte.weight"].shape
    return {
        "vocabulary": vocabulary,
        "context": len(weights["transformer.wpe.weight"]),
        "dim": dim,
        "depth": _depth(weights, r"transformer\.h"),
        "heads": _heads(dim, heads, "c_attn"),
    }


def _check(weights: Mapping[str, Tensor], required: Mapping[str, int], network: str) -> None:
    """Raises ValueError unless the required weights are present and floating-point, with the right number of
    axes.
    """
    if missing := [
        name for name, axes in required.items() if name not in weights or weights[name].ndim != axes
    ]:
        present = f"{len(weights)} weights without them, such as {next(iter(weights))}" if weights else "none"
        raise ValueError(f"state_dict must hold {network}, with {listed(missing)}, got {present}")
    for name in required:
        if not weights[name].is_floating_point():
            raise ValueError(
                f"state_dict must hold floating-point weights, got {weights[name].dtype} in {name}"
            )


def _heads(inner: int, heads: int | None, name: str) -> int:
    """Returns the number of heads, by default the released one. Raises ValueError if it does not divide the
    inner width.
    """
    heads = HEADS.get(inner, inner // HEAD_DIM if inner % HEAD_DIM == 0 else None) if heads is None else heads
    if not heads or heads < 1 or inner % heads:
        raise ValueError(
            f"heads must divide the {inner} rows of {name}, got {heads}; pass heads=, which the weights do "
            "not determine"
        )
    return heads


def usual_heads(weights: Mapping[str, Tensor]) -> int | None:
    """Returns the number of heads of the released classifiers with these weights.

    Returns None if networks of this width were released with different numbers, or with none.
    """
    inner = len(weights["transformer.layers.0.0.fn.qkv.weight"])
    return (
        None if inner in AMBIGUOUS else HEADS.get(inner, inner // HEAD_DIM if inner % HEAD_DIM == 0 else None)
    )


def _depth(weights: Mapping[str, Tensor], stack: str) -> int:
    """Returns the number of layers: one more than the largest index in a name, and at most the number of
    weights.

    The limit protects against a damaged file with a huge index, because the network is built before names are
    compared.
    """
    # Names have the form "blocks.7.layers.0...", with the layer number after the stack.
    numbers = (int(match[1]) for name in weights if (match := re.match(rf"{stack}\.(\d+)\.", name)))
    return min(1 + max(numbers), len(weights))


def _patch_sizes(patch_dim: int) -> str:
    """Returns a hint that lists the sides of square patches with ``patch_dim`` values and at most four
    channels.
    """
    sides = [s for s in range(1, isqrt(patch_dim) + 1) if patch_dim % s**2 == 0 and patch_dim // s**2 <= 4]
    return (
        "e.g. " + ", ".join(f"{s} for {patch_dim // s**2} channels" for s in sides)
        if sides
        else "no square patch does"
    )
