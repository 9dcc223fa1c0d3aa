"""Calls in forked processes, which share the memory of this one.

A forked process sees every object of its parent, so that a large network is neither pickled nor copied until
one of the two writes to it. Each process runs on one thread: two processes finish more than one process on
two threads, which wait for each other after every operation.
"""

import contextlib
import copy
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch

from .allocator import give_back_freed_memory
from .threads import one_thread

T = TypeVar("T")
R = TypeVar("R")
_work: list[Callable[[Any], Any]] = []  # in a forked process: the function that it calls


def processes_for(device: torch.device) -> int:
    """Returns the number of processes that may be forked for work on a device: one for each thread of torch
    on a CPU under Linux, elsewhere 1.
    """
    return torch.get_num_threads() if device.type == "cpu" and may_fork() else 1


def may_fork() -> bool:
    """Returns whether this process may be forked: under Linux, as elsewhere the libraries behind torch do not
    survive it, and unless it is a worker of a pool, which has no children.
    """
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


@contextlib.contextmanager
def forked(work: Callable[[T], R], processes: int) -> Iterator[Callable[[T], Callable[[], R]]]:
    """Runs calls of a function in forked processes.

    The processes have the objects of this one as they are at the first call. They end with the block, and
    with this process if it is killed.

    Args:
        work: the function. Its argument and its result must be picklable, itself need not be.
        processes: number of processes; 1: the calls run in this process, when their results are requested.
    Yields:
        ``begin(argument) -> result``: begins a call and returns a function that waits for its result. It
        raises the error of the call, or :class:`concurrent.futures.BrokenExecutor` if the system has ended a
        process.
    """
    if processes == 1:
        yield lambda argument: partial(work, argument)
        return
    with forked_pool(work, processes) as submit:
        yield lambda argument: submit(argument).result


@contextlib.contextmanager
def forked_pool(work: Callable[[T], R], processes: int) -> Iterator[Callable[[T], Future[R]]]:
    """Runs calls of a function in forked processes, as :func:`forked` does; yields ``submit(argument) ->
    future``.

    The processes are killed at the end of the block: whoever wants the result of a call waits for it inside.
    """
    give_back_freed_memory()  # it would be that of every process
    fork = multiprocessing.get_context("fork")
    context, started = copy.copy(fork), list[BaseProcess]()

    def process(**options: Any) -> BaseProcess:
        started.append(fork.Process(**options))
        return started[-1]

    context.Process = process  # pyright: ignore[reportAttributeAccessIssue]
    with ProcessPoolExecutor(processes, context, initializer=_prepare, initargs=(work, os.getpid())) as pool:
        # The ends of the workers: while this process holds one too, a message that a killed worker has begun
        # never ends, and whoever reads it waits forever.
        queues: Any = pool  # whose annotations lack them
        ends = queues._call_queue._reader, queues._result_queue._writer

        def submit(argument: T) -> Future[R]:
            call = Future[R]()
            with warnings.catch_warnings():
                # Python 3.12: locks that other threads hold stay locked in the new process, which uses none
                warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
                try:
                    call = pool.submit(_call, argument)
                except BrokenExecutor as error:  # another call has ended its process already
                    call.set_exception(error)
            for end in ends:  # the first call has forked all processes
                end.close()
            return call

        try:
            yield submit
        finally:
            for each in started:
                if each.is_alive():
                    each.kill()
            pool.shutdown(wait=True, cancel_futures=True)
            for each in started:
                if each.pid is not None:  # if a fork was interrupted, the pool does not wait for the others
                    each.join()


def _prepare(work: Callable[[Any], Any], parent: int) -> None:
    """Prepares a forked process."""
    _work.append(work)
    gc.freeze()  # a garbage collection writes to every object that it looks at, and its page is then copied
    for number in (signal.SIGINT, signal.SIGTERM):  # the handlers of the parent are not those of a worker
        signal.signal(number, signal.SIG_DFL)
    end_with(parent)


def end_with(parent: int) -> None:
    """Lets this process end when its parent has ended, also if that was killed."""

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _call(argument: Any) -> Any:
    with one_thread():  # the threads of the parent do not exist here
        return _work[-1](argument)
