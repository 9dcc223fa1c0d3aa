"""The machine of a training: how many threads it should use, whether other work slows it, and whether a network fits its memory.

Two threads that wait for each other on busy cores are several times slower than one: on two cores with a load of five, 250 images a second
with two threads were 1,200 with one. So the number of threads is measured at the start of a training, not assumed.

Other work shows in the processor time of the thread that computes: on an idle machine it is nearly the wall time, since the thread computes
or spins while it waits for the others. The time of the whole process would not do: threads sleep where a step is not parallel.
"""

import os
import time
from collections.abc import Callable

import torch
from torch import nn

from .fitting import State

STEPS = 3  # of each measurement; the first is a warm-up and is not counted
FASTER = 1.25  # one thread must be faster by this factor: below it the difference may be chance
IDLE_SHARE = 0.7  # of the wall time that the computing thread has on a machine without much other work
WATCHED = 20  # steps after which the load is judged again
COPIES = 4  # of the weights in memory: weights, gradients, and two moments of Adam


def available_threads() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_threads(step: Callable[[], object]) -> dict[int, float]:
    """Times a step with the present number of threads and with one, and leaves torch with the faster number.

    A number that the user has chosen, by ``OMP_NUM_THREADS``, stays.

    Args:
        step: a step of the training without effect on its result: loss and gradient.
    Returns:
        Seconds of a step for each number of threads that was tried; empty if there is no choice.
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
    """Callbacks of :func:`.fit` that warn once, in one line, if other work takes the processor from the first steps of a training.

    Args:
        warn: is called with the line.
        steps: number of steps after which the load is judged.

    ``before`` must be the last callback and ``after`` the first: between them lies the next step, without the other callbacks.
    """

    def __init__(self, warn: Callable[[str], None], *, steps: int = WATCHED):
        self.warn, self.steps = warn, steps
        self.count, self.wall, self.processor = 0, 0.0, 0.0
        self.began: tuple[float, float] | None = None

    def before(self, state: State) -> None:
        """Reads the clocks before a step."""
        self.began = (time.perf_counter(), time.thread_time()) if self.count < self.steps else None

    def after(self, state: State) -> None:
        """Reads the clocks after a step; after the last one that is watched, judges the load."""
        if self.began is None:
            return
        self.wall += time.perf_counter() - self.began[0]
        self.processor += time.thread_time() - self.began[1]
        self.count, self.began = self.count + 1, None
        if self.count == self.steps and (busy := _busy(self.wall, self.processor)) > 1 - IDLE_SHARE:
            speed = f"{self.steps / self.wall:,.3g} steps a second"
            self.warn(f"the machine is busy: other work took {100 * busy:.0f} % of the time of the first {self.steps} steps ({speed})")


def _busy(wall: float, processor: float) -> float:
    """Share of the wall time in which the thread did not run; 0 if the clock did not move."""
    return max(0.0, 1 - processor / wall) if wall > 0 else 0.0


class Uncountable(ValueError):
    """A network that cannot be built without numbers, or has more of them than torch can count."""


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """The network on torch's ``meta`` device, where tensors have shapes and no numbers, so that no memory is needed.

    Args:
        build: makes the network; no random numbers are drawn.
    Raises:
        Uncountable: the constructor needs the numbers of a tensor, or a tensor has too many.
        ValueError: ``build`` refuses.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return build()
    except (RuntimeError, OverflowError) as error:
        cause = str(error).splitlines()[0]
        raise Uncountable(f"a network of these sizes cannot be built ({cause}); choose a smaller dim or depth") from error


def shapes_of(build: Callable[[], nn.Module], *, own: bool) -> nn.Module:
    """A network whose names and shapes are compared: without memory for its weights, if its constructor needs no numbers.

    Args:
        build: makes the network; no random numbers are drawn.
        own: whether it is a network of the caller's own, which may need numbers.
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
    """Number of parameters of a network, counted without memory for them.

    Args:
        build: makes the network.
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
    """Bytes of memory of the machine; infinite if the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return float("inf")
