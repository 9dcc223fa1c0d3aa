"""Forward passes in evaluation mode, over batches."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .modules import first_tensor


@contextlib.contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Puts the model in evaluation mode without gradients; its mode and the random state are restored."""
    training = model.training
    model.eval()
    try:
        with torch.random.fork_rng(), torch.no_grad():
            yield
    finally:
        model.train(training)


def forward(model: nn.Module, inputs: Tensor) -> Any:
    """Runs a model on one batch ``[n, ...]``, which is moved to the device of the model and, if it holds floats, to its precision.

    A model of ``transformers`` receives the batch as the keyword argument that its ``main_input_name`` names.
    """
    parameter = next(model.parameters(), torch.empty(0))
    batch = inputs.to(parameter.device, parameter.dtype) if inputs.is_floating_point() else inputs.to(parameter.device)
    keyword = getattr(model, "main_input_name", None)
    return model(**{keyword: batch}) if isinstance(keyword, str) else model(batch)


def logits_of(output: Any) -> Tensor | None:
    """Returns the logits from the output of a model: its attribute ``logits``, or else the first tensor in it."""
    logits = getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else first_tensor((output,), {})
