r"""The network of the theory, a classifier whose layers are derived, one compression and one sparsification step each.

    Z^0 = [class token; embedded tokens] + positions
    Z^{l+1/2} = Z^l + attention(LN(Z^l)),      Z^{l+1} = ISTA(LN(Z^{l+1/2}))  (no skip),      logits = head(LN(Z^L)[class token])

The attention block is passed: :class:`ReleasedAttention` (free output matrix, as in the released networks), :class:`PaperAttention` (tied,
with the paper's shrink) or :class:`ExactAttention` (gradient step). Parameter names are those of the released networks.
Shapes: tokens [batch, 1 + seq, dim], heads [batch, heads, 1 + seq, head_dim].
Source: :cite:t:`yu2023white`.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..embedding import Tokens, check_inputs, counts
from . import Ista, ReleasedAttention, Stack
from .stack import blocks


class Classifier(nn.Module):
    """A classifier with a class token, made of the layers of the room.

    Args:
        embedding: turns the input into [batch, seq, dim].
        seq: number of tokens without the class token.
        num_classes, dim, depth, heads, head_dim: sizes; head_dim is dim / heads if not given.
        attention: called as ``attention(dim, heads=..., head_dim=...)`` for each layer: the compression block, ours or any other that
            keeps to the interface of :mod:`.block`.
        sparsify: called as ``sparsify(dim)`` for each layer.
        spread: standard deviation of the initial positions and class token; the embedded tokens, normalised, have 1.
    Raises:
        ValueError: sizes do not fit, or the attention is causal, so that the class token, which is first, would see itself alone.
            Source: :cite:t:`yu2023white`.
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
        counts(num_classes=num_classes, dim=dim)
        self.to_patch_embedding = embedding
        self.pos_embedding = nn.Parameter(spread * torch.randn(1, 1 + seq, dim))
        self.cls_token = nn.Parameter(spread * torch.randn(1, 1, dim))
        self.transformer = Stack(dim, depth=depth, heads=heads, head_dim=head_dim, attention=attention, sparsify=sparsify)
        for _, half in blocks(self.transformer):
            if getattr(half.fn, "is_causal", False):
                raise ValueError(
                    f"attention must see all tokens, got {type(half.fn).__name__}, by which the class token, the first, sees itself alone;"
                    " pass a block that is not causal, or build a CRATELanguageModel"
                )
        self.mlp_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, num_classes))

    @classmethod
    def for_tokens(
        cls, seq: int, token_dim: int, num_classes: int, *, dim: int = 96, depth: int = 2, heads: int = 4, **sizes
    ) -> "Classifier":
        """Reads tokens [batch, seq, token_dim] (``TokenData.tokens``), gives logits [batch, num_classes]; width 96, two layers, four heads.

        The tokens themselves are not normalised: a norm over a handful of pixels erases how bright a patch is.

        Args:
            sizes: the other arguments of the class, e.g. ``attention=PaperAttention``.
        Raises:
            ValueError: sizes do not fit. Source: :cite:t:`yu2023white`.
        """
        counts(dim=dim)
        embedding = nn.Sequential(Tokens(seq=seq, dim=token_dim), nn.Linear(token_dim, dim), nn.LayerNorm(dim))
        return cls(embedding, seq=seq, num_classes=num_classes, dim=dim, depth=depth, heads=heads, **sizes)

    def forward(self, inputs: Tensor) -> Float[Tensor, "batch classes"]:
        check_inputs(inputs, self.pos_embedding)
        embedded = self.to_patch_embedding(inputs)
        tokens = torch.cat([self.cls_token.expand(len(embedded), -1, -1), embedded], dim=1) + self.pos_embedding
        return self.mlp_head(self.transformer(tokens)[:, 0])
