"""``train`` and ``evaluate`` on the command line: what they show and leave, how they end, and what they refuse."""

import contextlib
import io
import re
import signal

import pytest
import torch

from tests.stand_in import process
from transformer_theory.cli import main

TINY = ["train", "crate", "--data", "digits", "--theories", "none", "--device", "cpu", "--precision", "float32"]
TINY += ["--dim", "8", "--depth", "1", "--heads", "2", "--patch-size", "4", "--epochs", "2", "--held-out", "0.5"]


@pytest.fixture(scope="module")
def shown_and_left(tmp_path_factory):
    """What a training shows, and the folder that it leaves in the place of another training."""
    folder = tmp_path_factory.mktemp("runs") / "crate"
    folder.mkdir()
    for name in ("last.pt", "table.tex"):
        (folder / name).write_bytes(b"of another training")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main([*TINY, "--out", str(folder), "--overwrite"]) == 0
    return out.getvalue(), err.getvalue(), folder


@pytest.fixture
def run(shown_and_left):
    return shown_and_left[2]


def test_a_training_shows_a_line_an_interval_and_its_result(shown_and_left):
    out, err, run = shown_and_left
    lines = err.splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["held-out"] * 2,
        ["epoch", "step", "loss", "loss", "accuracy", "img/s", "time", "left"],
    ]
    assert [line.split()[0] for line in lines[2:-1]] == ["0.00", "1.00", "2.00"]
    assert lines[-1].endswith("writing the report")
    assert re.search(r"test accuracy: \d+\.\d\d % of 540 images \(95 % interval \d", out)
    assert "95 % interval" in out
    assert f"network: {run / 'best.safetensors'}" in out
    assert all(b"another" not in file.read_bytes()[:20] for file in run.iterdir())


def test_options_that_are_not_given_are_as_they_were(run, capsys):
    assert main(["train", "crate", "--data", "digits", "--theories", "none", "--precision", "float32", "--resume", "--out", str(run)]) == 0
    assert main([*TINY, "--seed", "4", "--resume", "--out", str(run)]) == 2
    assert "belongs to another training: seed 0 there and 4 here" in capsys.readouterr().err


def test_evaluate_tells_each_class(run, capsys):
    assert main(["evaluate", str(run), "--data", "digits"]) == 0
    shown = capsys.readouterr().out
    assert "test accuracy: " in shown
    assert len([line for line in shown.splitlines() if line.strip()[:1].isdigit()]) == 10
    assert main(["evaluate", str(run), "--data", "shapes"]) == 2
    assert "reads images [1, 8, 8]" in capsys.readouterr().err


def test_nothing_else_is_overwritten(run, tmp_path, capsys):
    (tmp_path / "note").write_text("mine")
    assert main([*TINY, "--out", str(tmp_path), "--overwrite"]) == 2
    assert "holds no training, so it is not overwritten" in capsys.readouterr().err
    assert main([*TINY, "--out", str(run)]) == 2
    assert "--resume goes on with it, --overwrite begins again" in capsys.readouterr().err


def test_a_loss_that_is_not_finite_is_exit_code_1(tmp_path, capsys):
    assert main([*TINY, "--learning-rate", "1e39", "--warm-up", "0", "--out", str(tmp_path / "run")]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("transformer-theory: step 2: ")
    assert "last.pt holds the last good state, of step 0" in last


def test_sigterm_ends_a_training_that_goes_on(tmp_path):
    folder = tmp_path / "run"
    running = process(*TINY, "--interval", "2", "--epochs", "100000", "--out", str(folder))
    seen = ""
    while "img/s" not in seen or seen.count("\n") < 4:  # the titles and two intervals
        line = running.stderr.readline()
        assert line, seen
        seen += line
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    told = f"transformer-theory: interrupted; {folder} holds the training up to its last interval, --resume goes on with it"
    assert err.splitlines()[-1] == told
    assert "Traceback" not in err
    assert torch.load(folder / "last.pt", weights_only=True)["step"] >= 2
    assert not list(folder.glob(".*"))
