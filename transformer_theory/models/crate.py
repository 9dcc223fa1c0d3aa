r"""CRATE: a transformer whose layers are derived, one compression and one sparsification step of the sparse rate reduction each.

    Z^0 = [class token; embedded tokens] + positions
    Z^{l+1/2} = Z^l + attention(LN(Z^l)),      Z^{l+1} = ISTA(LN(Z^{l+1/2}))  (no skip),      logits = head(LN(Z^L)[class token])

The attention block is passed: :class:`ReleasedAttention` (free output matrix, as in the released networks), :class:`PaperAttention` (tied,
with the paper's shrink) or :class:`ExactAttention` (gradient step). Parameter names are those of the released networks, whose weights
:meth:`CRATE.from_released` reads.
Shapes: tokens [batch, 1 + seq, dim], heads [batch, heads, 1 + seq, head_dim].
Source: :cite:t:`yu2023white`.
"""

import re
from collections.abc import Callable, Mapping
from math import isqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import nearest
from ..theories.crate.block import Ista, Layer, ReleasedAttention
from .embedding import Patches, Tokens, divide

RELEASED_HEADS = {576: 12}  # the released "small"; all other released networks have heads of width 64


class _Transformer(nn.Module):
    """The layers, under the name they have in the released networks."""

    def __init__(self, layers: list[Layer]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, tokens: Float[Tensor, "batch n dim"]) -> Float[Tensor, "batch n dim"]:
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens


