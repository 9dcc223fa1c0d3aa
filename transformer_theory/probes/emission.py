"""Collects the activations of a forward pass, and passes them to the metrics at its end: unifies shapes, adds
labels and masks, limits the sequences, and defers computations.

Which tokens are real, and which of them the outputs are computed from, is known only at the end of the pass
(:mod:`.token_masks`, :mod:`.readout`).
"""

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core.metric import Activations, LazyActivations
from .attention_calls import AttentionCall
from .explicit import ExplicitCall
from .places import Codes
from .projections import BIASED, NOT_REPRODUCED, OTHER_TOKENS, SCALED, Arrangement, Projection
from .token_masks import Recorded

Call = AttentionCall | ExplicitCall


@dataclass
class Emitter:
    """Collects activations and passes them to the metrics.

    Attributes:
        emit: function that receives each :class:`.Activations`.
        labels: class of each sequence, ``[batch]``.
        max_samples: largest number of sequences that are emitted, evenly spaced over the batch. None: all
            sequences.
        has_bilinear: whether the bilinear form of any attention has been known.
        without_bilinear: the reasons why attentions have none.
        targets: targets of the outputs, ``[batch, ...]``.
        recorded: what was collected, in the order in which the modules ran.
    """

    emit: Callable[[Activations], None]
    labels: Int[Tensor, " batch"] | None
    max_samples: int | None
    has_bilinear: bool = False
    targets: Tensor | None = None
    recorded: deque[Recorded] = field(default_factory=deque)
    without_bilinear: dict[str, None] = field(default_factory=dict)

    def attention(
        self,
        call: Call,
        projection: Projection | str | None,
        declared: Mapping[str, Float[Tensor, "heads _ dim"]],
        tokens: Float[Tensor, "batch seq dim"] | None,
        output: Float[Tensor, "batch seq dim"] | None,
        *,
        own: bool | None,
        codes_of: Callable[[], Codes | None],
        **place: Any,
    ) -> None:
        """Records the attention of one module.

        Args:
            call: the attention of all sequences; several calls with the same keys are joined into one.
            projection: projections of tokens to queries and keys, or the reason why there are none; None if
                they were not sought, since the module declares W.
            declared: W that the module declares, or its two projections, by field of :class:`.Activations`.
            tokens, output: input and output of the module.
            own: whether queries and keys are those of the same tokens; None if unknown.
            codes_of: see :class:`.Recorded`.
            place: name, layer, module, first head, and list of the block (``sequences``).
        """
        call = replace(call, query=call.query.detach(), key=call.key.detach(), value=call.value.detach())
        scale = call.scale
        source = None if declared else _bilinear_source(call, projection)
        if isinstance(source, str):
            self.without_bilinear[source] = None
            source = None
        if source is not None:  # W acts on the input of the projections; a module may normalise its own input
            tokens = source.sequences()
        elif tokens is not None:  # The model may change its tensors in place before the end of the pass.
            tokens = tokens.clone()
        self.has_bilinear |= bool(declared) or source is not None
        scores = declared if source is None or scale is None else source.maps(scale)
        labels = self.labels_of(call.query if tokens is None else tokens)
        call, tokens, output = self.some(call), self.some(tokens), self.some(output)
        # a module without tokens [batch, seq, dim]: use the values instead
        if tokens is None or output is None:
            values = call.value.transpose(1, 2).flatten(2)
            tokens, output = values if tokens is None else tokens, values if output is None else output
        # functions that can be pickled, for a probe that measures in a second process
        makers: dict[str, Callable[[], Tensor | None]] = {"weights": partial(_weights, call)}
        if "query_map" in scores:
            makers["bilinear"] = partial(_bilinear, scores["key_map"], scores["query_map"])
        columns = {
            "kind": "attention",
            "tokens": tokens,
            "output": output.clone(),
            "query": call.query,
            "key": call.key,
            "value": call.value,
            **scores,
            "mask": call.allowed,
            "labels": labels,
            **place,
        }
        self._record(columns, makers, codes_of, own=own)

    def features(
        self,
        before: Float[Tensor, "batch seq dim"],
        after_attention: Float[Tensor, "batch seq dim"] | None,
        output: Float[Tensor, "batch seq dim"],
        *,
        codes_of: Callable[[], Codes | None] = lambda: None,
        **place: Any,
    ) -> None:
        """Records the residual stream before, inside and after one block. The tensors are copies, which the
        model does not change.
        """
        labels = self.labels_of(before)
        before, output, after_attention = self.some(before), self.some(output), self.some(after_attention)
        columns = {
            "kind": "features",
            "tokens": before,
            "output": output,
            "after_attention": after_attention,
            "labels": labels,
            **place,
        }
        self._record(columns, {}, codes_of)

    def _record(
        self,
        columns: dict[str, Any],
        makers: dict[str, Callable[[], Tensor | None]],
        codes_of: Callable[[], Codes | None],
        *,
        own: bool | None = True,
    ) -> None:
        def some_codes() -> Codes | None:
            codes = codes_of()
            return None if codes is None else replace(codes, values=self.some(codes.values))

        sequences = columns.pop("sequences")
        self.recorded.append(Recorded(sequences, columns, makers, some_codes, own))

    def outputs(self, inputs: Tensor | None, logits: Tensor, layer: int, module: nn.Module) -> None:
        """Emits the logits of the network."""
        logits, stream = logits.detach(), as_stream(inputs)
        labels, logits, targets = self.labels_of(logits), self.some(logits), self.some(self.targets)
        rows = logits.reshape(len(logits), -1, logits.shape[-1])
        tokens = rows if stream is None else self.some(stream)
        targets = None if targets is None else targets.to(logits.device)
        extra = {"outputs": logits.clone(), "targets": targets}
        self.emit(Activations("", layer, "outputs", tokens, rows, module=module, labels=labels, **extra))

    def finish(self, activations_of: Callable[[Recorded], Activations | None]) -> None:
        """Passes everything that was recorded to the metrics, in order; each record is freed afterwards."""
        while self.recorded:
            activations = activations_of(self.recorded.popleft())
            if activations is None:
                continue
            # If a metric stores the activations, it may read them after the model has changed: compute
            # deferred fields now.
            reference = weakref.ref(activations)
            self.emit(activations)
            activations._shared.clear()  # parts of the activations refer to them
            del activations
            stored = reference()
            if isinstance(stored, LazyActivations):
                stored.finish()

    def labels_of(self, stream: Tensor) -> Tensor | None:
        """Returns the labels of the emitted sequences, on their device; None if the number of sequences
        differs, as it does for windows.
        """
        if self.labels is None or len(self.labels) != len(stream):
            return None
        return self.some(self.labels.to(stream.device))

    def some(self, data: Any) -> Any:
        """Returns at most ``max_samples`` sequences of a tensor [batch, ...] or a call, evenly spaced; None
        for None.
        """
        if data is None or self.max_samples is None:
            return data
        is_call = not isinstance(data, Tensor)
        length = len(data.query if is_call else data)
        if length <= self.max_samples:
            return data
        device = data.query.device if is_call else data.device
        indices = torch.linspace(0, length - 1, self.max_samples).round().long().to(device)
        if not is_call:
            return data[indices]
        # Masks and biases may have a batch axis of length 1.
        return _map_tensors(data, lambda x: x[indices] if len(x) == length else x)


