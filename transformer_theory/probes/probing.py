"""The probe: metrics that run inside the forward passes of a model."""

import contextlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, distributed, nn

from ..core.measurement import Measurement, Table
from ..core.metric import ActivationKind, Activations, Metric
from ..core.result import Result, json_line, provenance
from .forward_pass import ForwardPass, NoAttention
from .modules import first_tensor, is_shared, original_of
from .redirect import Redirect, inside_vmap


def probe(
    model: nn.Module,
    metrics: Sequence[Metric],
    *,
    layers: str = "*",
    every: int = 1,
    max_samples: int | None = None,
    name: str | None = None,
    file: str | Path | None = None,
) -> "Probe":
    """Computes metrics of a model while it runs; a context manager.

    Layers are the blocks of the network: members of an ``nn.ModuleList`` or ``nn.Sequential`` that contain attention, in the order of
    execution, whether they are modules that run or plain lists of modules. A network without such lists has one layer for each module that
    attends; one without attention has the members of its longest list of similar modules, for metrics that need no attention. A member in
    which no attention was recognised, though others of its list attend, keeps its number and gets a row that says so.

    An error in a metric, or in the probe itself, becomes a row without value whose ``reason`` is the error; the model never sees it.

    Args:
        model: any module, compiled or not; it must be called (not a copy of it) inside the block.
        metrics: see :class:`~transformer_theory.core.metric.Metric`; they are reset before each measurement.
        layers: glob over the names of modules. Activations of a module are passed on if its name, or the name of its block, matches.
        every: the first and then each ``every``-th forward pass is observed; the others cost next to nothing.
        max_samples: limit on the sequences of an observed pass, evenly spaced over the batch; all if None.
        name: the rows' column ``model``; the type's name if None.
        file: of JSON lines, to which the rows of each measurement are appended when it ends; for long trainings, whose rows would fill the
            memory.
    Returns:
        :class:`Probe`. The shapes of activations are those of :class:`~transformer_theory.core.metric.Activations`, e.g. weights
        ``[batch, heads, queries, keys]``.
    Raises:
        ValueError: ``every`` or ``max_samples`` is less than 1, or ``metrics`` are not metrics; at the first observed pass, if no name
            matches ``layers``.
        NoAttention: at the first observed pass, if it contains no attention and a metric needs it.
    """
    return Probe(model, metrics, layers=layers, every=every, max_samples=max_samples, name=name, file=file)


