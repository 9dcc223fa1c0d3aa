"""Sweeps, ledgers, ladders and trainings on a dask cluster of two processes: the results of one process, also
if a worker or the scheduler dies in the middle.
"""

import contextlib
import functools
import multiprocessing
import os
import socket
import sys
from pathlib import Path

import pytest
import torch

from tests.core.test_parallel import Spectra, same
from tests.problems import lost_workers
from tests.problems.image_trainings import CPU, SMALL, assert_same, noise, with_
from transformer_theory.cli import main
from transformer_theory.comparison.cells import CELLS
from transformer_theory.comparison.reach import reach
from transformer_theory.core import cluster as module
from transformer_theory.core import listeners, parallel
from transformer_theory.core.claims import verify_claims
from transformer_theory.training.image import seeds as training
from transformer_theory.training.image.loop import train
from transformer_theory.training.image.processes import Hardware
from transformer_theory.training.image.seeds import seed_folder, train_seeds

PRELOADED = [
    "distributed",
    "tests.problems.lost_workers",
    "transformer_theory.training.image.seeds",
    "transformer_theory.comparison.reach",
]


@contextlib.contextmanager
def two_workers():
    """Two worker processes, which dask replaces when they die. They are forks of a process that has imported
    the library.
    """
    import dask
    from distributed import LocalCluster
    from distributed.utils import get_mp_context

    with dask.config.set(
        {
            "distributed.worker.multiprocessing-method": "forkserver",
            "distributed.scheduler.allowed-failures": 3,
        }
    ):
        get_mp_context()  # dask sets its own list of modules once
        multiprocessing.set_forkserver_preload([*PRELOADED, "lightning_fabric"])
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=60)
        patience = pytest.MonkeyPatch()
        # on a busy machine the scheduler, a thread of this process, may not answer for seconds
        patience.setattr(module, "TIMEOUT", 300.0)
        try:
            yield cluster
        finally:
            patience.undo()
            with contextlib.suppress(Exception):  # a scheduler that a test has closed
                cluster.close(timeout=1)


@pytest.fixture(scope="module")
def cluster():
    with two_workers() as cluster:
        yield cluster


@pytest.fixture
def mortal_cluster():
    """The cluster of one test, which closes its scheduler: in a run on several processes other tests may come
    after it.
    """
    with two_workers() as cluster:
        yield cluster


def test_a_sweep_gives_the_same_rows(cluster):
    cluster.wait_for_workers(2, timeout=600)
    alone = Spectra().run()
    with parallel.workers(cluster.scheduler_address) as active:
        there = Spectra().run()
        processes = {pid for _, _, pid in parallel.sweep(_where, [{"seed": 0}, {"seed": 1}])}
    assert same(there, alone)
    assert active.count == 2
    assert os.getpid() not in processes
    assert Spectra().run(workers=cluster.scheduler_address).provenance["workers"] == 2


def _where(*, seed: int) -> tuple[int, int, int]:
    listeners.progress(f"at {seed}")
    return seed, 0, os.getpid()


def test_progress_arrives_and_an_error_is_that_of_the_call(cluster):
    lines = []
    with parallel.workers(cluster.scheduler_address), listeners.progress_listener(lines.append):
        assert sorted(number for number, _ in parallel.as_completed(_where, [{"seed": 3}, {"seed": 4}])) == [
            0,
            1,
        ]
        with pytest.raises(KeyError, match="no such seed"):
            list(parallel.stream(_fails, [{"seed": 3}]))
    assert {"at 3", "at 4"} <= set(lines)


def _fails(*, seed: int) -> None:
    raise KeyError("no such seed")


