"""The time and the memory of a measurement, estimated before it starts, and the sizes that fit a budget.

:func:`estimate` measures one sequence and a few. Every quantity of a pass over b sequences is taken as
``fixed + each * b``, and so is the work of :meth:`.Metric.compute` after n of them. :func:`plan` chooses
batches, samples and numbers of copies from it; it measures nothing, so equal costs give equal plans.

Memory is that of tensors: on a GPU its allocator counts, elsewhere :class:`.TensorMemory`.
"""

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.format import counted
from ..core.memory import gib
from ..core.metric import Metric
from ..core.statistics import (
    EQUAL_NORM,
    EQUAL_SCALE,
    EQUAL_SPECTRUM,
    HEADLINE_DRAWS,
    HELD_INPUTS,
    RANGE_DRAWS,
    UNTRAINED,
)
from ..core.threads import one_thread
from .evaluation import device_of, evaluation
from .forward_pass import NoAttention
from .jackknife import GROUPS
from .memory import TensorMemory, state_bytes
from .passes import Inputs, count, run, selected
from .probing import probe
from .token_masks import KEEPS

MINUTES = 10.0
COPIES_OF_EQUAL_SCALE = 99
FEWEST_COPIES = RANGE_DRAWS  # p-values down to 1/20
ENOUGH_COPIES = 39  # p-values down to 1/40; further copies are given up for SEVERAL sequences
SEVERAL = 4  # one to test and three others for intervals
OTHER_COPIES = {HELD_INPUTS: 9, EQUAL_SPECTRUM: 9, EQUAL_NORM: 9, UNTRAINED: 3}
RANGE = f"{EQUAL_SCALE}, all quantities"  # the first copies, in which all quantities are measured
LARGEST_BATCH = 32  # more sequences per pass save nothing
TESTED = (4, 2, 1)  # smallest numbers of sequences that are tested, in the order in which they are tried
SYNTHETIC = (60, 40, 20, 10, 6, 3)  # sequences of synthetic inputs, of which the first that fits is taken
SYNTHETIC_SHARE = 0.15  # of the time, which these may take
SPARE = 0.1  # of the time, for reading, figures and errors of the estimate
# work space inside operations, and gaps in the heap: a ViT-S of 257 tokens needed 1.4 times its tensors
OVERHEAD = 1.5
DOUBLED = 64  # sequences up to which it is measured how much the metrics keep of all
MOST_ROUNDS = 8  # in which groups of inputs are measured
PATIENCE = 15.0  # seconds of one sequence above which no further one is tried
SLOW = 0.3  # seconds of a copy from which several are measured at the same time
BESIDE = 1.25  # factor by which processes slow each other, which share the memory: 1.2 to 1.3 for a ViT-B


@dataclass(frozen=True)
class Part:
    """A quantity of n sequences, ``fixed + each * n``, but not more than ``most``."""

    fixed: float = 0.0
    each: float = 0.0
    most: float = math.inf

    def of(self, n: int) -> float:
        """Returns the quantity of n sequences."""
        return min(self.fixed + self.each * n, self.most)

    def times(self, factor: float) -> "Part":
        """Returns the quantity times a factor."""
        return Part(factor * self.fixed, factor * self.each, factor * self.most)

    @classmethod
    def through(cls, one: float, many: float, n: int) -> "Part":
        """Returns the quantity from its values for one and for n sequences, with no negative part. If n is 1,
        all of it belongs to the sequence.

        >>> Part.through(5.0, 11.0, 4)
        Part(fixed=3.0, each=2.0, most=inf)
        """
        if n == 1:
            return cls(0.0, one)
        each = min(max(many - one, 0.0) / (n - 1), many / n)
        return cls(max(one, many) - each * (n if many >= one else 1), each)


@dataclass(frozen=True)
class Work:
    """Seconds, and the largest number of bytes above those at the start."""

    seconds: Part = Part()
    bytes: Part = Part()


