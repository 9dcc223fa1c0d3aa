"""The ladder of the rate reduction: closed forms of its quantities, its own setting, and the contract of its rungs."""

import math
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.core.errors import NotConverged
from transformer_theory.data import TokenData
from transformer_theory.metrics.coding import rate_reduction, unit_norm
from transformer_theory.models import ViT
from transformer_theory.probes import probe
from transformer_theory.theories.rate_reduction import RateReductionMetric, flat_reduction, ladder, optimum, orthogonal_classes
from transformer_theory.theories.rate_reduction.in_networks import SHARE
from transformer_theory.theories.rate_reduction.ladder import LADDER, quantities, trainings
from transformer_theory.theories.rate_reduction.problem import sorted_labels

EPS = 0.5**0.5
TRAINED_HERE = [rung for rung in LADDER.rungs if rung.column != "trained network"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def evaluated(features, labels, **columns):
    orders = torch.stack([torch.randperm(len(labels), generator=generator()) for _ in range(9)])
    return quantities.Evaluated(features, labels, orders, **columns)


def lines(angle):
    """Two classes on two lines of the plane, with both signs."""
    directions = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    return torch.cat([signs[:, None] * direction for direction in directions])


@pytest.mark.parametrize("degrees", [0.0, 17.0, 60.0, 90.0])
def test_the_angle_between_two_lines(degrees):
    angles = quantities.mean_angles(lines(math.radians(degrees)), torch.tensor([[*range(8)], [0, 1, 4, 5, 2, 3, 6, 7]]), (4, 4))
    assert angles[0] == pytest.approx(degrees, abs=1e-5)
    assert angles[1] == pytest.approx(0.0, abs=1e-5)  # both classes have two samples of each line


def test_the_angle_between_flat_subspaces_averages_squared_cosines():
    """Two planes in R^4 with principal angles 30 and 70 degrees."""
    first, second = math.radians(30), math.radians(70)
    a = torch.eye(4, dtype=torch.float64)[:2]
    b = torch.tensor([[math.cos(first), 0, math.sin(first), 0], [0, math.cos(second), 0, math.sin(second)]], dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=generator())).Q
    angle = quantities.mean_angles(torch.cat([a, b]) @ rotation, torch.arange(4)[None], (2, 2))
    assert float(angle) == pytest.approx(math.degrees(math.acos(((math.cos(first) ** 2 + math.cos(second) ** 2) / 2) ** 0.5)))


@pytest.mark.parametrize("sizes", [(25,) * 10, (22, 30, 29, 26, 21), (3, 9)])
def test_the_value_at_neural_collapse_is_that_of_a_simplex(sizes):
    k, dim = len(sizes), 12
    centred = torch.eye(k, dtype=torch.float64) - 1 / k
    vertices = unit_norm(torch.nn.functional.pad(centred, (0, dim - k)))
    labels = sorted_labels(sizes)
    value = quantities.collapsed_reduction(sizes, dim, eps=EPS)
    assert value == pytest.approx(float(rate_reduction(vertices[labels], labels, eps=EPS)), rel=1e-12)
    if len(set(sizes)) == 1:
        assert value == pytest.approx((k - 1) / 2 * math.log1p(dim / ((k - 1) * EPS**2)) - math.log1p(dim / EPS**2) / 2)
    assert value < flat_reduction(sizes, [1] * k, dim, eps=EPS) < optimum(sizes, dim, eps=EPS).value


@pytest.mark.parametrize(("sizes", "dim", "eps"), [((5,), 4, 1.0), ((5, 0), 4, 1.0), ((5, 5, 5), 1, 1.0), ((5, 5), 4, 0.0)])
def test_a_simplex_that_does_not_fit_is_refused(sizes, dim, eps):
    with pytest.raises(ValueError, match=r"simplex|eps"):
        quantities.collapsed_reduction(sizes, dim, eps=eps)


def test_the_rows_of_the_optimum_and_of_two_classes_on_one_subspace():
    sizes, dim = (12, 10, 14), 9
    ranks = optimum(sizes, dim, eps=EPS).ranks
    features, labels = orthogonal_classes(sizes, ranks, dim, generator=generator())
    # Norm 1 instead of a fixed norm per class: close to the optimum, and exactly orthogonal.
    share, angle, collapsed = quantities.rows(evaluated(features, labels, collapse=True))
    assert 0.95 < share.value < 1 == share.predicted
    assert angle.value == pytest.approx(90, abs=1e-5) == angle.predicted
    assert max(share.null.draws) < share.value
    assert max(angle.null.draws) < angle.value
    best, reference = optimum(sizes, dim, eps=EPS).value, quantities.collapsed_reduction(sizes, dim, eps=EPS)
    assert collapsed.value == pytest.approx(share.value * best / reference)
    assert collapsed.null.draws == pytest.approx([draw * best / reference for draw in share.null.draws])
    features[labels == 1] = features[labels == 0][:10]
    worse_share, worse_angle = quantities.rows(evaluated(features, labels))
    assert worse_share.value < share.value - 0.1
    assert worse_angle.value == pytest.approx(60, abs=5)  # two pairs of orthogonal classes, and one with the same subspace


def test_a_class_of_zeros_has_no_angle():
    features, labels = orthogonal_classes((6, 6), (2, 2), 4, generator=generator())
    features[labels == 0] = 0
    row = quantities.angle_row(evaluated(features, labels))
    assert row.value is None
    assert "zero" in row.reason


