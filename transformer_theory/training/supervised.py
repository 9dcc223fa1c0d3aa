"""Training of a classifier on tokens, by AdamW on the cross-entropy of the labels.

The learning rate rises linearly and then falls along half a cosine; the norm of the gradient is clipped at 1.
The generator determines the batches and, on the CPU, dropout. The validation data are used for measurements
only.
Source: :cite:t:`loshchilov2019decoupled` (AdamW), :cite:t:`dosovitskiy2021image` (warm-up, cosine, clipping).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from ..core.validation import integers, positive
from ..data.tokens import TokenData
from .fitting import Fit, at_steps, fit
from .tasks import Classification, logits_of

Callback = Callable[[int, nn.Module], None]


@dataclass(frozen=True)
class Trained(Fit):
    """A trained classifier and the record of its training.

    Attributes:
        model, losses, seconds: see :class:`.Fit`.
        checkpoints: steps at which the accuracy was measured; the last step is always included.
        accuracy: share of the validation sequences classified correctly, per checkpoint.
    """

    checkpoints: tuple[int, ...] = ()
    accuracy: tuple[float, ...] = ()


def train_classifier(
    model: nn.Module,
    train_data: TokenData,
    validation_data: TokenData,
    *,
    steps: int,
    learning_rate: float,
    generator: torch.Generator,
    batch_size: int = 64,
    weight_decay: float = 0.05,
    warm_up: int = 100,
    checkpoints: Iterable[int] = (),
    callback: Callback | None = None,
    device: str = "cpu",
) -> Trained:
    """Trains ``model`` in place on the labels of ``train_data``.

    Args:
        model: maps tokens [batch, seq, dim], in the model's precision, to logits [batch, classes].
        train_data, validation_data: sequences with labels.
        steps: number of optimiser steps.
        learning_rate: peak learning rate, at the end of the warm-up; it then falls to zero along half a
            cosine.
        generator: draws the batches (a new permutation per epoch) and the seed of dropout.
        batch_size: sequences per step; a larger number than there are sequences is reduced.
        weight_decay: weight decay of AdamW.
        warm_up: steps of linear warm-up; reduced to a fifth of all steps if it is larger.
        checkpoints: steps at which ``callback(step, model)`` is called and the accuracy is measured; 0 is
            before training, ``steps`` the end.
        callback: function that is called in evaluation mode and without gradients.
        device: torch device of the training.
    Raises:
        ValueError: data have no labels or more classes than the model has logits, or a setting is out of
            range.
        NotConverged: the loss is not finite; the error names the step and carries the model.
    """
    integers(steps=steps)
    positive(learning_rate=learning_rate)
    task = Classification(train_data, validation_data, batch_size)
    callback_steps, accuracies = set(checkpoints), []
    model = model.to(device)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=weight_decay
    )
    warm_up = max(1, min(warm_up, steps // 5))

    def measure(step: int, network: nn.Module) -> None:
        accuracies.append(accuracy(network, validation_data))
        if callback is not None and step in callback_steps:
            callback(step, network)

    stops = sorted(callback_steps | {steps})
    result = fit(
        model,
        task,
        optimiser=optimiser,
        steps=steps,
        callbacks=[at_steps(stops, measure, limit=steps)],
        schedule=lambda state: _rate(state.step, warm_up, steps),
        clip=1.0,
        generator=generator,
    )
    return Trained(result.model, result.losses, result.seconds, tuple(stops), tuple(accuracies))


def accuracy(model: nn.Module, data: TokenData, *, batch_size: int = 512) -> float:
    """Returns the share of the sequences that the model classifies correctly, in evaluation mode; the model's
    mode is restored.

    Raises:
        ValueError: the data have no labels.
    """
    if data.labels is None:
        raise ValueError(f"accuracy needs labels, {data.name} has none")
    logits, labels = logits_of(model, data, batch_size=batch_size)
    return (logits.argmax(-1) == labels).sum().item() / len(labels)


def _rate(step: int, warm_up: int, steps: int) -> float:
    """Returns the factor of the learning rate at a step: it rises linearly to 1, then falls along half a
    cosine to 0.
    """
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))
