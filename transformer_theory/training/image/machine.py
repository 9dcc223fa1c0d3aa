"""Checks of the machine: the best number of threads, and slowdown by other programs.

On busy cores, two threads that wait for each other are several times slower than one. On two cores with a
load of five, training processed 250 images per second with two threads and 1,200 with one. The number of
threads is therefore measured at the start of a training.

Other programs are detected by the processor time of the main thread. On an idle machine it is nearly the wall
time, since the thread either computes or spins while it waits for the others. The processor time of the whole
process would be misleading: the other threads sleep in the parts of a step that are not parallel.
"""

import os
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..fitting import State

STEPS = 3  # steps per time measurement; the first is a warm-up and is not counted
# one thread is preferred only if it is faster by this factor: a smaller difference may be chance
FASTER = 1.25
# smallest ratio of processor time to wall time, of the main thread, that counts as an idle machine
IDLE_SHARE = 0.7
WATCHED = 20  # first steps of a training over which the load is measured


def available_threads() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_threads(step: Callable[[], object]) -> dict[int, float]:
    """Times a step with the present number of threads and with one thread, and sets torch to the faster
    number.

    A number that the user has set by ``OMP_NUM_THREADS`` is not changed.

    Args:
        step: computes loss and gradient as in a training step, without an effect on the training.
    Returns:
        Seconds per step for each number of threads; empty if nothing was timed.
    """
    present = torch.get_num_threads()
    if present == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    seconds = {}
    for count in (present, 1):
        torch.set_num_threads(count)
        step()
        began = time.perf_counter()
        for _ in range(STEPS - 1):
            step()
        seconds[count] = (time.perf_counter() - began) / (STEPS - 1)
    torch.set_num_threads(1 if FASTER * seconds[1] < seconds[present] else present)
    return seconds


class LoadWatch:
    """Callbacks of :func:`.fit` that warn once if other programs occupied the processor during the first
    steps of a training.

    Args:
        warn: is called with the warning, one line.
        steps: number of steps over which the load is measured.

    ``before`` must be the last callback and ``after`` the first, so that the time between them is that of a
    step without other callbacks.
    """

    def __init__(self, warn: Callable[[str], None], *, steps: int = WATCHED):
        self.warn, self.steps = warn, steps
        self.count, self.wall, self.processor = 0, 0.0, 0.0
        self.began: tuple[float, float] | None = None

    def before(self, state: State) -> None:
        """Reads the clocks before a step."""
        self.began = (time.perf_counter(), time.thread_time()) if self.count < self.steps else None

    def after(self, state: State) -> None:
        """Reads the clocks after a step; after the last measured step, warns if the machine was busy."""
        if self.began is None:
            return
        self.wall += time.perf_counter() - self.began[0]
        self.processor += time.thread_time() - self.began[1]
        self.count, self.began = self.count + 1, None
        if self.count == self.steps and (busy := _busy_share(self.wall, self.processor)) > 1 - IDLE_SHARE:
            speed = f"{self.steps / self.wall:,.3g} steps a second"
            self.warn(
                f"the machine is busy: other work took {100 * busy:.0f} % of the time of the first "
                f"{self.steps} steps ({speed})"
            )


def _busy_share(wall: float, processor: float) -> float:
    """Returns the share of the wall time in which the thread did not run; 0 if no time has passed."""
    return max(0.0, 1 - processor / wall) if wall > 0 else 0.0


def gradient_of(
    loss: Callable[[], Tensor],
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    backward: Callable[[Tensor], None],
) -> None:
    """Computes a loss and its gradient without taking a step; gradients, buffers and random states
    are reset.
    """
    # such as the running means of a BatchNorm
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        model.train()
        backward(loss())
    optimiser.zero_grad(set_to_none=True)
    for buffer, before in buffers:
        buffer.copy_(before)
