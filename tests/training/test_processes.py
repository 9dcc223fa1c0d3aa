"""Two processes train as one: the same losses, checkpoints that either continues from, and one
that writes.
"""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.problems.image_trainings import CPU, assert_same
from tests.problems.two_trainings import RATES, losses
from transformer_theory.core.result import Result
from transformer_theory.training.image import processes
from transformer_theory.training.image.processes import Hardware, is_lost_process

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of one process."""
    folder = tmp_path_factory.mktemp("alone")
    losses(folder / "one")
    return folder


@pytest.fixture(scope="module")
def both(folder, tmp_path_factory) -> tuple[Path, list[dict]]:
    """The folder of the two processes, and the results of each."""
    together = tmp_path_factory.mktemp("together")
    shutil.copytree(folder / "one", together / "one")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.problems.two_trainings", str(together)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    # the last of it: the launcher fails, since a process was killed
    assert (together / "error").exists(), ran.stderr
    return together, [pickle.loads((together / str(rank)).read_bytes()) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("how", "given"), [("ddp", {}), ("fsdp", {}), ("rate reduction", {"objective": RATES})]
)
def test_losses_are_those_of_one_process(both, tmp_path, how, given):
    """Each of 20 steps, and what is measured at the start and the end; weights and moments in float32.

    Rate reduction is the difference of two rates of more than a nat, so that its rounding is that of a nat.
    """
    first, second = (found[how] for found in both[1])
    assert first == second
    assert first == pytest.approx(
        losses(tmp_path / "run", **given), rel=1e-5, abs=5e-6 if how == "rate reduction" else None
    )


def test_a_checkpoint_of_one_strategy_is_one_of_any(both, folder):
    """Begun by one process, ended by two that hold a share of the weights each, and the other way round."""
    alone = losses(folder / "one", resume=True)
    assert both[1][0]["resumed"] == pytest.approx(alone, rel=1e-5)
    assert losses(both[0] / "fsdp", resume=True) == pytest.approx(alone, rel=1e-5)
    states = [torch.load(one / "last.pt", weights_only=True) for one in (folder / "one", both[0] / "one")]
    for part in states[0]["optimiser"]["state"]:
        held = [state["optimiser"]["state"][part]["exp_avg"] for state in states]
        assert torch.allclose(*held, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_resume_bit_for_bit(both, strategy):
    folder = both[0] / f"interrupted {strategy}"
    assert_same(folder / "whole", folder / "parts")


def test_a_killed_process_is_reported_and_the_training_continues_from_its_checkpoint(both):
    killed = both[0] / "killed"
    message = (
        f"another process has ended; {killed / 'last.pt'} holds the last good state, of step 0, --resume "
        "continues from it"
    )
    assert (both[0] / "error").read_text() == message
    undisturbed = both[1][0]["ddp"]
    # the start is not measured again
    assert losses(killed, resume=True) == pytest.approx([*undisturbed[:20], *undisturbed[-2:]], rel=1e-5)


def test_processes_end_together_by_the_clock(both):
    steps = [found["timed"] for found in both[1]]
    assert steps[0] == steps[1] > 1


def test_one_process_writes(both):
    where = both[0]
    # the optimiser's state, at the start and the end, by both
    assert [found["gathered"] for found in both[1]] == [2, 2]
    assert not (where / "no").exists()
    assert Result.load(where / "ddp").provenance["processes"] == 2
    assert not list(where.glob("*/.*"))


def test_settings_that_processes_cannot_share_are_refused(both):
    for found in both[1]:
        assert (
            found["indivisible"] == "batch_size must be a multiple of the 2 processes, got 15; choose another"
        )
        assert (
            found["average"]
            == "strategy 'fsdp' has no moving average, got average 0.9; pass --average 0 or --strategy ddp"
        )


def test_hardware_that_is_not_available():
    with pytest.raises(ValueError, match="device must be available to torch, got 'mps'; use 'cpu'"):
        Hardware("mps").resolved()
    assert CPU.resolved() == CPU
    assert Hardware().resolved().precision in ("float32", "bfloat16")


@pytest.mark.parametrize(
    ("amx", "instructions", "processor", "precision"),
    [
        (True, True, "vendor_id : GenuineIntel", "bfloat16"),
        (False, True, "vendor_id : GenuineIntel", "float32"),
        (False, True, "vendor_id : AuthenticAMD", "bfloat16"),
        (False, False, "vendor_id : AuthenticAMD", "float32"),
    ],
)
def test_bfloat16_is_taken_where_the_processor_has_a_unit_for_it(
    monkeypatch, amx, instructions, processor, precision
):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    monkeypatch.setattr(processes, "_processor", lambda: processor)
    assert Hardware("cpu").resolved().precision == precision


def test_errors_of_a_lost_process():
    assert is_lost_process(
        RuntimeError("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:22938.")
    )
    assert is_lost_process(torch.distributed.DistNetworkError("timed out"))
    assert not is_lost_process(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
