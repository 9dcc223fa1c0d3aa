"""Metrics of modules and of heads: sums over batches or samples, lengths kept apart, rows from the class
attributes.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from transformer_theory.core.measurement import Measurement
from transformer_theory.core.metric import SHARED, Activations, PerHead, PerModule, Place
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


class Middle(PerModule):
    """The median norm of the first tokens over that of the inputs, from at most five sequences."""

    kinds, keeps = ("features", "outputs"), 5
    theory, quantity, side, bounds, source, null_kind = "toy", "median", "<=", (0.0, 9.0), SOURCE, "ones"

    def statistics(self, activations: Activations) -> torch.Tensor:
        if activations.layer == 0:
            self.add(SHARED, activations.tokens[:, 0].norm(dim=-1))
        return activations.output[:, 0].norm(dim=-1)

    def rows(
        self, place: Place, sums: torch.Tensor, *, draws: int, generator: torch.Generator | None
    ) -> Iterator[Measurement]:
        value = float(sums.median() / self.sums[SHARED].median())
        yield self.row(value, draws=[1.0] * draws, n=len(sums), reason="not needed")
        yield self.other_row("first", None, reason=f"place {place}", unit="share", head=2)


def block(output: torch.Tensor, layer: int, kind: str = "features") -> Activations:
    return Activations("b", layer, kind, torch.ones_like(output), output)  # pyright: ignore


def test_rows_of_blocks_from_samples_that_are_kept():
    x = torch.randn(7, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole, half = Middle(), Middle()
    for metric, part in ((whole, x[:3]), (half, x[3:])):
        for layer in (1, 0):
            metric.update(block((1 + layer) * part, layer))
            metric.update(block(part, layer, "attention"))  # no kind of this metric
    whole.merge(half)
    assert {place: len(kept) for place, kept in whole.sums.items()} == {(1, 0): 5, (0, 0): 5, SHARED: 5}
    median = float(x[:5, 0].norm(dim=-1).median() / 2)
    rows = whole.compute(draws=2)
    first, second = (rows[:2], rows[2:])
    for layer, (row, other) in enumerate((first, second)):
        assert (row.layer, row.head, row.n, row.reason) == (layer, None, 5, "")
        assert row.value == pytest.approx((1 + layer) * median)
        assert (row.quantity, row.side, row.bounds, row.nulls[0].draws) == (
            "median",
            "<=",
            (0, 9),
            (1.0, 1.0),
        )
        assert (other.quantity, other.unit, other.side, other.nulls) == ("first", "share", None, ())
        assert (other.layer, other.head, other.reason) == (layer, 2, f"place ({layer}, 0)")


def test_rows_of_the_outputs_have_no_layer_and_survive_storing():
    metric, copy = Middle(), Middle()
    metric.update(block(torch.ones(2, 1, 4), 0, "outputs"))
    copy.load_state_dict(metric.state_dict())
    assert set(copy.sums) == {(), SHARED}
    row, other = copy.compute()
    assert (row.value, row.layer, row.head, other.head) == (1.0, None, None, 2)
    assert [row, other] == metric.compute()


def test_a_metric_names_what_it_does_not_define():
    x = torch.zeros(1, 1, 1)
    for kind, method in ((PerModule, "statistics"), (PerHead, "statistics")):
        with pytest.raises(NotImplementedError, match=f"{kind.__name__} must define {method}"):
            kind().update(Activations("a", 0, "attention", x, x))
    for kind, method in ((PerModule, "rows"), (PerHead, "rows_of_head")):
        metric = kind()
        metric.sums[0, 0] = torch.zeros(1, 1)
        with pytest.raises(NotImplementedError, match=f"{kind.__name__} must define {method}"):
            metric.compute()
