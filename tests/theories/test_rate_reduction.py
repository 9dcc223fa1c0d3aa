"""The MCR² optimum, ReduNet, and what the room says about data and networks."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.problems.rate_reduction import MCR2_OPTIMUM
from transformer_theory import data
from transformer_theory.core.measurement import collect
from transformer_theory.core.result import Result
from transformer_theory.data import TokenData
from transformer_theory.metrics.coding import class_coding_rate, coding_rate, rate_reduction, unit_norm
from transformer_theory.probes import Observation
from transformer_theory.theories import rate_reduction as room
from transformer_theory.theories.rate_reduction.analysis import features_of

EPS = 0.5**0.5


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_optimum_has_the_known_value_and_full_rank():
    best = room.optimum([20, 20, 20], 12, eps=EPS)
    assert best.ranks == (4, 4, 4)
    assert abs(best.value - MCR2_OPTIMUM) < 1e-12
    by_rank = [room.flat_reduction([20] * 3, [r] * 3, 12, eps=EPS) for r in (1, 2, 3, 4)]
    assert_close(by_rank, [1.686, 2.263, 2.551, 2.700], rtol=0, atol=5e-4)


@pytest.mark.parametrize(("sizes", "ranks", "dim"), [((20, 20, 20), (4, 4, 4), 12), ((10, 30), (2, 5), 9)])
def test_constructed_optimum_has_the_closed_form(generator, sizes, ranks, dim):
    X, y = room.orthogonal_classes(sizes, ranks, dim, generator=generator)
    assert_close(float(rate_reduction(X, y, eps=EPS)), room.flat_reduction(sizes, ranks, dim, eps=EPS), rtol=1e-12, atol=0)


def test_optimum_searches_all_ranks_by_brute_force():
    sizes, dim = (4, 9, 30), 8
    values = {
        ranks: room.flat_reduction(sizes, ranks, dim, eps=0.8)
        for ranks in np.ndindex(9, 9, 9)
        if min(ranks) >= 1 and sum(ranks) <= dim and ranks[0] <= 4
    }
    best = room.optimum(sizes, dim, eps=0.8)
    assert_close(best.value, max(values.values()), rtol=1e-12, atol=0)
    assert best.ranks == max(values, key=lambda ranks: values[ranks])
    assert room.optimum([7, 0], 3, eps=1.0).value == 0.0


def test_no_ascent_with_more_rank_than_room_exceeds_the_optimum(generator, unchecked):  # the contract checks shapes
    best = room.optimum([20, 20, 20], 12, eps=EPS)
    reached = []
    for _ in range(2):
        X, y, gradient = room.maximise([20] * 3, [6] * 3, 12, eps=EPS, generator=generator)
        assert gradient < 1e-6
        assert_close(torch.stack([x.square().sum() for x in X.split(20)]), torch.full((3,), 20.0, dtype=X.dtype))
        reached.append(float(rate_reduction(X, y, eps=EPS)))
    assert max(reached) <= best.value + 1e-9
    assert max(reached) > best.value - 0.2


def test_equal_second_moments_give_zero(generator):
    X, y = room.equal_moments((8, 20, 13), 6, generator=generator)
    assert abs(float(rate_reduction(X, y, eps=EPS))) < 1e-12
    X[0] *= 1.1  # the equality is strict
    assert float(rate_reduction(X, y, eps=EPS)) > 1e-6


def test_layer_is_the_gradient_of_the_rate_reduction():
    X, y = normal(30, 5), torch.arange(30) % 3
    step = 1e-6 * normal(30, 5, seed=1)
    slope = (rate_reduction(X + step, y, eps=EPS) - rate_reduction(X - step, y, eps=EPS)) / 2
    gradient = room.layer(X, y, eps=EPS).gradient(X, torch.nn.functional.one_hot(y, 3).double())
    assert_close((gradient * step).sum(), slope, rtol=1e-6, atol=0)


def test_redunet_climbs_at_every_layer_and_its_rates_are_the_metrics(generator):
    X, y = room.gaussian_toy(3, 100, generator=generator)
    net = room.construct(X, y, layers=60, eps=0.1**0.5, step=0.5)
    assert bool((net.reductions.diff() > 0).all())
    for at, features in ((0, X), (-1, net.features)):
        assert_close(net.rates[at, 0], coding_rate(features, eps=0.1**0.5))
        assert_close(net.rates[at, 1], class_coding_rate(features, y, eps=0.1**0.5))
    assert float(net.reductions[-1]) <= room.optimum([100] * 3, 3, eps=0.1**0.5).value
    assert_close(net.features.norm(dim=1), torch.ones(300, dtype=X.dtype))


def test_redunet_does_not_depend_on_the_order_of_the_samples(generator):
    X, y = room.gaussian_toy(2, 40, generator=generator)
    order = torch.randperm(80, generator=generator)
    one = room.construct(X, y, layers=20, eps=0.3, step=0.5)
    other = room.construct(X[order], y[order], layers=20, eps=0.3, step=0.5)
    assert_close(other.features, one.features[order])


def test_new_samples_follow_their_class(generator):
    X, y = room.gaussian_toy(2, 200, generator=generator)
    unseen, truth = room.gaussian_toy(2, 200, generator=generator)
    net = room.construct(X, y, layers=100, eps=0.1**0.5, step=0.5)
    moved = net.transform(unseen)
    assert float((moved @ moved.mT).abs()[truth[:, None] != truth].mean()) < 0.5 * float(
        (unseen @ unseen.mT).abs()[truth[:, None] != truth].mean()
    )
    assert bool((net.predict(moved) == truth).all())
    assert bool((room.nearest_subspace(net.features, y, moved, rank=1) == truth).all())
    # with the training samples' memberships certain, new and training samples move alike
    assert_close(net.transform(X), net.features, rtol=0, atol=0.2)


def test_nearest_subspace_finds_planes(generator):
    X, y = room.orthogonal_classes([30, 30], [2, 3], 6, generator=generator)
    assert bool((room.nearest_subspace(X, y, X, rank=2) == y).all())


def measure(tokens, labels):
    return collect(room.THEORY.measure(TokenData(tokens, labels), torch.Generator().manual_seed(0)))


def test_features_are_flat_tokens_or_the_class_token_or_the_mean():
    y = torch.arange(8) % 2
    narrow, wide = normal(8, 4, 16), normal(8, 4, 40)
    expected = (
        (TokenData(narrow, y), narrow.flatten(1)),
        (TokenData(wide, y), wide.mean(1)),
        (TokenData(wide, y, query=wide[:, 0]), wide[:, 0]),
        (TokenData(wide[:, :1], y), wide[:, 0]),
    )
    for given, vectors in expected:
        features = features_of(given, torch.Generator())
        assert_close(features.vectors, unit_norm(vectors))
        assert features.words


def test_held_out_accuracy_is_no_verdict_on_the_theory(generator):
    features, labels = room.problem.orthogonal_classes((40, 40), (2, 2), 6, generator=generator)  # the classes have room
    rows, _ = collect(room.THEORY.measure(TokenData(features[:, None], labels), torch.Generator().manual_seed(0)))
    by_name = {row["quantity"]: row for row in rows}
    assert by_name["assumption: the classes have room: their ranks add up to at most d"]["verdict"] == "holds"
    assert by_name["held-out accuracy after ReduNet"]["verdict"] == "outside assumptions"


def test_digits(unchecked):  # the contract checks shapes
    rows, arrays = collect(room.THEORY.measure(data.load("digits"), torch.Generator().manual_seed(0)))
    by_name = {row["quantity"]: row for row in rows}
    answer = by_name[room.THEORY.answer]
    assert answer["value"] > 5 * answer["null"]
    assert by_name["share of ReduNet's layers that raise the rate reduction"]["value"] == 1.0
    assert answer["verdict"] == "outside assumptions"
    reduction = by_name["rate reduction of the features"]
    assert reduction["value"] > 5 * reduction["null"] > 0
    assert "verdict" not in reduction  # it cannot be negative, so it is no evidence
    assert by_name["rate reduction after ReduNet"]["value"] == pytest.approx(56.6, abs=1.0)
    assert by_name["held-out accuracy after ReduNet"]["value"] >= 0.96
    assert np.all(np.diff(arrays["rate_reduction/rates"] @ [1, -1]) > 0)
    assert all(name.startswith("rate_reduction/") for name in arrays)
    figure = room.THEORY.draw(Result("compare", table=rows, arrays=arrays))
    assert len([panel for panel in figure.axes if panel.get_label() != "<colorbar>"]) == 4


@pytest.mark.parametrize(
    ("tokens", "labels", "reason"),
    [
        (normal(6, 3, 2), None, "needs labels"),
        (normal(6, 3, 2), torch.full((6,), 2), "at least two classes"),
        (torch.zeros(4, 1, 2, dtype=torch.float64), torch.tensor([0, 1, 0, 1]), "zero"),
    ],
)
def test_not_applicable_is_said(tokens, labels, reason):
    rows, arrays = measure(tokens, labels)
    assert len(rows) == 1
    assert rows[0]["verdict"].startswith("not applicable")
    assert reason in rows[0]["note"]
    room.THEORY.draw(Result("compare", table=rows, arrays=arrays))


@pytest.mark.parametrize(
    ("tokens", "labels"),
    [
        (normal(2, 1, 1), torch.tensor([0, 1])),
        (normal(20, 1, 3), torch.arange(20)),  # each sample its own class, more classes than dimensions
        (normal(12, 3, 2)[:1].expand(12, 3, 2).clone(), torch.arange(12) % 2),  # duplicates
        (normal(40, 3, 200), torch.arange(40) % 3 * 4),  # wider than the room looks at, gaps in the labels
        (torch.cat([normal(10, 2, 2), torch.zeros(10, 2, 2, dtype=torch.float64)]), torch.arange(20) // 10),
    ],
)
def test_any_valid_data_get_one_answer_and_no_exception(tokens, labels):
    rows, arrays = measure(tokens, labels)
    assert sum(row["quantity"] == room.THEORY.answer for row in rows) == 1
    for row in rows:
        assert np.isfinite(row["value"]) if row["value"] is not None else row["verdict"].startswith("not applicable: ")
    room.THEORY.draw(Result("compare", table=rows, arrays=arrays))


def observe(output, layer=0, kind="features", tokens=None):
    return Observation(module=f"blocks.{layer}", layer=layer, kind=kind, tokens=output if tokens is None else tokens, output=output)


def test_reducer_reads_the_class_token_where_there_is_one():
    y, output = torch.arange(60) % 3, normal(60, 5, 8)
    entered = normal(60, 5, 8)
    entered[:, 0] = 1.0
    reducer, mean = room.RateReduction(), room.RateReduction()
    reducer.update(observe(output, tokens=entered), y)
    entered[:, 3] = 2.0  # a second constant token: a blank corner of all images, not a class token
    mean.update(observe(output, tokens=entered), y)
    for each, features in ((reducer, output[:, 0]), (mean, output.mean(1))):
        value = next(row["value"] for row in each.compute() if row["quantity"] == "rate reduction")
        assert_close(value, float(rate_reduction(unit_norm(features), y, eps=each.eps)), rtol=1e-10, atol=0)
    with pytest.raises(ValueError, match="same token"):
        reducer.merge(mean)


def test_reducer_reads_the_metric_and_its_null():
    (reducer,) = room.THEORY.reducers()
    y = torch.arange(120) % 3
    output = (normal(120, 5, 8) * 0.3 + normal(3, 1, 8, seed=2)[y]).float()
    reducer.update(observe(output, kind="attention"), y)
    reducer.update(observe(output), None)
    assert list(reducer.compute()) == []
    for part in torch.arange(120).split(50):
        reducer.update(observe(output[part], layer=1), y[part])
    by_name = {row["quantity"]: row for row in reducer.compute()}
    X = unit_norm(output.double().mean(1))
    row = by_name[room.THEORY.order_parameter]
    assert_close(row["value"], float(rate_reduction(X, y, eps=reducer.eps)), rtol=1e-10, atol=0)
    assert row["layer"] == 1
    assert row["value"] > 3 * row["null"] > 0
    assert 0 < by_name["rate reduction as a share of the optimum"]["value"] < 1
    other = room.RateReduction()
    other.update(observe(output, layer=1), y)
    other.merge(reducer)
    assert_close({r["quantity"]: r["value"] for r in other.compute()}, {r["quantity"]: r["value"] for r in reducer.compute()})
    reducer.reset()
    assert list(reducer.compute()) == []


def test_few_samples_and_many_are_read_alike():
    """Few samples are kept, many folded into moments; what merges may be either."""
    y, output = torch.arange(210) % 3, normal(210, 5, 8)
    few, many = slice(0, 60), slice(60, 210)
    readers = [room.RateReduction() for _ in range(7)]
    whole, batched, a, b, c, d, small = readers
    for reducer, parts in (
        (whole, [slice(0, 210)]),
        (batched, [few, many]),
        (a, [few]),
        (b, [many]),
        (c, [many]),
        (d, [few]),
        (small, [few]),
    ):
        for part in parts:
            reducer.update(observe(output[part]), y[part])
    a.merge(b)
    c.merge(d)
    assert small.kept
    assert not small.states
    assert whole.states
    for reducer in (batched, a, c):
        for one, other in zip(reducer.compute(), whole.compute(), strict=True):
            assert_close(one["value"], other["value"], rtol=1e-9, atol=0)
    X = unit_norm(output[few].mean(1))
    first = small.compute()
    assert first == small.compute()
    assert_close(first[0]["value"], float(rate_reduction(X, y[few], eps=small.eps)), rtol=1e-10, atol=0)
    assert first[0]["value"] > 0
    assert 0 < first[0]["null"] != first[0]["value"]


@pytest.mark.parametrize("classes", [2, 10])
def test_the_null_is_that_of_shuffled_labels_however_samples_are_ordered(classes):
    """A loader that is sorted by class has batches of one class each, in which a shuffle changes nothing."""
    n, d = 600, 8
    y = torch.arange(n) % classes
    output = normal(n, 1, d) + 2 * normal(classes, 1, d, seed=3)[y]
    order, generator = y.argsort(stable=True), torch.Generator().manual_seed(5)
    X, shuffles = unit_norm(output[:, 0]), [y[torch.randperm(n, generator=generator)] for _ in range(20)]
    nulls = torch.tensor([float(rate_reduction(X, labels, eps=0.5**0.5)) for labels in shuffles])
    mixed, by_class, first, second = (room.RateReduction() for _ in range(4))
    for part in torch.arange(n).split(50):
        mixed.update(observe(output[part]), y[part])
        by_class.update(observe(output[order][part]), y[order][part])
        (first if int(part[0]) < n // 2 else second).update(observe(output[order][part]), y[order][part])
    first.merge(second)
    for reducer in (mixed, by_class, first):
        row = reducer.compute()[0]
        assert row == reducer.compute()[0]
        assert_close(row["value"], float(rate_reduction(X, y, eps=reducer.eps)), rtol=1e-9, atol=0)
        assert row["null"] == pytest.approx(float(nulls.mean()), rel=0.25)
        assert len(reducer.kept[0][0]) == 16 * d


def test_reducer_leaves_out_what_is_not_finite_and_names_bad_labels(unchecked):
    y, output = torch.arange(20) % 3, normal(20, 5, 8)
    whole, some = room.RateReduction(), room.RateReduction()
    whole.update(observe(output[1:]), y[1:])
    output[0, 1, 2] = torch.inf
    some.update(observe(output), y)
    assert whole.compute() == some.compute()
    with pytest.raises(ValueError, match="labels must be integers"):
        some.update(observe(output), y - 1)
    with pytest.raises(ValueError, match="labels must be integers"):
        some.update(observe(output), y.double())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: room.optimum([3, 3, 3], 2, eps=1.0), "3 classes in 2 dimensions"),
        (lambda: room.optimum([], 2, eps=1.0), "class sizes"),
        (lambda: room.optimum([3], 2, eps=0.0), "eps must be positive and finite"),
        (lambda: room.flat_reduction([3, 3], [2, 2], 3, eps=1.0), "sum <= 3"),
        (lambda: room.equal_moments((3,), 4, generator=torch.Generator()), "at least 4 samples"),
        (lambda: room.construct(normal(4, 2), torch.tensor([0, 0, 2, 2]), layers=1, eps=1.0, step=0.5), "each class 0..2"),
        (lambda: room.construct(normal(4, 2), torch.tensor([0, 1]), layers=1, eps=1.0, step=0.5), r"one a sample, \[4\], got \[2\]"),
        (lambda: room.construct(normal(2, 2), torch.tensor([0, 1]), layers=0, eps=1.0, step=0.5), "layers"),
        (lambda: room.nearest_subspace(normal(2, 2), torch.tensor([0, 1]), normal(1, 2), rank=0), "rank"),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()
