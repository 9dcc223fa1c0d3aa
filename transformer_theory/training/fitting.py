"""The training loop. Every network of the library is trained by :func:`fit`; there is no other loop.

    repeat   batch -> loss -> gradient -> clip -> step of the optimiser -> callbacks

A *task* (:class:`Task`) says what is learnt: it yields batches and computes the loss of one. The *optimiser* is one of torch's. The
*schedule* returns the factor of the learning rate before each step. *Callbacks* are called before the first step and after every step with
the :class:`State` of the training; measuring, storing, averaging weights and printing are callbacks, so the loop stays short.

The loop is deterministic given its generator: torch's global CPU generator, from which dropout and augmentation draw, is seeded from it and
restored afterwards.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.errors import NotConverged
from .faults import finite, where_not_finite

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Batch = TypeVar("Batch")
HINT = "lower the learning rate, or clip the gradient at a smaller norm"


@runtime_checkable
class Task(Protocol[Batch]):
    """What a network learns. Any object with these two methods is a task; nothing needs to be registered.

    Tasks that are compared or measured may also have ``model()``, an untrained network for the task; ``evaluate(model)``, measurements of
    what a network has learnt; and ``sample(generator)``, inputs of the network for a probe.
    """

    def batches(self, generator: torch.Generator, start: int = 0) -> Iterator[Batch]:
        """Yields the batches of steps ``start``, ``start + 1``, ...; a training that is resumed at a step must get the same batches."""
        ...

    def loss(self, model: nn.Module, batch: Batch, /) -> Float[Tensor, ""]:
        """The loss of one batch, differentiable. ``model`` is called as a whole, since it may be wrapped."""
        ...


@dataclass
class State:
    """A training between two steps, for schedules and callbacks.

    Attributes:
        model: the network, in training mode, as it was passed to :func:`fit`.
        optimiser: as it was passed to :func:`fit`.
        step: number of steps taken.
        steps: number of steps of the whole training; None if it ends by the clock.
        done: share of the training, in [0, 1].
        seconds: time of the training, callbacks included, without what came before the first step.
        loss: of the last step; None before the first step of this call.
        step_seconds: duration of the last step, without callbacks.
    """

    model: nn.Module
    optimiser: torch.optim.Optimizer
    step: int
    steps: int | None
    done: float = 0.0
    seconds: float = 0.0
    loss: float | None = None
    step_seconds: float = 0.0


Callback = Callable[[State], None]
Schedule = Callable[[State], float]


@dataclass(frozen=True)
class Fit:
    """The end of a training.

    Attributes:
        model: the trained network, in evaluation mode.
        losses: loss of the batch of each step, ``[steps]``.
        seconds: wall time of the training, callbacks included.
    """

    model: nn.Module
    losses: Float[Tensor, " steps"]
    seconds: float

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.losses)


def constant(state: State) -> float:
    """A constant learning rate."""
    return 1.0


def fit(
    model: nn.Module,
    task: Task[Batch],
    *,
    optimiser: torch.optim.Optimizer,
    steps: int | None = None,
    minutes: float | None = None,
    callbacks: Sequence[Callback] = (),
    schedule: Schedule = constant,
    clip: float | None = None,
    generator: torch.Generator | None = None,
    fabric: "Fabric | None" = None,
    start: int = 0,
    seconds: float = 0.0,
) -> Fit:
    """Trains ``model`` on ``task`` in place. The model is in training mode during the steps and in evaluation mode at the end.

    Args:
        model: its parameters are held by ``optimiser``.
        task: yields batches and computes their loss.
        optimiser: any optimiser of torch. Each group learns at its own rate times the factor of ``schedule``.
        steps: number of steps of the whole training.
        minutes: duration of the training, in place of ``steps``; the last step begins before its end.
        callbacks: called in this order with the state, before the first step and after each step.
        schedule: factor of the learning rate in the next step, given the state before it.
        clip: limit on the norm of the gradient; None for none.
        generator: of the batches, and of the seed of torch's global CPU generator; seed 0 if None.
        fabric: of Lightning, for several processes, other devices or mixed precision; ``model`` and ``optimiser`` are those that
            ``fabric.setup`` returned.
        start, seconds: steps and time of the part of the training that was done before, for a training that is resumed.
    Raises:
        NotConverged: the loss, its gradient or, after the last step, a parameter is not finite. The error names the step and the module,
            and carries the model.
        ValueError: not exactly one of ``steps`` and ``minutes`` is given, or one is out of range; or the task has too few batches.
    """
    _check(steps, minutes, start)
    state = State(model, optimiser, start, steps, seconds=seconds)
    losses: list[float] = []
    for group in optimiser.param_groups:
        group.setdefault("initial_lr", group["lr"])
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        try:
            state.done = _share(state, minutes)
            for callback in callbacks:
                callback(state)
            model.train()
            batches, began = task.batches(generator, start), time.perf_counter()
            while (done := _done(state, minutes, fabric)) < 1:
                state.done = done
                _step(state, task, batches, schedule, clip, fabric)
                assert state.loss is not None
                losses.append(state.loss)
                state.seconds = seconds + time.perf_counter() - began
                state.done = _share(state, minutes)
                for callback in callbacks:
                    callback(state)
                state.seconds = seconds + time.perf_counter() - began
            # A step may leave parameters that are not finite although its loss was; no later loss would show it.
            if not finite(model.parameters()):
                raise NotConverged(f"step {state.step}: a parameter is not finite after the last step; {HINT}", state=model)
        finally:
            model.eval()
    return Fit(model, torch.tensor(losses), state.seconds - seconds)


def at_steps(steps: Iterable[int], callback: Callable[[int, nn.Module], None], *, limit: int) -> Callback:
    """A callback that calls ``callback(step, model)`` at the given steps, in evaluation mode and without gradients.

    Args:
        steps: 0 is before the first step, ``limit`` the end.
        limit: number of steps of the training.
    Raises:
        ValueError: a step lies outside the training.
    """
    stops = set(steps)
    if outside := sorted(step for step in stops if not 0 <= step <= limit):
        raise ValueError(f"steps of a callback must lie in [0, {limit}], the steps of this training, got {outside[0]}")

    def call(state: State) -> None:
        if state.step in stops:
            state.model.eval()
            with torch.no_grad():
                callback(state.step, state.model)
            state.model.train()

    return call


def permuted(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields positions of batches, ``[size]``, without end: a new permutation per epoch, without the incomplete last batch."""
    while True:
        yield from torch.randperm(n, generator=generator)[: n - n % size].split(size)


