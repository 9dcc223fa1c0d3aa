"""The memory of tensors while they live, and the memory that is free.

On a CPU the tensors that operations return are counted from their creation until their storage is freed; the
work space inside an operation is not seen.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..core.memory import free_memory


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
        self._note_all(args, new=False)
        self._note_all(kwargs.values(), new=False)
        result = operation(*args, **kwargs)
        self._note_all((result,), new=True)
        return result

    def _note_all(self, values: Iterable[Any], *, new: bool) -> None:
        """Counts the tensors among the arguments or results of an operation, which may be lists of them."""
        for value in values:
            if _has_storage(value):
                storage = value.untyped_storage()
                if id(storage) not in self._known:
                    self._note(storage, storage.nbytes() if new else 0)
            elif isinstance(value, list | tuple):
                self._note_all(value, new=new)

    def _note(self, storage: torch.UntypedStorage, size: int) -> None:
        """Counts a storage that is seen for the first time."""
        key = id(storage)

        def freed(reference: weakref.ref) -> None:
            if self._known.get(key) is reference:
                del self._known[key]
            self.live -= size

        self._known[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)


def _has_storage(value: Any) -> bool:
    """Whether a value is a tensor with one block of memory: neither sparse nor without data."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta


def state_bytes(objects: Iterable[Any]) -> int:
    """Returns the bytes of the tensors in the attributes of objects, every storage once."""
    leaves = (leaf for each in objects for leaf in tree_leaves(vars(each)))
    storages = (leaf.untyped_storage() for leaf in leaves if _has_storage(leaf))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def available_memory(device: torch.device | str = "cpu") -> int:
    """Returns the bytes that are free for a measurement.

    On a GPU these are its free bytes and those that torch holds without using them; otherwise those of the
    machine, see :func:`.free_memory`.
    """
    place = torch.device(device)
    if place.type == "cuda":
        held = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)
        return torch.cuda.mem_get_info(place)[0] + held
    return free_memory()
