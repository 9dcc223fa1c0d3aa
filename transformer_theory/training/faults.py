"""Location of a fault: the first module of a network whose output is not finite, or the last weight whose
gradient is not finite.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def finite(tensors: Iterable[Tensor]) -> bool:
    """Returns whether every number in the tensors is finite; their shapes ``[...]`` are arbitrary."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def where_not_finite(model: nn.Module, batch: Any, again: Callable[[], object]) -> str | None:
    """Describes the first NaN or infinity of a step, in the batch, a weight, an output or a gradient. Returns
    None if all are finite.

    Args:
        model: the network as it was when the loss was computed; its gradients are overwritten.
        batch: the batch of this step: tensors of any shapes, in tuples, lists or mappings.
        again: recomputes the loss of the step and its gradient.
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
                faults.append(
                    f"the output of {name or 'the network'} ({type(module).__name__}) is not finite"
                )

        return check

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules()]
    model.zero_grad()
    try:
        with contextlib.suppress(ValueError, ArithmeticError, RuntimeError):  # the hooks record the cause
            again()
    finally:
        for handle in handles:
            handle.remove()
    if faults:
        return faults[0]
    # The backward pass runs from the last layer to the first, so the fault began at the last weight with a
    # bad gradient.
    not_finite = [
        name
        for name, weight in model.named_parameters()
        if weight.grad is not None and not finite([weight.grad])
    ]
    return f"every layer's output is finite, the gradient of {not_finite[-1]} is not" if not_finite else None


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Yields the tensors in arbitrarily nested tuples, lists and mappings, in order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from tensors_in(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_in(value)
