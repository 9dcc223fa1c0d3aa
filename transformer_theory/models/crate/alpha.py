r"""CRATE-alpha: CRATE with an overcomplete dictionary, a decoder and a skip connection.

    Z^{l+1} = Z^{l+1/2} + code(LN(Z^{l+1/2})) D'^T,      code: two non-negative ISTA steps from zero in a dictionary D of 4 dim atoms

A layer has 10 dim^2 + 4 dim parameters: U, the output matrix (without bias), D and D' (4 dim^2 each) and two norms. Unlike in a CRATE,
patches enter through one linear map without norms, and norms add 1e-6 to the variance.
Shapes: images [batch, channels, image_size, image_size], logits [batch, num_classes].
Source: :cite:t:`yang2024scaling`, published weights (sizes and names).
"""

import re
from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from ..embedding import Patches
from ..weights import fill, listed, unwrap
from .attention import ReleasedAttention
from .network import CRATE
from .sparsification import OvercompleteIsta

HEAD_DIM = 64  # of all published networks
SIZE_WEIGHTS = {"conv1.weight": 4, "pos_embedding": 3, "transformer.layers.0.0.fn.qkv.weight": 2, "mlp_head.1.weight": 2}
RENAMES = ((r"^conv1\.", "to_patch_embedding.1."), (r"\.fn\.D$", ".fn.weight"), (r"\.fn\.D1$", ".fn.decoder"))


def crate_alpha_base(num_classes: int = 1000, *, patch_size: int = 16, image_size: int = 224) -> CRATE:
    """CRATE-alpha-B, 72.33 M parameters at 1000 classes with patches of 16 pixels; published with patches of 32, 16 and 8.

    Raises:
        ValueError: patches do not divide images.
    """
    return crate_alpha(num_classes=num_classes, patch_size=patch_size, image_size=image_size, dim=768, depth=12, heads=12)


def crate_alpha_large(num_classes: int = 1000, *, patch_size: int = 14, image_size: int = 224) -> CRATE:
    """CRATE-alpha-L, 253.65 M parameters at 1000 classes with patches of 14 pixels; published with patches of 32, 14 and 8.

    Raises:
        ValueError: patches do not divide images.
    """
    return crate_alpha(num_classes=num_classes, patch_size=patch_size, image_size=image_size, dim=1024, depth=24, heads=16)


def crate_alpha(
    *,
    num_classes: int,
    patch_size: int,
    image_size: int,
    dim: int,
    depth: int,
    heads: int,
    channels: int = 3,
    sparsify: Callable[[int], nn.Module] = OvercompleteIsta,
) -> CRATE:
    """A CRATE-alpha of any size.

    Args:
        num_classes, patch_size, image_size, dim, depth, heads, channels: as for :meth:`.CRATE.for_images`.
        sparsify: called as ``sparsify(dim)`` for each layer, e.g. ``partial(OvercompleteIsta, ratio=2)`` for 2 dim atoms.
    Raises:
        ValueError: sizes do not fit.
    """
    patches = Patches(image_size=image_size, patch_size=patch_size, channels=channels)
    model = CRATE(
        nn.Sequential(patches, nn.Linear(patches.dim, dim)),
        seq=patches.seq,
        num_classes=num_classes,
        dim=dim,
        depth=depth,
        heads=heads,
        attention=_attention,
        sparsify=sparsify,
    )
    for norm in model.modules():
        if isinstance(norm, nn.LayerNorm):
            norm.eps = 1e-6
    return model


def crate_alpha_from_published(state_dict: Mapping[str, Any]) -> CRATE:
    """A network with the published weights of a CRATE-alpha classifier, in evaluation mode; all sizes are taken from them.

    Args:
        state_dict: names and shapes of the published file for torch, with ``conv1.weight`` [dim, channels, patch, patch], a dictionary
            ``fn.D`` and its decoder ``fn.D1`` [dim, atoms] in each layer; of a file, what :func:`.load_weights` returns.
    Returns:
        a network in the dtype of the positions, on the CPU, with copies of the weights; ``model(images [batch, c, h, w])`` gives logits.
    Raises:
        ValueError: weights are missing, unknown or of another shape; all are listed, by the names they have here.
    """
    weights = unwrap(state_dict)
    if missing := [name for name, axes in SIZE_WEIGHTS.items() if name not in weights or weights[name].ndim != axes]:
        present = f"{len(weights)} weights, {listed(weights)}" if weights else "none"
        raise ValueError(f"state_dict must hold a CRATE-alpha classifier as published, with {listed(missing)}, got {present}")
    dim, channels, patch_size, _ = weights["conv1.weight"].shape
    inner, tokens = len(weights["transformer.layers.0.0.fn.qkv.weight"]), weights["pos_embedding"].shape[1] - 1
    if inner != dim or dim % HEAD_DIM:
        raise ValueError(f"qkv must have {dim} rows, heads of width {HEAD_DIM}, got {inner}; build the network with crate_alpha")
    numbers = (int(match[1]) for name in weights if (match := re.match(r"transformer\.layers\.(\d+)\.", name)))
    with torch.device("meta"):  # no random numbers for weights that are about to be replaced
        model = crate_alpha(
            num_classes=len(weights["mlp_head.1.weight"]),
            patch_size=patch_size,
            image_size=isqrt(tokens) * patch_size,
            dim=dim,
            depth=min(1 + max(numbers), len(weights)),
            heads=dim // HEAD_DIM,
            channels=channels,
        )
    model = model.to(weights["pos_embedding"].dtype).to_empty(device="cpu")
    fill(
        model, {_renamed(name): value for name, value in weights.items()} | {"to_patch_embedding.1.weight": _flat(weights["conv1.weight"])}
    )
    return model.eval()


def _attention(dim: int, *, heads: int, head_dim: int) -> ReleasedAttention:
    """The released form without a bias of the output."""
    block = ReleasedAttention(dim, heads=heads, head_dim=head_dim)
    block.to_out[0] = nn.Linear(heads * head_dim, dim, bias=False)
    return block


def _flat(kernel: Tensor) -> Tensor:
    """A convolution's kernel [dim, channels, row, column] as the matrix of :class:`.Patches`, where channels run fastest."""
    return kernel.permute(0, 2, 3, 1).flatten(1)


def _renamed(name: str) -> str:
    for pattern, replacement in RENAMES:
        name = re.sub(pattern, replacement, name)
    return name
