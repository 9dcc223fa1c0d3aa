"""Output of the command line: results on stdout, progress on stderr."""

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
WIDTH = 160  # width in characters if the output is not a terminal and COLUMNS is not set


def console() -> "Console":
    """A console for results. In a pipe or a file it is as wide as COLUMNS, or :data:`WIDTH`, and drops trailing blanks."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    return Console(file=cast(IO[str], _Trimmed()), width=None if os.environ.get("COLUMNS", "").isdigit() else WIDTH)


class _Trimmed:
    """Standard output without the trailing blanks of tables."""

    def write(self, text: str) -> int:
        return sys.stdout.write(re.sub(r" +$", "", text, flags=re.MULTILINE))

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Yields a function that shows a stage of progress on stderr: in a line that is updated on a terminal, otherwise in a new line."""
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
