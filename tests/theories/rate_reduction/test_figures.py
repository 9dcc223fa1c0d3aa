"""Numbers and figures of the experiments of rate reduction."""

import numpy as np
import pytest
import torch

from transformer_theory.theories.rate_reduction.digit_training import TRAIN, VALIDATION, samples
from transformer_theory.theories.rate_reduction.figures import landscape
from transformer_theory.theories.rate_reduction.figures.label_corruption import (
    ACCURACY,
    METHODS,
    PIXELS,
    STOPPED,
    TO_THE_END,
    by_step,
    chosen,
    label_corruption,
    pixel_accuracies,
    training_accuracies,
)
from transformer_theory.theories.rate_reduction.figures.redunet_digits import redunet_digits
from transformer_theory.theories.rate_reduction.figures.redunet_gaussians import redunet_gaussians
from transformer_theory.theories.rate_reduction.figures.redunet_iris import redunet_iris
from transformer_theory.theories.rate_reduction.figures.shifts import (
    AT_ORIGIN,
    BALANCED,
    INVARIANT,
    SHIFTED,
    shifts,
)
from transformer_theory.theories.rate_reduction.figures.shifts import PIXELS as PIXEL_NETWORK
from transformer_theory.theories.rate_reduction.figures.training_dynamics import (
    CLASS_RATE,
    OPTIMUM,
    RATE,
    REDUCTION,
    training_dynamics,
)
from transformer_theory.theories.rate_reduction.on_data import LAYERS_RAISE

pytestmark = pytest.mark.usefixtures("unchecked")  # the contract checks shapes


def values(experiment) -> dict[str, float]:
    """The values by quantity, or by quantity and setting where there is one."""
    return {
        (row.quantity, row.setting) if row.setting else row.quantity: row.value
        for row in experiment.run().table
    }


def test_redunet_on_digits_reaches_the_known_numbers():
    found = values(redunet_digits(splits=1, epochs=1))
    assert 10 < found["rate reduction before ReduNet"] < 10.5
    assert 11 < found["rate reduction after one layer"] < 11.4
    assert found["rate reduction after ReduNet"] == pytest.approx(56.6, abs=0.5)
    # the null is not small ...
    assert found["rate reduction after ReduNet of permuted labels"] == pytest.approx(50.8, abs=1.0)
    assert found[LAYERS_RAISE] == 1.0
    assert found["accuracy of the nearest subspace after ReduNet"] >= 0.985
    assert found["accuracy of the least ||x C_j|| after ReduNet"] >= 0.985
    assert found["accuracy of ReduNet of permuted labels"] < 0.15  # ... but has learnt nothing
    assert found["accuracy, 5 layers after back-propagation"] >= 0.98


def test_redunet_on_gaussians_reaches_the_known_numbers():
    experiment = redunet_gaussians.quick()
    result = experiment.run()
    for d, before, after in ((2, 0.790, 0.875), (3, 1.640, 1.879)):
        rows = result.select(at={"d": d})
        assert rows.select(quantity="rate reduction before").one().value == pytest.approx(before, abs=0.03)
        assert rows.select(quantity="rate reduction after").one().value == pytest.approx(after, abs=0.001)
    assert len(experiment.plot(result).axes) == 2


def test_redunet_separates_iris():
    found = values(redunet_iris(splits=2, layers=300))
    assert found[LAYERS_RAISE] == 1.0
    assert found["rate reduction after ReduNet"] > 4 * found["rate reduction before ReduNet"]
    assert found["accuracy of the least ||x C_j|| after ReduNet"] >= 0.95


def test_training_on_all_samples_is_refused():
    with pytest.raises(ValueError, match="got 150 of 150"):
        redunet_iris(training=150).run()


def test_only_the_shift_invariant_network_recognises_shifted_digits():
    found = values(shifts(training=600, channels=8, layers=2, unseen=60))
    for name in (INVARIANT, BALANCED):
        assert found[SHIFTED, name] == pytest.approx(found[AT_ORIGIN, name], abs=1e-12)
    assert found[SHIFTED, BALANCED] > 0.85
    assert found[SHIFTED, PIXEL_NETWORK] < 0.3 < 0.9 < found[AT_ORIGIN, PIXEL_NETWORK]


def test_the_published_rule_favours_large_classes_where_samples_are_few():
    """300 digits, shares of 7 to 15 %: the classes' scales α / γ_j decide more than their spans."""
    found = values(shifts(training=300, channels=8, layers=2, unseen=97))
    assert found[AT_ORIGIN, BALANCED] > found[AT_ORIGIN, INVARIANT] + 0.2