@dataclass(frozen=True)
class Cost:
    """What a measurement of a network costs.

    Attributes:
        forward: a forward pass without metrics.
        update: a forward pass with all metrics.
        compute: the rows of the metrics after all passes; bytes include the states.
        update_drawn, compute_drawn: the same with the null draws of the metrics themselves.
        tested: seconds of ``update`` and of ``compute`` with the metrics that are tested alone, divided by
            those with all of them.
        kept: bytes of the states of the metrics after a pass.
        weights: bytes of the parameters and buffers.
        copy: seconds in which one copy of the network is made.
        overhead: memory of the process divided by that of its tensors.
        alone: seconds of a pass on one thread, divided by those on all threads.
    """

    forward: Work
    update: Work
    compute: Work
    update_drawn: Work
    compute_drawn: Work
    tested: tuple[float, float] = (1.0, 1.0)
    kept: Part = Part()
    weights: int = 0
    copy: float = 0.0
    overhead: float = 1.0
    alone: float = 1.0

    def seconds(self, n: int, batch: int, *, drawn: bool = False) -> float:
        """Returns the seconds of a measurement of n sequences, ``batch`` per pass."""
        update, compute = self._works(drawn)
        passes = math.ceil(n / batch)
        return passes * update.seconds.fixed + n * update.seconds.each + compute.seconds.of(n)

    def seconds_tested(self, n: int, batch: int) -> float:
        """Returns the seconds of a measurement with the metrics that are tested."""
        update, compute = (
            part.seconds.times(share) for part, share in zip((self.update, self.compute), self.tested)
        )
        return math.ceil(n / batch) * update.fixed + n * update.each + compute.of(n)

    def bytes(self, n: int, batch: int, *, drawn: bool = False) -> float:
        """Returns the largest number of bytes of a measurement of n sequences: in the last pass, beside the
        states, or while the rows are computed.
        """
        update, compute = self._works(drawn)
        earlier = n - min(n, batch)
        states = self.kept.of(earlier) if earlier else 0.0
        return self.overhead * max(states + update.bytes.of(min(n, batch)), compute.bytes.of(n))

    def _works(self, drawn: bool) -> tuple[Work, Work]:
        return (self.update_drawn, self.compute_drawn) if drawn else (self.update, self.compute)


@dataclass(frozen=True)
class MeasurementPlan:
    """Sizes of a measurement.

    Attributes:
        batch: sequences per forward pass.
        sequences: sequences on which the network itself is measured, with the null draws of the metrics.
        tested: sequences of them on which the copies are measured, and the network beside them.
        copies: number of copies of equal scale; 0: there is no test, see ``reason``.
        other_copies: number of networks of each further kind.
        response_sequences: sequences of synthetic inputs; 0: there are no tests on them.
        seconds, bytes: what all of this needs by the estimate.
        reason: why there are no copies; empty if there are.
        later: seconds of what follows the copies, the page included.
        processes: number of processes that measure copies at the same time.
        rounds: number of passes over the groups of inputs, each with a part of the metrics, see
            :func:`.jackknife.without_each_group`.
    """

    batch: int
    sequences: int
    tested: int
    copies: int
    other_copies: Mapping[str, int]
    response_sequences: int
    seconds: float
    bytes: int
    reason: str = ""
    later: float = 0.0
    processes: int = 1
    rounds: int = 1

    def __str__(self) -> str:
        """Returns the plan in words, without a full stop."""
        if self.copies:
            share = f" on {self.tested} of them" if self.tested < self.sequences else ""
            side = f" in {self.processes} processes" if self.processes > 1 else ""
            test = f"{counted(self.copies, 'copy').replace('copys', 'copies')}{share}{side}"
        else:
            test = self.reason or "no copies"
        sizes = f"batches of {self.batch}, {counted(self.sequences, 'sequence')}, {test}"
        return f"{sizes}; about {_time(self.seconds)} and {gib(self.bytes)}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else counted(round(seconds / 60), "minute")


