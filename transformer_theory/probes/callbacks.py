"""Callbacks that measure a model in the Trainer of Lightning or ``transformers``.

    trainer = pytorch_lightning.Trainer(callbacks=[lightning_callback(THEORY.in_networks.metrics(),
        every=100)])
    trainer = transformers.Trainer(..., callbacks=[trainer_callback(THEORY.in_networks.metrics(), every=100)])

Every ``every`` optimiser steps, a callback measures the first batch of the step with its labels and writes
the values to the trainer's log. ``callback.result`` is a :class:`~transformer_theory.core.result.Result` with
all measurements. Between measurements the model runs unchanged. If several processes train the model, a
measurement covers the batches of all of them. Lightning or ``transformers`` is imported when a callback is
created.

The measurements are a part of the trainer's checkpoints, as texts and tensors. A training that is resumed
with the same callback continues them: ``callback.result`` has the steps of both runs. In a loop of one's own,
:meth:`.Probe.state_dict` and :meth:`.Probe.load_state_dict` do the same.
"""

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from ..core.metric import Metric
from ..core.reading import parse_json
from ..core.result import Result
from .probing import Probe
from .stored_state import State, from_text, to_text


def lightning_callback(
    metrics: Sequence[Metric],
    *,
    every: int = 100,
    layers: str = "*",
    max_samples: int | None = None,
    background: bool = False,
    labels: Callable[[Any], Tensor | None] | None = None,
) -> Any:
    """Creates a callback for the Trainer of ``pytorch_lightning`` or ``lightning`` that measures the forward
    pass in ``training_step``.

    Args:
        metrics: metrics to compute, see :class:`~transformer_theory.core.metric.Metric`.
        every: number of optimiser steps from one measurement to the next; the first step is measured.
        layers, max_samples, background: arguments of :func:`~transformer_theory.probes.probe`. With a second
            process, values reach the log when they have arrived, under the step at which they were measured.
        labels: function from a batch to the class of each sequence, ``[batch]``, or to None. By default the
            labels are the second entry of a tuple, or the entry ``"labels"`` or ``"label"`` of a mapping, if
            it holds one integer per sequence.
    Returns:
        A ``lightning.pytorch.Callback`` with the attribute ``result``. Its values go to every logger under
        names such as ``crate/compression by attention/layer 0``.
    Raises:
        ImportError: neither package is installed.
        ValueError: ``every`` is less than 1, or :func:`~transformer_theory.probes.probe` rejects an argument.
    """
    names = ("lightning.pytorch", "pytorch_lightning")
    # A callback must belong to the same package as the trainer: prefer the package that is already imported.
    package = _package(sorted(names, key=lambda name: name not in sys.modules), "pytorch-lightning")
    measurements = _Measurements(metrics, every, layers, max_samples, background)
    labels_of = labels or _labels_of

    class TheoryCallback(package.Callback):
        """Measures every ``every`` steps, see :func:`lightning_callback`."""

        @property
        def result(self):
            return measurements.result()

        @property
        def state_key(self) -> str:
            # several of these callbacks in one trainer have states of their own
            return f"TheoryCallback[{measurements.key}, labels={getattr(labels, '__qualname__', None)}]"

        def state_dict(self) -> State:
            return measurements.state_dict()

        def load_state_dict(self, state_dict: State) -> None:
            measurements.load_state_dict(state_dict)

        def on_train_start(self, trainer, pl_module) -> None:
            measurements.start(trainer.global_step)

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
            measurements.begin(
                pl_module, "training_step", trainer.global_step, labels_of(batch), trainer.world_size > 1
            )

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
            self._log(trainer, measurements.end())

        def on_train_end(self, trainer, pl_module) -> None:
            self._log(trainer, measurements.close())

        def on_exception(self, trainer, pl_module, exception) -> None:
            measurements.close()

        def _log(self, trainer, measured: dict[int, dict[str, float]]) -> None:
            for step, values in measured.items():
                for logger in trainer.loggers:
                    logger.log_metrics(values, step=step)

    return TheoryCallback()


