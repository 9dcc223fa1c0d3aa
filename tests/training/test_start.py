"""How a training starts: anew or resumed, longer than before, from stored weights, with networks of the
caller's own.
"""

import itertools
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.problems import image_trainings
from tests.problems.image_trainings import (
    SMALL,
    assert_equal,
    assert_same,
    draft_of,
    interrupting,
    noise,
    table,
    trained,
    with_,
)
from transformer_theory.core.result import Result
from transformer_theory.data.image_data import Images
from transformer_theory.training import fitting
from transformer_theory.training.image import loop, machine, memory
from transformer_theory.training.image.evaluate import evaluate
from transformer_theory.training.image.loop import train
from transformer_theory.training.image.saved import load


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    trained(folder)
    return folder


# --- anew or resumed


def test_resuming_without_a_training_starts_one(tmp_path, run):
    trained(tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", run)
    (tmp_path / "empty").mkdir()
    trained(tmp_path / "empty", with_(epochs=1), resume=True)
    assert (tmp_path / "empty" / "last.pt").is_file()


def test_a_start_that_was_killed_is_started_again_and_nothing_else_is_replaced(tmp_path, run):
    """Killed before its first checkpoint, a training leaves the network of step 0 and a result."""
    for name in ("best.safetensors", "result.json", "table.jsonl"):
        (tmp_path / "killed").mkdir(exist_ok=True)
        (tmp_path / "killed" / name).write_bytes((run / name).read_bytes())
    with pytest.raises(FileExistsError, match="killed"):  # this network has learnt something
        trained(tmp_path / "killed", resume=True)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "start", callback=interrupting(1))
    (tmp_path / "start" / "last.pt").rename(draft_of(tmp_path / "start" / "last.pt"))
    with pytest.raises(FileExistsError, match="start"):
        trained(tmp_path / "start")
    trained(tmp_path / "start", resume=True)
    assert_same(tmp_path / "start", run)


# --- longer


@pytest.mark.parametrize("step", [None, 4])
def test_an_extended_training_has_the_steps_of_the_longer_one(tmp_path, run, step):
    """Ended or interrupted, it continues on the longer schedule; interrupted again, it is resumed bit for
    bit.
    """
    for name in ("whole", "parts"):
        if step is None:
            trained(tmp_path / name)
        else:
            with pytest.raises(KeyboardInterrupt):
                trained(tmp_path / name, callback=interrupting(step))
    longer = with_(epochs=4)
    result = trained(tmp_path / "whole", longer, extend=True)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "parts", longer, extend=True, callback=interrupting(10))
    Result.load(tmp_path / "parts")  # is whole at any moment
    trained(tmp_path / "parts", longer, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")
    steps = {row.step for row in result.select(quantity="loss", split="validation")}
    assert steps == {0, 3, 6, 9, 12}
    assert [row.step for row in result.select(quantity="loss", split="test")] in ([3], [6], [9], [12])
    assert result.settings["extended"] == [{"step": (step and 3) or 6, "epochs": 2, "minutes": None}]
    assert Result.load(tmp_path / "whole").settings == result.settings
    early = [row for row in table(run) if row["step"] <= ((step and 3) or 6) and row.get("split") != "test"]
    assert table(tmp_path / "whole")[: len(early)] == early


@pytest.mark.parametrize(
    ("stored", "now", "message"),
    [
        ({}, {"epochs": 1}, "2 epochs.* got 1"),
        ({}, {"minutes": 1.0}, "by epochs"),
        ({"minutes": 0.002}, {"epochs": 9}, "by epochs|by minutes|minutes"),
        ({"minutes": 0.002}, {"minutes": 0.001}, r"0\.002 minutes.* got 0\.001"),
        ({}, {"epochs": 3, "seed": 1}, "seed 0 there and 1 here"),
    ],
)
def test_only_a_longer_training_of_the_same_kind_extends_one(tmp_path, stored, now, message):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", with_(**stored), callback=interrupting(1))
    with pytest.raises(ValueError, match=message):
        trained(tmp_path / "run", replace(with_(**stored), **now), extend=True)


def test_minutes_are_extended(tmp_path, monkeypatch):
    looks = itertools.count()  # at a clock, on which any step of a slow machine takes as long
    monkeypatch.setattr(fitting, "time", SimpleNamespace(perf_counter=lambda: next(looks) / 10))
    first = trained(tmp_path / "run", with_(minutes=0.02))
    result = trained(tmp_path / "run", with_(minutes=0.1), extend=True)
    assert max(result.table.column("step")) > max(first.table.column("step"))


# --- from stored weights


def test_a_training_starts_from_stored_weights_and_says_so(tmp_path, run):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "next", with_(seed=5, average=0.5), weights=run, callback=interrupting(1))
    last = torch.load(tmp_path / "next" / "last.pt", weights_only=True)
    source = load(run)
    assert_equal({**last["network"]}, {**source.model.network.state_dict()})
    result = trained(tmp_path / "next", with_(seed=5, average=0.5), weights=run, resume=True)
    assert result.settings["weights"]["run_id"] == source.origin["run_id"]
    assert result.settings["weights"]["step"] == source.origin["step"]
    # the weights need not be there any more, but others are another training
    assert trained(tmp_path / "next", with_(seed=5, average=0.5), resume=True).settings == result.settings
    with pytest.raises(ValueError, match="weights"):
        trained(tmp_path / "next", with_(seed=5, average=0.5), weights=tmp_path / "next", resume=True)