def estimate(
    model: nn.Module,
    inputs: Inputs,
    metrics: Callable[[], Sequence[Metric]],
    *,
    tested: Callable[[], Sequence[Metric]] | None = None,
    labels: Tensor | None = None,
    draws: int = HEADLINE_DRAWS,
    copy: Callable[[], object] | None = None,
    memory: float = math.inf,
    special_ids: Collection[int] | None = None,
    grid: tuple[int, int] | None = None,
    patience: float = PATIENCE,
) -> Cost:
    """Measures what passes over one sequence and over a few cost.

    The sequences are the longest one and, if possible, one of another class and another length. If the first
    pass, on one thread, takes longer than ``patience``, or two sequences would not fit into the memory,
    everything counts as cost of the sequence. Null draws are made for two sequences only. Three quarters of
    what they cost count for the pass, the rest for its sequences, since many are made of the first sequences
    alone.

    Args:
        model: the network.
        inputs: its inputs, tensors ``[n, ...]``.
        metrics: ``() -> metrics``: new metrics at each call. Those of attention are left out of a network
            without attention.
        tested: the same of the metrics that are tested. None: all of them.
        labels: class of each sequence, ``[n]``.
        draws: number of null draws of the metrics' own nulls.
        copy: makes one copy of the network, and is timed; None: copies cost no time.
        memory: bytes that the passes may need.
        special_ids, grid: see :func:`.probe`.
        patience: seconds.
    Raises:
        ValueError: the network has neither attention nor a list of similar blocks.
    """
    rows = _longest(inputs, labels)
    device = device_of(model)
    chosen = {"special_ids": special_ids, "grid": grid}
    last: list[Metric] = []  # metrics with the states of the last pass

    def measured(n: int, draws: int, metrics: Callable[[], Sequence[Metric]] = metrics) -> "_Laps":
        last.clear()
        part = rows[:n]
        classes = None if labels is None else labels[part.to(labels.device)]
        for attention in (True, False):
            laps = _Laps(device)
            found = [metric for metric in metrics() if attention or "attention" not in metric.kinds]
            try:
                with torch.random.fork_rng(), evaluation(model), laps:
                    with probe(model, found, draws=draws, **chosen) as p, p.accumulate():
                        p.labels = classes
                        run(model, selected(inputs, part))
                        laps.lap()
                    laps.lap()
            except NoAttention:
                continue
            last[:] = found
            return laps
        name = type(model).__name__
        raise ValueError(
            f"{name} must have attention or a list of similar blocks to be measured, got neither"
        )

    def plain(n: int) -> "_Laps":
        laps = _Laps(device)
        with torch.random.fork_rng(), evaluation(model), laps:
            run(model, selected(inputs, rows[:n]))
            laps.lap()
        return laps

    overhead = 1.0 if device.type == "cuda" else OVERHEAD
    with one_thread():
        first = measured(1, 0)
    seconds = sum(first.seconds)
    # the second time without what only the first call does, and on all threads
    one = measured(1, 0) if seconds <= patience else first
    fitting = memory / (overhead * max(*one.peaks, 1))
    n = 2 if seconds <= patience and min(len(rows), fitting) >= 2 else 1
    many = one if n == 1 else measured(n, 0)
    total = count(inputs)
    most = _doubled(last, n, total, memory) if total <= DOUBLED else (math.inf, math.inf)
    drawn = measured(n, draws) if draws else many
    some = many if tested is None else measured(n, 0, tested)
    forward = plain(1), plain(n)
    slower = seconds / sum(one.seconds) if sum(one.seconds) > 0 else 1.0

    def work(lap: int) -> Work:
        found = Work(
            Part.through(one.seconds[lap], many.seconds[lap], n),
            Part.through(one.peaks[lap], many.peaks[lap], n),
        )
        if not lap:
            return found
        seconds, bytes = found.seconds, found.bytes
        above = many.peaks[1] - many.ends[0]  # work space beside the states
        return Work(
            replace(seconds, most=max(most[1], seconds.of(n))), replace(bytes, most=most[0] + max(above, 0.0))
        )

    def with_draws(lap: int) -> Work:
        bare = work(lap)
        return Work(_raised(bare.seconds, drawn.seconds[lap], n), _raised(bare.bytes, drawn.peaks[lap], n))

    kept = Part.through(one.ends[0], many.ends[0], n)
    extra = max(0.0, drawn.ends[0] - kept.of(n))
    if copy is not None:
        began = time.perf_counter()
        copy()
        _synchronise(device)
    return Cost(
        forward=Work(
            Part.through(forward[0].seconds[0], forward[1].seconds[0], n),
            Part.through(forward[0].peaks[0], forward[1].peaks[0], n),
        ),
        update=work(0),
        compute=work(1),
        update_drawn=with_draws(0),
        compute_drawn=with_draws(1),
        tested=(_share(some, many, 0), _share(some, many, 1)),
        kept=Part(kept.fixed + extra, kept.each, most[0] + extra),
        weights=sum(x.numel() * x.element_size() for x in (*model.parameters(), *model.buffers())),
        copy=0.0 if copy is None else time.perf_counter() - began,
        overhead=overhead,
        alone=min(max(1.0, slower), float(torch.get_num_threads())),
    )


