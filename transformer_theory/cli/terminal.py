"""Output of the command line: results go to stdout, progress to stderr."""

import os
import re
import sys
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, cast

from ..core.progress import line as progress_line  # noqa: F401 - the commands import it from here

if TYPE_CHECKING:
    from rich.console import Console

NAME = "transformer-theory"
WIDTH = 160  # characters per line if the output is not a terminal and COLUMNS is not set


def console() -> "Console":
    """Returns a console for results. In a pipe or a file its width is COLUMNS or :data:`WIDTH`, and trailing
    blanks are removed.
    """
    from rich.console import Console

    class Passing(Console):
        def on_broken_pipe(self) -> None:
            """Raises the BrokenPipeError, which ``main`` handles; rich would end the process with
            status 1.
            """
            raise

    if sys.stdout.isatty():
        return Passing()
    return Passing(
        file=cast(IO[str], _Trimmed()), width=None if os.environ.get("COLUMNS", "").isdigit() else WIDTH
    )


class _Trimmed:
    """Standard output without trailing blanks; rich pads the last column of a table with them."""

    def write(self, text: str) -> int:
        return sys.stdout.write(re.sub(r" +$", "", text, flags=re.MULTILINE))

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


def error_line(error: Exception, flags: Mapping[str, str]) -> str:
    """Returns the message of an error on one line, in which names of fields are options (``flags``)."""
    from .fields import with_flags

    message = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno is not None:  # Python's own message begins with the errno
        message = _of_system(error)
    # the message names --overwrite before
    return " ".join(with_flags(message.replace(" (overwrite=True)", ""), flags).split())


def _of_system(error: OSError) -> str:
    """Returns the message of an error that the operating system has raised."""
    from ..core.errors import reason
    from ..core.files import FULL

    place = f" {error.filename}" if error.filename else ""
    cause = reason(error).lower()
    if error.errno in FULL:
        place = place and f" to{place}"
        return f"cannot write{place} ({cause}); free some space, or choose another --out"
    if isinstance(error, PermissionError):
        return f"cannot open{place} ({cause}); change its permissions, or choose another path"
    return f"cannot open{place} ({cause}); check the path"
