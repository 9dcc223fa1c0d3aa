"""Networks that classify images, by name and sizes, as ``transformer-theory train`` builds them.

All have a class token and take images [batch, channels, image_size, image_size]. Their layers differ:

* ``crate``: the released form, with shared W_Q = W_K = W_V, a free output matrix, a residual step and one
  ISTA step;
* ``crate-paper``: output tied to the subspaces, with the shrinking step (1 - κβ)Z + κβ MSSA(Z);
* ``crate-exact``: the gradient step of the coding rate, computed with its p x p resolvent, without softmax;
* ``crate-alpha``: an overcomplete dictionary of 4 dim atoms with a separate decoder, and a skip connection
  around it;
* ``crate-alpha-published``: the same as published, with one linear map of patches without norms and attention
  without output bias;
* ``tost``: attention by token statistics in the released form, linear in the number of tokens, with the GELU
  MLP of a ViT (without the convolutions, layer scales and class attention of the published network);
* ``vit``: the pre-norm vision transformer.

Pass other networks to :func:`~transformer_theory.training.train` and :func:`.stored.load` as
``networks={"name": build}``.

Source: :cite:t:`yu2023white`, :cite:t:`yang2024scaling`, :cite:t:`wu2025token`,
:cite:t:`dosovitskiy2021image`.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from ..core.errors import nearest
from .convolutions import Convolutions
from .crate import (
    ExactAttention,
    Ista,
    OvercompleteIsta,
    PaperAttention,
    ReleasedAttention,
    ReleasedTokenStatisticsAttention,
)
from .crate.alpha import crate_alpha
from .crate.network import CRATE, Pooling
from .embedding import Patches
from .vit import ViT

Stem = Literal["patches", "convolutions"]
CONSTANTS = {
    "pooling": "choice of pooling: its head reads the class token",
    "eta": "ISTA step",
    "lam": "ISTA step",
    "kappa": "step size of attention",
}
# smallest number of values per patch for a norm; on smaller patches it would erase the brightness
PIXELS = 16


@dataclass(frozen=True)
class Sizes:
    """Sizes of a network, and the constants that its weights do not determine.

    Attributes:
        image_size: side of the images, pixels.
        channels: number of channels of the images.
        num_classes: number of classes of the data.
        patch_size: side of a patch, pixels.
        dim: width of the tokens.
        depth: number of layers.
        heads: number of attention heads per layer.
        stem: map from images to tokens: linear patches, or overlapping convolutions.
        pooling: input of the head of a CRATE: the class token, or the mean of all tokens.
        eta, lam: step size and threshold of ISTA.
        kappa: step size of attention in ``crate-paper`` and ``crate-exact``. None: 1 and .5.
    """

    image_size: int
    channels: int
    num_classes: int
    patch_size: int
    dim: int
    depth: int
    heads: int
    stem: Stem = "patches"
    pooling: Pooling = "cls"
    eta: float = 0.1
    lam: float = 0.1
    kappa: float | None = None


class Mlp(nn.Module):
    """The GELU MLP of a ViT as the sparsification block of a CRATE, [batch, n, dim] -> [batch, n, dim]."""

    skip = True  # the CRATE layer adds the input

    def __init__(self, dim: int, *, ratio: int = 4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, ratio * dim), nn.GELU(), nn.Linear(ratio * dim, dim))

    def forward(self, tokens: Float[Tensor, "batch n dim"]) -> Float[Tensor, "batch n dim"]:
        return self.layers(tokens)


class Pixels(nn.Module):
    """A network on images in [0, 1], with a normalisation of each channel before it.

    Args:
        network: network on normalised images [batch, c, h, w].
        mean, std: mean and standard deviation of the training images, [c].
    Raises:
        ValueError: mean and std differ in length, or a std is not positive.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Float[Tensor, " c"], std: Float[Tensor, " c"]):
        super().__init__()
        if mean.shape != std.shape or mean.ndim != 1 or not bool((std > 0).all()):
            raise ValueError(
                f"mean and std must be one number per channel, std above 0, got {mean.tolist()} and "
                f"{std.tolist()}"
            )
        self.network = network
        self.register_buffer("mean", mean.float().view(-1, 1, 1), persistent=False)
        self.register_buffer("std", std.float().view(-1, 1, 1), persistent=False)

    @classmethod
    def centring(cls, network: nn.Module, pixels: UInt8[Tensor, "n c h w"]) -> "Pixels":
        """Builds the normalisation from the mean and standard deviation of each channel of the pixels, 0 to
        255.
        """
        # The 256 counts per channel give both sums exactly in float64, without a float copy of all images.
        counts = torch.stack(
            [torch.bincount(channel.flatten(), minlength=256) for channel in pixels.unbind(1)]
        ).double()
        values, n = torch.arange(256, device=counts.device) / 255, counts.sum(1, keepdim=True)
        mean = (counts * values).sum(1, keepdim=True) / n
        variance = (counts * (values - mean) ** 2).sum(1) / (n[:, 0] - 1)
        # a constant channel has variance 0
        return cls(network, mean[:, 0], variance.sqrt().clamp(min=1 / 255))

    def around(self, network: nn.Module) -> "Pixels":
        """Returns another network behind the same normalisation, on the device of this one."""
        return Pixels(network, self.mean.flatten(), self.std.flatten()).to(self.mean.device)

    @property
    def cls_token(self) -> Tensor | None:
        """The network's class token, which is the first token of each image; None if it has none."""
        return getattr(self.network, "cls_token", None)

    def forward(self, images: Float[Tensor, "batch c h w"]) -> Tensor:
        return self.network((images - self.mean) / self.std)


