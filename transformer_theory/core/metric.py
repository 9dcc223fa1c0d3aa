"""Metrics: quantities measured in any network, accumulated over batches. Their input is :class:`Activations`.

A metric follows torchmetrics' pattern: ``update`` accumulates sums and counts from one module of one forward
pass, ``compute`` returns the measurements since the last ``reset``, and ``merge`` adds another metric's
state, so that batches and processes can be combined. A metric is passive: ``update`` draws no random numbers
and changes nothing in the model.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .measurement import Measurement, Null, Side, Unit
from .sources import Source
from .statistics import RANGE_DRAWS

ActivationKind = Literal["attention", "features", "outputs"]
T = TypeVar("T")


@dataclass(frozen=True)
class Activations:
    """Inputs, outputs and attention of one module in one forward pass (detached, on the model's device).

    A forward pass records the attention of a block before the block itself, and the outputs last.

    Attributes:
        name: qualified name of the module, e.g. ``"blocks.1.attention"``.
        layer: number of the block in the order of execution, from 0. A block of a list in which no attention
            was seen counts as well.
        kind: "attention" for a module that computes attention, "features" for a block of the network,
            "outputs" for the whole network.
        tokens: ``[batch, seq, dim]``. Of a block, the residual stream before its first attention. Of an
            attention, the input of its projections, on which ``bilinear`` acts (a module may normalise its
            own input first); its own input if they are unknown.
        output: output of the module, ``[batch, seq, dim]``; of a block, the residual stream at its end,
            whether a module returns it or not.
        query, key, value: ``[batch, heads, seq, head_dim]`` (attention only). A module that cuts sequences
            into windows has ``[windows, heads, seq, head_dim]``; the same holds for the weights.
        weights: attention weights before dropout, ``[batch, heads, queries, keys]``; rows sum to one
            (attention only). In a model with sinks (learnt scores without a token) the sink is the last key,
            and its value is zero.
        bilinear: for each head the matrix W with score(key token x, query token z) = x^T W z, scale included
            and biases of W_Q and W_K omitted, ``[heads, dim, dim]``; None if it is unknown.
        module: the module itself, for its parameters; the list, if the block is a plain list of modules.
        mask: True for the keys that a query may attend to, broadcastable to the weights; None if all are
            allowed (attention only).
        first_head: number of heads in earlier attentions of the same block: 0 unless a block attends more
            than once (attention only).
        after_attention: the residual stream of a block after its first attention has been added, before any
            norm, ``[batch, seq, dim]`` (features only); None if no such addition was found.
        labels: class of each sequence, ``[batch]``; None if they are unknown.
        outputs: the logits of the network (outputs only).
        targets: what the outputs are compared with, ``[batch, ...]``, if the caller gave them (outputs only).
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
    targets: Tensor | None = None
    _shared: dict[tuple, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def shared(self, function: Callable[..., T], *arguments: Hashable) -> T:
        """Returns ``function(self, *arguments)``, which is computed once for all metrics. They must not
        change the result.
        """
        key = (function, *arguments)
        if key not in self._shared:
            self._shared[key] = function(self, *arguments)
        return self._shared[key]


Place = tuple[int, ...]
"""Key of a sum: ``(layer,)``, or ``(layer, first head)`` for one attention module."""


class Metric:
    """Base class of metrics. The state is one sum of tensors per place.

    A subclass defines :meth:`update`, which calls :meth:`add`, and :meth:`compute`, which returns
    measurements with theory, kind, quantity, value, layer, head and null; the caller adds model, data, step
    and seed. A subclass with other state overrides the other methods too.

    Attributes:
        kinds: kinds of activations that the metric receives. Attention that no metric needs is not computed.
        null_source: "own" if the metric draws its null itself; "untrained" if the caller draws it, by
            applying the same metric to untrained networks.
        sums: accumulated tensors by place.
        draws: largest number of null draws that :meth:`compute` will be asked for after the next
            :meth:`reset`. Metrics that compute nulls in :meth:`update` skip the rest. The probe sets it.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention", "features")
    null_source: ClassVar[Literal["own", "untrained"]] = "own"
    draws: int = RANGE_DRAWS

    def __init__(self):
        self.sums: dict[Place, Tensor] = {}
        self.reset()

    def update(self, activations: Activations) -> None:
        """Accumulates the activations of one module in one forward pass."""
        raise NotImplementedError(f"{type(self).__name__} must define update()")

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns the measurements since the last :meth:`reset`.

        Args:
            draws: number of null draws; 0: no null. A metric whose draws are expensive takes at most
                :data:`~.statistics.RANGE_DRAWS`.
            generator: random generator of the null draws. None: :func:`~.statistics.fixed_generator`, so that
                seeds and layers share the draws.
        """
        raise NotImplementedError(f"{type(self).__name__} must define compute()")

    def reset(self) -> None:
        """Starts a new measurement."""
        self.sums = {}

    def merge(self, other: Any) -> None:
        """Adds the state of another metric of the same class, which has accumulated other batches of the same
        measurement.
        """
        for place, sums in other.sums.items():
            self.add(place, sums)

    def add(self, place: Place, sums: Tensor) -> None:
        """Adds a tensor to the sum of a place, on the device of that sum."""
        self.sums[place] = self.sums[place] + sums.to(self.sums[place].device) if place in self.sums else sums

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the sums under names such as ``"3.0"`` (layer 3, first head 0)."""
        return {".".join(map(str, place)): sums for place, sums in self.sums.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the sums from :meth:`state_dict`."""
        self.sums = {tuple(int(part) for part in place.split(".")): sums for place, sums in state.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns named arrays for figures; most metrics have none."""
        return {}

    def persistent_state(self) -> dict[Any, Tensor]:
        """Returns the state that survives a :meth:`reset`, for comparison with earlier measurements; most
        metrics have none.
        """
        return {}

    def load_persistent_state(self, state: dict[Any, Tensor]) -> None:
        """Restores a :meth:`persistent_state`."""


@dataclass(frozen=True)
class HeadValue:
    """What :class:`PerHead` measured in one head.

    Attributes:
        value: the number; None if there is none.
        reason: cause of a missing value.
        n: number of samples behind it.
        draws: the number in each draw of the null; empty: no null.
    """

    value: float | None
    reason: str = ""
    n: int | None = None
    draws: tuple[float, ...] = ()


class PerHead(Metric):
    """Base class of metrics with one number per head, from sums over sequences.

    A subclass defines the attributes of its rows, :meth:`statistics`, which are added over batches, and
    :meth:`value`.

    Attributes:
        theory, quantity, unit, side, predicted, source: columns of the rows.
        null_kind: kind of the null, if the metric draws it.
        sums: by layer, first head and shape: the statistics of each head, ``[heads, *shape]``. Sequences of
            different lengths may have statistics of different shapes, which are kept apart.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    theory: ClassVar[str]
    quantity: ClassVar[str]
    unit: ClassVar[Unit] = ""
    side: ClassVar[Side | None] = None
    predicted: ClassVar[float | None] = None
    source: ClassVar[Source]
    null_kind: ClassVar[str] = ""

    def statistics(self, activations: Activations) -> Float[Tensor, "heads *shape"] | None:
        """Returns the statistics of one module in one forward pass; None if it cannot be measured."""
        raise NotImplementedError(f"{type(self).__name__} must define statistics()")

    def value(self, *sums: Float[Tensor, "*shape"], draws: int) -> HeadValue:
        """Returns the number of one head from its sums, one for each shape, with up to ``draws`` draws of the
        null.
        """
        raise NotImplementedError(f"{type(self).__name__} must define value()")

    def update(self, activations: Activations) -> None:
        """Adds the statistics of one module; modules that cannot be measured are skipped."""
        if (sums := self.statistics(activations)) is not None:
            place = (activations.layer, activations.first_head, *sums.shape[1:])
            self.add(place, sums.double().cpu())

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns one row per layer and head; ``generator`` is not used."""
        heads: dict[tuple[int, int], list[Tensor]] = {}
        for (layer, first, *_), sums in sorted(self.sums.items(), key=lambda item: item[0]):
            for head, part in enumerate(sums, start=first):
                heads.setdefault((layer, head), []).append(part)
        return [
            self._row(self.value(*sums, draws=draws), layer, head) for (layer, head), sums in heads.items()
        ]

    def _row(self, found: HeadValue, layer: int, head: int) -> Measurement:
        return Measurement(
            self.theory,
            "in network",
            self.quantity,
            found.value,
            unit=self.unit,
            predicted=self.predicted,
            nulls=(Null(self.null_kind, found.draws),) if found.draws else (),
            side=self.side,
            reason=found.reason,
            n=found.n,
            source=self.source,
            layer=layer,
            head=head,
        )
