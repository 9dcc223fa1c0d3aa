"""Probes: what every theory sees inside any torch model while it runs, streamed, without storing attention maps.

    with probe(model, reducers, every=10) as p:
        for step, (x, y) in enumerate(batches):
            p.labels = y
            loss = loss_of(model(x), y)
            ...
    p.result().table

A probe watches calls of ``torch.nn.functional.scaled_dot_product_attention`` and ``torch.nn.MultiheadAttention``, and attention that is
written out as softmax(Q K^T) V, in a model that knows nothing of it. It recomputes the weights on the side where a kernel hides them and
hands them to reducers at once (not if all of them read features alone, :class:`Selective`); it takes no random numbers. Outputs, gradients
and random state are bit for bit those without a probe, with two exceptions, where torch has a second kernel for the same mathematics: an
observed forward pass of a *compiled* model runs eagerly, and ``torch.nn.TransformerEncoder`` in evaluation mode without its fused path;
both agree to rounding. Passes that are not observed run as they are.

A model wrapped for parallel training (DistributedDataParallel, FSDP, Lightning Fabric) is read on all processes at once: each reading is of
the union of their data (:func:`across_processes`), so every process must open the probe and observe the same passes.
"""

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MethodType
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from ..core.measurement import Row, check_row, not_applicable
from ..core.result import Result, provenance
from .class_features import FeatureRates, NeuralCollapse
from .forward_pass import ForwardPass, NoAttention, first_tensor
from .observation import KINDS, Observation, Pictured, Reducer, Remembering, Selective
from .processes import across_processes
from .reducers import AttentionMaps, AttentionSelection, AttentionStatistics, Geometry
from .wrappers import is_shared, original_of

__all__ = [
    "AttentionMaps",
    "AttentionSelection",
    "AttentionStatistics",
    "FeatureRates",
    "Geometry",
    "NeuralCollapse",
    "NoAttention",
    "Observation",
    "Probe",
    "Reducer",
    "Remembering",
    "Selective",
    "across_processes",
    "probe",
]


def probe(
    model: nn.Module,
    reducers: Sequence[Reducer],
    *,
    layers: str = "*",
    every: int = 1,
    most: int | None = None,
    name: str | None = None,
) -> "Probe":
    """Reads a model with reducers while it runs; a context manager.

    Layers are the blocks of the network: members of an ``nn.ModuleList`` or ``nn.Sequential`` that contain attention, in the order of
    execution. A network without such lists has one layer for each module that attends.

    Args:
        model: any module, compiled or not; it must be called (not a copy of it) inside the block.
        reducers: see :class:`Reducer`; they are reset before each reading.
        layers: glob over the names of modules: only attention and blocks whose name, or whose block's name, fits are handed on.
        every: the first and then each ``every``-th forward pass is observed; the others cost next to nothing.
        most: sequences of an observed pass that reducers see, evenly spaced over the batch; all if not given.
        name: the rows' column ``model``; the type's name if not given.
    Returns:
        :class:`Probe`; tensors that reducers see have the shapes of :class:`Observation`, e.g. weights ``[batch, heads, queries, keys]``.
    Raises:
        ValueError: ``every`` or ``most`` is less than 1, or ``reducers`` are not reducers; at the first observed pass, if no name fits
            ``layers``, or, as its kind ``NoAttention``, if no attention was seen.
    Source: none, this is machinery.
    """
    return Probe(model, reducers, layers=layers, every=every, most=most, name=name)


