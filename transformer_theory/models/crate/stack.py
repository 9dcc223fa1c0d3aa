r"""A stack of CRATE layers, which the classifier, the language model and the masked autoencoder have in common.

    Z^{l+1/2} = Z^l + attention(LN(Z^l)),      Z^{l+1} = sparsify(LN(Z^{l+1/2})), added to Z^{l+1/2} where the block has a skip

Tokens are [batch, n, dim]. Source: :cite:t:`yu2023white`.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from ..embedding import counts, divide
from .layer import Layer, PreNorm


class Stack(nn.Module):
    """Layers one after the other, [batch, n, dim] -> [batch, n, dim]; their names are those of the released networks.

    Args:
        dim, depth, heads: sizes.
        head_dim: width of a head, dim / heads if None.
        attention: called as ``attention(dim, heads=..., head_dim=...)`` for each layer: the compression block.
        sparsify: called as ``sparsify(dim)`` for each layer: the sparsification block.
    Raises:
        ValueError: a size is no whole number of at least 1, heads do not divide dim, or a block is none that could be called.
            Source: :cite:t:`yu2023white`.
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
        counts(dim=dim, depth=depth, heads=heads)
        width = divide(dim, heads) if head_dim is None else head_dim
        counts(head_dim=width)
        check_block("attention", attention, "attention(dim, heads=..., head_dim=...)", "ReleasedAttention")
        check_block("sparsify", sparsify, "sparsify(dim)", "Ista")
        self.layers = nn.ModuleList(
            Layer(dim, attention=attention(dim, heads=heads, head_dim=width), sparsify=sparsify(dim)) for _ in range(depth)
        )

    def forward(self, tokens: Float[Tensor, "batch n dim"]) -> Float[Tensor, "batch n dim"]:
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens


def blocks(model: nn.Module) -> list[tuple[Layer, PreNorm]]:
    """The CRATE layers of a network, each with its first half. Source: :cite:t:`yu2023white`."""
    return [(layer, half) for layer in model.modules() if isinstance(layer, Layer) and isinstance(half := layer[0], PreNorm)]


def check_block(name: str, given: object, call: str, example: str) -> None:
    """Nothing, if a block can be made for each layer. Source: none, this is machinery.

    Raises:
        ValueError: a block that exists already, of which no second could be made, or nothing that can be called.
    """
    if isinstance(given, nn.Module):
        kind = type(given).__name__
        raise ValueError(f"{name} must make a block for each layer, got one {kind} that exists already; pass {kind}, or a partial of it")
    if not callable(given):
        raise ValueError(f"{name} must make a block when called as {call}, got {given!r}; pass a class such as crate.{example}")
