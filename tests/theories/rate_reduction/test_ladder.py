"""The ladder of the rate reduction: closed forms of its quantities, its own setting, and the contract of its
rungs.
"""

import math
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.core.errors import NotConverged
from transformer_theory.data import TokenData
from transformer_theory.metrics.coding import rate_reduction, unit_norm
from transformer_theory.models import ViT
from transformer_theory.probes import probe
from transformer_theory.theories.rate_reduction import (
    RateReductionMetric,
    flat_reduction,
    ladder,
    optimum,
    orthogonal_classes,
)
from transformer_theory.theories.rate_reduction.in_networks import SHARE
from transformer_theory.theories.rate_reduction.ladder import LADDER, quantities, trainings
from transformer_theory.theories.rate_reduction.ladder.inputs import PROJECTIONS, isometric, projections
from transformer_theory.theories.rate_reduction.problem import sorted_labels

EPS = 0.5**0.5
TRAINED_HERE = [rung for rung in LADDER.rungs if rung.column != "trained network"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def evaluated(features, labels, inputs=None, **columns):
    orders = torch.stack([torch.randperm(len(labels), generator=generator()) for _ in range(9)])
    return quantities.Evaluated(features, labels, orders, features if inputs is None else inputs, **columns)


def share_of(features, labels):
    """ΔR of features scaled to norm 1, as a share of its optimum, by the definition."""
    best = optimum(torch.bincount(labels).tolist(), features.shape[1], eps=EPS).value
    return float(rate_reduction(unit_norm(features), labels, eps=EPS)) / best


def lines(angle):
    """Two classes on two lines of the plane, with both signs."""
    directions = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    return torch.cat([signs[:, None] * direction for direction in directions])


@each_case("degrees", [0.0, 17.0, 60.0, 90.0])
def test_the_angle_between_two_lines(degrees):
    angles = quantities.mean_angles(
        lines(math.radians(degrees)), torch.tensor([[*range(8)], [0, 1, 4, 5, 2, 3, 6, 7]]), (4, 4)
    )
    assert angles[0] == pytest.approx(degrees, abs=1e-5)
    assert angles[1] == pytest.approx(0.0, abs=1e-5)  # both classes have two samples of each line


def test_the_angle_between_flat_subspaces_averages_squared_cosines():
    """Two planes in R^4 with principal angles 30 and 70 degrees."""
    first, second = math.radians(30), math.radians(70)
    a = torch.eye(4, dtype=torch.float64)[:2]
    b = torch.tensor(
        [[math.cos(first), 0, math.sin(first), 0], [0, math.cos(second), 0, math.sin(second)]],
        dtype=torch.float64,
    )
    rotation = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=generator())).Q
    angle = quantities.mean_angles(torch.cat([a, b]) @ rotation, torch.arange(4)[None], (2, 2))
    assert float(angle) == pytest.approx(
        math.degrees(math.acos(((math.cos(first) ** 2 + math.cos(second) ** 2) / 2) ** 0.5))
    )


@pytest.mark.parametrize("sizes", [(25,) * 10, (22, 30, 29, 26, 21), (3, 9)])
def test_the_value_at_neural_collapse_is_that_of_a_simplex(sizes):
    k, dim = len(sizes), 12
    centred = torch.eye(k, dtype=torch.float64) - 1 / k
    vertices = unit_norm(torch.nn.functional.pad(centred, (0, dim - k)))
    labels = sorted_labels(sizes)
    value = quantities.collapsed_reduction(sizes, dim, eps=EPS)
    assert value == pytest.approx(float(rate_reduction(vertices[labels], labels, eps=EPS)), rel=1e-12)
    if len(set(sizes)) == 1:
        assert value == pytest.approx(
            (k - 1) / 2 * math.log1p(dim / ((k - 1) * EPS**2)) - math.log1p(dim / EPS**2) / 2
        )
    assert value < flat_reduction(sizes, [1] * k, dim, eps=EPS) < optimum(sizes, dim, eps=EPS).value


@each_case(("sizes", "dim", "eps"), [((5,), 4, 1.0), ((5, 0), 4, 1.0), ((5, 5, 5), 1, 1.0), ((5, 5), 4, 0.0)])
def test_a_simplex_that_does_not_fit_is_refused(sizes, dim, eps):
    with pytest.raises(ValueError, match=r"simplex|eps"):
        quantities.collapsed_reduction(sizes, dim, eps=eps)


