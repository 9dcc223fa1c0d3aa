"""One observed forward pass: which modules run, what each is given and returns, and the attention calls inside them.

Hooks on every module maintain a stack of the running ones. A ``TorchFunctionMode`` intercepts the attention functions
(:mod:`.attention_calls`); a call belongs to the innermost running module. Written-out attention is recognised among the other operations
(:mod:`.explicit`). Blocks are found on the stack. Hooks and mode live for one pass only. Tokens are ``[batch, seq, dim]``.
"""

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.overrides import TorchFunctionMode

from ..core.metric import ActivationKind, Activations
from .attention_calls import CALLS, AttentionCall, declared_bilinear, inferred_bilinear
from .explicit import ExplicitCall, Softmaxes

INSIDE = ("_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")  # compile, Fabric, FSDP, checkpoints
PARALLEL = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}


class NoAttention(ValueError):
    """The forward pass contained no attention that a probe can observe."""


@dataclass(eq=False)
class _Frame:
    """A module while it runs."""

    name: str
    module: nn.Module
    tokens: Tensor | None
    kind: str = ""  # of the container that holds it: "list", "sequential", or ""
    siblings: int = 0  # members of the container of the same type, itself included
    calls: list[AttentionCall | ExplicitCall] = field(default_factory=list)
    block: "_Frame | None" = None  # the block in which it attends
    layer: int | None = None  # of a block in which attention ran
    heads: int = 0  # of a block: number so far
    time_first: bool = False  # streams are [seq, batch, dim]
    last_output: Tensor | None = None  # of the submodule that ran last
    attended_inside: bool = False  # attention ran inside
    after_attention: Tensor | None = None


