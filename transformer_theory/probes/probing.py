"""The probe: computes metrics during the forward passes of a model."""

import contextlib
import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, distributed, nn

from ..core.measurement import COLUMNS, Measurement
from ..core.metric import ActivationKind, Activations, Metric
from ..core.reading import parse_json
from ..core.result import Result, provenance
from ..core.statistics import BAND_DRAWS
from ..core.table import Table
from ..core.typed import restored
from ..core.validation import as_labels, as_tensor, integers
from .background import Background, Measured, Work, is_possible
from .forward_pass import ForwardPass, NoAttention
from .modules import check_stored, first_tensor, is_shared, original_of
from .redirect import Redirect, inside_vmap
from .stored_state import State, arrays_of, check_file, restore_metrics, rows_of, tensors_of, text_of

T = TypeVar("T")
COUNTS = ("_passes", "_measured", "_last", "_labelled", "_bilinear")  # attributes in the state of a probe


def probe(
    model: nn.Module,
    metrics: Sequence[Metric],
    *,
    layers: str = "*",
    every: int = 1,
    max_samples: int | None = None,
    name: str | None = None,
    file: str | Path | None = None,
    draws: int | None = None,
    special_ids: Collection[int] | None = None,
    grid: tuple[int, int] | None = None,
    background: bool = False,
) -> "Probe":
    """Creates a context manager that computes metrics of a model while it runs.

    Layers are the blocks of the network, numbered in the order of execution: the members of an
    ``nn.ModuleList`` or ``nn.Sequential`` that contain attention, whether they are modules that run or plain
    lists of modules. If the network has no such list, each module that computes attention is a layer. If it
    has no attention, the layers are the members of its longest list of similar modules, which metrics without
    attention can measure. If attention is recognised in some members of a list but not in another, the other
    member keeps its number, and a row of the result reports it.

    An error in a metric or in the probe itself becomes a row without value whose ``reason`` is the error; the
    model never sees it. An error of one layer costs the rows of that layer, where possible.

    Args:
        model: any module, compiled or not. The ``with`` block must call the model itself, not a copy.
        metrics: metrics to compute, see :class:`~transformer_theory.core.metric.Metric`; they are reset
            before each measurement.
        layers: glob over names of modules. Metrics receive the activations of a module if its name or the
            name of its block matches.
        every: interval between observed forward passes; the first pass is observed. Other passes have almost
            no overhead.
        max_samples: largest number of sequences of an observed pass, evenly spaced over the batch. None: all
            sequences.
        name: value of the column ``model``. None: the name of the model's type.
        file: file of JSON lines. The rows of each measurement are appended to it and then removed from
            memory, for long trainings.
        draws: number of null draws per measurement, see :meth:`.Metric.compute`; 0: no nulls. None: 9 if
            every pass is measured, otherwise 0, because nulls would cost more than the measurements; take
            them at a few checkpoints.
        special_ids: ids of tokens without contents, such as separators. None: those that the ``config`` of
            the model names.
        grid: rows and columns of the patches, for networks whose inputs are tokens that were cut from images.
            None: the grid is that of the network's own patch embedding, if its inputs are images.
        background: whether the metrics are computed in a second process, from copies, while the model goes
            on (:mod:`.background`). Rows then arrive later, all of them before the end of the ``with`` block
            or :meth:`.Probe.result`. It needs Linux, a free core, and a model that is not shared by several
            processes; parameters on an accelerator are copied to the CPU.
    Returns:
        The probe. The shapes of activations are listed in
        :class:`~transformer_theory.core.metric.Activations`.
    Raises:
        ValueError: ``every`` or ``max_samples`` is less than 1, ``draws`` is negative, ``metrics`` are not
            metrics, or a second process is impossible here. At the first observed pass: no name matches
            ``layers``.
        NoAttention: the first observed pass contains no attention, and a metric needs it.
    """
    options: dict[str, Any] = {"special_ids": special_ids, "grid": grid, "background": background}
    return Probe(
        model,
        metrics,
        layers=layers,
        every=every,
        max_samples=max_samples,
        name=name,
        file=file,
        draws=draws,
        **options,
    )


