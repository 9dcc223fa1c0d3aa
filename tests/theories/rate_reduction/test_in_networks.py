"""Rate reduction in trained networks: the metric, its null distribution, streaming and merging."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.core.metric import Activations
from transformer_theory.core.statistics import reason_without_p
from transformer_theory.metrics import class_features
from transformer_theory.metrics.class_features import CODING_RATE, RATE_REDUCTION
from transformer_theory.metrics.coding import rate_reduction, unit_norm
from transformer_theory.theories.rate_reduction.in_networks import IN_NETWORKS, SHARE, RateReductionMetric


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def activations(output, labels, *, layer=0, kind="features", tokens=None):
    tokens = output if tokens is None else tokens
    return Activations(
        name=f"blocks.{layer}", layer=layer, kind=kind, tokens=tokens, output=output, labels=labels
    )


def metric_of(*batches, **given):
    metric = RateReductionMetric()
    for output, labels in batches:
        metric.update(activations(output, labels, **given))
    return metric


def headline(metric):
    return next(row for row in metric.compute(draws=4) if row.quantity == RATE_REDUCTION)


def test_the_tokens_that_are_read_are_measured():
    """The class token, the last of the real tokens, or the mean of all."""
    y, output = torch.arange(60) % 3, normal(60, 5, 8)
    first = (torch.arange(5) == 0).expand(60, 5)
    last = torch.arange(5) == 2 + (torch.arange(60) % 3)[:, None]
    for read, features, place in (
        (first, output[:, 0], "the class token"),
        (last, output[torch.arange(60), 2 + torch.arange(60) % 3], "the last token"),
        (None, output.mean(1), "the mean of the tokens"),
    ):
        (metric,) = IN_NETWORKS.metrics()
        metric.update(replace(activations(output, y), read=read, reading=place))
        expected = float(rate_reduction(unit_norm(features), y, eps=metric.eps))
        assert_close(headline(metric).value, expected, rtol=1e-10, atol=0)
        assert headline(metric).note == f"at {place}" or read is None


def test_the_value_is_the_metric_beside_permuted_labels():
    (metric,) = IN_NETWORKS.metrics()
    y = torch.arange(120) % 3
    output = (normal(120, 5, 8) * 0.3 + normal(3, 1, 8, seed=2)[y]).float()
    metric.update(activations(output, None))
    assert list(metric.compute()) == []
    for part in torch.arange(120).split(50):
        metric.update(activations(output[part], y[part], layer=1))
    X = unit_norm(output.double().mean(1))
    row = headline(metric)
    assert_close(row.value, float(rate_reduction(X, y, eps=metric.eps)), rtol=1e-10, atol=0)
    assert (row.layer, row.kind, row.n, row.side) == (1, "in network", 120, ">=")
    assert row.value > 3 * row.null.high > 0
    assert next(row for row in metric.compute(draws=7) if row.quantity == RATE_REDUCTION).null.draws[
        :4
    ] == pytest.approx(row.null.draws)
    assert {row.null for row in metric.compute()} == {None}
    rows = {row.quantity: row for row in metric.compute(draws=4)}
    share = rows[SHARE]
    assert 0 < share.null.high < share.value < 1 == share.predicted
    assert share.quantity == IN_NETWORKS.headline
    assert {quantity for quantity, row in rows.items() if row.scope == "these data"} == rows.keys() - {
        CODING_RATE
    }
    assert rows[CODING_RATE].scope == "training"
    other = metric_of((output, y), layer=1)
    other.merge(metric)
    assert_close([r.value for r in other.compute()], [r.value for r in metric.compute()])
    metric.reset()
    assert list(metric.compute()) == []


@pytest.mark.parametrize("sizes", [(24, 24), (10, 38)])
def test_the_share_at_the_neural_collapse_of_two_classes(sizes):
    """Opposite classes have the rate reduction 0 with any labels, to the last digit. Orthogonal ones have it
    from their eigenvalues, below the optimum, which spreads each class over several dimensions.
    """
    d, n = 6, sum(sizes)
    y = torch.repeat_interleave(torch.arange(2), torch.tensor(sizes))
    u = torch.nn.functional.normalize(normal(d, seed=4), dim=0)
    v = torch.nn.functional.normalize(normal(d, seed=5) - (normal(d, seed=5) @ u) * u, dim=0)
    found = {}
    for name, second in (("opposite", -u), ("orthogonal", v)):
        rows = {
            row.quantity: row
            for row in metric_of((torch.stack([u, second])[y][:, None], y)).compute(draws=19)
        }
        found[name] = rows[RATE_REDUCTION], rows[SHARE]
    for row in found["opposite"]:
        assert (row.value, set(row.null.draws)) == (0.0, {0.0})
        assert "all draws of the null are equal" in reason_without_p(row)
    # e = d / (n eps^2) n_j is the eigenvalue of class j in R, and d / eps^2 that in its own rate; eps^2 = 1/2
    shares = [size / n for size in sizes]
    rate = sum(0.5 * math.log(1 + 2 * d * share) for share in shares) - 0.5 * math.log(1 + 2 * d)
    reduction, share = found["orthogonal"]
    assert reduction.value == pytest.approx(rate, rel=1e-6)
    gains = [
        [0.5 * r * (math.log(1 + 2 * d * p / r) - p * math.log(1 + 2 * d / r)) for r in range(1, d)]
        for p in shares
    ]
    best = max(gains[0][r] + gains[1][s] for r in range(5) for s in range(5) if r + s + 2 <= d)
    assert share.value == pytest.approx(rate / best, rel=1e-6)
    assert best > rate * 1.1


def test_an_optimum_of_zero_has_a_reason():
    """At a large distortion d/(n eps^2) lambda is so small that R and R^c agree to rounding."""
    y = torch.arange(40) % 2
    metric = RateReductionMetric(eps=1e6)
    metric.update(activations(normal(40, 1, 8), y))
    rows = {row.quantity: row for row in metric.compute(draws=4)}
    assert (rows[SHARE].value, rows[SHARE].reason) == (
        None,
        "at the distortion 1e+06 the optimum is 0 to rounding",
    )
    assert rows[RATE_REDUCTION].value == 0
    metric = RateReductionMetric()
    metric.update(activations(normal(40, 1, 2), torch.arange(40) % 3))
    (row,) = (row for row in metric.compute() if row.quantity == SHARE)
    assert row.reason == "3 classes do not fit into orthogonal subspaces of 2 dimensions"


def test_few_samples_and_many_give_the_same_rates(monkeypatch):
    """Few samples are kept, many become second moments, without a null; merged states may be either."""
    monkeypatch.setattr(class_features, "SAMPLES", 0)  # 16 per dimension are stored, 128
    y, output = torch.arange(210) % 3, normal(210, 5, 8)
    few, many = (output[:60], y[:60]), (output[60:], y[60:])
    whole, batched, a, c, small = (
        metric_of((output, y)),
        metric_of(few, many),
        metric_of(few),
        metric_of(many),
        metric_of(few),
    )
    a.merge(metric_of(many))
    c.merge(metric_of(few))
    for metric in (batched, a, c):
        for row, expected in zip(metric.compute(), whole.compute(), strict=True):
            assert_close(row.value, expected.value, rtol=1e-9, atol=0)
    assert small.compute() == small.compute()
    X = unit_norm(output[:60].mean(1))
    assert_close(headline(small).value, float(rate_reduction(X, y[:60], eps=small.eps)), rtol=1e-10, atol=0)
    assert 0 < headline(small).null.mean != headline(small).value
    assert headline(whole).null is None  # the stored samples alone would have another chance level


def test_on_noise_the_null_holds_the_value_for_many_samples():
    """Of 3,072 samples all are stored: the value lies within the draws of its null, which a subset would
    miss.
    """
    n, d = 3072, 16
    row = next(
        row
        for row in metric_of((normal(n, 1, d), torch.arange(n) % 10)).compute(draws=19)
        if row.quantity == RATE_REDUCTION
    )
    spread = row.null.high - row.null.low
    assert row.null.low - spread < row.value < row.null.high + spread


@pytest.mark.parametrize("classes", [2, 10])
def test_the_null_is_that_of_permuted_labels_in_any_order_of_samples(classes):
    """A loader that is sorted by class has batches of one class each, in which a permutation
    changes nothing.
    """
    n, d = 600, 8
    y = torch.arange(n) % classes
    output = normal(n, 1, d) + 2 * normal(classes, 1, d, seed=3)[y]
    order, generator = y.argsort(stable=True), torch.Generator().manual_seed(5)
    X, permuted = unit_norm(output[:, 0]), [y[torch.randperm(n, generator=generator)] for _ in range(20)]
    nulls = torch.tensor([float(rate_reduction(X, labels, eps=0.5**0.5)) for labels in permuted])
    parts = torch.arange(n).split(50)
    mixed = metric_of(*((output[part], y[part]) for part in parts))
    by_class = metric_of(*((output[order][part], y[order][part]) for part in parts))
    first, second = (
        metric_of(*((output[order][part], y[order][part]) for part in half))
        for half in (parts[:6], parts[6:])
    )
    first.merge(second)
    for metric in (mixed, by_class, first):
        row = headline(metric)
        assert_close(row.value, float(rate_reduction(X, y, eps=metric.eps)), rtol=1e-9, atol=0)
        assert row.null.mean == pytest.approx(float(nulls.mean()), rel=0.25)


def test_values_that_are_not_finite_are_dropped_and_so_are_sequences_without_label(unchecked):
    y, output = torch.arange(20) % 3, normal(20, 5, 8)
    whole = metric_of((output[1:], y[1:]))
    output[0, 1, 2] = torch.inf
    some = metric_of((output, y))
    assert whole.compute() == some.compute()
    known = metric_of((output[y > 0], y[y > 0]))
    assert metric_of((output, torch.where(y > 0, y, -1))).compute() == known.compute()


def test_layers_and_networks_share_the_permutations():
    """Two layers with equal features have equal draws; so has another metric with other weights before it."""
    y, output = torch.arange(60) % 3, normal(60, 5, 8)
    metric = metric_of((output, y))
    metric.update(activations(output, y, layer=1))
    first, second = (row.null.draws for row in metric.compute(draws=5) if row.quantity == SHARE)
    assert first == second
    assert len(set(first)) == 5


@each_case(
    ("n", "d", "labels", "reason"),
    [
        (12, 8, torch.zeros(12, dtype=torch.long), "with one class"),
        (12, 3, torch.arange(12) % 5, "5 classes do not fit into orthogonal subspaces of 3 dimensions"),
        (2, 8, torch.arange(2), ""),
        (6, 20, torch.arange(6) % 2 * 3, ""),  # fewer sequences than dimensions, gaps in the labels
    ],
)
def test_unusual_samples_give_values_or_reasons(n, d, labels, reason):
    for output in (normal(n, 4, d), torch.ones(n, 4, d, dtype=torch.float64)):
        rows = metric_of((output, labels)).compute(draws=3)
        (share,) = (row for row in rows if row.quantity == SHARE)
        assert share.reason.startswith(reason)
        assert (share.value is None) == bool(reason)
        assert all(row.reason or row.value is not None for row in rows)
        assert all(len(row.null.draws) == 3 for row in rows if row.null)
