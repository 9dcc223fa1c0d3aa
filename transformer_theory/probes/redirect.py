"""Redirects calls of a model to a probe, and prepares torch for an observed forward pass."""

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]

from .modules import first_tensor


class Redirect:
    """A callable that replaces a method of a probed model, usually ``forward``.

    Copies of the model (a running average of the weights, for example) and pickled models have the original
    method. A compiled network that contains the probed model breaks its graph here, so that the observed pass
    does not run as a part of the graph.

    Args:
        model, method: the model, and the name of the method.
        call: function of the original method, its arguments and its keyword arguments that returns the
            output.
        original: the original method.
        before: previous entry of the model's ``__dict__`` under this name; None if there was none.
    """

    def __init__(
        self,
        model: nn.Module,
        method: str,
        call: Callable[[Callable, tuple, dict], Any],
        original: Callable,
        before: Any,
    ):
        self.model, self.method, self.call, self.original, self.before = model, method, call, original, before

    def __call__(self, *args, **kwargs):
        # if the compiler is not imported, nothing is compiled; importing it takes seconds
        if "torch._dynamo" in sys.modules:
            call: Any = torch.compiler.disable(self.call)  # pyright: ignore[reportCallIssue]
            return call(self.original, args, kwargs)
        return self.call(self.original, args, kwargs)

    @property
    def __wrapped__(self) -> Callable:
        """The original method, whose signature ``inspect`` and Lightning read."""
        return self.original

    def __deepcopy__(self, memo: dict) -> Any:
        if self.before is not None:
            return copy.deepcopy(self.before, memo)
        # bound to the copy of the model
        return MethodType(getattr(type(self.model), self.method), memo[id(self.model)])

    def __reduce__(self) -> tuple:
        if self.before is not None:
            return _identity, (self.before,)
        return _bound_method, (self.model, self.method)


# torch.compiler.disable sets this attribute on a function; a compiled network that contains the probed model
# then does not inline the call.
Redirect.__call__._torchdynamo_disable = True  # type: ignore[attr-defined]


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


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Runs compiled modules eagerly, and torch's transformer layers without the fused kernel, in which
    attention cannot be observed.
    """
    dynamo = sys.modules.get("torch._dynamo")
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with contextlib.nullcontext() if dynamo is None else torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


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