def test_the_rows_of_the_optimum_and_of_two_classes_on_one_subspace():
    sizes, dim = (12, 10, 14), 9
    ranks = optimum(sizes, dim, eps=EPS).ranks
    features, labels = orthogonal_classes(sizes, ranks, dim, generator=generator())
    # Norm 1 instead of a fixed norm per class: close to the optimum, and exactly orthogonal.
    share, angle, _, collapsed = quantities.rows(evaluated(features, labels, collapse=True))
    assert 0.95 < share.value < 1 == share.predicted
    assert angle.value == pytest.approx(90, abs=1e-5) == angle.predicted
    assert max(share.null.draws) < share.value
    assert max(angle.null.draws) < angle.value
    best, reference = optimum(sizes, dim, eps=EPS).value, quantities.collapsed_reduction(sizes, dim, eps=EPS)
    assert collapsed.value == pytest.approx(share.value * best / reference)
    assert collapsed.null.draws == pytest.approx([draw * best / reference for draw in share.null.draws])
    assert share.nulls[1].draws == pytest.approx([share.value] * 9)  # these features are their own inputs
    features[labels == 1] = features[labels == 0][:10]
    worse_share, worse_angle, _ = quantities.rows(evaluated(features, labels))
    assert worse_share.value < share.value - 0.1
    # two pairs of orthogonal classes, and one with the same subspace
    assert worse_angle.value == pytest.approx(60, abs=5)


@pytest.mark.parametrize("sizes", [(20, 20), (10, 30), (7, 30)])
def test_two_classes_have_no_share_of_their_value_at_collapse(sizes):
    """Points u and -u: R = R_1 = R_2 = log(1 + d / eps^2) / 2, so the value at collapse is 0."""
    for dim in (2, 9, 64):
        assert quantities.collapsed_reduction(sizes, dim, eps=EPS) == 0
    features = unit_norm(torch.randn(sum(sizes), 9, dtype=torch.float64, generator=generator()))
    share, *_, collapsed = quantities.rows(evaluated(features, sorted_labels(sizes), collapse=True))
    assert 0 < share.value < 1
    assert (collapsed.quantity, collapsed.value, collapsed.null) == (quantities.COLLAPSED, None, None)
    assert collapsed.reason == "at the neural collapse of two classes, u and -u, the rate reduction is 0"


def test_a_class_of_zeros_has_no_angle():
    features, labels = orthogonal_classes((6, 6), (2, 2), 4, generator=generator())
    features[labels == 0] = 0
    row = quantities.angle_row(evaluated(features, labels))
    assert row.value is None
    assert "zero" in row.reason


def test_more_classes_than_dimensions_have_no_share():
    labels = torch.arange(20) % 5
    row = quantities.last_layer_row(
        evaluated(torch.randn(20, 4, dtype=torch.float64, generator=generator()), labels)
    )
    assert row.value is None
    assert "5 classes" in row.reason


def test_free_features_reach_the_optimum():
    share, angle, inputs, before = LADDER.rungs[0].measure(generator())
    second = share.nulls[1]
    assert share.value == pytest.approx(1, abs=1e-3)
    assert angle.value == pytest.approx(90, abs=0.1)
    assert share.null.high < 0.7
    assert len(set(share.null.draws)) == 399 == len(second.draws)
    assert second.high < 0.9
    assert second.median == pytest.approx(inputs.value)
    assert inputs.value == pytest.approx(before.value, abs=0.02)  # the mean of the mixture is almost zero
    assert LADDER.rungs[0].covered


def test_ascent_for_other_classes_does_not_reach_the_optimum(monkeypatch):
    """The broken variant: the features ascend ΔR of permuted labels."""
    objective = trainings.MaximalCodingRateReduction(eps=EPS)
    order = torch.randperm(trainings.HELD_OUT, generator=generator())
    monkeypatch.setattr(
        trainings,
        "MaximalCodingRateReduction",
        lambda eps: lambda features, labels: objective(features, labels[order]),
    )
    share, *_ = LADDER.rungs[0].measure(generator())
    assert share.value < 0.9


@pytest.fixture
def short(monkeypatch):
    """Three steps per training, and few draws."""
    monkeypatch.setattr(trainings, "LADDER_DRAWS", 19)
    monkeypatch.setattr(trainings, "STEPS", 3)
    monkeypatch.setattr(trainings, "TRANSFORMER_STEPS", 3)


