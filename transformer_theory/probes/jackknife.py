r"""Intervals over inputs: how much the quantities of one network depend on the sequences that it was measured
on.

The sequences are divided into G groups of equal size, and the metrics accumulate each group by itself. States
of metrics can be merged, so that every quantity is also known without each group, from one pass over the
inputs. With these values :math:`v_g` the squared standard error is :math:`\tfrac{G-1}{G} \sum_g (v_g - \bar
v)^2` (the delete-a-group jackknife), and the interval has the quantile of Student's t with G - 1 degrees of
freedom. A metric whose state cannot be merged, or that measures nothing without a group, has no interval.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ..core.measurement import Measurement
from ..core.metric import Metric
from ..core.statistics import jackknife_half_width, place_of
from .evaluation import evaluation
from .forward_pass import NoAttention
from .passes import Inputs, batches, count, run, selected
from .probing import probe

GROUPS = 8
OVER_INPUTS = "over held-out inputs"
Rows = list[Measurement]


def groups_of(n: int, groups: int = GROUPS) -> list[Int[Tensor, " members"]]:
    """Divides the numbers 0 to n - 1 into at most ``groups`` groups, whose sizes differ by one at most.

    >>> [group.tolist() for group in groups_of(5, 2)]
    [[0, 2, 4], [1, 3]]
    """
    numbers = torch.arange(n)
    return [numbers[start :: min(n, groups)] for start in range(min(n, groups))]


def without_each_group(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor | None,
    metrics: Callable[[], Sequence[Metric]],
    *,
    batch_size: int,
    groups: int = GROUPS,
    rounds: int = 1,
    **known: Any,
) -> tuple[Rows, list[Rows]]:
    """Measures a network on inputs, and on these inputs without each group of them.

    Args:
        model: the network.
        inputs: inputs of the network, tensors ``[n, ...]``.
        labels: class of each sequence, ``[n]``.
        metrics: function that makes new metrics.
        batch_size: number of sequences per forward pass.
        groups: largest number of groups, at least 2.
        rounds: number of times that the network runs over the inputs, each time with a part of the metrics:
            the states of all groups are in memory together.
        known: further arguments of :func:`.probe`.
    Returns:
        The rows on all inputs, without nulls, and the rows without each group; nothing if there are fewer
        than two sequences.
    """
    parts = groups_of(count(inputs), groups)
    if len(parts) < 2:
        return [], []
    whole: Rows = []
    without: list[Rows] = [[] for _ in parts]

    def states(part: Tensor, own: Sequence[Metric]) -> Sequence[Metric]:
        some = selected(inputs, part)
        with (
            evaluation(model),
            torch.random.fork_rng(),
            probe(model, own, draws=0, **known) as p,
            p.accumulate(0, compute=False),
        ):
            for batch in batches(some, None if labels is None else labels[part], batch_size):
                p.labels = batch.labels
                run(model, batch.inputs)
        return own

    for number in range(min(rounds, len(metrics()))):
        try:
            measured = [states(part, metrics()[number::rounds]) for part in parts]
        except NoAttention:
            return [], []
        unions = [metrics()[number::rounds] for _ in (None, *parts)]
        for union, *each in zip(zip(*unions), *measured):
            whole += _merged(union[0], each)
            for left_out, metric in enumerate(union[1:]):
                without[left_out] += _merged(metric, each[:left_out] + each[left_out + 1 :])
            for metric in each:
                metric.reset()  # frees its state
    return whole, without


def _merged(metric: Metric, states: Sequence[Metric]) -> Rows:
    """Returns the rows of a metric that has the states of several metrics together."""
    # an error at one metric, which the measurement itself reports, costs its intervals only
    with contextlib.suppress(Exception):
        metric.draws = 0
        metric.reset()
        for state in states:
            metric.merge(state)
        rows = [row for row in metric.compute(draws=0) if row.value is not None]
        metric.reset()
        return rows
    return []


def with_intervals(rows: Sequence[Measurement], whole: Rows, without: Sequence[Rows]) -> Rows:
    """Returns the rows with their intervals over the inputs of :func:`without_each_group`; rows that have an
    interval keep it.
    """
    centres = {place_of(row): row.value for row in whole}
    values: dict[tuple, list[float]] = {}
    for each in without:
        for row in each:
            if row.value is not None:
                values.setdefault(place_of(row), []).append(row.value)

    def interval(row: Measurement) -> Measurement:
        place = place_of(row)
        centre, found = centres.get(place), values.get(place, [])
        if row.value is None or row.interval is not None or centre is None or len(found) < len(without):
            return row
        half = jackknife_half_width(found)
        low, high = row.bounds or (None, None)
        ends = (
            centre - half if low is None else max(low, centre - half),
            centre + half if high is None else min(high, centre + half),
        )
        return replace(row, interval=ends, interval_kind=OVER_INPUTS)

    return [interval(row) for row in rows] if len(without) > 1 else list(rows)
