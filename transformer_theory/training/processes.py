"""Devices, precision and processes of a training, through Lightning Fabric.

One process trains on one device. Several are started by ``torchrun``, which tells each its place; then every process holds the network and
all images, draws the same random numbers, works on its share of each batch, and gradients are averaged. Order and changes of images are
those of a single process, so that the losses are too, up to the order of sums.
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
    """Where a training runs; none of it changes what is trained, up to rounding.

    Attributes:
        device: ``cpu``, ``cuda``, ``mps``, or ``auto`` for the best there is.
        precision: of the products; ``auto`` is bfloat16 where the device multiplies faster in it. Weights are float32 either way.
        strategy: of several processes: each holds all weights (``ddp``), or a share of weights, gradients and the optimiser's state, and
            all weights only from its forward pass to its gradient (``fsdp``).
        compile: whether the network is compiled first, which takes a minute.
    """

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    strategy: Literal["ddp", "fsdp"] = "ddp"
    compile: bool = False

    def resolved(self) -> "Hardware":
        """Without ``auto``.

        Raises:
            ValueError: the device is not here.
        """
        here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        device = next(name for name in ("cuda", "mps", "cpu") if here[name]) if self.device == "auto" else self.device
        if not here[device]:
            raise ValueError(f"device must be one that torch can use here, got {device!r}; use 'cpu'")
        fast = torch.cuda.is_bf16_supported() if device == "cuda" else device == "cpu" and _cpu_multiplies_faster_in_bfloat16()
        precision = ("bfloat16" if fast else "float32") if self.precision == "auto" else self.precision
        return Hardware(device, precision, self.strategy, self.compile)  # pyright: ignore[reportArgumentType]


def _cpu_multiplies_faster_in_bfloat16() -> bool:
    """Whether the processor has a unit that does: Intel's AMX, or the instructions of an AMD (Zen 4 and later).

    Instructions alone do not tell. On an Intel Xeon whose AMX the virtual machine does not hand on, products took 1.4 to 1.8 times as long
    in bfloat16 as in float32. The clock is not asked, since a busy machine would answer now this, now that, and a training go on in
    another precision.
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

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it tells at each start what was asked for

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

    # torch warns of layers that return a view, which only in-place changes would harm, and the networks make none
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    return ModelParallelStrategy(_cut, data_parallel_size=world, tensor_parallel_size=1)


def _cut(network: nn.Module, mesh: Any) -> nn.Module:
    """A layer's weights are collected when it is called, the others when the network is, and stay until their gradients are there: so
    objectives may read weights in between."""
    from torch.distributed.fsdp import fully_shard

    for layers in network.modules():
        if type(layers) is nn.ModuleList:
            for layer in layers:
                fully_shard(layer, mesh=mesh["data_parallel"], reshard_after_forward=False)
    return fully_shard(network, mesh=mesh["data_parallel"], reshard_after_forward=False)  # pyright: ignore[reportReturnType]


def set_up(fabric: "Fabric", network: nn.Module, stepping: Callable[[nn.Module], torch.optim.Optimizer]) -> tuple[nn.Module, Any]:
    """The network as it is called in training, and its optimiser.

    Args:
        network: its weights are replaced by this process's share of them if they are cut.
        stepping: makes the optimiser of the network's weights, as they then are.
    """
    if not cuts(fabric):
        return fabric.setup(network, stepping(network))  # pyright: ignore[reportReturnType]
    model = fabric.setup_module(network)
    return model, fabric.setup_optimizers(stepping(network))


def cuts(fabric: "Fabric") -> bool:
    """Whether each process holds a share of every weight."""
    return type(fabric.strategy).__name__ == "ModelParallelStrategy"


def tells_of_loss(error: RuntimeError) -> bool:
    """Whether an error says that another process does not answer any more."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)  # gloo has no kind of its own


def gathered(fabric: "Fabric", own: Tensor) -> Tensor:
    """All processes' parts ``[n, ...]``, one after the other ``[processes * n, ...]``, with gradients: the ``gather`` of
    :mod:`.objectives`."""
    if fabric.world_size == 1:
        return own
    warnings.filterwarnings("ignore", message="torch.distributed.nn.functional.all_gather is deprecated")  # Fabric's own call
    parts = fabric.all_gather(own, sync_grads=True)
    assert isinstance(parts, Tensor)
    return parts.flatten(0, 1)


def share(fabric: "Fabric", n: int) -> slice:
    """This process's part of n images, which the number of processes divides."""
    size = n // fabric.world_size
    return slice(fabric.global_rank * size, (fabric.global_rank + 1) * size)
