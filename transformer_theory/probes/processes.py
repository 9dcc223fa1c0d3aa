"""One reading of what several processes saw: their reducers are gathered over ``torch.distributed`` and merged in the order of the ranks.

States are sums and counts, so what travels does not grow with the data. Every process gets the same union, to the last bit.
"""

import io
from collections.abc import Sequence

import torch
from torch import distributed

from .observation import Reducer


def across_processes(reducers: Sequence[Reducer]) -> None:
    """Gives each reducer the state of the union of all processes; nothing happens without a process group or with one process.

    Every process of the default group must call it, with the same reducers in the same order; one that saw nothing counts for nothing.

    Args:
        reducers: can be pickled, and keep their state in ordinary attributes.
    Source: none, this is machinery.
    """
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    buffer = io.BytesIO()
    torch.save(list(reducers), buffer)
    sent: list[bytes] = [b""] * distributed.get_world_size()
    distributed.all_gather_object(sent, buffer.getvalue())
    here = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    there = {f"cuda:{i}": here for i in range(max(torch.cuda.device_count(), 8))}
    first, *others = (torch.load(io.BytesIO(each), map_location=there, weights_only=False) for each in sent)
    for mine, union, *rest in zip(reducers, first, *others, strict=True):
        for other in rest:
            union.merge(other)
        vars(mine).clear()
        vars(mine).update(vars(union))
