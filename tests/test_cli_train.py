"""``train`` and ``evaluate`` on the command line: what they show and store, how they end, and what they
refuse.
"""

import contextlib
import io
import os
import re
import signal
from dataclasses import replace

import pytest
import torch
from PIL import Image

from tests.cases import each_case
from transformer_theory import report
from transformer_theory.cli import main, training
from transformer_theory.cli.fields import with_flags
from transformer_theory.cli.training import FIRST, ROWS, progress_table
from transformer_theory.core import format
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.result import Result
from transformer_theory.core.table import Table
from transformer_theory.data.image_sets import images as read_images
from transformer_theory.training.image.loop import ProgressUpdate
from transformer_theory.training.image.recipes import image_recipe

TINY = [
    "train",
    "crate",
    "--data",
    "digits",
    "--theories",
    "none",
    "--device",
    "cpu",
    "--precision",
    "float32",
]
TINY += [
    "--dim",
    "8",
    "--depth",
    "1",
    "--heads",
    "2",
    "--patch-size",
    "4",
    "--epochs",
    "2",
    "--validation-share",
    "0.5",
]


def measured(values: dict[str, float]) -> Table:
    """Rows of validation; shares are accuracies."""
    shared = {"split": "validation", "step": 0, "model": "crate"}
    rows = [(name, value, "share" if "accuracy" in name else "") for name, value in values.items()]
    return Table(
        Measurement("network", "network", name, value, unit=unit, **shared) for name, value, unit in rows
    )


@pytest.fixture(scope="module")
def shown_and_stored(tmp_path_factory):
    """What a training shows, and its folder, which held another training before."""
    folder = tmp_path_factory.mktemp("runs") / "crate"
    folder.mkdir()
    for name in ("last.pt", "table.tex"):
        (folder / name).write_bytes(b"of another training")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main([*TINY, "--out", str(folder), "--overwrite"]) == 0
    return out.getvalue(), err.getvalue(), folder


@pytest.fixture
def run(shown_and_stored):
    return shown_and_stored[2]


def test_a_training_shows_each_interval_and_its_result(shown_and_stored):
    out, err, run = shown_and_stored
    lines = err.splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["train", "validation", "validation"],
        ["epoch", "step", "loss", "loss", "accuracy", "img/s", "time", "left"],
    ]
    assert [line.split()[0] for line in lines[2:-1]] == ["0.00", "1.00", "2.00"]
    result = Result.load(run)
    (accuracy,) = result.select(split="test", quantity="accuracy")
    shown = re.search(
        r"^test accuracy: (\S+) % of 540 images, 95 % interval (\S+) % to (\S+) %$", out, re.MULTILINE
    )
    assert float(shown[1]) == round(100 * accuracy.value, 1)
    assert float(shown[2]) < float(shown[1]) < float(shown[3])
    assert f"{run / 'best.safetensors'}, of step {accuracy.step}" in out
    assert result.settings["validation_samples"] + result.settings["train_samples"] == 1257
    assert str(run / "report.html") in out
    assert all(b"another" not in file.read_bytes()[:20] for file in run.iterdir())
    assert not (run / "table.tex").exists()


MEASURED = {
    "rate-reduction": ["accuracy of the nearest subspace", "rate reduction"],
    "masked-autoencoding": ["loss", "accuracy of a linear probe"],
    "sparse-rate-reduction": ["loss", "accuracy", "sparse rate reduction", "R^c - R", "l1 norm of a token"],
}


@pytest.mark.parametrize("objective", MEASURED)
def test_the_table_of_progress_fits_80_columns_and_includes_the_score(objective, capsys):
    score = next(name for name in MEASURED[objective] if "accuracy" in name)
    table = measured(dict.fromkeys(MEASURED[objective], 99.99) | {score: 0.4648})
    # layers have no column
    layers = [replace(table[-1], quantity=score, value=0.99, layer=layer) for layer in range(8)]
    with progress_table(score) as show:
        show(ProgressUpdate(123456, 100.5, 0.5, 4000.0, 12345.6, 2.3026, Table([*table, *layers])))
    lines = capsys.readouterr().err.splitlines()
    assert 60 < max(map(len, lines)) <= 80
    assert " 46.48 % " in lines[-1]
    assert sum("accuracy" in line for line in lines) == 1


