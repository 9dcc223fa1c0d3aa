"""The command line: ``transformer-theory`` = ``python -m transformer_theory``.

Exit codes: 0 done; 1 a claim is violated, its control does not fail, or a computation did not converge; 2 the input is wrong (one line says
what was expected, what came, what to do; nothing is written); 130 interrupted or terminated.

:mod:`.parsers` defines the options, :mod:`.fields` those of an experiment; :mod:`.commands`, :mod:`.claims`, :mod:`.training` and
:mod:`.report` run the commands; :mod:`.terminal` shows output and progress.
"""

import contextlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence

from ..core.errors import NotConverged
from .terminal import NAME

INTERRUPTED = 130
WRITING = ("compare", "run", "report")  # commands that write files; verify does with --out


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; errors of the input become one line on stderr."""
    argv = list(sys.argv[1:] if argv is None else argv)
    flags: Mapping[str, str] = {}
    try:
        with _interruptible():
            from .parsers import parse

            options = parse(argv)
            flags = options.flags
            return options.command(options)
    except SystemExit as leaving:  # --help and --version
        return int(leaving.code or 0)
    except KeyboardInterrupt:
        warnings.filterwarnings("ignore", module="joblib")  # silence its warnings about aborted workers
        return _interrupted(argv)
    except BrokenPipeError:  # the reader of our output has gone, as in `transformer-theory list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (ValueError, OSError) as error:
        return _fail(argv, error, 2, flags)
    except NotConverged as error:
        return _fail(argv, error, 1, flags)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM.

    If a plain KeyboardInterrupt leaves an ``exec`` of source text (some imports of scipy call one), Python ends itself by SIGINT although
    the exception was caught later. A subclass is spared, so the exit code stays.
    """


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Treats SIGTERM (``kill``, a batch system's time limit) as Ctrl-C, so that partial output is removed; handlers of the caller stay."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    main_thread = threading.current_thread() is threading.main_thread()  # no other may set handlers
    replaced = [number for number, handler in usual.items() if main_thread and signal.getsignal(number) == handler]
    for number in replaced:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, usual[number])


def _interrupted(argv: list[str]) -> int:
    writes = argv[:1] and (argv[0] in WRITING or (argv[0] == "verify" and any(word.partition("=")[0] == "--out" for word in argv)))
    return _say("interrupted; nothing was written" if writes else "interrupted", INTERRUPTED)


def _fail(argv: list[str], error: Exception, code: int, flags: Mapping[str, str]) -> int:
    from .fields import with_flags

    if "--traceback" in argv:
        traceback.print_exc()
    message = str(error)
    if isinstance(error, PermissionError) and error.filename:  # Python's own message begins with a number
        message = f"cannot open {error.filename} (permission denied); look at its permissions, or choose another place"
    return _say(with_flags(message, flags), code)


def _say(message: str, code: int) -> int:
    print(f"{NAME}: {' '.join(message.split())}", file=sys.stderr)
    return code
