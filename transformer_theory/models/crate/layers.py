r"""CRATE layers and stacks of layers, shared by the classifier, the language model and the masked
autoencoder.

    Z^{l+1/2} = Z^l + attention(LN(Z^l)),
        Z^{l+1} = sparsify(LN(Z^{l+1/2})), added to Z^{l+1/2} if the block has ``skip``

Tokens are [batch, n, dim]. Parameters have the names of the released networks. Source: :cite:t:`yu2023white`,
released code.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ...core.validation import integers
from ..embedding import head_width
from .attention import Batch, Past


class PreNorm(nn.Module):
    """A module behind a layer norm: ``fn(LayerNorm(tokens))``."""

    def __init__(self, dim: int, fn: nn.Module):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, tokens: Batch) -> Batch:
        return self.fn(self.norm(tokens))


class Layer(nn.Sequential):
    r"""A CRATE layer: child 0 compresses and child 1 sparsifies. Its parameters are ``0.norm.weight``,
    ``1.fn.weight``, ...
    """

    def __init__(self, dim: int, *, attention: nn.Module, sparsify: nn.Module):
        super().__init__(PreNorm(dim, attention), PreNorm(dim, sparsify))
        self.skip = bool(getattr(sparsify, "skip", False))

    def forward(self, input: Batch) -> Batch:
        half = input + self[0](input)
        return half + self[1](half) if self.skip else self[1](half)

    def extend(self, tokens: Batch, past: Past | None) -> tuple[Batch, Past]:
        """Computes the layer for tokens [batch, m, dim] that follow past ones, and what the compression block
        stores of all tokens.
        """
        compress = self[0]
        assert isinstance(compress, PreNorm)
        block: Any = compress.fn
        change, stored = block.extend(compress.norm(tokens), past)
        half = tokens + change
        return (half + self[1](half) if self.skip else self[1](half)), stored


class Stack(nn.Module):
    """A sequence of layers, [batch, n, dim] -> [batch, n, dim].

    Args:
        dim, depth, heads: width, number of layers, number of heads.
        head_dim: width of a head. None: dim / heads.
        attention: constructor of the compression blocks, called as ``attention(dim, heads=...,
            head_dim=...)`` for each layer.
        sparsify: constructor of the sparsification blocks, called as ``sparsify(dim)`` for each layer.
    Raises:
        ValueError: a size is below 1, heads do not divide dim, or ``attention`` or ``sparsify`` is not a
            constructor.
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
        integers(dim=dim, depth=depth, heads=heads)
        width = head_width(dim, heads) if head_dim is None else head_dim
        integers(head_dim=width)
        _check_constructor(
            "attention", attention, "attention(dim, heads=..., head_dim=...)", "ReleasedAttention"
        )
        _check_constructor("sparsify", sparsify, "sparsify(dim)", "Ista")
        self.layers = nn.ModuleList(
            Layer(dim, attention=attention(dim, heads=heads, head_dim=width), sparsify=sparsify(dim))
            for _ in range(depth)
        )

    def forward(self, tokens: Batch) -> Batch:
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens

    def extend(self, tokens: Batch, past: Sequence[Past | None]) -> tuple[Batch, list[Past]]:
        """Computes the stack for tokens [batch, m, dim] that follow past ones, and what each layer stores of
        all tokens.
        """
        stored = []
        for layer, layer_past in zip(self.layers, past):
            assert isinstance(layer, Layer)
            tokens, new = layer.extend(tokens, layer_past)
            stored.append(new)
        return tokens, stored

    def extensible(self) -> bool:
        """Returns whether :meth:`extend` gives the same tokens as a pass over the whole sequence.

        The class of every compression block must define ``extend`` itself: an inherited one may not belong to
        the block's ``forward``. Forward hooks would not be called, so no module may have one.
        """
        blocks = [layer[0].fn for layer in self.layers]  # pyright: ignore[reportIndexIssue]
        hooked = any(module._forward_hooks or module._forward_pre_hooks for module in self.modules())
        return not hooked and all("extend" in vars(type(block)) for block in blocks)


def layers_of(model: nn.Module) -> list[tuple[Layer, PreNorm]]:
    """Returns the CRATE layers of a network, each with its first half (norm and compression block)."""
    return [
        (layer, half)
        for layer in model.modules()
        if isinstance(layer, Layer) and isinstance(half := layer[0], PreNorm)
    ]


def _check_constructor(name: str, value: object, call: str, example: str) -> None:
    """Raises ValueError unless the value is a constructor. A module is refused too, because all layers would
    share its weights.
    """
    if isinstance(value, nn.Module):
        kind = type(value).__name__
        raise ValueError(
            f"{name} must make a block for each layer, got a single {kind}; pass the class {kind}, or a "
            "partial of it"
        )
    if not callable(value):
        raise ValueError(
            f"{name} must make a block when called as {call}, got {value!r}; pass a class such as "
            f"crate.{example}"
        )
