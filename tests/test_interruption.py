"""Ctrl-C and SIGTERM at any time: one line, exit code 130, and no half-written files."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.stand_in import process
from transformer_theory.cli import AGAIN, ALARM, main


@pytest.fixture(autouse=True)
def interruptible():
    """Python's own handler of Ctrl-C: children of a process that ignores it, such as a background job of a
    script, ignore it too.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


FEW = ("--theories", "rate_reduction", "--networks", "ViT", "--steps", "100000")


@pytest.fixture
def few(tmp_path):
    path = tmp_path / "few.npz"
    np.savez(path, tokens=np.random.default_rng(0).normal(size=(40, 4, 3)), labels=np.arange(40) % 2)
    return path


def test_sigterm_kills_the_workers_and_leaves_nothing_behind(tmp_path, few):
    """The workers are in the middle of long trainings, which would go on for hours."""
    given = ["--data", str(few), *FEW, "--seeds", "2", "--claim-seeds", "0", "--workers", "2"]
    running = process("compare", *given, "--out", str(tmp_path / "runs" / "few"), logs=True)
    training = set()
    # both workers train; one that is still starting would print a traceback of its own
    while len(training) < 2:
        line = running.stderr.readline()
        assert " s  " in line, line + running.stderr.read()
        training |= {*re.findall(r"step \d+ of 100000.*\(seed (\d)\)", line)}
    assert any(entry.name.startswith(".few.") for entry in (tmp_path / "runs").iterdir())
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=600)
    assert running.returncode == 130
    last = err.splitlines()[-1]
    assert last.startswith("transformer-theory: interrupted")
    assert "nothing" in last
    assert "Traceback" not in err
    assert not out
    assert names(tmp_path) == ["few.npz"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["compare", "run"])
def test_a_signal_leaves_nothing_behind(tmp_path, few, monkeypatch, capsys, command, number):
    """A signal that comes while this process trains or measures."""
    drafts = []

    def stop(*arguments, **options):
        drafts.extend(entry.name for entry in (tmp_path / "runs").iterdir())
        signal.raise_signal(number)

    monkeypatch.setattr("transformer_theory.training.fitting._step", stop)
    monkeypatch.setattr("transformer_theory.theories.attention_svm.figures.rank.published_constraints", stop)
    given = (
        ["compare", "--data", str(few), *FEW]
        if command == "compare"
        else ["run", "attention_svm.rank", "--quick"]
    )
    assert main([*given, "--workers", "1", "--out", str(tmp_path / "runs" / "draft")]) == 130
    assert len(drafts) == 1
    assert drafts[0].startswith(".draft.")
    shown = capsys.readouterr()
    last = shown.err.splitlines()[-1]
    assert last.startswith("transformer-theory: interrupted")
    assert "nothing" in last
    assert "Traceback" not in shown.err
    assert not shown.out
    assert names(tmp_path) == ["few.npz"]


@pytest.mark.parametrize(
    ("number", "usual"), [(signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)]
)
def test_signal_handlers_are_restored(monkeypatch, capsys, number, usual):
    handlers = []
    monkeypatch.setattr(
        "transformer_theory.cli.catalogue.list_theories",
        lambda options: handlers.append(signal.getsignal(number)) or 0,
    )
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


@pytest.mark.parametrize("code", [0, 130])
def test_signals_are_ignored_after_the_last_command(monkeypatch, capsys, code):
    """While Python ends, they would print a traceback and replace the exit code."""
    monkeypatch.setattr("sys.argv", ["transformer-theory", "list"])
    command = "transformer_theory.cli.catalogue.list_theories"
    monkeypatch.setattr(command, lambda options: signal.raise_signal(signal.SIGINT) if code else 0)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert main() == code
        assert [signal.getsignal(number) for number in before] == [signal.SIG_IGN, signal.SIG_IGN]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_an_interruption_of_executed_text_keeps_the_exit_code(tmp_path):
    """After an exact KeyboardInterrupt that has passed through ``exec``, ``python -m`` would end
    by SIGINT.
    """
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
    running = subprocess.run(
        [sys.executable, "-m", "stopped"], capture_output=True, text=True, timeout=600, env=environment
    )
    assert (running.stdout, running.returncode) == ("[130, 130]\n", 130), running.stderr