def _step(state: State, task: Task[Any], batches: Iterator[Any], schedule: Schedule, clip: float | None, fabric: "Fabric | None") -> None:
    """One step; fills in the state."""
    model, optimiser, started = state.model, state.optimiser, time.perf_counter()
    factor = schedule(state)
    for group in optimiser.param_groups:
        group["lr"] = factor * group["initial_lr"]
    try:
        batch = next(batches)
    except StopIteration:
        raise ValueError(f"the task must yield a batch for every step, got none after step {state.step}; let it repeat its data") from None
    random_state = torch.get_rng_state()  # dropout and masks of the loss are drawn again if a fault must be located

    def gradient() -> Tensor:
        loss = task.loss(model, batch)
        loss.backward() if fabric is None else fabric.backward(loss)
        return loss.detach()

    try:
        loss = gradient()
    except (ValueError, ArithmeticError, RuntimeError) as error:
        # A loss may refuse values that are not finite. If all values are finite the error has another cause and is the caller's.
        if place := _locate(model, batch, gradient, random_state, fabric):
            raise NotConverged(f"step {state.step + 1}: {error}; {place}; {HINT}", state=model) from error
        raise
    norm = _clipped(model, optimiser, clip, fabric)
    # One transfer for both numbers: on an accelerator each transfer waits for all kernels that were launched before.
    value, size = torch.stack([_whole(loss).double(), _whole(norm).double()]).tolist()
    if not (math.isfinite(value) and math.isfinite(size)):
        place = _locate(model, batch, gradient, random_state, fabric) or "every output and gradient is finite"
        numbers = f"the loss is {value:g}, the norm of its gradient {size:g}"
        raise NotConverged(f"step {state.step + 1}: {numbers}; {place}; {HINT}", state=model, residuals=value)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    state.step += 1
    state.loss, state.step_seconds = value, time.perf_counter() - started


def _clipped(model: nn.Module, optimiser: torch.optim.Optimizer, clip: float | None, fabric: "Fabric | None") -> Tensor:
    """Norm of the gradient before clipping; 0 if it is not clipped."""
    if clip is None:
        return torch.zeros(())
    if fabric is None:
        return nn.utils.clip_grad_norm_(model.parameters(), clip)
    return fabric.clip_gradients(model, optimiser, max_norm=clip, error_if_nonfinite=False)  # pyright: ignore[reportReturnType]


def _locate(model: nn.Module, batch: Any, gradient: Callable[[], Tensor], random_state: Tensor, fabric: "Fabric | None") -> str | None:
    """Repeats the step with the same random numbers and describes its first value that is not finite; None if there is none."""
    torch.set_rng_state(random_state)
    # The network inside Fabric's wrapper: its modules have the names that the caller knows.
    bare = model if fabric is None else getattr(model, "module", model)
    return where_not_finite(bare, batch, gradient)


def _whole(tensor: Tensor) -> Tensor:
    """The tensor, gathered if the processes hold parts of it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # pyright: ignore[reportAttributeAccessIssue]


def _share(state: State, minutes: float | None) -> float:
    """Share of the training that is done, by this process's clock or by steps."""
    if minutes is None:
        assert state.steps is not None
        return state.step / state.steps
    return min(1.0, state.seconds / (60 * minutes))


def _done(state: State, minutes: float | None, fabric: "Fabric | None") -> float:
    """The share that is done; by the clock the largest among the processes, so that all of them take the same number of steps."""
    share = _share(state, minutes)
    if minutes is None or fabric is None or fabric.world_size == 1:
        return share
    return float(fabric.all_reduce(torch.tensor(share, device=fabric.device), reduce_op="max"))  # pyright: ignore


def _check(steps: int | None, minutes: float | None, start: int) -> None:
    """Raises ValueError unless exactly one length is given, and in range."""
    if (steps is None) == (minutes is None):
        raise ValueError(f"exactly one of steps and minutes must be given, got steps={steps} and minutes={minutes}")
    if steps is not None and (steps < 1 or start > steps):
        raise ValueError(f"steps must be at least {max(1, start)}, got {steps}")
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise ValueError(f"minutes must be a finite number above 0, got {minutes}")
