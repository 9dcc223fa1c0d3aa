"""One observed forward pass: which modules run, the attention inside them, and the residual stream around it.

A ``TorchFunctionMode`` passes every operation to the flow of tensors (:mod:`.flow`), from which the residual stream (:mod:`.streams`) and
the projections of queries and keys (:mod:`.projections`) follow. It intercepts the attention functions (:mod:`.attention_calls`) and
recognises written-out attention (:mod:`.explicit`); the registry of ``transformers`` gives what neither shows (:mod:`.registry`). Hooks
maintain a stack of running modules, which says to which module an attention belongs; its blocks are those of :mod:`.layers`. Hooks and mode
live for one pass only. An error of the probe never reaches the model: the rest of the pass then runs unobserved.
"""

from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.metric import ActivationKind, Activations
from .attention_calls import CALLS, AttentionCall, declared_bilinear, operands_of
from .emission import Call, Emitter, arranged, as_stream, joined
from .explicit import FOLLOWED, NOWHERE, ExplicitCall, Softmaxes
from .flow import Flow, operation, tensors_in
from .layers import Attention, Frame, Layers
from .modules import LISTS, Blocks, first_tensor, named
from .padding import zeros_at_padding
from .projections import Operand, Projections
from .redirect import aside, eager
from .registry import RegistryCall, observed_registry
from .streams import Streams

MAX_INPUTS = 64  # inputs of projections kept while a module runs


class NoAttention(ValueError):
    """The forward pass contained no attention that a probe can observe."""