@pytest.mark.parametrize("interrupted", [True, False])
def test_an_object_that_was_interrupted_while_it_was_made_prints_nothing(tmp_path, interrupted):
    """Its destructor finds no attributes. Without an interruption such an error is printed."""
    text = f"""
import signal, sys
from transformer_theory.cli import catalogue, main
class Opened:
    def __init__(self):
        if {interrupted}:
            signal.raise_signal(signal.SIGINT)
        kept.append(self)
    def __new__(cls):
        made = super().__new__(cls)
        if not kept:
            kept.append(made)  # one is destroyed when Python ends
        return made
    def __del__(self):
        self.file.close()
kept = []
def work(options):
    try:
        Opened()
    finally:
        Opened.__init__ = object.__init__
        Opened()
    return 0
catalogue.list_theories = work
sys.argv = ["transformer-theory", "list"]
sys.exit(main())
"""
    (tmp_path / "made.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    running = subprocess.run(
        [sys.executable, "-m", "made"], capture_output=True, text=True, timeout=600, env=environment
    )
    if interrupted:
        assert (running.stderr, running.returncode) == ("transformer-theory: interrupted\n", 130)
    else:
        assert running.stderr.count("has no attribute 'file'") == 2, running.stderr


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


def lost_in_a_callback():
    """A signal that comes inside the callback of a weak reference, where Python only prints the exception."""

    class Referent:
        pass

    def callback(reference):
        signal.raise_signal(signal.SIGINT)

    referent = Referent()
    reference = weakref.ref(referent, callback)
    del referent
    return reference


def lost_in_a_library():
    """A signal that a library catches with everything else."""
    with contextlib.suppress(BaseException):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("lose", [lost_in_a_callback, lost_in_a_library])
def test_a_lost_signal_is_raised_again_and_cleaning_up_is_not_interrupted(monkeypatch, capsys, lose):
    stages = []

    def work(options):
        kept = lose()
        started = time.monotonic()
        try:
            while time.monotonic() - started < 120:
                time.sleep(0.01)
            stages.append(f"went on in spite of {lose.__doc__} {kept}")
        finally:
            signal.raise_signal(signal.SIGINT)  # a second Ctrl-C
            time.sleep(3 * AGAIN)
            stages.append("cleaned up")
        return 0

    monkeypatch.setattr("transformer_theory.cli.catalogue.list_theories", work)
    assert main(["list"]) == 130
    assert stages == ["cleaned up"]
    assert capsys.readouterr().err == "transformer-theory: interrupted\n"
    time.sleep(2 * AGAIN)  # the timer has ended with the command


@pytest.mark.skipif(ALARM is None, reason="the system has no timer")
def test_a_signal_while_handlers_are_restored_does_not_set_the_timer(monkeypatch):
    """It would end the process when the handlers are the usual ones again. Python reports a signal whose
    handler was replaced before it was handled; that report is not printed.
    """
    timers, printed, set_timer = [], [], signal.setitimer
    monkeypatch.setattr(sys, "unraisablehook", printed.append)

    def late(which, seconds, interval=0.0):
        set_timer(which, seconds, interval)
        timers.append(seconds)
        handler = signal.getsignal(ALARM)
        if not seconds and callable(handler):  # Python handles what the system had delivered before
            handler(ALARM, None)
            ignored = OSError(f"Signal {ALARM} ignored due to race condition")
            sys.unraisablehook(types.SimpleNamespace(exc_value=ignored))

    monkeypatch.setattr(signal, "setitimer", late)
    monkeypatch.setattr("transformer_theory.cli.catalogue.list_theories", lambda options: 0)
    assert main(["list"]) == 0
    assert timers[-1] == 0
    assert not printed
    assert sys.unraisablehook == printed.append
    assert signal.getsignal(ALARM) == signal.SIG_DFL


def children(parent: int) -> set[int]:
    """Processes of a parent, and theirs."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (
                entry.name.isdigit()
                and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            ):
                found |= {int(entry.name), *children(int(entry.name))}
    return found


def runs(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
def test_workers_end_with_the_last_command(monkeypatch, capsys):
    """Those of joblib are kept from block to block, and the command would wait until each has ended by
    itself.
    """

    def of_joblib() -> set[int]:
        found = children(os.getpid())
        return {number for number in found if b"popen_loky" in Path(f"/proc/{number}/cmdline").read_bytes()}

    words = ["transformer-theory", "verify", "joma/gradient", "--seeds", "2", "--workers", "2"]
    monkeypatch.setattr("sys.argv", words)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert main(sys.argv[1:]) == 0
        assert len(of_joblib()) == 2
        assert main() == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    deadline = time.monotonic() + 30
    while of_joblib() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not of_joblib()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
def test_workers_end_with_a_command_that_is_killed(tmp_path, few, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    given = ["--data", str(few), *FEW, "--seeds", "2", "--claim-seeds", "0", "--workers", "2"]
    running = process("compare", *given, "--out", str(tmp_path / "runs" / "few"), logs=True)
    training = set()
    while len(training) < 2:
        training |= {*re.findall(r"step \d+ of 100000.*\(seed (\d)\)", running.stderr.readline())}
    found = children(running.pid)
    assert len(found) >= 2
    running.kill()
    running.communicate()
    deadline = time.monotonic() + 300
    while any(map(runs, found)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(runs, found))
    left = (path.name for path in (tmp_path / "temporary").iterdir())
    assert not [name for name in left if not name.startswith(("torchinductor", "matplotlib"))]
