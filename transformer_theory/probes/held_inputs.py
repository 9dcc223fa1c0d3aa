"""Randomises one layer at a time: the blocks of a copy of a network receive the inputs of the network itself.

A network whose layers are all randomised also changes the inputs of its deep layers. Inside
:func:`held_inputs`, block l of a copy receives what block l of the network receives on the same inputs, so
the attention and the features of layer l are those of a network in which only layer l was randomised.

The values are written into the tensors that the copy passes to its blocks. A probe of the copy thus follows
the same tensors through the network as without this; what comes after the last block reads the copy's own.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .evaluation import evaluation
from .flow import tensors_in
from .forward_pass import ForwardPass
from .modules import named
from .padding import zeros_at_padding
from .redirect import aside, eager

# names of the blocks of each network that was held before
_known: weakref.WeakKeyDictionary[nn.Module, tuple[str, ...]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def held_inputs(original: nn.Module, copy: nn.Module) -> Iterator[None]:
    """Within the block, each call of ``copy`` first runs ``original`` on the same inputs, in evaluation mode
    and without gradients, and then gives every block of the copy the tensors that this block of the original
    received. Blocks are those of :func:`.probe`. Objects other than tensors, such as caches of keys, are the
    copy's own.

    Args:
        original: the network.
        copy: a network of the same modules, see :class:`.Copies`.
    Raises:
        ValueError: at a call: the blocks of the network are no modules that run, a block of the copy runs
            another number of times or on tensors of other shapes.
    """
    held = _Held(original, copy)
    try:
        yield
    finally:
        held.close()


class _Passive(TorchFunctionMode):
    """Runs every operation unchanged. Under any mode the layers of torch take the path that a probe
    observes, not their fused kernels.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _Held:
    """The hooks of one :func:`held_inputs`.

    Attributes:
        received: tensors that each block of the original received, by the name of the block, one entry per
            run.
        runs: number of runs of each block of the copy in this pass.
    """

    def __init__(self, original: nn.Module, copy: nn.Module):
        self.original, self.copy = original, copy
        self.originals = dict(named(original))
        self.copies = dict(named(copy))
        self.received: dict[str, list[list[Tensor]]] = {}
        self.runs: dict[str, int] = {}
        # the tensors of one pass by id, each with its version and its copy
        self.memory: dict[int, tuple[Tensor, int, Tensor]] = {}
        self.handles = [copy.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True)]
        self.handles.append(copy.register_forward_hook(self._end))
        self.names: tuple[str, ...] = ()
        weights = (*copy.parameters(), *copy.buffers())
        self.weights = {x.untyped_storage().data_ptr() for x in weights}

    def close(self) -> None:
        """Removes the hooks."""
        for handle in self.handles:
            handle.remove()
        self.received, self.memory = {}, {}

    def _begin(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """Runs the original and stores what its blocks receive."""
        if not self.names:
            self._find(args, kwargs)
        self.received, self.runs, self.memory = {name: [] for name in self.names}, {}, {}
        handles = [
            self.originals[name].register_forward_pre_hook(self._storing(name), with_kwargs=True)
            for name in self.names
        ]
        try:
            modules = list(self.originals.values())
            with evaluation(self.original), zeros_at_padding(modules, args, kwargs), eager(), _Passive():
                self.original(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        self.memory = {}

    def _find(self, args: tuple, kwargs: dict) -> None:
        """Finds the blocks of the original and registers the hooks of the copy.

        Raises:
            ValueError: a block does not run as a module, or the copy has none of its name.
        """
        names = _known.get(self.original)
        if names is None:
            names = _known[self.original] = _blocks_of(self.original, args, kwargs)
        kind = type(self.original).__name__
        if missing := [name for name in names if name not in self.copies]:
            raise ValueError(f"the copy must have the modules of {kind}, got none named {missing[0]}")
        self.names = names
        for name in names:
            hook = self._holding(name)
            self.handles.append(
                self.copies[name].register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
            )

    def _storing(self, name: str) -> Any:
        def store(module: nn.Module, args: tuple, kwargs: dict) -> None:
            with aside():
                self.received[name].append([self._stored(x) for x in tensors_in(args, kwargs)])

        return store

    def _stored(self, tensor: Tensor) -> Tensor:
        """Copies a tensor; blocks may change theirs in place."""
        version = -1 if tensor.is_inference() else tensor._version
        known = self.memory.get(id(tensor))
        if known is None or known[0] is not tensor or known[1] != version or version < 0:
            known = self.memory[id(tensor)] = tensor, version, tensor.detach().clone()
        return known[2]

    def _holding(self, name: str) -> Any:
        def hold(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            run = self.runs[name] = self.runs.get(name, -1) + 1
            received = self.received.get(name, [])
            if run >= len(received):
                raise ValueError(f"{name} must run as often in the copy as in the network, {len(received)}")
            with aside():
                return self._replaced(name, args, kwargs, received[run])

        return hold

    def _replaced(
        self, name: str, args: tuple, kwargs: dict, held: list[Tensor]
    ) -> tuple[tuple, dict] | None:
        """Writes the held values into the arguments of a block. Returns new arguments only if a tensor cannot
        be overwritten.
        """
        own = list(tensors_in(args, kwargs))
        if any(x.is_nested for x in own):
            raise ValueError(
                f"{name} receives nested tensors; call the copy inside a probe, which packs none"
            )
        if [x.shape for x in own] != [x.shape for x in held]:
            raise ValueError(f"{name} must receive tensors of the same shapes in the copy and in the network")
        new: dict[int, Tensor] = {}
        for x, value in zip(own, held):
            if torch.equal(x, value):
                continue
            if self._can_be_written(x):
                x.copy_(value)
            else:
                new[id(x)] = value.clone()
        return (_exchanged(args, new), _exchanged(kwargs, new)) if new else None

    def _can_be_written(self, x: Tensor) -> bool:
        """Whether a tensor owns its values: it is no weight, and none of its entries share their place."""
        shared = any(stride == 0 and length > 1 for stride, length in zip(x.stride(), x.shape))
        frozen = x.is_inference() and not torch.is_inference_mode_enabled()
        return not (shared or frozen or x.untyped_storage().data_ptr() in self.weights)

    def _end(self, module: nn.Module, args: tuple, output: Any) -> None:
        """Frees the tensors, and checks that every block has run."""
        runs, received = self.runs, self.received
        self.runs, self.received = {}, {}
        for name in self.names:
            if runs.get(name, -1) + 1 != len(received[name]):
                raise ValueError(
                    f"{name} must run as often in the copy as in the network, {len(received[name])}"
                )


def _blocks_of(network: nn.Module, args: tuple, kwargs: dict) -> tuple[str, ...]:
    """Returns the names of the blocks of a network, from one observed pass.

    Raises:
        ValueError: a block is a list whose members the network calls.
    """

    def fault(error: Exception, layer: int | None = None, name: str = "") -> None:
        raise error

    kinds = ("features",)
    forward = ForwardPass(network, lambda activations: None, "*", None, 1, kinds=kinds, on_fault=fault)
    with evaluation(network):
        forward.run(network, args, kwargs)
    found = [forward.blocks.name_of(name) for name in forward.attending]
    names = tuple(dict.fromkeys(name for name in found or forward.layers.unattended if name))
    if lists := [name for name in names if name not in forward.ran]:
        raise ValueError(
            f"inputs are held for blocks that run as modules, but {lists[0]} of {type(network).__name__} is "
            "a list whose members the network calls"
        )
    return names


def _exchanged(value: Any, new: dict[int, Tensor]) -> Any:
    """Returns nested arguments with some tensors exchanged, by their ids."""
    if isinstance(value, Tensor):
        return new.get(id(value), value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_exchanged(each, new) for each in value))
    if isinstance(value, tuple | list):
        return type(value)(_exchanged(each, new) for each in value)
    if type(value) is dict:
        return {key: _exchanged(each, new) for key, each in value.items()}
    return value
