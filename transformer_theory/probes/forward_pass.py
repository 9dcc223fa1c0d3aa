"""One observed forward pass: which modules run, what each reads and returns, and the attention calls seen inside.

Hooks on every module keep a stack of the running ones; a ``TorchFunctionMode`` sees the attention functions (:mod:`.calls`), which belong
to the innermost running module; attention that is written out is found among the other operations (:mod:`.explicit`). Blocks are found
on that stack. Hooks and mode live for one pass only. Tokens are ``[batch, seq, dim]``.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .calls import READERS, AttentionCall
from .explicit import ExplicitCall, Softmaxes
from .observation import Observation
from .projections import guessed, told
from .wrappers import original_of, wrapped


class NoAttention(ValueError):
    """A forward pass in which no attention was seen."""


@dataclass(eq=False)
class _Frame:
    """A module while it runs."""

    name: str
    module: nn.Module
    tokens: Tensor | None
    kind: str = ""  # of the container that it is a member of: "list", "sequential", or ""
    siblings: int = 0  # members of the container of the same type, itself included
    calls: list[AttentionCall | ExplicitCall] = field(default_factory=list)
    block: "_Frame | None" = None  # the block in which it attends
    layer: int | None = None  # if it is a block in which attention was seen
    heads: int = 0  # of a block: seen so far
    time_first: bool = False
    last_output: Tensor | None = None  # of the submodule that ran last
    attended_inside: bool = False
    attended: Tensor | None = None


class ForwardPass(TorchFunctionMode):
    """One observed forward pass: a stack of running modules, and the attention calls seen in them.

    Args:
        model: that runs.
        emit: takes each observation and the labels of its sequences, if they are known.
        layers: glob over names.
        labels: of the sequences, ``[batch]``.
        most: sequences of an observation, evenly spaced; all if None.
        attention: whether attention is read; else it only tells where the blocks are, and nothing of it is recomputed.
    """

    def __init__(
        self,
        model: nn.Module,
        emit: Callable[[Observation, Int[Tensor, " batch"] | None], None],
        layers: str,
        labels: Int[Tensor, " batch"] | None = None,
        most: int | None = None,
        *,
        attention: bool = True,
    ):
        super().__init__()
        self.attention = attention
        self.model, self.emit, self.glob, self.labels, self.most = model, emit, layers, labels, most
        self.softmaxes = Softmaxes()
        self.modules = {module: name for name, module in _named(model)}
        self.places = _places(self.modules)
        self.stack: list[_Frame] = []
        self.count = 0
        self.seen: list[str] = []
        self.fitting = 0

    def run(self, original: Callable, args: tuple, kwargs: dict) -> Any:
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
            return output
        finally:
            for handle in handles:
                handle.remove()

    def check(self, name: str) -> None:
        if not self.seen:
            raise NoAttention(
                f"no attention was seen in {name}: probes see modules that call torch.nn.functional.scaled_dot_product_attention or"
                " torch.nn.MultiheadAttention, or write out softmax(Q K^T) V with products of tensors; of"
                f" {self.softmaxes.others} other softmaxes it cannot be told that they are attention; choose such an implementation of the"
                " model (transformers: attn_implementation='sdpa' or 'eager')"
            )
        if not self.fitting:
            raise ValueError(f"layers must fit the name of a module with attention, got {self.glob!r}; there are: {', '.join(self.seen)}")

    def __torch_function__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        reader = READERS.get(func)
        if reader is not None:
            with _aside():
                self._attended(reader(*args, **(kwargs or {})) if self.attention else None)
            return output
        with _aside():
            call = self.softmaxes.see(func, args, kwargs or {}, output)
            if call is not None:
                self._attended(call.heads_of(self._batch(call.softmax.shape[-2])))
        return output

    def _batch(self, seq: int) -> int:
        """Sequences that the innermost module reads, ``seq`` tokens each; of one that reads [seq, batch, dim] the time axis is noted."""
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
                if parent.layer is not None and parent.attended_inside and parent.attended is None and tokens is not parent.last_output:
                    parent.attended = _like(tokens, parent.tokens)
            if tokens is not None:
                # streams are often changed in place, x += ...: a block keeps its own copy of what it read
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

    def _fits(self, *names: str) -> bool:
        return any(fnmatchcase(name, self.glob) for name in names)

    def _emit_attention(self, frame: _Frame, output: Tensor | None) -> None:
        block = frame.block
        assert block is not None
        assert block.layer is not None
        self.seen.append(frame.name)
        fits = self._fits(frame.name, block.name)
        self.fitting += fits
        if not frame.calls:
            return
        read, streamed = (_stream(x, time_first=frame.time_first) for x in (frame.tokens, output))
        labels = self._labels(frame.calls[0].query if read is None else read)
        tokens, streamed = self._some(read), self._some(streamed)
        own = told(frame.module) if fits else None
        for call in frame.calls:
            first_head, block.heads = block.heads, block.heads + call.query.shape[1]
            if fits:
                merged = call.query.transpose(1, 2).flatten(2)
                scale = None if call.biased else call.scale
                matrices = guessed(frame.module, tokens, call.query, call.key, scale) if own is None else own
                seen = Observation(
                    module=frame.name,
                    layer=block.layer,
                    kind="attention",
                    tokens=merged.detach() if tokens is None else tokens,
                    output=merged.detach() if streamed is None else streamed,
                    query=call.query.detach(),
                    key=call.key.detach(),
                    value=call.value.detach(),
                    weights=call.weights().detach(),
                    bilinear=matrices,
                    parent=frame.module,
                    allowed=call.allowed,
                    first_head=first_head,
                )
                self.emit(seen, labels)

    def _emit_features(self, frame: _Frame, output: Tensor) -> None:
        tokens, after = (_stream(x, time_first=frame.time_first) for x in (frame.tokens, output))
        if tokens is None or after is None or not self._fits(frame.name):
            return
        attended = _stream(frame.attended, time_first=frame.time_first)
        if attended is None and after.shape == tokens.shape:
            attended = after
        assert frame.layer is not None
        labels = self._labels(tokens)
        tokens, after, attended = (self._some(x) for x in (tokens, after, attended))
        # cloned, since the next block may change the stream in place
        self.emit(Observation(frame.name, frame.layer, "features", tokens, after.clone(), parent=frame.module, attended=attended), labels)

    def _labels(self, stream: Tensor) -> Tensor | None:
        """Labels of the sequences that are handed on, on their device; None for windows: no sequence, no label."""
        if self.labels is None or len(self.labels) != len(stream):
            return None
        return self._some(self.labels.to(stream.device))

    def _some(self, given: Any) -> Any:
        """``most`` sequences of a stream [batch, ...] or of a call, evenly spaced; None stays None."""
        if given is None or self.most is None:
            return given
        call = not isinstance(given, Tensor)
        length = len(given.query if call else given)
        if length <= self.most:
            return given
        chosen = torch.linspace(0, length - 1, self.most).round().long().to(given.query.device if call else given.device)
        if not call:
            return given[chosen]
        parts = {each.name: getattr(given, each.name) for each in fields(given)}
        return replace(given, **{k: x[chosen] for k, x in parts.items() if isinstance(x, Tensor) and len(x) == length})


@contextlib.contextmanager
def _eager() -> Iterator[None]:
    """Compiled modules run eagerly and torch's transformer layers without the fused path that hides their attention."""
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
    """What happens inside is not seen by the model: no gradients, no lower precision, no watching of the watchers."""
    with torch.no_grad(), torch._C.DisableTorchFunction(), contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _block(stack: Sequence[_Frame]) -> _Frame:
    """The block that the innermost module attends in: a member of a list that repeats, or else the module itself."""
    members = [frame for frame in stack[:-1] if frame.kind] or [frame for frame in stack if frame.kind]
    lists = [frame for frame in members if frame.kind == "list"]
    repeated = [frame for frame in lists if frame.siblings > 1]
    if lists:
        return repeated[-1] if repeated else lists[0]
    return max(members, key=lambda frame: frame.siblings) if members else stack[-1]


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules without the wrappers of ``torch.compile`` and of parallel training, the model itself first and as it is."""
    yield "", model
    shown, wrappers = {}, set()  # qualified name -> name without wrappers
    for name, module in model.named_modules():
        parent, _, own = name.rpartition(".")
        shown[name] = shown.get(parent, "") if parent in wrappers or not name else ".".join(filter(None, (shown.get(parent, ""), own)))
        if wrapped(module) is not None:
            wrappers.add(name)
        elif module is not model:
            yield shown[name], module


def _places(modules: dict[nn.Module, str]) -> dict[nn.Module, tuple[str, int]]:
    """For every member of a list with submodules of its own: the kind of list, and how many members have its type."""
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
        if isinstance(value, tuple | list) and (found := first_tensor(tuple(value), {})) is not None:
            return found
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
