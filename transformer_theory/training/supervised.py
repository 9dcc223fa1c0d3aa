"""Training of a classifier on tokens: AdamW, linear warm-up and half a cosine, gradient norm clipped at 1, cross-entropy on the labels.

Deterministic given the generator (batches; dropout on the CPU). The validation data are only measured.
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
        checkpoints: the steps at which accuracy was measured, with the last.
        accuracy: share of the validation sequences classified correctly, one per checkpoint.
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
        model: tokens [batch, seq, dim] in its own precision to logits [batch, classes].
        train_data, validation_data: with labels.
        steps: optimiser steps.
        learning_rate: at the end of the warm-up; falls to zero as half a cosine.
        generator: of the batches (each epoch is a new permutation) and of dropout.
        batch_size: sequences per step; at most all of them.
        weight_decay: of AdamW.
        warm_up: steps of linear warm-up; at most a fifth of all steps.
        checkpoints: steps at which ``callback(step, model)`` is called and accuracy is measured; 0 is before training, ``steps`` the end.
        callback: is called in evaluation mode and without gradients.
        device: of the training.
    Raises:
        ValueError: data without labels or with more classes than logits, or settings out of range.
        NotConverged: the loss is not finite; names the step and carries the model.
    """
    integers(steps=steps)
    positive(learning_rate=learning_rate)
    task = Classification(train_data, validation_data, batch_size)
    called, accuracies = set(checkpoints), []
    model = model.to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=weight_decay)
    warm_up = max(1, min(warm_up, steps // 5))

    def measure(step: int, network: nn.Module) -> None:
        accuracies.append(accuracy(network, validation_data))
        if callback is not None and step in called:
            callback(step, network)

    stops = sorted(called | {steps})
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
    """Share of the sequences whose largest logit is at their label, on the model's device, in evaluation mode (its mode is restored).

    Raises:
        ValueError: the data have no labels.
    """
    if data.labels is None:
        raise ValueError(f"accuracy needs labels, {data.name} has none")
    logits, labels = logits_of(model, data, batch_size=batch_size)
    return (logits.argmax(-1) == labels).sum().item() / len(labels)


def _rate(step: int, warm_up: int, steps: int) -> float:
    """Share of the learning rate at a step: linear to 1, then half a cosine to 0."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))