def test_more_classes_than_dimensions_have_no_share():
    labels = torch.arange(20) % 5
    row = quantities.last_layer_row(evaluated(torch.randn(20, 4, dtype=torch.float64, generator=generator()), labels))
    assert row.value is None
    assert "5 classes" in row.reason


def test_free_features_reach_the_optimum():
    share, angle, before = LADDER.rungs[0].measure(generator())
    assert share.value == pytest.approx(1, abs=1e-3)
    assert angle.value == pytest.approx(90, abs=0.1)
    assert share.null.high < 0.7
    assert len(set(share.null.draws)) == 199
    assert before.value < 0.9
    assert LADDER.rungs[0].covered


def test_ascent_for_other_classes_does_not_reach_the_optimum(monkeypatch):
    """The broken variant: the features ascend ΔR of permuted labels."""
    objective = trainings.MaximalCodingRateReduction(eps=EPS)
    order = torch.randperm(trainings.HELD_OUT, generator=generator())
    monkeypatch.setattr(trainings, "MaximalCodingRateReduction", lambda eps: lambda features, labels: objective(features, labels[order]))
    share, *_ = LADDER.rungs[0].measure(generator())
    assert share.value < 0.9


@pytest.fixture
def short(monkeypatch):
    """Three steps per training, and few draws."""
    monkeypatch.setattr(trainings, "HEADLINE_DRAWS", 19)
    monkeypatch.setattr(trainings, "STEPS", 3)
    monkeypatch.setattr(trainings, "BATCH_STEPS", 3)


@pytest.mark.parametrize("rung", TRAINED_HERE, ids=lambda rung: rung.name)
def test_every_rung_has_the_headline_with_its_null(rung, short):
    rows, again = list(rung.measure(generator())), list(rung.measure(generator()))
    assert rows == again
    assert [row.quantity for row in rows].count(LADDER.quantity) == 1
    for row in rows:
        assert (row.theory, row.kind, row.n, row.side) == ("rate_reduction", "rung", trainings.HELD_OUT, ">=")
        assert row.null is not None
        assert row.null.kind == LADDER.null_kind
        assert len(set(row.null.draws)) == 19
        assert row.source is not None
    assert rows[0].quantity == LADDER.quantity
    assert (rows[0].unit, rows[0].predicted, rows[0].basis) == (LADDER.unit, 1.0, "theory")
    assert {row.split for row in rows} == {"train" if rung is LADDER.rungs[0] else "validation"}


def test_all_rungs_have_the_same_class_sizes(short):
    sizes = [train(generator()).sizes for train in (trainings.free_features, trainings.on_mixture, trainings.on_digits, trainings.adamw)]
    assert sizes[1:] == sizes[:-1]


def test_only_training_labels_are_wrong(monkeypatch):
    seen = []
    monkeypatch.setattr(trainings, "_with_adamw", lambda model, train, held_out, generator: seen.append((train, held_out)))
    features = trainings.wrong_labels(generator())
    (train, held_out), (right, right_held_out) = seen[0], trainings.digit_parts()
    assert_close(float((train.labels != right.labels).double().mean()), 0.9 * trainings.NOISE, rtol=0, atol=0.05)
    assert torch.equal(held_out.labels, right_held_out.labels)
    assert torch.equal(features.labels, right_held_out.labels)
    assert not features.collapse


def test_the_last_layer_of_a_trained_network_is_that_of_the_metric(monkeypatch):
    tokens, labels = torch.randn(300, 5, 6, dtype=torch.float64, generator=generator()), torch.arange(300) % 3
    data = TokenData(tokens=tokens, labels=labels)
    model = ViT.for_tokens(5, 6, 3, dim=16, depth=2, heads=2).eval()
    monkeypatch.setattr(ladder, "trained_network", lambda recipe, seed, images: (model, data))
    rows = list(ladder._in_trained_network("ViT", generator()))
    assert [row.quantity for row in rows] == [SHARE, quantities.LAST_LAYER, quantities.ANGLE]
    metric = RateReductionMetric()
    with torch.no_grad(), probe(model, [metric], draws=199) as p:
        p.labels = labels[:256]
        model(tokens[:256].float())
    expected = p.result().select(quantity=SHARE, layer=1).one()
    assert rows[1].value == pytest.approx(expected.value, rel=1e-6)
    assert rows[1].null.draws == pytest.approx(expected.null.draws, rel=1e-6)


def test_a_diverging_training_is_a_row_with_a_reason():
    def diverge(generator):
        raise NotConverged("step 3: the loss is nan", state=None)

    (row,) = ladder._measure(diverge, generator())
    assert (row.quantity, row.value, row.reason) == (LADDER.quantity, None, "step 3: the loss is nan")


def test_trained_networks_come_last():
    names = [rung.name for rung in LADDER.rungs if rung.column == "trained network"]
    assert names == [rung.name for rung in LADDER.rungs[-3:]]
    assert [rung.needs for rung in LADDER.rungs[-3:]] == ["", "", "images"]
    assert all(isinstance(rung.measure, partial) for rung in LADDER.rungs)


def test_the_share_of_the_inputs_is_that_of_centred_pixels(short):
    rows = {row.quantity: row for row in ladder._measure(trainings.on_digits, generator())}
    train, held_out = trainings.digit_parts()
    pixels = held_out.tokens.flatten(1) - train.tokens.flatten(1).mean(0)
    best = optimum(torch.bincount(held_out.labels).tolist(), 64, eps=EPS).value
    expected = float(rate_reduction(unit_norm(pixels), held_out.labels, eps=EPS)) / best
    assert rows[quantities.INPUTS].value == pytest.approx(expected, rel=1e-9)
    assert rows[quantities.INPUTS].null.high < expected
