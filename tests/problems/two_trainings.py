"""Trainings by two processes; started by tests/training/test_processes.py with torchrun's launcher, or in one
process for comparison.
"""

import contextlib
import importlib
import itertools
import os
import pickle
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.problems.image_trainings import interrupting, trained, with_
from transformer_theory.theories.rate_reduction.tasks import RateReduction
from transformer_theory.training import fitting
from transformer_theory.training.augment import Augmentation
from transformer_theory.training.image import loop
from transformer_theory.training.image.loop import ProgressUpdate
from transformer_theory.training.image.processes import Hardware
from transformer_theory.training.image.settings import Settings

# 21 steps
SETTINGS: Settings = with_(
    epochs=7, interval=20, depth=2, augmentation=Augmentation(crop=1, flip=0.5, mixup=0.8)
)
SHARDED = Hardware("cpu", "float32", "fsdp")
RATES = RateReduction(features=8)


def stopping(update: ProgressUpdate) -> None:
    if update.step == 20 and update.measured is not None:
        raise KeyboardInterrupt


def losses(folder: Path, **options) -> list[float]:
    """The loss of the whole batch in each of 20 steps, and the measurements after them."""
    losses: list[float] = []
    measured: list[float] = []

    def callback(update: ProgressUpdate) -> None:
        if update.measured is not None:
            measured.extend(update.measured.column("value"))
        elif update.loss is not None:  # None where a training is resumed
            losses.append(update.loss)
        stopping(update)

    with contextlib.suppress(KeyboardInterrupt):
        trained(folder, SETTINGS, callback=callback, pictures=True, **options)
    return [*losses, *measured]


def interrupted(folder: Path, **options) -> None:
    """A training as a whole, and one that is interrupted between two checkpoints and resumed."""
    settings = with_(interval=2, depth=2, augmentation=Augmentation(crop=1, flip=0.5, mixup=0.8))
    trained(folder / "whole", settings, **options)
    with contextlib.suppress(KeyboardInterrupt):
        trained(folder / "parts", settings, callback=interrupting(3), **options)
    trained(folder / "parts", settings, resume=True, **options)


def refused(folder: Path, **options) -> str:
    try:
        trained(folder, **options)
    except ValueError as error:
        return str(error)
    return "not refused"


def gathered(folder: Path) -> tuple[list[float], int]:
    """Losses, and how often the optimiser's state was gathered."""
    with patch.object(loop, "optimiser_state", wraps=loop.optimiser_state) as gather:
        numbers = losses(folder)
    return numbers, gather.call_count


def timed(folder: Path) -> int:
    """Steps in a minute by clocks that a reading moves by a second in one process, by two in the other."""
    steps: list[int] = []
    readings = itertools.count(step=1 + int(os.environ["RANK"]))
    clock = SimpleNamespace(perf_counter=lambda: float(next(readings)))
    with patch.object(fitting, "time", clock):
        trained(folder, with_(minutes=1.0, interval=10**6), callback=lambda update: steps.append(update.step))
    return steps[-1]


def killed(folder: Path) -> str:
    """The error of the first process when the other is killed at the third step."""

    def kill(update: ProgressUpdate) -> None:
        if update.step == 3 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        trained(folder, SETTINGS, callback=kill)
    except ConnectionError as error:
        return str(error)
    return "not noticed"


def work(folder: Path) -> dict:
    """The results of one process of two."""
    torch.set_num_threads(1)
    numbers, count = gathered(folder / "ddp")
    return {
        "ddp": numbers,
        "gathered": count,
        "timed": timed(folder / "timed"),
        "rate reduction": losses(folder / "rates", objective=RATES),
        "fsdp": losses(folder / "fsdp", hardware=SHARDED),
        "resumed": losses(folder / "one", hardware=SHARDED, resume=True),
        "interrupted ddp": interrupted(folder / "interrupted ddp"),
        "interrupted fsdp": interrupted(folder / "interrupted fsdp", hardware=SHARDED),
        "indivisible": refused(folder / "no", settings=with_(batch_size=15)),
        "average": refused(folder / "no", settings=with_(average=0.9), hardware=SHARDED),
    }


def main(meeting: Path) -> None:
    """What one of the processes does."""
    (meeting / os.environ["RANK"]).write_bytes(pickle.dumps(work(meeting)))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher sends it to the remaining process
    (meeting / "error").write_text(killed(meeting / "killed"))
    os._exit(0)  # a process that has lost the other waits for it at its end


if __name__ == "__main__":
    # As torchrun does, but the processes are forks of this one: the imports take longer than the trainings.
    sys.modules["torchmetrics"] = None  # pyright: ignore[reportArgumentType]  # Fabric asks for its version only; its import takes seconds
    importlib.import_module("lightning_fabric")
    settings = LaunchConfig(
        1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0, start_method="fork"
    )
    elastic_launch(settings, main)(Path(sys.argv[1]))
