"""Devices, precision and processes of a training, through Lightning Fabric.

One process trains on one device. ``torchrun`` starts several processes. Each holds the network and all
images, draws the same random numbers and computes the gradient of its share of each batch; the gradients are
averaged. Order and augmentation of the images are the same as in a single process, and so are the losses, up
to the order of sums.
"""

import logging
import os
import platform
import secrets
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ...core.cluster import versions

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISIONS = {"float32": "32-true", "bfloat16": "bf16-mixed"}


@dataclass(frozen=True)
class Hardware:
    """Device, precision and processes of a training. The result does not depend on them, up to rounding.

    Attributes:
        device: ``cpu``, ``cuda``, ``mps``, or ``auto`` for the best available device.
        precision: precision of matrix products; ``auto`` is bfloat16 if the device multiplies faster in it.
            Weights are always float32.
        strategy: division of the network among several processes. With ``ddp``, each process holds all
            weights. With ``fsdp``, each holds a share of weights, gradients and the optimiser's state, and
            gathers all weights from the forward to the backward pass only.
        compile: whether the network is compiled, which takes about a minute.
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
        device = (
            next(name for name in ("cuda", "mps", "cpu") if available[name])
            if self.device == "auto"
            else self.device
        )
        if not available[device]:
            raise ValueError(f"device must be available to torch, got {device!r}; use 'cpu'")
        fast = (
            torch.cuda.is_bf16_supported()
            if device == "cuda"
            else device == "cpu" and _cpu_multiplies_faster_in_bfloat16()
        )
        precision = ("bfloat16" if fast else "float32") if self.precision == "auto" else self.precision
        return Hardware(device, precision, self.strategy, self.compile)  # pyright: ignore[reportArgumentType]


def _cpu_multiplies_faster_in_bfloat16() -> bool:
    """Returns whether the processor has a fast unit for bfloat16: Intel's AMX, or AMD's AVX-512 BF16
    instructions (Zen 4 and later).

    On Intel processors AVX-512 BF16 does not suffice: on a Xeon without AMX, products in bfloat16 are slower
    than in float32. The products are not timed, since the outcome would depend on the load of the machine,
    and a resumed training could change its precision.
    """
    return torch.cpu._is_amx_tile_supported() or (
        torch.cpu._is_avx512_bf16_supported() and "AuthenticAMD" in _processor()
    )


def _processor() -> str:
    """Returns a description of the processor that includes its vendor."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return platform.processor()


def launched(hardware: Hardware) -> "Fabric":
    """Returns the Fabric of this process, launched; ``torchrun`` runs several processes, each with its
    Fabric.

    Args:
        hardware: result of :meth:`Hardware.resolved`.
    """
    from lightning_fabric import Fabric

    # Fabric logs the requested devices at each start
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)

    # torchrun sets these variables: the numbers of processes on all machines and on this machine.
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


def check_agreement(fabric: "Fabric", definition: dict[str, Any]) -> None:
    """Checks that all processes train the same: settings, objective, images, precision, and the versions of
    this library and of torch.

    Raises:
        ValueError: a process differs from the first; all processes raise the same error.
    """
    if fabric.world_size == 1:
        return
    mine = dict(_flattened(definition | {"version": versions()}))
    everyone: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(everyone, (platform.node(), mine))
    (host, first), *others = everyone
    for rank, (name, there) in enumerate(others, 1):
        if different := [key for key in first | there if first.get(key) != there.get(key)]:
            key = different[0]
            texts = (
                f"{key} {first.get(key)} in process 0 on {host} and {there.get(key)} in process {rank} on "
                f"{name}"
            )
            raise ValueError(
                f"all processes must train the same, got {texts}; start each with the same command, data "
                "and version"
            )


def _flattened(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the entries of nested dictionaries, with their paths as names."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{before}{name} ")
        else:
            yield f"{before}{name}", value


def check_same_folder(fabric: "Fabric", folder: Path) -> None:
    """Checks that all processes see the folder of the training: the first writes it, and the others read it.

    Raises:
        OSError: a process does not see the folder; all processes raise the same error.
    """
    if fabric.world_size == 1:
        return
    name = fabric.broadcast(secrets.token_hex(8))
    meeting = folder / f".meeting.{name}"
    if fabric.is_global_zero:
        meeting.touch()
    fabric.barrier()
    everyone: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(everyone, (platform.node(), meeting.exists()))
    if fabric.is_global_zero:
        meeting.unlink()
    if blind := [(rank, host) for rank, (host, seen) in enumerate(everyone) if not seen]:
        rank, host = blind[0]
        text = (
            f"{folder} must lie on a file system that all processes share, process {rank} on {host} does not "
            "see it"
        )
        raise OSError(f"{text}; choose another --out")


def _sharding(world: int) -> Any:
    """Returns the strategy with which each process holds a share of every weight."""
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    # torch warns about layers that return a view. Only in-place operations on a view would be wrong, and the
    # networks have none.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    return ModelParallelStrategy(_shard, data_parallel_size=world, tensor_parallel_size=1)


def _shard(network: nn.Module, mesh: Any) -> nn.Module:
    """Shards each layer, then the rest of the network.

    Weights are gathered in the forward pass and stay gathered until the backward pass, so that objectives can
    use them.
    """
    from torch.distributed.fsdp import fully_shard

    for layers in network.modules():
        if type(layers) is nn.ModuleList:
            for layer in layers:
                fully_shard(layer, mesh=mesh["data_parallel"], reshard_after_forward=False)
    return fully_shard(network, mesh=mesh["data_parallel"], reshard_after_forward=False)  # pyright: ignore[reportReturnType]


def set_up(
    fabric: "Fabric", network: nn.Module, optimiser_of: Callable[[nn.Module], torch.optim.Optimizer]
) -> tuple[nn.Module, Any]:
    """Returns the network, wrapped for training, and its optimiser.

    Args:
        fabric: this process's Fabric.
        network: the network; with sharding, each weight is replaced by this process's share.
        optimiser_of: returns an optimiser for a network. With sharding, it is called after the weights have
            been replaced.
    """
    if not shards(fabric):
        return fabric.setup(network, optimiser_of(network))  # pyright: ignore[reportReturnType]
    model = fabric.setup_module(network)
    return model, fabric.setup_optimizers(optimiser_of(network))


def shards(fabric: "Fabric") -> bool:
    """Returns whether each process holds a share of every weight."""
    return type(fabric.strategy).__name__ == "ModelParallelStrategy"


def is_lost_process(error: RuntimeError) -> bool:
    """Returns whether an error was caused by another process that no longer responds."""
    # gloo raises plain RuntimeErrors
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)


def gathered(fabric: "Fabric", part: Tensor) -> Tensor:
    """Concatenates the parts ``[n, ...]`` of all processes in order, ``[processes * n, ...]``, with
    gradients.

    This is the ``gather`` of :mod:`.objectives`.
    """
    if fabric.world_size == 1:
        return part
    # the call is in Fabric
    warnings.filterwarnings("ignore", message="torch.distributed.nn.functional.all_gather is deprecated")
    parts = fabric.all_gather(part, sync_grads=True)
    assert isinstance(parts, Tensor)
    return parts.flatten(0, 1)


def share(fabric: "Fabric", n: int) -> slice:
    """Returns this process's part of n images; n is a multiple of the number of processes."""
    size = n // fabric.world_size
    return slice(fabric.global_rank * size, (fabric.global_rank + 1) * size)
