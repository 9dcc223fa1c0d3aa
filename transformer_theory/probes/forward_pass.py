"""Observation of one forward pass: the modules that run, their attention, and the residual stream around it.

A ``TorchFunctionMode`` passes every operation to :mod:`.flow`, which records from which tensors each tensor
was computed. The residual stream (:mod:`.streams`) and the projections of queries and keys
(:mod:`.projections`) are derived from this record. Attention is found in three ways: calls of torch's
attention functions (:mod:`.attention_calls`), attention written out as softmax(Q K^T) V (:mod:`.explicit`),
and calls of other kernels through the registry of ``transformers`` (:mod:`.registry`). Hooks maintain a stack
of the running modules; an attention belongs to the innermost module, and :mod:`.layers` assigns that module
to a block. Hooks and mode exist for one pass only. An error of the probe never reaches the model; the rest of
the pass then runs unobserved.
"""

import contextlib
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import multi_head_attention_forward
from torch.overrides import TorchFunctionMode

from ..core.metric import ActivationKind, Activations
from .attention_calls import CALLS, AttentionCall, declared_bilinear, operands_of
from .axes import DIVIDED, LOW_RANK, Axes, doubt
from .emission import Call, Emitter, arranged, as_stream, joined
from .evaluation import logits_of
from .explicit import FOLLOWED, NOWHERE, ExplicitCall, Softmaxes
from .flow import Flow, operation, tensors_in
from .layers import Attention, Block, Frame, Layers
from .modules import LISTS, Blocks, first_tensor, named
from .padding import zeros_at_padding
from .places import Codes, Places
from .projections import Arrangement, Operand, Projection, Projections
from .readout import NOT_FOLLOWED, Readout, tokens_read
from .redirect import aside, eager, in_this_thread
from .registry import RegistryCall, observed_registry
from .streams import Around, Streams
from .token_masks import AttentionMask, TokenMasks, given, mask_of

MAX_INPUTS = 64  # largest number of inputs of projections that are stored while a module runs


class NoAttention(ValueError):
    """The forward pass contained no attention that a probe can observe."""


