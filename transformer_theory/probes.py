"""Probes: what every theory sees inside any torch model while it runs, streamed, without storing attention maps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from jaxtyping import Float, Int
from torch import Tensor

from .rows import Row


@dataclass(frozen=True)
class Observation:
    """What one module did in one forward pass (detached, on the model's device).

    ``kind`` is ``"attention"`` for a module in which attention was computed, ``"features"`` for a block of the network.

    Attributes:
        module: qualified name of the module, e.g. ``"blocks.1.attention"``.
        layer: number of the block in the order of execution, from 0.
        kind: ``"attention"`` or ``"features"``.
        tokens: what the module read, ``[batch, seq, dim]``.
        output: what it returned, ``[batch, seq, dim]``.
        query, key, value: ``[batch, heads, seq, head_dim]`` (attention only).
        weights: attention weights, ``[batch, heads, queries, keys]``, rows sum to one (attention only).
        bilinear: per head the matrix W with score(key token x, query token z) = x^T W z (scale included), ``[heads, dim, dim]``,
            if the module offers ``bilinear()`` or is a ``torch.nn.MultiheadAttention``.
        parent: the module itself, for its parameters.
    """

    module: str
    layer: int
    kind: str
    tokens: Float[Tensor, "batch seq dim"]
    output: Tensor
    query: Float[Tensor, "batch heads q head_dim"] | None = None
    key: Float[Tensor, "batch heads k head_dim"] | None = None
    value: Float[Tensor, "batch heads k value_dim"] | None = None
    weights: Float[Tensor, "batch heads q k"] | None = None
    bilinear: Float[Tensor, "heads dim dim"] | None = None
    parent: object = None


class Reducer(Protocol):
    """Turns observations into rows, streamed: function and accumulator, in torchmetrics' words.

    ``update`` sees every observation of a probed forward pass and keeps what it needs (sums, counts), ``compute`` returns the
    rows of what was seen since the last ``reset`` (with theory, quantity, value, layer, head, null; the probe adds model and
    step), ``merge`` adds another reducer's state, so that batches and processes can be combined.
    """

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None: ...
    def compute(self) -> Sequence[Row]: ...
    def reset(self) -> None: ...
    def merge(self, other: Self) -> None: ...
