r"""A stack of CRATE layers, which the classifier, the language model and the masked autoencoder have in common.

    Z^{l+1/2} = Z^l + attention(LN(Z^l)),      Z^{l+1} = sparsify(LN(Z^{l+1/2})), added to Z^{l+1/2} where the block has a skip

Tokens are [batch, n, dim]. Source: :cite:t:`yu2023white`.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from ....networks.embedding import divide
from .layer import Layer


class Stack(nn.Module):
    """Layers one after the other, [batch, n, dim] -> [batch, n, dim]; their names are those of the released networks.

    Args:
        dim, depth, heads: sizes.
        head_dim: width of a head, dim / heads if None.
        attention: called as ``attention(dim, heads=..., head_dim=...)`` for each layer: the compression block.
        sparsify: called as ``sparsify(dim)`` for each layer: the sparsification block.
    Raises:
        ValueError: there is no layer, or heads do not divide dim. Source: :cite:t:`yu2023white`.
    """

    def __init__(
        self,
        dim: int,
        *,
        depth: int,
        heads: int,
        head_dim: int | None,
        attention: Callable[..., nn.Module],
        sparsify: Callable[[int], nn.Module],
    ):
        super().__init__()
        if min(dim, depth) < 1:
            raise ValueError(f"dim and depth must be at least 1, got {dim} and {depth}")
        width = divide(dim, heads) if head_dim is None else head_dim
        self.layers = nn.ModuleList(
            Layer(dim, attention=attention(dim, heads=heads, head_dim=width), sparsify=sparsify(dim)) for _ in range(depth)
        )

    def forward(self, tokens: Float[Tensor, "batch n dim"]) -> Float[Tensor, "batch n dim"]:
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens
