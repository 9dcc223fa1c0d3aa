"""Output of the command line: results go to stdout, progress to stderr."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console

NAME = "transformer-theory"
WIDTH = 160  # characters per line if the output is not a terminal and COLUMNS is not set


def console() -> "Console":
    """Returns a console for results. In a pipe or a file its width is COLUMNS or :data:`WIDTH`, and trailing blanks are removed."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    return Console(file=cast(IO[str], _Trimmed()), width=None if os.environ.get("COLUMNS", "").isdigit() else WIDTH)


class _Trimmed:
    """Standard output without trailing blanks; rich pads the last column of a table with them."""

    def write(self, text: str) -> int:
        return sys.stdout.write(re.sub(r" +$", "", text, flags=re.MULTILINE))

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Yields a function that reports a stage of progress on stderr.

    A terminal shows one line, which is updated. Otherwise each stage is a new line with the seconds since the start.
    """
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