def test_of_many_intervals_some_tens_and_the_last_are_shown(capsys):
    with progress_table() as show:
        for step in range(1001):
            show(
                ProgressUpdate(
                    step,
                    step / 5,
                    step / 1000,
                    0.0,
                    None,
                    None,
                    measured({"loss": 1.0}) if step % 5 == 0 else None,
                )
            )
    steps = [int(line.split()[1]) for line in capsys.readouterr().err.splitlines()[2:]]
    assert steps[:FIRST] == [0, 5, 10, 15, 20]
    assert ROWS < len(steps) <= FIRST + ROWS
    assert steps[-1] == 1000


@each_case(
    ("message", "typed"),
    [
        ("patch_size must divide 8, got 3", "--patch-size must divide 8, got 3"),
        ("heads must divide dim, got 3; raise dim", "heads must divide dim, got 3; raise dim"),
        ("dim must be even", "--dim must be even"),
        (
            "/a/patch_size/x, 'patch_size', my_patch_size; lower patch_size.",
            "/a/patch_size/x, 'patch_size', my_patch_size; lower --patch-size.",
        ),
        ("pass size= to scale, or size=4; image_size=4", "pass --size to scale, or --size 4; image_size=4"),
    ],
)
def test_errors_name_options_as_they_are_typed(message, typed):
    assert with_flags(message, {"patch_size": "--patch-size", "dim": "--dim", "size": "--size"}) == typed


def refused(capsys, *arguments) -> str:
    """The error line of a command that refuses its input."""
    capsys.readouterr()
    assert main([*map(str, arguments)]) == 2
    captured = capsys.readouterr()
    (*notes, error) = captured.err.splitlines()
    assert error.startswith("transformer-theory: ")
    assert not any(note.startswith("transformer-theory: ") for note in notes)
    assert not captured.out
    return error


def test_wrong_options_are_named_with_right_ones(capsys, tmp_path):
    error = refused(capsys, *TINY, "--patch-size", "3", "--out", tmp_path / "nowhere")
    assert re.search(r"--patch-size must .* 8 pixels, got 3; .* 1, 2, 4, 8$", error)
    error = refused(capsys, *TINY, "--masked", "0.5")
    assert "'--masked'" in error
    assert "--objective masked-autoencoding" in error
    assert "--objective rate-reduction or sparse-rate-reduction" in refused(
        capsys, *TINY, "--objective", "masked-autoencoding", "--eps=1"
    )
    assert "'rate-reduction'" in refused(capsys, *TINY, "--objective", "rate-reductoin")
    assert not (tmp_path / "nowhere").exists()


