"""Training of a classifier on tokens: AdamW, linear warm-up and half a cosine, gradient norm clipped at 1, cross-entropy on the labels.

Deterministic given the generator (batches; dropout on the CPU); the global CPU random state is restored. The validation data are only
measured. Source: :cite:t:`loshchilov2019decoupled` (AdamW), :cite:t:`dosovitskiy2021image` (warm-up, cosine, clipping).
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ..data.tokens import TokenData
from .descent import descend, permuted, within

Callback = Callable[[int, nn.Module], None]


@dataclass(frozen=True)
class Trained:
    """A trained network and the record of its training.

    Attributes:
        model: in evaluation mode.
        losses: cross-entropy (nats) of the batch of each step, [steps].
        checkpoints: the steps at which accuracy was measured, with the last.
        accuracy: share of the validation sequences classified correctly, one per checkpoint.
        seconds: wall time, with the callbacks.
    """

    model: nn.Module
    losses: Float[Tensor, " steps"]
    checkpoints: tuple[int, ...]
    accuracy: tuple[float, ...]
    seconds: float

    @property
    def steps(self) -> int:
        """Number of optimiser steps."""
        return len(self.losses)


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
    called = tuple(checkpoints)
    stops = _check(train_data, validation_data, steps, learning_rate, batch_size, called)
    started = time.perf_counter()
    model = model.to(device)
    inputs, labels = _inputs(train_data, model, device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=weight_decay)
    warm_up = max(1, min(warm_up, steps // 5))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, warm_up, steps))
    classes, accuracies = train_data.classes, []

    def loss_of(batch: Tensor) -> Tensor:
        logits = model(inputs[batch])
        if classes > logits.shape[-1]:
            message = f"labels must lie below the number of logits, {logits.shape[-1]}, got {classes - 1}"
            raise ValueError(f"{message}; build the model for {classes} classes")
        return functional.cross_entropy(logits, labels[batch])

    def stop(step: int) -> None:
        if step not in stops:
            return
        model.eval()
        with torch.no_grad():
            accuracies.append(accuracy(model, validation_data))
            if callback is not None and step in called:
                callback(step, model)
        model.train()

    losses = descend(
        model,
        loss_of,
        permuted(len(inputs), min(batch_size, len(inputs)), generator),
        steps=steps,
        optimiser=optimiser,
        schedule=schedule,
        generator=generator,
        clip=1.0,
        after=stop,
    )
    return Trained(model, losses, stops, tuple(accuracies), time.perf_counter() - started)


def accuracy(model: nn.Module, data: TokenData, *, batch_size: int = 512) -> float:
    """Share of the sequences whose largest logit is at their label, on the model's device, in evaluation mode (its mode is restored).

    Raises:
        ValueError: the data have no labels.
    """
    if data.labels is None:
        raise ValueError(f"accuracy needs labels, {data.name} has none")
    inputs, labels = _inputs(data, model, next(model.parameters()).device)
    training = model.training
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(-1) == y).sum()) for x, y in zip(inputs.split(batch_size), labels.split(batch_size)))
    model.train(training)
    return right / len(labels)


def _inputs(data: TokenData, model: nn.Module, device) -> tuple[Tensor, Tensor]:
    """Tokens in the model's precision, and labels, on the device."""
    assert data.labels is not None
    return data.tokens.to(device, next(model.parameters()).dtype), data.labels.to(device)


def _rate(step: int, warm_up: int, steps: int) -> float:
    """Share of the learning rate at a step: linear to 1, then half a cosine to 0."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def _check(
    train_data: TokenData, validation_data: TokenData, steps: int, learning_rate: float, batch_size: int, checkpoints: tuple[int, ...]
):
    """The steps at which to measure; raises ValueError for invalid arguments."""
    for name, data in (("train_data", train_data), ("validation_data", validation_data)):
        if data.labels is None:
            raise ValueError(f"{name} must have labels, {data.name} has none")
    for name, value in (("steps", steps), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise ValueError(f"learning_rate must be positive, got {learning_rate}")
    return tuple(sorted(within(checkpoints, steps) | {steps}))
