"""A second process in which the metrics of a probe are computed, while the training goes on.

The training process observes the pass and copies what the metrics read, activations and parameters, into
memory that both processes share. The copy takes a few per cent of a training step; the metrics take longer
than a step. The second process is forked, so that it has the network and the metrics as they are, whatever
their classes. It copies the activations again, into memory of its own, and lets the training process write
the next ones. If it falls behind by a whole measurement, the training waits.

The shared memory has no name, so nothing is left behind when either process is killed. If the second process
ends by itself, every method that needs it raises ChildProcessError.
"""

import io
import mmap
import multiprocessing
import os
import pickle
import signal
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..core.forked import end_with
from ..core.measurement import Measurement
from ..core.metric import Activations, LazyActivations, Metric
from ..core.threads import one_thread

ALIGNMENT = 64  # bytes at whose multiples tensors begin
GROWTH = 1.5  # factor by which the shared memory grows at least


class Measured(NamedTuple):
    """A measurement.

    Attributes:
        step: its training step.
        rows: its rows.
        arrays: arrays of the metrics by name.
        with_rows: numbers of the metrics that have rows.
    """

    step: int
    rows: list[Measurement]
    arrays: dict[str, np.ndarray]
    with_rows: set[int]


@dataclass(frozen=True)
class Work:
    """What the second process does: the steps of a measurement.

    Attributes:
        model, metrics: the network, and the metrics that measure it.
        begin: begins a measurement with a number of null draws.
        update: passes the activations of one module to the metrics.
        computed: returns the rows and arrays of the metrics at the end of a measurement, given its step.
    """

    model: nn.Module
    metrics: Sequence[Metric]
    begin: Callable[[int], None]
    update: Callable[[Activations], None]
    computed: Callable[[int], Measured]


class Place(NamedTuple):
    """A tensor in the shared memory; axes of stride 0 are stored once."""

    offset: int
    dtype: torch.dtype
    stored: tuple[int, ...]
    shape: torch.Size


@dataclass
class SharedMemory:
    """Memory that this process and those that it forks share; it grows.

    Attributes:
        file: descriptor of the memory.
        size, used: bytes that it has, and that are in use.
        data: its bytes as a tensor, in this process.
    """

    file: int = field(default_factory=lambda: os.memfd_create("activations"))
    size: int = 0
    used: int = 0
    data: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.uint8))

    def put(self, x: Tensor) -> Place:
        """Copies a tensor into the memory."""
        x = x.detach()
        base = x[tuple(slice(0, 1) if not stride else slice(None) for stride in x.stride())]
        offset = -(-self.used // ALIGNMENT) * ALIGNMENT
        self.used = offset + base.numel() * base.element_size()
        if self.used > self.size:
            self.map(max(self.used, int(GROWTH * self.size)))
        place = Place(offset, x.dtype, tuple(base.shape), x.shape)
        self._at(place).copy_(base)
        return place

    def take(self, place: Place) -> Tensor:
        """Returns a copy of a tensor in the memory."""
        return self._at(place).clone().expand(place.shape)

    def map(self, size: int) -> None:
        """Makes the memory this large, and maps it into this process."""
        if size > os.fstat(self.file).st_size:
            os.ftruncate(self.file, size)
        self.size, self.data = size, torch.frombuffer(mmap.mmap(self.file, size), dtype=torch.uint8)

    def _at(self, place: Place) -> Tensor:
        count = torch.Size(place.stored).numel() * place.dtype.itemsize
        return self.data[place.offset : place.offset + count].view(place.dtype).view(place.stored)


class _Pickler(pickle.Pickler):
    """Tensors go into the shared memory; modules are named by their number in the network."""

    def __init__(self, file: io.BytesIO, memory: SharedMemory, numbers: dict[nn.Module, int]):
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.memory, self.numbers = memory, numbers
        # places of tensors by their memory: queries and keys may be the same
        self.places: dict[tuple, Place] = {}

    def persistent_id(self, obj: Any) -> Place | int | None:
        if isinstance(obj, Tensor):
            memory = obj.data_ptr(), obj.dtype, obj.shape, obj.stride()
            if (place := self.places.get(memory)) is None:
                place = self.places[memory] = self.memory.put(obj)
            return place
        return self.numbers[obj] if isinstance(obj, nn.Module) else None

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Activations):
            return NotImplemented
        stored = vars(obj)
        makers = stored.get("_makers", {})
        columns = {one.name: stored[one.name] for one in fields(obj) if one.init and one.name not in makers}
        return _activations, (columns, makers)


def _activations(columns: dict[str, Any], makers: dict[str, Callable[[], Tensor | None]]) -> Activations:
    if not makers:
        return Activations(**columns)
    activations = LazyActivations(**columns)
    activations.postpone(**makers)
    return activations


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: SharedMemory, modules: Sequence[nn.Module]):
        super().__init__(file)
        self.memory, self.modules = memory, modules
        self.taken: dict[Place, Tensor] = {}

    def persistent_load(self, pid: Place | int) -> Tensor | nn.Module:
        if isinstance(pid, int):
            return self.modules[pid]
        if pid not in self.taken:
            self.taken[pid] = self.memory.take(pid)
        return self.taken[pid]


