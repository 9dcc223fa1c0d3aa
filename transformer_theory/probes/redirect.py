"""Redirects calls of a model to a probe, and prepares torch for an observed forward pass."""

import contextlib
import copy
import sys
import threading
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]

from ..core.threads import SharedContext
from .in_use import Use
from .modules import first_tensor

_lock = threading.RLock()  # guards the methods of probed models


class Redirect:
    """A callable that replaces a method of a probed model, usually ``forward``.

    Several probes of one model form a chain: each redirect calls the one that was there before. Every link
    can be closed at any time, see :meth:`close`. Calls of several threads run one after another.

    Copies of the model (a running average of the weights, for example) and pickled models have the original
    method. A compiled network that contains the probed model breaks its graph here, so that the observed pass
    does not run as a part of the graph.

    Args:
        model, method: the model, and the name of the method.
        call: function of the original method, its arguments and its keyword arguments that returns the
            output.

    Attributes:
        original: the original method.
        before: previous entry of the model's ``__dict__`` under this name; None if there was none.

    Raises:
        ValueError: another thread is measuring the model, a part of it, or a model that contains it. Each of
            the two would measure the passes of the other.
    """

    def __init__(self, model: nn.Module, method: str, call: Callable[[Callable, tuple, dict], Any]):
        self.model, self.method, self.call = model, method, call
        self.use, self.passes = Use(model), threading.RLock()
        # Replace the method on the instance: hooks do not run on a model that has been compiled.
        compiled = method == "forward" and model._compiled_call_impl is not None
        self.slot = "_compiled_call_impl" if compiled else method
        with _lock:
            self.before, self.original = model.__dict__.get(self.slot), getattr(model, self.slot)
            model.__dict__[self.slot] = self

    def close(self) -> None:
        """Restores the method. If another redirect was opened after this one, that one stays and continues
        with the method that was there before this one. If something else has replaced the method meanwhile,
        it stays, and this redirect only calls the original.
        """
        with _lock:
            entries = self.model.__dict__
            above = entries.get(self.slot)
            if above is self:
                if self.before is None:
                    del entries[self.slot]
                else:
                    entries[self.slot] = self.before
            else:
                while isinstance(above, Redirect) and above.before is not self:
                    above = above.before
                if isinstance(above, Redirect):
                    above.before, above.original = self.before, self.original
            self.call = _call_original
        self.use.end()

    @property
    def is_alone(self) -> bool:
        """Whether no other redirect replaces the method, or the forward pass of a part of the model."""
        slots = (self.slot, "forward", "_compiled_call_impl")
        entries = [vars(module).get(slot) for module in self.model.modules() for slot in slots]
        return not isinstance(self.before, Redirect) and all(
            entry is self for entry in entries if isinstance(entry, Redirect)
        )

    def __call__(self, *args, **kwargs):
        # if the compiler is not imported, nothing is compiled; importing it takes seconds
        with self.passes:
            call: Any = self.call
            if "torch._dynamo" in sys.modules:
                call = torch.compiler.disable(call)  # pyright: ignore[reportCallIssue]
            return call(self.original, args, kwargs)

    @property
    def __wrapped__(self) -> Callable:
        """The original method, whose signature ``inspect`` and Lightning read."""
        return self.original

    def __deepcopy__(self, memo: dict) -> Any:
        if self.before is not None:
            return copy.deepcopy(self.before, memo)
        # bound to the copy of the model
        return MethodType(getattr(type(self.model), self.method), copy.deepcopy(self.model, memo))

    def __reduce__(self) -> tuple:
        if self.before is not None:
            return _identity, (self.before,)
        return _bound_method, (self.model, self.method)


# torch.compiler.disable sets this attribute on a function; a compiled network that contains the probed model
# then does not inline the call.
Redirect.__call__._torchdynamo_disable = True  # type: ignore[attr-defined]


def _call_original(original: Callable, args: tuple, kwargs: dict) -> Any:
    return original(*args, **kwargs)


def _identity(value: Any) -> Any:
    return value


def _bound_method(model: nn.Module, method: str) -> MethodType:
    """Returns the method of a model that is being unpickled. Pickle creates the model before its attributes,
    so the model exists.
    """
    return MethodType(getattr(type(model), method), model)


def inside_vmap(model: nn.Module, args: tuple, kwargs: dict) -> bool:
    """Whether ``torch.vmap`` runs the model. Its inputs or parameters then have a hidden batch axis, and
    their values cannot be read.
    """
    if not functorch.maybe_current_level():
        return False
    return any(
        _is_batched(tensor)
        for tensor in (first_tensor(args, kwargs), next(model.parameters(), None))
        if tensor is not None
    )


def _is_batched(tensor: Tensor) -> bool:
    """Whether one of the nested functorch wrappers of a tensor (vmap, grad) is a vmap."""
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


def in_this_thread(hook: Callable) -> Callable:
    """Returns a hook that acts on calls of this thread only: another thread may run the same modules
    meanwhile.
    """
    own = threading.get_ident()

    def only_here(*args, **kwargs):
        return hook(*args, **kwargs) if threading.get_ident() == own else None

    return only_here


def eager() -> contextlib.AbstractContextManager[None]:
    """Runs compiled modules eagerly; compiled modules of other threads run eagerly meanwhile, too.

    The fused kernel of torch's transformer layers, in which attention cannot be observed, need not be turned
    off: these layers do not use it under a ``TorchFunctionMode``.
    """
    # if the compiler is not imported, nothing is compiled; importing it takes seconds
    return _force_eager() if "torch._dynamo" in sys.modules else contextlib.nullcontext()


# The stance of the compiler is global, not that of a thread.
_force_eager = SharedContext(lambda: torch.compiler.set_stance("force_eager"))


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Runs operations of the probe without gradients, autocast and interception, so that they do not affect
    the model.
    """
    with torch.no_grad(), torch._C.DisableTorchFunction(), contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
