"""Logs hold each step once, also after an interruption; samples and the live page show what the network
answers.
"""

import csv
import errno
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.problems.image_trainings import SMALL, interrupting, noise, trained, with_
from tests.report.markup import well_formed, words
from transformer_theory.cli import main
from transformer_theory.core.result import Result
from transformer_theory.report.pictures import sample_groups
from transformer_theory.report.training import SHARE, live_page
from transformer_theory.training.image import samples
from transformer_theory.training.image.folder import clear
from transformer_theory.training.image.loggers import STEP_LOSS, record
from transformer_theory.training.image.store import is_incomplete_run

BOTH = ("csv", "tensorboard")


def logged(folder: Path) -> tuple[list[dict[str, str]], dict[str, list[tuple[int, float]]]]:
    """The lines of the CSV file, and the scalars of TensorBoard as its own reader gives them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    scalars = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file)), scalars


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    trained(folder, with_(interval=2), loggers=BOTH, pictures=True)
    return folder


def without_times(lines):
    return [
        {
            name: text
            for name, text in line.items()
            if name not in ("training/seconds", "training/images per second")
        }
        for line in lines
    ]


def test_a_log_has_the_numbers_of_the_table(whole):
    lines, scalars = logged(whole)
    result = Result.load(whole)
    assert [int(line["step"]) for line in lines] == [0, 2, 4, 6]
    for line in lines:
        row = result.select(
            theory="network", quantity="accuracy", split="validation", step=int(line["step"])
        ).one()
        assert float(line["validation/accuracy"]) == row.value
    assert [step for step, _ in scalars["validation/loss"]] == [0, 2, 4, 6]
    assert [value for _, value in scalars["validation/loss"]] == pytest.approx(
        [float(line["validation/loss"]) for line in lines]
    )
    assert [step for step, _ in scalars[STEP_LOSS]] == [1, 2, 3, 4, 5, 6]
    (test,) = result.select(theory="network", quantity="accuracy", split="test")
    assert scalars["test/accuracy"] == [(test.step, pytest.approx(test.value))]


def test_an_interrupted_training_continues_its_logs_without_being_asked(whole, tmp_path):
    """Killed after step 5: the log is ahead of the checkpoint of step 4, and what lies after it must not
    appear twice.
    """
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        trained(folder, with_(interval=2), loggers=BOTH, callback=interrupting(5))
    assert [step for step, _ in logged(folder)[1][STEP_LOSS]] == [1, 2, 3, 4, 5]
    trained(folder, with_(interval=2), resume=True)
    lines, scalars = logged(folder)
    expected, others = logged(whole)
    assert without_times(lines) == without_times(expected)
    for tag in ("validation/loss", "train/loss", STEP_LOSS, "test/accuracy"):
        assert scalars[tag] == others[tag]
    trained(folder, with_(interval=2), resume=True)  # a finished training is only loaded
    assert logged(folder) == (lines, scalars)


def test_a_log_that_is_asked_for_later_begins_at_the_first_step(whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", with_(interval=2), callback=interrupting(3))
    trained(tmp_path / "run", with_(interval=2), resume=True, loggers=BOTH)
    lines, scalars = logged(tmp_path / "run")
    assert without_times(lines) == without_times(logged(whole)[0])
    assert [step for step, _ in scalars["validation/loss"]] == [0, 2, 4, 6]


def test_logs_belong_to_the_training(whole, tmp_path):
    folder = tmp_path / "run"
    (folder / "tensorboard").mkdir(parents=True)
    (folder / "tensorboard" / "events.out.tfevents.1").touch()
    assert is_incomplete_run(folder)
    trained(folder, SMALL, resume=True, loggers=["csv"])
    (folder / "tensorboard" / "mine").touch()
    with pytest.raises(FileExistsError, match="holds tensorboard beside a training"):
        clear(folder)
    (folder / "tensorboard" / "mine").unlink()
    clear(folder)
    assert not folder.exists()


def fail(*arguments, **options):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_bad_logs(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="loggers must be among csv, tensorboard, got 'wandb'"):
        trained(tmp_path / "run", loggers=["wandb"])
    with monkeypatch.context() as full:
        full.setattr("lightning_fabric.loggers.csv_logs.CSVLogger.save", fail)  # closing the log fails again
        with pytest.raises(OSError, match=r"cannot write the log of .* \(No space left on device\)"):
            trained(tmp_path / "full", loggers=["csv"])
        full.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", fail)
        with pytest.raises(OSError, match=r"cannot write the log of .* \(No space left on device\)"):
            trained(tmp_path / "full", loggers=["tensorboard"])
    assert not (tmp_path / "full").exists()
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "file", SMALL, callback=interrupting(4))
    (tmp_path / "file" / "tensorboard").write_text("no folder")
    with pytest.raises(OSError, match=r"cannot write the log of .*--resume continues"):
        trained(tmp_path / "file", SMALL, resume=True, loggers=["tensorboard"])
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ValueError, match="needs its package, got none; pip install tensorboard"):
        trained(tmp_path / "run", loggers=["tensorboard"])
    assert not (tmp_path / "run").exists()


def test_a_record_is_a_mean_over_layers_and_heads():
    from tests.report.synthetic import in_network
    from transformer_theory.core.measurement import Null

    draws = [(0.0, 0.0, 3.0), (0.0, 3.0, 0.0), (3.0, 0.0, 0.0)]  # the mean of draw i is 1; each median is 0
    rows = [
        in_network("crate", "compression", float(h), layer=0, head=h, step=1, nulls=(Null("n", draws[h]),))
        for h in range(3)
    ]
    rows += [
        in_network("network", "entropy", 2.0, layer=1, step=1),
        in_network("network", "loss", 3.0, split="train", step=1),
    ]
    assert record(rows) == {
        "crate/compression": 1.0,
        "crate/compression, null": 1.0,
        "network/entropy": 2.0,
        "train/loss": 3.0,
    }


class Constant(torch.nn.Module):
    """A network whose answer to an image is written in its first pixels."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return 20 * self.scale * x[:, 0, 0, :3]


