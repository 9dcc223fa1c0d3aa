"""The command line: ``transformer-theory`` = ``python -m transformer_theory``.

Exit codes: 0 done; 1 a claim is violated, its control does not fail, or a computation did not converge; 2 the
input is wrong (one line on stderr states what was expected, what was given and what to do; nothing is
written); 130 interrupted or terminated.

:mod:`.parsers` defines the options, :mod:`.fields` those of an experiment; :mod:`.commands`, :mod:`.claims`,
:mod:`.training` and :mod:`.report` run the commands; :mod:`.terminal` shows output and progress.
"""

import contextlib
import gc
import os
import signal
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from ..core.allocator import keep_freed_memory
from ..core.errors import NotConverged
from .terminal import NAME, error_line

INTERRUPTED = 130
AGAIN = 0.3  # seconds until an interruption that was lost is raised again
ALARM = getattr(signal, "SIGALRM", None)  # the signal of the timer; Windows has none
WRITING = ("compare", "run", "report")  # commands that always write files; verify writes some if given --out
MEASURING = ("compare", "intervene", "measure", "probe", "reach", "train")  # commands that measure networks


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Errors in the input are reported in one line on stderr.

    It is no error if the reader of the output leaves early, as in ``transformer-theory list | head -1``.
    """
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv), last=argv is None)
    except BrokenPipeError:
        code = 0
    # Output may still be in a buffer. Python flushes it at its exit, too late to handle an error.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed and (error := _flush(stream)) is not None:
            code = 0 if isinstance(error, BrokenPipeError) else _fail([], error, 2, {})
    return code


def _run(argv: list[str], *, last: bool) -> int:
    """Runs one command and returns its exit code.

    Args:
        argv: words of the command.
        last: whether the program ends with it.
    Raises:
        BrokenPipeError: the reader of stdout or stderr has left.
    """
    flags: Mapping[str, str] = {}
    try:
        with _interruptible(last=last):
            # read when torch is imported: its threads wait asleep, else they are up to ten times slower
            # beside another program
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
            from .parsers import parse

            _check_encoding(argv)
            options = parse(argv)
            flags = options.flags
            if argv[:1] and argv[0] in MEASURING:
                keep_freed_memory()
            if last and argv[:1] != ["list"]:  # which needs no tensors
                _import_torch()
            code = options.command(options)
            if last and "workers" in options:
                from ..core.parallel import end_workers

                end_workers()
            return code
    except SystemExit as exit_request:  # --help and --version
        return int(exit_request.code or 0)
    except KeyboardInterrupt as error:
        warnings.filterwarnings("ignore", module="joblib")  # joblib warns about the workers that were aborted
        return _print_line(f"interrupted; {error}", INTERRUPTED) if str(error) else _interrupted(argv)
    except BrokenPipeError:
        raise
    except (ValueError, OSError, ImportError) as error:  # a package of an extra may be missing
        return _fail(argv, error, 2, flags)
    except NotConverged as error:
        return _fail(argv, error, 1, flags)


def _import_torch() -> None:
    """Imports torch without garbage collections, and leaves its objects out of all later ones
    (:func:`gc.freeze`). They live as long as the process, and are so many that looking at them again and
    again takes a quarter of the time of a quick command.
    """
    gc.disable()
    try:
        import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        gc.freeze()
        gc.enable()


def _check_encoding(argv: list[str]) -> None:
    """Raises ValueError if a word is not in UTF-8: results and pages could not name it."""
    for word in argv:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise ValueError(f"arguments must be in UTF-8, got {os.fsencode(word)!r}; rename it") from None


def _flush(stream: TextIO) -> OSError | None:
    """Writes what is buffered. After an error the stream leads nowhere, so that Python's exit does not raise
    it again.
    """
    try:
        stream.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return error
    return None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM.

    If a plain KeyboardInterrupt propagates out of an ``exec`` of source text (some scipy imports call
    ``exec``), Python exits by SIGINT even if the exception is caught later. It does not do so for a subclass,
    so our exit code is returned.
    """


@contextlib.contextmanager
def _interruptible(*, last: bool) -> Iterator[None]:
    """Treats SIGTERM (``kill``, a batch system's time limit) as Ctrl-C, so that partial output is removed.

    An exception that a signal handler raises is lost if it meets a destructor or the callback of a weak
    reference, where Python only prints it, or a library that catches everything. A timer therefore raises it
    again every :data:`AGAIN` seconds until the block ends. It does not while the exception is being handled,
    so that the removal of partial output is not interrupted, also not by a second Ctrl-C. After the last
    command signals are ignored: they would only replace its exit code while Python ends.

    Python prints errors that it cannot raise. After an interruption, and while the handlers are restored, it
    prints nothing: an object whose construction was interrupted often fails in its destructor, and Python
    reports a signal that it had received before its handler was replaced ("ignored due to race condition").
    After the last command this lasts until Python has ended.

    A handler that the caller has installed is not replaced.
    """

    active = True
    interrupted = False

    def interrupt(number: int, frame: types.FrameType | None) -> None:
        nonlocal interrupted
        if not active:
            return
        interrupted = True
        if ALARM in replaced:
            signal.setitimer(signal.ITIMER_REAL, AGAIN, AGAIN)
        lost = frame is not None and frame.f_code is unraisable.__code__
        if not lost and not _is_handled():
            raise Interrupted

    defaults = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    if ALARM is not None:
        defaults[ALARM] = signal.SIG_DFL
    # only this thread may set signal handlers
    main_thread = threading.current_thread() is threading.main_thread()
    replaced = [
        number for number, handler in defaults.items() if main_thread and signal.getsignal(number) == handler
    ]
    for number in replaced:
        signal.signal(number, interrupt)
    print_unraisable = sys.unraisablehook

    def unraisable(lost: "sys.UnraisableHookArgs") -> None:
        if active and not interrupted:
            print_unraisable(lost)

    sys.unraisablehook = unraisable
    try:
        try:
            yield
        finally:
            active = False
    finally:  # also if a signal came before the line above
        # A signal that Python has received and not yet handled must not set the timer again: it would end the
        # process once the handlers are the usual ones.
        active = False
        if ALARM is not None and ALARM in replaced:
            signal.signal(ALARM, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number in replaced:
            signal.signal(number, signal.SIG_IGN if last and number != ALARM else defaults[number])
        if not (last and interrupted):
            sys.unraisablehook = print_unraisable


def _is_handled() -> bool:
    """Returns whether an :class:`Interrupted` is being handled, in the chain of the present exception."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, Interrupted):
            return True
        error = error.__context__
    return False


def _interrupted(argv: list[str]) -> int:
    """Reports an interruption. Commands that write a result create it as a whole at the end, so nothing was
    written.
    """
    writes = argv[:1] and (
        argv[0] in WRITING
        or (argv[0] == "verify" and any(word.partition("=")[0] == "--out" for word in argv))
    )
    return _print_line("interrupted; nothing was written" if writes else "interrupted", INTERRUPTED)


def _fail(argv: list[str], error: Exception, code: int, flags: Mapping[str, str]) -> int:
    """Prints an error (:func:`.error_line`) and returns the exit code."""
    if "--traceback" in argv:
        traceback.print_exc()
    return _print_line(error_line(error, flags), code)


def _print_line(message: str, code: int) -> int:
    """Prints the message on one line of stderr and returns the exit code."""
    print(f"{NAME}: {' '.join(message.split())}", file=sys.stderr)
    return code