class ForwardPass(TorchFunctionMode):
    """One observed forward pass: a stack of running modules, and the attention calls inside them.

    Args:
        model: the model that runs.
        emit: is called with the activations of each module.
        layers: glob over names of modules.
        labels: of the sequences, ``[batch]``.
        max_samples: limit on the sequences of the activations, evenly spaced over the batch; all if None.
        kinds: of activations that are emitted. Without "attention", attention only locates the blocks, and no weights are computed.
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
    ):
        super().__init__()
        self.attention, self.outputs = "attention" in kinds, "outputs" in kinds
        self.model, self.emit, self.glob, self.labels, self.max_samples = model, emit, layers, labels, max_samples
        self.softmaxes = Softmaxes()
        self.modules = {module: name for name, module in _named(model)}
        self.places = _places(self.modules)
        self.stack: list[_Frame] = []
        self.count = 0  # of blocks so far
        self.attending: list[str] = []  # names of the modules in which attention ran
        self.matches = 0  # of them, how many match the glob

    def run(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        """Calls the model's original method under observation, and returns its output."""
        handles = []
        try:
            for module in self.modules:
                if module is not self.model and not isinstance(module, torch.jit.ScriptModule):
                    handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
                    handles.append(module.register_forward_hook(self._leave, with_kwargs=True))
            with _eager(), self:
                self._enter(self.model, args, kwargs)
                output = original(*args, **kwargs)
                self._leave(self.model, args, kwargs, output)
                if self.outputs:
                    self._emit_outputs(first_tensor(args, kwargs), output)
            return output
        finally:
            for handle in handles:
                handle.remove()

    def check(self, name: str) -> None:
        """Raises an error if nothing was observed.

        Raises:
            NoAttention: the pass contained no attention.
            ValueError: no module with attention matches the glob.
        """
        if not self.attending:
            raise NoAttention(
                f"no attention was observed in {name}: probes observe calls of torch.nn.functional.scaled_dot_product_attention and"
                " torch.nn.MultiheadAttention, and softmax(Q K^T) V written out with products of tensors;"
                f" {self.softmaxes.others} other softmaxes are not recognised as attention; choose such an implementation of the"
                " model (transformers: attn_implementation='sdpa' or 'eager')"
            )
        if not self.matches:
            names = ", ".join(self.attending)
            raise ValueError(f"layers must match the name of a module with attention, got {self.glob!r}; there are: {names}")

    def __torch_function__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        call_of = CALLS.get(func)
        if call_of is not None:
            with _aside():
                self._attended(call_of(*args, **(kwargs or {})) if self.attention else None)
            return output
        with _aside():
            call = self.softmaxes.record(func, args, kwargs or {}, output)
            if call is not None:
                self._attended(call.heads_of(self._batch(call.softmax.shape[-2])))
        return output

    def _batch(self, seq: int) -> int:
        """Number of sequences of ``seq`` tokens in the input of the innermost module; notes whether it is [seq, batch, dim]."""
        frame = self.stack[-1]
        shape = (1,) if frame.tokens is None else frame.tokens.shape
        if len(shape) == 3 and shape[1] != seq and shape[0] == seq:
            frame.time_first = _block(self.stack).time_first = True
            return shape[1]
        return shape[0] if len(shape) > 2 else 1

    def _attended(self, call: AttentionCall | ExplicitCall | None) -> None:
        frame = self.stack[-1]
        block = _block(self.stack)
        if block.layer is None:
            block.layer, self.count = self.count, self.count + 1
        frame.block = block
        if self.attention:
            frame.calls.append(self._some(call))
        frame.attended_inside = True
        if isinstance(frame.module, nn.MultiheadAttention) and not frame.module.batch_first:
            frame.time_first = block.time_first = True

    def _enter(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        tokens = first_tensor(args, kwargs)
        kind, siblings = self.places.get(module, ("", 0))
        with _aside():
            if self.stack:
                parent = self.stack[-1]
                waits = parent.layer is not None and parent.attended_inside and parent.after_attention is None
                # The stream after attention is the first input of a later submodule that is not merely its predecessor's output.
                if waits and tokens is not parent.last_output:
                    parent.after_attention = _like(tokens, parent.tokens)
            if tokens is not None:
                # Models often change the stream in place, x += ...: a block keeps a copy of its input.
                tokens = tokens.detach().clone() if kind else tokens.detach()
        self.stack.append(_Frame(self.modules[module], module, tokens, kind, siblings))

    def _leave(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        frame = self.stack.pop()
        first = first_tensor((output,), {})
        with _aside():
            if frame.block is not None:
                self._emit_attention(frame, first)
            if frame.layer is not None and first is not None:
                self._emit_features(frame, first)
        if self.stack:
            self.stack[-1].last_output = first
            self.stack[-1].attended_inside |= frame.attended_inside

    def _matches(self, *names: str) -> bool:
        return any(fnmatchcase(name, self.glob) for name in names)

    def _emit_attention(self, frame: _Frame, output: Tensor | None) -> None:
        block = frame.block
        assert block is not None
        assert block.layer is not None
        self.attending.append(frame.name)
        matches = self._matches(frame.name, block.name)
        self.matches += matches
        if not frame.calls:
            return
        whole, streamed = (_stream(x, time_first=frame.time_first) for x in (frame.tokens, output))
        labels = self._labels(frame.calls[0].query if whole is None else whole)
        tokens, streamed = self._some(whole), self._some(streamed)
        declared = declared_bilinear(frame.module) if matches else None
        for call in frame.calls:
            first_head, block.heads = block.heads, block.heads + call.query.shape[1]
            if not matches:
                continue
            scale = None if call.biased else call.scale
            joined = call.query.transpose(1, 2).flatten(2).detach()  # stands for tokens in modules that are given no stream
            self.emit(
                Activations(
                    name=frame.name,
                    layer=block.layer,
                    kind="attention",
                    tokens=joined if tokens is None else tokens,
                    output=joined if streamed is None else streamed,
                    query=call.query.detach(),
                    key=call.key.detach(),
                    value=call.value.detach(),
                    weights=call.weights().detach(),
                    bilinear=inferred_bilinear(frame.module, tokens, call.query, call.key, scale) if declared is None else declared,
                    module=frame.module,
                    mask=call.allowed,
                    first_head=first_head,
                    labels=labels,
                )
            )

    def _emit_features(self, frame: _Frame, output: Tensor) -> None:
        tokens, after = (_stream(x, time_first=frame.time_first) for x in (frame.tokens, output))
        if tokens is None or after is None or not self._matches(frame.name):
            return
        attended = _stream(frame.after_attention, time_first=frame.time_first)
        if attended is None and after.shape == tokens.shape:
            attended = after
        assert frame.layer is not None
        labels = self._labels(tokens)
        tokens, after, attended = (self._some(x) for x in (tokens, after, attended))
        self.emit(
            Activations(
                name=frame.name,
                layer=frame.layer,
                kind="features",
                tokens=tokens,
                output=after.clone(),  # the next block may change the stream in place
                module=frame.module,
                after_attention=attended,
                labels=labels,
            )
        )

    def _emit_outputs(self, inputs: Tensor | None, output: Any) -> None:
        """The logits: the field ``logits`` of a structured output, otherwise its first tensor."""
        logits = getattr(output, "logits", None)
        logits = logits if isinstance(logits, Tensor) else first_tensor((output,), {})
        if logits is None or not logits.ndim:
            return
        with _aside():
            logits = logits.detach()
            stream = _stream(inputs, time_first=False)
            labels, logits = self._labels(logits), self._some(logits)
            rows = logits.reshape(len(logits), -1, logits.shape[-1])
            tokens = rows if stream is None else self._some(stream)
            self.emit(Activations("", self.count, "outputs", tokens, rows, module=self.model, labels=labels, outputs=logits.clone()))

    def _labels(self, stream: Tensor) -> Tensor | None:
        """Labels of the sequences that are emitted, on their device; None for windows, which have no labels."""
        if self.labels is None or len(self.labels) != len(stream):
            return None
        return self._some(self.labels.to(stream.device))

    def _some(self, data: Any) -> Any:
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
        parts = {part.name: getattr(data, part.name) for part in fields(data)}
        return replace(data, **{name: x[chosen] for name, x in parts.items() if isinstance(x, Tensor) and len(x) == length})


@contextlib.contextmanager
def _eager() -> Iterator[None]:
    """Runs compiled modules eagerly, and torch's transformer layers without the fused path that hides their attention."""
    dynamo = sys.modules.get("torch._dynamo")
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with contextlib.nullcontext() if dynamo is None else torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    """Hides the probe's own operations from the model: no gradients, no autocast, no interception."""
    with torch.no_grad(), torch._C.DisableTorchFunction(), contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _block(stack: Sequence[_Frame]) -> _Frame:
    """The block in which the innermost module attends: a member of a list of similar modules, or else the module itself."""
    members = [frame for frame in stack[:-1] if frame.kind] or [frame for frame in stack if frame.kind]
    lists = [frame for frame in members if frame.kind == "list"]
    repeated = [frame for frame in lists if frame.siblings > 1]
    if lists:
        return repeated[-1] if repeated else lists[0]
    return max(members, key=lambda frame: frame.siblings) if members else stack[-1]


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules without the wrappers of ``torch.compile`` and of parallel training; the model itself comes first."""
    yield "", model
    shown, wrappers = {}, set()  # qualified name -> name without wrappers
    for name, module in model.named_modules():
        parent, _, last = name.rpartition(".")
        shown[name] = shown.get(parent, "") if parent in wrappers or not name else ".".join(filter(None, (shown.get(parent, ""), last)))
        if wrapped(module) is not None:
            wrappers.add(name)
        elif module is not model:
            yield shown[name], module


def _places(modules: dict[nn.Module, str]) -> dict[nn.Module, tuple[str, int]]:
    """For each member of a list that has submodules: the kind of list, and how many members have its type."""
    places = {}
    for container in modules:
        if isinstance(container, nn.ModuleList | nn.Sequential):
            kind = "list" if isinstance(container, nn.ModuleList) else "sequential"
            members = [original_of(member) for member in container if member is not None]
            for member in members:
                if len(member._modules):
                    places[member] = kind, sum(type(other) is type(member) for other in members)
    return places


def first_tensor(args: tuple, kwargs: dict) -> Tensor | None:
    """The first tensor among the arguments, tuples, lists and mappings included; None if there is none. Any shape ``[...]``."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value
        if isinstance(value, dict):
            value = tuple(value.values())
        if isinstance(value, tuple | list) and (inner := first_tensor(tuple(value), {})) is not None:
            return inner
    return None


def _like(tokens: Tensor | None, stream: Tensor | None) -> Tensor | None:
    return tokens.detach().clone() if tokens is not None and stream is not None and tokens.shape == stream.shape else None


def _stream(tensor: Tensor | None, *, time_first: bool) -> Tensor | None:
    """A tensor as [batch, seq, dim]; None if it is no stream of vectors."""
    if tensor is None or not tensor.is_floating_point() or tensor.ndim < 2:
        return None
    tensor = tensor.detach()
    if tensor.ndim == 2:
        return tensor[None]
    return tensor.transpose(0, 1) if time_first and tensor.ndim == 3 else tensor.flatten(1, -2)


def wrapped(module: nn.Module) -> nn.Module | None:
    """The module inside a wrapper (compile, Lightning Fabric, parallel training); None if this is no wrapper."""
    if isinstance(module, DataParallel | DistributedDataParallel):
        return module.module
    return next((module._modules[name] for name in INSIDE if name in module._modules), None)


def original_of(module: nn.Module) -> nn.Module:
    """The module inside all wrappers."""
    while (inside := wrapped(module)) is not None:
        module = inside
    return module


def is_shared(module: nn.Module) -> bool:
    """Whether several processes train the model, each on its share of the data: with DDP, FSDP, or Fabric around them."""
    layer: nn.Module | None = module
    while layer is not None:
        if PARALLEL & {kind.__name__ for kind in type(layer).__mro__}:
            return True
        layer = wrapped(layer)
    return False
