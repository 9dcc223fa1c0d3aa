"""The number of threads. Small matrices are slower on several threads than on one, and many times slower on a
busy machine, so public solvers are :func:`single_threaded`.
"""

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")

# Whether one_thread is active.
_limited: ContextVar[bool] = ContextVar("limited", default=False)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limits torch and the numerical libraries to one thread inside the block; the previous numbers of
    threads are restored afterwards.
    """
    if _limited.get():  # nested: the outermost block has set the limit and will restore it
        yield
        return
    threads, token = torch.get_num_threads(), _limited.set(True)
    torch.set_num_threads(1)
    try:
        with pools("scipy.linalg").limit(limits=1):  # scipy has a BLAS of its own
            yield
    finally:
        torch.set_num_threads(threads)
        _limited.reset(token)


@functools.cache
def pools(library: str) -> Any:
    """Finds the thread pools of the process, those of a library among them, which is imported. The search
    takes milliseconds, so its result is cached.
    """
    from threadpoolctl import ThreadpoolController

    importlib.import_module(library)
    return ThreadpoolController()


def single_threaded(function: Callable[P, T]) -> Callable[P, T]:
    """Returns the function limited to :func:`one_thread`, for use as a decorator."""

    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> T:
        with one_thread():
            return function(*args, **kwargs)

    return limited


class SharedContext:
    """A change of a global setting that several threads share: the first thread that enters makes it, the
    last one that leaves takes it back.

        eagerly = SharedContext(lambda: torch.compiler.set_stance("force_eager"))
        with eagerly():
            ...

    Args:
        make: function that returns the context manager which changes the setting.
    """

    def __init__(self, make: Callable[[], AbstractContextManager]):
        self._make, self._lock, self._users = make, threading.Lock(), 0
        self._change = contextlib.ExitStack()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._users:
                self._change.enter_context(self._make())
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._change.close()
