"""The ladder against numpy: unequal classes in three dimensions, heavy tails, and more and fewer inputs."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.theories.rate_reduction.test_by_hand import classes, optimum, rate, reduction, units
from transformer_theory.core.statistics import permutations
from transformer_theory.data import TokenData
from transformer_theory.theories.rate_reduction.ladder import LADDER, inputs, quantities, trainings

SIZES = (14, 6)
GROUPS = np.repeat([0, 1], SIZES)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def delta(x: np.ndarray, y: np.ndarray) -> float:
    whole, within = reduction(units(x), y, 0.5)
    return whole - within


def angle(x: np.ndarray, y: np.ndarray) -> float:
    """The angle whose squared cosine is <S_0, S_1> / (|S_0| |S_1|), of the second moments of the classes."""
    u = units(x)
    S, T = (u[y == k].T @ u[y == k] / (y == k).sum() for k in (0, 1))
    return math.degrees(math.acos(math.sqrt((S * T).sum() / np.sqrt((S**2).sum() * (T**2).sum()))))


def features(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Unsorted samples of 14 and 6 members, of unequal lengths."""
    return classes(SIZES, seed)


def test_the_rows_of_a_rung():
    (x, y), (before, _) = features(0), features(1)
    rng = np.random.default_rng(2)
    pixels = rng.standard_t(4, size=(20, 5)) * [3, 1, 1, 0.5, 0.2]
    orders = np.array([rng.permutation(20) for _ in range(11)])
    evaluated = quantities.Evaluated(
        torch.from_numpy(x),
        torch.from_numpy(y),
        torch.from_numpy(orders),
        torch.from_numpy(pixels),
        torch.from_numpy(before),
        split="train",
        data="d",
        model="m",
        note="n",
    )
    share, angles, own, start = quantities.rows(evaluated)
    best = optimum(SIZES, 0.5)
    assert share.value == pytest.approx(delta(x, y) / best, rel=1e-6)
    # a draw cuts a permutation of the samples into groups of the sizes of the classes
    null = [delta(x[order], GROUPS) for order in orders]
    assert share.nulls[0].draws == pytest.approx([each / best for each in null], rel=1e-6)
    assert angles.value == pytest.approx(angle(x, y))
    assert angles.null.draws == pytest.approx([angle(x[order], GROUPS) for order in orders])
    assert start.value == pytest.approx(delta(before, y) / best, rel=1e-6)
    assert start.null.draws == pytest.approx(
        [delta(before[order], GROUPS) / best for order in orders], rel=1e-6
    )
    for row in (share, angles, own, start):
        assert (row.side, row.n, row.split, row.data, row.model) == (">=", 20, "train", "d", "m")
    assert [row.predicted for row in (share, angles, own, start)] == [1.0, 90.0, 1.0, 1.0]
    assert (share.basis, share.unit) == ("theory", "share")
    assert len(share.nulls) == 2
    assert len(share.nulls[1].draws) == 11


def test_the_share_of_the_value_at_collapse():
    """Three unequal classes, whose points are the vertices of a triangle at collapse."""
    rng = np.random.default_rng(7)
    sizes = (12, 7, 5)
    y = rng.permutation(np.repeat([0, 1, 2], sizes))
    x = rng.standard_t(4, size=(24, 4)) + 2 * np.eye(3, 4)[y]
    angles = 2 * np.pi * np.arange(3) / 3
    vertices = np.stack([np.cos(angles), np.sin(angles), 0 * angles, 0 * angles], 1)
    reference, orders = delta(vertices[y], y), permutations(24, 6)
    columns = {"features": torch.from_numpy(x), "labels": torch.from_numpy(y), "orders": orders}
    rows = quantities.rows(quantities.Evaluated(inputs=torch.from_numpy(x), collapse=True, **columns))
    (row,) = (row for row in rows if row.quantity == quantities.COLLAPSED)
    assert row.value == pytest.approx(delta(x, y) / reference)
    groups = np.repeat([0, 1, 2], sizes)
    assert row.null.draws == pytest.approx([delta(x[order], groups) / reference for order in orders.numpy()])
    assert (row.side, row.predicted, row.basis) == (">=", 1.0, "limit")


