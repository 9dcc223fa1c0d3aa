"""The training loop. :func:`fit` trains every network of the library; there is no other loop.

    repeat   batch -> loss -> gradient -> clip -> optimiser step -> callbacks

A *task* (:class:`Task`) yields batches and computes the loss of a batch. The *optimiser* is any torch
optimiser. The *schedule* returns the factor of the learning rate for each step. *Callbacks* are called before
the first step and after every step with the :class:`State` of the training. Measurements, storage, averages
of the weights and output are callbacks, so the loop stays short.

The generator determines the training. The loop draws from it a seed for torch's global CPU generator, which
dropout and augmentation use, and restores the global state afterwards.
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
from ..core.validation import integers
from .faults import finite, where_not_finite

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Batch = TypeVar("Batch")
HINT = "lower the learning rate, or clip the gradient at a smaller norm"


@runtime_checkable
class Task(Protocol[Batch]):
    """Batches and loss of a training. Any object with these two methods is a task; no registration is needed.

    Tasks that are compared or measured may have further methods. ``model()`` returns an untrained network for
    the task, ``evaluate(model)`` returns measurements of a network's performance, and ``sample(generator)``
    returns inputs of the network for a probe.
    """

    def batches(self, generator: torch.Generator, start: int = 0) -> Iterator[Batch]:
        """Yields the batches of steps ``start``, ``start + 1``, ...; the batch of a step must not depend on
        ``start``.
        """
        ...

    def loss(self, model: nn.Module, batch: Batch, /) -> Float[Tensor, ""]:
        """Returns the differentiable loss of one batch. ``model`` may be wrapped, so call it as a whole, not
        its submodules.
        """
        ...


@dataclass
class State:
    """State of a training between two steps, for schedules and callbacks.

    Attributes:
        model: network that was passed to :func:`fit`, in training mode.
        optimiser: optimiser that was passed to :func:`fit`.
        step: number of steps so far.
        steps: number of steps of the whole training; None if its length is set in minutes.
        done: completed share of the training, in [0, 1].
        seconds: training time, including callbacks, except those before the first step.
        loss: loss of the last step; None before the first step of this call.
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
    """Result of a training.

    Attributes:
        model: trained network, in evaluation mode.
        losses: loss of each step on its batch, ``[steps]``.
        seconds: wall time of this call, including callbacks.
    """

    model: nn.Module
    losses: Float[Tensor, " steps"]
    seconds: float

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.losses)


def constant(state: State) -> float:
    """Returns 1: the schedule of a constant learning rate."""
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
    """Trains ``model`` on ``task`` in place. The model is in training mode during the steps and in evaluation
    mode at the end.

    Args:
        model: network whose parameters ``optimiser`` updates.
        task: source of the batches and their loss.
        optimiser: any torch optimiser. The learning rate of each group is multiplied by the factor of
            ``schedule``.
        steps: number of steps of the whole training.
        minutes: duration of the training, instead of ``steps``; no step begins after it.
        callbacks: functions of the state, called in this order before the first step and after each step.
        schedule: function that returns the factor of the learning rate for the next step, given the state
            before it.
        clip: limit on the norm of the gradient. None: the gradient is not clipped.
        generator: draws the batches and the seed of torch's global CPU generator. None: a generator with seed
            0.
        fabric: Lightning's Fabric, for several processes, other devices or mixed precision; ``model`` and
            ``optimiser`` must then be the results of ``fabric.setup``.
        start, seconds: number of steps and training time before this call, for a resumed training.
    Raises:
        NotConverged: the loss, its gradient (if it is clipped) or, after the last step, a parameter is not
            finite. The error names the
        step, locates the fault where possible and carries the model.
        ValueError: both or neither of ``steps`` and ``minutes`` are set, one is out of range, or the task has
            too few batches.
    """
    _check(steps, minutes, start)
    state = State(model, optimiser, start, steps, seconds=seconds)
    losses: list[float] = []
    for group in optimiser.param_groups:  # every step sets "lr" to a factor times this rate
        group.setdefault("initial_lr", group["lr"])
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        try:
            state.done = _local_share(state, minutes)
            for callback in callbacks:
                callback(state)
            model.train()
            batches, began = task.batches(generator, start), time.perf_counter()
            while (done := _common_share(state, minutes, fabric)) < 1:
                state.done = done
                _step(state, task, batches, schedule, clip, fabric)
                assert state.loss is not None
                losses.append(state.loss)
                state.seconds = seconds + time.perf_counter() - began
                state.done = _local_share(state, minutes)
                for callback in callbacks:
                    callback(state)
                state.seconds = seconds + time.perf_counter() - began
            # The last step may make parameters infinite or NaN although its loss was finite; no later loss
            # would reveal it.
            if not finite(model.parameters()):
                raise NotConverged(
                    f"step {state.step}: a parameter is not finite after the last step; {HINT}", state=model
                )
        finally:
            model.eval()
    return Fit(model, torch.tensor(losses), state.seconds - seconds)


def at_steps(steps: Iterable[int], callback: Callable[[int, nn.Module], None], *, limit: int) -> Callback:
    """Returns a callback of :func:`fit` that calls ``callback(step, model)`` at certain steps, in evaluation
    mode and without gradients.

    Args:
        steps: numbers of the steps; 0 is before the first step, ``limit`` the end.
        callback: function of the step and the model.
        limit: number of steps of the training.
    Raises:
        ValueError: a step lies outside the training.
    """
    stops = set(steps)
    if outside := sorted(step for step in stops if not 0 <= step <= limit):
        raise ValueError(
            f"steps of a callback must lie in [0, {limit}], the steps of this training, got {outside[0]}"
        )

    def call(state: State) -> None:
        if state.step in stops:
            state.model.eval()
            with torch.no_grad():
                callback(state.step, state.model)
            state.model.train()

    return call