def trainer_callback(
    metrics: Sequence[Metric],
    *,
    every: int = 100,
    layers: str = "*",
    max_samples: int | None = None,
    background: bool = False,
) -> Any:
    """Creates a ``transformers.TrainerCallback``. It uses the batch's ``labels`` if they are one integer per
    sequence.

    Args:
        metrics: metrics to compute, see :class:`~transformer_theory.core.metric.Metric`.
        every: number of optimiser steps from one measurement to the next; the first step is measured.
        layers, max_samples, background: see :func:`lightning_callback`.
    Returns:
        The callback, with the attribute ``result``. Each measurement is one entry of
        ``trainer.state.log_history``.
    Raises:
        ImportError: transformers is not installed.
        ValueError: ``every`` is less than 1, or :func:`~transformer_theory.probes.probe` rejects an argument.
    """
    package = _package(["transformers"], "transformers")
    measurements = _Measurements(metrics, every, layers, max_samples, background)

    class TheoryCallback(package.TrainerCallback, package.trainer_callback.ExportableState):
        """Measures every ``every`` steps, see :func:`trainer_callback`."""

        @property
        def result(self):
            return measurements.result()

        def state(self) -> dict[str, dict]:
            state = measurements.state_dict()
            return {"args": {}, "attributes": {"stored": to_text(state)} if state else {}}

        def on_train_begin(self, args, state, control, **kwargs) -> None:
            # The entry is missing if the checkpoint was made without this callback; the trainer needs one.
            entry = state.stateful_callbacks.setdefault(type(self).__name__, {})
            entry = entry[-1] if isinstance(entry, list) else entry
            text = entry.get("attributes", {}).get("stored")
            if state.global_step and text:
                measurements.load_state_dict(from_text(text))
            measurements.start(state.global_step)

        def on_step_begin(self, args, state, control, **kwargs) -> None:
            measurements.begin(kwargs["model"], "forward", state.global_step, None, args.world_size > 1)

        def on_step_end(self, args, state, control, **kwargs) -> None:
            self._log(state, measurements.end())

        def on_train_end(self, args, state, control, **kwargs) -> None:
            self._log(state, measurements.close())

        def _log(self, state, measured: dict[int, dict[str, float]]) -> None:
            state.log_history += [{"step": step, **values} for step, values in measured.items()]

    # The trainer stores states by the name of the class: several of these callbacks have names of their own.
    TheoryCallback.__name__ = f"TheoryCallback[{measurements.key}]"
    return TheoryCallback()