def test_random_projections_have_the_law_of_uniform_subspaces():
    """Five inputs to three dimensions; the law is sampled anew by numpy."""
    x, y = features(3)
    rng = np.random.default_rng(4)
    pixels = np.concatenate([x, rng.standard_t(4, size=(20, 2))], 1)
    best = optimum(SIZES, 0.5)
    null = inputs.projections(torch.from_numpy(pixels), torch.from_numpy(y), 3, draws=300)
    law = [delta(pixels @ np.linalg.qr(rng.normal(size=(5, 3)))[0], y) / best for _ in range(3000)]
    assert len(null.draws) == 300
    assert np.mean(null.draws) == pytest.approx(np.mean(law), abs=4 * np.std(law) / np.sqrt(300))
    assert np.std(null.draws) == pytest.approx(np.std(law), rel=0.2)
    gaussian = [delta(pixels @ rng.normal(size=(5, 3)), y) / best for _ in range(3000)]
    assert abs(np.mean(gaussian) - np.mean(law)) > 6 * np.std(law) / np.sqrt(300), "distorting maps differ"


def test_fewer_samples_than_dimensions_are_projected_as_often():
    """Twenty samples of fifty inputs, in thirty dimensions."""
    pixels = torch.from_numpy(np.random.default_rng(8).standard_t(4, size=(20, 50)))
    null = inputs.projections(pixels, torch.from_numpy(features(3)[1]), 30, draws=9)
    assert len(set(null.draws)) == 9


def test_few_inputs_keep_their_share():
    x, y = features(5)
    best = optimum(SIZES, 0.5)
    plane = x[:, :2]
    null = inputs.projections(torch.from_numpy(plane), torch.from_numpy(y), 3, draws=7)
    expected = delta(np.concatenate([plane, np.zeros((20, 1))], 1), y) / best
    assert null.draws == pytest.approx([expected] * 7, rel=1e-6)
    orders = permutations(20, 4)
    row = quantities.inputs_row(
        quantities.Evaluated(
            torch.from_numpy(x), torch.from_numpy(y), orders, torch.from_numpy(plane).float().double()
        )
    )
    padded = np.concatenate([plane.astype("float32").astype(float), np.zeros((20, 1))], 1)
    assert row.value == pytest.approx(delta(padded, y) / best, rel=1e-6)
    assert row.null.draws == pytest.approx(
        [delta(padded[order], GROUPS) / best for order in orders.numpy()], rel=1e-6
    )


def test_the_share_of_the_last_layer():
    x, y = features(6)
    orders = permutations(20, 5)
    row = quantities.last_layer_row(
        quantities.Evaluated(torch.from_numpy(x), torch.from_numpy(y), orders, torch.zeros(20, 1))
    )
    best = optimum(SIZES, 0.5)
    assert row.value == pytest.approx(delta(x, y) / best, rel=1e-6)
    assert row.null.draws == pytest.approx(
        [delta(x[order], GROUPS) / best for order in orders.numpy()], rel=1e-6
    )
    assert (row.side, row.predicted) == (">=", 1.0)


# ---- the trainings


def parts(seed: int = 0) -> tuple[TokenData, TokenData]:
    """Training and held-out sequences of 16 tokens of 4 numbers, of ten unequal classes."""
    rng, found = np.random.default_rng(seed), []
    for n, shift in ((90, 1.0), (40, 0.0)):
        y = np.sort(rng.integers(10, size=n))
        y[:10] = np.arange(10)
        x = rng.standard_t(4, size=(n, 16, 4)) + y[:, None, None] / 5 + shift
        found.append(TokenData(tokens=torch.from_numpy(x), labels=torch.from_numpy(y), name="own"))
    return found[0], found[1]


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(trainings, "STEPS", 3)
    monkeypatch.setattr(trainings, "TRANSFORMER_STEPS", 3)


def on_reduction(train: TokenData, held_out: TokenData) -> quantities.Evaluated:
    return trainings._on_reduction(train, held_out, generator(1))


def on_classes(train: TokenData, held_out: TokenData) -> quantities.Evaluated:
    return trainings._transformer(1, train, held_out, generator(1))


@pytest.mark.parametrize("training", [on_reduction, on_classes])
def test_held_out_samples_are_measured_and_their_labels_change_no_training(training, short):
    train, held_out = parts()
    first = training(train, held_out)
    labels = held_out.labels.flip(0)
    other = training(train, replace(held_out, labels=labels))
    assert torch.equal(first.features, other.features)
    assert torch.equal(other.labels, labels)
    assert torch.equal(first.labels, held_out.labels)
    # the labels of the training do
    trained = training(replace(train, labels=train.labels.flip(0)), held_out)
    assert not torch.allclose(first.features, trained.features)
    assert torch.equal(first.before, trained.before)
    assert not torch.allclose(first.before, first.features)
    assert first.features.shape == first.before.shape == (40, 64)
    # a sample's features depend on this sample and on the training alone
    fewer = training(train, held_out[5:30])
    assert torch.allclose(fewer.features, first.features[5:30], rtol=1e-4, atol=1e-6)
    x, mean = held_out.tokens.numpy().reshape(40, 64), train.tokens.numpy().reshape(90, 64).mean(0)
    assert first.inputs.numpy() == pytest.approx(x - mean)
    assert torch.equal(first.orders, permutations(40, 399))
    assert first.collapse == (training is on_classes)