def test_validation_chooses_and_test_samples_are_measured():
    accuracies = np.zeros((1, 1, 2, 3, 2, 2))  # rates, stops, classifiers, (validation, test)
    accuracies[..., 1] = np.arange(12).reshape(2, 3, 2)
    accuracies[0, 0, 1, 1, 0, 0] = 0.9
    accuracies[0, 0, 0, 2, 1, 0] = 0.8
    accuracy, rate = chosen(accuracies)
    assert (accuracy.item(), rate.item()) == (8, 1)
    accuracy, rate = chosen(accuracies[:, :, :, -1:])
    assert (accuracy.item(), rate.item()) == (5, 0)
    # the rate and classifier chosen at the end, at every stop
    assert by_step(accuracies)[0, 0].tolist() == [1, 3, 5]


def test_training_and_validation_labels_are_corrupted_and_test_labels_are_not():
    (x, y), (validation, noisy), (unseen, truth), _ = samples(0.5, 3)
    (again, clean), (_, true_labels), (_, same), _ = samples(0.0, 3)
    assert (len(x), len(validation), len(unseen)) == (TRAIN, VALIDATION, 1797 - TRAIN - VALIDATION)
    assert torch.equal(x, again)
    assert torch.equal(truth, same)
    wrong = torch.cat([y != clean, noisy != true_labels]).double().mean()
    assert float(wrong) == pytest.approx(0.45, abs=0.04)
    assert float((noisy != true_labels).double().mean()) > 0.3


@pytest.mark.parametrize(("loss", "classifier"), [("rate reduction", 1), ("cross-entropy", 0)])
def test_both_losses_learn_clean_labels(loss, classifier):
    accuracies = training_accuracies(
        loss=loss, rate=0.03, ratio=0.0, seed=0, steps=80, batch=400, ranks=(4,), eps=0.5**0.5
    )
    assert np.array(accuracies).shape == (8, 2, 2)
    assert accuracies[-1][classifier][1] > 0.93
    if loss == "rate reduction":
        assert accuracies[-1][0][1] < 0.5  # its logits are not trained


def test_wrong_labels_hurt_and_pixels_are_the_null():
    (clean,), (corrupted,) = (pixel_accuracies(ratio=ratio, seed=0, ranks=(8,)) for ratio in (0.0, 0.5))
    assert clean[1] > 0.93
    assert corrupted[1] < clean[1] - 0.05
    assert corrupted[0] < 0.6  # validation labels are wrong too
    result = label_corruption(ratios=(0.0, 0.4), seeds=1, steps=8, rates=(0.01,), ranks=(4,)).run()
    null = {row.at: row.value for row in result.select(quantity=ACCURACY, model=PIXELS)}
    assert len(null) == 4
    for method in METHODS[:3]:
        rows = result.select(quantity=ACCURACY, model=method, at={"training": (TO_THE_END, STOPPED)})
        assert len(rows) == 4
        assert all(row.null.mean == null[row.at] for row in rows)


def test_training_raises_the_rate_reduction_to_nearly_its_optimum():
    experiment = training_dynamics(seeds=1, steps=40)
    result = experiment.run()
    R, within, reductions = (
        result.select(quantity=quantity, split="train") for quantity in (RATE, CLASS_RATE, REDUCTION)
    )
    assert [row.at["trained"] for row in R] == pytest.approx(np.linspace(0, 1, 26))
    best = result.select(quantity=OPTIMUM).one().value
    assert reductions[0].value < 0.2 * best
    assert 0.6 * best < reductions[-1].value < best
    assert R[-1].value > 3 * R[0].value  # R rises ...
    assert within[-1].value - within[0].value < 0.5 * (R[-1].value - R[0].value)  # ... and R^c much less
    for split in ("train", "test"):
        row = result.select(quantity=REDUCTION, at={"trained": 1.0}, split=split).one()
        assert row.value > 1.5 * row.null.mean
    assert len(experiment.plot(result).axes) == 2


def test_a_landscape_without_points_of_a_kind_has_a_reason(monkeypatch):
    """If no saddle is found, nothing is the smallest of them."""
    monkeypatch.setattr(landscape, "LEVEL_ATOL", 1e9)
    rows = landscape.landscape(starts=1).run().table
    missing = [row for row in rows if row.quantity == landscape.STEEPNESS]
    assert [(row.value, row.n, row.verdict) for row in missing] == [(None, 0, None)] * 2
    assert all(row.reason == "the searches found no such point" for row in missing)