def _raised(part: Part, drawn: float, n: int) -> Part:
    """Returns a quantity whose value for n sequences is at least ``drawn``; nine tenths of the difference
    are those of the pass, unless there is only one sequence.
    """
    extra = max(0.0, drawn - part.of(n))
    fixed = 0.9 * extra if n > 1 else 0.0
    return Part(part.fixed + fixed, part.each + (extra - fixed) / n, part.most + 2 * extra)


def _doubled(metrics: Sequence[Metric], n: int, total: int, memory: float) -> tuple[float, float]:
    """Returns the bytes of the states of metrics that have measured ``total`` sequences, infinite if they do
    not fit into half of the memory, and the seconds in which these give rows, infinite if n is 1: then rows
    take long.

    Metrics keep some of their sequences, so neither grows without end. The states of n sequences are merged
    with themselves until they are those of enough.
    """
    number = n
    while number < total:
        if 2 * state_bytes(metrics) > memory / 2:
            return math.inf, math.inf
        for metric in metrics:
            with contextlib.suppress(Exception):  # its measurement reports it
                metric.merge(deepcopy(metric))
        number *= 2
    if n == 1:
        return state_bytes(metrics), math.inf
    began = time.perf_counter()
    for metric in metrics:
        with contextlib.suppress(Exception), torch.no_grad():
            metric.compute()
    return state_bytes(metrics), time.perf_counter() - began


def _share(part: "_Laps", whole: "_Laps", lap: int) -> float:
    """Returns the share of the seconds of one step, at most 1."""
    return min(1.0, part.seconds[lap] / whole.seconds[lap]) if whole.seconds[lap] > 0 else 1.0


def _longest(inputs: Inputs, labels: Tensor | None) -> Tensor:
    """Returns the indices of up to two sequences: that with most real tokens; and one of another class and
    another length, as far as there is one, with most of them.
    """
    n = count(inputs)
    lengths = [0] * n
    if isinstance(inputs, Mapping):
        for name, mask in inputs.items():
            if name in KEEPS and mask.ndim == 2:
                lengths = (mask > 0).sum(1).tolist()
    classes = [0] * n if labels is None else labels.tolist()
    first = max(range(n), key=lambda i: (lengths[i], -i))

    def preference(i: int) -> tuple[bool, bool, int, int]:
        return classes[i] != classes[first], lengths[i] != lengths[first], lengths[i], -i

    second = sorted((i for i in range(n) if i != first), key=preference, reverse=True)[:1]
    return torch.tensor([first, *second])


