"""Lines of progress: long calls send them, and the caller of the innermost :func:`progress_listener` gets
them.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


def progress(text: str) -> None:
    """Sends one line of progress to the active listener, if there is one."""
    listener()(text)


def listening() -> bool:
    """Returns whether there is an active listener."""
    return _listener.get() is not None


def listener() -> Callable[[str], None]:
    """Returns the active listener of :func:`progress`, for code that runs in another context; without one, a
    function that does nothing.
    """
    return _listener.get() or (lambda text: None)


@contextlib.contextmanager
def progress_listener(listener: Callable[[str], None]) -> Iterator[None]:
    """Calls ``listener`` with each line of :func:`progress` inside the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