def permuted(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields the indices of the samples of each batch, ``[size]``, without end.

    Each epoch has a new permutation; its incomplete last batch is left out.
    """
    while True:
        yield from torch.randperm(n, generator=generator)[: n - n % size].split(size)


def _step(
    state: State,
    task: Task[Any],
    batches: Iterator[Any],
    schedule: Schedule,
    clip: float | None,
    fabric: "Fabric | None",
) -> None:
    """Takes one step and updates the state."""
    model, optimiser, started = state.model, state.optimiser, time.perf_counter()
    factor = schedule(state)
    for group in optimiser.param_groups:
        group["lr"] = factor * group["initial_lr"]
    try:
        batch = next(batches)
    except StopIteration:
        raise ValueError(
            f"the task must yield a batch for every step, got none after step {state.step}; let it repeat "
            "its data"
        ) from None
    random_state = torch.get_rng_state()  # to repeat dropout and masks if a fault must be located

    def gradient() -> Tensor:
        loss = task.loss(model, batch)
        loss.backward() if fabric is None else fabric.backward(loss)
        return loss.detach()

    try:
        loss = gradient()
    except (ValueError, ArithmeticError, RuntimeError) as error:
        # A loss may raise an error on NaN or infinity. If all values are finite, the error has another cause
        # and is raised again.
        if place := _locate(model, batch, gradient, random_state, fabric):
            raise NotConverged(f"step {state.step + 1}: {error}; {place}; {HINT}", state=model) from error
        raise
    norm = _clip_gradient(model, optimiser, clip, fabric)
    # Transfer both numbers at once: on an accelerator each transfer waits for all kernels that were launched
    # before it.
    value, size = torch.stack([_mean(loss, fabric).double(), _gather(norm).double()]).tolist()
    if not (math.isfinite(value) and math.isfinite(size)):
        place = (
            _locate(model, batch, gradient, random_state, fabric)
            or "when the step was repeated, every output and gradient was finite"
        )
        numbers = f"the loss is {value:g}" + ("" if clip is None else f", the norm of its gradient {size:g}")
        raise NotConverged(f"step {state.step + 1}: {numbers}; {place}; {HINT}", state=model, residuals=value)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    state.step += 1
    state.loss, state.step_seconds = value, time.perf_counter() - started


def _clip_gradient(
    model: nn.Module, optimiser: torch.optim.Optimizer, clip: float | None, fabric: "Fabric | None"
) -> Tensor:
    """Clips the gradient and returns its norm before clipping; returns 0 if ``clip`` is None."""
    if clip is None:
        return torch.zeros(())
    if fabric is None:
        return nn.utils.clip_grad_norm_(model.parameters(), clip)
    return fabric.clip_gradients(model, optimiser, max_norm=clip, error_if_nonfinite=False)  # pyright: ignore[reportReturnType]


def _locate(
    model: nn.Module,
    batch: Any,
    gradient: Callable[[], Tensor],
    random_state: Tensor,
    fabric: "Fabric | None",
) -> str | None:
    """Repeats the step with the same random numbers and describes its first NaN or infinity. Returns None if
    all values are finite.
    """
    torch.set_rng_state(random_state)
    # Inside Fabric's wrapper, modules have the names that the caller knows.
    bare = model if fabric is None else getattr(model, "module", model)
    return where_not_finite(bare, batch, gradient)


def _mean(loss: Tensor, fabric: "Fabric | None") -> Tensor:
    """Returns the loss of the whole batch, of which each process has a share; so all processes stop at the
    same NaN.
    """
    loss = _gather(loss)
    return loss if fabric is None or fabric.world_size == 1 else fabric.all_reduce(loss, reduce_op="mean")  # pyright: ignore


def _gather(tensor: Tensor) -> Tensor:
    """Returns the tensor, gathered if the processes hold parts of it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # pyright: ignore[reportAttributeAccessIssue]


def _local_share(state: State, minutes: float | None) -> float:
    """Returns the completed share of the training, by steps or by this process's clock."""
    if minutes is None:
        assert state.steps is not None
        return state.step / state.steps
    return min(1.0, state.seconds / (60 * minutes))


def _common_share(state: State, minutes: float | None, fabric: "Fabric | None") -> float:
    """Returns the completed share; if time limits the training, the largest share of any process, so that all
    stop at the same step.
    """
    share = _local_share(state, minutes)
    if minutes is None or fabric is None or fabric.world_size == 1:
        return share
    return float(fabric.all_reduce(torch.tensor(share, device=fabric.device), reduce_op="max"))  # pyright: ignore


def _check(steps: int | None, minutes: float | None, start: int) -> None:
    """Raises :class:`ValueError` unless exactly one of the lengths is set and in range."""
    if (steps is None) == (minutes is None):
        raise ValueError(
            f"exactly one of steps and minutes must be given, got steps={steps} and minutes={minutes}"
        )
    integers(start=start, minimum=0)
    if steps is not None and (steps < 1 or start > steps):
        raise ValueError(f"steps must be at least {max(1, start)}, got {steps}")
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise ValueError(f"minutes must be a finite number above 0, got {minutes}")