def test_a_head_for_other_classes_starts_anew(tmp_path, run, caplog):
    images = noise(40)
    images = Images(images.pixels, images.labels % 2, ("a", "b"), name="two classes")
    with (
        pytest.raises(KeyboardInterrupt),
        image_trainings.patch.object(loop.Monitor, "_measure", side_effect=image_trainings.NoAttention),
    ):
        train(
            (images, images),
            SMALL,
            tmp_path / "run",
            hardware=image_trainings.CPU,
            weights=run,
            callback=interrupting(1),
        )
    (record,) = caplog.records
    assert all(
        word in record.getMessage() for word in ("3 classes", "2", "mlp_head.1.weight, mlp_head.1.bias start")
    )
    last, source = (
        torch.load(tmp_path / "run" / "last.pt", weights_only=True)["network"],
        load(run).model.network.state_dict(),
    )
    assert {name for name in last if last[name].shape != source[name].shape} == {
        "mlp_head.1.weight",
        "mlp_head.1.bias",
    }
    assert all(torch.equal(last[name], source[name]) for name in last if "mlp_head.1" not in name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": "vit"}, "network 'crate' there and 'vit' here"),
        ({"dim": 16}, "dim 8 there and 16 here"),
        ({"heads": 4}, "heads 2 there and 4 here"),  # no shape differs
    ],
)
def test_weights_of_another_network_are_refused(tmp_path, run, change, message):
    with pytest.raises(ValueError, match=message):
        trained(tmp_path / "run", with_(**change), weights=run)
    assert not (tmp_path / "run").exists()


# --- networks of one's own


class Line(nn.Module):
    """A linear classifier with one weight that is no matrix."""

    def __init__(self, sizes):
        super().__init__()
        self.line = nn.Linear(sizes.channels * sizes.image_size**2, sizes.num_classes)
        float(torch.zeros(()))  # needs the numbers of a tensor, so it cannot be built without memory

    def forward(self, images):
        return self.line(images.flatten(1))


def test_a_network_of_ones_own_is_trained_loaded_and_evaluated(tmp_path):
    settings, networks = with_(network="line"), {"line": Line}
    whole = trained(tmp_path / "run", settings, networks=networks)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "parts", settings, networks=networks, callback=interrupting(4))
    trained(tmp_path / "parts", settings, networks=networks, resume=True)
    assert_same(tmp_path / "run", tmp_path / "parts", networks=networks)
    assert isinstance(load(tmp_path / "run", networks=networks).model.network, Line)
    rows, _ = evaluate(tmp_path / "run", noise(), noise(12, seed=1), networks=networks)
    assert {row.quantity: row.value for row in rows} == {
        row.quantity: row.value for row in whole.select(split="test")
    }
    for refused in (lambda: load(tmp_path / "run"), lambda: trained(tmp_path / "other", settings)):
        with pytest.raises(ValueError, match="'line'"):
            refused()
    with pytest.raises(ValueError, match="'crate'"):
        trained(tmp_path / "other", networks={"crate": Line})


# --- threads


def test_a_resumed_training_has_the_threads_of_its_checkpoint(tmp_path, run, monkeypatch, caplog):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", callback=interrupting(4))
    before, used = torch.get_num_threads(), []
    try:
        torch.set_num_threads(before + 1)
        trained(tmp_path / "run", resume=True, callback=lambda update: used.append(torch.get_num_threads()))
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    assert set(used) == {before}
    assert_same(tmp_path / "run", run)
    assert not caplog.records


