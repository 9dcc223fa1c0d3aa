r"""Gradient descent of the one-layer model, with a learning rate per matrix and run; runs can be resumed.

    Y <- Y + eta_Y u_Y,    Z <- Z + eta_Z u_Z

The update u follows from a descent direction d:

    heavy ball     u = beta u + d                                            (beta = 0: plain descent)
    Adam           m = b1 m + (1 - b1) d,  s = b2 s + (1 - b2) d^2,
                   u = (m / (1 - b1^t)) / (sqrt(s / (1 - b2^t)) + eps)

The theory assumes plain descent; the experiments of :cite:t:`tian2023scan` use momentum and Adam. A step on
the pooled column of Y ("rest") is the step of each of the equal columns that it represents.
"""

import math
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ....core.errors import NotConverged
from ....core.files import replacing
from ....core.reading import read_arrays
from ....core.validation import as_float64, integers
from .model import Descent, Weights

Memory = tuple[Tensor, ...]
Rate = float | Float[Tensor, "*runs"]


@runtime_checkable
class Optimiser(Protocol):
    """A rule that turns descent directions into updates."""

    def start(self, weights: Tensor) -> Memory:
        """Returns the memory before the first step."""
        ...

    def move(self, direction: Tensor, memory: Memory, step: int) -> Tensor:
        """Returns the update u of step 1, 2, ..., and changes the memory in place."""
        ...


@dataclass(frozen=True)
class HeavyBall:
    """Gradient descent with momentum. Default: no momentum.

    Raises:
        ValueError: the momentum lies outside [0, 1).
    """

    momentum: float = 0.0

    def __post_init__(self):
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum}")

    def start(self, weights: Tensor) -> Memory:
        """Returns a velocity of zero; without momentum, an empty memory."""
        return (torch.zeros_like(weights),) if self.momentum else ()

    def move(self, direction: Tensor, memory: Memory, step: int) -> Tensor:
        """Returns the velocity."""
        return memory[0].mul_(self.momentum).add_(direction) if memory else direction


@dataclass(frozen=True)
class Adam:
    """Adam :cite:p:`kingma2015adam` with its published default constants.

    Raises:
        ValueError: a factor lies outside [0, 1), or the floor is not positive.
    """

    first: float = 0.9
    second: float = 0.999
    floor: float = 1e-8

    def __post_init__(self):
        if not (0 <= self.first < 1 and 0 <= self.second < 1 and self.floor > 0):
            raise ValueError(
                f"factors must lie in [0, 1) and the floor above 0, got {self.first}, {self.second} and "
                f"{self.floor}"
            )

    def start(self, weights: Tensor) -> Memory:
        """Returns both moving averages, at zero."""
        return torch.zeros_like(weights), torch.zeros_like(weights)

    def move(self, direction: Tensor, memory: Memory, step: int) -> Tensor:
        """Returns the first moving average over the root of the second, both corrected for their start at
        zero.
        """
        mean, square = memory
        mean.lerp_(direction, 1 - self.first)
        square.mul_(self.second).addcmul_(direction, direction, value=1 - self.second)
        return mean / (1 - self.first**step) / ((square / (1 - self.second**step)).sqrt_() + self.floor)


@runtime_checkable
class Sequences(Protocol):
    """A batch of sequences."""

    def descent(self, weights: Weights) -> Descent:
        """Computes the loss and the descent directions of the batch."""
        ...