@pytest.mark.parametrize("rung", TRAINED_HERE, ids=lambda rung: rung.name)
def test_every_rung_has_the_headline_with_both_nulls(rung, short):
    rows, again = list(rung.measure(generator())), list(rung.measure(generator()))
    assert rows == again
    assert [row.quantity for row in rows].count(LADDER.quantity) == 1
    assert [(null.kind, len(null.draws)) for null in rows[0].nulls] == [
        (LADDER.null, 19),
        (PROJECTIONS, 19),
    ]
    for row in rows:
        assert (row.theory, row.kind, row.n, row.side) == ("rate_reduction", "rung", trainings.HELD_OUT, ">=")
        assert not row.at
        assert row.null is not None
        assert row.null.kind == LADDER.null
        assert len(set(row.null.draws)) == 19
        assert row.source is not None
    assert rows[0].quantity == LADDER.quantity
    assert (rows[0].unit, rows[0].predicted, rows[0].basis) == (LADDER.unit, 1.0, "theory")
    assert {row.split for row in rows} == {"train" if rung in LADDER.rungs[:2] else "validation"}


def test_all_rungs_have_the_same_class_sizes(short):
    rungs = (
        trainings.free_features,
        trainings.on_training_samples,
        trainings.on_mixture,
        trainings.on_digits,
        trainings.adamw,
    )
    sizes = [train(generator()).sizes for train in rungs]
    assert sizes[1:] == sizes[:-1]


def test_the_second_rung_has_the_samples_of_the_first_and_the_third_has_others(monkeypatch):
    """The network of the second rung ascends the samples that are measured, that of the third rung others of
    the same mixture.
    """
    trained = []
    fit = trainings.fit_supervised
    monkeypatch.setattr(trainings, "STEPS", 1)
    monkeypatch.setattr(
        trainings,
        "fit_supervised",
        lambda recipe, *args, **columns: (trained.append(args[1]), fit(recipe, *args, **columns)),
    )
    _, samples = trainings.mixture(generator())
    measured = [
        train(generator()).inputs
        for train in (trainings.free_features, trainings.on_training_samples, trainings.on_mixture)
    ]
    assert_close(measured[0], measured[1])
    assert_close(trained[0][:, 0], samples.tokens.float())
    other, _ = trainings.mixture(generator())
    assert_close(trained[1][:, 0], other.tokens.float())
    assert_close(measured[2], (samples.tokens.flatten(1) - other.tokens.flatten(1).mean(0)))


def test_only_the_optimiser_changes_between_neighbouring_rungs(monkeypatch):
    """Full batches, mini-batches and AdamW take the same number of steps."""
    seen = []
    monkeypatch.setattr(
        trainings, "descend", lambda *args, **columns: seen.append((columns["steps"], columns["batch_size"]))
    )
    monkeypatch.setattr(
        trainings,
        "train_classifier",
        lambda *args, **columns: seen.append((columns["steps"], columns["batch_size"])),
    )
    for train in (trainings.plain, trainings.mini_batches, trainings.adamw):
        train(generator())
    assert seen == [
        (trainings.STEPS, len(trainings.digit_parts()[0])),
        *[(trainings.STEPS, trainings.BATCH)] * 2,
    ]


def test_only_training_labels_are_wrong(monkeypatch):
    seen = []
    monkeypatch.setattr(
        trainings, "_with_adamw", lambda model, train, held_out, **columns: seen.append((train, held_out))
    )
    features = trainings.wrong_labels(generator())
    (train, held_out), (right, right_held_out) = seen[0], trainings.digit_parts()
    assert_close(
        float((train.labels != right.labels).double().mean()), 0.9 * trainings.NOISE, rtol=0, atol=0.05
    )
    assert torch.equal(held_out.labels, right_held_out.labels)
    assert torch.equal(features.labels, right_held_out.labels)
    assert not features.collapse


