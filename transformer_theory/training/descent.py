"""Descent of a network's loss with any optimiser of torch, deterministic given its generator."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from ..core.errors import NotConverged

Batch = TypeVar("Batch")


def descend(
    model: nn.Module,
    loss_of: Callable[[Batch], Tensor],
    batches: Iterator[Batch],
    *,
    steps: int,
    optimiser: torch.optim.Optimizer,
    schedule: LRScheduler,
    generator: torch.Generator,
    clip: float | None = None,
    after: Callable[[int], None] = lambda step: None,
) -> Float[Tensor, " steps"]:
    """Takes ``steps`` steps of ``optimiser`` on ``model``, in place and in training mode; it ends in evaluation mode.

    Args:
        model: whose parameters the optimiser holds.
        loss_of: scalar loss of a batch.
        batches: at least ``steps`` of them, drawn one by one.
        steps: >= 1.
        optimiser, schedule: the schedule is stepped with the optimiser.
        generator: seeds torch's global CPU generator (dropout, augmentation), whose state is restored.
        clip: limit on the norm of the gradient; None for none.
        after: is called with 0 before the first step and with its number after each step; may switch to evaluation mode and back.
    Returns:
        Loss of the batch of each step, ``[steps]``.
    Raises:
        NotConverged: a loss is not finite, or a parameter after the last step; names the step and carries the model.
        ValueError: fewer than one step.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    losses, rate = torch.zeros(steps), optimiser.defaults["lr"]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        try:
            after(0)
            model.train()
            for step, batch in zip(range(1, steps + 1), batches):
                loss = loss_of(batch)
                if not torch.isfinite(loss):
                    message = f"loss must stay finite, got {loss.item()} at step {step} of {steps}; lower learning_rate={rate:g}"
                    raise NotConverged(message, state=model, residuals=loss.item())
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimiser.step()
                schedule.step()
                losses[step - 1] = loss.detach()
                if step == steps and not all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()):
                    message = f"parameters must stay finite, got others after the last of {steps} steps; lower learning_rate={rate:g}"
                    raise NotConverged(message, state=model)  # no later loss would show it
                after(step)
        finally:
            model.eval()
    return losses


def within(checkpoints: Iterable[int], steps: int) -> set[int]:
    """The set of steps at which a run of ``steps`` steps is measured; 0 is before the first.

    Raises:
        ValueError: a step lies outside the run.
    """
    stops = list(checkpoints)
    if wrong := [step for step in stops if not 0 <= step <= steps]:
        raise ValueError(f"checkpoints must lie in [0, {steps}], the steps of this run, got {wrong[0]}")
    return set(stops)


def permuted(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields positions of batches ``[size]`` without end: a new permutation per epoch, without the incomplete last batch."""
    while True:
        yield from torch.randperm(n, generator=generator)[: n - n % size].split(size)
