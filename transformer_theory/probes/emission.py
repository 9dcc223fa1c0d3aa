"""Activations of a forward pass on their way to the metrics: shapes, labels, a choice of sequences, and what is computed only if read."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core.metric import Activations
from .attention_calls import AttentionCall
from .explicit import ExplicitCall
from .projections import Arrangement, Projection

Call = AttentionCall | ExplicitCall


class LazyActivations(Activations):
    """Activations whose weights and bilinear form are computed when a metric reads them for the first time."""

    def postpone(self, **makers: Callable[[], Tensor | None]) -> None:
        """Sets fields to functions that make their values."""
        object.__setattr__(self, "_makers", makers)

    def __getattribute__(self, name: str) -> Any:
        if name in ("weights", "bilinear"):
            makers = object.__getattribute__(self, "__dict__").get("_makers", {})
            if (make := makers.pop(name, None)) is not None:
                with torch.no_grad():
                    object.__setattr__(self, name, make())
        return object.__getattribute__(self, name)

    def finish(self) -> None:
        """Computes what no metric has read."""
        for name in list(self.__dict__.get("_makers", {})):
            getattr(self, name)


@dataclass
class Emitter:
    """Passes activations to the metrics.

    Attributes:
        emit: is called with each activations.
        labels: of the sequences of the pass, ``[batch]``.
        targets: of the outputs of the pass, ``[batch, ...]``.
        max_samples: limit on the sequences of the activations, evenly spaced over the batch; all if None.
        has_bilinear: whether the bilinear form of an attention was known so far.
    """

    emit: Callable[[Activations], None]
    labels: Int[Tensor, " batch"] | None
    max_samples: int | None
    has_bilinear: bool = False
    targets: Tensor | None = None

    def attention(
        self,
        call: Call,
        projection: Projection | None,
        declared: Float[Tensor, "heads dim dim"] | None,
        tokens: Float[Tensor, "batch seq dim"] | None,
        output: Float[Tensor, "batch seq dim"] | None,
        **place: Any,
    ) -> None:
        """Attention of one module.

        Args:
            call: with all sequences; of several calls with the same keys, joined.
            projection: where queries and keys came from, if that is known.
            declared: W, if the module states it.
            tokens, output: input and output of the module.
            place: name, layer, module and first head.
        """
        call = replace(call, query=call.query.detach(), key=call.key.detach(), value=call.value.detach())
        scale, biased = call.scale, call.biased
        found = projection if declared is None and projection is not None and projection.own and scale is not None and not biased else None
        sequences = None if found is None else found.sequences()
        if sequences is not None and found is not None and found.agrees(call.query, call.key):
            tokens = sequences  # W acts on the projections' input, which a module may have normalised first
        else:
            found = None
        self.has_bilinear |= declared is not None or found is not None
        labels = self.labels_of(call.query if tokens is None else tokens)
        call, tokens, output = self.some(call), self.some(tokens), self.some(output)
        if tokens is None or output is None:  # a module that has no stream of vectors shows its values
            values = call.value.transpose(1, 2).flatten(2)
            tokens, output = values if tokens is None else tokens, values if output is None else output
        activations = LazyActivations(
            kind="attention",
            tokens=tokens,
            output=output,
            query=call.query,
            key=call.key,
            value=call.value,
            bilinear=declared,
            mask=call.allowed,
            labels=labels,
            **place,
        )
        makers: dict[str, Callable[[], Tensor | None]] = {"weights": lambda: call.weights().detach()}
        if found is not None and scale is not None:
            makers["bilinear"] = lambda: found.bilinear(scale)
        activations.postpone(**makers)
        reference = weakref.ref(activations)
        self.emit(activations)
        del activations
        if (kept := reference()) is not None:  # a metric keeps it, and reads it when the model has changed
            kept.finish()

    def features(
        self,
        before: Float[Tensor, "batch seq dim"],
        after_attention: Float[Tensor, "batch seq dim"] | None,
        output: Float[Tensor, "batch seq dim"],
        **place: Any,
    ) -> None:
        """The residual stream around one block; the tensors are copies, which the model does not change."""
        labels = self.labels_of(before)
        before, output, after_attention = self.some(before), self.some(output), self.some(after_attention)
        self.emit(Activations(kind="features", tokens=before, output=output, after_attention=after_attention, labels=labels, **place))

    def outputs(self, inputs: Tensor | None, logits: Tensor, layer: int, module: nn.Module) -> None:
        """The logits of the network."""
        logits, stream = logits.detach(), as_stream(inputs)
        labels, logits, targets = self.labels_of(logits), self.some(logits), self.some(self.targets)
        rows = logits.reshape(len(logits), -1, logits.shape[-1])
        tokens = rows if stream is None else self.some(stream)
        compared = {"outputs": logits.clone(), "targets": None if targets is None else targets.to(logits.device)}
        self.emit(Activations("", layer, "outputs", tokens, rows, module=module, labels=labels, **compared))

    def labels_of(self, stream: Tensor) -> Tensor | None:
        """Labels of the sequences that are emitted, on their device; None for windows, which have no labels."""
        if self.labels is None or len(self.labels) != len(stream):
            return None
        return self.some(self.labels.to(stream.device))

    def some(self, data: Any) -> Any:
        """At most ``max_samples`` sequences of a stream [batch, ...] or of a call, evenly spaced; None stays None."""
        if data is None or self.max_samples is None:
            return data
        call = not isinstance(data, Tensor)
        length = len(data.query if call else data)
        if length <= self.max_samples:
            return data
        device = data.query.device if call else data.device
        chosen = torch.linspace(0, length - 1, self.max_samples).round().long().to(device)
        if not call:
            return data[chosen]
        return _changed(data, lambda x: x[chosen] if len(x) == length else x)


def arranged(call: Call, at: Arrangement) -> Call:
    """A call with leading axes ``[sequences, heads]``, from one whose leading entries have another order."""
    lead = call.query.shape[:-2]
    if (at.in_order and lead == at.shape) or lead.numel() != len(at.order):
        return call

    def moved(x: Tensor) -> Tensor:
        rows = x.expand(*lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:])
        return (rows if at.in_order else rows[at.order.to(rows.device)]).unflatten(0, at.shape)

    return _changed(call, moved)


def joined(calls: Sequence[Call]) -> Call:
    """One call from several with the same keys, whose queries are pieces of one sequence."""
    first = calls[0]
    if len(calls) == 1:
        return first
    parts: dict[str, Tensor | None] = {"query": torch.cat([call.query for call in calls], -2)}
    for name, blank in (("softmax", 0.0), ("bias", 0.0), ("allowed", True)):
        pieces = [getattr(call, name, None) for call in calls]
        if any(piece is not None for piece in pieces):
            parts[name] = torch.cat([_whole(piece, call, blank) for piece, call in zip(pieces, calls)], -2)
    return replace(first, **parts)


def _whole(piece: Tensor | None, call: Call, blank: float | bool) -> Tensor:
    """A mask or bias of one call as ``[batch, heads, q, k]``; what nothing changes if there is none."""
    shape = (*call.query.shape[:-1], call.key.shape[-2])
    if piece is None:
        return torch.full(shape, blank, device=call.query.device)
    return piece.expand(shape)


def _changed(call: Call, change: Callable[[Tensor], Tensor]) -> Call:
    """A call with each of its tensors changed."""
    parts = {part.name: getattr(call, part.name) for part in fields(call)}
    return replace(call, **{name: change(x) for name, x in parts.items() if isinstance(x, Tensor)})


def as_stream(tensor: Tensor | None, *, time_first: bool = False) -> Tensor | None:
    """A tensor as [batch, seq, dim]; None if it is no stream of vectors."""
    if tensor is None or not tensor.is_floating_point() or tensor.ndim < 2:
        return None
    tensor = tensor.detach()
    if tensor.ndim == 2:
        return tensor[None]
    return tensor.transpose(0, 1) if time_first and tensor.ndim == 3 else tensor.flatten(1, -2)
