"""What the experiments of the rate reduction room print."""

import pytest

from transformer_theory.theories import rate_reduction as room

pytestmark = pytest.mark.usefixtures("unchecked")  # the contract checks shapes


def values(experiment) -> dict[str, float]:
    return {row["quantity"]: row["value"] for row in experiment.run().table}


def test_redunet_on_digits_reaches_the_known_numbers():
    found = values(room.ReduNetDigits(splits=1, epochs=1))
    assert 10 < found["rate reduction before"] < 10.5
    assert 11 < found["rate reduction after one layer"] < 11.4
    assert found["rate reduction after"] == pytest.approx(56.6, abs=0.5)
    assert found["rate reduction after, from shuffled labels"] == pytest.approx(50.8, abs=1.0)  # the null is not small ...
    assert found["share of the layers that raise the rate reduction"] == 1.0
    assert found["accuracy, nearest subspace after"] >= 0.985
    assert found["accuracy, least ||x C_j|| after"] >= 0.985
    assert found["accuracy from shuffled labels"] < 0.15  # ... but has learned nothing
    assert found["accuracy, 5 layers after back-propagation"] >= 0.98


def test_redunet_on_gaussians_reaches_the_known_numbers():
    found = values(room.ReduNetGaussians.quick())
    for d, before, after in ((2, 0.790, 0.875), (3, 1.640, 1.879)):
        assert found[f"rate reduction before, d = {d}"] == pytest.approx(before, abs=0.03)
        assert found[f"rate reduction after, d = {d}"] == pytest.approx(after, abs=0.001)


def test_redunet_on_iris_tells_flowers_apart():
    found = values(room.ReduNetIris(splits=2, layers=300))
    assert found["share of the layers that raise the rate reduction"] == 1.0
    assert found["rate reduction after"] > 4 * found["rate reduction before"]
    assert found["accuracy, least ||x C_j|| after"] >= 0.95


def test_shifted_digits_are_known_only_to_the_shift_invariant_network():
    found = values(room.Shifts(training=600, channels=8, layers=2, unseen=60))
    for name in ("shift-invariant", "shift-invariant, balanced"):
        assert found[f"accuracy elsewhere, {name}"] == pytest.approx(found[f"accuracy where learned, {name}"], abs=1e-12)
    assert found["accuracy elsewhere, shift-invariant, balanced"] > 0.85
    assert found["accuracy elsewhere, pixels"] < 0.3 < 0.9 < found["accuracy where learned, pixels"]


def test_the_published_rule_favours_large_classes_where_samples_are_few():
    """300 digits, shares of 7 to 15 %: the classes' scales α / γ_j decide more than their spans."""
    found = values(room.Shifts(training=300, channels=8, layers=2, unseen=97))
    assert found["accuracy where learned, shift-invariant, balanced"] > found["accuracy where learned, shift-invariant"] + 0.2


def test_training_on_all_samples_is_refused():
    with pytest.raises(ValueError, match="training must leave samples that are not seen, got 150 of 150"):
        room.ReduNetIris(training=150).run()