class Probe:
    """A context manager that observes forward passes, see :func:`probe`. A forward pass is a call of the
    model's ``method``.

    Attributes:
        labels: class of each sequence of the *next* forward pass, ``[batch]``: integers, booleans (two
            classes) or words, as a tensor, array or list. A negative integer, such as -100, means that the
            sequence has no label: what needs labels leaves it out. Set it before each pass. None: the
            argument ``labels=`` of the model is used if it is one integer per sequence, as in
            ``transformers``.
        targets: targets of the outputs of the *next* forward pass, ``[batch, ...]``, for metrics of the
            outputs.
        shared: whether a measurement covers the data of all processes; True for a model that is wrapped for
            parallel training.
        step: value of the column ``step`` of the next measurement. None: the index of the forward pass, from
            0.
        draws: number of null draws of the next measurement.

    Raises:
        ValueError: ``every`` or ``max_samples`` is less than 1, ``draws`` is negative, or ``metrics`` are not
            metrics.
    """

    def __init__(
        self,
        model: nn.Module,
        metrics: Sequence[Metric],
        *,
        layers: str = "*",
        every: int = 1,
        max_samples: int | None = None,
        name: str | None = None,
        method: str = "forward",
        file: str | Path | None = None,
        draws: int | None = None,
        special_ids: Collection[int] | None = None,
        grid: tuple[int, int] | None = None,
        background: bool = False,
    ):
        if grid is not None:
            integers(rows=grid[0], columns=grid[1])
        self.special_ids, self.grid = special_ids, grid
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        if max_samples is not None and max_samples < 1:
            raise ValueError(
                f"max_samples must be at least 1 sequence, got {max_samples}; leave it out for all"
            )
        if draws is not None and draws < 0:
            raise ValueError(f"draws must be at least 0, got {draws}")
        self.draws = (BAND_DRAWS if every == 1 else 0) if draws is None else draws
        self.model, self.metrics, self.layers, self.every, self.max_samples = (
            model,
            _checked(metrics),
            layers,
            every,
            max_samples,
        )
        self.shared = is_shared(model)
        self.background = background
        if background and (self.shared or not is_possible()):
            why = "the model is shared by several processes" if self.shared else "it needs Linux"
            raise ValueError(f"background=True is not possible here: {why}; leave it out")
        self._background: Background | None = None  # the second process while it runs
        self.name = type(original_of(model)).__name__ if name is None else name
        self.labels: Int[Tensor, " batch"] | np.ndarray | Sequence | None = None
        self._words: dict[str, int] = {}  # numbers of labels that are words
        self.targets: Tensor | np.ndarray | None = None
        self._targets: Tensor | None = None
        self.step: int | None = None
        self._rows: list[Measurement] = []
        self._kinds: set[ActivationKind] = {kind for metric in self.metrics for kind in metric.kinds}
        self._passes = 0
        self._measured = 0  # number of measurements
        self._last = 0  # step of the last measurement
        self._accumulating = self._running = False
        self._labelled = self._bilinear = False  # whether any pass had labels, and any attention a W
        self._without_bilinear: dict[str, None] = {}  # reasons why attentions have no W
        self._with_rows: set[int] = set()  # indices of the metrics that have returned a row
        self._method = method
        self.file = None if file is None else Path(file)
        # Position in the file at which the rows of this probe begin; rows of earlier runs come before it.
        self._start = self.file.stat().st_size if self.file is not None and self.file.exists() else 0
        # Position at which they end; what follows is of a training that ended after its last checkpoint.
        self._end: int | None = None
        self._cache: dict = {}  # arrangements of heads, which are the same in every pass
        # metrics that failed in this measurement: index of the metric, and layer; None: at all layers
        self._failed: set[tuple[int, int | None]] = set()
        # rows about the pass itself; a dictionary keeps the order and removes duplicates
        self._notes: dict[Measurement, None] = {}
        self._arrays: dict[int, dict[str, np.ndarray]] = {}
        # the open redirect; in a copy of an open probe, which is not open, the copied method of the model
        self._redirect: Redirect | Callable | None = None

    def __enter__(self) -> "Probe":
        """Opens the probe.

        Raises:
            ValueError: the probe is open already, or another thread is measuring the model.
        """
        if isinstance(self._redirect, Redirect):
            raise ValueError(
                "the probe is open already; leave its with block before it is entered again, or create "
                "another probe"
            )
        self._redirect = Redirect(self.model, self._method, self._call)
        return self

    def __exit__(self, *_) -> None:
        """Closes the probe, before or after other probes of the model; does nothing if it is not open. Waits
        for the measurements of a second process, and ends it.
        """
        self.release()
        try:
            self._receive(wait=True)
            self._ask(Background.fetch_states)
        finally:
            if self._background is not None:
                self._background.close()
                self._background = None

    @property
    def rows(self) -> list[Measurement]:
        """All rows so far; with a file, the rows of the last measurement. With a second process, those that
        have arrived.
        """
        self._receive(wait=False)
        return self._rows

    def release(self) -> None:
        """Observes no further pass; a second process goes on."""
        if isinstance(self._redirect, Redirect):
            self._redirect.close()
        self._redirect = None

    def state_dict(self) -> State:
        """Returns the state for a checkpoint, texts and tensors by name: the rows, the arrays, the number of
        passes, and what metrics keep from one measurement to the next. With a file, the rows stay in it, and
        the state has their place.

        Raises:
            ValueError: a measurement is not complete, inside :meth:`accumulate`.
        """
        if self._accumulating:
            raise ValueError("state_dict() must be called outside accumulate(), after its measurement")
        self._receive(wait=True)
        self._ask(Background.fetch_states)
        file = None
        if self.file is not None:
            size = self.file.stat().st_size if self.file.exists() else 0
            file = [self._start, size if self._end is None else self._end]
        counts = {name: getattr(self, name) for name in COUNTS}
        metrics = [type(metric).__name__ for metric in self.metrics]
        about = {"name": self.name, "counts": counts, "metrics": metrics, "file": file}
        about["with_rows"] = sorted(self._with_rows)
        rows = text_of(self.rows) if self.file is None else ""
        return {"probe": json.dumps(about), "rows": rows, **tensors_of(self._arrays, self.metrics)}

    def load_state_dict(self, state: State) -> None:
        """Continues from a :meth:`state_dict`, in place of all that this probe has measured. Rows that were
        added to the file after the state was taken are removed when the next ones are written, because the
        resumed training measures those steps again.

        Raises:
            ValueError: the state belongs to other metrics or to another kind of storage, the file does not
                hold its rows or holds those of another run after them, or a measurement is not complete.
        """
        if self._accumulating:
            raise ValueError("load_state_dict() must be called outside accumulate()")
        about = parse_json(state["probe"])
        names = [type(metric).__name__ for metric in self.metrics]
        if about["metrics"] != names:
            raise ValueError(
                f"the state belongs to the metrics {', '.join(about['metrics'])}, got {', '.join(names)}; "
                "pass the same metrics"
            )
        if (about["file"] is None) != (self.file is None):
            kept, now = ("memory", "a file") if about["file"] is None else ("a file", "memory")
            raise ValueError(
                f"the state belongs to a probe with its rows in {kept}, got one with its rows in {now}; use "
                "the same argument file"
            )
        if self.file is not None:
            check_file(self.file, about["file"][1], about["counts"]["_last"])
            self._start, self._end = about["file"]
        restore_metrics(self.metrics, state)
        vars(self).update(about["counts"])
        self._rows, self._arrays = rows_of(state["rows"]), arrays_of(state)
        self._with_rows = set(about["with_rows"])

    @contextlib.contextmanager
    def accumulate(self, step: int | None = None, *, compute: bool = True) -> Iterator[None]:
        """Combines all forward passes in a ``with`` block into one measurement, regardless of ``every``, to
        measure data in batches.

        Args:
            step: value of the column ``step``. None: the index of the first forward pass in the block.
            compute: whether the metrics compute their rows at the end. False: only their states are wanted.
        Raises:
            ValueError: no forward pass ran in the block and the model is not shared by several processes, or
                the call is nested.
        """
        if self._accumulating:
            raise ValueError("accumulate() cannot be nested; leave the first one before")
        if self.background and not compute:
            raise ValueError("compute must be True with background=True, got False; the states are elsewhere")
        first = self._passes
        self._open()
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False
        if self._passes == first and not self.shared:
            raise ValueError(
                "accumulate() must contain at least one forward pass of the probed model, got none; call the "
                "model inside"
            )
        if compute:
            self._finish(first if step is None else step)

    together = accumulate  # the former name, for one release

    def result(self) -> Result:
        """Returns all measurements, with the columns ``model`` and ``step``, and all arrays.

        If there are several steps, arrays are named ``<array>@<step>``. For a metric that measured nothing
        there is one row without value, at the last step, whose ``reason`` lists possible causes. A metric
        that returns arrays gets no such row.

        Raises:
            ValueError: no forward pass was observed.
        """
        if not self._measured:
            raise ValueError(
                f"no forward pass of {self.name} was observed; call the probed model itself inside the with "
                "block (if it is compiled, probe what torch.compile returned)"
            )
        self._receive(wait=True)
        several = len(self._arrays) > 1
        arrays = {
            f"{key}@{step}" if several else key: x
            for step, stored in self._arrays.items()
            for key, x in stored.items()
        }
        settings = {
            "model": self.name,
            "layers": self.layers,
            "every": self.every,
            "max_samples": self.max_samples,
            "forward_passes": self._passes,
            "measurements": self._measured,
        }
        return Result(
            "probe", settings, Table([*self._stored(), *self.unmeasured()]), arrays, (), (), provenance()
        )

    def _stored(self) -> Iterable[Measurement]:
        """Returns the rows of all measurements. With a file, they are read from it."""
        if self.file is None:
            return self.rows
        with self.file.open("rb") as file:
            file.seek(self._start)
            return rows_of(file.read(-1 if self._end is None else self._end - self._start).decode())

    def unmeasured(self) -> Iterator[Measurement]:
        """Yields a row for each metric that measured nothing: the quantity is the metric's class, the reason
        lists possible causes.
        """
        for index, metric in enumerate(self.metrics):
            if index in self._with_rows or type(metric).arrays is not Metric.arrays:
                continue
            reasons = []
            if "attention" in metric.kinds and not self._bilinear:
                why = "; ".join(self._without_bilinear) or "no attention matched"
                reasons.append(
                    f"no attention module has W: {why}; if you know it, define bilinear(), returning W "
                    "[heads, dim, dim] with score(key x, query z) = x^T W z"
                )
            if not self._labelled:
                reasons.append("labels were not set before a forward pass")
            why = "; ".join(reasons) or "the network has no activations of the kind that this metric needs"
            name = type(metric).__name__
            yield Measurement(
                "network",
                "network",
                name,
                None,
                reason=f"nothing measured: {why}",
                model=self.name,
                step=self._last,
            )

    def _call(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        """Runs one forward pass of the model, and observes it if a measurement is due."""
        if self._running:  # the model calls itself
            return original(*args, **kwargs)
        index, labels, step, targets = self._passes, self.labels, self.step, self.targets
        self._passes += 1
        self.labels = self.targets = self.step = None
        if not self._accumulating and index % self.every:
            return original(*args, **kwargs)
        self._targets = None if targets is None else as_tensor("targets", targets)
        check_stored(self.model, self.name)
        inputs = first_tensor(args, kwargs)
        if labels is None and inputs is not None and _per_sequence(kwargs.get("labels"), len(inputs)):
            labels = kwargs["labels"]
        labels = None if labels is None else as_labels("labels", labels, words=self._words)
        if self._words and self.shared:
            raise ValueError(
                "labels must be integers if several processes train, which would number words differently, "
                f"got words such as {next(iter(self._words))!r}; number them"
            )
        # [batch, seq] or [seq, batch]
        if labels is not None and inputs is not None and len(labels) not in inputs.shape[:2]:
            raise ValueError(
                f"labels must have one entry per sequence, {len(inputs)}, got {len(labels)}; set p.labels "
                "before each pass"
            )
        if labels is not None and not bool((labels >= 0).any()):
            labels = None
        if not self._accumulating:
            self._open()
        step = index if step is None else step
        if inside_vmap(self.model, args, kwargs):
            self._note(
                "forward pass",
                "not observed: it ran inside torch.vmap, where values cannot be read; probe the model "
                "outside vmap",
            )
            output = original(*args, **kwargs)
        else:
            output = self._observed(original, args, kwargs, labels)
        if not self._accumulating:
            self._finish(step)
        return output

    def _observed(self, original: Callable, args: tuple, kwargs: dict, labels: Tensor | None) -> Any:
        options = {
            "kinds": self._kinds,
            "cache": self._cache,
            "on_fault": self._fault,
            "targets": self._targets,
            "special_ids": self.special_ids,
            "grid": self.grid,
        }
        forward = ForwardPass(self.model, self._emit, self.layers, labels, self.max_samples, **options)
        self._running = True
        try:
            output = forward.run(original, args, kwargs)
        finally:
            self._running = False
            self._ask(Background.end_pass)
        self._bilinear |= forward.emitter.has_bilinear
        self._without_bilinear |= forward.emitter.without_bilinear
        try:
            forward.check(self.name)
        except NoAttention as error:
            if not self._measured:
                # before the first measurement: the model or its implementation is wrong; later, training must
                # not be interrupted
                raise
            self._note("attention", str(error))
        for layer, name, other in forward.blocks.unseen(forward.ran) if forward.attending else ():
            self._note(
                "attention",
                f"attention not recognised in {name}, although it was recognised in {other}",
                layer=layer,
            )
        for (layer, name), reason in forward.refused.items():
            self._note("attention", f"{name} is not measured: {reason}", layer=layer)
        for reason in forward.notes:
            self._note("tokens", reason)
        for layer, reason in forward.layers.notes:
            self._note("residual stream", reason, layer=layer)
        for layer, name in forward.layers.without_stream:
            reason = (
                f"no residual addition found in {name}; its features are its input and output, without the "
                "stream after attention"
            )
            self._note("residual stream", reason, layer=layer)
        forward.release()
        return output

    def _fault(self, error: Exception, layer: int | None = None, name: str = "") -> None:
        """Reports an error of the probe itself. Without a layer, the rest of the pass runs unobserved;
        otherwise the error concerns this layer alone.
        """
        what = "not observed to its end" if layer is None else f"{name} is not measured"
        self._note("forward pass", f"{what}: {type(error).__name__}: {error}", layer=layer)

    def _note(self, quantity: str, reason: str, **columns: Any) -> None:
        """Adds a row without value to the measurement."""
        self._notes[Measurement("network", "network", quantity, None, reason=reason, **columns)] = None

    def _emit(self, activations: Activations) -> None:
        self._labelled |= activations.labels is not None
        if self.background:
            self._ask(Background.add, activations)
        else:
            self._update(activations)

    def _update(self, activations: Activations) -> None:
        """Passes the activations of one module to the metrics."""
        for index, metric in enumerate(self.metrics):
            layer = None if activations.kind == "outputs" else activations.layer
            if activations.kind in metric.kinds and not self._failed & {(index, layer), (index, None)}:
                with self._guarded(index, layer):
                    for part in (activations,) if metric.takes_padding else activations.by_length():
                        metric.update(part)

    @contextlib.contextmanager
    def _guarded(self, index: int, layer: int | None = None) -> Iterator[None]:
        """Catches an error of a metric, reports it in a row, and excludes this layer of the metric from the
        rest of the measurement; without a layer, the whole metric.
        """
        try:
            yield
        except Exception as error:
            self._failed.add((index, layer))
            reason = f"{type(error).__name__}: {error}"
            self._note(type(self.metrics[index]).__name__, reason, layer=layer)

    def _open(self) -> None:
        """Begins a measurement, here or in the second process."""
        if not self.background:
            self._begin(self.draws)
            return
        self._ask(Background.begin, self.draws)
        if self._background is None:
            work = Work(self.model, self.metrics, self._begin, self._update, self._computed)
            self._background = Background(work)
            self._background.begin(self.draws)
        self._notes = {}  # of this measurement, which has a process

    def _ask(self, method: Callable[..., T], *arguments: Any, **options: Any) -> T | None:
        """Calls a method of the second process, if there is one. If that has ended, the measurements that
        have not arrived are lost, and rows say so; the next measurement begins another process.
        """
        background = self._background
        if background is None:
            return None
        try:
            return method(background, *arguments, **options)
        except ChildProcessError as error:
            self._background = None
            background.close()
            self._take_all(background)
            for step, notes in background.open:
                self._take(Measured(step, [*notes, _lost(error)], {}, set()))
            self._notes[_lost(error)] = None
            return None

    def _begin(self, draws: int) -> None:
        """Begins a measurement with this number of null draws."""
        self._failed, self._notes, self.draws = set(), {}, draws
        for index, metric in enumerate(self.metrics):
            with self._guarded(index):
                metric.draws = draws
                metric.reset()

    def _computed(self, step: int) -> Measured:
        """Returns the rows and arrays of the metrics at the end of a measurement."""
        rows: list[Measurement] = []
        arrays, with_rows = {}, set()
        with torch.no_grad():
            if self.shared:
                across_processes(self.metrics)
            for index, metric in enumerate(self.metrics):
                failed = {layer for number, layer in self._failed if number == index}
                if failed:
                    with_rows.add(index)  # the rows that report the errors
                if None in failed:
                    continue
                with self._guarded(index):
                    found = [row for row in metric.compute(draws=self.draws) if row.layer not in failed]
                    rows += found
                    if found:
                        with_rows.add(index)
                    arrays.update(metric.arrays())
        return Measured(step, [*rows, *self._notes], arrays, with_rows)

    def _finish(self, step: int) -> None:
        self._measured += 1
        self._last = int(step)
        if not self.background:
            self._take(self._computed(int(step)))
        elif self._background is None:  # it has ended during this measurement
            self._take(Measured(int(step), list(self._notes), {}, set()))
        else:
            self._ask(Background.finish, int(step), list(self._notes))
            if self.file is not None:
                self._receive(wait=False)

    def _receive(self, *, wait: bool) -> None:
        """Takes the measurements of the second process that have arrived or, with ``wait``, all of them."""
        self._ask(Background.collect, wait=wait)
        if self._background is not None:
            self._take_all(self._background)

    def _take_all(self, background: Background) -> None:
        for measured in background.read():
            self._take(measured)

    def _take(self, measured: Measured) -> None:
        """Keeps the rows and arrays of a measurement."""
        self._with_rows |= measured.with_rows
        if measured.arrays:
            self._arrays.setdefault(measured.step, {}).update(measured.arrays)
        self._keep([_placed(row, self.name, measured.step) for row in measured.rows])

    def _keep(self, rows: list[Measurement]) -> None:
        if self.file is None:
            self._rows += rows
            return
        self._rows = rows
        # closing the file after each measurement writes its rows to disk
        with self.file.open("a", encoding="utf-8") as file:
            if self._end is not None:
                file.truncate(self._end)
                self._end = None
            file.write(text_of(rows))


def across_processes(metrics: Sequence[Metric]) -> None:
    """Replaces the state of each metric by the merged states of all processes. Does nothing without a process
    group of two or more.

    Every process of the default group must call this function, with the same metrics in the same order.
    States are sums and counts, so the traffic does not grow with the data. They are merged in the order of
    the ranks, so all processes obtain the same state to the last bit.

    Args:
        metrics: metrics that can be pickled and that store their state in ordinary attributes.
    """
    if (
        not distributed.is_available()
        or not distributed.is_initialized()
        or distributed.get_world_size() == 1
    ):
        return
    buffer = io.BytesIO()
    torch.save(list(metrics), buffer)
    states: list[bytes] = [b""] * distributed.get_world_size()
    distributed.all_gather_object(states, buffer.getvalue())
    # Every process may use a different GPU: load the tensors of all processes onto the device of this one.
    device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    devices = {f"cuda:{i}": device for i in range(max(torch.cuda.device_count(), 8))}
    first, *others = (
        torch.load(io.BytesIO(state), map_location=devices, weights_only=False) for state in states
    )
    for metric, union, *rest in zip(metrics, first, *others, strict=True):
        for other in rest:
            union.merge(other)
        vars(metric).clear()
        vars(metric).update(vars(union))


def _checked(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """Returns the metrics as a tuple.

    Raises:
        ValueError: ``metrics`` is not a list of metrics, but for example a theory or a single metric.
    """
    entries = list(metrics) if isinstance(metrics, Iterable) else [metrics]
    wrong = [entry for entry in entries if not isinstance(entry, Metric)]
    if wrong or not isinstance(metrics, Iterable):
        name = type((wrong or entries)[0]).__name__
        raise ValueError(
            f"metrics must be a list of metrics, got {name}; pass e.g. THEORY.in_networks.metrics() or "
            "[AttentionStatistics()]"
        )
    return tuple(entries)


def _per_sequence(labels: Any, count: int) -> bool:
    """Whether these labels are a tensor of ``count`` integers."""
    return isinstance(labels, Tensor) and labels.shape == (count,) and not labels.is_floating_point()


def _lost(error: ChildProcessError) -> Measurement:
    """Returns the row of a measurement that was lost with the second process."""
    return Measurement("network", "network", "forward pass", None, reason=f"not measured: {error}")


def _placed(row: Measurement, model: str, step: int) -> Measurement:
    """Returns a row with the name of its network and the training step, where it has none of its own.

    Nothing is validated again: a measurement has hundreds of rows, and this takes a fraction of the time of
    :func:`dataclasses.replace`.
    """
    columns = {name: getattr(row, name) for name in COLUMNS}
    columns |= {"model": row.model or model, "step": step if row.step is None else row.step}
    return restored(Measurement, columns.values())
