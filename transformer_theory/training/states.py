"""States of networks and optimisers, whole, whether one process holds them or several hold a part each.

What several processes hold in parts (:mod:`torch.distributed.fsdp`) is put together for a file and cut again when read, so that a file of
one strategy is a file of any. Optimisers keep their own form of state, numbered by parameter, which has no place for anything else.
"""

from typing import Any

import torch
from torch import Tensor, nn


def whole(state: Any) -> Any:
    """A state with all tensors whole and on the CPU; all processes must call it, and each gets all.

    Args:
        state: of ``state_dict()``: tensors of any shapes ``[...]`` and plain values, in dictionaries and lists.
    """
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(whole(value) for value in state)
    if not isinstance(state, Tensor):
        return state
    return full(state).detach().cpu()


def full(tensor: Tensor) -> Tensor:
    """A tensor ``[...]`` whole where it is; all processes must call it."""
    return tensor.full_tensor() if _is_cut(tensor) else tensor  # pyright: ignore[reportAttributeAccessIssue]


def load_network(network: nn.Module, state: dict[str, Any]) -> None:
    """Gives a network a state of :func:`whole`; each process keeps its part.

    Raises:
        ValueError: the state is of another network.
    """
    own = network.state_dict()
    try:
        network.load_state_dict({name: _cut(value, own.get(name)) for name, value in state.items()})
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"the weights are those of another network ({str(error).splitlines()[-1].strip()})") from error


def load_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Gives an optimiser a state of :func:`whole`; each process keeps its part.

    Raises:
        ValueError: the state is of another optimiser.
    """
    try:
        parts = getattr(optimiser, "parts", None)  # of optimisers.Together
        if parts is None:
            optimiser.load_state_dict(_cut_optimiser(optimiser, state))
        else:
            cut = [_cut_optimiser(part, own) for part, own in zip(parts, state["parts"], strict=True)]
            optimiser.load_state_dict({"parts": cut})
    except (LookupError, RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"the optimiser's state is that of another one ({error})") from error


def _cut_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    held = {number: {name: _cut(value, parameters[number]) for name, value in values.items()} for number, values in state["state"].items()}
    return {**state, "state": held}


def _cut(value: Any, like: Any) -> Any:
    """This process's part of a tensor, where the parameter it belongs to is held in parts."""
    if not (isinstance(value, Tensor) and _is_cut(like) and value.shape == like.shape):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def _is_cut(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")  # as a DTensor has, whose module takes a second to import
