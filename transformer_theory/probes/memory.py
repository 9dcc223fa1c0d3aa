"""The memory of tensors while they live, and the memory that is free.

On a CPU the tensors that operations return are counted from their creation until their storage is freed; the
work space inside an operation is not seen.
"""

import math
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..core import parallel

MEMINFO = Path("/proc/meminfo")
# limit and use of the control group, version 2 and version 1
GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
UNKNOWN_MEMORY = 4 * 2**30


class TensorMemory(TorchDispatchMode):
    """Counts the bytes of the tensors that operations create inside the block, while their storages live.

    Tensors that exist before are not counted, nor are their views.

    Attributes:
        live: bytes at present.
        peak: largest number of bytes so far; may be set.
    """

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for storage in _storages((args, kwargs)):
            self._note(storage, 0)
        result = operation(*args, **kwargs)
        for storage in _storages(result):
            self._note(storage, storage.nbytes())
        return result

    def _note(self, storage: torch.UntypedStorage, size: int) -> None:
        """Counts a storage that is seen for the first time."""
        key = id(storage)
        if key in self._known:
            return

        def freed(reference: weakref.ref) -> None:
            if self._known.get(key) is reference:
                del self._known[key]
            self.live -= size

        self._known[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided and not leaf.is_meta:
            yield leaf.untyped_storage()


def state_bytes(objects: Iterable[Any]) -> int:
    """Returns the bytes of the tensors in the attributes of objects, every storage once."""
    storages = (storage for each in objects for storage in _storages(vars(each)))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def available_memory(device: torch.device | str = "cpu") -> int:
    """Returns the bytes that are free for a measurement.

    On a GPU these are its free bytes and those that torch holds without using them. On Linux they are
    "MemAvailable" of the machine or what the control group still permits, if that is less. Other systems do
    not say what is free: half of the memory of the machine, or 4 GiB if that is unknown.
    """
    place = torch.device(device)
    if place.type == "cuda":
        held = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)
        return torch.cuda.mem_get_info(place)[0] + held
    free = [size for size in (_machine_memory(), *_group_memory()) if size is not None]
    if free:
        return min(free)
    total = parallel.memory()
    return int(total / 2) if math.isfinite(total) else UNKNOWN_MEMORY


def _machine_memory() -> int | None:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    return None if words is None else 1024 * int(words[1])


def _group_memory() -> Iterator[int]:
    """Yields what the limit of each control group leaves; file pages that the kernel can drop are free."""
    for limit, used in GROUPS:
        try:
            most, now = limit.read_text().strip(), int(used.read_text())
            stated = dict(line.split() for line in (used.parent / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if most.isdigit():
            yield max(0, int(most) - now + int(stated.get("inactive_file", 0)))
