"""Comparing networks that were trained before: what is read of each on test images, under which name, and what is refused."""

import importlib
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from transformer_theory.cli.side_by_side import measured_networks
from transformer_theory.training.compared import by_layer, compared, interval

import transformer_theory as tt
from transformer_theory import report
from transformer_theory.cli import main
from transformer_theory.core.result import Result
from transformer_theory.data import Images, TokenData, image_sets
from transformer_theory.report import attended
from transformer_theory.training import saved
from transformer_theory.training.augment import Augmentation
from transformer_theory.training.evaluate import evaluate
from transformer_theory.training.loop import train
from transformer_theory.training.objectives import MaskedAutoencoding
from transformer_theory.training.processes import Hardware
from transformer_theory.training.settings import Settings

COMPARE = importlib.import_module("transformer_theory.compare")
THEORIES = ("rate_reduction",)


def noise(n: int, seed: int) -> Images:
    """Two classes, the second brighter; sorted by class, as folders of images are."""
    pixels = torch.randint(0, 200, (n, 1, 8, 8), generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(n) * 2 // n
    return Images((pixels + 50 * labels[:, None, None, None]).to(torch.uint8), labels, ("dark", "bright"), name="noise")


TRAIN, TEST = noise(64, 0), noise(300, 1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a CRATE and a ViT after two epochs of three steps, and of another CRATE beside them."""
    folder = tmp_path_factory.mktemp("runs")
    theories = [theory for theory in tt.theories() if theory.name in THEORIES]
    settings = Settings(patch_size=4, dim=8, depth=2, heads=2, epochs=2, batch_size=16, changes=Augmentation(), held_out=0.2)
    for name, network, seed in (("crate", "crate", 0), ("vit", "vit", 0), ("second", "crate", 1)):
        chosen = theories if name != "second" else []
        train(
            (TRAIN, TEST),
            replace(settings, network=network, seed=seed),
            folder / name,
            theories=chosen,
            hardware=Hardware("cpu", "float32"),
        )
    shutil.copy(folder / "crate" / "best.safetensors", folder / "crate" / "early.safetensors")
    return folder


@pytest.fixture(scope="module")
def result(runs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_sets, "MOST", 200)  # so that the rooms read some of the test images only, as of large sets
        models = [runs / "crate", runs / "vit" / "best.safetensors", runs / "crate" / "early.safetensors", runs / "crate"]
        return tt.compare((TRAIN, TEST), THEORIES, models=models, claim_seeds=0)  # claims know of no networks


def test_every_theory_answers_on_the_images_and_on_the_features_of_each_network(result):
    for theory in THEORIES:
        for view in ("raw", "crate", "vit", "crate (crate/early)"):
            answer = next(one.answer for one in tt.theories() if one.name == theory)
            assert len([row for row in result.select(theory=theory, quantity=answer, model=view) if "step" not in row]) == 1
    assert result.params["n"] == 200
    assert "steps" not in result.params
    assert list(result.params["models"]) == ["crate", "vit", "crate (crate/early)"]
    assert result.arrays["network/crate/features"].shape == (200, 2)
    assert result.arrays["network/vit/attention"].shape == (1, 2, 2, 6, 5, 5)


def test_accuracy_is_that_of_evaluate_on_all_test_images(result, runs):
    for name in ("crate", "vit"):
        (row,) = result.select(quantity="test accuracy", model=name)
        assert row["value"] == evaluate(runs / name, TRAIN, TEST)[0]["test accuracy"]
        assert "300 test images, 95 % interval " in row["note"]


def test_the_timeline_is_that_of_the_run_and_of_a_lone_network_its_one_reading(result, runs):
    for name in ("crate", "vit"):
        own = [row | {"model": name} for row in Result.load(runs / name).table if not row["quantity"].startswith("test")]
        assert [row for row in result.select(model=name) if "step" in row] == own
    lone = [row for row in result.select(model="crate (crate/early)") if "step" in row]
    assert {row["step"] for row in lone} == {saved.load(runs / "crate").origin["step"]}
    assert {row["theory"] for row in lone} >= set(THEORIES)


def test_order_parameters_are_read_on_test_images_of_all_classes_beside_untrained_networks(result):
    for name in ("crate", "vit"):
        (whole,) = result.select(quantity="rate reduction in the trained network", model=name)
        assert whole["note"] == "mean over layers and heads after 6 steps; read at the class token; 300 test images"
        assert whole["value"] > 1e-6  # of one class alone it is 0: the test images are sorted
        layers = result.select(quantity="rate reduction in a trained layer", model=name)
        assert [row["layer"] for row in layers] == [0, 1]
        assert sum(row["value"] for row in layers) / 2 == pytest.approx(whole["value"])


def test_the_pictures_under_the_attention_maps_are_those_that_were_attended(result, runs):
    model = saved.load(runs / "crate").model
    keeper = tt.probes.AttentionMaps(keep=6)
    with tt.probe(model, [keeper]) as p, torch.no_grad():
        model(torch.from_numpy(result.arrays["network/images"]).float())
    maps = p.result().arrays
    stored = result.arrays["network/crate/attention"][0]
    np.testing.assert_allclose(np.stack([maps[name].swapaxes(0, 1) for name in sorted(maps)]), stored, atol=1e-5)


def test_a_network_without_attention_maps_has_none(tmp_path):
    settings = Settings(network="tost", patch_size=4, dim=8, depth=1, heads=2, epochs=1, batch_size=32, changes=Augmentation())
    train((TRAIN, TEST), settings, tmp_path / "tost", theories=(), hardware=Hardware("cpu", "float32"))
    (one,) = compared([tmp_path / "tost"], TEST)
    assert not one.maps(TEST)


def test_what_has_no_null_of_its_own_gets_that_of_untrained_networks(runs):
    (one,) = compared([runs / "crate"], TEST)
    readings = one.observed(TEST, [tt.scan_snap.THEORY], seed=0)
    untrained = one.observed(TEST, [tt.scan_snap.THEORY], seed=1)
    read, others = ([row for row in rows if row["quantity"] == tt.scan_snap.THEORY.order_parameter] for rows in (readings, untrained))
    assert [row["value"] for row in read] == [row["value"] for row in others]
    assert all(row["null"] != other["null"] for row, other in zip(read, others))
    for row in read:  # attention of fewer images than classes
        told = re.fullmatch(r"256 test images; 3 untrained networks: (\S+) to (\S+)", row["note"])
        assert float(told[1]) <= row["null"] * 1.001
        assert row["null"] <= float(told[2]) * 1.001
    assert [row["layer"] for row in by_layer([tt.scan_snap.THEORY], readings)] == [0, 1]


def test_runs_stand_side_by_side_once_each(result):
    assert [row["model"] for row in result.select(quantity="held-out accuracy at equal steps")] == ["crate", "vit"]
    (row,) = result.select(quantity="held-out accuracy at equal parameters")
    assert row["verdict"].startswith("not applicable: the counts differ")


def test_the_page_and_the_terminal_show_them(result, capsys):
    told = replace(result, table=[row for row in result.table if row["theory"] == "network"], params=result.params | {"theories": []})
    page = report.html(told)
    assert "held-out accuracy at equal time" in page
    assert "On test images, and in training on held-out ones" in page
    Console(width=150).print(measured_networks(told))
    shown = " ".join(capsys.readouterr().out.split())
    assert "test accuracy crate" in shown
    assert "the counts differ by more than 5 %" in shown


def test_pictures_in_colour_are_no_negatives():
    shade = np.arange(4.0).reshape(2, 2) / 3
    np.testing.assert_allclose(attended.ink(np.stack([shade])), shade)
    np.testing.assert_allclose(attended.ink(np.stack([shade] * 3)), 1 - shade)


def test_small_networks_beside_them_learn_training_images(runs):
    both = tt.compare(
        (TRAIN, noise(60, 1)), ["rate_reduction"], models=[saved.load(runs / "vit")], networks=("ViT",), steps=2, claim_seeds=0
    )
    assert both.params["steps of the small networks"] == 2
    assert {row.get("model") for row in both.select(theory="rate_reduction", quantity="rate reduction as a share of the optimum")} == {
        "raw",
        "ViT",
        "vit",
    }
    assert both.arrays["network/ViT/features"].shape == both.arrays["network/vit/features"].shape


def test_names_differ_also_where_folders_do_not(runs, tmp_path):
    shutil.copytree(runs / "crate", tmp_path / "a" / "x$y")
    shutil.copytree(runs / "second", tmp_path / "b" / "x$y")
    found = compared([tmp_path / "a" / "x$y", tmp_path / "b" / "x$y", runs / "vit"], TEST)
    assert [one.name for one in found] == ["crate (a/x_y)", "crate (b/x_y)", f"vit ({runs.name}/vit)"]
    loaded = saved.load(runs / "crate")
    assert [one.name for one in compared([loaded, saved.load(runs / "second")], TEST)] == ["crate, 1", "crate, 2"]
    assert [one.name for one in compared([runs / "second"], TEST)] == ["crate (second)"]


def test_a_network_laid_beside_another_run_has_none(runs, tmp_path):
    shutil.copytree(runs / "crate", tmp_path / "run")
    shutil.copy(runs / "second" / "best.safetensors", tmp_path / "run" / "best.safetensors")
    (one,) = compared([tmp_path / "run"], TEST)
    assert one.run is None


def test_a_masked_autoencoder_is_read_in_its_encoder_with_nothing_hidden(tmp_path):
    test = noise(60, 1)
    settings = Settings(patch_size=4, dim=8, depth=2, heads=2, epochs=1, batch_size=32, changes=Augmentation())
    train((TRAIN, test), settings, tmp_path / "mae", objective=MaskedAutoencoding(), theories=(), hardware=Hardware("cpu", "float32"))
    (one,) = compared([tmp_path / "mae"], test)
    data = COMPARE._tokens(test[:20], 0)
    seen = COMPARE._features(one.reader, data, seed=0, layer=one.last_block, inputs="images")
    inner = one.saved.model.network.autoencoder
    images = (data.images.float() - one.saved.model.mean) / one.saved.model.std
    with torch.no_grad():
        torch.testing.assert_close(inner.norm(seen.tokens.float()), inner.encode(images))
    theories = [theory for theory in tt.theories() if theory.name in THEORIES]
    first, second = (one.observed(test, theories, seed=0) for _ in range(2))
    assert first == second
    assert {row["layer"] for row in first if "layer" in row} == {0, 1}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((TRAIN, replace(TEST, pixels=TEST.pixels[..., :4, :4])), r"reads images \[1, 8, 8\], got \[1, 4, 4\]"),
        ((TRAIN, replace(TEST, pixels=TEST.pixels.repeat(1, 3, 1, 1))), r"reads images \[1, 8, 8\], got \[3, 8, 8\]"),
        ((TRAIN, replace(TEST, names=("bright", "dark"))), "tells dark, bright, ..., got bright, dark, ..."),
        (TokenData(torch.zeros(4, 2, 3, dtype=torch.float64)), "models read images, got tokens"),
    ],
)
def test_data_that_do_not_fit_are_named_in_one_line(runs, data, words):
    with pytest.raises(ValueError, match=words) as caught:
        tt.compare(data, models=[runs / "crate"])
    assert "\n" not in str(caught.value)


def test_shares_have_an_interval_and_other_numbers_none():
    assert interval(0.5, 10) == "95 % interval 18.71 % to 81.29 %"
    assert interval(0.123, 10) == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--steps", "3"], "--steps is of the small networks"),
        (["--networks", "VIT"], "unknown network 'VIT'"),
    ],
)
def test_options_that_do_not_go_together(runs, tmp_path, capsys, options, words):
    out = tmp_path / "out"
    assert main(["compare", "--data", "digits", "--model", str(runs / "crate"), "--out", str(out), *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("model", "words"), [("crate", "reads images [1, 8, 8]"), ("nowhere", "nowhere"), ("crate/result.json", "safetensors")]
)
def test_the_command_refuses_what_it_cannot_read(runs, tmp_path, capsys, model, words):
    code = main(["compare", "--data", "shapes", "--model", str(runs / model), "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1)
    assert words in error