def test_a_killed_worker_loses_no_training(cluster, tmp_path):
    """It dies in the middle of a training; another worker continues from the checkpoint, and every file is
    that of one process with as many threads.
    """
    data, settings, marker = (noise(), noise(12, seed=1)), with_(interval=1), tmp_path / "killed"
    metrics = functools.partial(lost_workers.lethal, marker)
    result = train_seeds(
        data,
        settings,
        tmp_path / "there",
        [0, 1, 2],
        workers=cluster.scheduler_address,
        metrics=metrics,
        hardware=CPU,
        loggers=["csv"],
    )
    assert marker.exists()
    assert not result.select(quantity="training")  # no seed has failed
    assert {entry.name for entry in (tmp_path / "there").iterdir() if entry.is_dir()} == {
        "seed-0",
        "seed-1",
        "seed-2",
    }
    assert not list((tmp_path / "there").glob(".*"))
    before = torch.get_num_threads()
    for seed in range(3):
        folder, other = tmp_path / "here" / str(seed), seed_folder(tmp_path / "there", seed)
        # the order of sums, and so the last bits, depend on the number of threads
        torch.set_num_threads(torch.load(other / "last.pt", weights_only=True)["threads"])
        try:
            train(data, with_(interval=1, seed=seed), folder, metrics=metrics, hardware=CPU)
        finally:
            torch.set_num_threads(before)
        assert_same(folder, other)


def test_a_killed_worker_loses_no_claim(cluster, tmp_path):
    claims, marker = lost_workers.claims(tmp_path / "killed"), tmp_path / "killed"
    stored = []
    with parallel.workers(cluster.scheduler_address):
        there = [
            one.to_json()
            for one in verify_claims(
                claims, range(4), finished=lambda claim, seed, outcome: stored.append(seed)
            )
        ]
    assert marker.exists()
    assert sorted(stored) == sorted([0, 1, 2, 3] * 2)
    assert there == [one.to_json() for one in verify_claims(claims, range(4))]


def test_a_killed_worker_loses_no_rung(cluster, tmp_path):
    theory, marker = lost_workers.theory(tmp_path / "killed"), tmp_path / "killed"
    there = reach(theory, seeds=4, workers=cluster.scheduler_address, folder=tmp_path / "reach")
    assert marker.exists()
    assert there.table == reach(theory, seeds=4).table
    assert len((tmp_path / "reach" / CELLS).read_text().splitlines()) == 1 + 8


def test_workers_of_another_version_are_refused(cluster, monkeypatch):
    monkeypatch.setattr(module, "__version__", "9.9")
    with (
        pytest.raises(
            ValueError, match=r"same versions, got transformer_theory .* on tcp://.* and 9.9 with .* here"
        ),
        parallel.workers(cluster.scheduler_address),
    ):
        pass


def test_a_worker_that_joins_later_is_checked_too(cluster, monkeypatch):
    with parallel.workers(cluster.scheduler_address) as active:
        monkeypatch.setattr(module, "__version__", "9.9")
        with pytest.raises(ValueError, match="all workers must run the same versions"):
            list(parallel.stream(_where, [{"seed": 0}]))
    assert active.used


def test_a_worker_runs_one_call_at_a_time():
    here = module.versions()
    assert module._problem("tcp://a:1", 1, here, here) == ""
    assert "got 8 threads on tcp://a:1; start it with `dask worker --nthreads 1`" in module._problem(
        "tcp://a:1", 8, here, here
    )


def test_a_worker_without_the_library_is_named():
    class Client:
        def run(self, function, on_error):
            return {"tcp://a:1": ModuleNotFoundError("No module named 'transformer_theory'")}

        def nthreads(self):
            return {"tcp://a:1": 1}

    with pytest.raises(
        ValueError, match=r"the worker tcp://a:1 cannot run .* \(No module .* install the same version there"
    ):
        module._check(Client())


def test_a_folder_that_a_worker_does_not_see(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"must lie on a file system that all machines share, .* does not see it; choose another --out",
    ):
        training._outcome(
            (noise(), noise()), SMALL, tmp_path / "run", 1, tmp_path / "elsewhere" / ".meeting", {}
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        (
            "nonsense://host:1",
            ValueError,
            "workers must be a number or an address such as tcp://host:8786, got 'nonsense://host:1'",
        ),
        (
            "http://host:8787",
            ValueError,
            "workers must be a number or an address such as tcp://host:8786, got 'http://host:8787'",
        ),
        (
            "tcp://host",
            ValueError,
            "workers must be a number or an address such as tcp://host:8786, got 'tcp://host'",
        ),
        (
            "tls://127.0.0.1:9",
            ConnectionError,
            r"no dask scheduler answers at .* \(TLS expects .*\); start one with `dask scheduler`",
        ),
        (
            "tcp://127.0.0.1:9",
            ConnectionError,
            "no dask scheduler answers at tcp://127.0.0.1:9 within .* start one with `dask scheduler`",
        ),
    ],
)
def test_bad_addresses(monkeypatch, address, kind, message):
    monkeypatch.setattr(module, "TIMEOUT", 0.5)
    with pytest.raises(kind, match=message), parallel.workers(address):
        pass


