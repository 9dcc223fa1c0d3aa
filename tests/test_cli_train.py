"""``train`` and ``evaluate`` on the command line: what they show and leave, how they end, and what they refuse."""

import contextlib
import io
import re
import signal

import pytest
import torch
from PIL import Image

from transformer_theory import report
from transformer_theory.cli import main, training
from transformer_theory.cli.fields import as_typed
from transformer_theory.cli.training import FIRST, ROWS, progress_table
from transformer_theory.training.loop import Moment

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


MEASURED = {
    "rate-reduction": ["accuracy of nearest subspaces", "rate reduction", "rate reduction, labels shuffled"],
    "masked-autoencoding": ["loss", "loss, pixels shuffled", "loss, untrained", "accuracy of a linear probe"],
    "sparse-rate-reduction": ["loss", "accuracy", "sparse rate reduction", *(f"R^c - R, layer {number}" for number in range(8))],
}


@pytest.mark.parametrize("objective", MEASURED)
def test_the_table_of_progress_fits_80_columns_and_keeps_the_score(objective, capsys):
    measured = {f"held-out {name}": 99.99 for name in MEASURED[objective]}
    score = next(name for name in measured if "accuracy" in name)
    with progress_table(score) as tell:
        tell(Moment(123456, 100.5, 0.5, 4000.0, 12345.6, 2.3026, measured | {score: 0.4648}))
    lines = capsys.readouterr().err.splitlines()
    assert 60 < max(map(len, lines)) <= 80
    assert " 46.48 % " in lines[-1]
    assert sum("accuracy" in line for line in lines) == 1


def test_of_many_intervals_some_tens_are_shown_and_the_last(capsys):
    with progress_table() as tell:
        for step in range(1001):
            tell(Moment(step, step / 5, step / 1000, 0.0, None, None, {"held-out loss": 1.0} if step % 5 == 0 else None))
    steps = [int(line.split()[1]) for line in capsys.readouterr().err.splitlines()[2:]]
    assert steps[:FIRST] == [0, 5, 10, 15, 20]
    assert ROWS < len(steps) <= FIRST + ROWS
    assert steps[-1] == 1000


def test_errors_name_options_as_they_are_typed(capsys):
    flags = {"patch_size": "--patch-size", "dim": "--dim", "size": "--size"}
    for message, typed in {
        "patch_size must divide 8, got 3": "--patch-size must divide 8, got 3",
        "heads must divide dim, got 3; raise dim": "heads must divide dim, got 3; raise dim",
        "dim must be even": "--dim must be even",
        "no /a/patch_size/x, 'patch_size' or my_patch_size; lower patch_size.": "no /a/patch_size/x, 'patch_size' or my_patch_size; "
        "lower --patch-size.",
        "pass size= to scale, or size=4; image_size=4": "pass --size to scale, or --size 4; image_size=4",
    }.items():
        assert as_typed(message, flags) == typed
    assert main([*TINY, "--patch-size", "3", "--out", "nowhere"]) == 2
    assert "--patch-size must be a divisor of the side of the images, 8 pixels, got 3; take 1, 2, 4, 8" in capsys.readouterr().err


def test_an_option_of_another_objective_says_of_which(capsys):
    assert main([*TINY, "--masked", "0.5"]) == 2
    assert "option '--masked' goes with --objective masked-autoencoding; add that" in capsys.readouterr().err
    assert main([*TINY, "--objective", "masked-autoencoding", "--eps=1"]) == 2
    assert "'--eps' goes with --objective rate-reduction or sparse-rate-reduction" in capsys.readouterr().err


def test_help_says_whose_defaults_it_shows(capsys):
    for given, told, rate in (
        (["vit"], "minutes for vit", "0.001"),
        (["crate", "--data", "digits"], "digits for crate", "0.003"),
        (["--recipe=hours"], "hours for crate", "0.002"),
    ):
        assert main(["train", *given, "--help"]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert f"Defaults here and below are those of recipe {told}; of another: " in out
        assert f"above 0 (default: {rate})" in out


def test_photographs_of_any_size_are_named_a_size(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_THEORY_DATA", str(tmp_path / "home"))
    monkeypatch.setattr(report, "write", lambda result, folder: folder)  # for the sake of time
    for name, value in (("cat", 0), ("dog", 200)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(10):
            mode = "L" if number == 3 else "RGB"
            Image.new(mode, (10 + number, 9), value if mode == "L" else (value, 0, number)).save(tmp_path / "pets" / name / f"{number}.png")
    given = [str(tmp_path / "pets") if word == "digits" else word for word in TINY]
    assert main([*given, "--out", str(tmp_path / "run")]) == 2
    assert "pixels; pass --size to scale and crop them" in capsys.readouterr().err
    assert main([*given, "--size", "8", "--out", str(tmp_path / "run")]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines()[0] == f"{tmp_path / 'pets'}: 2 grey of 20 images are read as RGB"
    last = next(line for line in captured.out.splitlines() if line.startswith("test accuracy"))
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(tmp_path / "pets"), "--size", "8"]) == 0
    assert last in capsys.readouterr().out
    compared = ["compare", "--data", str(tmp_path / "pets"), "--size", "4", "--model", str(tmp_path / "run"), "--out", str(tmp_path / "x")]
    assert main(compared) == 2
    assert "reads images [3, 8, 8], got [3, 4, 4]" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "pets"), "--data", "nowhere"]) == 2
    assert "must hold best.safetensors" in capsys.readouterr().err


def test_options_that_are_not_given_are_as_they_were(run, capsys, monkeypatch):
    monkeypatch.setattr(report, "write", lambda result, folder: folder)  # for the sake of time
    assert main(["train", "crate", "--data", "digits", "--theories", "none", "--precision", "float32", "--resume", "--out", str(run)]) == 0
    assert capsys.readouterr().out.startswith(f"{run} holds a training that has ended; what it reached:\ntest loss: ")
    assert main([*TINY, "--seed", "4", "--resume", "--out", str(run)]) == 2
    assert "belongs to another training: seed 0 there and 4 here" in capsys.readouterr().err


def test_evaluate_tells_each_class(run, capsys):
    assert main(["evaluate", str(run), "--data", "digits"]) == 0
    shown = capsys.readouterr().out
    assert "test accuracy: " in shown
    assert len([line for line in shown.splitlines() if line.strip()[:1].isdigit()]) == 10
    assert "recall  precision" in shown
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


def test_sigterm_ends_a_training_that_goes_on(tmp_path, monkeypatch, capsys):
    @contextlib.contextmanager
    def stopping(*arguments):
        with progress_table(*arguments) as tell:

            def told(moment):
                tell(moment)
                if moment.step == 4:  # the second interval: its reading has been shown, and the training goes on
                    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
                    signal.raise_signal(signal.SIGTERM)

            yield told

    monkeypatch.setattr(training, "progress_table", stopping)
    folder = tmp_path / "run"
    assert main([*TINY, "--interval", "2", "--epochs", "100000", "--out", str(folder)]) == 130
    err = capsys.readouterr().err
    told = f"transformer-theory: interrupted; {folder} holds the training up to its last interval, --resume goes on with it"
    assert err.splitlines()[-1] == told
    assert "Traceback" not in err
    assert torch.load(folder / "last.pt", weights_only=True)["step"] >= 2
    assert not list(folder.glob(".*"))
