"""Two processes that talk over gloo, for whatever adds up over ranks."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def on_two_ranks(work: Callable[[int], Any], folder: Path) -> list[Any]:
    """What ``work(rank)`` returns on each of two ranks. Forked, so that nothing is imported again; the ranks meet in a file."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(work, rank, folder)) for rank in (0, 1)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(60)
    assert [each.exitcode for each in ranks] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def _rank(work: Callable[[int], Any], rank: int, folder: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.save(work(rank), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()
