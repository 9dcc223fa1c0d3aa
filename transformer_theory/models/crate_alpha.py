r"""CRATE-alpha: CRATE with an overcomplete dictionary, decoded by another one, around which the tokens pass.

    Z^{l+1} = Z^{l+1/2} + code(LN(Z^{l+1/2})) D'^T,      code: two non-negative ISTA steps from zero in a dictionary D of 4 dim atoms

A layer has 10 dim^2 + 5 dim parameters: U, the output matrix, D and D' (4 dim^2 each), a bias and two norms. Widths and depths are those of
CRATE-B and -L, with which the released weights of B/16 (289 MB) and L/14 (1.01 GB) have the size of these networks in float32.
Shapes: images [batch, 3, image_size, image_size], logits [batch, num_classes].
Source: :cite:t:`yang2024scaling`.
"""

from collections.abc import Callable

from torch import nn

from ..theories.crate.block import OvercompleteIsta
from .crate import CRATE


def crate_alpha_base(num_classes: int = 1000, *, patch_size: int = 16, image_size: int = 224) -> CRATE:
    """CRATE-alpha-B, 72.34 M parameters at 1000 classes with patches of 16 pixels; published with patches of 32, 16 and 8.

    Raises:
        ValueError: patches do not divide images. Source: :cite:t:`yang2024scaling`.
    """
    return crate_alpha(num_classes=num_classes, patch_size=patch_size, image_size=image_size, dim=768, depth=12, heads=12)


def crate_alpha_large(num_classes: int = 1000, *, patch_size: int = 14, image_size: int = 224) -> CRATE:
    """CRATE-alpha-L, 253.68 M parameters at 1000 classes with patches of 14 pixels; published with patches of 32, 14 and 8.

    Raises:
        ValueError: patches do not divide images. Source: :cite:t:`yang2024scaling`.
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
        ValueError: sizes do not fit. Source: :cite:t:`yang2024scaling`.
    """
    return CRATE.for_images(
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        num_classes=num_classes,
        dim=dim,
        depth=depth,
        heads=heads,
        sparsify=sparsify,
    )
