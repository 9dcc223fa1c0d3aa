"""Forward passes over batches of inputs, whose metrics form one measurement."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from jaxtyping import Int
from torch import Tensor, nn

from ..core.measurement import Measurement
from ..core.metric import Metric
from .evaluation import converted_inputs, evaluation, forward
from .probing import probe

Inputs = Tensor | Mapping[str, Tensor]
"""Inputs of a network: one tensor ``[n, ...]``, or several of them by the name of the argument."""


class Batch(NamedTuple):
    """The inputs of one forward pass.

    Attributes:
        inputs: one tensor ``[batch, ...]``, or several by the name of the argument.
        labels: class of each sequence, ``[batch]``.
        targets: what the outputs are compared with, ``[batch, ...]``.
    """

    inputs: Inputs
    labels: Tensor | None = None
    targets: Tensor | None = None


def count(inputs: Inputs) -> int:
    """Returns the number of sequences of inputs ``[n, ...]``."""
    return len(inputs) if isinstance(inputs, Tensor) else len(next(iter(inputs.values())))


def selected(inputs: Inputs, which: slice | Int[Tensor, " chosen"]) -> Inputs:
    """Returns some sequences of inputs ``[n, ...]``."""
    if isinstance(inputs, Tensor):
        return inputs[which]
    return {name: tensor[which] for name, tensor in inputs.items()}


def batches(inputs: Inputs, labels: Tensor | None, size: int) -> Iterator[Batch]:
    """Yields inputs ``[n, ...]`` with their labels ``[n]``, at most ``size`` sequences at a time."""
    for start in range(0, count(inputs), size):
        part = slice(start, start + size)
        yield Batch(selected(inputs, part), None if labels is None else labels[part])


def run(model: nn.Module, inputs: Inputs) -> Any:
    """Runs a model on one batch ``[n, ...]``, whose tensors :func:`.evaluation.converted_inputs` converts."""
    if isinstance(inputs, Tensor):
        return forward(model, inputs)
    return model(**{name: converted_inputs(model, tensor) for name, tensor in inputs.items()})


def measure_metrics(
    model: nn.Module,
    passes: Iterable[Batch],
    metrics: Sequence[Metric],
    *,
    name: str,
    draws: int,
    n: int,
    step: int | None = None,
    layers: str = "*",
    special_ids: Collection[int] | None = None,
    grid: tuple[int, int] | None = None,
) -> tuple[list[Measurement], list[Measurement]]:
    """Computes metrics of a network over batches, which form one measurement.

    The network runs in evaluation mode and without gradients; its mode is restored.

    Args:
        model: the network.
        passes: the batches.
        metrics: metrics to compute; they are reset first.
        name: column ``model`` of the rows.
        draws: number of null draws of the metrics' own nulls, see :meth:`.Metric.compute`.
        n: number of sequences in all batches, the column ``n`` of rows that have none.
        step: column ``step`` of the rows.
        layers, special_ids, grid: see :func:`.probe`.
    Returns:
        The rows of the metrics, and a row with reasons for each metric that measured nothing.
    Raises:
        NoAttention: a metric needs attention and the network has none.
    """
    known = {"special_ids": special_ids, "grid": grid}
    with (
        evaluation(model),
        probe(model, metrics, layers=layers, name=name, draws=draws, **known) as p,
        p.accumulate(step),
    ):
        for batch in passes:
            p.labels, p.targets = batch.labels, batch.targets
            run(model, batch.inputs)

    def placed(row: Measurement) -> Measurement:
        changed = {"n": n} if row.n is None and n is not None else {}
        changed |= {"step": None} if row.step is not None and step is None else {}
        return replace(row, **changed) if changed else row

    return [placed(row) for row in p.rows], [placed(row) for row in p.unmeasured()]