def _weights(call: Call) -> Tensor:
    return call.weights().detach()


def _bilinear(
    key_map: Float[Tensor, "heads p dim"], query_map: Float[Tensor, "heads p dim"]
) -> Float[Tensor, "heads dim dim"]:
    return key_map.mT @ query_map


def _bilinear_source(call: Call, projection: Projection | str | None) -> Projection | str:
    """Returns the projections that give W of a call, or the reason why there is none."""
    if not isinstance(projection, Projection):
        return BIASED if call.biased else projection or OTHER_TOKENS
    if not projection.own:
        return OTHER_TOKENS
    if call.biased or call.scale is None:
        return BIASED if call.biased else SCALED
    if projection.tokens is None or not projection.agrees(call.query, call.key):
        return NOT_REPRODUCED
    return projection


def arranged(call: Call, arrangement: Arrangement) -> Call:
    """Returns a call with its leading axes reordered to ``[sequences, heads]``; unchanged if they do not fit
    the arrangement.
    """
    lead = call.query.shape[:-2]
    if (arrangement.in_order and lead == arrangement.shape) or lead.numel() != len(arrangement.order):
        return call

    def reorder(x: Tensor) -> Tensor:
        entries = x.expand(*lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:])
        return (entries if arrangement.in_order else entries[arrangement.order.to(entries.device)]).unflatten(
            0, arrangement.shape
        )

    return _map_tensors(call, reorder)


def joined(calls: Sequence[Call]) -> Call:
    """Joins calls with the same keys, whose queries are consecutive pieces of one sequence, into one call."""
    first = calls[0]
    if len(calls) == 1:
        return first
    parts: dict[str, Tensor | None] = {"query": torch.cat([call.query for call in calls], -2)}
    for name, fill in (("softmax", 0.0), ("bias", 0.0), ("allowed", True)):
        pieces = [getattr(call, name, None) for call in calls]
        if any(piece is not None for piece in pieces):
            parts[name] = torch.cat(
                [_full_shape(piece, call, fill) for piece, call in zip(pieces, calls)], -2
            )
    return replace(first, **parts)


def _full_shape(piece: Tensor | None, call: Call, fill: float | bool) -> Tensor:
    """Expands weights, a mask or a bias of a call to ``[batch, heads, q, k]``; None becomes a tensor filled
    with ``fill``.
    """
    shape = (*call.query.shape[:-1], call.key.shape[-2])
    if piece is None:
        return torch.full(shape, fill, device=call.query.device)
    return piece.expand(shape)


def _map_tensors(call: Call, function: Callable[[Tensor], Tensor]) -> Call:
    """Applies a function to each tensor of a call."""
    parts = {part.name: getattr(call, part.name) for part in fields(call)}
    return replace(call, **{name: function(x) for name, x in parts.items() if isinstance(x, Tensor)})


def as_stream(tensor: Tensor | None, *, time_first: bool = False) -> Tensor | None:
    """Reshapes a tensor to [batch, seq, dim]; None if it cannot be a sequence of vectors.

    Args:
        tensor: ``[seq, dim]``, ``[batch, seq, dim]``, or with several axes between batch and dim, such as a
            grid of patches.
        time_first: whether a tensor with three axes is ``[seq, batch, dim]``.
    """
    if tensor is None or not tensor.is_floating_point() or tensor.ndim < 2:
        return None
    tensor = tensor.detach()
    if tensor.ndim == 2:
        return tensor[None]
    return tensor.transpose(0, 1) if time_first and tensor.ndim == 3 else tensor.flatten(1, -2)
