r"""CRATE: a transformer whose layers are derived, one compression and one sparsification step of the sparse rate reduction each.

    Z^0 = [class token; embedded tokens] + positions
    Z^{l+1/2} = Z^l + attention(LN(Z^l)),      Z^{l+1} = ISTA(LN(Z^{l+1/2}))  (no skip),      logits = head(LN(Z^L)[class token])

The attention block is passed: :class:`ReleasedAttention` (free output matrix, as in the released networks), :class:`PaperAttention` (tied,
with the paper's shrink) or :class:`ExactAttention` (gradient step). Parameter names are those of the released networks, whose weights
:meth:`CRATE.from_released` reads.
Shapes: tokens [batch, 1 + seq, dim], heads [batch, heads, 1 + seq, head_dim].
Source: :cite:t:`yu2023white`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..theories.crate.block import Ista, ReleasedAttention
from .embedding import Patches, Tokens, check_inputs
from .released import sizes_of
from .stack import Stack
from .weights import fill, unwrap


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
        if num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, got {num_classes}")
        self.to_patch_embedding = embedding
        self.pos_embedding = nn.Parameter(spread * torch.randn(1, 1 + seq, dim))
        self.cls_token = nn.Parameter(spread * torch.randn(1, 1, dim))
        self.transformer = Stack(dim, depth=depth, heads=heads, head_dim=head_dim, attention=attention, sparsify=sparsify)
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
        cls, state_dict: Mapping[str, Any], image_size: int = 32, patch_size: int = 4, *, heads: int | None = None
    ) -> "CRATE":
        """A network with the weights of a released CRATE; sizes are read off the weights. In evaluation mode.

        Args:
            state_dict: names and shapes of the released image classifier, or a checkpoint that :func:`.unwrap` takes; of a file,
                what :func:`.load_weights` gives.
            image_size, patch_size: of its training, in pixels.
            heads: number of heads, which no weight shows: if not given, heads of width 64 (48 for width 576) as in the released networks.
        Returns:
            in the dtype of the positions, on the CPU; ``model(images [batch, c, h, w])`` gives logits. The weights are copied.
        Raises:
            ValueError: weights are missing, unknown or of another shape, all of which are listed, or heads cannot be told.
                Source: :cite:t:`yu2023white`, released code.
        """
        weights = unwrap(state_dict)
        with torch.device("meta"):  # no random numbers for weights that are about to be replaced
            model = cls.for_images(**sizes_of(weights, image_size=image_size, patch_size=patch_size, heads=heads))
        model = model.to(weights["pos_embedding"].dtype).to_empty(device="cpu")
        fill(model, weights)
        return model.eval()

    def forward(self, inputs: Tensor) -> Float[Tensor, "batch classes"]:
        check_inputs(inputs, self.pos_embedding)
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