def test_samples_follow_their_rules():
    images = noise(600)
    found = samples.test_samples(Constant(), images)
    answers = images.pixels[:, 0, 0, :3].double().div(255).mul(20).softmax(1)
    order = images.mixed(samples.fixed_generator())
    chosen = {
        rule: found["samples/rules"] == rule for rule in (samples.RIGHT, samples.WRONG, samples.CERTAIN)
    }
    assert [int(part.sum()) for part in chosen.values()] == [samples.COUNT] * 3
    right = found["samples/answers"] == found["samples/labels"]
    assert right[chosen[samples.RIGHT]].all()
    assert not right[~chosen[samples.RIGHT]].any()
    mixed = order.pixels[:, 0, 0, :3].double().argmax(1) == order.labels
    assert np.array_equal(
        found["samples/images"][chosen[samples.RIGHT]], order.pixels[mixed][: samples.COUNT].numpy()
    )
    worst = (
        answers.max(1)
        .values[answers.argmax(1) != images.labels]
        .sort(descending=True)
        .values[: samples.COUNT]
    )
    np.testing.assert_allclose(found["samples/confidences"][chosen[samples.CERTAIN]], worst, rtol=1e-6)


def test_a_training_stores_samples_and_maps_of_its_first_and_its_kept_network(whole):
    result = Result.load(whole)
    shown = sample_groups(result)
    assert all(sample.image.startswith("data:image/png") for group in shown for sample in group.samples)
    assert {sample.right for group in shown if group.title == "Right" for sample in group.samples} <= {True}
    (test,) = result.select(theory="network", quantity="accuracy", split="test")
    assert sum(len(group.samples) for group in shown if group.title != "Most certain errors") == test.n
    assert result.arrays["network/crate/steps"].tolist() == [0, test.step] or test.step == 0
    assert result.arrays["network/crate/attention"].shape[:3] == (1 + (test.step > 0), 1, 1)
    np.testing.assert_allclose(result.arrays["network/crate/attention"].sum(-1), 1, rtol=1e-5)


def test_the_page_of_a_running_training(tmp_path):
    folder, pages = tmp_path / "run", []

    def run(shown, last, **options):
        with live_page(folder) as draw:

            def callback(update):
                draw(update)
                if update.step == shown and (folder / "report.html").exists():
                    pages.append((folder / "report.html").read_text())
                if update.step == last:
                    raise KeyboardInterrupt

            trained(folder, with_(interval=2), callback=callback, **options)

    with pytest.raises(KeyboardInterrupt):
        run(2, 4)
    running = pages[-1]
    assert '<meta http-equiv="refresh"' in running
    text = words(running)
    for piece in (
        "crate learns noise",
        "images per second",
        "time left",
        "about",
        "Validation images",
        "Learning",
    ):
        assert piece in text, piece
    well_formed(running)
    stopped = (folder / "report.html").read_text()
    assert "refresh" not in stopped
    assert "Interrupted. The folder keeps the training up to step 2" in words(stopped)
    with pytest.raises(KeyboardInterrupt):
        run(3, 3, resume=True)  # before its first interval
    assert "The training is running" in words(pages[-1])
    assert "Interrupted. The folder keeps the training up to step 2" in words(
        (folder / "report.html").read_text()
    )
    assert 0 < SHARE < 0.1
    assert not list(folder.glob(".*"))


def test_the_command_writes_logs(tmp_path, capsys, monkeypatch):
    from tests.test_cli_train import TINY

    monkeypatch.setattr("transformer_theory.report.write", lambda result, folder: folder)  # saves time
    assert main([*TINY, "--theories", "none", "--epochs", "1", "--csv", "--out", str(tmp_path / "run")]) == 0
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        assert [line["step"] for line in csv.DictReader(file)][:1] == ["0"]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["name"] == "train"
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main([*TINY, "--tensorboard", "--out", str(tmp_path / "other")]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("pip install tensorboard, or omit it")
    assert main([*TINY, "--workers", "2", "--out", str(tmp_path / "other")]) == 2
    assert "--workers shares the seeds of --seeds" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
