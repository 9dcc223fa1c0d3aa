"""The two protocols of probes: what is seen of a module in one forward pass, and what turns that into rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core.measurement import Row

KINDS = ("attention", "features")  # of observations


@dataclass(frozen=True)
class Observation:
    """What one module did in one forward pass (detached, on the model's device).

    ``kind`` is ``"attention"`` for a module in which attention was computed, ``"features"`` for a block of the network. In a forward
    pass the attention of a block is seen before the block itself.

    Attributes:
        module: qualified name of the module, e.g. ``"blocks.1.attention"``.
        layer: number of the block in the order of execution, from 0.
        kind: ``"attention"`` or ``"features"``.
        tokens: what the module read, ``[batch, seq, dim]``.
        output: what it returned, ``[batch, seq, dim]``.
        query, key, value: ``[batch, heads, seq, head_dim]`` (attention only); a module that cuts sequences into windows itself has
            ``[windows, heads, seq, head_dim]``, weights alike.
        weights: attention weights, ``[batch, heads, queries, keys]``, rows sum to one (attention only; before dropout).
        bilinear: per head the matrix W with score(key token x, query token z) = x^T W z (scale included), ``[heads, dim, dim]``,
            if the module offers ``bilinear()``, is a ``torch.nn.MultiheadAttention``, or has projections by a well-known name that give
            the scores (biases of W_Q and W_K are left out).
        parent: the module itself, for its parameters.
        allowed: which keys each query may see, broadcastable to the weights; None if all (attention only).
        first_head: heads of the same block seen before in this pass: 0 unless a block attends more than once (attention only).
        attended: the residual stream of a block after its attention step, before its MLP, ``[batch, seq, dim]`` (features only): the
            input of the first submodule after the attention that is not just the last submodule's output; if there is none, the output.
    """

    module: str
    layer: int
    kind: str
    tokens: Float[Tensor, "batch seq dim"]
    output: Tensor
    query: Float[Tensor, "windows heads q head_dim"] | None = None
    key: Float[Tensor, "windows heads k head_dim"] | None = None
    value: Float[Tensor, "windows heads k value_dim"] | None = None
    weights: Float[Tensor, "windows heads q k"] | None = None
    bilinear: Float[Tensor, "heads dim dim"] | None = None
    parent: object = None
    allowed: Bool[Tensor, "#windows #heads q k"] | None = None
    first_head: int = 0
    attended: Float[Tensor, "batch seq dim"] | None = None


@runtime_checkable
class Reducer(Protocol):
    """Turns observations into rows, streamed: function and accumulator, in torchmetrics' words.

    ``update`` sees every observation of a probed forward pass and keeps what it needs (sums, counts), ``compute`` returns the
    rows of what was seen since the last ``reset`` (with theory, quantity, value, layer, head, null; the probe adds model and
    step), ``merge`` adds another reducer's state, so that batches and processes can be combined. The probe calls ``reset`` once before
    each reading and never after one, so the state of the last reading can be merged. A reducer may also be :class:`Selective`,
    :class:`Pictured` or :class:`Remembering`.
    """

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None: ...
    def compute(self) -> Sequence[Row]: ...
    def reset(self) -> None: ...
    def merge(self, other: Any) -> None: ...  # another of its own kind (beartype refuses Self here)


@runtime_checkable
class Selective(Protocol):
    """A reducer that says which kinds of observation it reads: it is handed no others, and attention that nobody reads is not recomputed.

    Attributes:
        kinds: some of :data:`KINDS`.
    """

    kinds: tuple[str, ...]


@runtime_checkable
class Pictured(Protocol):
    """A reducer that also has named arrays of the reading, from which pictures are drawn."""

    def arrays(self) -> dict[str, np.ndarray]: ...


@runtime_checkable
class Remembering(Protocol):
    """A reducer that looks back at earlier readings: what it carries over a ``reset``, as tensors, so that it can be stored."""

    def memory(self) -> dict[Any, Tensor]: ...
    def remember(self, memory: dict[Any, Tensor]) -> None: ...