@dataclass(frozen=True, eq=False)
class State:
    """State of a training run.

    Attributes:
        weights: the two matrices.
        decoder, attention: the optimiser's memory of each matrix; empty before the first step.
        step: number of steps taken.
    """

    weights: Weights
    decoder: Memory = ()
    attention: Memory = ()
    step: int = 0


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Result of a training run.

    Attributes:
        steps: steps at which Z was recorded, increasing, ``[recorded]``.
        attention: Z at these steps, ``[recorded, *runs, Q, S]``.
        loss: loss of the batch before each step, nats, ``[steps, *runs]``.
        end: final state, from which a run can be resumed.
    """

    steps: Int[Tensor, " recorded"]
    attention: Float[Tensor, "recorded *runs Q S"]
    loss: Float[Tensor, "steps *runs"]
    end: State

    @property
    def final(self) -> Weights:
        """The final weights."""
        return self.end.weights


def gradient_descent(
    start: Weights | State,
    batches: Callable[[int], Sequences],
    *,
    steps: int,
    eta_y: Rate,
    eta_z: Rate,
    optimiser: Optimiser = HeavyBall(),
    keep: Collection[int] = (),
) -> Trajectory:
    """Trains both matrices by gradient descent with separate learning rates, one batch per step.

    If the batches depend on the step alone, a run of 40 steps that is resumed for 60 more equals a run of 100
    steps bit for bit.

    Args:
        start: initial weights, e.g. :meth:`Weights.zeros`, or the final state of an earlier call.
        batches: ``step -> batch``, steps counted from 0.
        steps: number of steps.
        eta_y, eta_z: learning rates of decoder and attention: one number, or one per run, ``[*runs]``.
        optimiser: update rule. Default: plain descent, as in the theory; the paper's experiments use
            ``HeavyBall(0.9)``.
        keep: steps after which Z is recorded, in addition to the start and the end.
    Raises:
        ValueError: ``steps`` is below 1, or a rate is not positive or has another shape than the runs.
        NotConverged: the loss is not finite; the error carries the state before the step, and the number of
            the step.
    """
    state = start if isinstance(start, State) else State(start)
    first, last = state.step, state.step + steps
    integers(steps=steps)
    runs = state.weights.decoder.shape[:-2]
    rate_y, rate_z = (
        _rate(name, rate, state.weights.decoder) for name, rate in (("eta_y", eta_y), ("eta_z", eta_z))
    )
    record_steps = sorted({first, last} | {k for k in keep if first <= k <= last})
    Y, Z, rest = state.weights.decoder.clone(), state.weights.attention.clone(), state.weights.rest
    memory_y, memory_z = (
        tuple(part.clone() for part in memory) or optimiser.start(matrix)
        for memory, matrix in ((state.decoder, Y), (state.attention, Z))
    )
    recorded, losses = [Z.clone()], torch.empty(steps, *runs, dtype=Y.dtype)
    for step in range(first, last):
        batch = batches(step)
        # Inference mode makes small batches faster. Y, Z and the memories were created outside it, so
        # autograd accepts the results.
        with torch.inference_mode():
            descent = batch.descent(Weights(Y, Z, rest))
            losses[step - first] = descent.loss
            if not bool(torch.isfinite(descent.loss).all()):
                state = State(Weights(Y, Z, rest), memory_y, memory_z, step)
                raise NotConverged(
                    f"the loss is not finite at step {step + 1}; lower eta_y or eta_z", state, step + 1
                )
            Y.addcmul_(rate_y, optimiser.move(descent.decoder, memory_y, step + 1))
            Z.addcmul_(rate_z, optimiser.move(descent.attention, memory_z, step + 1))
        if step + 1 in record_steps:
            recorded.append(Z.clone())
    end = State(Weights(Y, Z, rest), memory_y, memory_z, last)
    return Trajectory(torch.tensor(record_steps), torch.stack(recorded), losses, end)


def _rate(name: str, rate: Rate, decoder: Tensor) -> Tensor:
    """Returns the rate ``[*runs, 1, 1]`` or ``[1, 1]``, in the dtype of the weights."""
    value = as_float64(name, rate).to(decoder.dtype)
    if value.ndim and value.shape != decoder.shape[:-2]:
        raise ValueError(
            f"{name} must be a number or one per run, {list(decoder.shape[:-2])}, got shape "
            f"{list(value.shape)}"
        )
    if not bool(((value > 0) & (value < math.inf)).all()):
        raise ValueError(f"{name} must be a positive learning rate, got {rate}")
    return value[..., None, None]


def save(state: State, path: str | os.PathLike[str]) -> None:
    """Writes a state to an npz file, atomically."""
    arrays = {"Y": state.weights.decoder, "Z": state.weights.attention}
    arrays |= {
        f"{name}{i}": part for name in ("decoder", "attention") for i, part in enumerate(getattr(state, name))
    }
    with replacing(Path(path)) as draft, draft.open("xb") as file:
        stored = {name: value.numpy() for name, value in arrays.items()}
        np.savez(file, rest=state.weights.rest, step=state.step, **stored)  # pyright: ignore[reportArgumentType]


def load(path: str | os.PathLike[str]) -> State:
    """Reads the state that :func:`save` wrote, bit for bit; nothing is unpickled.

    Raises:
        ValueError: the file does not hold a state.
        FileNotFoundError: the file does not exist.
    """
    try:
        stored = read_arrays(Path(path))
        weights = Weights(
            torch.from_numpy(stored.pop("Y")), torch.from_numpy(stored.pop("Z")), int(stored.pop("rest"))
        )
        step = int(stored.pop("step"))
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{os.fspath(path)} must be an npz file of a saved State, got another file; see save(state, path)"
        ) from None
    decoder, attention = (
        tuple(torch.from_numpy(stored[f"{name}{i}"]) for i in range(len(stored)) if f"{name}{i}" in stored)
        for name in ("decoder", "attention")
    )
    return State(weights, decoder, attention, step)
