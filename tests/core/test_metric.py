"""Metrics with one number per head: sums over batches, lengths kept apart, rows from the class attributes."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from transformer_theory.core.measurement import Measurement
from transformer_theory.core.metric import Activations, PerHead
from transformer_theory.core.sources import Source

SOURCE = Source("dong2021attention")


class FirstKey(PerHead):
    """The mean weight of the first key; sequences of different lengths are averaged apart and added."""

    theory, quantity, unit, side, source = "toy", "weight of the first key", "share", ">=", SOURCE
    null_kind = "halves"

    def statistics(self, activations: Activations) -> torch.Tensor | None:
        if activations.weights is None:
            return None
        weights = activations.weights.double()
        count = weights.new_full((weights.shape[1], 1), float(len(weights)))
        return torch.cat([count, weights.sum((0, 2))], 1)  # [heads, 1 + keys]

    def rows_of_head(self, *sums: torch.Tensor, draws: int) -> Iterator[Measurement]:
        found = sum(float(part[1] / part[0] / (len(part) - 1)) for part in sums)
        if found == 0:
            yield self.row(None, reason="no weight", n=0)
        else:
            yield self.row(found, n=int(sum(part[0] for part in sums)), draws=(0.5,) * draws)


def attention(weights: torch.Tensor | None, layer: int = 0, first_head: int = 0) -> Activations:
    x = torch.zeros(2, 3, 4)
    return Activations("a", layer, "attention", x, x, weights=weights, first_head=first_head)


def test_a_number_per_head_from_sums_over_batches():
    metric = FirstKey()
    weights = torch.rand(4, 2, 3, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    metric.update(attention(weights[:1], layer=1))
    metric.update(attention(weights[1:], layer=1))
    metric.update(attention(None, layer=2))
    metric.update(attention(torch.zeros(1, 1, 3, 3), layer=1, first_head=2))
    rows = metric.compute(draws=3)
    assert [(row.layer, row.head, row.n, row.reason) for row in rows] == [
        (1, 0, 4, ""),
        (1, 1, 4, ""),
        (1, 2, 0, "no weight"),
    ]
    means = weights[..., 0].double().mean((0, 2)).tolist()
    assert [row.value for row in rows] == [pytest.approx(mean) for mean in means] + [None]
    assert [len(row.nulls) for row in rows] == [1, 1, 0]
    first = rows[0]
    assert first.null is not None
    assert (first.null.kind, first.null.draws) == ("halves", (0.5, 0.5, 0.5))
    assert (first.theory, first.kind, first.quantity, first.unit, first.side, first.source) == (
        "toy",
        "in network",
        "weight of the first key",
        "share",
        ">=",
        SOURCE,
    )
    assert [row.nulls for row in metric.compute()] == [()] * 3


def test_sequences_of_different_lengths_are_kept_apart():
    apart, short, long = FirstKey(), FirstKey(), FirstKey()
    inputs = [torch.rand(2, 1, n, n).softmax(-1) for n in (5, 3)]
    for weights, alone in zip(inputs, (long, short)):
        alone.update(attention(weights))
        apart.update(attention(weights))
    (row,), (first,), (second,) = (metric.compute() for metric in (apart, short, long))
    assert row.value == pytest.approx(first.value + second.value)
    assert row.n == 4
    copy = FirstKey()
    copy.load_state_dict(apart.state_dict())
    assert copy.compute() == [row]
    short.merge(long)
    assert short.compute() == [replace(row, head=0)]
