"""Devices, precision and processes of a training, through Lightning Fabric.

One process trains on one device. ``torchrun`` starts several; each holds the network and all images, draws the same random numbers, and
works on its share of each batch; gradients are averaged. Order and augmentation of images are those of a single process, and so are the
losses, up to the order of sums.
"""

import logging
import os
import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISIONS = {"float32": "32-true", "bfloat16": "bf16-mixed"}


@dataclass(frozen=True)
class Hardware:
    """Where a training runs; the result does not depend on it, up to rounding.

    Attributes:
        device: ``cpu``, ``cuda``, ``mps``, or ``auto`` for the best available.
        precision: of the products; ``auto`` is bfloat16 if the device multiplies faster in it. Weights are always float32.
        strategy: of several processes: each holds all weights (``ddp``), or a share of weights, gradients and the optimiser's state, and
            all weights only from its forward pass to its gradient (``fsdp``).
        compile: whether the network is compiled, which takes a minute.
    """

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    strategy: Literal["ddp", "fsdp"] = "ddp"
    compile: bool = False

    def resolved(self) -> "Hardware":
        """Replaces ``auto`` by the device and precision of this machine.

        Raises:
            ValueError: the device is not available.
        """
        available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        device = next(name for name in ("cuda", "mps", "cpu") if available[name]) if self.device == "auto" else self.device
        if not available[device]:
            raise ValueError(f"device must be available to torch, got {device!r}; use 'cpu'")
        fast = torch.cuda.is_bf16_supported() if device == "cuda" else device == "cpu" and _cpu_multiplies_faster_in_bfloat16()
        precision = ("bfloat16" if fast else "float32") if self.precision == "auto" else self.precision
        return Hardware(device, precision, self.strategy, self.compile)  # pyright: ignore[reportArgumentType]


def _cpu_multiplies_faster_in_bfloat16() -> bool:
    """Whether the processor has a fast unit for bfloat16: Intel's AMX, or the instructions of an AMD (Zen 4 and later).

    AVX-512 instructions alone do not suffice: on an Intel Xeon without AMX, products in bfloat16 are slower than in float32. Nothing is
    timed, since the answer would depend on the load of the machine, and a resumed training could change its precision.
    """
    return torch.cpu._is_amx_tile_supported() or (torch.cpu._is_avx512_bf16_supported() and "AuthenticAMD" in _processor())


def _processor() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return platform.processor()


def launched(hardware: Hardware) -> "Fabric":
    """The Fabric of this process, ready for use; under ``torchrun`` one of several.

    Args:
        hardware: :meth:`Hardware.resolved`.
    """
    from lightning_fabric import Fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it logs the requested devices at each start

    world, local = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    strategy = "auto" if world == 1 else _sharding(world) if hardware.strategy == "fsdp" else "ddp"
    fabric = Fabric(
        accelerator=hardware.device,
        devices=local,
        num_nodes=world // local,
        strategy=strategy,
        precision=PRECISIONS[hardware.precision],  # pyright: ignore[reportArgumentType]
    )
    fabric.launch()
    return fabric


def _sharding(world: int) -> Any:
    """The strategy by which each process holds a share of every weight."""
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    # torch warns of layers that return a view; only in-place changes would break them, and the networks have none
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    return ModelParallelStrategy(_cut, data_parallel_size=world, tensor_parallel_size=1)


def _cut(network: nn.Module, mesh: Any) -> nn.Module:
    """Shards each layer and the rest. Weights are gathered at the call and stay until the backward pass, so objectives may use them."""
    from torch.distributed.fsdp import fully_shard

    for layers in network.modules():
        if type(layers) is nn.ModuleList:
            for layer in layers:
                fully_shard(layer, mesh=mesh["data_parallel"], reshard_after_forward=False)
    return fully_shard(network, mesh=mesh["data_parallel"], reshard_after_forward=False)  # pyright: ignore[reportReturnType]


def set_up(fabric: "Fabric", network: nn.Module, optimiser_of: Callable[[nn.Module], torch.optim.Optimizer]) -> tuple[nn.Module, Any]:
    """The network in the form that training calls, and its optimiser.

    Args:
        network: its weights are replaced by this process's share of them if they are sharded.
        optimiser_of: makes the optimiser of the network's weights after sharding.
    """
    if not shards(fabric):
        return fabric.setup(network, optimiser_of(network))  # pyright: ignore[reportReturnType]
    model = fabric.setup_module(network)
    return model, fabric.setup_optimizers(optimiser_of(network))


def shards(fabric: "Fabric") -> bool:
    """Whether each process holds a share of every weight."""
    return type(fabric.strategy).__name__ == "ModelParallelStrategy"


def is_lost_process(error: RuntimeError) -> bool:
    """Whether an error was caused by another process that no longer answers."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)  # gloo has no exception type


def gathered(fabric: "Fabric", part: Tensor) -> Tensor:
    """The parts ``[n, ...]`` of all processes in order, ``[processes * n, ...]``, with gradients: the ``gather`` of :mod:`.objectives`."""
    if fabric.world_size == 1:
        return part
    warnings.filterwarnings("ignore", message="torch.distributed.nn.functional.all_gather is deprecated")  # Fabric's own call
    parts = fabric.all_gather(part, sync_grads=True)
    assert isinstance(parts, Tensor)
    return parts.flatten(0, 1)


def share(fabric: "Fabric", n: int) -> slice:
    """This process's part of n images; the number of processes divides n."""
    size = n // fabric.world_size
    return slice(fabric.global_rank * size, (fabric.global_rank + 1) * size)
