"""Where a training went wrong: the first module of a network whose output is not finite."""

import contextlib

import torch
from jaxtyping import Float
from torch import Tensor, nn


def finite(tensors) -> bool:
    """Whether all numbers of all tensors, of any shapes ``[...]``, are finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def where_not_finite(model: nn.Module, images: Float[Tensor, "b c h w"]) -> str:
    """In words, the first place of a forward pass that has a NaN or an infinity: images, a weight, an output; the gradient if none has.

    Args:
        model: in the state in which the loss was computed.
        images: ``[b, c, h, w]``, this step's.
    """
    if not finite([images]):
        return "the images hold NaN or infinity"
    found: list[str] = []

    def hook(name: str):
        def see(module: nn.Module, inputs, output) -> None:
            own = [parameter for parameter in module.parameters(recurse=False) if not finite([parameter])]
            if not found and own:
                found.append(f"a weight of {name or 'the network'} ({type(module).__name__}) is not finite")
            if not found and isinstance(output, Tensor) and not finite([output]):
                found.append(f"the output of {name or 'the network'} ({type(module).__name__}) is not finite")

        return see

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules()]
    try:
        with torch.no_grad(), contextlib.suppress(ValueError, RuntimeError):  # what a check inside the network says is told by the hook
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "every layer's output is finite, so the loss or its gradient is not"