class Probe:
    """An open probe, see :func:`probe`. Forward passes are the calls of the model's ``method``.

    Attributes:
        labels: class of each sequence of the *next* forward pass, ``[batch]``. Set it before each pass. If it is None, the model's
            argument ``labels=`` is used if it holds one integer per sequence, as in ``transformers``.
        targets: what the outputs of the *next* forward pass are compared with, ``[batch, ...]``, for metrics of the outputs.
        rows: the measurements so far; with a file, those of the last measurement.
        shared: whether measurements are of all processes' data; True for a model that is wrapped for parallel training.
        step: the column ``step`` of the next measurement; the number of the forward pass (from 0) if None.

    Raises:
        ValueError: ``every`` or ``max_samples`` is less than 1, or ``metrics`` are not metrics.
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
    ):
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        if max_samples is not None and max_samples < 1:
            raise ValueError(f"max_samples must be at least 1 sequence, got {max_samples}; leave it out for all")
        self.model, self.metrics, self.layers, self.every, self.max_samples = model, _checked(metrics), layers, every, max_samples
        self.shared = is_shared(model)
        self.name = type(original_of(model)).__name__ if name is None else name
        self.labels: Int[Tensor, " batch"] | None = None
        self.targets: Tensor | None = None
        self._targets: Tensor | None = None
        self.step: int | None = None
        self.rows: list[Measurement] = []
        self._kinds: set[ActivationKind] = {kind for metric in self.metrics for kind in metric.kinds}
        self._passes = 0
        self._measured = 0  # number of measurements
        self._last = 0  # step of the last measurement
        self._together = self._running = False
        self._labelled = self._bilinear = False  # whether labels, and the bilinear form of any attention, have occurred
        self._with_rows: set[int] = set()  # the metrics, by number, that returned a row
        self._method = method
        self.file = None if file is None else Path(file)
        self._start = self.file.stat().st_size if self.file is not None and self.file.exists() else 0  # rows of earlier runs come before
        self._cache: dict = {}  # of arrangements of heads, which every pass would compute again
        self._failed: dict[int, Exception] = {}  # errors of metrics in this measurement, by number
        self._notes: dict[Measurement, None] = {}  # rows about the pass itself, in order, without repetitions
        self._arrays: dict[int, dict[str, np.ndarray]] = {}
        self._restore: Callable[[], None] | None = None

    def __enter__(self) -> "Probe":
        # The call is redirected on the instance, since hooks do not fire on a model that was compiled before.
        compiled = self._method == "forward" and self.model._compiled_call_impl is not None
        slot = "_compiled_call_impl" if compiled else self._method
        before, original = self.model.__dict__.get(slot), getattr(self.model, slot)
        self.model.__dict__[slot] = Redirect(self.model, self._method, self._call, original, before)

        def restore() -> None:
            if before is None:
                del self.model.__dict__[slot]
            else:
                self.model.__dict__[slot] = before

        self._restore = restore
        return self

    def __exit__(self, *_) -> None:
        if self._restore is not None:
            self._restore()
            self._restore = None

    @contextlib.contextmanager
    def together(self, step: int | None = None) -> Iterator[None]:
        """Makes one measurement at ``step`` of all forward passes inside, whatever ``every`` is: a large data set is measured in batches.

        Raises:
            ValueError: no forward pass ran inside (one of several processes may have an empty share), or the call is nested.
        """
        if self._together:
            raise ValueError("together() cannot be nested; leave the first one before")
        first = self._passes
        self._begin()
        self._together = True
        try:
            yield
        finally:
            self._together = False
        if self._passes == first and not self.shared:
            raise ValueError("together() must contain at least one forward pass of the probed model, got none; call the model inside")
        self._finish(first if step is None else step)

    def result(self) -> Result:
        """All measurements, with ``model`` and ``step``; arrays, named ``<array>@<step>`` if there are several steps.

        A metric that measured nothing gets one row without value, at the last step, whose ``reason`` lists what it may lack; metrics that
        only keep arrays get none.

        Raises:
            ValueError: no forward pass was observed.
        """
        if not self._measured:
            raise ValueError(
                f"no forward pass of {self.name} was observed; call the probed model itself inside the with block"
                " (if it is compiled, probe what torch.compile returned)"
            )
        several = len(self._arrays) > 1
        arrays = {f"{key}@{step}" if several else key: array for step, kept in self._arrays.items() for key, array in kept.items()}
        settings = {
            "model": self.name,
            "layers": self.layers,
            "every": self.every,
            "max_samples": self.max_samples,
            "forward_passes": self._passes,
            "measurements": self._measured,
        }
        return Result("probe", settings, Table([*self._stored(), *self.silent()]), arrays, (), (), provenance())

    def _stored(self) -> Iterable[Measurement]:
        """The rows of all measurements, read back from the file if there is one."""
        if self.file is None:
            return self.rows
        with self.file.open(encoding="utf-8") as file:
            file.seek(self._start)
            return [Measurement.from_json(json.loads(line)) for line in file]

    def silent(self) -> Iterator[Measurement]:
        """One row for each metric that measured nothing; its quantity is the metric's class, its reason what the metric may lack."""
        for number, metric in enumerate(self.metrics):
            if number in self._with_rows or type(metric).arrays is not Metric.arrays:
                continue
            reasons = []
            if "attention" in metric.kinds and not self._bilinear:
                reasons.append(
                    "no attention module has bilinear(), returning W [heads, dim, dim] with score(key x, query z) = x^T W z, or"
                    " projections that give its scores (rotary or relative positions do not)"
                )
            if not self._labelled:
                reasons.append("labels were not set before a forward pass")
            why = "; ".join(reasons) or "the network has nothing of the kind that this metric needs"
            name = type(metric).__name__
            yield Measurement("network", "network", name, None, reason=f"nothing measured: {why}", model=self.name, step=self._last)

    def _call(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        """Runs one forward pass of the model, observed if its turn has come."""
        if self._running:
            return original(*args, **kwargs)
        index, labels, step, self._targets = self._passes, self.labels, self.step, self.targets
        self._passes += 1
        self.labels = self.targets = self.step = None
        if not self._together and index % self.every:
            return original(*args, **kwargs)
        inputs = first_tensor(args, kwargs)
        if labels is None and inputs is not None and _per_sequence(kwargs.get("labels"), len(inputs)):
            labels = kwargs["labels"]
        if labels is not None and inputs is not None and len(labels) not in inputs.shape[:2]:  # the batch may come second
            raise ValueError(f"labels must have one entry per sequence, {len(inputs)}, got {len(labels)}; set p.labels before each pass")
        if not self._together:
            self._begin()
        step = index if step is None else step
        if inside_vmap(self.model, args, kwargs):
            self._note("forward pass", "not observed: it ran inside torch.vmap, where no number can be read; probe the model outside of it")
            output = original(*args, **kwargs)
        else:
            output = self._observed(original, args, kwargs, labels)
        if not self._together:
            self._finish(step)
        return output

    def _observed(self, original: Callable, args: tuple, kwargs: dict, labels: Tensor | None) -> Any:
        options = {"kinds": self._kinds, "cache": self._cache, "on_fault": self._fault, "targets": self._targets}
        forward = ForwardPass(self.model, self._update, self.layers, labels, self.max_samples, **options)
        self._running = True
        try:
            output = forward.run(original, args, kwargs)
        finally:
            self._running = False
        self._bilinear |= forward.emitter.has_bilinear
        try:
            forward.check(self.name)
        except NoAttention as error:
            if not self._measured:
                raise  # a wrong model or implementation is reported at once; later, the training goes on
            self._note("attention", str(error))
        for layer, name, other in forward.blocks.unseen(forward.ran) if forward.attending else ():
            self._note("attention", f"attention not seen: none was recognised in {name}, though {other} attends", layer=layer)
        for layer, name in forward.layers.without_stream:
            why = f"not found: nothing that attention was added to, so {name} has its input and output, and no stream in between"
            self._note("residual stream", why, layer=layer)
        return output

    def _fault(self, error: Exception) -> None:
        """An error of the probe itself; the rest of the pass ran unobserved."""
        self._note("forward pass", f"not observed to its end: {type(error).__name__}: {error}")

    def _note(self, quantity: str, reason: str, **columns: Any) -> None:
        self._notes[Measurement("network", "network", quantity, None, reason=reason, **columns)] = None

    def _update(self, activations: Activations) -> None:
        self._labelled |= activations.labels is not None
        for number, metric in enumerate(self.metrics):
            if activations.kind in metric.kinds and number not in self._failed:
                with self._guarded(number):
                    metric.update(activations)

    @contextlib.contextmanager
    def _guarded(self, number: int) -> Iterator[None]:
        """Ends this measurement of a metric that raises; the model goes on."""
        try:
            yield
        except Exception as error:
            self._failed[number] = error
            self._note(type(self.metrics[number]).__name__, f"{type(error).__name__}: {error}")

    def _begin(self) -> None:
        self._failed, self._notes = {}, {}
        for number, metric in enumerate(self.metrics):
            with self._guarded(number):
                metric.reset()

    def _finish(self, step: int) -> None:
        rows: list[Measurement] = []
        with torch.no_grad():
            if self.shared:
                across_processes(self.metrics)
            for number, metric in enumerate(self.metrics):
                if number in self._failed:
                    self._with_rows.add(number)
                    continue
                with self._guarded(number):
                    computed = list(metric.compute())
                    rows += computed
                    if computed:
                        self._with_rows.add(number)
                    if arrays := metric.arrays():
                        self._arrays.setdefault(int(step), {}).update(arrays)
        rows += self._notes
        self._keep([replace(row, model=row.model or self.name, step=int(step) if row.step is None else row.step) for row in rows])
        self._measured += 1
        self._last = int(step)

    def _keep(self, rows: list[Measurement]) -> None:
        if self.file is None:
            self.rows += rows
            return
        self.rows = rows
        with self.file.open("a", encoding="utf-8") as file:  # closed, and so flushed, after each measurement
            file.writelines(json_line(row) for row in rows)


def across_processes(metrics: Sequence[Metric]) -> None:
    """Gives each metric the state of the union of all processes; nothing happens without a process group or with one process.

    Every process of the default group must call it, with the same metrics in the same order. States are sums and counts, so the traffic
    does not grow with the data. They are merged in the order of the ranks, so every process gets the same union, to the last bit.

    Args:
        metrics: can be pickled, and keep their state in ordinary attributes.
    """
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    buffer = io.BytesIO()
    torch.save(list(metrics), buffer)
    states: list[bytes] = [b""] * distributed.get_world_size()
    distributed.all_gather_object(states, buffer.getvalue())
    # Each process has its own device: tensors of the others are loaded onto it.
    device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    devices = {f"cuda:{i}": device for i in range(max(torch.cuda.device_count(), 8))}
    first, *others = (torch.load(io.BytesIO(state), map_location=devices, weights_only=False) for state in states)
    for mine, union, *rest in zip(metrics, first, *others, strict=True):
        for other in rest:
            union.merge(other)
        vars(mine).clear()
        vars(mine).update(vars(union))


def _checked(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """The metrics as a tuple; ValueError if they are something else, a theory or a single metric, say."""
    entries = list(metrics) if isinstance(metrics, Iterable) else [metrics]
    wrong = [entry for entry in entries if not isinstance(entry, Metric)]
    if wrong or not isinstance(metrics, Iterable):
        name = type((wrong or entries)[0]).__name__
        raise ValueError(
            f"metrics must be a list of metrics, got {name}; pass e.g. THEORY.in_networks.metrics() or [AttentionStatistics()]"
        )
    return tuple(entries)


def _per_sequence(labels: Any, count: int) -> bool:
    """Whether these are integers, one per sequence."""
    return isinstance(labels, Tensor) and labels.shape == (count,) and not labels.is_floating_point()
