"""Calls in forked processes, which share the memory of this one.

A forked process sees every object of its parent, so that a large network is neither pickled nor copied until
one of the two writes to it. Each process runs on one thread: two processes finish more than one process on
two threads, which wait for each other after every operation.
"""

import contextlib
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
from typing import Any, TypeVar

import torch

from .threads import one_thread

T = TypeVar("T")
R = TypeVar("R")
_work: list[Callable[[Any], Any]] = []  # in a forked process: the function that it calls


def processes_for(device: torch.device) -> int:
    """Returns the number of processes that may be forked for work on a device: one for each thread of torch
    on a CPU under Linux; elsewhere 1, as the libraries behind torch do not survive a fork there. The workers
    of a pool have no children.
    """
    forks = device.type == "cpu" and sys.platform == "linux" and not multiprocessing.current_process().daemon
    return torch.get_num_threads() if forks else 1


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
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, initializer=_prepare, initargs=(work, os.getpid())) as pool:

        def begin(argument: T) -> Callable[[], R]:
            call = Future[R]()
            with warnings.catch_warnings():
                # Python 3.12: locks that other threads hold stay locked in the new process, which uses none
                warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
                try:
                    call = pool.submit(_call, argument)
                except BrokenExecutor as error:  # another call has ended its process already
                    call.set_exception(error)
            return call.result

        try:
            yield begin
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _prepare(work: Callable[[Any], Any], parent: int) -> None:
    """Prepares a forked process."""
    _work.append(work)
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
