"""Faults of a training are reported in one line, with step and layer, and the last good checkpoint stays."""

import errno
import os
import resource
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tests.problems.image_trainings import assert_same, table, trained, with_
from transformer_theory.core.errors import NotConverged
from transformer_theory.training.faults import where_not_finite
from transformer_theory.training.objectives import CrossEntropy

LAYER = "network.transformer.layers.0.1.fn.weight"


@dataclass(frozen=True)
class Spoiled(CrossEntropy):
    """Cross-entropy with a fault at the fourth step."""

    fault: str = "weight"

    def loss(self, model, images, targets, gather):
        found = super().loss(model, images, targets, gather)
        count = self.__dict__.setdefault("count", [0])
        count[0] += 1
        if count[0] < 4:
            return found
        weight = dict(model.module.named_parameters())[LAYER]
        if self.fault == "weight":
            weight.data.fill_(torch.nan)
            return super().loss(model, images, targets, gather)
        if self.fault == "refusal":
            weight.data.fill_(torch.inf)
            super().loss(model, images, targets, gather)
            raise ValueError("tokens must be finite")
        if self.fault == "gradient":
            return found + (0 * weight).abs().sqrt().sum()  # finite, its gradient is not
        return found / 0 if self.fault == "loss" else found.new_tensor(torch.inf) + 0 * found


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("weight", ".* nan.* weight of network.transformer.layers.0.1.fn "),
        ("refusal", "tokens must be finite; .* weight of network.transformer.layers.0.1.fn "),
        ("gradient", rf".* nan.* {LAYER} "),
        ("loss", ".* inf"),
        ("constant", ".* inf"),
    ],
)
def test_values_that_are_not_finite_are_named_and_the_last_state_stays(tmp_path, fault, message):
    with pytest.raises(NotConverged, match=rf"step 4: {message}.*last\.pt .* step 3$"):
        trained(tmp_path / "run", objective=Spoiled(fault=fault))
    held = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    assert held["step"] == 3
    assert all(bool(torch.isfinite(weight).all()) for weight in held["network"].values())
    assert max(row["step"] for row in table(tmp_path / "run")) == 3


def test_another_error_of_an_objective_stays_itself(tmp_path):
    class Broken(CrossEntropy):
        def loss(self, model, images, targets, gather):
            raise ValueError("a batch must hold two classes")

    with pytest.raises(ValueError, match="a batch must hold two classes"):
        trained(tmp_path / "run", objective=Broken())


def test_weights_that_a_step_has_spoiled_are_not_stored(tmp_path):
    """The step is the last before a checkpoint."""
    with pytest.raises(NotConverged, match=r"step 1: pos_embedding .*last\.pt .* step 0$"):
        trained(tmp_path / "run", with_(learning_rate=1e39, interval=1, warm_up=0.0))
    held = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    assert all(bool(torch.isfinite(weight).all()) for weight in held["network"].values())


def test_the_first_module_that_is_not_finite_is_named():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1), nn.Flatten())
    images = torch.ones(2, 1, 1, 4)

    def again() -> None:
        model(images).sum().backward()

    assert where_not_finite(model, images, again) is None
    assert where_not_finite(model, images / 0, again) == "the batch holds NaN or infinity"
    model[2].bias.data.fill_(torch.nan)
    assert where_not_finite(model, images, again) == "a weight of 2 (Linear) is not finite"
    model[0].weight.data.fill_(3e38)
    assert where_not_finite(model, images, again) == "the output of 0 (Linear) is not finite"
    assert not any(module._forward_hooks for module in model.modules())


def test_a_full_disk_costs_no_checkpoint(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(update) -> None:  # a limit on the size of files, as a full disk is, once there is a checkpoint
        if update.step == 4:
            size = (tmp_path / "run" / "last.pt").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, before[1]))

    try:
        with pytest.raises(OSError, match=r"run \(File too large\).*last\.pt .* step 3"):
            trained(tmp_path / "run", callback=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((tmp_path / "run").glob(".*"))
    trained(tmp_path / "run", resume=True)
    trained(tmp_path / "whole")
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_full_disk_is_called_by_its_name(tmp_path, monkeypatch):
    """torch's own writer would say "unexpected pos"."""
    fsync, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=rf"{os.strerror(errno.ENOSPC)}.* step 0"):
        trained(tmp_path / "run")


def test_a_full_disk_at_the_start_leaves_nothing(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(OSError, match=r"cannot write to .*; nothing was stored"):
            trained(tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot make the folder .*file/run"):
        trained(tmp_path / "file" / "run")
