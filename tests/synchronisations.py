"""Counts the places at which an accelerator would have to finish its work before the program goes on.

On a CPU nothing waits, so the operations themselves are counted: numbers that Python reads (``item``,
``bool``, ``float``), copies to the host (``cpu``, ``numpy``, ``tolist``), and operations whose result has a
shape that depends on values (``nonzero``, indexing with a mask, ``unique``).
"""

from collections import Counter
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
NUMBERS = {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default}
SHAPES = {
    aten.nonzero,
    aten.masked_select,
    aten._unique,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.unique_dim_consecutive,
    aten.repeat_interleave,
    aten.bincount,
}
INDEXED = {aten.index, aten.index_put, aten.index_put_}
COPIES = {Tensor.cpu, Tensor.numpy, Tensor.tolist}


class Synchronisations(ExitStack):
    """Counts synchronisations inside a ``with`` block.

    Attributes:
        counts: their number by "numbers", "copies" and "shapes".
    """

    def __init__(self):
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        super().__enter__()
        self.enter_context(torch._C._EnableTorchFunction())  # a probe disables it around its metrics
        self.enter_context(_Functions(self.counts))
        self.enter_context(_Operations(self.counts))
        return self


class _Functions(TorchFunctionMode):
    """Counts copies to the host, which do nothing on a CPU and reach no operation."""

    def __init__(self, counts: Counter[str]):
        super().__init__()
        self.counts = counts

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        to_host = function is Tensor.to and any(
            str(value) == "cpu" for value in (*args[1:], *kwargs.values()) if not isinstance(value, Tensor)
        )
        self.counts["copies"] += function in COPIES or to_host
        return function(*args, **kwargs)


class _Operations(TorchDispatchMode):
    """Counts numbers that Python reads, and results whose shape depends on values."""

    def __init__(self, counts: Counter[str]):
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts["numbers"] += operation in NUMBERS
        masked = operation.overloadpacket in INDEXED and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        self.counts["shapes"] += operation.overloadpacket in SHAPES or masked
        return operation(*args, **(kwargs or {}))
