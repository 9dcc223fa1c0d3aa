"""What ``evaluate`` says of a stored network is what its training said."""

import shutil
from dataclasses import replace

import pytest

from tests.problems import image_trainings
from tests.problems.image_trainings import noise, trained, with_
from transformer_theory.training.evaluate import evaluate, learned_from
from transformer_theory.training.folder import network_file
from transformer_theory.training.networks import Sizes, crate
from transformer_theory.training.objectives import CrossEntropy, MaskedAutoencoding, RateReduction, SparseRateReduction
from transformer_theory.training.saved import load

OBJECTIVES = [CrossEntropy(), RateReduction(features=9), SparseRateReduction(), MaskedAutoencoding(masked=0.5)]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
def test_the_test_row_of_the_training_is_repeated_to_the_digit(tmp_path, monkeypatch, objective):
    test = noise(300, seed=1)  # so many that classifiers fitted to other images are right on others
    monkeypatch.setattr(image_trainings, "noise", lambda n=60, **given: test if n == 12 else noise(n, **given))
    result = trained(tmp_path / "run", with_(epochs=1, seed=3), objective=objective)
    told = {row["quantity"]: row["value"] for row in result.table if row["quantity"].startswith("test")}
    measured, classes = evaluate(tmp_path / "run" / "best.safetensors", noise(60), test)
    assert measured == told
    assert bool(classes) == ("test accuracy" in told)
    if classes:
        assert sum(line.right * line.images for line in classes) / 300 == pytest.approx(told["test accuracy"])


def test_a_network_without_its_run_takes_all_training_images(tmp_path):
    trained(tmp_path / "run", with_(epochs=1))
    shutil.copy(tmp_path / "run" / "best.safetensors", tmp_path)
    images, found = noise(60), load(tmp_path)
    assert learned_from(tmp_path / "best.safetensors", found, images) is images
    assert len(learned_from(tmp_path / "run" / "best.safetensors", found, images)) == 48
    elsewhere = replace(found, origin=found.origin | {"data": "other images"})
    assert learned_from(tmp_path / "run" / "best.safetensors", elsewhere, images) is images
    (tmp_path / "result.json").write_text("[]")
    assert learned_from(tmp_path / "best.safetensors", found, images) is images


def test_what_holds_no_network(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no .*nosuch; name the folder that train wrote, or the best.safetensors in it"):
        network_file(tmp_path / "nosuch")
    with pytest.raises(FileNotFoundError, match=r"must hold best.safetensors, a trained network, there is none"):
        network_file(tmp_path)


@pytest.mark.parametrize(
    ("side", "patch", "stem", "advice"),
    [
        (30, 8, "patches", "a divisor of the side of the images, 30 pixels, got 8; take 1, 2, 3, 5, 6, 10, 15, 30"),
        (24, 6, "convolutions", "a power of two from 2 on that divides the side of the images, 24 pixels, got 6; take 2, 4, 8"),
        (9, 2, "convolutions", "9 pixels, got 2; take stem 'patches', or images of an even side"),
    ],
)
def test_patches_that_do_not_fit_are_told_what_would(side, patch, stem, advice):
    sizes = Sizes(image_size=side, channels=1, num_classes=2, patch_size=patch, dim=8, depth=1, heads=2, stem=stem)
    with pytest.raises(ValueError, match=f"patch_size must be .*{advice}$"):
        crate(sizes)
