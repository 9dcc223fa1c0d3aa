"""Parallel execution of sweeps over processes of this machine or a dask cluster.

An experiment calls :func:`sweep`; its caller chooses the workers, with :func:`workers` or joblib's
``parallel_config``. Each call runs on one thread, so results do not depend on the workers. Small matrices are
slower on several threads than on one, and many times slower on a busy machine, so public solvers are
:func:`single_threaded`.
"""

import contextlib
import functools
import os
import pickle
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future
from concurrent.futures import as_completed as as_done
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import IO, Any, Literal, ParamSpec, TypeVar

import torch

from .allocator import give_back_freed_memory
from .cluster import Cluster, connected
from .forked import end_with, forked_pool, may_fork
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
        place: where they are: "forked", processes of this machine that share the memory of this one, or this
            process alone; "joblib", those of the active joblib context; or the dask cluster to which they
            belong.
        used: whether a sweep used them.
        block: what ends with the block of :func:`workers`: the forked processes.
    """

    count: int
    place: Literal["forked", "joblib"] | Cluster = "forked"
    used: bool = False
    block: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def cluster(self) -> Cluster | None:
        """The dask cluster; None for processes of this machine."""
        return None if isinstance(self.place, str) else self.place


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
    forked = active if active and active.place == "forked" else None
    # without joblib no context of it is active; its import takes as long as a quick claim
    alone = forked.count == 1 if forked else active is None and "joblib" not in sys.modules
    if alone:
        return (_call(function, setting, None) for setting in settings)
    # Workers append their lines of progress to a file of this machine, which a thread of this process reads.
    # Under Linux it has no name, and they find it among the files of this process: nothing is left if that is
    # killed.
    place = lines = None
    if active and active.count > 1:
        lines = (tempfile.TemporaryFile if UNNAMED else tempfile.NamedTemporaryFile)("r")
        path = f"/proc/{os.getpid()}/fd/{lines.fileno()}" if UNNAMED else lines.name
        place = path, os.path.realpath(path)
    if forked:
        results: Any = _in_forks(function, list(settings), place, forked, ordered=return_as == "generator")
    else:
        from joblib import Parallel, delayed

        # Any: joblib's annotation does not cover return_as.
        results = Parallel(return_as=return_as)(
            delayed(_call)(function, setting, place) for setting in settings
        )
    return results if lines is None else _with_progress(results, lines)


def _in_forks(
    function: Callable[..., T],
    settings: list[dict[str, Any]],
    place: tuple[str, str] | None,
    active: Workers,
    *,
    ordered: bool,
) -> Iterator[T]:
    """Submits the calls to forked processes and returns an iterator over their results."""

    def call(number: int) -> T:
        _active.set(Workers(1))  # a call inside the call runs in the same process
        with contextlib.ExitStack() as inside:
            if "joblib" in sys.modules:  # its processes belong to the parent
                from joblib import parallel_config

                inside.enter_context(parallel_config(backend="sequential"))
            try:
                result = _call(function, settings[number], place)
            except Exception as error:
                if (portable := _portable(error)) is error:
                    raise
                raise portable from error
        give_back_freed_memory()  # the largest call would otherwise decide how much every process keeps
        return result

    with contextlib.ExitStack() as stack:
        submit = stack.enter_context(forked_pool(call, max(1, min(active.count, len(settings)))))
        calls = deque(submit(number) for number in range(len(settings)))
        pool = stack.pop_all()
    active.block.push(pool)
    return _results(calls, ordered, pool)


def _results(calls: deque[Future[T]], ordered: bool, pool: contextlib.ExitStack) -> Iterator[T]:
    """Yields the results, in order or as soon as they are there, and forgets them."""
    with pool:
        if not ordered:
            waiting, calls = as_done(calls), deque()
            yield from map(_received, waiting)
        while calls:
            yield _received(calls.popleft())


def _portable(error: Exception) -> Exception:
    """Returns an error that another process can read: this one, or its type and text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # errors of users need not be picklable
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _received(call: Future[T]) -> T:
    """Waits for a result, and gives back the memory through which it came.

    Raises:
        ChildProcessError: the system has ended a process.
    """
    try:
        result = call.result()
    except BrokenExecutor as error:
        # It has a cause if a result could not be read. An end in place of a result, or in the middle of one,
        # is due to the ended process, too.
        cause = str(error.__cause__ or "EOFError")
        if "EOFError" not in cause and "end of file during message" not in cause:
            raise
        raise ChildProcessError(
            "every worker process must live until its call is done, got one that was ended from outside, as "
            "the system does when memory runs out; choose fewer workers"
        ) from None
    give_back_freed_memory()
    return result


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
def workers(number: int | str | None, kind: Literal["fresh", "forked"] = "fresh") -> Iterator[Workers]:
    """Makes :func:`stream` and :func:`sweep` use these workers inside the block.

    Args:
        number: number of processes on this machine, or address of a dask scheduler ("tcp://host:8786", see
            :mod:`.cluster`); None keeps the active workers or joblib context.
        kind: "fresh": new interpreters, which joblib keeps for the next block. "forked": processes for calls
            on one thread of the CPU, which share the memory of this one, so that nothing is imported again;
            results are taken inside the block, and must be picklable. Where forks do not work they are fresh.
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
        elif number is None and (outer := _active.get()) is not None and outer.place == "forked":
            active = outer
        elif number == 1 or (number is None and "joblib" not in sys.modules):
            active = Workers(1)
        elif number is not None and kind == "forked" and _forks():
            active = Workers(number, block=stack)
        else:
            active = Workers(stack.enter_context(_processes(number)), "joblib")
        stack.callback(_active.reset, _active.set(active))
        yield active


def _forks() -> bool:
    # A parent that has used an accelerator leaves threads of autograd that a forked process lacks.
    return may_fork() and not torch.accelerator.is_available()


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