def test_help_shows_the_defaults_of_the_recipe(capsys):
    for arguments, name in (
        (["vit"], "minutes"),
        (["crate", "--data", "digits"], "digits"),
        (["--recipe=hours"], "hours"),
    ):
        network = arguments[0] if len(arguments[0]) < 6 else "crate"
        assert main(["train", *arguments, "--help"]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert f"{name} for {network};" in out
        assert f"above 0 (default: {image_recipe(network, name=name).learning_rate:g})" in out
        assert "default: None" not in out


@pytest.mark.parametrize(
    ("objective", "score"),
    [("rate-reduction", "accuracy of the nearest subspace"), ("sparse-rate-reduction", "accuracy")],
)
def test_objectives_of_theories_are_trained_and_evaluated(objective, score, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report, "write", lambda result, folder: folder)  # saves time
    assert (
        main(
            [*TINY, "--objective", objective, "--eps", "0.4", "--epochs", "1", "--out", str(tmp_path / "run")]
        )
        == 0
    )
    result = Result.load(tmp_path / "run")
    assert result.settings["objective"]["name"] == objective
    assert result.settings["objective"]["eps"] == 0.4
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("test ")]
    assert any(line.startswith(f"test {score}: ") for line in shown)
    assert main(["evaluate", str(tmp_path / "run"), "--data", "digits"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in shown] == shown
    assert len({line.partition(":")[0] for line in lines if line.startswith("test ")}) == len(
        result.select(split="test")
    )


def test_folders_of_images_of_any_size_need_a_size(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_THEORY_DATA", str(tmp_path / "home"))
    monkeypatch.setattr(report, "write", lambda result, folder: folder)  # saves time
    for name, value in (("cat", 0), ("dog", 200)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(10):
            mode = "L" if number == 3 else "RGB"
            Image.new(mode, (10 + number, 9), value if mode == "L" else (value, 0, number)).save(
                tmp_path / "pets" / name / f"{number}.png"
            )
    pets = tmp_path / "pets"
    command = [str(pets) if word == "digits" else word for word in TINY]
    assert "--size" in refused(capsys, *command, "--out", tmp_path / "run")
    assert main([*command, "--size", "8", "--out", str(tmp_path / "run")]) == 0
    captured = capsys.readouterr()
    assert re.search(f"{pets}: 2 .* 20 ", captured.err.splitlines()[0])  # two grey images of 20
    last = next(line for line in captured.out.splitlines() if line.startswith("test accuracy"))
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(pets), "--size", "8"]) == 0
    assert last in capsys.readouterr().out
    compared = refused(
        capsys, "compare", "--data", pets, "--size", "4", "--model", tmp_path / "run", "--out", tmp_path / "x"
    )
    assert "[3, 8, 8], got [3, 4, 4]" in compared
    assert "best.safetensors" in refused(capsys, "evaluate", pets, "--data", "nowhere")


def test_omitted_options_of_a_resumed_training_keep_their_values(run, shown_and_stored, capsys, monkeypatch):
    monkeypatch.setattr(report, "write", lambda result, folder: folder)  # saves time
    before = (run / "result.json").read_bytes()
    assert (
        main(["train", "crate", "--data", "digits", "--precision", "float32", "--resume", "--out", str(run)])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert str(run) in lines[0]
    assert lines[1:-1] == shown_and_stored[0].splitlines()[:-1]
    assert (run / "result.json").read_bytes() == before
    assert "seed 0 there and 4 here" in refused(capsys, *TINY, "--seed", "4", "--resume", "--out", run)
    assert "--overwrite" in refused(capsys, *TINY, "--resume", "--overwrite", "--out", run)


def test_a_training_is_extended_and_another_starts_from_its_weights(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report, "write", lambda result, folder: folder)  # saves time
    first, second = tmp_path / "first", tmp_path / "second"
    assert main([*TINY, "--out", str(first)]) == 0
    assert "1" in refused(capsys, *TINY[:-4], "--epochs", "1", "--extend", "--out", first)
    assert "--epochs" in refused(capsys, "train", "crate", "--data", "digits", "--extend", "--out", first)
    assert "last.pt" in refused(capsys, *TINY, "--extend", "--out", tmp_path / "nowhere")
    assert (
        main(
            [
                "train",
                "crate",
                "--data",
                "digits",
                "--precision",
                "float32",
                "--epochs",
                "3",
                "--extend",
                "--out",
                str(first),
            ]
        )
        == 0
    )
    assert Result.load(first).settings["settings"]["epochs"] == 3
    # resumes or starts
    assert main([*TINY, "--epochs", "1", "--weights", str(first), "--out", str(second), "--resume"]) == 0
    assert Result.load(second).settings["weights"]["run_id"] == Result.load(first).settings["run_id"]
    wrong = [word if word != "8" else "16" for word in TINY]
    assert "dim 8 there and 16 here" in refused(
        capsys, *wrong, "--weights", first, "--out", tmp_path / "third"
    )


def test_several_seeds_are_trained_and_their_mean_is_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report, "write", lambda result, folder: folder)  # saves time
    assert main([*TINY, "--seeds", "0,5", "--epochs", "1", "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    mean = Result.load(tmp_path / "run").table.select(quantity="accuracy", seed=None).one()
    shown = re.search(
        r"^test accuracy: (\S+) %, 2 seeds, 95 % interval (\S+) % to (\S+) %$", out, re.MULTILINE
    )
    numbers = (mean.value, *mean.interval)
    texts = [format.amount(number, "share", mean.interval).removesuffix("\u00a0%") for number in numbers]
    assert list(shown.groups()) == texts
    assert {entry.name for entry in (tmp_path / "run").iterdir() if entry.is_dir()} == {"seed-0", "seed-5"}
    assert "--seed" in refused(capsys, *TINY, "--seeds", "2", "--seed", "1", "--out", tmp_path / "other")


def test_absurd_sizes_are_one_line(tmp_path, capsys):
    assert "GiB" in refused(capsys, *TINY, "--dim", "1000000", "--heads", "2", "--out", tmp_path / "run")
    assert "--depth" in refused(capsys, *TINY, "--depth", "1000000000", "--out", tmp_path / "run")


@pytest.mark.parametrize("name", ["Thumbs.db", "desktop.ini", ".DS_Store"])
def test_files_of_file_managers_are_ignored(tmp_path, name):
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        (tmp_path / label / name).write_bytes(b"no image")
        for number in range(3):
            Image.new("L", (8, 8), number).save(tmp_path / label / f"{number}.png")
    assert sum(map(len, read_images(tmp_path))) == 6


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes")
def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path, capsys):
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "pets" / label / "0.png")
    os.mkfifo(tmp_path / "pets" / "cat" / "1.png")
    os.mkfifo(tmp_path / "pipe.npz")
    assert "1.png" in refused(
        capsys,
        *[str(tmp_path / "pets") if word == "digits" else word for word in TINY],
        "--out",
        tmp_path / "run",
    )
    assert "pipe.npz" in refused(
        capsys, *[str(tmp_path / "pipe.npz") if word == "digits" else word for word in TINY]
    )


def test_evaluate_shows_each_class(run, shown_and_stored, capsys):
    assert main(["evaluate", str(run), "--data", "digits"]) == 0
    shown = capsys.readouterr().out
    assert next(line for line in shown_and_stored[0].splitlines() if "accuracy" in line) in shown
    classes = [line.split() for line in shown.splitlines() if line.strip()[:1].isdigit()]
    assert [line[0] for line in classes] == list("0123456789")
    (accuracy,) = Result.load(run).select(split="test", quantity="accuracy")
    recalled = sum(int(line[1]) * float(line[2]) / 100 for line in classes)
    assert recalled / 540 == pytest.approx(accuracy.value, abs=1e-3)
    assert "[1, 8, 8]" in refused(capsys, "evaluate", run, "--data", "shapes")


def test_nothing_else_is_overwritten(run, tmp_path, capsys):
    (tmp_path / "note").write_text("mine")
    assert str(tmp_path) in refused(capsys, *TINY, "--out", tmp_path, "--overwrite")
    assert (tmp_path / "note").read_text() == "mine"
    before = (run / "last.pt").read_bytes()
    error = refused(capsys, *TINY, "--out", run)
    assert "--resume" in error
    assert "--overwrite" in error
    assert (run / "last.pt").read_bytes() == before


def test_a_loss_that_is_not_finite_is_exit_code_1(tmp_path, capsys):
    assert main([*TINY, "--learning-rate", "1e39", "--warm-up", "0", "--out", str(tmp_path / "run")]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("transformer-theory: step 2: ")
    assert re.search(r"last\.pt .* step 0$", last)
    assert "learning rate" in last


def test_sigterm_ends_a_training_that_can_continue(tmp_path, monkeypatch, capsys):
    @contextlib.contextmanager
    def stopping(*arguments):
        with progress_table(*arguments) as show:

            def callback(update):
                show(update)
                # the second interval: its measurement has been shown, and the training continues
                if update.step == 4:
                    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
                    signal.raise_signal(signal.SIGTERM)

            yield callback

    monkeypatch.setattr(training, "progress_table", stopping)
    # raised again so soon, it comes while the training ends, as on a slow machine
    monkeypatch.setattr("transformer_theory.cli.AGAIN", 0.01)
    folder = tmp_path / "run"
    assert main([*TINY, "--interval", "2", "--epochs", "100000", "--out", str(folder)]) == 130
    err = capsys.readouterr().err
    assert str(folder) in err.splitlines()[-1]
    assert "--resume" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert torch.load(folder / "last.pt", weights_only=True)["step"] >= 2
    assert not list(folder.glob(".*"))
