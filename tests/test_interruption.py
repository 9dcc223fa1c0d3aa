"""Ctrl-C and SIGTERM at any time: one line, exit code 130, and nothing half-written is left."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.stand_in import process
from transformer_theory.cli import main


@pytest.fixture(autouse=True)
def heard():
    """Children of a process that ignores Ctrl-C, as one in the background of a script does, would ignore it too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_ctrl_c_leaves_nothing_behind(tmp_path):
    np.savez(tmp_path / "few.npz", tokens=np.random.default_rng(0).normal(size=(40, 4, 3)), labels=np.arange(40) % 2)
    given = ["--data", str(tmp_path / "few.npz"), "--theories", "rate_reduction", "--networks", "ViT", "--steps", "100000"]
    running = process("compare", *given, "--out", str(tmp_path / "runs" / "few"))
    first = running.stderr.readline()  # the first line of progress: the work has begun
    assert " s  " in first, first + running.stderr.read()
    assert any(entry.name.startswith(".few.") for entry in (tmp_path / "runs").iterdir())
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert err.splitlines()[-1] == "transformer-theory: interrupted; nothing was written"
    assert "Traceback" not in err
    assert names(tmp_path) == ["few.npz"]


def test_sigterm_is_ctrl_c(tmp_path):
    running = process("run", "attention_svm.rank", "--workers", "2", "--out", str(tmp_path / "runs" / "rank"))
    first = running.stderr.readline()
    assert " s  " in first, first + running.stderr.read()
    assert any(entry.name.startswith(".rank.") for entry in (tmp_path / "runs").iterdir())
    running.terminate()
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert err.splitlines()[-1] == "transformer-theory: interrupted; nothing was written"
    assert "Traceback" not in err
    assert names(tmp_path) == []


def test_handlers_of_sigterm_are_left_as_they_were(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(
        "transformer_theory.cli.catalogue.list_theories", lambda options: seen.append(signal.getsignal(signal.SIGTERM)) or 0
    )
    before = signal.getsignal(signal.SIGTERM)
    try:
        for own in (signal.SIG_DFL, signal.SIG_IGN, lambda number, frame: None):
            signal.signal(signal.SIGTERM, own)
            assert main(["list"]) == 0
            assert signal.getsignal(signal.SIGTERM) == own
            assert (seen.pop() == own) == (own != signal.SIG_DFL)
        with ThreadPoolExecutor() as pool:  # a thread may set none
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            assert pool.submit(main, ["list"]).result() == 0
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("command", [["verify", "stand_in/good"], ["list"], ["cite", "stand_in"]])
def test_commands_that_never_write_only_report_the_interruption(monkeypatch, capsys, command):
    def stop(options):
        raise KeyboardInterrupt

    for name in ("claims.verify_claims", "catalogue.list_theories", "claims.cite_sources"):
        monkeypatch.setattr(f"transformer_theory.cli.{name}", stop)
    assert main(command) == 130
    assert capsys.readouterr().err == "transformer-theory: interrupted\n"