def _check_patches(sizes: Sizes) -> None:
    """Raises :class:`ValueError` unless the stem can divide the images into patches; the message lists the
    possible sizes.
    """
    side, by_halves = sizes.image_size, sizes.stem == "convolutions"
    # size & (size - 1) clears the lowest bit: it is 0 for powers of two only.
    possible = [
        size
        for size in range(1, side + 1)
        if side % size == 0 and not (by_halves and (size == 1 or size & (size - 1)))
    ]
    if sizes.patch_size in possible or sizes.patch_size < 1:  # the patches check sizes below 1
        return
    kind = "a power of two from 2 on that divides" if by_halves else "a divisor of"
    other = (
        f"choose {', '.join(map(str, possible))}"
        if possible
        else "choose stem 'patches', or images of an even side"
    )
    raise ValueError(
        f"patch_size must be {kind} the side of the images, {side} pixels, got {sizes.patch_size}; {other}"
    )


def _embedding(sizes: Sizes) -> tuple[nn.Sequential, int]:
    """Returns the map from images to normalised tokens, with the parameter names of the released networks,
    and the number of tokens.
    """
    _check_patches(sizes)
    if sizes.stem == "convolutions":
        stem = _stem(sizes)
        return nn.Sequential(stem, nn.LayerNorm(sizes.dim)), stem.seq
    cut = Patches(image_size=sizes.image_size, patch_size=sizes.patch_size, channels=sizes.channels)
    norm = nn.LayerNorm(cut.dim) if cut.dim >= PIXELS else nn.Identity()
    return nn.Sequential(cut, norm, nn.Linear(cut.dim, sizes.dim), nn.LayerNorm(sizes.dim)), cut.seq


def _stem(sizes: Sizes) -> Convolutions:
    return Convolutions(
        image_size=sizes.image_size, patch_size=sizes.patch_size, channels=sizes.channels, dim=sizes.dim
    )


