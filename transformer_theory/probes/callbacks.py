"""Probes in other people's training loops: callbacks for Lightning's Trainer and for the Trainer of ``transformers``.

    trainer = pytorch_lightning.Trainer(callbacks=[lightning_callback(THEORY.reducers(), every=100)])
    trainer = transformers.Trainer(..., callbacks=[trainer_callback(THEORY.reducers(), every=100)])

Each reads the first batch of every due training step, with the labels of that batch, hands the numbers to the trainer's log, and keeps a
:class:`~transformer_theory.core.experiment.Result` as ``callback.result``. Between readings the model runs as it is. With several processes
every reading is of the union of their batches. The packages are imported when a callback is made.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import Probe
from .observation import Reducer


def lightning_callback(
    reducers: Sequence[Reducer],
    *,
    every: int = 100,
    layers: str = "*",
    most: int | None = None,
    labels: Callable[[Any], Tensor | None] | None = None,
) -> Any:
    """A callback for the Trainer of ``pytorch_lightning`` or ``lightning``: it reads what happens inside ``training_step``.

    Args:
        reducers: see :class:`~transformer_theory.probes.Reducer`.
        every: optimiser steps from one reading to the next; the first is read.
        layers, most: as of :func:`~transformer_theory.probes.probe`.
        labels: takes the batch, gives the class of each sequence, ``[batch]``, or None. If left out: the second entry of a tuple, or the
            entry ``"labels"`` or ``"label"`` of a mapping, if it has an integer a sequence.
    Returns:
        ``lightning.pytorch.Callback`` with ``result``. Its numbers go to every logger, e.g. ``crate/compression by attention/layer 0``.
    Raises:
        ImportError: neither package is installed.
        ValueError: ``every`` is less than 1, or as :func:`~transformer_theory.probes.probe`.
    Source: none, this is machinery.
    """
    names = ("lightning.pytorch", "pytorch_lightning")
    package = _package(sorted(names, key=lambda name: name not in sys.modules), "pytorch-lightning")
    readings, labels_of = _Readings(reducers, every, layers, most), labels or _labels_of

    class TheoryCallback(package.Callback):
        """Reads at chosen steps, see :func:`lightning_callback`."""

        @property
        def result(self):
            return readings.result()

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
            readings.begin(pl_module, "training_step", trainer.global_step, labels_of(batch), trainer.world_size > 1)

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
            found, step = readings.end()
            for logger in trainer.loggers if found else ():
                logger.log_metrics(found, step=step)

        def on_exception(self, trainer, pl_module, exception) -> None:
            readings.end()

    return TheoryCallback()


def trainer_callback(reducers: Sequence[Reducer], *, every: int = 100, layers: str = "*", most: int | None = None) -> Any:
    """A ``transformers.TrainerCallback``; labels are the batch's ``labels``, if it has an integer a sequence.

    Args:
        reducers: see :class:`~transformer_theory.probes.Reducer`.
        every: optimiser steps from one reading to the next; the first is read.
        layers, most: as of :func:`~transformer_theory.probes.probe`.
    Returns:
        The callback, with ``result``. Its numbers go to ``trainer.state.log_history``, one entry a reading.
    Raises:
        ImportError: transformers is not installed.
        ValueError: ``every`` is less than 1, or as :func:`~transformer_theory.probes.probe`.
    Source: none, this is machinery.
    """
    package = _package(["transformers"], "transformers")
    readings = _Readings(reducers, every, layers, most)

    class TheoryCallback(package.TrainerCallback):
        """Reads at chosen steps, see :func:`trainer_callback`."""

        @property
        def result(self):
            return readings.result()

        def on_step_begin(self, args, state, control, **kwargs) -> None:
            readings.begin(kwargs["model"], "forward", state.global_step, None, args.world_size > 1)

        def on_step_end(self, args, state, control, **kwargs) -> None:
            found, step = readings.end()
            if found:
                state.log_history.append({"step": step, **found})

    return TheoryCallback()


class _Once(Probe):
    """A probe that closes with the first forward pass that it sees, whatever becomes of it."""

    def _call(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        self.__exit__()
        return super()._call(original, args, kwargs)


class _Readings:
    """What both callbacks do: open a probe at due steps, close it, keep what it read."""

    def __init__(self, reducers: Sequence[Reducer], every: int, layers: str, most: int | None):
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.every = every
        self.options: dict[str, Any] = {"layers": layers, "most": most}
        self.reducers = Probe(nn.Identity(), reducers, **self.options).reducers  # what is wrong with them is said now
        self.probe: _Once | None = None
        self.step: int | None = None
        self.last: int | None = None  # step of the last reading: several batches may share one
        self.told = 0  # rows that were handed to a log

    def begin(self, model: nn.Module, method: str, step: int, labels: Tensor | None, several: bool) -> None:
        if step % self.every or step == self.last:
            return
        if self.probe is None or self.probe.model is not model:
            self.probe, self.told = _Once(model, self.reducers, method=method, **self.options), 0
        self.probe.labels, self.probe.step, self.probe.shared = labels, step, several
        self.step = self.last = step
        self.probe.__enter__()

    def end(self) -> tuple[dict[str, float], int]:
        """The new numbers by name, and their step; nothing if no reading was due."""
        if self.probe is None or self.step is None:
            return {}, 0
        self.probe.__exit__()
        rows, step = self.probe.rows[self.told :], self.step
        self.told, self.step = len(self.probe.rows), None
        found = {}
        for row in rows:
            if row["value"] is not None:
                place = [f"{name} {row.get(name)}" for name in ("layer", "head") if name in row]
                found["/".join([row["theory"], row["quantity"], *place])] = float(row["value"])
        return found, step

    def result(self):
        if self.probe is None:
            raise ValueError("the callback has read nothing yet; train with it first")
        return self.probe.result()


def _labels_of(batch: Any) -> Tensor | None:
    """The class of each sequence of a batch, if it has an integer a sequence."""
    if isinstance(batch, dict):
        found = batch.get("labels", batch.get("label"))
    else:
        found = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
    fits = isinstance(found, Tensor) and found.ndim == 1 and not found.is_floating_point() and found.dtype != torch.bool
    return found if fits else None


def _package(names: Sequence[str], install: str) -> Any:
    """The first of these packages that can be imported."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError(f"this callback needs {' or '.join(names)}, which is not installed; pip install {install}")