def test_the_last_layer_of_a_trained_network_is_that_of_the_metric(monkeypatch):
    tokens, labels = torch.randn(300, 5, 6, dtype=torch.float64, generator=generator()), torch.arange(300) % 3
    data = TokenData(tokens=tokens, labels=labels)
    model = ViT.for_tokens(5, 6, 3, dim=16, depth=2, heads=2).eval()
    training = TokenData(
        tokens=torch.randn(90, 5, 6, dtype=torch.float64, generator=generator(1)), labels=torch.arange(90) % 3
    )
    monkeypatch.setattr(ladder, "trained_network", lambda recipe, seed, images: (model, data))
    monkeypatch.setattr(ladder, "_training_tokens", lambda images: training)
    rows = list(ladder.in_trained_network(generator(), recipe="ViT"))
    assert [row.quantity for row in rows] == [
        SHARE,
        quantities.INPUTS,
        quantities.LAST_LAYER,
        quantities.ANGLE,
    ]
    headline, inputs, last, _ = rows
    second = headline.nulls[1]
    metric, draws = RateReductionMetric(), len(last.null.draws)
    with torch.no_grad(), probe(model, [metric], draws=draws) as p:
        p.labels = labels[:256]
        model(tokens[:256].float())
    expected = p.result().select(quantity=SHARE, layer=1).one()
    assert draws == 399
    assert last.value == pytest.approx(expected.value, rel=1e-6)
    assert last.null.draws == pytest.approx(expected.null.draws, rel=1e-6)
    # 30 inputs are projected to the 16 dimensions of the network, without their training mean.
    assert second == projections(
        (tokens[:256] - training.tokens.mean(0)).flatten(1), labels[:256], 16, draws=399
    )
    assert second.low <= inputs.value <= second.high


def test_a_diverging_training_is_a_row_with_a_reason():
    def diverge(generator):
        raise NotConverged("step 3: the loss is nan", state=None)

    (row,) = ladder.trained(generator(), train=diverge)
    assert (row.quantity, row.value, row.reason) == (LADDER.quantity, None, "step 3: the loss is nan")


def test_trained_networks_come_last():
    names = [rung.name for rung in LADDER.rungs if rung.column == "trained network"]
    assert names == [rung.name for rung in LADDER.rungs[-3:]]
    assert [rung.needs for rung in LADDER.rungs[-3:]] == ["", "", "images"]
    assert all(isinstance(rung.measure, partial) for rung in LADDER.rungs)


def test_the_second_null_on_the_digits_is_that_of_centred_pixels(short):
    rows = {row.quantity: row for row in ladder.trained(generator(), train=trainings.on_digits)}
    train, held_out = trainings.digit_parts()
    expected = share_of(held_out.tokens.flatten(1) - train.tokens.flatten(1).mean(0), held_out.labels)
    assert rows[quantities.INPUTS].value == pytest.approx(expected, rel=1e-9)
    assert rows[quantities.INPUTS].null.high < expected
    assert rows[SHARE].nulls[1].draws == pytest.approx([expected] * 19, rel=1e-9)
    # centred inputs are harder to exceed
    assert expected > share_of(held_out.tokens.flatten(1), held_out.labels)


def test_no_isometry_changes_the_share():
    """Why a single draw stands for all if the inputs do not have more dimensions than the features."""
    inputs, labels = torch.randn(60, 5, dtype=torch.float64, generator=generator()), torch.arange(60) % 3
    mixed = inputs @ torch.linalg.qr(torch.randn(9, 5, dtype=torch.float64, generator=generator())).Q.mT
    null = projections(inputs, labels, 9, draws=7)
    assert (null.kind, len(null.draws), len(set(null.draws))) == (PROJECTIONS, 7, 1)
    assert null.median == pytest.approx(share_of(mixed, labels), rel=1e-12)


def test_random_projections_are_orthogonal_and_differ():
    inputs, labels = torch.eye(20, dtype=torch.float64), torch.arange(20) % 2
    basis = isometric(inputs, 4, generator())
    assert_close(basis.mT @ basis, torch.eye(4, dtype=torch.float64))
    null = projections(inputs, labels, 4, draws=7)
    assert len(set(null.draws)) == 7
    assert null == projections(inputs, labels, 4, draws=7)  # seeds share them


def test_rungs_that_learn_the_labels_alone_do_not_exceed_their_inputs():
    """The broken variant of the theory's loss: trained by cross-entropy, features separate the classes, but
    pixels have a larger share.
    """
    for train, side in ((trainings.on_digits, ">="), (trainings.adamw, "<=")):
        headline = next(quantities.rows(train(generator())))
        assert headline.null.p(headline.value, ">=") <= 0.05
        assert headline.nulls[1].p(headline.value, side) <= 0.05


def test_trained_networks_say_what_changes():
    assert set(ladder.RECIPES) == {rung.name for rung in LADDER.rungs[-3:]}
    assert all(rung.relaxes == ladder.RECIPES[rung.name] for rung in LADDER.rungs[-3:])
