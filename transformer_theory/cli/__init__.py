"""The command line: ``transformer-theory`` = ``python -m transformer_theory``.

Exit codes: 0 done; 1 a claim is violated, its control does not fail, or a computation did not converge; 2 the input is wrong (one line says
what was expected, what came, what to do; nothing is written); 130 interrupted, or told to terminate.

:mod:`.commands` and :mod:`.claims` what each command does · :mod:`.parsers` its options · :mod:`.fields` options from an experiment ·
:mod:`.tables` results as tables · :mod:`.terminal` where they are shown
"""

import contextlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..core.errors import NotConverged
from .terminal import NAME

INTERRUPTED = 130
WRITING = ("compare", "run", "report")  # commands that leave files; so does verify with --out


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; never raises for what a user can mend."""
    argv = list(sys.argv[1:] if argv is None else argv)
    flags: Mapping[str, str] = {}
    try:
        with _terminated_as_interrupted():
            from .parsers import parse

            options = parse(argv)
            flags = options.flags
            return options.command(options)
    except SystemExit as leaving:  # --help and --version
        return int(leaving.code or 0)
    except KeyboardInterrupt:
        warnings.filterwarnings("ignore", module="joblib")  # what other processes had done in vain needs no word after ours
        return _interrupted(argv)
    except BrokenPipeError:  # the reader of our output has gone, as in `transformer-theory list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (ValueError, OSError) as error:
        return _fail(argv, error, 2, flags)
    except NotConverged as error:
        return _fail(argv, error, 1, flags)


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Stands around the imports of the package, which take a second: Ctrl-C then leaves by one line if it is the command line that starts,
    and is raised as ever if it is somebody's program that imports."""
    try:
        yield
    except KeyboardInterrupt:
        by_module = sys.argv[0] == "-m" and "transformer_theory" in sys.orig_argv  # what -m has not replaced yet while it imports
        if not by_module and Path(sys.argv[0]).name != NAME:
            raise
        sys.exit(_interrupted(sys.argv[1:]))


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Within it SIGTERM (``kill``, a batch system's time limit) is Ctrl-C, so that what was begun is removed; a handler of the caller's own
    stays."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupted(argv: list[str]) -> int:
    writes = argv[:1] and (argv[0] in WRITING or (argv[0] == "verify" and any(word.partition("=")[0] == "--out" for word in argv)))
    return _say("interrupted; nothing was written" if writes else "interrupted", INTERRUPTED)


def _fail(argv: list[str], error: Exception, code: int, flags: Mapping[str, str]) -> int:
    from .fields import as_typed

    if "--traceback" in argv:
        traceback.print_exc()
    told = str(error)
    if isinstance(error, PermissionError) and error.filename:  # Python's own words, which begin with a number
        told = f"cannot open {error.filename} (permission denied); look at its permissions, or choose another place"
    return _say(as_typed(told, flags), code)


def _say(message: str, code: int) -> int:
    print(f"{NAME}: {' '.join(message.split())}", file=sys.stderr)
    return code
