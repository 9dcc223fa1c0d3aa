"""``evaluate`` repeats the test rows of the training."""

import shutil
from dataclasses import replace

import pytest

from tests.problems import image_trainings
from tests.problems.image_trainings import noise, trained, with_
from transformer_theory.core.result import Result
from transformer_theory.models.image_networks import Sizes, crate
from transformer_theory.models.stored import network_file
from transformer_theory.theories.crate.tasks import SparseRateReduction
from transformer_theory.theories.rate_reduction.tasks import RateReduction
from transformer_theory.training.image.evaluate import (
    StoredNetwork,
    evaluate,
    load_stored_networks,
    training_images,
)
from transformer_theory.training.image.saved import load
from transformer_theory.training.objectives import CrossEntropy, MaskedAutoencoding

OBJECTIVES = [
    CrossEntropy(),
    RateReduction(features=9),
    SparseRateReduction(),
    MaskedAutoencoding(masked=0.5),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
def test_the_test_row_of_the_training_is_repeated_to_the_digit(tmp_path, monkeypatch, objective):
    test = noise(300, seed=1)  # enough images that another classifier on the features has other predictions
    monkeypatch.setattr(
        image_trainings, "noise", lambda n=60, **options: test if n == 12 else noise(n, **options)
    )
    result = trained(tmp_path / "run", with_(epochs=1, seed=3), objective=objective)
    expected = [
        (row.quantity, row.setting, row.layer, row.value, row.null) for row in result.select(split="test")
    ]
    objectives = {objective.name: type(objective)}
    rows, classes = evaluate(tmp_path / "run" / "best.safetensors", noise(60), test, objectives=objectives)
    assert [(row.quantity, row.setting, row.layer, row.value, row.null) for row in rows] == expected
    accuracy = [row for row in rows if row.quantity == "accuracy"]
    assert bool(classes) == bool(accuracy)
    if classes:
        assert sum(line.recall * line.images for line in classes) / 300 == pytest.approx(accuracy[0].value)
        assert accuracy[0].interval[0] < accuracy[0].value < accuracy[0].interval[1]


def test_a_network_without_its_run_uses_all_training_images(tmp_path):
    trained(tmp_path / "run", with_(epochs=1))
    shutil.copy(tmp_path / "run" / "best.safetensors", tmp_path)
    images, saved = noise(60), load(tmp_path)

    def network(folder, saved=saved):
        return StoredNetwork("crate", saved, folder / "best.safetensors")

    assert training_images(network(tmp_path), images) is images
    assert len(training_images(network(tmp_path / "run"), images)) == 48
    other = replace(saved, origin=saved.origin | {"run_id": "another"})
    assert training_images(network(tmp_path / "run", other), images) is images
    (tmp_path / "result.json").write_text("[]")
    assert training_images(network(tmp_path), images) is images


def test_an_unknown_objective_is_named(tmp_path):
    trained(tmp_path / "run", with_(epochs=1), objective=RateReduction(features=9))
    with pytest.raises(ValueError, match=r"objective 'rate-reduction' is unknown; pass objectives="):
        load(tmp_path / "run")


def test_paths_without_a_network(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nosuch does not exist"):
        network_file(tmp_path / "nosuch")
    with pytest.raises(FileNotFoundError, match=r"must hold best.safetensors, a trained network, got none"):
        network_file(tmp_path)


@pytest.mark.parametrize(
    ("side", "patch", "stem", "advice"),
    [
        (
            30,
            8,
            "patches",
            "a divisor of the side of the images, 30 pixels, got 8; choose 1, 2, 3, 5, 6, 10, 15, 30",
        ),
        (
            24,
            6,
            "convolutions",
            "a power of two from 2 on that divides the side of the images, 24 pixels, got 6; choose 2, 4, 8",
        ),
        (9, 2, "convolutions", "9 pixels, got 2; choose stem 'patches', or images of an even side"),
    ],
)
def test_the_error_of_an_invalid_patch_size_lists_valid_ones(side, patch, stem, advice):
    sizes = Sizes(
        image_size=side, channels=1, num_classes=2, patch_size=patch, dim=8, depth=1, heads=2, stem=stem
    )
    with pytest.raises(ValueError, match=f"patch_size must be .*{advice}$"):
        crate(sizes)


@pytest.mark.parametrize("missing", ["settings", "images", "score"])
def test_a_run_without_its_settings_is_named(tmp_path, missing):
    trained(tmp_path / "run", with_(epochs=1))
    result = Result.load(tmp_path / "run")
    del result.settings[missing]
    result.write_into(tmp_path / "run")
    with pytest.raises(ValueError, match=rf"run .*{missing}"):
        load_stored_networks([tmp_path / "run"], noise(12))
