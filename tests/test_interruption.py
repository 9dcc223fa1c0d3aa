"""Ctrl-C and SIGTERM at any time: one line, exit code 130, and no half-written files."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.stand_in import process
from transformer_theory.cli import main


@pytest.fixture(autouse=True)
def interruptible():
    """Python's own handler of Ctrl-C: children of a process that ignores it, such as a background job of a script, ignore it too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def interrupted(running, number: int, *, draft: Path, lines: int = 2) -> None:
    """Sends a signal to a command that is working on a draft of its folder, and checks how it ends."""
    for _ in range(lines):  # by then all workers train; one that is still starting would print a traceback of its own
        line = running.stderr.readline()
        assert " s  " in line, line + running.stderr.read()
    assert any(entry.name.startswith(draft.name) for entry in draft.parent.iterdir())
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    last = err.splitlines()[-1]
    assert last.startswith("transformer-theory: interrupted")
    assert "nothing" in last
    assert "Traceback" not in err
    assert not out


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_leaves_nothing_behind(tmp_path, workers):
    """Workers that are in the middle of a long training are killed."""
    np.savez(tmp_path / "few.npz", tokens=np.random.default_rng(0).normal(size=(40, 4, 3)), labels=np.arange(40) % 2)
    given = [
        "--data",
        str(tmp_path / "few.npz"),
        "--theories",
        "rate_reduction",
        "--networks",
        "ViT",
        "--steps",
        "100000",
        "--workers",
        str(workers),
    ]
    running = process("compare", *given, "--out", str(tmp_path / "runs" / "few"))
    interrupted(running, signal.SIGINT, draft=tmp_path / "runs" / ".few.", lines=2 * workers)
    assert names(tmp_path) == ["few.npz"]


def test_sigterm_is_ctrl_c(tmp_path):
    running = process("run", "attention_svm.rank", "--workers", "2", "--out", str(tmp_path / "runs" / "rank"))
    interrupted(running, signal.SIGTERM, draft=tmp_path / "runs" / ".rank.")
    assert names(tmp_path) == []


@pytest.mark.parametrize(("number", "usual"), [(signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)])
def test_signal_handlers_are_restored(monkeypatch, capsys, number, usual):
    handlers = []
    monkeypatch.setattr("transformer_theory.cli.catalogue.list_theories", lambda options: handlers.append(signal.getsignal(number)) or 0)
    before = signal.getsignal(number)
    try:
        for own in (usual, signal.SIG_IGN, lambda number, frame: None):
            signal.signal(number, own)
            assert main(["list"]) == 0
            assert signal.getsignal(number) == own
            assert (handlers.pop() == own) == (own != usual)
        with ThreadPoolExecutor() as pool:  # only the main thread may set handlers
            signal.signal(number, usual)
            assert pool.submit(main, ["list"]).result() == 0
    finally:
        signal.signal(number, before)


def test_an_interruption_of_executed_text_keeps_the_exit_code(tmp_path):
    """After an exact KeyboardInterrupt that has passed through ``exec``, ``python -m`` would end by SIGINT."""
    text = """
import sys
from transformer_theory.cli import catalogue, main
def stop(options):
    exec("import signal; signal.raise_signal(number)", {"number": number})
catalogue.list_theories = stop
codes = []
for number in (2, 15):
    codes.append(main(["list"]))
print(codes)
sys.exit(130)
"""
    (tmp_path / "stopped.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    running = subprocess.run([sys.executable, "-m", "stopped"], capture_output=True, text=True, timeout=60, env=environment)
    assert (running.stdout, running.returncode) == ("[130, 130]\n", 130), running.stderr


@pytest.mark.parametrize("command", [["verify", "stand_in/good"], ["list"], ["cite", "stand_in"]])
def test_commands_that_never_write_report_only_the_interruption(monkeypatch, capsys, command):
    def stop(options):
        raise KeyboardInterrupt

    for name in ("claims.verify_claims", "catalogue.list_theories", "claims.cite_sources"):
        monkeypatch.setattr(f"transformer_theory.cli.{name}", stop)
    assert main(command) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert "interrupted" in line
    assert "nothing" not in line
