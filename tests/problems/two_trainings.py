"""Trainings by two processes; started by tests/training/test_processes.py through torchrun, or in one process for comparison."""

import contextlib
import os
import pickle
import sys
from pathlib import Path

import torch

from tests.problems.image_trainings import trained, with_
from transformer_theory.training.augment import Augmentation
from transformer_theory.training.loop import Moment
from transformer_theory.training.objectives import RateReduction
from transformer_theory.training.processes import Hardware
from transformer_theory.training.settings import Settings

SETTINGS: Settings = with_(epochs=7, interval=20, depth=2, changes=Augmentation(crop=1, flip=0.5, mixup=0.8))  # 21 steps
SHARDED = Hardware("cpu", "float32", "fsdp")
RATES = RateReduction(features=8)


def stopping(moment: Moment) -> None:
    if moment.step == 20 and moment.measured is not None:
        raise KeyboardInterrupt


def losses(folder: Path, **given) -> list[float]:
    """The mean loss of all processes in each of 20 steps, and what is measured after them."""
    own: list[float] = []
    measured: list[float] = []

    def tell(moment: Moment) -> None:
        if moment.measured is None:
            own.append(moment.loss or 0.0)
        else:
            measured.extend(moment.measured.values())
        stopping(moment)

    with contextlib.suppress(KeyboardInterrupt):
        trained(folder, SETTINGS, tell=tell, **given)
    everyone = torch.tensor(own, dtype=torch.float64)
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(everyone)
        everyone /= torch.distributed.get_world_size()
    return [*everyone.tolist(), *measured]


def refused(folder: Path, **given) -> str:
    try:
        trained(folder, **given)
    except ValueError as error:
        return str(error)
    return "not refused"


def work(folder: Path) -> dict:
    """What one process of two finds."""
    torch.set_num_threads(1)
    return {
        "ddp": losses(folder / "ddp"),
        "rate reduction": losses(folder / "rates", objective=RATES),
        "fsdp": losses(folder / "fsdp", hardware=SHARDED),
        "resumed": losses(folder / "one", hardware=SHARDED, resume=True),
        "indivisible": refused(folder / "no", settings=with_(batch_size=15)),
        "average": refused(folder / "no", settings=with_(average=0.9), hardware=SHARDED),
    }


if __name__ == "__main__":
    sys.modules["torchmetrics"] = None  # pyright: ignore[reportArgumentType]  # Fabric asks for its version only; its import takes seconds
    meeting = Path(sys.argv[1])
    (meeting / os.environ["RANK"]).write_bytes(pickle.dumps(work(meeting)))
