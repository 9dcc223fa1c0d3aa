"""Metrics of models wrapped for parallel training in two processes; started by
tests/probes/test_processes.py.
"""

import pickle
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.problems.networks import Net, all_metrics, built, tokens
from transformer_theory.metrics import AttentionStatistics, Geometry
from transformer_theory.probes import probe

SEQUENCES, CLASSES = 12, 3
# sequences of the first process in each measurement: equal, unequal, and nothing for the second
SHARES = (6, 9, 12)


def network() -> torch.nn.Module:
    return built(Net).double().eval()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return tokens(SEQUENCES, 5, 8).double(), torch.arange(SEQUENCES) % CLASSES


def tables(model: torch.nn.Module, shares: list[list[slice]], **options) -> list:
    """The table of one measurement for each list of slices; a slice is a forward pass."""
    x, y = data()
    with probe(model, all_metrics(), name="net", **options) as p, torch.no_grad():
        for step, slices in enumerate(shares):
            with p.accumulate(step):
                for part in slices:
                    p.labels = y[part]
                    model(x[part])
    return p.result().table


def one_process() -> list:
    return tables(
        network(), [[part for part in (slice(n), slice(n, None)) if len(data()[1][part])] for n in SHARES]
    )


def work(rank: int, folder: str) -> None:
    """One of the two: writes its tables, of a model in DDP, with an empty batch in place of none, and of one
    in FSDP.
    """
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    wrapped = DistributedDataParallel(network())
    parts = [slice(n) if rank == 0 else slice(n, None) for n in SHARES]
    shares = [[part] if len(data()[1][part]) else [] for part in parts]
    found = {
        "ddp": tables(wrapped, shares, layers="blocks.*"),
        "empty batch": tables(wrapped, [[part] for part in parts]),
    }
    sharded, mesh = network(), init_device_mesh("cpu", (2,))
    for block in sharded.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    with probe(sharded, [AttentionStatistics(), Geometry()], name="net") as p, torch.no_grad():
        sharded(data()[0][parts[0]])
    found["fsdp"] = p.result().table
    Path(folder, str(rank)).write_bytes(pickle.dumps(found))
    distributed.destroy_process_group()