class Probe:
    """An open probe, see :func:`probe`. Passes are the calls of the model's ``method``.

    Attributes:
        labels: class of each sequence of the *next* forward pass, ``[batch]``. Set it before each pass; if it is None, an argument
            ``labels=`` of the model with an integer for each sequence is taken, as the models of ``transformers`` have it.
        rows: of all readings so far.
        shared: whether a reading is of all processes' data; so it is if the model is wrapped for parallel training.
        step: the column ``step`` of the next reading; the number of the forward pass (from 0) if not set.

    Raises:
        ValueError: ``every`` or ``most`` is less than 1, or ``reducers`` are not reducers.
    """

    def __init__(
        self,
        model: nn.Module,
        reducers: Sequence[Reducer],
        *,
        layers: str = "*",
        every: int = 1,
        most: int | None = None,
        name: str | None = None,
        method: str = "forward",
    ):
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        if most is not None and most < 1:
            raise ValueError(f"most must be at least 1 sequence, got {most}; leave it out to read all")
        self.model, self.reducers, self.layers, self.every, self.most = model, _checked(reducers), layers, every, most
        self._kinds = [reducer.kinds if isinstance(reducer, Selective) else KINDS for reducer in self.reducers]
        self.shared = is_shared(model)
        self.name = type(original_of(model)).__name__ if name is None else name
        self.labels: Int[Tensor, " batch"] | None = None
        self.step: int | None = None
        self._passes = 0
        self._readings = 0
        self._last = 0  # step of the last reading
        self._together = self._running = False
        self._labelled = self._bilinear = False  # whether labels, and the bilinear form of any attention, were seen
        self._spoke: set[int] = set()  # the reducers, by number, that gave a row
        self.rows: list[Row] = []
        self._method = method  # whose calls are the passes
        self._arrays: dict[int, dict[str, np.ndarray]] = {}
        self._restore: Callable[[], None] | None = None

    def __enter__(self) -> "Probe":
        # the call is redirected on the instance: hooks would not fire on a model that was compiled before
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
        """Merges all forward passes inside into one reading at ``step``, whatever ``every`` says: how a large set is read in batches.

        Raises:
            ValueError: nothing was observed inside (a process of several may have an empty share), or it is nested in itself.
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
            raise ValueError("together() must see at least one forward pass of the probed model, got none; call the model inside")
        self._finish(first if step is None else step)

    def result(self) -> Result:
        """All readings: rows with ``model`` and ``step``; arrays, named ``<array>@<step>`` if there are several readings.

        A reducer without a row in any reading gets one that says why, "not applicable: ... read nothing ...", at the step of the last
        reading (not if it draws pictures).

        Raises:
            ValueError: no forward pass was observed.
        """
        if not self._readings:
            raise ValueError(
                f"no forward pass of {self.name} was observed; call the probed model itself inside the with block"
                " (if it is compiled, probe what torch.compile returned)"
            )
        several = len(self._arrays) > 1
        arrays = {f"{key}@{step}" if several else key: array for step, found in self._arrays.items() for key, array in found.items()}
        params = {
            "model": self.name,
            "layers": self.layers,
            "every": self.every,
            "most": self.most,
            "forward_passes": self._passes,
            "readings": self._readings,
        }
        return Result("probe", params, [*self.rows, *self.silent()], arrays, (), provenance())

    def silent(self) -> Iterator[Row]:
        """A row for each reducer that read nothing in any reading (those that draw pictures left out): what it may lack."""
        for number, (reducer, kinds) in enumerate(zip(self.reducers, self._kinds)):
            if number in self._spoke or isinstance(reducer, Pictured):
                continue
            reasons = []
            if "attention" in kinds and not self._bilinear:
                reasons.append(
                    "no attention module offers bilinear(), returning W [heads, dim, dim] with score(key x, query z) = x^T W z, or has"
                    " projections that give its scores (rotary or relative positions do not)"
                )
            if not self._labelled:
                reasons.append("labels were not set before a forward pass")
            why = "; ".join(reasons) or "the network has nothing of the kind that it reads"
            row = not_applicable("network", nothing := f"{type(reducer).__name__} read nothing")
            yield Row(**{**row, "model": self.name, "step": self._last, "note": f"{nothing}; what it may lack: {why}"})

    def _call(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        """A forward pass of the model: observed if it is its turn."""
        if self._running:
            return original(*args, **kwargs)
        index, labels, step = self._passes, self.labels, self.step
        self._passes += 1
        self.labels = self.step = None
        if not self._together and index % self.every:
            return original(*args, **kwargs)
        inputs = first_tensor(args, kwargs)
        if labels is None and inputs is not None and _one_each(given := kwargs.get("labels"), len(inputs)):
            labels = given
        if labels is not None and inputs is not None and len(labels) != len(inputs):
            raise ValueError(f"labels must have one entry a sequence, {len(inputs)}, got {len(labels)}; set p.labels before each pass")
        if not self._together:
            self._begin()
        attention = any("attention" in kinds for kinds in self._kinds)
        forward = ForwardPass(self.model, self._update, self.layers, labels, self.most, attention=attention)
        self._running = True
        try:
            output = forward.run(original, args, kwargs)
        finally:
            self._running = False
        forward.check(self.name)
        if not self._together:
            self._finish(index if step is None else step)
        return output

    def _update(self, seen: Observation, labels: Tensor | None) -> None:
        self._labelled |= labels is not None
        self._bilinear |= seen.bilinear is not None
        for reducer, kinds in zip(self.reducers, self._kinds):
            if seen.kind in kinds:
                reducer.update(seen, labels)

    def _begin(self) -> None:
        for reducer in self.reducers:
            reducer.reset()

    def _finish(self, step: int) -> None:
        with torch.no_grad():
            if self.shared:
                across_processes(self.reducers)
            for number, reducer in enumerate(self.reducers):
                rows = [check_row(Row(**{"model": self.name, "step": int(step), **row})) for row in reducer.compute()]
                self.rows.extend(rows)
                if rows:
                    self._spoke.add(number)
                if isinstance(reducer, Pictured) and (found := reducer.arrays()):
                    self._arrays.setdefault(int(step), {}).update(found)
        self._readings += 1
        self._last = int(step)


def _checked(reducers: Sequence[Reducer]) -> tuple[Reducer, ...]:
    """The reducers; ValueError if they are something else, a theory or a single reducer, say."""
    given = list(reducers) if isinstance(reducers, Iterable) else [reducers]
    wrong = [one for one in given if not isinstance(one, Reducer) or isinstance(one, type)]
    if wrong or not isinstance(reducers, Iterable):
        came = type((wrong or given)[0]).__name__
        raise ValueError(f"reducers must be a list of reducers, got {came}; pass e.g. THEORY.reducers() or [AttentionStatistics()]")
    return tuple(given)


def _one_each(labels: Any, count: int) -> bool:
    """Whether these are integers, one a sequence."""
    return isinstance(labels, Tensor) and labels.shape == (count,) and not labels.is_floating_point()


class _Redirect:
    """Stands in for the probed model's forward; a deep copy of the model (a running average, say) gets its own forward back."""

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
