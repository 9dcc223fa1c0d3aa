"""Progress of long calls: one line that a terminal or a notebook updates.

``compare``, ``reach``, ``verify`` and experiments show it by themselves in a notebook and in an interactive
interpreter. Scripts, tests and worker processes stay silent.

    tt.compare(data)                    # shown in a notebook, silent in a script
    tt.compare(data, progress=True)     # shown in a script, too
    tt.compare(data, progress=False)    # silent everywhere
    tt.compare(data, progress=print)    # each line of text is passed to the function
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from .listeners import listening, progress_listener

Progress = Callable[[str], None] | bool | None
"""A function that is called with each line of text; whether to show the lines; None shows them in a notebook
and in an interpreter.
"""
LOGGED = 5.0  # seconds between two lines of a log
INTERVAL = 0.1  # seconds between two updates of a notebook's line, which travel through the browser


def interactive() -> bool:
    """Returns whether a person types into this process: a notebook, IPython, or Python's own prompt."""
    return hasattr(sys, "ps1") or _shell() is not None


def _shell() -> Any:
    """Returns the running IPython shell; None outside IPython, which is not imported for that."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None


@contextlib.contextmanager
def shown(progress: Progress, name: str) -> Iterator[None]:
    """Passes the lines of :func:`~.listeners.progress` inside the block to a function, or shows them.

    An outer block that listens already keeps the lines, unless this one is given a function or a truth value.

    Args:
        progress: see :data:`Progress`.
        name: name of the call, which a notebook shows with its duration at the end.
    Raises:
        TypeError: ``progress`` is neither a function nor a truth value nor None.
    """
    if progress is not None and not callable(progress) and not isinstance(progress, bool):
        raise TypeError(
            "progress must be a function of one line of text, True, False or None, got "
            f"{type(progress).__name__}"
        )
    if progress is None and (listening() or not interactive()):
        yield
    elif progress is None or progress is True:
        with line(name) as report, progress_listener(report):
            yield
    else:
        with progress_listener(progress or (lambda text: None)):
            yield


@contextlib.contextmanager
def line(name: str = "") -> Iterator[Callable[[str], None]]:
    """Yields a function that shows a stage of progress: in a notebook below the cell, elsewhere on stderr.

    A notebook and a terminal show one line, which is updated. A file or a pipe gets the first stage, and then
    the present one every :data:`LOGGED` seconds, with the seconds since the start.
    """
    shell = _shell()
    if shell is not None and hasattr(shell, "kernel"):
        with _notebook_line(name) as report:
            yield report
        return
    if not sys.stderr.isatty():
        started, due = time.perf_counter(), 0.0

        def log(text: str) -> None:
            nonlocal due
            seconds = time.perf_counter() - started
            if seconds >= due:
                due = seconds + LOGGED
                print(f"{seconds:6.1f} s  {text}", file=sys.stderr, flush=True)

        yield log
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda text: bar.update(task, description=text)


@contextlib.contextmanager
def _notebook_line(name: str) -> Iterator[Callable[[str], None]]:
    """Yields a function that updates one line of output; at the end, the line holds the name and the
    duration.

    Every notebook can show text, so that neither ipywidgets nor a script of the page is needed.
    """
    from IPython.display import display  # pyright: ignore[reportMissingImports] - runs in a notebook only, which has it

    started, last = time.perf_counter(), 0.0
    handle: Any = display({"text/plain": f"{name}: starting"}, raw=True, display_id=True)

    def update(text: str) -> None:
        handle.update({"text/plain": text}, raw=True)

    def report(text: str) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last >= INTERVAL:
            last = now
            update(f"{name}: {now - started:.0f} s  {text}")

    outcome = "stopped after"
    try:
        yield report
        outcome = "done in"
    finally:
        update(f"{name}: {outcome} {time.perf_counter() - started:.0f} s")
