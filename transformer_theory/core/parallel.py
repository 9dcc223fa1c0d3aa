"""Parallel execution of sweeps over processes of this machine or a dask cluster.

An experiment calls :func:`sweep`; its caller chooses the workers, with :func:`workers` or joblib's
``parallel_config``. Each call runs on one thread, so results do not depend on the workers. Small matrices are
slower on several threads than on one, and many times slower on a busy machine, so public solvers are
:func:`single_threaded`.
"""

import contextlib
import functools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import IO, Any, ParamSpec, TypeVar

from .cluster import Cluster, connected
from .forked import end_with
from .listeners import listener, progress, progress_listener
from .threads import one_thread

P = ParamSpec("P")
T = TypeVar("T")
PROGRESS_INTERVAL = 0.5  # seconds between two looks at the lines of progress of the workers
UNNAMED = os.path.isdir("/proc/self/fd")
_begun = False  # whether worker processes of this machine were begun


@dataclass
class Workers:
    """The active workers.

    Attributes:
        count: number of processes.
        cluster: the dask cluster to which they belong; None for processes of this machine.
        used: whether a sweep used them.
    """

    count: int
    cluster: Cluster | None = None
    used: bool = False


_active: ContextVar[Workers | None] = ContextVar("active", default=None)


def stream(function: Callable[..., T], settings: Iterable[dict[str, Any]]) -> Iterator[T]:
    """Yields ``function(**setting)`` for each setting, in order, computed in the active joblib context.

    With several processes, all calls are submitted immediately. By default, calls run in this process, each
    when its result is requested. The function must be importable, and its arguments and results must be
    picklable. Random numbers must come from a seed in the setting.
    """
    return _submit(function, settings, "generator")


def as_completed(function: Callable[..., T], settings: Iterable[dict[str, Any]]) -> Iterator[tuple[int, T]]:
    """Yields the number and the result of each call as soon as it is done; otherwise as :func:`stream`."""
    active = _active.get()
    if active and active.cluster:
        active.used = True
        return active.cluster.calls(function, list(settings), ordered=False, listener=listener())
    numbered = (
        {"number": number, "function": function, "arguments": arguments}
        for number, arguments in enumerate(settings)
    )
    return _submit(_numbered, numbered, "generator_unordered")


def _numbered(*, number: int, function: Callable[..., T], arguments: dict[str, Any]) -> tuple[int, T]:
    return number, function(**arguments)


def _submit(function: Callable[..., T], settings: Iterable[dict[str, Any]], return_as: str) -> Iterator[T]:
    """Submits the calls to the active cluster or joblib context and returns an iterator over
    their results.
    """
    active = _active.get()
    if active:
        active.used = True
    if active and active.cluster:
        found = active.cluster.calls(function, list(settings), ordered=True, listener=listener())
        return (result for _, result in found)
    if "joblib" not in sys.modules:  # so no context is active; its import takes as long as a quick claim
        return (_call(function, setting, None) for setting in settings)
    from joblib import Parallel, delayed

    # Workers append their lines of progress to a file of this machine, which a thread of this process reads.
    # Under Linux it has no name, and they find it among the files of this process: nothing is left if that is
    # killed.
    place = lines = None
    if active and active.count > 1:
        lines = (tempfile.TemporaryFile if UNNAMED else tempfile.NamedTemporaryFile)("r")
        path = f"/proc/{os.getpid()}/fd/{lines.fileno()}" if UNNAMED else lines.name
        place = path, os.path.realpath(path)
    # Any: joblib's annotation does not cover return_as.
    results: Any = Parallel(return_as=return_as)(
        delayed(_call)(function, setting, place) for setting in settings
    )
    return results if lines is None else _with_progress(results, lines)


def _with_progress(results: Iterator[T], lines: IO[str]) -> Iterator[T]:
    """Yields the results, and passes the lines of progress that workers write meanwhile to the active
    listener.
    """
    pass_line, finished = listener(), threading.Event()

    def pass_on() -> None:
        unfinished = ""
        while not finished.wait(PROGRESS_INTERVAL):
            *whole, unfinished = (unfinished + lines.read()).split("\n")
            for line in whole:
                pass_line(line)

    thread = threading.Thread(target=pass_on, daemon=True)
    with lines:
        thread.start()
        try:
            yield from results
        finally:
            finished.set()
            thread.join()