class _Once(Probe):
    """A probe that observes one forward pass each time it is opened, even if that pass fails. Its second
    process goes on.
    """

    @property
    def measured(self) -> int:
        """Number of measurements so far."""
        return self._measured

    def _call(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        self.release()
        return super()._call(original, args, kwargs)


class _Measurements:
    """The measurements of either callback; :meth:`begin` observes a pass if a measurement is due, :meth:`end`
    ends that.
    """

    def __init__(
        self,
        metrics: Sequence[Metric],
        every: int,
        layers: str,
        max_samples: int | None,
        background: bool,
    ):
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.every, self.background = every, background
        self.options: dict[str, Any] = {"layers": layers, "max_samples": max_samples}
        # invalid arguments are an error now, not during training
        self.metrics = Probe(nn.Identity(), metrics, background=background, **self.options).metrics
        self.probe: _Once | None = None
        self.step: int | None = None
        # step of the last measurement; with gradient accumulation several batches share a step
        self.last: int | None = None
        # numbers of the rows that are in the log, and of the measurements before the open one
        self.logged = self.before = 0
        self.restored: State = {}  # state of a checkpoint, until the model runs

    @property
    def key(self) -> str:
        """Arguments in one text, by which a checkpoint finds the callback again."""
        names = ", ".join(type(metric).__name__ for metric in self.metrics)
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{names}; every={self.every}, {options}"

    def state_dict(self) -> State:
        """Returns the state for a checkpoint; empty if nothing was measured."""
        if self.probe is None:
            return self.restored
        return {**self.probe.state_dict(), "callback": json.dumps({"last": self.last})}

    def load_state_dict(self, state: State) -> None:
        """Continues from a checkpoint, in place of all measurements so far."""
        restored = self._probe(nn.Identity())
        restored.load_state_dict(state)  # an error is raised now, not during training
        self.close()
        self.probe, self.restored, self.last = None, state, parse_json(state["callback"])["last"]

    def start(self, step: int) -> None:
        """Begins a training at this step. A new training may measure its first step even if the last one
        ended there.
        """
        if step == 0:
            self.last = None

    def _probe(self, model: nn.Module, name: str | None = None, **options: Any) -> "_Once":
        return _Once(model, self.metrics, name=name, **self.options, **options)

    def begin(self, model: nn.Module, method: str, step: int, labels: Tensor | None, shared: bool) -> None:
        """Opens the probe if a measurement is due at this step. ``shared``: several processes train the
        model.
        """
        if step % self.every or step == self.last:
            return
        if self.probe is not None:
            self.probe.release()  # open if the last measurement was interrupted
        if self.probe is None or self.probe.model is not model:
            if self.probe is not None:
                self.probe.__exit__()
            self.probe = self._probe(model, method=method, background=self.background)
            if self.restored:
                self.probe.load_state_dict(self.restored)
            self.restored, self.logged = {}, len(self.probe.rows)
        self.probe.labels, self.probe.step, self.probe.shared = labels, step, shared
        self.probe.__enter__()
        self.step, self.before = step, self.probe.measured

    def end(self) -> dict[int, dict[str, float]]:
        """Observes no further pass, and returns the new values by name, for each step of which some have
        arrived.
        """
        if self.probe is None or self.step is None:
            return {}
        self.probe.release()
        if self.probe.measured > self.before:
            self.last = self.step
        self.step = None
        return self._new()

    def close(self) -> dict[int, dict[str, float]]:
        """Ends the probe, and returns the values that are not in the log yet."""
        self.end()
        if self.probe is None:
            return {}
        self.probe.__exit__()
        return self._new()

    def _new(self) -> dict[int, dict[str, float]]:
        assert self.probe is not None
        rows, self.logged = self.probe.rows[self.logged :], len(self.probe.rows)
        values: dict[int, dict[str, float]] = {}
        for row in rows:
            if row.value is not None and row.step is not None:
                place = [
                    f"{name} {index}"
                    for name, index in (("layer", row.layer), ("head", row.head))
                    if index is not None
                ]
                values.setdefault(row.step, {})["/".join([row.theory, row.quantity, *place])] = row.value
        return values

    def result(self) -> Result:
        """Returns all measurements so far."""
        if self.probe is None and not self.restored:
            raise ValueError("the callback has measured nothing yet; train with it first")
        if self.probe is None:
            restored = self._probe(nn.Identity(), name=parse_json(self.restored["probe"])["name"])
            restored.load_state_dict(self.restored)
            return restored.result()
        return self.probe.result()


def _labels_of(batch: Any) -> Tensor | None:
    """Returns the class of each sequence of a batch; None if the batch does not hold one integer per
    sequence.
    """
    if isinstance(batch, dict):
        labels = batch.get("labels", batch.get("label"))
    else:
        labels = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
    are_classes = isinstance(labels, Tensor) and labels.ndim == 1 and not labels.is_floating_point()
    return labels if are_classes else None


def _package(names: Sequence[str], install: str) -> Any:
    """Imports the first of these packages that is installed."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError(
        f"this callback needs {' or '.join(names)}, which is not installed; pip install {install}"
    )
