"""Sweeps give the same measurements in one process and in two; tests/test_cluster.py has those on a dask
cluster.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

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


def test_two_processes_give_the_same_rows(alone):
    two = Spectra().run(workers=2)
    assert same(two, alone)
    assert two.provenance["workers"] == 2


@pytest.mark.parametrize("number", [1, 2])
def test_an_error_comes_back_whole(number):
    with pytest.raises(Infeasible, match="no solution for seed 3") as caught, parallel.workers(number):
        sweep(_fail, [{"seed": 3}])
    assert caught.value.certificate.tolist() == [1.0, 1.0]


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


def test_progress_of_worker_processes_arrives_while_they_work(tmp_path):
    events = []

    def listen(text: str) -> None:
        events.append(text)
        (tmp_path / text).touch()

    settings = [{"number": number, "heard": tmp_path} for number in range(4)]
    with parallel.workers(2), listeners.progress_listener(listen):
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


def _interrupted() -> None:
    with parallel.workers(2):
        results = parallel.stream(_sleep, [{"seconds": seconds} for seconds in (0.0, 60.0, 60.0)])
        next(results)
        raise KeyboardInterrupt(time.monotonic())


@pytest.mark.filterwarnings("ignore:.*cancelled:UserWarning")
def test_an_interruption_between_two_results_does_not_wait_for_the_workers():
    with pytest.raises(KeyboardInterrupt) as caught:
        _interrupted()
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