class Background:
    """The second process of a probe, as the training process sees it.

    Attributes:
        arrived: measurements that were not yet read, pickled, and rows about their passes. A training that
            reads them at its end does not wait for hundreds of rows at each measurement.
        open: steps of the measurements that have not arrived, and rows about their passes.
    """

    def __init__(self, work: Work):
        self.work, self.memory = work, SharedMemory()
        self.numbers = {module: number for number, module in enumerate(work.model.modules())}
        self.arrived: list[tuple[bytes, list[Measurement]]] = []
        self.open: deque[tuple[int, list[Measurement]]] = deque()
        self.free = True  # whether the shared memory may be written
        self.states: list[dict] | None = None
        self.pieces: list[bytes] = []
        context = multiprocessing.get_context("fork")
        self.connection, other = context.Pipe()
        arguments = work, other, self.connection, self.memory, os.getpid()
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        with warnings.catch_warnings():
            # Python 3.12: locks that other threads hold stay locked in the new process, which uses none
            warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
            self.process.start()
        other.close()

    def begin(self, draws: int) -> None:
        """Begins a measurement."""
        self._send("begin", draws)

    def add(self, activations: Activations) -> None:
        """Copies the activations of one module."""
        while not self.free:
            self._receive()
        file = io.BytesIO()
        _Pickler(file, self.memory, self.numbers).dump(activations)
        self.pieces.append(file.getvalue())

    def end_pass(self) -> None:
        """Hands the activations of a pass over, with the parameters of the network."""
        pieces, self.pieces = self.pieces, []
        if pieces:
            places = [self.memory.put(x) for x in _stored(self.work.model)]
            # A long message would block both processes, each of which waits until the other reads.
            text = bytearray(pickle.dumps((pieces, places)))
            place = self.memory.put(torch.frombuffer(text, dtype=torch.uint8))
            self.free, self.memory.used = False, 0
            self._send("pass", self.memory.size, place)

    def finish(self, step: int, notes: list[Measurement]) -> None:
        """Ends a measurement, to whose rows those about its passes are added. Empties the pipe, into which
        the second process could not write any more, but leaves what arrives pickled.
        """
        self.open.append((step, notes))
        self._send("finish", step)
        self.collect(wait=False)

    def collect(self, *, wait: bool) -> None:
        """Takes the messages that have arrived from the pipe; with ``wait``, until all measurements have."""
        while (wait and self.open) or self.connection.poll():
            self._receive()

    def read(self) -> list[Measured]:
        """Returns the measurements that have arrived since the last call."""
        arrived, self.arrived = self.arrived, []
        found = [(pickle.loads(content), notes) for content, notes in arrived]
        return [measured._replace(rows=measured.rows + notes) for measured, notes in found]

    def fetch_states(self) -> None:
        """Fetches what the metrics carry from one measurement to the next."""
        self.states = None
        self._send("states")
        while self.states is None:
            self._receive()
        for metric, state in zip(self.work.metrics, self.states):
            metric.load_persistent_state(state)

    def close(self) -> None:
        """Ends the second process."""
        self.connection.close()
        self.process.join()
        self.process.close()
        os.close(self.memory.file)

    def _send(self, *message: Any) -> None:
        try:
            self.connection.send(message)
        except OSError as error:
            raise self._ended() from error

    def _receive(self) -> None:
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if kind == "taken":
            self.free = True
        elif kind == "states":
            self.states = content
        elif kind == "error":
            raise ChildProcessError(f"the process that computes the metrics has failed: {content}")
        else:
            self.arrived.append((content, self.open.popleft()[1]))

    def _ended(self) -> ChildProcessError:
        """Returns the error of a process that has ended by itself, for instance for lack of memory."""
        self.process.join(1.0)
        code = self.process.exitcode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        return ChildProcessError(f"the process that computes the metrics has ended {how}")


def is_possible() -> bool:
    """Returns whether this system can fork a process that shares memory without a name: Linux, outside the
    workers of a pool, which have no children.
    """
    return hasattr(os, "memfd_create") and not multiprocessing.current_process().daemon


def _stored(model: nn.Module) -> list[Tensor]:
    """Returns parameters and buffers, in the same order in both processes."""
    return [*model.parameters(), *model.buffers()]


def _serve(
    work: Work, connection: Connection, others_end: Connection, memory: SharedMemory, parent: int
) -> None:
    """Measures what the training process sends, until that closes the connection."""
    others_end.close()  # else the end of the training process would not close the connection
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training process, which decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with(parent)
    with one_thread(), torch.no_grad():
        try:
            _measure(work, connection, memory)
        except EOFError:
            return
        except Exception as error:
            connection.send(("error", f"{type(error).__name__}: {error}"))


def _measure(work: Work, connection: Connection, memory: SharedMemory) -> None:
    """Answers messages.

    Raises:
        EOFError: the training process has closed the connection.
    """
    modules, stored = list(work.model.modules()), _stored(work.model)
    while True:
        kind, *content = connection.recv()
        if kind == "begin":
            work.begin(*content)
        elif kind == "pass":
            size, place = content
            if size > memory.size:
                memory.map(size)
            pieces, places = pickle.loads(memory.take(place).numpy().tobytes())
            found = [_Unpickler(io.BytesIO(piece), memory, modules).load() for piece in pieces]
            for x, place in zip(stored, places, strict=True):
                x.data = memory.take(place)
            connection.send(("taken", None))
            while found:
                work.update(found.pop(0))
        elif kind == "finish":
            connection.send(("measured", pickle.dumps(work.computed(*content))))
        else:
            connection.send(("states", [metric.persistent_state() for metric in work.metrics]))
