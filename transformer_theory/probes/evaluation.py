"""Forward passes in evaluation mode, over batches."""

import contextlib
import inspect
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ..core.validation import usable_device
from .in_use import in_use
from .modules import first_tensor


@contextlib.contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Puts the model in evaluation mode without gradients; the mode of each of its modules is restored.

    Raises:
        ValueError: another thread is measuring the model.
    """
    with in_use(model):
        modes = {module: module.training for module in model.modules()}
        model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, training in modes.items():
                module.training = training


@contextlib.contextmanager
def on_device(model: nn.Module, device: str | torch.device | None) -> Iterator[None]:
    """Moves a model to a device, and in the end back to its own; None leaves it where it is.

    Raises:
        ValueError: this machine has no such device, or the model lies on several devices.
    """
    own = {parameter.device for parameter in model.parameters()}
    if device is not None:
        usable_device(str(device))
    if device is None or own == {torch.device(device)}:
        yield
        return
    if len(own) > 1:
        raise ValueError(
            f"the model must lie on one device, got {', '.join(sorted(map(str, own)))}; leave device out"
        )
    model.to(device)
    try:
        yield
    finally:
        if own:
            model.to(own.pop())


def device_of(model: nn.Module) -> torch.device:
    """Returns the device of a model: that of its first parameter or buffer; the CPU if it has none."""
    return next((x.device for x in chain(model.parameters(), model.buffers())), torch.device("cpu"))


def converted_inputs(model: nn.Module, inputs: Tensor) -> Tensor:
    """Moves inputs ``[n, ...]`` to the device of a model and converts them, if they are floats, to its
    precision.
    """
    device = device_of(model)
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    return inputs.to(device, dtype) if inputs.is_floating_point() else inputs.to(device)


def forward(model: nn.Module, inputs: Tensor) -> Any:
    """Runs a model on one batch ``[n, ...]``, converted by :func:`converted_inputs`.

    A model of ``transformers`` receives the batch as the keyword argument that its ``main_input_name`` names.
    A wrapper that shows this attribute of its model, but has no such argument, receives the batch alone.
    """
    batch = converted_inputs(model, inputs)
    keyword = getattr(model, "main_input_name", None)
    # The class has the signature: an instance's forward may be replaced by the probe, which takes any
    # arguments.
    if isinstance(keyword, str) and keyword in inspect.signature(type(model).forward).parameters:
        return model(**{keyword: batch})
    return model(batch)


def logits_of(output: Any) -> Tensor | None:
    """Returns the logits from the output of a model: its attribute ``logits``, or else the first tensor in
    it.
    """
    logits = getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else first_tensor((output,), {})
