"""Checks of the machine: the best number of threads, slowdown by other programs, and memory for the network.

On busy cores, two threads that wait for each other are several times slower than one. On two cores with a load of five, training processed
250 images per second with two threads and 1,200 with one. The number of threads is therefore measured at the start of a training.

Other programs are detected by the processor time of the main thread. On an idle machine it is nearly the wall time, since the thread either
computes or spins while it waits for the others. The processor time of the whole process would be misleading: the other threads sleep in the
parts of a step that are not parallel.
"""

import os
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .fitting import State

STEPS = 3  # steps per time measurement; the first is a warm-up and is not counted
FASTER = 1.25  # one thread is preferred only if it is faster by this factor: a smaller difference may be chance
IDLE_SHARE = 0.7  # smallest ratio of processor time to wall time, of the main thread, that counts as an idle machine
WATCHED = 20  # first steps of a training over which the load is measured
COPIES = 4  # arrays of the size of the weights in memory: weights, gradients, and the two moments of Adam


def available_threads() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_threads(step: Callable[[], object]) -> dict[int, float]:
    """Times a step with the present number of threads and with one thread, and sets torch to the faster number.

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
    """Callbacks of :func:`.fit` that warn once if other programs occupied the processor during the first steps of a training.

    Args:
        warn: is called with the warning, one line.
        steps: number of steps over which the load is measured.

    ``before`` must be the last callback and ``after`` the first, so that the time between them is that of a step without other callbacks.
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
            self.warn(f"the machine is busy: other work took {100 * busy:.0f} % of the time of the first {self.steps} steps ({speed})")


def _busy_share(wall: float, processor: float) -> float:
    """Returns the share of the wall time in which the thread did not run; 0 if no time has passed."""
    return max(0.0, 1 - processor / wall) if wall > 0 else 0.0


class Uncountable(ValueError):
    """Raised if a network cannot be built without the values of its tensors, or has more of them than torch can count."""


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Builds the network on torch's ``meta`` device, where tensors have shapes but no values and need no memory.

    Args:
        build: builds the network; torch's random state is restored afterwards.
    Raises:
        Uncountable: the constructor needs the values of a tensor, or a tensor has too many.
        ValueError: ``build`` rejects the sizes.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return build()
    except (RuntimeError, OverflowError) as error:
        cause = str(error).splitlines()[0]
        raise Uncountable(f"a network of these sizes cannot be built ({cause}); choose a smaller dim or depth") from error


def shapes_of(build: Callable[[], nn.Module], *, own: bool) -> nn.Module:
    """Builds a network whose parameter names and shapes are to be compared, without memory for its weights if possible.

    Args:
        build: builds the network; torch's random state is restored afterwards.
        own: whether the caller supplied the network. Its constructor may need values of tensors; it is then built in memory.
    Raises:
        Uncountable: see :func:`on_meta`.
    """
    try:
        return on_meta(build)
    except Uncountable:
        if not own:
            raise
    with torch.random.fork_rng(devices=[]):
        return build()


def check_memory(build: Callable[[], nn.Module]) -> int:
    """Returns the number of parameters of a network without allocating memory for them.

    Args:
        build: builds the network.
    Raises:
        Uncountable: see :func:`on_meta`.
        ValueError: weights, gradients and the moments of Adam need more than the memory of the machine.
    """
    network = on_meta(build)
    count = sum(parameter.numel() for parameter in network.parameters())
    needed = COPIES * sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())
    if needed > (memory := _memory()):
        raise ValueError(
            f"a network of {count:,} parameters needs {needed / 2**30:,.0f} GiB for weights, gradients and the optimiser, got"
            f" {memory / 2**30:,.0f} GiB of memory; choose a smaller dim or depth"
        )
    return count


def _memory() -> float:
    """Returns the memory of the machine in bytes; infinity if the system does not report it."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return float("inf")


def gradient_of(loss: Callable[[], Tensor], model: nn.Module, optimiser: torch.optim.Optimizer, backward: Callable[[Tensor], None]) -> None:
    """Computes a loss and its gradient without taking a step; gradients, buffers and random states are reset."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]  # such as the running means of a BatchNorm
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        model.train()
        backward(loss())
    optimiser.zero_grad(set_to_none=True)
    for buffer, before in buffers:
        buffer.copy_(before)