def test_the_perceptron_before_training_is_that_of_the_seed(short):
    """64 inputs, then linear maps, batch norms and rectifiers, from the weights that the seed draws."""
    train, held_out = parts()
    found = on_reduction(train, held_out)
    body = trainings.build(trainings._body, generator(1)).eval()
    x = held_out.tokens.float().flatten(1)
    for layer in body:
        if isinstance(layer, nn.Linear):
            bias = 0 if layer.bias is None else layer.bias
            x = x @ layer.weight.T + bias
        elif isinstance(layer, nn.ReLU):
            x = x.clamp(min=0)
        elif isinstance(layer, nn.BatchNorm1d):  # not yet trained: means 0, variances 1
            x = x / math.sqrt(1 + layer.eps)
        else:
            assert isinstance(layer, nn.Flatten)
    assert torch.allclose(found.before, x.detach(), atol=1e-5)


def test_free_features_ascend_their_own_reduction(short):
    """The gradient of the reduction by finite differences; one step of the guaranteed length raises it."""
    found = trainings.free_features(generator(2))
    y = found.labels.numpy()
    start, end = units(found.before.numpy()), found.features.numpy()

    def value(x: np.ndarray) -> float:
        return rate(x, 0.5) - sum((y == k).mean() * rate(x[y == k], 0.5) for k in range(10))

    assert np.linalg.norm(end, axis=1) == pytest.approx(np.ones(256))
    assert value(end) > value(start)
    sizes = np.bincount(y)
    assert sizes.sum() == 256
    assert sizes.std() > 1, "classes have unequal sizes"
    assert np.linalg.norm(found.before.numpy(), axis=1) == pytest.approx(np.ones(256))
    assert found.inputs.numpy() == pytest.approx(found.before.numpy() - found.before.numpy().mean(0))
    # samples of a class lie in a subspace of 6 or 7 dimensions, which together have 64
    ranks = [np.linalg.matrix_rank(found.before.numpy()[y == k], tol=1e-8) for k in range(10)]
    assert set(ranks) <= {6, 7}
    assert sum(ranks) == 64


def test_transformers_and_wrong_labels(monkeypatch):
    """Three blocks of four heads, AdamW at .003 on 64 samples; four in ten labels are drawn anew, of ten."""
    seen = []
    monkeypatch.setattr(
        trainings, "train_classifier", lambda *arguments, **options: seen.append((arguments, options))
    )
    for train, depth in (
        (trainings.one_block, 1),
        (trainings.several_blocks, 3),
        (trainings.wrong_labels, 3),
    ):
        train(generator(3))
        (model, data, held_out), options = seen[-1]
        heads = {block.attention.heads for block in model.blocks}
        assert (len(model.blocks), heads, model.norm.weight.numel()) == (depth, {4}, 64)
        assert (options["steps"], options["learning_rate"], options["batch_size"]) == (400, 0.003, 64)
        right, right_held_out = trainings.digit_parts()
        wrong = float((data.labels != right.labels).double().mean())
        expected = 0.4 * 0.9 if train is trainings.wrong_labels else 0.0
        assert wrong == pytest.approx(expected, abs=0.05)
        assert torch.equal(held_out.labels, right_held_out.labels)


def test_the_rungs_train_what_their_names_say():
    expected = {
        "free features": trainings.free_features,
        "network, training set": trainings.on_training_samples,
        "network, held-out": trainings.on_mixture,
        "digits": trainings.on_digits,
        "cross-entropy, norm 1": trainings.normalised,
        "plain cross-entropy": trainings.plain,
        "mini-batches": trainings.mini_batches,
        "AdamW": trainings.adamw,
        "transformer block": trainings.one_block,
        "three blocks": trainings.several_blocks,
        "wrong labels": trainings.wrong_labels,
    }
    found = {rung.name: rung.measure.keywords.get("train") for rung in LADDER.rungs}
    assert {name: train for name, train in found.items() if train is not None} == expected
    recipes = {rung.name: rung.measure.keywords.get("recipe") for rung in LADDER.rungs}
    assert {name: recipe for name, recipe in recipes.items() if recipe is not None} == {
        "ViT on digits": "ViT",
        "CRATE on digits": "CRATE (released form)",
        "ViT on images": "ViT",
    }