class CRATE(nn.Module):
    """A CRATE with a class token; build it with :meth:`for_images`, :meth:`for_tokens` or :meth:`from_released`.

    Args:
        embedding: turns the input into [batch, seq, dim].
        seq: number of tokens without the class token.
        num_classes, dim, depth, heads, head_dim: sizes; head_dim is dim / heads if not given.
        attention: called as ``attention(dim, heads=..., head_dim=...)`` for each layer: the compression block.
        sparsify: called as ``sparsify(dim)`` for each layer.
        spread: standard deviation of the initial positions and class token; the embedded tokens, normalised, have 1.
    Raises:
        ValueError: sizes do not fit. Source: :cite:t:`yu2023white`.
    """

    def __init__(
        self,
        embedding: nn.Module,
        *,
        seq: int,
        num_classes: int,
        dim: int,
        depth: int,
        heads: int,
        head_dim: int | None = None,
        attention: Callable[..., nn.Module] = ReleasedAttention,
        sparsify: Callable[[int], nn.Module] = Ista,
        spread: float = 1.0,
    ):
        super().__init__()
        width = divide(dim, heads) if head_dim is None else head_dim
        self.to_patch_embedding = embedding
        self.pos_embedding = nn.Parameter(spread * torch.randn(1, 1 + seq, dim))
        self.cls_token = nn.Parameter(spread * torch.randn(1, 1, dim))
        self.transformer = _Transformer(
            [Layer(dim, attention=attention(dim, heads=heads, head_dim=width), sparsify=sparsify(dim)) for _ in range(depth)]
        )
        self.mlp_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, num_classes))

    @classmethod
    def for_images(cls, *, image_size: int, patch_size: int, num_classes: int, dim: int, channels: int = 3, **sizes) -> "CRATE":
        """Reads images [batch, channels, image_size, image_size], gives logits [batch, num_classes]; patches are normalised, as released.

        Args:
            sizes: depth, heads and the other arguments of the class.
        Raises:
            ValueError: sizes do not fit. Source: :cite:t:`yu2023white`.
        """
        cut = Patches(image_size=image_size, patch_size=patch_size, channels=channels)
        embedding = nn.Sequential(cut, nn.LayerNorm(cut.dim), nn.Linear(cut.dim, dim), nn.LayerNorm(dim))
        return cls(embedding, seq=cut.seq, num_classes=num_classes, dim=dim, **sizes)

    @classmethod
    def for_tokens(cls, seq: int, token_dim: int, num_classes: int, *, dim: int = 96, depth: int = 2, heads: int = 4, **sizes) -> "CRATE":
        """Reads tokens [batch, seq, token_dim] (``TokenData.tokens``), gives logits [batch, num_classes].

        The tokens themselves are not normalised: a norm over a handful of pixels erases how bright a patch is.

        Args:
            sizes: the other arguments of the class, e.g. ``attention=PaperAttention``.
        Raises:
            ValueError: sizes do not fit. Source: :cite:t:`yu2023white`.
        """
        embedding = nn.Sequential(Tokens(seq=seq, dim=token_dim), nn.Linear(token_dim, dim), nn.LayerNorm(dim))
        return cls(embedding, seq=seq, num_classes=num_classes, dim=dim, depth=depth, heads=heads, **sizes)

    @classmethod
    def from_released(
        cls, state_dict: Mapping[str, Tensor], image_size: int = 32, patch_size: int = 4, *, heads: int | None = None
    ) -> "CRATE":
        """A network with the weights of a released CRATE; sizes are read off the weights. In evaluation mode.

        Args:
            state_dict: names and shapes of the released image classifier; a prefix ``module.`` on every name is dropped.
            image_size, patch_size: of its training, in pixels.
            heads: number of heads, which no weight shows: if not given, heads of width 64 (48 for width 576) as in the released networks.
        Returns:
            float32 on the CPU unless the weights are otherwise; ``model(images [batch, c, h, w])`` gives logits.
        Raises:
            ValueError: weights are missing, unknown or of another size, or heads cannot be told.
                Source: :cite:t:`yu2023white`, released code.
        """
        weights = dict(state_dict)
        if weights and all(name.startswith("module.") for name in weights):
            weights = {name.removeprefix("module."): value for name, value in weights.items()}
        depth = 1 + max((int(match[1]) for name in weights if (match := re.match(r"transformer\.layers\.(\d+)\.", name))), default=-1)
        if depth == 0:
            raise ValueError(f"state_dict must hold transformer.layers.0...., got {_some(weights)}; pass the weights of a CRATE classifier")
        needed = ("to_patch_embedding.2.weight", "pos_embedding", "transformer.layers.0.0.fn.qkv.weight", "mlp_head.1.weight")
        _require(weights, needed)
        dim, patch_dim = weights["to_patch_embedding.2.weight"].shape
        inner = weights["transformer.layers.0.0.fn.qkv.weight"].shape[0]
        channels = patch_dim // patch_size**2
        if channels * patch_size**2 != patch_dim:
            raise ValueError(f"patch_size must fit patches of {patch_dim} numbers, got {patch_size}; {_patch_sizes(patch_dim)}")
        if (tokens := weights["pos_embedding"].shape[1] - 1) != (image_size // patch_size) ** 2:
            side = isqrt(tokens) * patch_size
            raise ValueError(f"image_size must fit {tokens} patches, got {image_size} with patch_size={patch_size}; pass image_size={side}")
        heads = heads or RELEASED_HEADS.get(inner) or (inner // 64 if inner % 64 == 0 else None)
        if heads is None or inner % heads:
            raise ValueError(f"heads must divide the {inner} rows of qkv, got {heads}; pass heads=, which no weight shows")
        with torch.random.fork_rng(devices=[]):
            model = cls.for_images(
                image_size=image_size,
                patch_size=patch_size,
                channels=channels,
                num_classes=len(weights["mlp_head.1.weight"]),
                dim=dim,
                depth=depth,
                heads=heads,
                head_dim=inner // heads,
            )
        own = model.state_dict()
        _require(weights, own)
        if foreign := [name for name in weights if name not in own]:
            raise ValueError(f"state_dict has {len(foreign)} unknown weights, e.g. {foreign[0]!r}{nearest(foreign[0], own)}")
        for name, value in own.items():
            if weights[name].shape != value.shape:
                raise ValueError(f"{name} must have shape {list(value.shape)}, got {list(weights[name].shape)}")
        model.load_state_dict(weights)
        return model.to(weights["pos_embedding"].dtype).eval()

    def forward(self, inputs: Tensor) -> Float[Tensor, "batch classes"]:
        embedded = self.to_patch_embedding(inputs)
        tokens = torch.cat([self.cls_token.expand(len(embedded), -1, -1), embedded], dim=1) + self.pos_embedding
        return self.mlp_head(self.transformer(tokens)[:, 0])


def crate_tiny(num_classes: int = 1000) -> CRATE:
    """CRATE-T, 6.09 M parameters at 1000 classes; images [batch, 3, 224, 224], patches of 16 pixels. Source: :cite:t:`yu2023white`."""
    return _released(num_classes, dim=384, heads=6, depth=12)


def crate_small(num_classes: int = 1000) -> CRATE:
    """CRATE-S, 13.12 M parameters at 1000 classes; images [batch, 3, 224, 224], patches of 16 pixels. Source: :cite:t:`yu2023white`."""
    return _released(num_classes, dim=576, heads=12, depth=12)


def crate_base(num_classes: int = 1000) -> CRATE:
    """CRATE-B, 22.80 M parameters at 1000 classes; images [batch, 3, 224, 224], patches of 16 pixels. Source: :cite:t:`yu2023white`."""
    return _released(num_classes, dim=768, heads=12, depth=12)


def crate_large(num_classes: int = 1000) -> CRATE:
    """CRATE-L, 77.64 M parameters at 1000 classes; images [batch, 3, 224, 224], patches of 16 pixels. Source: :cite:t:`yu2023white`."""
    return _released(num_classes, dim=1024, heads=16, depth=24)


def _released(num_classes: int, **sizes) -> CRATE:
    return CRATE.for_images(image_size=224, patch_size=16, num_classes=num_classes, **sizes)


def _require(weights: Mapping[str, Tensor], names) -> None:
    if missing := [name for name in names if name not in weights]:
        raise ValueError(f"state_dict lacks {len(missing)} weights, e.g. {missing[0]!r}; it must hold a CRATE classifier as released")


def _some(weights: Mapping[str, Tensor]) -> str:
    return ", ".join(list(weights)[:3]) + ", ..." if weights else "nothing"


def _patch_sizes(patch_dim: int) -> str:
    sizes = [s for s in range(1, isqrt(patch_dim) + 1) if patch_dim % s**2 == 0 and patch_dim // s**2 <= 4]
    return "e.g. " + ", ".join(f"{s} for {patch_dim // s**2} channels" for s in sizes) if sizes else "no square patch does"
