"""Sweeps give the same measurements in one process and in two; tests/test_cluster.py has those on a dask
cluster.
"""

import contextlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from transformer_theory import comparison
from transformer_theory.core import listeners, parallel
from transformer_theory.core.errors import Infeasible
from transformer_theory.core.experiment import RandomExperiment, sweep
from transformer_theory.core.listeners import progress, progress_listener
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.result import Result
from transformer_theory.core.table import Arrays
from transformer_theory.core.threads import one_thread, single_threaded


def _spectrum(*, seed: int, size: int) -> tuple[list[float], int, int]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.linalg.svdvals(torch.randn(size, size, generator=generator, dtype=torch.float64))
    return values.tolist(), torch.get_num_threads(), os.getpid()


def _fail(*, seed: int) -> None:
    raise Infeasible(f"no solution for seed {seed}", certificate=torch.ones(2))


def _sleep(*, seconds: float) -> None:
    time.sleep(seconds)


@dataclass(frozen=True)
class Spectra(RandomExperiment):
    """Singular values of random matrices."""

    sizes: tuple[int, ...] = (3, 40, 5, 60)
    name = "test.spectra"

    def measure(self) -> Iterator[Measurement | Arrays]:
        """One row per matrix."""
        found = sweep(_spectrum, [{"seed": self.seed + i, "size": size} for i, size in enumerate(self.sizes)])
        for (values, threads, _), size in zip(found, self.sizes):
            yield Measurement("test", "figure", f"largest of {size}", values[0], predicted=float(threads))
            yield Arrays({f"test/{size}": torch.tensor(values).numpy()})


def same(one: Result, other: Result) -> bool:
    return one.table == other.table and all(
        (one.arrays[name] == other.arrays[name]).all() for name in one.arrays | other.arrays
    )


@pytest.fixture(scope="module")
def alone() -> Result:
    return Spectra().run()


def test_one_worker_has_one_thread_and_keeps_the_order(alone):
    assert alone.table.column("quantity") == [f"largest of {size}" for size in (3, 40, 5, 60)]
    assert set(alone.table.column("predicted")) == {1.0}
    assert alone.provenance["workers"] == 1
    assert "workers" not in alone.settings


@pytest.fixture(params=["fresh", "forked"])
def kind(request) -> Literal["fresh", "forked"]:
    """The kind of the processes."""
    return request.param


def test_two_processes_give_the_same_rows(alone, kind):
    with parallel.workers(2, kind):
        two = Spectra().run()
    assert same(two, alone)
    assert two.provenance["workers"] == 2


@pytest.mark.parametrize("number", [1, 2])
def test_an_error_comes_back_whole(number, kind):
    with pytest.raises(Infeasible, match="no solution for seed 3") as caught, parallel.workers(number, kind):
        sweep(_fail, [{"seed": 3}, {"seed": 3}])
    assert caught.value.certificate.tolist() == [1.0, 1.0]


forked_only = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


@forked_only
def test_forked_processes_share_the_objects_of_this_one():
    """Neither the function nor its argument can be pickled."""
    weights, lock = torch.arange(3.0), threading.Lock()

    def total(*, scale: float, lock: Any) -> tuple[float, int]:
        return scale * float(weights.sum()), os.getpid()

    with parallel.workers(2, "forked"):
        found = [*parallel.stream(total, [{"scale": scale, "lock": lock} for scale in (1.0, 2.0, 3.0)])]
    assert [value for value, _ in found] == [3.0, 6.0, 9.0]
    assert os.getpid() not in {pid for _, pid in found}


@forked_only
def test_a_call_inside_a_call_stays_in_its_process():
    def inner(*, number: int) -> int:
        return os.getpid()

    def outer(*, number: int) -> tuple[int, set[int]]:
        return os.getpid(), {*parallel.stream(inner, [{"number": each} for each in range(3)])}

    with parallel.workers(2, "forked"):
        for own, others in parallel.stream(outer, [{"number": 0}, {"number": 1}]):
            assert others == {own} != {os.getpid()}