def crate(
    sizes: Sizes,
    *,
    attention: Callable[..., nn.Module] = ReleasedAttention,
    sparsify: Callable[..., nn.Module] = Ista,
) -> nn.Module:
    """Builds a CRATE for images with the given blocks, see :mod:`.crate`.

    Blocks that take a step size and threshold (:class:`.Ista`, :class:`.OvercompleteIsta`) or a step size of
    attention (:class:`.PaperAttention`, :class:`.ExactAttention`) get those of ``sizes``.

    Raises:
        ValueError: the sizes do not fit, or ``sizes`` sets a constant that these blocks do not have.
    """
    steps = attention in (PaperAttention, ExactAttention)
    ista = sparsify in (Ista, OvercompleteIsta)
    _check_constants(sizes, pooling=True, eta=ista, lam=ista, kappa=steps)
    embedding, seq = _embedding(sizes)
    return CRATE(
        embedding,
        seq=seq,
        num_classes=sizes.num_classes,
        dim=sizes.dim,
        depth=sizes.depth,
        heads=sizes.heads,
        attention=attention if sizes.kappa is None else partial(attention, kappa=sizes.kappa),
        sparsify=partial(sparsify, eta=sizes.eta, lam=sizes.lam) if ista else sparsify,
        pooling=sizes.pooling,
    )


def _published_alpha(sizes: Sizes) -> nn.Module:
    _check_patches(sizes)
    if sizes.stem != "patches":
        raise ValueError(
            f"stem must be 'patches' in crate-alpha-published, got {sizes.stem!r}; choose crate-alpha"
        )
    _check_constants(sizes, pooling=True, eta=True, lam=True)
    shape = {
        name: getattr(sizes, name)
        for name in ("image_size", "patch_size", "channels", "num_classes", "dim", "depth", "heads")
    }
    return crate_alpha(
        **shape, sparsify=partial(OvercompleteIsta, eta=sizes.eta, lam=sizes.lam), pooling=sizes.pooling
    )


def _check_constants(sizes: Sizes, **present: bool) -> None:
    """Raises :class:`ValueError` if ``sizes`` sets a constant that the network does not have."""
    for field in fields(Sizes):
        value = getattr(sizes, field.name)
        if field.name in CONSTANTS and not present.get(field.name) and value != field.default:
            raise ValueError(
                f"{field.name} must be left out, since this network has no {CONSTANTS[field.name]}, got "
                f"{value!r}"
            )


def _vit(sizes: Sizes) -> nn.Module:
    _check_patches(sizes)
    _check_constants(sizes)
    cut = Patches(image_size=sizes.image_size, patch_size=sizes.patch_size, channels=sizes.channels)
    embedding = _stem(sizes) if sizes.stem == "convolutions" else cut
    return ViT(embedding, num_classes=sizes.num_classes, dim=sizes.dim, depth=sizes.depth, heads=sizes.heads)


Builder = Callable[[Sizes], nn.Module]
"""Builds a network with initial weights, from images ``[batch, channels, image_size, image_size]`` to logits
``[batch, num_classes]``.
"""

NETWORKS: dict[str, Builder] = {
    "crate": crate,
    "crate-paper": partial(crate, attention=PaperAttention),
    "crate-exact": partial(crate, attention=ExactAttention),
    "crate-alpha": partial(crate, sparsify=OvercompleteIsta),
    "crate-alpha-published": _published_alpha,
    "tost": partial(crate, attention=ReleasedTokenStatisticsAttention, sparsify=Mlp),
    "vit": _vit,
}

# An objective builds its network from a name and sizes only. The caller's builders therefore reach it through
# a context variable.
_OWN: ContextVar[Mapping[str, Builder] | None] = ContextVar("own", default=None)


@contextlib.contextmanager
def own_networks(networks: Mapping[str, Builder] | None) -> Iterator[None]:
    """Makes these networks known to :func:`builder` inside the block.

    Raises:
        ValueError: a name is one of :data:`NETWORKS`.
    """
    networks = networks or {}
    if duplicates := [name for name in networks if name in NETWORKS]:
        raise ValueError(
            f"networks must have names other than {', '.join(NETWORKS)}, got {duplicates[0]!r}; rename it"
        )
    token = _OWN.set(networks)
    try:
        yield
    finally:
        _OWN.reset(token)


def builder(name: str) -> Builder:
    """Returns the builder of a network by name, from :data:`NETWORKS` or from the block of
    :func:`own_networks`.

    Raises:
        ValueError: no network has this name.
    """
    known = {**NETWORKS, **(_OWN.get() or {})}
    if name not in known:
        raise ValueError(
            f"unknown network {name!r}{nearest(name, known)}; pass networks= with a network of your own"
        )
    return known[name]
