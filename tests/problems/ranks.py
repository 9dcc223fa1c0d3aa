"""Two processes of torch.distributed over gloo, for tests of sums over ranks."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def on_two_ranks(work: Callable[[int], Any], folder: Path) -> list[Any]:
    """The results of ``work(rank)`` on two ranks. Processes are forked, so that nothing is imported again;
    they meet in a file.
    """
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(work, rank, folder)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def _rank(work: Callable[[int], Any], rank: int, folder: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    torch.save(work(rank), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()
