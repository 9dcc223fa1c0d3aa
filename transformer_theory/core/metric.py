"""Metrics: what a theory measures in any network, streamed over batches; and what it is given, :class:`Activations`.

Function and accumulator, in torchmetrics' pattern: ``update`` adds what it needs of one module of one forward pass (sums, counts),
``compute`` returns measurements of all that was seen since the last ``reset``, ``merge`` adds another metric's state, so that batches and
processes can be combined. A metric is passive: it draws no random numbers in ``update`` and changes nothing in the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .measurement import Measurement

ActivationKind = Literal["attention", "features", "outputs"]


@dataclass(frozen=True)
class Activations:
    """What one module did in one forward pass (detached, on the model's device).

    ``kind`` is "attention" for a module in which attention was computed, "features" for a block of the network, "outputs" for the network
    as a whole. In a forward pass the attention of a block comes before the block itself, the outputs come last.

    Attributes:
        name: qualified name of the module, e.g. ``"blocks.1.attention"``.
        layer: number of the block in the order of execution, from 0.
        kind: see above.
        tokens: what the module was given, ``[batch, seq, dim]``.
        output: what it returned, ``[batch, seq, dim]``.
        query, key, value: ``[batch, heads, seq, head_dim]`` (attention only); a module that cuts sequences into windows itself has
            ``[windows, heads, seq, head_dim]``, weights alike.
        weights: attention weights, ``[batch, heads, queries, keys]``, rows sum to one (attention only; before dropout).
        bilinear: per head the matrix W with score(key token x, query token z) = x^T W z (scale included), ``[heads, dim, dim]``, if it
            is known (biases of W_Q and W_K are left out).
        module: the module itself, for its parameters.
        mask: which keys each query may see, broadcastable to the weights; None if all (attention only).
        first_head: heads of the same block seen before in this pass: 0 unless a block attends more than once (attention only).
        after_attention: the residual stream of a block after its attention step, before its MLP, ``[batch, seq, dim]`` (features only).
        labels: class of each sequence, ``[batch]``, if they are known.
        outputs: the logits of the network (outputs only).
    """

    name: str
    layer: int
    kind: ActivationKind
    tokens: Float[Tensor, "batch seq dim"]
    output: Tensor
    query: Float[Tensor, "windows heads q head_dim"] | None = None
    key: Float[Tensor, "windows heads k head_dim"] | None = None
    value: Float[Tensor, "windows heads k value_dim"] | None = None
    weights: Float[Tensor, "windows heads q k"] | None = None
    bilinear: Float[Tensor, "heads dim dim"] | None = None
    module: object = None
    mask: Bool[Tensor, "#windows #heads q k"] | None = None
    first_head: int = 0
    after_attention: Float[Tensor, "batch seq dim"] | None = None
    labels: Int[Tensor, " batch"] | None = None
    outputs: Tensor | None = None


Place = tuple[int, ...]
"""Where a sum belongs: ``(layer,)``, or ``(layer, first head)`` for a tensor of one attention."""


class Metric:
    """Base of all metrics: sums of tensors by place, which most of them need and nothing else.

    A subclass writes :meth:`update`, which calls :meth:`add`, and :meth:`compute`, which returns measurements with theory, kind, quantity,
    value, layer, head and null; whoever runs it adds model, data, step and seed. State beyond the sums overrides the other methods.

    Attributes:
        kinds: which activations it is given; attention that no metric needs is not recomputed.
        null_source: who makes the null: the metric itself ("own"), or its caller, by the same metric in untrained networks ("untrained").
        sums: accumulated tensors by place.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention", "features")
    null_source: ClassVar[Literal["own", "untrained"]] = "own"

    def __init__(self):
        self.sums: dict[Place, Tensor] = {}
        self.reset()

    def update(self, activations: Activations) -> None:
        """Adds what one module did in one forward pass."""
        raise NotImplementedError(f"{type(self).__name__} must define update()")

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Measurements of what was seen since the last :meth:`reset`.

        Args:
            draws: number of null draws that the metric is asked for; 0 leaves it to the metric.
            generator: of these draws.
        """
        raise NotImplementedError(f"{type(self).__name__} must define compute()")

    def reset(self) -> None:
        """Starts a new measurement."""
        self.sums = {}

    def merge(self, other: Any) -> None:
        """Adds the state of another metric of the same class, of the same measurement."""
        for place, sums in other.sums.items():
            self.add(place, sums)

    def add(self, place: Place, sums: Tensor) -> None:
        """Adds a tensor to the sums of a place, on the device where they are."""
        self.sums[place] = self.sums[place] + sums.to(self.sums[place].device) if place in self.sums else sums

    def state_dict(self) -> dict[str, Tensor]:
        """The sums under names such as ``"3.0"`` (layer 3, first head 0)."""
        return {".".join(map(str, place)): sums for place, sums in self.sums.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of :meth:`state_dict`."""
        self.sums = {tuple(int(part) for part in place.split(".")): sums for place, sums in state.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """Named arrays from which pictures are drawn; none for most metrics."""
        return {}

    def memory(self) -> dict[Any, Tensor]:
        """What outlives a :meth:`reset`: state that compares with earlier measurements; nothing for most metrics."""
        return {}

    def remember(self, memory: dict[Any, Tensor]) -> None:
        """Restores a :meth:`memory`."""
