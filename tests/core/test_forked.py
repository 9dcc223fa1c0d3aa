"""Calls in forked processes: results, errors, and what happens if a process is ended."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor

import pytest
import torch

from transformer_theory.core import forked as module
from transformer_theory.core.forked import forked, processes_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


@pytest.mark.parametrize("processes", [1, 2])
def test_calls_return_results_and_errors_of_functions_that_cannot_be_pickled(processes, request):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    weight = torch.ones(2**20).cumsum(0)
    request.addfinalizer(lambda: torch.set_num_threads(threads))

    def work(number: int) -> tuple[float, int, int]:
        if number < 0:
            raise ValueError(f"got {number}")
        copied = torch.zeros(2**20).copy_(weight)  # on several threads, if there are any
        return float(copied[2]) + number, torch.get_num_threads(), os.getpid()

    with forked(work, processes) as begin:
        calls = [begin(number) for number in (1, 2, -3)]
        assert [call()[0] for call in calls[:2]] == [4.0, 5.0]
        with pytest.raises(ValueError, match="got -3"):
            calls[2]()
        if processes > 1:
            assert {call()[1] for call in calls[:2]} == {1}
            assert os.getpid() not in {call()[2] for call in calls[:2]}


def test_a_change_in_a_process_is_not_one_here():
    weight = torch.zeros(3)
    with forked(lambda number: float(weight.fill_(number).sum()), 2) as begin:
        assert [call() for call in [begin(1), begin(2)]] == [3.0, 6.0]
    assert weight.tolist() == [0, 0, 0]


def test_a_process_that_is_ended_is_an_error():
    with forked(lambda number: os.kill(os.getpid(), signal.SIGKILL), 2) as begin:
        call = begin(0)
        with pytest.raises(BrokenExecutor):
            call()
        later = begin(1)
        with pytest.raises(BrokenExecutor):
            later()


def test_processes_end_with_this_one():
    program = """
import os, time
from transformer_theory.core.forked import forked
with forked(lambda number: (os.getpid(), time.sleep(number))[0], 2) as begin:
    print(begin(0)(), flush=True)
    begin(1000)()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    os.kill(worker, 0)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while _is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _is_running(worker)


def _is_running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_processes_are_forked_for_work_on_a_cpu_under_linux(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert processes_for(torch.device("cpu")) == 3
    assert processes_for(torch.device("cuda")) == 1
    monkeypatch.setattr(module.sys, "platform", "darwin")
    assert processes_for(torch.device("cpu")) == 1
