"""The probe: metrics that run inside the forward passes of a model."""

import contextlib
import copy
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, distributed, nn

from ..core.measurement import Measurement, Table
from ..core.metric import ActivationKind, Activations, Metric
from ..core.result import Result, provenance
from .forward_pass import ForwardPass, first_tensor, is_shared, original_of


def probe(
    model: nn.Module,
    metrics: Sequence[Metric],
    *,
    layers: str = "*",
    every: int = 1,
    max_samples: int | None = None,
    name: str | None = None,
) -> "Probe":
    """Computes metrics of a model while it runs; a context manager.

    Layers are the blocks of the network: members of an ``nn.ModuleList`` or ``nn.Sequential`` that contain attention, in the order of
    execution. A network without such lists has one layer for each module that attends.

    Args:
        model: any module, compiled or not; it must be called (not a copy of it) inside the block.
        metrics: see :class:`~transformer_theory.core.metric.Metric`; they are reset before each measurement.
        layers: glob over the names of modules. Activations of a module are passed on if its name, or the name of its block, matches.
        every: the first and then each ``every``-th forward pass is observed; the others cost next to nothing.
        max_samples: limit on the sequences of an observed pass, evenly spaced over the batch; all if None.
        name: the rows' column ``model``; the type's name if None.
    Returns:
        :class:`Probe`. The shapes of activations are those of :class:`~transformer_theory.core.metric.Activations`, e.g. weights
        ``[batch, heads, queries, keys]``.
    Raises:
        ValueError: ``every`` or ``max_samples`` is less than 1, or ``metrics`` are not metrics; at the first observed pass, if no name
            matches ``layers``.
        NoAttention: at the first observed pass, if it contains no attention.
    """
    return Probe(model, metrics, layers=layers, every=every, max_samples=max_samples, name=name)


class Probe:
    """An open probe, see :func:`probe`. Forward passes are the calls of the model's ``method``.

    Attributes:
        labels: class of each sequence of the *next* forward pass, ``[batch]``. Set it before each pass. If it is None, the model's
            argument ``labels=`` is used if it holds one integer per sequence, as in ``transformers``.
        rows: the measurements so far.
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
    ):
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        if max_samples is not None and max_samples < 1:
            raise ValueError(f"max_samples must be at least 1 sequence, got {max_samples}; leave it out for all")
        self.model, self.metrics, self.layers, self.every, self.max_samples = model, _checked(metrics), layers, every, max_samples
        self.shared = is_shared(model)
        self.name = type(original_of(model)).__name__ if name is None else name
        self.labels: Int[Tensor, " batch"] | None = None
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
        self._arrays: dict[int, dict[str, np.ndarray]] = {}
        self._restore: Callable[[], None] | None = None

    def __enter__(self) -> "Probe":
        # The call is redirected on the instance, since hooks do not fire on a model that was compiled before.
        compiled = self._method == "forward" and self.model._compiled_call_impl is not None
        slot = "_compiled_call_impl" if compiled else self._method
        before, original = self.model.__dict__.get(slot), getattr(self.model, slot)
        self.model.__dict__[slot] = _Redirect(self, original, before)

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
        return Result("probe", settings, Table([*self.rows, *self.silent()]), arrays, (), (), provenance())

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
        index, labels, step = self._passes, self.labels, self.step
        self._passes += 1
        self.labels = self.step = None
        if not self._together and index % self.every:
            return original(*args, **kwargs)
        inputs = first_tensor(args, kwargs)
        if labels is None and inputs is not None and _per_sequence(kwargs.get("labels"), len(inputs)):
            labels = kwargs["labels"]
        if labels is not None and inputs is not None and len(labels) != len(inputs):
            raise ValueError(f"labels must have one entry per sequence, {len(inputs)}, got {len(labels)}; set p.labels before each pass")
        if not self._together:
            self._begin()
        forward = ForwardPass(self.model, self._update, self.layers, labels, self.max_samples, kinds=self._kinds)
        self._running = True
        try:
            output = forward.run(original, args, kwargs)
        finally:
            self._running = False
        forward.check(self.name)
        if not self._together:
            self._finish(index if step is None else step)
        return output

    def _update(self, activations: Activations) -> None:
        self._labelled |= activations.labels is not None
        self._bilinear |= activations.bilinear is not None
        for metric in self.metrics:
            if activations.kind in metric.kinds:
                metric.update(activations)

    def _begin(self) -> None:
        for metric in self.metrics:
            metric.reset()

    def _finish(self, step: int) -> None:
        with torch.no_grad():
            if self.shared:
                across_processes(self.metrics)
            for number, metric in enumerate(self.metrics):
                rows = [
                    replace(row, model=row.model or self.name, step=int(step) if row.step is None else row.step) for row in metric.compute()
                ]
                self.rows.extend(rows)
                if rows:
                    self._with_rows.add(number)
                if arrays := metric.arrays():
                    self._arrays.setdefault(int(step), {}).update(arrays)
        self._measured += 1
        self._last = int(step)


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


class _Redirect:
    """Replaces the forward of the probed model; a deep copy of the model (a running average, say) gets its original forward."""

    def __init__(self, owner: Probe, original: Callable, before: Callable | None):
        self.owner, self.original, self.before = owner, original, before

    def __call__(self, *args, **kwargs):
        return self.owner._call(self.original, args, kwargs)

    @property
    def __wrapped__(self) -> Callable:  # what inspect, and Lightning, ask
        return self.original

    def __deepcopy__(self, memo: dict) -> Callable:
        model = self.owner.model
        return (
            MethodType(getattr(type(model), self.owner._method), memo[id(model)])
            if self.before is None
            else copy.deepcopy(self.before, memo)
        )
