"""The probed model's call, redirected to the probe; and passes that a probe must leave alone."""

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
    """Replaces the forward of a probed model.

    A deep copy of the model (a running average, say) and a model that is pickled get the original forward. A compiled network that contains
    the probed model breaks its graph here, so that the observed pass runs outside of it.

    Args:
        model, method: the model, and the name of the method that is replaced.
        call: is given the original function and the arguments, and returns the output.
        original: the function that is replaced.
        before: what the model's ``__dict__`` held in its place; None if nothing.
    """

    def __init__(self, model: nn.Module, method: str, call: Callable[[Callable, tuple, dict], Any], original: Callable, before: Any):
        self.model, self.method, self.call, self.original, self.before = model, method, call, original, before

    def __call__(self, *args, **kwargs):
        if "torch._dynamo" in sys.modules:  # importing the compiler takes seconds, and nothing is compiled without it
            call: Any = torch.compiler.disable(self.call)  # pyright: ignore[reportCallIssue]
            return call(self.original, args, kwargs)
        return self.call(self.original, args, kwargs)

    @property
    def __wrapped__(self) -> Callable:  # inspect and Lightning look at the signature of the original
        return self.original

    def __deepcopy__(self, memo: dict) -> Any:
        if self.before is not None:
            return copy.deepcopy(self.before, memo)
        return MethodType(getattr(type(self.model), self.method), memo[id(self.model)])

    def __reduce__(self) -> tuple:
        if self.before is not None:
            return _itself, (self.before,)
        return _bound, (self.model, self.method)


# The mark of functions that torch.compiler.disable has wrapped: a compiled network that contains the probed model must not inline this one.
Redirect.__call__._torchdynamo_disable = True  # type: ignore[attr-defined]


def _itself(value: Any) -> Any:
    return value


def _bound(model: nn.Module, method: str) -> MethodType:
    """The method of a model that is being unpickled; pickle made the model before its attributes."""
    return MethodType(getattr(type(model), method), model)


def inside_vmap(model: nn.Module, args: tuple, kwargs: dict) -> bool:
    """Whether ``torch.vmap`` runs the model: its inputs or parameters then have a hidden dimension, and no number can be read from them."""
    if not functorch.maybe_current_level():
        return False
    return any(_is_batched(tensor) for tensor in (first_tensor(args, kwargs), next(model.parameters(), None)) if tensor is not None)


def _is_batched(tensor: Tensor) -> bool:
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


@contextlib.contextmanager
def eager() -> Iterator[None]:
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
def aside() -> Iterator[None]:
    """Hides the probe's own operations from the model: no gradients, no autocast, no interception."""
    with torch.no_grad(), torch._C.DisableTorchFunction(), contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
