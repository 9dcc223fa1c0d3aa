r"""Vision transformer, pre-norm: the standard network in which the theories' quantities are measured.

    Z^0 = [class token; embedded tokens] + positions
    Z^{l+1/2} = Z^l + attention(LN(Z^l)),      Z^{l+1} = Z^{l+1/2} + MLP(LN(Z^{l+1/2})),
                                               logits = head(LN(Z^L)[class token])

W_Q, W_K and W_V are separate and have no bias, so the scores are exactly bilinear, x^T W z. The MLP has a
GELU and width 4 dim. Shapes: tokens [batch, 1 + seq, dim], heads [batch, heads, 1 + seq, dim / heads].
Source: :cite:t:`dosovitskiy2021image`.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .attention import Factored, softmax_attention
from .convolutions import Convolutions
from .embedding import Patches, Tokens, check_inputs, head_width

Batch = Float[Tensor, "batch n dim"]


class Attention(nn.Module):
    """Multi-head self-attention, [batch, n, dim] -> [batch, n, dim], see :func:`.softmax_attention`.

    Args:
        dim, heads: width, and number of heads (a divisor of dim).
    Raises:
        ValueError: heads do not divide dim.
    """

    def __init__(self, dim: int, *, heads: int):
        super().__init__()
        self.heads, self.head_dim = heads, head_width(dim, heads)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, tokens: Batch) -> Batch:
        # [batch, n, 3 dim] -> three tensors [batch, heads, n, head_dim]
        query, key, value = (
            self.qkv(tokens).unflatten(-1, (3, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        )
        heads = softmax_attention(query, key, value, scale=self.head_dim**-0.5)
        return self.out(heads.transpose(1, 2).flatten(-2))

    def bilinear(self) -> Float[Tensor, "heads dim dim"]:
        """Returns W = W_K W_Q^T / sqrt(head_dim) per head, [heads, dim, dim], so that score(key token x,
        query token z) = x^T W z.
        """
        # [3 dim, dim] -> three tensors [heads, head_dim, dim]
        query, key, _ = self.qkv.weight.unflatten(0, (3, self.heads, self.head_dim))
        return Factored(key.mT, query.mT, scale=self.head_dim**-0.5).bilinear()


class Block(nn.Module):
    """A layer: attention, then an MLP. Both read normalised tokens and add their output to the residual
    stream.
    """

    def __init__(self, dim: int, *, heads: int, mlp_ratio: int = 4):
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads=heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_ratio * dim), nn.GELU(), nn.Linear(mlp_ratio * dim, dim))

    def forward(self, tokens: Batch) -> Batch:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        return tokens + self.mlp(self.mlp_norm(tokens))


class ViT(nn.Module):
    """A vision transformer with a class token; build it with :meth:`for_images` or :meth:`for_tokens`.

    Args:
        reader: module that maps the input to [batch, seq, token_dim]: :class:`Patches`, :class:`Convolutions`
            or :class:`Tokens`.
        num_classes, dim, depth, heads: number of classes, width, number of layers, number of heads.
        mlp_ratio: hidden width of the MLP, in units of dim.
    Raises:
        ValueError: the sizes do not fit.
    """

    def __init__(
        self,
        reader: Patches | Tokens | Convolutions,
        *,
        num_classes: int,
        dim: int,
        depth: int,
        heads: int,
        mlp_ratio: int = 4,
    ):
        super().__init__()
        self.reader = reader
        self.embed = nn.Linear(reader.dim, dim)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.pos_embedding = nn.Parameter(0.02 * torch.randn(1, 1 + reader.seq, dim))
        self.blocks = nn.ModuleList(Block(dim, heads=heads, mlp_ratio=mlp_ratio) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    @classmethod
    def for_images(
        cls,
        *,
        image_size: int,
        patch_size: int,
        num_classes: int,
        dim: int,
        depth: int,
        heads: int,
        channels: int = 3,
        mlp_ratio: int = 4,
    ) -> "ViT":
        """Builds a network that maps images [batch, channels, image_size, image_size] to logits [batch,
        num_classes].

        Raises:
            ValueError: the sizes do not fit.
        """
        reader = Patches(image_size=image_size, patch_size=patch_size, channels=channels)
        return cls(reader, num_classes=num_classes, dim=dim, depth=depth, heads=heads, mlp_ratio=mlp_ratio)

    @classmethod
    def for_tokens(
        cls,
        seq: int,
        token_dim: int,
        num_classes: int,
        *,
        dim: int = 96,
        depth: int = 2,
        heads: int = 4,
        mlp_ratio: int = 4,
    ) -> "ViT":
        """Builds a network that maps tokens [batch, seq, token_dim] (``TokenData.tokens``) to logits [batch,
        num_classes].

        Raises:
            ValueError: the sizes do not fit.
        """
        reader = Tokens(seq=seq, dim=token_dim)
        return cls(reader, num_classes=num_classes, dim=dim, depth=depth, heads=heads, mlp_ratio=mlp_ratio)

    def forward(self, inputs: Tensor) -> Float[Tensor, "batch classes"]:
        check_inputs(inputs, self.pos_embedding)
        embedded = self.embed(self.reader(inputs))
        tokens = (
            torch.cat([self.cls_token.expand(embedded.shape[0], -1, -1), embedded], dim=1)
            + self.pos_embedding
        )
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens[:, 0]))