class ForwardPass(TorchFunctionMode):
    """One observed forward pass.

    Args:
        model: the model that runs.
        emit: function that receives the activations of each module.
        layers: glob over the names of modules and blocks.
        labels: class of each sequence, ``[batch]``.
        max_samples: largest number of sequences that are emitted, evenly spaced over the batch. None: all
            sequences.
        kinds: kinds of activations to emit. Without "attention", attention only locates the blocks, and no
            weights are computed.
        cache: cache of :class:`.Projections`, shared by all passes.
        on_fault: function that receives an error of the probe itself, and the number and name of the layer
            if it concerns one layer alone.
        targets: targets of the outputs, ``[batch, ...]``.
        special_ids, grid: see :func:`.probe`.
    """

    def __init__(
        self,
        model: nn.Module,
        emit: Callable[[Activations], None],
        layers: str,
        labels: Int[Tensor, " batch"] | None = None,
        max_samples: int | None = None,
        *,
        kinds: Collection[ActivationKind] = ("attention", "features"),
        cache: dict | None = None,
        on_fault: Callable[..., None],
        targets: Tensor | None = None,
        special_ids: Collection[int] | None = None,
        grid: tuple[int, int] | None = None,
    ):
        super().__init__()
        self.attention, self.features, self.outputs = (
            "attention" in kinds,
            "features" in kinds,
            "outputs" in kinds,
        )
        self.model, self.glob, self.on_fault = model, layers, on_fault
        self.flow = Flow(with_steps=self.attention)
        self.places, self.readout = Places(self.flow, grid), Readout(self.flow)
        self.emitter = Emitter(emit, labels, max_samples, targets=targets)
        self.special_ids, self.declared_grid = special_ids, grid
        # attentions among the tokens by number: block, node of the output, numbers of sequences and tokens
        self.mixing: dict[int, tuple[Around, Block, int, tuple[int, int]]] = {}
        self.streams = Streams(self.flow)
        self.projections = Projections(self.flow, {} if cache is None else cache)
        self.axes = Axes(self.flow, self.projections.cache)
        # layer and module of each attention that is not measured, and the reason
        self.refused: dict[tuple[int, str], str] = {}
        self.softmaxes = Softmaxes(self.flow.known, self.flow.descends, with_weights=self.attention)
        self.modules = {module: name for name, module in named(model)}
        self.blocks = Blocks(self.modules)
        self.members = {
            f"{name}.{key}" if name else key
            for m, name in self.modules.items()
            if isinstance(m, LISTS)
            for key in m._modules
        }
        options = {"features": self.features, "attention": self.attention}
        parts = self.flow, self.streams, self.places, self.blocks, self.emitter
        self.layers = Layers(*parts, self._matching, **options)
        self.layers.on_fault = on_fault
        self.masks: list[AttentionMask] = []
        self.notes: list[str] = []  # about the sequences
        self.stack: list[Frame] = []
        self.ran: set[str] = set()
        self.attending: list[str] = []  # names of the modules in which attention ran
        self.matches = 0  # number of these modules that match the glob
        self.broken = False  # whether an error of the probe has ended the observation

    def run(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        """Calls the original method of the model, observes it, and returns its output."""
        handles = []
        enter, leave = in_this_thread(self._enter), in_this_thread(self._leave)
        try:
            for module in self.modules:
                if module is not self.model and _needs_hooks(module):
                    handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
                    handles.append(module.register_forward_hook(leave, with_kwargs=True))
            with (
                zeros_at_padding(self.modules, args, kwargs),
                eager(),
                observed_registry(self._around_registry),
                self,
            ):
                self.flow.set_arguments(tensors_in(args, kwargs))
                for x in tensors_in(args, kwargs):
                    self.places.given(x)
                self._enter(self.model, args, kwargs)
                output = original(*args, **kwargs)
                self._leave(self.model, args, kwargs, output)
            self._safely(self._end, args, kwargs, output)
            return output
        finally:
            for handle in handles:
                handle.remove()

    def _safely(self, action: Callable, *arguments: Any) -> Any:
        """Runs a part of the probe. An error ends the observation of this pass; the model continues."""
        if self.broken:
            return None
        try:
            with aside():
                return action(*arguments)
        except Exception as error:
            self.broken = True
            self.on_fault(error)
            return None

    def release(self) -> None:
        """Removes the references of the parts of the pass to each other and to it. Otherwise its tensors
        would live until Python looks for cycles.
        """
        self.flow.watcher = None
        vars(self.layers).clear()
        vars(self).clear()

    def check(self, name: str) -> None:
        """Checks that the pass contained what the metrics need.

        Raises:
            NoAttention: no attention ran, although a metric needs it or nothing else was observed (no similar
                modules, no outputs).
            ValueError: no module with attention matches the glob.
        """
        if self.broken:
            return
        if not self.attending:
            if self.attention or not (self.layers.unattended or self.outputs):
                raise NoAttention(
                    f"no attention was observed in {name}: probes observe calls of "
                    "torch.nn.functional.scaled_dot_product_attention and torch.nn.MultiheadAttention, "
                    "softmax(Q K^T) V written out with products of tensors, and the registry of "
                    f"transformers; {self.softmaxes.others} other softmaxes are not recognised as "
                    "attention; choose such an implementation of the model (transformers: "
                    "attn_implementation='sdpa' or 'eager')"
                )
        elif not self.matches:
            names = ", ".join(self.attending)
            raise ValueError(
                f"layers must match the name of a module with attention, got {self.glob!r}; there are: "
                f"{names}"
            )

    # operations

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.broken:
            return func(*args, **kwargs)
        op = operation(func)
        inputs = list(tensors_in(args, kwargs))
        in_place = op.in_place or kwargs.get("inplace") is True or "out" in kwargs
        # After an in-place operation the nodes and the values of its arguments are lost, so both are recorded
        # before it runs.
        old_stream = self._copy_of_stream(inputs) if in_place and op.name == "add" else None
        nodes = [self.flow.node(x) for x in inputs]
        output = func(*args, **kwargs)
        if isinstance(output, Tensor | tuple | list) or op.name == "setitem":
            try:
                self._record(op, in_place, func, args, kwargs, nodes, inputs, output, old_stream)
            except Exception as error:
                self.broken = True
                self.on_fault(error)
        return output

    def _copy_of_stream(self, inputs: list[Tensor]) -> Tensor | None:
        """Copies x before ``x += f``; None if the addition cannot be a residual addition."""
        if (
            not self.features
            or len(inputs) != 2
            or not self.streams.overwrites_stream([self.flow.node(x) for x in inputs])
        ):
            return None
        with aside():
            return inputs[0].detach().clone()

    def _record(self, op, in_place, func, args, kwargs, nodes, inputs, output, old_stream) -> None:
        """Records one operation: its outputs in the flow, attention, residual additions, and the inputs of
        projections.
        """
        self.flow.record(op, func, args, kwargs, nodes, inputs, output, in_place=in_place)
        name = op.name
        self.readout.record(name, func, args, kwargs, nodes, inputs, output, in_place=in_place)
        with aside(), contextlib.suppress(RuntimeError, IndexError):  # places stay unknown
            self.places.record(name, func, args, kwargs, nodes, inputs, output)
        if func in CALLS:
            out = first_tensor((output,), {})
            assert out is not None
            with aside():
                self._record_call(func, args, kwargs, out)
        elif name in FOLLOWED and self.softmaxes.concerns(name, inputs):
            if name == "add" and any(x in self.softmaxes.scores for x in inputs):
                name = ""  # a mask or a bias is added to scores: not a residual addition
            with aside():
                self.softmaxes.since = self.stack[-1].source
                call = self.softmaxes.record(func, args, kwargs, output)
                if call is not None:
                    self._record_explicit(call, output)
                if self.softmaxes.low_rank:
                    self.softmaxes.low_rank, self.stack[-1].refusal = False, LOW_RANK
        if name == "add" and self.features and self.streams.all:
            with aside():
                self.streams.added(inputs[0] if in_place else output, inputs, nodes, old_stream)
        if self.flow.with_steps and self.stack and isinstance(output, Tensor):
            node = self.flow.known(output)
            step = None if node is None else self.flow.steps.get(node)
            if node is not None and step is not None and step.weight is not None:
                self._keep_input(node)

    def _keep_input(self, node: int) -> None:
        """Stores the input of a projection while its module runs, since the projection may turn out to yield
        queries or keys.
        """
        stored = self.stack[-1].projections
        stored.append(node)
        if len(stored) > MAX_INPUTS:
            self.flow.steps[stored.pop(0)].tokens = None

    # attention

    def _record_call(self, func: Callable, args: tuple, kwargs: dict, output: Tensor) -> None:
        """Records a call of one of torch's attention functions."""
        frame = self.stack[-1]
        if isinstance(frame.module, nn.MultiheadAttention):
            operands = NOWHERE  # the matrices are attributes of the module, so they need not be searched for
            shape = None
        else:
            query, key = operands_of(args, kwargs)
            operands = self._operands(query, key)
            shape = query.shape[-2], key.shape[-2]
        options = {} if self.attention or func is not multi_head_attention_forward else {"projected": False}
        call, own = CALLS[func](*args, **kwargs, **options), None
        if shape is None:  # nn.MultiheadAttention passes tokens, not projections
            query, key = operands_of(args, kwargs)
            shape = query.shape[0], key.shape[0]
            own = self.flow.root[self.flow.node(query)] == self.flow.root[self.flow.node(key)]
        self._record_attention(call, operands, output, shape, own=own)

    def _operands(self, query: Tensor, key: Tensor) -> tuple[Operand, Operand]:
        """Returns queries and keys ``[..., heads, tokens, head_dim]`` as operands; with fewer heads, each key
        head is repeated.
        """
        groups = query.shape[-3] // max(key.shape[-3], 1) if min(query.ndim, key.ndim) > 3 else 1
        return Operand(self.flow.known(query)), Operand(self.flow.known(key), repeats=max(groups, 1))

    def _record_explicit(self, call: ExplicitCall, output: Tensor) -> None:
        """Records a written-out attention."""
        self._record_attention(call, call.operands, output, (call.softmax.shape[-2], call.softmax.shape[-1]))

    def _around_registry(
        self, function: Callable, record: Callable[[], RegistryCall], args: tuple, kwargs: dict
    ) -> Any:
        """Calls a function of transformers' registry, and records the call unless its operations were
        recognised as attention.
        """
        before = len(self.streams.all)
        output = function(*args, **kwargs)
        if len(self.streams.all) == before:
            self._safely(self._record_registry, record, args, kwargs, output)
        return output

    def _record_registry(
        self, record: Callable[[], RegistryCall], args: tuple, kwargs: dict, output: Any
    ) -> None:
        """Records a call of a function of transformers' registry."""
        values = list(tensors_in(args, kwargs))
        if len(values) < 2 or (out := first_tensor((output,), {})) is None:
            return
        if self.flow.known(out) is None:  # the operations of a compiled kernel are not visible
            self.flow.add(out, tuple(dict.fromkeys(node for x in values if (node := self.flow.node(x)) >= 0)))
        query, key = values[:2]
        self._record_attention(record(), self._operands(query, key), out, (query.shape[-2], key.shape[-2]))

    def _record_attention(
        self,
        given_call: Call,
        operands: tuple[Operand, Operand],
        output: Tensor,
        shape: tuple[int, int],
        *,
        own: bool | None = None,
    ) -> None:
        """Adds an attention to the innermost module and its block.

        Args:
            given_call: the attention, with the leading axes of the model.
            operands: nodes of queries and keys.
            output: output of the attention.
            shape: numbers of queries and keys.
            own: whether queries and keys are those of the same tokens; None if the operands tell.
        """
        frame = self.stack[-1]
        known = self.flow.known(output)
        block = frame.block = self.layers.attended(frame, self.stack, known)
        node = self.flow.add(output, ()) if known is None else known
        around = self.streams.attended(node)
        self.layers.add(block, around)
        projection: Projection | str | None = None
        call: Call | None = given_call
        try:
            if self.attention:
                call, projection = self._arranged(given_call, operands, frame, block)
            elif isinstance(call, ExplicitCall):
                call = call.heads_of(self._batch(call.softmax.shape[-2]))
        except Exception as error:
            call = None
            self.on_fault(error, block.layer, frame.name)
        own = projection.own if isinstance(projection, Projection) else own
        key = None if operands[1].node is None else self.flow.root[operands[1].node]
        frame.attentions.append(Attention(call, projection, key, *shape, own))
        mixes = shape[0] == shape[1] if own is not False else self._from_queries(frame, operands[1])
        if call is not None and mixes and shape[0] > 1:
            self.readout.attended(around.number, node)
            sequences = call.query.shape[0] if call.query.ndim == 4 else 1
            self.mixing[around.number] = around, block, node, (sequences, shape[0])
        if isinstance(frame.module, nn.MultiheadAttention) and not frame.module.batch_first:
            frame.time_first = True
        block.time_first |= frame.time_first

    def _arranged(
        self, call: Call, operands: tuple[Operand, Operand], frame: Frame, block: Block
    ) -> tuple[Call | None, Projection | str | None]:
        """Returns a call with the leading axes batch and heads, None if it is refused, and the projections of
        its queries and keys.
        """
        # If the module declares W and the leading axes are batch and heads, the projections need not be
        # searched for.
        if isinstance(call, AttentionCall) and callable(getattr(frame.module, "bilinear", None)):
            return call, None
        projection = None if operands is NOWHERE else self.projections.find(*operands)
        if isinstance(projection, Projection) and self.axes.are_divided(*operands):
            projection = DIVIDED
        axes = projection.arrangement if isinstance(projection, Projection) else self.axes.find(*operands)
        if isinstance(axes, Arrangement):
            call = arranged(call, axes)
            frame.time_first |= axes.time_first
        elif isinstance(call, ExplicitCall) and not axes:
            batch = self._batch(call.softmax.shape[-2])
            axes = doubt(call.softmax.shape, call.query.shape[-1], frame.tokens, batch)
        if isinstance(axes, str) and axes:
            self.refused[block.layer, frame.name] = axes
            return None, projection
        if isinstance(call, ExplicitCall) and (isinstance(axes, str) or call.softmax.ndim != 4):
            call = call.heads_of(self._batch(call.softmax.shape[-2]))
        return call, projection

    def _from_queries(self, frame: Frame, key: Operand) -> bool:
        """Whether keys were computed from the tokens of the queries, by more than a projection, such as a
        convolution that joins neighbours.
        """
        tokens, node = frame.source, key.node
        return node is not None and min(tokens, node) >= 0 and self.flow.descends(node, tokens)

    def _batch(self, seq: int) -> int:
        """Returns the number of sequences in the input of the innermost module, and sets ``time_first`` if it
        is [seq, batch, dim].

        Args:
            seq: number of tokens of a sequence.
        """
        frame = self.stack[-1]
        shape = (1,) if frame.tokens is None else frame.tokens.shape
        if len(shape) == 3 and shape[1] != seq and shape[0] == seq:
            frame.time_first = True
            return shape[1]
        return shape[0] if len(shape) > 2 else 1

    # modules

    def _enter(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        tokens = first_tensor(args, kwargs)
        name = self.modules[module]
        source = -1 if tokens is None else self.flow.node(tokens)
        if tokens is not None:
            # Models often change the stream in place, x += ..., so the input of each member of a list is
            # copied.
            with torch.no_grad(), torch._C.DisableTorchFunction():
                tokens = (
                    tokens.detach().clone() if self.features and name in self.members else tokens.detach()
                )
        self.stack.append(Frame(name, module, tokens, source=source))
        self.ran.add(name)

    def _leave(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        frame = self.stack.pop()
        if not self.broken:
            try:
                self._finish_module(frame, args, kwargs, output)
            except Exception as error:
                self.broken = True
                self.on_fault(error)

    def _finish_module(self, frame: Frame, args: tuple, kwargs: dict, output: Any) -> None:
        """Emits the attention of a module that has ended, records its output, and frees the inputs of its
        projections.
        """
        first = first_tensor((output,), {})
        # computed by an operation that the mode does not see
        if first is not None and self.flow.known(first) is None:
            self.flow.add(
                first,
                tuple(
                    dict.fromkeys(node for x in tensors_in(args, kwargs) if (node := self.flow.node(x)) >= 0)
                ),
            )
        if frame.attentions:
            with aside():
                self._emit_attention(frame, first)
                frame.block = None  # which refers to the frame
                for one in frame.attentions:  # the block keeps the frame, and these would keep their tensors
                    one.call = one.projection = None
        if self.features and first is not None:
            self.layers.left(frame, first)
        if not frame.time_first:
            frame.tokens = None
        if frame.projections and self.stack:
            # If the module returns a projection (as a wrapper of a linear layer does), the module that called
            # it may need the input.
            known = (self.flow.known(x) for x in tensors_in(output))
            products = [self.flow.products_of(node) for node in known if node is not None]
            returned = {one for product in products for nodes in product.values() for one in nodes}
            for node in frame.projections:
                if node in returned:
                    self.stack[-1].projections.append(node)
                else:
                    self.flow.steps[node].tokens = None

    # emission

    def _matching(self, *names: str) -> bool:
        """Whether one of the names matches the glob."""
        return any(fnmatchcase(name, self.glob) for name in names)

    def _emit_attention(self, frame: Frame, output: Tensor | None) -> None:
        """Emits the attention of a module, and counts the heads of its block."""
        block = frame.block
        assert block is not None
        self.attending.append(frame.name)
        matches = self._matching(frame.name, block.name)
        self.matches += matches
        if frame.refusal:
            if self.attention:
                self.refused[block.layer, frame.name] = frame.refusal
            return
        sequences = block.name.rpartition(".")[0]
        tokens, output = (as_stream(x, time_first=frame.time_first) for x in (frame.tokens, output))
        declared = declared_bilinear(frame.module) if matches and self.attention else {}
        for attentions in _pieces([one for one in frame.attentions if one.call is not None]):
            call = joined([one.call for one in attentions if one.call is not None])
            own = attentions[0].own
            self.masks.append(mask_of(call, sequences, frame.module, own=own, some=self.emitter.some))
            first_head, block.heads = block.heads, block.heads + call.query.shape[1]
            if matches and self.attention:
                place = {
                    "name": frame.name,
                    "layer": block.layer,
                    "module": frame.module,
                    "first_head": first_head,
                    "sequences": sequences,
                    "own": own,
                    "codes_of": partial(self._codes, frame, block),
                }
                # The matrices of a MultiheadAttention give its scores only if nothing is added to them.
                is_whole = callable(getattr(frame.module, "bilinear", None)) or not call.biased
                W = declared if is_whole else {}
                try:
                    self.emitter.attention(call, attentions[0].projection, W, tokens, output, **place)
                except Exception as error:
                    self.on_fault(error, block.layer, frame.name)

    def _end(self, args: tuple, kwargs: dict, output: Any) -> None:
        """Passes what was recorded to the metrics, then the outputs of the network."""
        inputs = first_tensor(args, kwargs)
        self.layers.end()
        some = self.emitter.some
        known = given(
            self.model, args, kwargs, some=some, special_ids=self.special_ids, grid=self.declared_grid
        )
        masks = TokenMasks(self.masks, self.emitter.recorded, known)
        self._find_read(masks, output, () if inputs is None else tuple(inputs.shape[:2]))
        self.notes = masks.notes
        self.emitter.finish(masks.activations)
        if self.outputs:
            logits = logits_of(output)
            if logits is not None and logits.ndim:
                self.emitter.outputs(inputs, logits, self.layers.count, self.model)

    def _codes(self, frame: Frame, block: Block) -> Codes | None:
        """Returns the places of the tokens of a module or, if they are not known, of its block."""
        own = self.places.of(frame.source, time_first=frame.time_first)
        return self.layers.codes(block) if own is None else own

    def _find_read(self, masks: TokenMasks, output: Any, batch: tuple[int, ...]) -> None:
        """Finds the tokens from which the outputs are computed, in each stack of blocks that ends with an
        attention from which no other one was computed.

        Args:
            masks: tokens of the pass.
            output: what the network returned.
            batch: the first two axes of its inputs.
        """
        for number, (around, block, attention, shape) in self.mixing.items():
            if not self.readout.last >> number & 1 or not any(n for _, n, _ in masks.tokens):
                continue
            stream = around.after_node if around.after_node >= 0 else attention
            try:
                sizes, reason = self.readout.read(
                    number, stream, output, shape, batch, time_first=block.time_first
                )
            except Exception as error:  # such as weights that are stored elsewhere after they have been used
                sizes, reason = None, f"{NOT_FOLLOWED} ({type(error).__name__})"
            sequences = block.name.rpartition(".")[0]
            if sizes is None:
                masks.set_unread(sequences, reason)
                continue
            read = tokens_read(self.emitter.some(sizes))
            frame = sequences, len(read), read.shape[1]
            if frame in masks.tokens:
                masks.set_read(frame, read)


def _needs_hooks(module: nn.Module) -> bool:
    """Whether a module needs hooks. A layer of torch.nn without submodules contains no attention, and a
    compiled script is not observed.
    """
    is_custom = type(module).__module__.split(".")[:2] != ["torch", "nn"]
    return not isinstance(module, torch.jit.ScriptModule) and (is_custom or len(module._modules) > 0)


def _pieces(attentions: list[Attention]) -> list[list[Attention]]:
    """Groups the attentions of a module whose queries are consecutive pieces of one sequence.

    Attentions belong together if they have the same keys, and together at most as many queries as keys.
    """
    groups: list[list[Attention]] = []
    for attention in attentions:
        last = groups[-1] if groups else []
        same = (
            bool(last)
            and last[0].key is not None
            and last[0].key == attention.key
            and last[0].keys == attention.keys
        )
        if (
            same
            and attention.queries < attention.keys
            and sum(one.queries for one in last) + attention.queries <= attention.keys
        ):
            last.append(attention)
        else:
            groups.append([attention])
    return groups