def sweep(function: Callable[..., T], settings: Iterable[dict[str, Any]]) -> list[T]:
    """Returns the results of :func:`stream` as a list, and reports progress about once a second."""
    settings = list(settings)
    # A line of progress names the settings that are short and differ between calls.
    short = [
        {name: value for name, value in setting.items() if isinstance(value, str | int | float)}
        for setting in settings
    ]
    varying = [
        name for name in (short[0] if short else {}) if len({setting.get(name) for setting in short}) > 1
    ]
    results, last = [], time.monotonic()
    for setting, result in zip(short, stream(function, settings)):
        results.append(result)
        if time.monotonic() - last > 1 or len(results) == len(settings):
            last = time.monotonic()
            values = ", ".join(f"{name}={setting.get(name)}" for name in varying)
            progress(f"{len(results)} of {len(settings)} settings{f' ({values})' if values else ''}")
    return results


def _call(function: Callable[..., T], setting: dict[str, Any], place: tuple[str, str] | None) -> T:
    """Calls the function in a worker, or in this process if there is no place for its lines of progress."""
    with one_thread():
        if place is None:
            return function(**setting)
        with progress_listener(functools.partial(_append, *place)):
            return function(**setting)


def _append(path: str, real: str, line: str) -> None:
    """Appends a line to an existing file; does nothing where the file does not exist or its path leads to
    another, as on another machine of a cluster.
    """
    if os.path.realpath(path) != real:
        return
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            # a single write, so that lines of several workers do not mix
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)


@contextlib.contextmanager
def workers(number: int | str | None) -> Iterator[Workers]:
    """Makes :func:`stream` and :func:`sweep` use these workers inside the block.

    Args:
        number: number of processes on this machine, or address of a dask scheduler ("tcp://host:8786", see
            :mod:`.cluster`); None keeps the active joblib context.
    Raises:
        ValueError: the number is less than 1, the address has another form, dask is not installed, or a
            worker runs another version.
        ConnectionError: no scheduler answers at the address, or it has no workers.
    """
    with contextlib.ExitStack() as stack:
        if isinstance(number, str):
            cluster = stack.enter_context(connected(number))
            active = Workers(cluster.count, cluster)
        elif number is not None and number < 1:
            raise ValueError(
                f"workers must be a number of at least 1, or the address of a dask scheduler, got {number}"
            )
        elif number in (None, 1) and "joblib" not in sys.modules:
            active = Workers(1)
        else:
            active = Workers(stack.enter_context(_processes(number)))
        stack.callback(_active.reset, _active.set(active))
        yield active


@contextlib.contextmanager
def _processes(number: int | None) -> Iterator[int]:
    """Makes joblib use this number of processes inside the block; None: those of its active context. Yields
    their number.

    If the block is interrupted, they are killed: joblib would wait for the calls that they have begun.
    """
    global _begun
    from joblib import effective_n_jobs, parallel_config

    if number is None:
        yield effective_n_jobs(None)  # pyright: ignore[reportArgumentType]
        return
    _begun = _begun or number > 1
    backend = {"backend": "loky", "initializer": end_with, "initargs": (os.getpid(),)}
    with parallel_config(**backend, n_jobs=number, inner_max_num_threads=1):
        try:
            yield number
        except (KeyboardInterrupt, SystemExit):
            end_workers()
            raise


def end_workers() -> None:
    """Kills the worker processes of this machine, if there are any. They are kept for the next block, and
    would take a second to end by themselves.
    """
    if _begun:
        from joblib.externals.loky import get_reusable_executor

        # Its arguments differ from joblib's, so the first call ends joblib's executor and returns a new one,
        # which has no processes yet.
        get_reusable_executor(kill_workers=True).shutdown(wait=False, kill_workers=True)
