"""What the command line shows: results on stdout, progress on stderr."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

NAME = "transformer-theory"
WIDTH = 160  # columns where the output is no terminal


def console() -> "Console":
    """A console for the result, wide enough for a table in a file."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH)


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """A function that shows one line of progress: a moving line with the time on a terminal, a line each in a log (both on stderr)."""
    from rich.console import Console

    started = time.perf_counter()
    if not sys.stderr.isatty():
        yield lambda text: print(f"{time.perf_counter() - started:6.1f} s  {text}", file=sys.stderr, flush=True)
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda text: bar.update(task, description=text)
