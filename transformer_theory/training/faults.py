"""The place of a fault: the first module of a network whose output is not finite, or the last weight whose gradient is not."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all numbers of all tensors, of any shapes ``[...]``, are finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def where_not_finite(model: nn.Module, batch: Any, again: Callable[[], object]) -> str | None:
    """Describes the first NaN or infinity of a step: in the batch, a weight, an output or a gradient; None if there is none.

    Args:
        model: in the state in which the loss was computed; its gradients are overwritten.
        batch: of this step: tensors of any shapes, in tuples, lists or mappings.
        again: computes the loss of the step and its gradient again.
    """
    if not finite(tensors_in(batch)):
        return "the batch holds NaN or infinity"
    faults: list[str] = []

    def hook(name: str):
        def check(module: nn.Module, inputs, output) -> None:
            if faults:
                return
            if not finite(module.parameters(recurse=False)):
                faults.append(f"a weight of {name or 'the network'} ({type(module).__name__}) is not finite")
            elif isinstance(output, Tensor) and not finite([output]):
                faults.append(f"the output of {name or 'the network'} ({type(module).__name__}) is not finite")

        return check

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules()]
    model.zero_grad()
    try:
        with contextlib.suppress(ValueError, ArithmeticError, RuntimeError):  # the hook reports the cause
            again()
    finally:
        for handle in handles:
            handle.remove()
    if faults:
        return faults[0]
    # the backward pass runs from the last layer to the first, so the last wrong gradient is the cause
    wrong = [name for name, weight in model.named_parameters() if weight.grad is not None and not finite([weight.grad])]
    return f"every layer's output is finite, the gradient of {wrong[-1]} is not" if wrong else None


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Yields the tensors within tuples, lists and mappings of them, in order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from tensors_in(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_in(value)
