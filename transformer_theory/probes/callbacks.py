"""Probes in other people's training loops: callbacks for Lightning's Trainer and for the Trainer of ``transformers``.

    trainer = pytorch_lightning.Trainer(callbacks=[lightning_callback(THEORY.in_networks.metrics(), every=100)])
    trainer = transformers.Trainer(..., callbacks=[trainer_callback(THEORY.in_networks.metrics(), every=100)])

Each measures the first batch of every due training step, with the labels of that batch, passes the numbers to the trainer's log, and keeps
a :class:`~transformer_theory.core.result.Result` as ``callback.result``. Between measurements the model runs unchanged. With several
processes every measurement is of the union of their batches. The packages are imported when a callback is made.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.metric import Metric
from ..core.result import Result
from .probing import Probe


def lightning_callback(
    metrics: Sequence[Metric],
    *,
    every: int = 100,
    layers: str = "*",
    max_samples: int | None = None,
    labels: Callable[[Any], Tensor | None] | None = None,
) -> Any:
    """A callback for the Trainer of ``pytorch_lightning`` or ``lightning``; it measures what happens inside ``training_step``.

    Args:
        metrics: see :class:`~transformer_theory.core.metric.Metric`.
        every: optimiser steps from one measurement to the next; the first step is measured.
        layers, max_samples: as of :func:`~transformer_theory.probes.probe`.
        labels: maps a batch to the class of each sequence, ``[batch]``, or None. If omitted: the second entry of a tuple, or the entry
            ``"labels"`` or ``"label"`` of a mapping, if it holds one integer per sequence.
    Returns:
        ``lightning.pytorch.Callback`` with ``result``. Its numbers go to every logger, e.g. ``crate/compression by attention/layer 0``.
    Raises:
        ImportError: neither package is installed.
        ValueError: ``every`` is less than 1, or as :func:`~transformer_theory.probes.probe`.
    """
    names = ("lightning.pytorch", "pytorch_lightning")
    package = _package(sorted(names, key=lambda name: name not in sys.modules), "pytorch-lightning")
    measurements, labels_of = _Measurements(metrics, every, layers, max_samples), labels or _labels_of

    class TheoryCallback(package.Callback):
        """Measures at chosen steps, see :func:`lightning_callback`."""

        @property
        def result(self):
            return measurements.result()

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
            measurements.begin(pl_module, "training_step", trainer.global_step, labels_of(batch), trainer.world_size > 1)

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
            numbers, step = measurements.end()
            for logger in trainer.loggers if numbers else ():
                logger.log_metrics(numbers, step=step)

        def on_exception(self, trainer, pl_module, exception) -> None:
            measurements.end()

    return TheoryCallback()


def trainer_callback(metrics: Sequence[Metric], *, every: int = 100, layers: str = "*", max_samples: int | None = None) -> Any:
    """A ``transformers.TrainerCallback``; labels are the batch's ``labels``, if they are one integer per sequence.

    Args:
        metrics: see :class:`~transformer_theory.core.metric.Metric`.
        every: optimiser steps from one measurement to the next; the first step is measured.
        layers, max_samples: as of :func:`~transformer_theory.probes.probe`.
    Returns:
        The callback, with ``result``. Its numbers go to ``trainer.state.log_history``, one entry per measurement.
    Raises:
        ImportError: transformers is not installed.
        ValueError: ``every`` is less than 1, or as :func:`~transformer_theory.probes.probe`.
    """
    package = _package(["transformers"], "transformers")
    measurements = _Measurements(metrics, every, layers, max_samples)

    class TheoryCallback(package.TrainerCallback):
        """Measures at chosen steps, see :func:`trainer_callback`."""

        @property
        def result(self):
            return measurements.result()

        def on_step_begin(self, args, state, control, **kwargs) -> None:
            measurements.begin(kwargs["model"], "forward", state.global_step, None, args.world_size > 1)

        def on_step_end(self, args, state, control, **kwargs) -> None:
            numbers, step = measurements.end()
            if numbers:
                state.log_history.append({"step": step, **numbers})

    return TheoryCallback()


class _Once(Probe):
    """A probe that closes at its first forward pass, even if that pass fails."""

    def _call(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        self.__exit__()
        return super()._call(original, args, kwargs)


class _Measurements:
    """The common part of both callbacks: a probe that opens at due steps, and its measurements."""

    def __init__(self, metrics: Sequence[Metric], every: int, layers: str, max_samples: int | None):
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.every = every
        self.options: dict[str, Any] = {"layers": layers, "max_samples": max_samples}
        self.metrics = Probe(nn.Identity(), metrics, **self.options).metrics  # raises now, not in the training
        self.probe: _Once | None = None
        self.step: int | None = None
        self.last: int | None = None  # step of the last measurement: several batches may share one step
        self.logged = 0  # number of rows that were logged

    def begin(self, model: nn.Module, method: str, step: int, labels: Tensor | None, several: bool) -> None:
        if step % self.every or step == self.last:
            return
        if self.probe is None or self.probe.model is not model:
            self.probe, self.logged = _Once(model, self.metrics, method=method, **self.options), 0
        self.probe.labels, self.probe.step, self.probe.shared = labels, step, several
        self.step = self.last = step
        self.probe.__enter__()

    def end(self) -> tuple[dict[str, float], int]:
        """The new numbers by name, and their step; no numbers if no measurement was due."""
        if self.probe is None or self.step is None:
            return {}, 0
        self.probe.__exit__()
        rows, step = self.probe.rows[self.logged :], self.step
        self.logged, self.step = len(self.probe.rows), None
        numbers = {}
        for row in rows:
            if row.value is not None:
                place = [f"{name} {number}" for name, number in (("layer", row.layer), ("head", row.head)) if number is not None]
                numbers["/".join([row.theory, row.quantity, *place])] = row.value
        return numbers, step

    def result(self) -> Result:
        if self.probe is None:
            raise ValueError("the callback has measured nothing yet; train with it first")
        return self.probe.result()


def _labels_of(batch: Any) -> Tensor | None:
    """The class of each sequence of a batch, if the batch holds one integer per sequence."""
    if isinstance(batch, dict):
        labels = batch.get("labels", batch.get("label"))
    else:
        labels = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
    classes = isinstance(labels, Tensor) and labels.ndim == 1 and not labels.is_floating_point() and labels.dtype != torch.bool
    return labels if classes else None


def _package(names: Sequence[str], install: str) -> Any:
    """The first of these packages that can be imported."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError(f"this callback needs {' or '.join(names)}, which is not installed; pip install {install}")
