"""Metrics: quantities measured in any network, accumulated over batches. Their input is :class:`Activations`.

A metric follows torchmetrics' pattern: ``update`` accumulates sums and counts from one module of one forward
pass, ``compute`` returns the measurements since the last ``reset``, and ``merge`` adds another metric's
state, so that batches and processes can be combined. A metric is passive: ``update`` draws no random numbers
and changes nothing in the model.

Most metrics are a :class:`PerModule`, which has the loops over modules and batches, or a :class:`PerHead`.
"""

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
NO_IMAGES = "the inputs are no images, so that tokens have no places on a grid"
WORDS = "the tokens are words, which have no places on a grid"
NOT_READ = "it is not known which tokens the outputs are computed from"


@dataclass(frozen=True)
class Grid:
    """Places of the tokens on a grid of patches.

    Attributes:
        rows, columns: size of the grid.
        places: ``row * columns + column`` of each token, -1 for a token without a place (class token,
            padding), ``[batch, seq]``.
    """

    rows: int
    columns: int
    places: Int[Tensor, "batch seq"]


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
        key_map, query_map: projections of the keys and of the queries of each head, the latter times the
            scale of the scores, so that W is ``key_map.mT @ query_map``, ``[heads, head_dim, dim]``. None: W
            is unknown, or the module declares it as one matrix.
        module: the module itself, for its parameters; the list, if the block is a plain list of modules.
        mask: True for the keys that a query may attend to, broadcastable to the weights; None if all are
            allowed (attention only).
        first_head: number of heads in earlier attentions of the same block: 0 unless a block attends more
            than once (attention only).
        after_attention: the residual stream of a block after its first attention has been added, before any
            norm, ``[batch, seq, dim]`` (features only); None if no such addition was found.
        labels: class of each sequence, int64 ``[batch]``; -1 for a sequence without label, which whatever
            needs labels leaves out. None if no sequence has one.
        outputs: the logits of the network (outputs only).
        targets: what the outputs are compared with, ``[batch, ...]``, if the caller gave them (outputs only).
        real: True for real tokens, False for padding, ``[batch, seq]``; None if all tokens are real. Padding
            follows the real tokens of its sequence, whatever the network was given, and holds zeros, in
            queries and weights too. A row of the batch that holds several packed sequences is divided into
            them; a row without a real token is left out.
        real_keys: the same for the keys, ``[windows, keys]`` (attention only).
        content: True for real tokens that carry contents: no class, register, separator or
            beginning-of-sequence tokens, ``[batch, seq]``; None if all real tokens do.
        read: True for the tokens of which the outputs of the network are a function, if they are computed
            from some tokens of each sequence, ``[batch, seq]``; None if there are outputs at every token, or
            it is not known.
        reading: which tokens these are, in words; the reason, if ``read`` is None.
        grid: grid of the patches of an image; the reason in words, if there is none.
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
    key_map: Float[Tensor, "heads head_dim dim"] | None = None
    query_map: Float[Tensor, "heads head_dim dim"] | None = None
    module: object = None
    mask: Bool[Tensor, "#windows #heads #q k"] | None = None
    first_head: int = 0
    after_attention: Float[Tensor, "batch seq dim"] | None = None
    labels: Int[Tensor, " batch"] | None = None
    outputs: Tensor | None = None
    targets: Tensor | None = None
    real: Bool[Tensor, "batch seq"] | None = None
    real_keys: Bool[Tensor, "windows k"] | None = None
    content: Bool[Tensor, "batch seq"] | None = None
    read: Bool[Tensor, "batch seq"] | None = None
    reading: str = NOT_READ
    grid: "Grid | str" = NO_IMAGES
    _shared: dict[tuple, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def shared(self, function: Callable[..., T], *arguments: Hashable) -> T:
        """Returns ``function(self, *arguments)``, which is computed once for all metrics. They must not
        change the result.
        """
        key = (function, *arguments)
        if key not in self._shared:
            self._shared[key] = function(self, *arguments)
        return self._shared[key]

    def by_length(self) -> tuple["Activations", ...]:
        """Returns the sequences in groups of equal length, without padding; ``(self,)`` if there is none."""
        windows = self.query is not None and len(self.query) != len(self.tokens)
        if (self.real is None and self.real_keys is None) or windows:
            return (self,)
        return self.shared(_by_length)

    @property
    def has_bilinear(self) -> bool:
        """Whether W is known; this does not compute it."""
        return self.query_map is not None or self.bilinear is not None

    @property
    def tokens_read(self) -> Bool[Tensor, "batch seq"] | None:
        """True for the tokens that stand for a sequence: those that are read, or else those with contents;
        None if these are all.
        """
        if self.read is not None:
            return self.read
        return self.real if self.content is None else self.content


class LazyActivations(Activations):
    """Activations whose weights and bilinear form are computed when they are read for the first time."""

    def postpone(self, **makers: Callable[[], Tensor | None]) -> None:
        """Defers fields: the first access calls the function of the field."""
        # The dataclass is frozen, so its attributes are set through ``object``.
        object.__setattr__(self, "_makers", makers)

    def __getattribute__(self, name: str) -> Any:
        if name in ("weights", "bilinear"):
            makers = object.__getattribute__(self, "__dict__").get("_makers", {})
            if (make := makers.pop(name, None)) is not None:
                with torch.no_grad():
                    object.__setattr__(self, name, make())
        return object.__getattribute__(self, name)

    def finish(self) -> None:
        """Computes the deferred fields that have not been read."""
        for name in list(self.__dict__.get("_makers", {})):
            getattr(self, name)


def _by_length(activations: Activations) -> tuple[Activations, ...]:
    """Returns the groups of :meth:`Activations.by_length`."""
    real, keys = activations.real, activations.real_keys
    n, T = activations.tokens.shape[:2]
    lengths = [torch.full((n,), T) if real is None else real.sum(1).cpu()]
    if activations.key is not None:
        k = activations.key.shape[2]
        lengths.append(torch.full((n,), k) if keys is None else keys.sum(1).cpu())
    sizes, group = torch.unique(torch.stack(lengths, 1), dim=0, return_inverse=True)
    return tuple(
        _part(activations, (group == number).nonzero().squeeze(1).to(activations.tokens.device), *size)
        for number, size in enumerate(sizes.tolist())
    )


def _part(activations: Activations, rows: Int[Tensor, " n"], T: int, k: int | None = None) -> Activations:
    """Returns some sequences, of T real tokens and k real keys."""

    def some(x: Tensor | None, *lengths: int | None) -> Tensor | None:
        if x is None:
            return None
        return x[rows][(slice(None), *(slice(length) for length in lengths))]

    def mask_of(x: Tensor | None, *lengths: int | None) -> Tensor | None:
        part = some(x, *lengths) if x is None or len(x) > 1 else x[(..., *map(slice, lengths[-2:]))]
        return None if part is None or bool(part.all()) else part

    grid, q = activations.grid, None if activations.query is None else min(T, activations.query.shape[2])
    part = LazyActivations(
        activations.name,
        activations.layer,
        activations.kind,
        activations.tokens[rows, :T],
        activations.output[rows, :T],
        query=some(activations.query, None, q),
        key=some(activations.key, None, k),
        value=some(activations.value, None, k),
        key_map=activations.key_map,
        query_map=activations.query_map,
        module=activations.module,
        mask=mask_of(activations.mask, None, q, k),
        first_head=activations.first_head,
        after_attention=some(activations.after_attention, T),
        labels=some(activations.labels),
        content=mask_of(activations.content, T),
        read=some(activations.read, T),
        reading=activations.reading,
        grid=grid if isinstance(grid, str) else replace(grid, places=grid.places[rows, :T]),
    )
    if activations.kind == "attention":
        part.postpone(
            weights=lambda: some(activations.weights, None, q, k), bilinear=lambda: activations.bilinear
        )
    return part


Place = tuple[int, ...]
"""Key of a sum: ``(layer,)``, or ``(layer, first head)`` for one attention module."""
SHARED: Place = (-1,)
"""First entry of the places of what the modules of a :class:`PerModule` share; these have no rows."""
ALL = sys.maxsize
"""For :attr:`Metric.keeps`: all samples."""


class Metric:
    """Base class of metrics. The state is one tensor per place: a sum, or samples.

    A subclass defines :meth:`update`, which calls :meth:`add`, and :meth:`compute`, which returns
    measurements with theory, kind, quantity, value, layer, head and null; the caller adds model, data, step
    and seed. A subclass with other state overrides the other methods too.

    Attributes:
        kinds: kinds of activations that the metric receives. Attention that no metric needs is not computed.
        null_source: "own" if the metric draws its null itself; "networks" if the caller draws it, by
            applying the same metric to randomised networks.
        keeps: number of samples that are kept per place: tensors of a place are appended, up to this number.
            0: they are added.
        sums: accumulated tensors by place.
        draws: largest number of null draws that :meth:`compute` will be asked for after the next
            :meth:`reset`. Metrics that compute nulls in :meth:`update` skip the rest. The probe sets it.
        pads: whether tensors of a place are padded with zeros, behind each axis, to a common shape before
            they are added: positions of sequences of different lengths count from the start.
        takes_padding: whether :meth:`update` receives padded batches with :attr:`Activations.real`, because
            the metric compares sequences with each other. False: it receives them without padding, in groups
            of equal length.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention", "features")
    null_source: ClassVar[Literal["own", "networks"]] = "own"
    keeps: ClassVar[int] = 0
    pads: ClassVar[bool] = False
    takes_padding: ClassVar[bool] = False
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
        """Adds a tensor to the sum of a place, or appends its samples, on the device of what is there."""
        if (stored := self.sums.get(place)) is not None:
            sums = sums.to(stored.device)
            stored, sums = _same_shape(stored, sums) if self.pads else (stored, sums)
            sums = torch.cat([stored, sums]) if self.keeps else stored + sums
        self.sums[place] = sums[: self.keeps] if self.keeps else sums

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the sums under names such as ``"3.0"`` (layer 3, first head 0)."""
        return {".".join(map(str, place)): sums for place, sums in self.sums.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the sums from :meth:`state_dict`."""
        self.sums = {
            tuple(int(part) for part in place.split(".") if part): sums for place, sums in state.items()
        }

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


def _same_shape(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Pads tensors with zeros behind each axis to a common shape."""
    shape = [max(sizes) for sizes in zip(*(x.shape for x in tensors))]

    def padded(x: Tensor) -> Tensor:
        missing = [(0, size - own) for size, own in zip(shape, x.shape)]
        return torch.nn.functional.pad(x, [number for pair in missing[::-1] for number in pair])

    return tuple(x if list(x.shape) == shape else padded(x) for x in tensors)


class PerModule(Metric):
    """Base class of metrics that have rows for each attention, for each block, or for the whole network.

    A subclass defines the attributes of its rows, :meth:`statistics`, which are added over batches or
    appended (:attr:`Metric.keeps`), and :meth:`rows`. A metric whose attention and blocks belong together,
    such as a displacement and the weights behind it, has no statistics of the one, and stores what it needs.

    Attributes:
        theory, quantity, unit, side, predicted, bounds, source: columns of the rows.
        null_kind: kind of the null, if the metric draws it.
        sums: by layer and first head; by ``()`` what comes from the outputs of the network.
    """

    theory: ClassVar[str]
    quantity: ClassVar[str]
    unit: ClassVar[Unit] = ""
    side: ClassVar[Side | None] = None
    predicted: ClassVar[float | None] = None
    bounds: ClassVar[tuple[float | None, float | None] | None] = None
    source: ClassVar[Source]
    null_kind: ClassVar[str] = ""

    def statistics(self, activations: Activations) -> Tensor | None:
        """Returns the statistics of one module in one forward pass; None if it cannot be measured."""
        raise NotImplementedError(f"{type(self).__name__} must define statistics()")

    def rows(
        self, place: Place, *sums: Tensor, draws: int, generator: torch.Generator | None
    ) -> Iterable[Measurement]:
        """Returns the rows of one module, made by :meth:`row` and :meth:`other_row`.

        Args:
            place: layer and first head.
            sums: what was accumulated at all places that begin with these two numbers, in their order.
            draws, generator: of the null, see :meth:`compute`.
        Returns:
            The rows without their layer; heads count from 0 in each module.
        """
        raise NotImplementedError(f"{type(self).__name__} must define rows()")

    def place(self, activations: Activations, statistics: Tensor) -> Place:
        """Returns the place of the statistics of a module."""
        return () if activations.kind == "outputs" else (activations.layer, activations.first_head)

    def update(self, activations: Activations) -> None:
        """Accumulates the statistics of one module; modules that cannot be measured are skipped."""
        found = self.statistics(activations) if activations.kind in self.kinds else None
        if found is not None:
            self.add(self.place(activations, found), found)

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns the rows of all modules. An error at a module becomes a row without value."""
        modules: dict[Place, list[Tensor]] = {}
        for place, sums in sorted(self.sums.items(), key=lambda item: item[0]):
            if place[:1] != SHARED:
                modules.setdefault(place[:2], []).append(sums)
        rows: list[Measurement] = []
        for place, sums in modules.items():
            try:
                found = list(self.rows(place, *sums, draws=draws, generator=generator))
            except NotImplementedError:
                raise
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                found = [Measurement("network", "network", type(self).__name__, None, reason=reason)]
            for row in found:
                if place:
                    head = None if row.head is None else row.head + place[1]
                    row = replace(row, layer=place[0], head=head)
                rows.append(row)
        return rows

    def row(self, value: float | None, **columns: Any) -> Measurement:
        """Returns a row of the metric's quantity, see :meth:`other_row`."""
        defaults = {name: getattr(self, name) for name in ("unit", "side", "predicted", "bounds")}
        return self.other_row(self.quantity, value, **{**defaults, **columns})

    def other_row(
        self,
        quantity: str,
        value: float | None,
        *,
        draws: Sequence[float] = (),
        reason: str = "",
        **columns: Any,
    ) -> Measurement:
        """Returns a row of another quantity that the metric measures beside its own.

        Args:
            quantity: its name.
            value: the number; None if there is none.
            draws: the number in each draw of the null; empty: no null.
            reason: cause of a missing value.
            columns: further columns of the row.
        """
        nulls = (Null(self.null_kind, tuple(draws)),) if len(draws) else ()
        reason = "" if value is not None else reason
        columns = {"source": self.source, "nulls": nulls, "reason": reason, **columns}
        return Measurement(self.theory, "in network", quantity, value, **columns)


class PerHead(PerModule):
    """Base class of metrics whose statistics and rows are those of each head, independent of the other heads.

    A subclass defines :meth:`rows_of_head` in place of :meth:`rows`.

    Attributes:
        sums: by layer, first head and shape: the statistics of each head, ``[heads, *shape]``. Sequences of
            different lengths may have statistics of different shapes, which are kept apart.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)

    def rows_of_head(self, *sums: Float[Tensor, "..."], draws: int) -> Iterable[Measurement]:
        """Returns the rows of one head from its sums, one for each shape, with up to ``draws`` draws of the
        null.
        """
        raise NotImplementedError(f"{type(self).__name__} must define rows_of_head()")

    def place(self, activations: Activations, statistics: Tensor) -> Place:
        """Returns layer, first head and, unless they are padded, shape."""
        shape = () if self.pads else statistics.shape[1:]
        return (*super().place(activations, statistics), *shape)

    def rows(
        self,
        place: Place,
        *sums: Float[Tensor, "heads ..."],
        draws: int,
        generator: torch.Generator | None,
    ) -> Iterable[Measurement]:
        """Returns the rows of each head; ``generator`` is not used."""
        heads = enumerate(zip(*sums))
        return [
            replace(row, head=head) for head, parts in heads for row in self.rows_of_head(*parts, draws=draws)
        ]
