r"""CRATE-alpha: CRATE with an overcomplete dictionary, a decoder and a skip connection.

    Z^{l+1} = Z^{l+1/2} + code(LN(Z^{l+1/2})) D'^T,
        code = two non-negative ISTA steps from zero, D has 4 dim atoms

A layer has 10 dim^2 + 4 dim parameters: U, the output matrix (without bias), D and D' (4 dim^2 each) and two
norms. Unlike in CRATE, patches are embedded by one linear map without norms, and layer norms add 1e-6 to the
variance. Shapes: images [batch, channels, image_size, image_size], logits [batch, num_classes]. Source:
:cite:t:`yang2024scaling`, and the published weights (sizes and names).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..embedding import Patches, patch_matrix
from ..weights import empty_model, fill, renamed, unwrap
from .attention import ReleasedAttention
from .network import CRATE, Pooling
from .released import ALPHA, alpha_sizes
from .sparsification import OvercompleteIsta

NORM_EPS = 1e-6  # added to the variance in every layer norm
# Names of published weights, as regular expressions, and their names in this library.
RENAMES = ((r"^conv1\.", "to_patch_embedding.1."), (r"\.fn\.D$", ".fn.weight"), (r"\.fn\.D1$", ".fn.decoder"))


def crate_alpha_base(num_classes: int = 1000, *, patch_size: int = 16, image_size: int = 224) -> CRATE:
    """Builds CRATE-alpha-B: 72.33 M parameters with 1000 classes and patches of 16 pixels. Published patch
    sizes: 32, 16 and 8.

    Raises:
        ValueError: ``patch_size`` does not divide ``image_size``.
    """
    return crate_alpha(
        num_classes=num_classes, patch_size=patch_size, image_size=image_size, dim=768, depth=12, heads=12
    )


def crate_alpha_large(num_classes: int = 1000, *, patch_size: int = 14, image_size: int = 224) -> CRATE:
    """Builds CRATE-alpha-L: 253.65 M parameters with 1000 classes and patches of 14 pixels. Published patch
    sizes: 32, 14 and 8.

    Raises:
        ValueError: ``patch_size`` does not divide ``image_size``.
    """
    return crate_alpha(
        num_classes=num_classes, patch_size=patch_size, image_size=image_size, dim=1024, depth=24, heads=16
    )


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
    pooling: Pooling = "cls",
) -> CRATE:
    """Builds a CRATE-alpha of any size.

    Args:
        num_classes, patch_size, image_size, dim, depth, heads, channels: sizes as in
            :meth:`.CRATE.for_images`.
        sparsify: constructor of the sparsification blocks, called as ``sparsify(dim)`` for each layer, e.g.
            ``partial(OvercompleteIsta, ratio=2)`` for 2 dim atoms.
        pooling: input of the head, see :class:`.CRATE`.
    Raises:
        ValueError: the sizes do not fit.
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
        pooling=pooling,
    )
    for norm in model.modules():
        if isinstance(norm, nn.LayerNorm):
            norm.eps = NORM_EPS
    return model


def crate_alpha_from_published(
    state_dict: Mapping[str, Any], *, eta: float = 0.1, lam: float = 0.1, pooling: Pooling = "cls"
) -> CRATE:
    """Builds a CRATE-alpha classifier with published weights, in evaluation mode. The weights determine all
    sizes.

    Args:
        state_dict: the published weights for torch, as :func:`.load_weights` returns them, with
            ``conv1.weight`` [dim, channels, patch, patch] and, in each layer, a dictionary ``fn.D`` and a
            decoder ``fn.D1``, each [dim, atoms].
        eta, lam, pooling: step size and threshold of ISTA, and the input of the head. The weights do not
            determine them; the defaults are those of the published networks.
    Returns:
        A network on the CPU with copies of the weights, in the dtype of ``pos_embedding``; ``model(images
        [batch, c, h, w])`` returns logits.
    Raises:
        ValueError: weights are missing, unknown or of another shape (the message lists them by their names in
            this library), or ``eta``, ``lam`` or ``pooling`` is out of range.
    """
    weights = unwrap(state_dict, expected=ALPHA)
    sizes = alpha_sizes(weights)
    ista = partial(OvercompleteIsta, eta=eta, lam=lam)
    model = empty_model(
        lambda: crate_alpha(**sizes, sparsify=ista, pooling=pooling), dtype=weights["pos_embedding"].dtype
    )
    fill(model, alpha_weights(weights))
    return model.eval()


def alpha_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns published weights under the names, and with the shapes, of :func:`crate_alpha`."""
    # The published embedding is a convolution whose stride equals its width, which is a linear map of
    # flattened patches.
    return renamed(weights, RENAMES) | {"to_patch_embedding.1.weight": patch_matrix(weights["conv1.weight"])}


def _attention(dim: int, *, heads: int, head_dim: int) -> ReleasedAttention:
    """Builds a :class:`ReleasedAttention` without output bias."""
    block = ReleasedAttention(dim, heads=heads, head_dim=head_dim)
    block.to_out[0] = nn.Linear(heads * head_dim, dim, bias=False)
    return block
