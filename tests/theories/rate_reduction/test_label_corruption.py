"""The label corruption experiment: what validation chooses, which samples learn, and that the network learns."""

import numpy as np
import pytest
import torch

from transformer_theory.theories.rate_reduction import LabelCorruption
from transformer_theory.theories.rate_reduction.experiments.label_corruption import (
    METHODS,
    PIXELS,
    TRAIN,
    VALIDATION,
    _data,
    by_step,
    chosen,
    read_pixels,
    read_training,
)


def test_validation_chooses_and_the_test_samples_are_read():
    readings = np.zeros((1, 1, 2, 3, 2, 2))  # rates, readings, classifiers, (validation, test)
    readings[..., 1] = np.arange(12).reshape(2, 3, 2)
    readings[0, 0, 1, 1, 0, 0] = 0.9
    readings[0, 0, 0, 2, 1, 0] = 0.8
    accuracy, rate = chosen(readings)
    assert (accuracy.item(), rate.item()) == (8, 1)
    accuracy, rate = chosen(readings[:, :, :, -1:])
    assert (accuracy.item(), rate.item()) == (5, 0)
    assert by_step(readings)[0, 0].tolist() == [1, 3, 5]  # the rate and classifier chosen at the end, at every reading


def test_labels_are_wrong_where_they_may_be_and_right_where_it_counts():
    (x, y), (validation, noisy), (unseen, truth), _ = _data(0.5, 3)
    (again, clean), (_, sure), (_, same), _ = _data(0.0, 3)
    assert (len(x), len(validation), len(unseen)) == (TRAIN, VALIDATION, 1797 - TRAIN - VALIDATION)
    assert torch.equal(x, again)
    assert torch.equal(truth, same)
    wrong = torch.cat([y != clean, noisy != sure]).double().mean()
    assert float(wrong) == pytest.approx(0.45, abs=0.04)
    assert float((noisy != sure).double().mean()) > 0.3


@pytest.mark.parametrize("loss", ["rate reduction", "cross-entropy"])
def test_both_losses_learn_clean_labels(loss, unchecked):
    readings = read_training(loss=loss, rate=0.03, ratio=0.0, seed=0, steps=80, batch=400, ranks=(4,), eps=0.5**0.5)
    assert np.array(readings).shape == (8, 2, 2)
    own = {"rate reduction": 1, "cross-entropy": 0}[loss]
    assert readings[-1][own][1] > 0.93
    if loss == "rate reduction":
        assert readings[-1][0][1] < 0.5  # its logits are not trained


def test_wrong_labels_hurt_and_pixels_are_the_null(unchecked):  # the contract checks shapes
    (clean,), (corrupted,) = (read_pixels(ratio=ratio, seed=0, ranks=(8,)) for ratio in (0.0, 0.5))
    assert clean[1] > 0.93
    assert corrupted[1] < clean[1] - 0.05
    assert corrupted[0] < 0.6  # validation labels are wrong too
    result = LabelCorruption(ratios=(0.0, 0.4), seeds=1, steps=8, rates=(0.01,), ranks=(4,)).run()
    null = {row["quantity"]: row["value"] for row in result.select(model=PIXELS)}
    for method in METHODS[:3]:
        assert all(row["null"] == null[row["quantity"]] for row in result.select(model=method))
