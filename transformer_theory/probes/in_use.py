"""Models that a thread measures. A measurement changes a model while it runs, by hooks and by its mode, so
another thread must not measure it meanwhile: it is refused before it changes anything.
"""

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import nn

from .modules import original_of

F = TypeVar("F", bound=Callable)
_lock = threading.Lock()
_uses: weakref.WeakSet["Use"] = weakref.WeakSet()


class Use:
    """The use of a model by this thread, until :meth:`end`, the end of the thread, or garbage collection. A
    thread may use a model several times.

    Raises:
        ValueError: another thread uses the model, a part of it, or a model that contains it.
    """

    def __init__(self, model: nn.Module):
        self.model, self.thread = model, threading.current_thread()
        with _lock:
            for other in _uses:
                if other.thread is not self.thread and other.thread.is_alive() and self._overlaps(other):
                    raise ValueError(
                        f"{type(original_of(model)).__name__} is being measured by another thread, "
                        f"{other.thread.name}; measure it in one thread at a time, or give each thread a "
                        "copy of it"
                    )
            _uses.add(self)

    def _overlaps(self, other: "Use") -> bool:
        return any(module is other.model for module in self.model.modules()) or any(
            module is self.model for module in other.model.modules()
        )

    def end(self) -> None:
        """Ends the use, in any thread."""
        with _lock:
            _uses.discard(self)


@contextlib.contextmanager
def in_use(model: nn.Module) -> Iterator[None]:
    """Reserves a model for this thread inside the block.

    Raises:
        ValueError: see :class:`Use`.
    """
    use = Use(model)
    try:
        yield
    finally:
        use.end()


def reserving(function: F) -> F:
    """Returns a function that reserves the model for its thread during the whole call, for use as a
    decorator. The model is the first argument, or its attribute ``network``.
    """

    @functools.wraps(function)
    def reserved(model: Any, *args: Any, **kwargs: Any) -> Any:
        network = model if isinstance(model, nn.Module) else getattr(model, "network", None)
        with in_use(network) if isinstance(network, nn.Module) else contextlib.nullcontext():
            return function(model, *args, **kwargs)

    return reserved  # pyright: ignore[reportReturnType]