def test_another_service_at_the_address(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with (
            pytest.raises(ConnectionError, match=f"no dask scheduler answers at {address}"),
            parallel.workers(address),
        ):
            pass


def test_workers_must_agree_on_device_and_precision():
    class Client:
        def __init__(self, *precisions):
            self.found = {
                f"tcp://{n}:1": Hardware("cpu", precision) for n, precision in enumerate(precisions)
            }

        def run(self, function):
            return self.found

    assert training._common_hardware(Client("bfloat16", "bfloat16"), Hardware()) == Hardware(
        "cpu", "bfloat16"
    )
    message = "got cpu and bfloat16 on tcp://0:1, cpu and float32 on tcp://1:1; pass --device and --precision"
    with pytest.raises(ValueError, match=message):
        training._common_hardware(Client("bfloat16", "float32"), Hardware())


def test_dask_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(
            ValueError, match=r"needs dask: pip install 'transformer-theory\[distributed\]', or pass a number"
        ),
        parallel.workers("tcp://h:1"),
    ):
        pass


def test_a_scheduler_that_dies_leaves_what_was_finished(mortal_cluster, tmp_path, capsys, monkeypatch):
    """First a ledger, then a ladder and a training are in the middle of their work when it dies."""
    (tmp_path / "killed").touch()  # no worker dies here
    address, claims = mortal_cluster.scheduler_address, lost_workers.claims(tmp_path / "killed")
    monkeypatch.setattr("transformer_theory.theories.claims", lambda name: claims)
    out = tmp_path / "ledger"
    command = ["verify", "toy", "--seeds", "3", "--out", str(out)]
    monkeypatch.setattr("transformer_theory.cli.claims.Unfinished.add", _then(_stop, after=2))
    assert main([*command, "--workers", address]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"transformer-theory: interrupted; 2 finished seeds are stored in {out}.unfinished, the same "
        "command goes on from them"
    )
    monkeypatch.undo()
    monkeypatch.setattr("transformer_theory.theories.claims", lambda name: claims)

    def close(line: str) -> None:
        if "(2 of 8)" in line:
            with contextlib.suppress(Exception):
                mortal_cluster.sync(mortal_cluster.scheduler.close)

    theory, folder = lost_workers.theory(tmp_path / "killed"), tmp_path / "reach"
    with pytest.raises(
        ConnectionError, match=f"scheduler at {address} no longer answers.* of 8 cells are stored in {folder}"
    ):
        reach(theory, seeds=4, workers=address, folder=folder, progress=close)
    assert 2 <= len((folder / CELLS).read_text().splitlines()) - 1 < 8
    assert reach(theory, seeds=4, folder=folder).table == reach(theory, seeds=4).table
    monkeypatch.setattr(module, "TIMEOUT", 0.5)
    assert main([*command, "--workers", address]) == 2
    assert f"no dask scheduler answers at {address}" in capsys.readouterr().err.splitlines()[-1]
    assert Path(f"{out}.unfinished").exists()
    assert main([*command, "--workers", "1"]) == 0
    assert not Path(f"{out}.unfinished").exists()
    from transformer_theory.core.result import Result

    there = [one.to_json() for one in Result.load(out).verifications]
    assert there == [one.to_json() for one in verify_claims(claims, range(3))]


def _stop() -> None:
    raise KeyboardInterrupt


def _then(action, *, after: int):
    from transformer_theory.cli.claims import Unfinished

    original = Unfinished.add

    def add(self, *arguments):
        original(self, *arguments)
        if len(self.done) == after:
            action()

    return add
