"""Calls on the workers of a dask cluster.

A call belongs to no worker: if its worker dies, the scheduler runs it again on another one, so a lost worker
costs time and no result. A lost scheduler ends the calls with one :class:`ConnectionError`; callers store
what was finished (see :mod:`.journal`).

Results must not depend on the worker. So each worker must run the same sources of this library, the same
versions of Python, torch and numpy, and one call at a time, since torch's random state and number of threads
belong to the process. This is checked when the client connects and again in each call, since workers may join
later.
"""

import asyncio
import contextlib
import functools
import hashlib
import logging
import platform
import re
import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from .. import __version__
from .errors import first_line
from .listeners import progress_listener
from .threads import one_thread

T = TypeVar("T")
SCHEMES = ("tcp", "tls", "ws", "wss", "ucx")  # URL schemes of dask schedulers
TIMEOUT = 5.0  # seconds to wait for a dask scheduler, and then for its first worker


@functools.cache
def sources() -> str:
    """Returns eight hexadecimal digits that change with any source file of this library."""
    digest, package = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def versions() -> dict[str, str]:
    """Returns the versions on which results depend: of this library with its sources, of Python, torch and
    numpy.
    """
    own = f"{__version__} with sources {sources()}"
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "transformer_theory": own,
        "python": python,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


@dataclass
class Cluster:
    """A connection to a dask scheduler.

    Attributes:
        address: address of the scheduler.
        client: dask's client.
    """

    address: str
    client: Any

    @property
    def count(self) -> int:
        """Number of workers at present."""
        return len(self.client.scheduler_info(n_workers=-1)["workers"])

    def calls(
        self,
        function: Callable[..., T],
        settings: Sequence[dict[str, Any]],
        *,
        ordered: bool,
        listener: Callable[[str], None],
    ) -> Iterator[tuple[int, T]]:
        """Yields the number and the result of each call ``function(**setting)``, in order or as they are
        done.

        Args:
            function: importable function, or one that cloudpickle can send.
            settings: arguments of each call. A value that several calls have in common is sent once.
            ordered: whether the results come in the order of the calls.
            listener: called with each line of progress.
        Raises:
            ConnectionError: the scheduler no longer answers, or a call has lost several workers one after
                another.
            ValueError: a worker runs another version, or several calls at a time.
        """
        from distributed import as_completed

        topic = f"transformer-theory-{secrets.token_hex(8)}"
        self.client.subscribe_topic(topic, lambda event: listener(event[1]))
        futures = self._submitted(function, settings, topic)
        numbers = {future.key: number for number, future in enumerate(futures)}
        try:
            for future in futures if ordered else as_completed(futures, loop=self.client.loop):
                yield numbers[future.key], self._result(future)
                future.release()  # otherwise the worker keeps the result until the last call is done
        finally:
            with contextlib.suppress(Exception):  # the scheduler may have gone
                self.client.unsubscribe_topic(topic)
                self.client.cancel([future for future in futures if not future.done()])

    def _submitted(
        self, function: Callable[..., T], settings: Sequence[dict[str, Any]], topic: str
    ) -> list[Any]:
        """Submits the calls. A value that several calls share becomes a task of its own, which the scheduler
        can repeat if it is lost.
        """
        counts: dict[int, int] = {}
        for setting in settings:
            for value in setting.values():
                counts[id(value)] = counts.get(id(value), 0) + 1
        shared: dict[int, Any] = {}
        futures = []
        with warnings.catch_warnings():
            # the data of a training; they are sent once
            warnings.filterwarnings("ignore", message="Sending large graph")
            for setting in settings:
                values = []
                for value in setting.values():
                    if counts[id(value)] > 1 and not isinstance(value, str | int | float | None):
                        if id(value) not in shared:
                            shared[id(value)] = self.client.submit(_identity, value, pure=False)
                        value = shared[id(value)]
                    values.append(value)
                futures.append(
                    self.client.submit(
                        _run_on_worker, versions(), topic, function, tuple(setting), *values, pure=False
                    )
                )
        return futures

    def _result(self, future: Any) -> Any:
        from distributed import CancelledError, KilledWorker
        from distributed.comm.core import CommClosedError

        try:
            return future.result()
        except (CancelledError, CommClosedError) as error:  # lost before or while the result is fetched
            raise ConnectionError(
                f"the dask scheduler at {self.address} no longer answers; start it again with its workers"
            ) from error
        except KilledWorker as error:
            text = (
                "a call has lost several workers one after another; look at their logs, they may have run "
                "out of memory"
            )
            raise ConnectionError(text) from error


