"""Descent of a network's loss by any optimiser of torch: the loop that all trainings share, deterministic given its generator.

Source: none, this is machinery; what is descended and how is the caller's.
"""

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
    """Takes ``steps`` steps of ``optimiser`` on ``model``, in place and in training mode; whatever happens, it ends in evaluation mode.

    Args:
        model: whose parameters the optimiser holds.
        loss_of: scalar loss of a batch.
        batches: at least ``steps`` of them, drawn as they are needed.
        steps: >= 1.
        optimiser, schedule: the schedule is stepped with the optimiser.
        generator: seeds what draws from torch's global CPU state (dropout, augmentation), which is left as it was.
        clip: largest norm of the gradient; none if not given.
        after: called with 0 before the first step and with the number of each step after it; may switch to evaluation and back.
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
                    raise NotConverged(message, state=model)  # no loss after this step would have told
                after(step)
        finally:
            model.eval()
    return losses


def within(at: Iterable[int], steps: int) -> set[int]:
    """Steps after which a run of ``steps`` steps is to be read, 0 is before the first.

    Raises:
        ValueError: one lies outside the run.
    """
    stops = list(at)
    if wrong := [step for step in stops if not 0 <= step <= steps]:
        raise ValueError(f"at must lie in [0, {steps}], the steps of this run, got {wrong[0]}")
    return set(stops)


def permuted(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Positions of the next batch ``[size]``, for ever: a new permutation each epoch, the incomplete last batch left out."""
    while True:
        yield from torch.randperm(n, generator=generator)[: n - n % size].split(size)
