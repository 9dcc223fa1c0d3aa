"""Where a training went wrong: the first module of a network whose output is not finite, or the last weight whose gradient is not."""

import contextlib
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn


def finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all numbers of all tensors, of any shapes ``[...]``, are finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def where_not_finite(model: nn.Module, images: Float[Tensor, "b c h w"], again: Callable[[], None]) -> str | None:
    """In words, the first place of a step that has a NaN or an infinity: images, a weight, an output, a gradient; None if there is none.

    Args:
        model: in the state in which the loss was computed; its gradients are lost.
        images: ``[b, c, h, w]``, this step's.
        again: computes the loss of the step and its gradient, as they were.
    """
    if not finite([images]):
        return "the images hold NaN or infinity"
    found: list[str] = []

    def hook(name: str):
        def see(module: nn.Module, inputs, output) -> None:
            if found:
                return
            if not finite(module.parameters(recurse=False)):
                found.append(f"a weight of {name or 'the network'} ({type(module).__name__}) is not finite")
            elif isinstance(output, Tensor) and not finite([output]):
                found.append(f"the output of {name or 'the network'} ({type(module).__name__}) is not finite")

        return see

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules()]
    model.zero_grad()
    try:
        with contextlib.suppress(ValueError, ArithmeticError, RuntimeError):  # what a check inside says is told by the hook
            again()
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    # gradients come from the last layer to the first, and so does what is wrong with them
    wrong = [name for name, weight in model.named_parameters() if weight.grad is not None and not finite([weight.grad])]
    return f"every layer's output is finite, the gradient of {wrong[-1]} is not" if wrong else None
