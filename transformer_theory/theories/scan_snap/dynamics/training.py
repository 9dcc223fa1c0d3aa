r"""The training loop: any batches, any optimiser, a learning rate for each matrix and run, and runs that can be taken up again.

    Y <- Y + eta_Y u_Y,    Z <- Z + eta_Z u_Z

with u made from the descent directions by an :mod:`optimiser <.optimisers>`. Exact gradient descent, no approximation of the theory.

Source: :cite:t:`tian2023scan`.
"""

import math
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ....core.errors import NotConverged
from ....core.files import replacing
from .batches import Descent
from .optimisers import HeavyBall, Memory, Optimiser
from .weights import Weights

Rate = float | Float[Tensor, "*runs"]


@runtime_checkable
class Sequences(Protocol):
    """What a batch must be able to say."""

    def descent(self, weights: Weights) -> Descent:
        """Its loss and descent directions."""
        ...


@dataclass(frozen=True, eq=False)
class State:
    """Where a training stands: weights, the optimiser's memory of each matrix (empty: it starts), and the number of steps taken."""

    weights: Weights
    decoder: Memory = ()
    attention: Memory = ()
    step: int = 0


@dataclass(frozen=True, eq=False)
class Trajectory:
    """What a training run leaves.

    Attributes:
        steps: at which the weights were kept, increasing, ``[kept]``.
        attention: Z at these steps, ``[kept, *runs, Q, S]``.
        loss: of the batch before each step, nats, ``[steps, *runs]``.
        end: where it stands, to go on from.
    """

    steps: Int[Tensor, " kept"]
    attention: Float[Tensor, "kept *runs Q S"]
    loss: Float[Tensor, "steps *runs"]
    end: State

    @property
    def final(self) -> Weights:
        """The weights at the end."""
        return self.end.weights


def gradient_descent(
    start: Weights | State,
    batches: Callable[[int], Sequences],
    *,
    steps: int,
    eta_y: Rate,
    eta_z: Rate,
    optimiser: Optimiser = HeavyBall(),  # noqa: B008 - frozen
    keep: Collection[int] = (),
) -> Trajectory:
    """Descent of both matrices with their own learning rates, one batch a step.

    A run of 100 steps is bit for bit one of 40 and, from its ``end``, one of 60 more, if the batches depend on the step alone.

    Args:
        start: weights, usually :meth:`Weights.zeros`, or the state that an earlier call ended in.
        batches: the batch of a step, steps counted from 0.
        steps: number of steps.
        eta_y, eta_z: learning rates of decoder and attention, one for all runs or one a run, ``[*runs]``.
        optimiser: plain descent, as in the theory, if not given; the paper's experiments use ``HeavyBall(0.9)``.
        keep: steps at which Z is kept besides the first and the last (k: after k steps).
    Raises:
        ValueError: steps below 1, a rate that is not positive or fits no run.
        NotConverged: the weights became infinite or NaN; carries the state before the step, and its number.
    """
    state = start if isinstance(start, State) else State(start)
    first, last = state.step, state.step + steps
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    runs = state.weights.decoder.shape[:-2]
    rate_y, rate_z = (_rate(name, rate, state.weights.decoder) for name, rate in (("eta_y", eta_y), ("eta_z", eta_z)))
    wanted = sorted({first, last} | {k for k in keep if first <= k <= last})
    Y, Z, rest = state.weights.decoder.clone(), state.weights.attention.clone(), state.weights.rest
    memory_y, memory_z = (
        tuple(part.clone() for part in memory) or optimiser.start(matrix) for memory, matrix in ((state.decoder, Y), (state.attention, Z))
    )
    kept, losses = [Z.clone()], torch.empty(steps, *runs, dtype=Y.dtype)
    for step in range(first, last):
        batch = batches(step)
        with torch.inference_mode():  # a tenth faster for small batches; what is returned was made outside
            now = batch.descent(Weights(Y, Z, rest))
            losses[step - first] = now.loss
            if not bool(torch.isfinite(now.loss).all()):
                stuck = State(Weights(Y, Z, rest), memory_y, memory_z, step)
                raise NotConverged(f"the loss is not finite at step {step + 1}; lower eta_y or eta_z", stuck, step + 1)
            Y.addcmul_(rate_y, optimiser.move(now.decoder, memory_y, step + 1))
            Z.addcmul_(rate_z, optimiser.move(now.attention, memory_z, step + 1))
        if step + 1 in wanted:
            kept.append(Z.clone())
    end = State(Weights(Y, Z, rest), memory_y, memory_z, last)
    return Trajectory(torch.tensor(wanted), torch.stack(kept), losses, end)


def _rate(name: str, rate: Rate, decoder: Tensor) -> Tensor:
    """The rate ``[*runs or nothing, 1, 1]``, in the type of the weights."""
    value = torch.as_tensor(rate, dtype=decoder.dtype)
    if value.ndim and value.shape != decoder.shape[:-2]:
        raise ValueError(f"{name} must be a number or one a run, {list(decoder.shape[:-2])}, got shape {list(value.shape)}")
    if not bool(((value > 0) & (value < math.inf)).all()):
        raise ValueError(f"{name} must be a positive learning rate, got {rate}")
    return value[..., None, None]


def save(state: State, path: str | os.PathLike[str]) -> None:
    """Writes a state to an npz file, in one stroke: a reader sees the old file or the new one, never half of it."""
    arrays = {"Y": state.weights.decoder, "Z": state.weights.attention}
    arrays |= {f"{name}{i}": part for name in ("decoder", "attention") for i, part in enumerate(getattr(state, name))}
    with replacing(Path(path)) as draft, draft.open("xb") as file:
        held = {name: value.numpy() for name, value in arrays.items()}
        np.savez(file, rest=state.weights.rest, step=state.step, **held)  # pyright: ignore[reportArgumentType]


def load(path: str | os.PathLike[str]) -> State:
    """The state that :func:`save` wrote, bit for bit; nothing is unpickled.

    Raises:
        ValueError: the file holds something else.
        FileNotFoundError: there is none.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {name: file[name] for name in file.files}
        weights = Weights(torch.from_numpy(held.pop("Y")), torch.from_numpy(held.pop("Z")), int(held.pop("rest")))
        step = int(held.pop("step"))
    except (ValueError, EOFError, BadZipFile, KeyError, TypeError, AttributeError):  # a single array is no context, and has no files
        raise ValueError(f"{os.fspath(path)} must be an npz file of a saved State, got another kind; save(state, path) makes one") from None
    decoder, attention = (
        tuple(torch.from_numpy(held[f"{name}{i}"]) for i in range(len(held)) if f"{name}{i}" in held) for name in ("decoder", "attention")
    )
    return State(weights, decoder, attention, step)