@forked_only
@pytest.mark.parametrize("asked", [0, 1])
def test_forked_processes_end_with_the_block_whatever_is_unfinished(asked):
    before = {*multiprocessing.active_children()}
    with parallel.workers(2, "forked"):
        results = parallel.stream(_sleep, [{"seconds": seconds} for seconds in (0.0, 90.0, 90.0)])
        for _ in range(asked):
            next(results)
        assert len({*multiprocessing.active_children()} - before) == 2
        left = time.monotonic()
    assert time.monotonic() - left < 60
    assert {*multiprocessing.active_children()} == before


@forked_only
@pytest.mark.parametrize("run", [parallel.stream, parallel.as_completed])
def test_a_process_that_the_system_ends_is_named_in_one_line(run):
    def end(*, number: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with (
        pytest.raises(ChildProcessError, match=r"got one that was ended.*; choose fewer workers"),
        parallel.workers(2, "forked"),
    ):
        list(run(end, [{"number": 0}, {"number": 1}]))


@pytest.mark.parametrize("what", ["EOFError", "OSError: got end of file during message"])
def test_a_process_that_ends_before_or_in_its_message_is_named_too(what):
    """Python then names the error of the reader."""
    call, error = Future[None](), BrokenProcessPool()
    error.__cause__ = RuntimeError(f"a traceback\n{what}")
    call.set_exception(error)
    with pytest.raises(ChildProcessError, match=r"got one that was ended"):
        parallel._received(call)


def _refuse() -> None:
    raise LookupError("not here")


class NotReadableHere:
    """Pickle can write it, and fails to read it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


@forked_only
def test_a_result_that_cannot_be_read_is_no_ended_process():
    def make(*, number: int) -> NotReadableHere:
        return NotReadableHere()

    with pytest.raises(BrokenProcessPool) as caught, parallel.workers(2, "forked"):
        list(parallel.stream(make, [{"number": 0}, {"number": 1}]))
    assert "LookupError: not here" in str(caught.value.__cause__)


LARGE = """
from transformer_theory.core import parallel

def large(*, number):
    return bytes(2**28)

for error in (None, ValueError, KeyboardInterrupt):
    try:
        with parallel.workers(2, "forked"):
            next(parallel.stream(large, [{"number": number} for number in range(4)]))
            if error is not None:
                raise error
    except (ValueError, KeyboardInterrupt):
        print("left", flush=True)
"""


@forked_only
def test_a_block_is_left_while_a_process_sends_a_large_result():
    """It is killed in the middle of a message, whose end nobody may wait for."""
    run = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, timeout=240)
    assert run.stdout.splitlines() == ["left", "left"], run.stderr


@forked_only
def test_blocks_of_several_threads_do_not_disturb_each_other():
    found: dict[int, list[int]] = {}

    def work(*, number: int) -> int:
        time.sleep(0.05)
        return number

    def block(offset: int) -> None:
        with parallel.workers(2, "forked"):
            settings = [{"number": offset + number} for number in range(4)]
            found[offset] = [*parallel.stream(work, settings)]

    threads = [threading.Thread(target=block, args=(offset,)) for offset in (0, 10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {offset: [offset + number for number in range(4)] for offset in (0, 10, 20, 30)}


@forked_only
@pytest.mark.parametrize("error", [OSError("no memory"), KeyboardInterrupt()])
def test_a_fork_that_fails_leaves_no_process(monkeypatch, error):
    before, fork, forks = {*multiprocessing.active_children()}, os.fork, itertools.count(1)

    def second_fails() -> int:
        if next(forks) == 2:
            raise error
        return fork()

    monkeypatch.setattr(os, "fork", second_fails)
    with pytest.raises(type(error)), parallel.workers(2, "forked"):
        list(parallel.stream(_sleep, [{"seconds": 0.0}, {"seconds": 0.0}]))
    assert {*multiprocessing.active_children()} == before


class Unreadable(Exception):
    """Pickle calls its class with one argument."""

    def __init__(self, what: str, where: str):
        super().__init__(f"{what} in {where}")


def _unreadable(*, number: int) -> None:
    raise Unreadable("a fault", f"call {number}")


@forked_only
def test_an_error_that_cannot_be_sent_keeps_its_text():
    with pytest.raises(RuntimeError, match="Unreadable: a fault in call 0"), parallel.workers(2, "forked"):
        list(parallel.stream(_unreadable, [{"number": 0}, {"number": 1}]))


@forked_only
def test_joblib_inside_a_call_stays_in_its_process():
    from joblib import Parallel, delayed

    assert Parallel(n_jobs=2)(delayed(abs)(number) for number in (-1, -2)) == [1, 2]

    def inner(*, number: int) -> list[int]:
        return Parallel(n_jobs=2)(delayed(abs)(each) for each in (-number, number))

    with parallel.workers(2, "forked"):
        assert [*parallel.stream(inner, [{"number": 1}, {"number": 2}])] == [[1, 1], [2, 2]]


@forked_only
def test_processes_are_forked_where_that_works(monkeypatch):
    def kind() -> str:
        with parallel.workers(2, "forked") as active:
            return str(active.place)

    assert kind() == "forked"
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert kind() == "joblib"
    monkeypatch.undo()
    monkeypatch.setattr(parallel, "may_fork", lambda: False)
    assert kind() == "joblib"


@forked_only
def test_calls_on_an_accelerator_have_fresh_processes(monkeypatch):
    """A forked process cannot use an accelerator that its parent has used."""
    chosen = []

    @contextlib.contextmanager
    def workers(number, kind):
        chosen.append((number, kind))
        raise InterruptedError
        yield

    monkeypatch.setattr(parallel, "workers", workers)
    monkeypatch.setattr(comparison, "usable_device", lambda device: None)
    for device in ("cpu", "cuda:1"):
        with pytest.raises(InterruptedError):
            comparison.compare("digits", ["joma"], networks=[], device=device, workers=2)
    assert chosen == [(2, "forked"), (2, "fresh")]


def test_progress_reaches_the_listener():
    lines = []
    with progress_listener(lines.append):
        sweep(_spectrum, [{"seed": 1, "size": 2}, {"seed": 1, "size": 3}])
        progress("and drawn")
    progress("without a listener")
    assert lines == ["2 of 2 settings (size=3)", "and drawn"]  # what does not vary is not repeated


def _announce(number: int, heard: Path) -> int:
    """Announces a number and works until a file says that the line has arrived, 20 seconds at most."""
    listeners.progress(f"announced {number}")
    deadline = time.monotonic() + 20
    while not (heard / f"announced {number}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return number


def test_progress_of_worker_processes_arrives_while_they_work(tmp_path, kind):
    events = []

    def listen(text: str) -> None:
        events.append(text)
        (tmp_path / text).touch()

    settings = [{"number": number, "heard": tmp_path} for number in range(4)]
    with parallel.workers(2, kind), listeners.progress_listener(listen):
        for result in parallel.stream(_announce, settings):
            events.append(result)
    assert {event for event in events if isinstance(event, str)} == {
        f"announced {number}" for number in range(4)
    }
    assert events.index("announced 0") < events.index(0)


def test_no_settings_are_no_work():
    assert sweep(_spectrum, []) == []


def test_a_number_of_workers_is_at_least_one():
    with (
        pytest.raises(ValueError, match=r"workers must be a number of at least 1.*, got 0"),
        parallel.workers(0),
    ):
        pass


def test_a_single_threaded_function_restores_the_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert single_threaded(torch.get_num_threads)() == 1
        assert torch.get_num_threads() == 2
        with one_thread(), one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def _interrupted(kind: Literal["fresh", "forked"]) -> None:
    with parallel.workers(2, kind):
        results = parallel.stream(_sleep, [{"seconds": seconds} for seconds in (0.0, 60.0, 60.0)])
        next(results)
        raise KeyboardInterrupt(time.monotonic())


@pytest.mark.filterwarnings("ignore:.*cancelled:UserWarning")
def test_an_interruption_between_two_results_does_not_wait_for_the_workers(kind):
    with pytest.raises(KeyboardInterrupt) as caught:
        _interrupted(kind)
    assert time.monotonic() - caught.value.args[0] < 40


def test_the_callers_joblib_context_is_used():
    """The last test with worker processes: joblib begins new ones for it."""
    from joblib import parallel_config

    settings = [{"seed": seed, "size": 4} for seed in range(4)]
    assert {pid for _, _, pid in sweep(_spectrum, settings)} == {os.getpid()}
    with parallel_config(backend="loky", n_jobs=2):
        found = sweep(_spectrum, settings)
    assert os.getpid() not in {pid for _, _, pid in found}
    assert [values for values, _, _ in found] == [values for values, _, _ in sweep(_spectrum, settings)]