def _identity(value: T) -> T:
    return value


def _run_on_worker(
    expected: dict[str, str], topic: str, function: Callable[..., T], names: Sequence[str], *values: Any
) -> T:
    """Runs one call in a worker."""
    from distributed import get_worker

    worker = get_worker()
    if problem := _problem(worker.address, worker.state.nthreads, versions(), expected):
        raise ValueError(problem)
    with one_thread(), progress_listener(lambda line: worker.log_event(topic, line)):
        return function(**dict(zip(names, values)))


def _problem(worker: str, threads: int, found: dict[str, str], expected: dict[str, str]) -> str:
    """Returns why a worker cannot take calls; empty if it can."""
    if different := [name for name in expected if found.get(name) != expected[name]]:
        name = different[0]
        there, here = found.get(name), expected[name]
        return (
            f"all workers must run the same versions, got {name} {there} on {worker} and {here} here; "
            "install the same on both"
        )
    if threads > 1:
        return (
            f"a worker must run one call at a time, got {threads} threads on {worker}; start it with `dask "
            "worker --nthreads 1`"
        )
    return ""


@contextlib.contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connects to a scheduler and checks its workers; dask's own messages are silenced meanwhile.

    Args:
        address: "tcp://host:8786".
    Raises:
        ValueError: the address has another form, dask is not installed, or a worker runs another version or
            several calls at a time.
        ConnectionError: no scheduler answers at the address, or it has no workers.
    """
    # An address has the form scheme://host:port.
    if not re.fullmatch(r"\w+://[^\s/]+:\d+", address) or address.partition("://")[0] not in SCHEMES:
        raise ValueError(f"workers must be a number or an address such as tcp://host:8786, got {address!r}")
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"workers={address!r} needs dask: pip install 'transformer-theory[distributed]', or pass a number"
        ) from error
    with _silenced():
        try:
            client = _client(address)
        except OSError as error:
            reason = f" ({error})" if isinstance(error, _Foreign) else ""
            raise ConnectionError(
                f"no dask scheduler answers at {address} within {TIMEOUT:g} s{reason}; start one with `dask "
                "scheduler`"
            ) from error
        with client:
            try:
                client.wait_for_workers(1, timeout=TIMEOUT)
            except TimeoutError as error:
                raise ConnectionError(
                    f"the dask scheduler at {address} has no workers; start some with `dask worker "
                    f"{address} --nthreads 1`"
                ) from error
            _check(client)
            yield Cluster(address, client)


class _Foreign(OSError):
    """Another service answers at the address, or the connection is not configured."""


def _client(address: str) -> Any:
    """Returns dask's client of a scheduler."""
    from distributed import Client

    class Checked(Client):
        # dask waits without limit for the first answer. After an OSError it closes the client; after any
        # other error its destructor would wait for ten seconds and print a traceback.
        async def _ensure_connected(self, timeout: Any = None) -> None:
            try:
                # to connect, and to answer
                await asyncio.wait_for(super()._ensure_connected(timeout=timeout), 2 * TIMEOUT)
            except (OSError, ImportError):
                raise
            except Exception as error:
                raise _Foreign(first_line(error)) from error

    return Checked(address, timeout=TIMEOUT, set_as_default=False)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Silences dask's loggers inside the block: a lost connection is reported by one error, not by tracebacks
    of its threads.
    """
    # dask gives some of its loggers levels of their own, so that a level of their common ancestor does not
    # suffice.
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]
    before = {logger: logger.level for logger in map(logging.getLogger, names)}
    try:
        for logger in before:
            logger.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)


def _check(client: Any) -> None:
    """Checks all present workers.

    Raises:
        ValueError: a worker lacks this library, runs another version, or several calls at a time.
    """
    try:
        found = client.run(versions, on_error="return")
    except Exception as error:  # whatever a foreign worker raises when it cannot read the call
        raise ValueError(
            f"the workers cannot run transformer_theory ({error}); install the same version on each"
        ) from error
    for worker, threads in client.nthreads().items():
        there = found.get(worker, {})
        if isinstance(there, BaseException):
            raise ValueError(
                f"the worker {worker} cannot run transformer_theory ({there}); install the same version there"
            )
        if there and (problem := _problem(worker, threads, there, versions())):
            raise ValueError(problem)