class _Laps:
    """Seconds and bytes of the steps inside a ``with`` block.

    Args:
        device: device of the network.

    Attributes:
        seconds: of each step.
        peaks: largest number of bytes in each step, above those at the start of the block.
        ends: bytes at the end of each step, above those at the start.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.seconds: list[float] = []
        self.peaks: list[float] = []
        self.ends: list[float] = []
        self.memory = None if device.type == "cuda" else TensorMemory()

    def __enter__(self) -> "_Laps":
        self.seconds, self.peaks, self.ends = [], [], []
        if self.memory is not None:
            self.memory.__enter__()
        _synchronise(self.device)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
        self._began = time.perf_counter()
        return self

    def lap(self) -> None:
        """Ends a step."""
        _synchronise(self.device)
        self.seconds.append(time.perf_counter() - self._began)
        if self.device.type == "cuda":
            self.peaks.append(torch.cuda.max_memory_allocated(self.device) - self._before)
            self.ends.append(torch.cuda.memory_allocated(self.device) - self._before)
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.memory is not None:
            self.peaks.append(self.memory.peak)
            self.ends.append(self.memory.live)
            self.memory.peak = self.memory.live
        self._began = time.perf_counter()

    def __exit__(self, *error: Any) -> None:
        if self.memory is not None:
            self.memory.__exit__(*error)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def plan(
    cost: Cost,
    *,
    sequences: int,
    copies: int = COPIES_OF_EQUAL_SCALE,
    memory: float,
    minutes: float = MINUTES,
    other_copies: Mapping[str, int] | None = None,
    synthetic: float = 0.0,
    paired: float = 0.0,
    processes: int = 1,
) -> MeasurementPlan:
    """Chooses the sizes of a measurement within a budget.

    Sizes shrink in this order until the time suffices: the sequences that are tested, from half of all down
    to four; the further kinds of copies; the sequences of the network itself, by halves down to four; then
    the same with two tested sequences, and with one; the copies of equal scale, down to
    :data:`ENOUGH_COPIES`; two sequences and one; the copies, down to :data:`FEWEST_COPIES`. Batches are the
    largest power of two that fits into the memory, and there are fewer sequences if the states of all do
    not fit.

    Args:
        cost: see :func:`estimate`.
        sequences: largest number of sequences.
        copies: number of copies of equal scale that are wanted; 0: none.
        memory: bytes.
        minutes: time of the measurement with its page.
        other_copies: number of networks of each further kind. None: :data:`OTHER_COPIES`.
        synthetic: sequences that run for each sequence of the synthetic inputs, nulls included (all theories:
            23 for images, up to 60 for a causal language model); 0: there are no such tests.
        paired: weights of a second network that is compared on the same inputs, divided by those of the
            network; both are then measured in groups of the inputs (:mod:`.paired`). 0: there is none.
        processes: largest number of processes that measure copies, on one thread each.
    Raises:
        ValueError: not even one sequence fits into the memory or the time.
    """
    others = OTHER_COPIES if other_copies is None else other_copies
    return _Planner(cost, memory, minutes, others, synthetic, paired, processes).plan(sequences, copies)


@dataclass(frozen=True)
class _Planner:
    """What is available, and what sizes need."""

    cost: Cost
    memory: float
    minutes: float
    others: Mapping[str, int]
    synthetic: float
    paired: float = 0.0
    most_processes: int = 1

    @property
    def seconds(self) -> float:
        """Seconds that may be planned."""
        return 60 * self.minutes * (1 - SPARE)

    def plan(self, sequences: int, copies: int) -> MeasurementPlan:
        sizes = [(n, batch) for n in _halves(sequences) if (batch := self.batch(n, copies)) is not None]
        if not sizes:
            raise ValueError(
                f"one sequence needs {gib(self.bytes(1, 1, copies))} of memory beside the network, got "
                f"{gib(self.memory)}; give more --memory, or shorten the sequences with --length"
            )
        one = sizes[-1][1]
        if (seconds := self.needed(1, one, 0, 0, {})) > self.seconds:
            raise ValueError(
                f"one sequence needs about {_time(seconds / (1 - SPARE))}, got {self.minutes:g} minutes; "
                "give more --minutes, or shorten the sequences with --length"
            )
        sizes = [(n, batch) for n, batch in sizes if self.needed(n, batch, 0, 0, {}) <= self.seconds]
        if not copies:
            return self.made(*sizes[0], 0, 0, {})
        several = [size for size in sizes if size[0] >= SEVERAL]
        chosen = (
            self.with_all(several, copies)
            or (self.with_fewer(*several[-1], copies, ENOUGH_COPIES) if several else None)
            or self.with_all(sizes[len(several) :], copies)
            or self.with_fewer(*sizes[-1], copies, FEWEST_COPIES)
        )
        if chosen is not None:
            return chosen
        (n, batch), least = sizes[-1], min(copies, FEWEST_COPIES)
        minutes = math.ceil(self.needed(n, batch, 1, least, {}) / (1 - SPARE) / 60)
        reason = f"too few minutes for a test: {counted(minutes, 'minute')} would do"
        return self.made(*sizes[0], 0, 0, {}, reason)

    def with_all(self, sizes: Sequence[tuple[int, int]], copies: int) -> MeasurementPlan | None:
        """Returns the first plan with all copies of equal scale that the time permits."""
        for n, batch, fewest in [(n, batch, fewest) for fewest in TESTED for n, batch in sizes]:
            for others in (self.others, {}):
                for tested in range(max(1, n // 2), fewest - 1, -1):
                    if self.needed(n, batch, tested, copies, others) <= self.seconds:
                        return self.made(n, batch, tested, copies, others)
        return None

    def with_fewer(self, n: int, batch: int, copies: int, fewest: int) -> MeasurementPlan | None:
        """Returns the plan with the largest number of copies on one sequence that the time permits; None if
        these are fewer than ``fewest``.
        """
        first = FEWEST_COPIES * self.of_copy(RANGE, 1, batch)
        rest = self.seconds - self.needed(n, batch, 1, 0, {}) - first
        fitting = FEWEST_COPIES + math.floor(rest / self.of_copy(EQUAL_SCALE, 1, batch)) if rest >= 0 else 0
        if fitting < min(copies, fewest):
            return None
        return self.made(n, batch, 1, min(copies, fitting), {})

    def batch(self, n: int, copies: int) -> int | None:
        """Returns the number of sequences per pass that fits into the memory; None if one does not."""
        size = 1
        while size < min(n, LARGEST_BATCH):
            size *= 2
        while size and self.bytes(n, min(size, n), copies) > self.memory:
            size //= 2
        return min(size, n) or None

    def bytes(self, n: int, batch: int, copies: int) -> float:
        """Returns the bytes of the network itself with null draws, or of copies, whichever is larger. A copy
        with held inputs runs beside the network.
        """
        itself = self.cost.bytes(n, batch, drawn=True)
        if not copies:
            return itself
        tested = max(1, n // 2)
        return max(self.cost.weights + itself, self.bytes_of_copies(tested, batch, 1))

    def bytes_of_copies(self, tested: int, batch: int, processes: int) -> float:
        """Returns the bytes of copies that processes measure at the same time. Each has the weights of one;
        those of this process lie beside them.
        """
        size = min(batch, tested)
        each = self.cost.weights + self.cost.bytes(tested, size) + self.cost.forward.bytes.of(size)
        return processes * each + self.cost.weights * (processes > 1)

    def processes(self, tested: int, batch: int) -> int:
        """Returns how many processes measure copies at the same time: as many as fit into the memory, and one
        if a copy takes less time than it costs to begin them.
        """
        if self.cost.seconds_tested(tested, min(batch, tested)) < SLOW:
            return 1
        numbers = range(self.most_processes, 1, -1)
        fits = (number for number in numbers if self.bytes_of_copies(tested, batch, number) <= self.memory)
        return next(fits, 1)

    def rounds(self, n: int, batch: int) -> int:
        """Returns in how many rounds the groups of the inputs are measured: their states lie beside one
        another.
        """
        groups = min(GROUPS, n)
        size = math.ceil(n / groups)
        states = self.cost.overhead * (groups * self.cost.kept.of(size) + self.cost.kept.of(n))
        left = self.memory - self.cost.overhead * self.cost.update.bytes.of(min(batch, size))
        return min(MOST_ROUNDS, max(1, math.ceil(states / left))) if left > 0 else MOST_ROUNDS

    def in_groups(self, n: int, batch: int) -> float:
        """Returns the seconds in which the network is measured in groups of the inputs: every quantity is
        computed on all of them, and without each group.
        """
        groups, rounds = min(GROUPS, n), self.rounds(n, batch)
        size = math.ceil(n / groups)
        passes = math.ceil(size / batch)
        update, forward, computed = self.cost.update.seconds, self.cost.forward.seconds, self.cost.compute
        again = (rounds - 1) * (passes * forward.fixed + size * forward.each)
        each = passes * update.fixed + size * update.each + again + computed.seconds.of(n - size)
        return groups * each + computed.seconds.of(n)

    def needed(self, n: int, batch: int, tested: int, copies: int, others: Mapping[str, int]) -> float:
        """Returns the seconds of the network itself, of the network on the tested sequences, of the groups of
        the others, of copies, of the tests on synthetic inputs, and of a second network.
        """
        total = self.cost.seconds(n, batch, drawn=True) + self.responses(batch)[1]
        if self.paired:
            total += (1 + self.paired) * self.in_groups(n, batch)
        if n - tested > 1:
            total += self.in_groups(n - tested, batch)
        if not tested:
            return total
        if tested < n:
            total += self.cost.seconds(tested, min(batch, tested))
        first = min(copies, RANGE_DRAWS)
        numbers = {RANGE: first, EQUAL_SCALE: copies - first, **others}
        return total + sum(number * self.of_copy(kind, tested, batch) for kind, number in numbers.items())

    def responses(self, batch: int) -> tuple[int, float]:
        """Returns the number of synthetic sequences and the seconds of the tests on them."""
        forward = self.cost.forward.seconds
        each = self.synthetic * (forward.each + forward.fixed / batch)
        for size in SYNTHETIC if self.synthetic else ():
            if size * each <= SYNTHETIC_SHARE * 60 * self.minutes:
                return size, size * each
        return 0, 0.0

    def of_copy(self, kind: str, tested: int, batch: int) -> float:
        """Returns the seconds of one copy; held inputs need a forward pass of the network beside it."""
        size = min(batch, tested)
        all_metrics = kind in (RANGE, UNTRAINED)
        measured = self.cost.seconds if all_metrics else self.cost.seconds_tested
        seconds = self.cost.copy + measured(tested, size)
        if kind == HELD_INPUTS:
            forward = self.cost.forward.seconds
            seconds += math.ceil(tested / size) * forward.fixed + tested * forward.each
        processes = self.processes(tested, batch)
        return seconds if processes == 1 else seconds * self.cost.alone * BESIDE / processes

    def rest(self, n: int, batch: int, tested: int, copies: int) -> dict[str, int]:
        """Returns how many further copies the time that is left permits, in the order of their kinds."""
        found: dict[str, int] = {}
        for kind, wanted in self.others.items():
            left = self.seconds - self.needed(n, batch, tested, copies, found)
            number = min(wanted, math.floor(left / self.of_copy(kind, tested, batch)))
            if number > 0:
                found[kind] = number
        return found

    def made(
        self, n: int, batch: int, tested: int, copies: int, others: Mapping[str, int], reason: str = ""
    ) -> MeasurementPlan:
        """Returns the plan of these sizes, with as many further copies as the time permits."""
        others = others or (self.rest(n, batch, tested, copies) if copies else {})
        processes = self.processes(tested, batch) if copies else 1
        memory = self.bytes(n, batch, copies)
        if processes > 1:
            memory = max(memory, self.bytes_of_copies(tested, batch, processes))
        return MeasurementPlan(
            batch,
            n,
            tested,
            copies,
            dict(others),
            self.responses(batch)[0],
            self.needed(n, batch, tested, copies, others),
            math.ceil(memory),
            reason,
            (self.in_groups(n - tested, batch) if n - tested > 1 else 0.0)
            + self.responses(batch)[1]
            + 60 * self.minutes * SPARE,
            processes,
            self.rounds(n if self.paired else n - tested, batch) if n - tested > 1 or self.paired else 1,
        )


def _halves(n: int) -> list[int]:
    """Returns n and its halves, down to 1."""
    sizes = [n]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return sizes