class ForwardPass(TorchFunctionMode):
    """One observed forward pass.

    Args:
        model: the model that runs.
        emit: is called with the activations of each module.
        layers: glob over names of modules.
        targets: of the outputs, ``[batch, ...]``.
        labels: of the sequences, ``[batch]``.
        max_samples: limit on the sequences of the activations, evenly spaced over the batch; all if None.
        kinds: of activations that are emitted. Without "attention", attention only locates the blocks, and no weights are computed.
        cache: of earlier passes, for :class:`.Projections`.
        on_fault: is called with an error of the probe itself.
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
        on_fault: Callable[[Exception], None],
        targets: Tensor | None = None,
    ):
        super().__init__()
        self.attention, self.features, self.outputs = ("attention" in kinds, "features" in kinds, "outputs" in kinds)
        self.model, self.glob, self.on_fault = model, layers, on_fault
        self.emitter = Emitter(emit, labels, max_samples, targets=targets)
        self.flow = Flow(with_steps=self.attention)
        self.streams = Streams(self.flow)
        self.projections = Projections(self.flow, {} if cache is None else cache)
        self.softmaxes = Softmaxes(self.flow.known, with_weights=self.attention)
        self.modules = {module: name for name, module in named(model)}
        self.blocks = Blocks(self.modules)
        self.members = {f"{name}.{key}" if name else key for m, name in self.modules.items() if isinstance(m, LISTS) for key in m._modules}
        options = {"features": self.features, "attention": self.attention}
        self.layers = Layers(self.flow, self.streams, self.blocks, self.emitter, self._matching, **options)
        self.stack: list[Frame] = []
        self.ran: set[str] = set()
        self.attending: list[str] = []  # names of the modules in which attention ran
        self.matches = 0  # of them, how many match the glob
        self.broken = False

    def run(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        """Calls the model's original method under observation, and returns its output."""
        handles = []
        try:
            for module in self.modules:
                if module is not self.model and _needs_hooks(module):
                    handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
                    handles.append(module.register_forward_hook(self._leave, with_kwargs=True))
            with zeros_at_padding(self.modules, args, kwargs), eager(), observed_registry(self._around_registry), self:
                self._enter(self.model, args, kwargs)
                output = original(*args, **kwargs)
                self._leave(self.model, args, kwargs, output)
            self._safely(self._end, first_tensor(args, kwargs), output)
            return output
        finally:
            for handle in handles:
                handle.remove()

    def _safely(self, action: Callable, *arguments: Any) -> Any:
        """Runs a part of the probe; an error ends the observation of this pass, not the model."""
        if self.broken:
            return None
        try:
            with aside():
                return action(*arguments)
        except Exception as error:
            self.broken = True
            self.on_fault(error)
            return None

    def check(self, name: str) -> None:
        """Raises an error if nothing was observed, although a metric needs attention, or the glob matches nothing.

        Raises:
            NoAttention: the pass contained no attention.
            ValueError: no module with attention matches the glob.
        """
        if self.broken:
            return
        if not self.attending:
            if self.attention or not (self.layers.unattended or self.outputs):
                raise NoAttention(
                    f"no attention was observed in {name}: probes observe calls of torch.nn.functional.scaled_dot_product_attention and"
                    " torch.nn.MultiheadAttention, softmax(Q K^T) V written out with products of tensors, and the registry of transformers;"
                    f" {self.softmaxes.others} other softmaxes are not recognised as attention; choose such an implementation of the"
                    " model (transformers: attn_implementation='sdpa' or 'eager')"
                )
        elif not self.matches:
            names = ", ".join(self.attending)
            raise ValueError(f"layers must match the name of a module with attention, got {self.glob!r}; there are: {names}")

    # operations

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.broken:
            return func(*args, **kwargs)
        op = operation(func)
        inputs = list(tensors_in(args, kwargs))
        in_place = op.in_place or kwargs.get("inplace") is True or "out" in kwargs
        kept = self._copy_of_stream(op.name, args, inputs) if in_place and op.name == "add" else None
        nodes = [self.flow.node(x) for x in inputs]
        output = func(*args, **kwargs)
        if isinstance(output, Tensor | tuple | list) or op.name == "setitem":
            try:
                self._record(op, in_place, func, args, kwargs, nodes, inputs, output, kept)
            except Exception as error:
                self.broken = True
                self.on_fault(error)
        return output

    def _copy_of_stream(self, name: str, args: tuple, inputs: list[Tensor]) -> Tensor | None:
        """A copy of x before ``x += f``, if that may add an attention to the stream."""
        if not self.features or len(inputs) != 2 or not self.streams.overwrites_stream([self.flow.node(x) for x in inputs]):
            return None
        with aside():
            return inputs[0].detach().clone()

    def _record(self, op, in_place, func, args, kwargs, nodes, inputs, output, kept) -> None:
        self.flow.record(op, func, args, kwargs, nodes, inputs, output, in_place=in_place)
        name = op.name
        if func in CALLS:
            out = first_tensor((output,), {})
            assert out is not None
            with aside():
                self._called(func, args, kwargs, out)
        elif name in FOLLOWED and self.softmaxes.concerns(name, inputs):
            if name == "add" and any(x in self.softmaxes.scores for x in inputs):
                name = ""  # a mask is added to scores, not a branch to the stream
            with aside():
                call = self.softmaxes.record(func, args, kwargs, output)
                if call is not None:
                    self._recognised(call, output)
        if name == "add" and self.features and self.streams.all:
            with aside():
                self.streams.added(inputs[0] if in_place else output, inputs, nodes, kept)
        if self.flow.with_steps and self.stack and isinstance(output, Tensor):
            node = self.flow.known(output)
            step = None if node is None else self.flow.steps.get(node)
            if node is not None and step is not None and step.weight is not None:
                self._keep_input(node)

    def _keep_input(self, node: int) -> None:
        """Keeps the input of a projection while the module that called it runs, which may turn out to attend."""
        kept = self.stack[-1].projections
        kept.append(node)
        if len(kept) > MAX_INPUTS:
            self.flow.steps[kept.pop(0)].tokens = None

    # attention

    def _called(self, func: Callable, args: tuple, kwargs: dict, output: Tensor) -> None:
        frame = self.stack[-1]
        if isinstance(frame.module, nn.MultiheadAttention):
            ends = NOWHERE  # its matrices are known, and the probe repeats the projections itself
            shape = None
        else:
            query, key = operands_of(args, kwargs)
            ends = self._ends(query, key)
            shape = query.shape[-2], key.shape[-2]
        call = CALLS[func](*args, **kwargs) if self.attention else None
        self._attended(call, ends, output, shape or (0, 0))

    def _ends(self, query: Tensor, key: Tensor) -> tuple[Operand, Operand]:
        groups = query.shape[-3] // max(key.shape[-3], 1) if min(query.ndim, key.ndim) > 3 else 1
        return Operand(self.flow.known(query)), Operand(self.flow.known(key), repeats=max(groups, 1))

    def _recognised(self, call: ExplicitCall, output: Tensor) -> None:
        self._attended(call, call.operands, output, (call.softmax.shape[-2], call.softmax.shape[-1]))

    def _around_registry(self, function: Callable, record: Callable[[], RegistryCall], args: tuple, kwargs: dict) -> Any:
        """A function of transformers' registry: reported only if no attention is recognised inside it."""
        before = len(self.streams.all)
        output = function(*args, **kwargs)
        if len(self.streams.all) == before:
            self._safely(self._from_registry, record, args, kwargs, output)
        return output

    def _from_registry(self, record: Callable[[], RegistryCall], args: tuple, kwargs: dict, output: Any) -> None:
        values = list(tensors_in(args, kwargs))
        if len(values) < 2 or (out := first_tensor((output,), {})) is None:
            return
        if self.flow.known(out) is None:  # a compiled kernel
            self.flow.add(out, tuple(dict.fromkeys(node for x in values if (node := self.flow.node(x)) >= 0)))
        query, key = values[:2]
        self._attended(record() if self.attention else None, self._ends(query, key), out, (query.shape[-2], key.shape[-2]))

    def _attended(self, call: Call | None, ends: tuple[Operand, Operand], output: Tensor, shape: tuple[int, int]) -> None:
        frame = self.stack[-1]
        block = frame.block = self.layers.attended(frame, self.stack)
        node = self.flow.known(output)
        around = self.streams.attended(self.flow.add(output, ()) if node is None else node)
        self.layers.add(block, around)
        projection = None
        # A module that declares W, and whose call has batch and heads in front, needs no search.
        declared = isinstance(call, AttentionCall) and callable(getattr(frame.module, "bilinear", None))
        if call is not None and not declared:
            found = self.projections.find(*ends)
            projection = None if isinstance(found, str) else found
            if projection is not None:
                call = arranged(call, projection.arrangement)
                frame.time_first |= projection.arrangement.time_first
            if isinstance(call, ExplicitCall) and (projection is None or call.softmax.ndim != 4):
                call = call.heads_of(self._batch(call.softmax.shape[-2]))
        key = None if ends[1].node is None else self.flow.root[ends[1].node]
        frame.attentions.append(Attention(call, projection, key, *shape))
        if isinstance(frame.module, nn.MultiheadAttention) and not frame.module.batch_first:
            frame.time_first = True
        block.time_first |= frame.time_first

    def _batch(self, seq: int) -> int:
        """Number of sequences of ``seq`` tokens in the input of the innermost module; notes whether it is [seq, batch, dim]."""
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
        if tokens is not None:
            # Models often change the stream in place, x += ...: a member of a list keeps a copy of its input.
            with torch.no_grad(), torch._C.DisableTorchFunction():
                tokens = tokens.detach().clone() if self.features and name in self.members else tokens.detach()
        self.stack.append(Frame(name, module, tokens))
        self.ran.add(name)

    def _leave(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        frame = self.stack.pop()
        if not self.broken:
            try:
                self._left(frame, args, kwargs, output)
            except Exception as error:
                self.broken = True
                self.on_fault(error)

    def _left(self, frame: Frame, args: tuple, kwargs: dict, output: Any) -> None:
        first = first_tensor((output,), {})
        if first is not None and self.flow.known(first) is None:  # an operation that torch does not show
            self.flow.add(first, tuple(dict.fromkeys(node for x in tensors_in(args, kwargs) if (node := self.flow.node(x)) >= 0)))
        if frame.attentions:
            with aside():
                self._emit_attention(frame, first)
        if self.features and first is not None:
            self.layers.left(frame, first)
        if frame.projections and self.stack:
            # A wrapper of a linear layer hands its input on to the module that called it.
            ends = {self._end_of(node) for x in tensors_in(output) if (node := self.flow.known(x)) is not None}
            for node in frame.projections:
                if node in ends:
                    self.stack[-1].projections.append(node)
                else:
                    self.flow.steps[node].tokens = None

    def _end_of(self, node: int) -> int:
        """The projection from which a node was moved."""
        steps = self.flow.steps
        while node in steps and steps[node].weight is None:
            node = steps[node].parent
        return node

    # emission

    def _matching(self, *names: str) -> bool:
        return any(fnmatchcase(name, self.glob) for name in names)

    def _emit_attention(self, frame: Frame, output: Tensor | None) -> None:
        block = frame.block
        assert block is not None
        self.attending.append(frame.name)
        matches = self._matching(frame.name, block.name)
        self.matches += matches
        if not self.attention:
            return
        tokens, output = (as_stream(x, time_first=frame.time_first) for x in (frame.tokens, output))
        declared = declared_bilinear(frame.module) if matches else None
        for attentions in _pieces(frame.attentions):
            calls = [attention.call for attention in attentions if attention.call is not None]
            call = joined(calls)
            first_head, block.heads = block.heads, block.heads + call.query.shape[1]
            if matches:
                place = {"name": frame.name, "layer": block.layer, "module": frame.module, "first_head": first_head}
                self.emitter.attention(call, attentions[0].projection, declared, tokens, output, **place)

    def _end(self, inputs: Tensor | None, output: Any) -> None:
        """Emits what waited for the end of the pass."""
        self.layers.end()
        if self.outputs:
            logits = getattr(output, "logits", None)
            logits = logits if isinstance(logits, Tensor) else first_tensor((output,), {})
            if logits is not None and logits.ndim:
                self.emitter.outputs(inputs, logits, self.layers.count, self.model)


def _needs_hooks(module: nn.Module) -> bool:
    """Whether a module may attend or contain what does: not a compiled script, and not one of torch's own layers without parts."""
    own = type(module).__module__.split(".")[:2] != ["torch", "nn"]
    return not isinstance(module, torch.jit.ScriptModule) and (own or len(module._modules) > 0)


def _pieces(attentions: list[Attention]) -> list[list[Attention]]:
    """Groups the attentions of a module whose queries are pieces of one sequence: the same keys, and not more queries than keys in all."""
    groups: list[list[Attention]] = []
    for attention in attentions:
        last = groups[-1] if groups else []
        same = bool(last) and last[0].key is not None and last[0].key == attention.key and last[0].keys == attention.keys
        if same and attention.queries < attention.keys and sum(one.queries for one in last) + attention.queries <= attention.keys:
            last.append(attention)
        else:
            groups.append([attention])
    return groups