def test_another_number_of_threads_is_said(tmp_path, monkeypatch, caplog):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", callback=interrupting(4))
    monkeypatch.setattr(loop, "available_threads", lambda: 0)
    path = tmp_path / "run" / "last.pt"
    torch.save({**torch.load(path, weights_only=True), "threads": 7}, path)
    trained(tmp_path / "run", resume=True)
    (record,) = caplog.records
    assert f"7 threads and continues on {torch.get_num_threads()}" in record.getMessage()


class Normed(nn.Module):
    """A network with running means and dropout."""

    def __init__(self, sizes):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(sizes.image_size**2), nn.Dropout(0.5)
        self.line = nn.Linear(sizes.image_size**2, sizes.num_classes)

    def forward(self, images):
        return self.line(self.drop(self.norm(images.flatten(1))))


def test_the_choice_of_threads_changes_nothing_else(tmp_path, monkeypatch):
    """Timed steps leave weights, running means and random numbers as they were."""
    options = {"settings": with_(network="normed"), "networks": {"normed": Normed}}
    trained(tmp_path / "plain", **options)
    steps = []

    def choose(step):
        for _ in range(3):
            step()
            steps.append(step)
        return {}

    monkeypatch.setattr(loop, "choose_threads", choose)
    result = trained(tmp_path / "timed", **options)
    assert len(steps) == 3
    assert_same(tmp_path / "plain", tmp_path / "timed", networks=options["networks"])
    assert result.provenance["threads"] == torch.get_num_threads()


class Clock:
    """Time that passes only in steps: the wall time by the number of threads, and a share of it for the
    computing thread.
    """

    def __init__(self, seconds: dict[int, float], share: float = 1.0):
        self.seconds, self.share, self.wall, self.processor = seconds, share, 0.0, 0.0

    def step(self) -> None:
        taken = self.seconds[torch.get_num_threads()]
        self.wall, self.processor = self.wall + taken, self.processor + self.share * taken

    def perf_counter(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        return self.processor


@pytest.mark.parametrize(
    ("seconds", "fixed", "chosen"),
    [
        ({2: 1.0, 1: 1.5}, False, 2),
        ({2: 1.0, 1: 0.9}, False, 2),  # may be chance
        ({2: 1.0, 1: 0.5}, False, 1),
        ({2: 1.0, 1: 0.5}, True, 2),
        ({1: 1.0}, False, 1),
    ],
)
def test_the_faster_number_of_threads_is_chosen(monkeypatch, seconds, fixed, chosen):
    clock, before = Clock(seconds), torch.get_num_threads()
    monkeypatch.setattr(machine, "time", clock)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if fixed:
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
    try:
        torch.set_num_threads(max(seconds))
        tried = machine.choose_threads(clock.step)
        assert torch.get_num_threads() == chosen
    finally:
        torch.set_num_threads(before)
    assert tried == pytest.approx({} if fixed or len(seconds) == 1 else seconds)


@pytest.mark.parametrize(("share", "percent"), [(0.95, None), (0.4, "60 %")])
def test_a_busy_machine_is_said_once(monkeypatch, share, percent):
    clock, lines = Clock({torch.get_num_threads(): 0.5}, share), []
    monkeypatch.setattr(machine, "time", clock)
    watch = machine.LoadWatch(lines.append)
    state = machine.State(nn.Linear(1, 1), torch.optim.SGD([nn.Parameter(torch.zeros(1))]), 0, None)
    for step in range(50):
        watch.after(state)
        clock.wall += 100.0  # between steps, in other callbacks
        watch.before(state)
        clock.step()
        assert len(lines) == (percent is not None and step > 19)
    assert all(percent in line for line in lines)


# --- memory


@pytest.mark.parametrize("network", ["crate", "crate-alpha", "vit", "tost", "crate-exact"])
def test_a_network_larger_than_the_memory_is_refused_before_it_is_built(tmp_path, monkeypatch, network):
    monkeypatch.setattr(memory, "machine_memory", lambda: 64 * 2**30)
    with pytest.raises(ValueError, match=r"GiB.* 64 GiB"):
        trained(tmp_path / "run", with_(network=network, dim=100_000, heads=2))
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="the memory is unknown")
def test_the_memory_of_this_machine_is_known():
    assert 2**28 < memory.machine_memory() < 2**50
