"""Where the settings of a sweep are worked off: here, in several processes, or on a dask cluster. Source: none, this is machinery.

An experiment calls :func:`sweep` and does not know. Who runs it chooses, with :func:`at_work` or joblib's own ``parallel_config``.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from .threads import one_thread

T = TypeVar("T")
SCHEMES = ("tcp", "tls", "ws", "wss", "ucx")  # of dask
ANSWERS_WITHIN = 5.0  # seconds for a dask scheduler to answer, and to have a worker


@dataclass
class Workers:
    """Who works off sweeps: how many there are, and whether there was any sweep for them."""

    number: int
    asked: bool = False


_present: ContextVar[Workers | None] = ContextVar("present", default=None)
_listener: ContextVar[Callable[[str], None]] = ContextVar("listener", default=lambda text: None)


def stream(function: Callable[..., T], settings: Iterable[dict[str, Any]]) -> Iterator[T]:
    """``function(**setting)`` for each setting, in order, each as soon as it and those before it are there, over whatever joblib context is
    active (none: one after the other, here, each when it is asked for; over several processes the work begins at once).

    Each call has one thread, so the results do not depend on the number of workers, provided that they depend on their arguments alone:
    draw random numbers from a seed in the setting. The function must be importable, arguments and results must be picklable.
    """
    from joblib import Parallel, delayed

    if present := _present.get():
        present.asked = True
    # the annotation of joblib knows nothing of return_as
    made: Any = Parallel(return_as="generator")(delayed(_alone)(function, setting) for setting in settings)
    return made


def sweep(function: Callable[..., T], settings: Iterable[dict[str, Any]]) -> list[T]:
    """All that :func:`stream` yields, with a line of progress now and then (:func:`tell`)."""
    settings = list(settings)
    shown = [{name: value for name, value in setting.items() if isinstance(value, str | int | float)} for setting in settings]
    varied = [name for name in dict(*shown[:1]) if len({setting.get(name) for setting in shown}) > 1]
    results, last = [], time.monotonic()
    for setting, result in zip(shown, stream(function, settings)):
        results.append(result)
        if time.monotonic() - last > 1 or len(results) == len(settings):  # a line a second is enough
            last = time.monotonic()
            where = ", ".join(f"{name}={setting.get(name)}" for name in varied)
            tell(f"{len(results)} of {len(settings)} settings{f' ({where})' if where else ''}")
    return results


def _alone(function: Callable[..., T], setting: dict[str, Any]) -> T:
    with one_thread():
        return function(**setting)


def tell(text: str) -> None:
    """One line of progress for whoever listens; nothing happens if nobody does."""
    _listener.get()(text)


@contextlib.contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Within it, ``listener`` is called with each line of :func:`tell`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextlib.contextmanager
def at_work(workers: int | str | None) -> Iterator[Workers]:
    """Within it, :func:`sweep` uses these workers.

    Args:
        workers: processes on this machine, or the address of a dask scheduler ("tcp://host:8786"; its workers need this package, and
            ``dask worker --nthreads 1``, since the matrices are small); None leaves the active joblib context as it is.
    Raises:
        ValueError: fewer than one process, an address of another form, or dask is not installed.
        ConnectionError: no scheduler answers at that address, or it has no workers.
    """
    from joblib import effective_n_jobs, parallel_config

    with contextlib.ExitStack() as stack:
        if isinstance(workers, str):
            stack.enter_context(parallel_config(backend="dask", n_jobs=-1, client=stack.enter_context(_cluster(workers))))
        elif workers is not None:
            if workers < 1:
                raise ValueError(f"workers must be a number from 1 on, or the address of a dask scheduler, got {workers}")
            stack.enter_context(parallel_config(backend="loky", n_jobs=workers, inner_max_num_threads=1))
        present = Workers(effective_n_jobs(None))  # pyright: ignore[reportArgumentType]
        stack.callback(_present.reset, _present.set(present))
        yield present


def _cluster(address: str) -> Any:
    """A client of the scheduler, which closes when it is left."""
    if not re.fullmatch(r"\w+://[^\s/]+:\d+", address) or address.partition("://")[0] not in SCHEMES:
        raise ValueError(f"workers must be a number or an address such as tcp://host:8786, got {address!r}")
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError(f"workers={address!r} needs dask: pip install 'transformer-theory[dask]', or pass a number") from error
    try:
        client = Client(address, timeout=ANSWERS_WITHIN, set_as_default=False)
    except OSError as error:
        raise ConnectionError(
            f"no dask scheduler answers at {address} within {ANSWERS_WITHIN:g} s; start one with `dask scheduler`"
        ) from error
    try:
        client.wait_for_workers(1, timeout=ANSWERS_WITHIN)
    except TimeoutError as error:
        client.close()
        raise ConnectionError(f"the dask scheduler at {address} has no workers; start some with `dask worker {address}`") from error
    return client
