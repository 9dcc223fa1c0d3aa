"""Comparison of stored networks: measurements on test images, names, and errors."""

import importlib
import shutil
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import torch

import transformer_theory as tt
from tests.problems.copies import few_draws, few_stored_copies
from tests.problems.networks import theory_metrics
from transformer_theory.cli import main
from transformer_theory.core.ladder import COLUMNS, Rung
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import EQUAL_SCALE, UNTRAINED, place_of
from transformer_theory.data import Images, TokenData, image_sets
from transformer_theory.metrics import AttentionMaps
from transformer_theory.probes.features import features
from transformer_theory.training import monitor
from transformer_theory.training.augment import Augmentation
from transformer_theory.training.image import saved
from transformer_theory.training.image.evaluate import (
    evaluate,
    load_stored_networks,
    maps,
    measure_metrics,
)
from transformer_theory.training.image.loop import train
from transformer_theory.training.image.processes import Hardware
from transformer_theory.training.image.settings import Settings
from transformer_theory.training.image.side_by_side import EQUAL_PARAMETERS, EQUAL_STEPS, EQUAL_TIME
from transformer_theory.training.objectives import ACCURACY, MaskedAutoencoding

STORED = importlib.import_module("transformer_theory.comparison.stored")
THEORY = tt.rate_reduction.THEORY
CPU = Hardware("cpu", "float32")
SETTINGS = Settings(
    patch_size=4,
    dim=8,
    depth=2,
    heads=2,
    epochs=2,
    batch_size=16,
    augmentation=Augmentation(),
    validation_share=0.2,
)


def noise(n: int, seed: int) -> Images:
    """Two classes, the second brighter; sorted by class, as folders of images are."""
    pixels = torch.randint(0, 200, (n, 1, 8, 8), generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(n) * 2 // n
    return Images(
        (pixels + 50 * labels[:, None, None, None]).to(torch.uint8), labels, ("dark", "bright"), name="noise"
    )


TRAIN, TEST = noise(64, 0), noise(300, 1)
COPIES, RANDOM = 9, 5  # of equal scale, and with initial weights


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a CRATE and a ViT after two epochs of three steps, and of another CRATE without metrics of
    theories.
    """
    folder = tmp_path_factory.mktemp("runs")
    for name, network, seed in (("crate", "crate", 0), ("vit", "vit", 0), ("second", "crate", 1)):
        metrics = (lambda: theory_metrics("rate_reduction", "crate")) if name != "second" else tuple
        settings = replace(SETTINGS, network=network, seed=seed)
        train((TRAIN, TEST), settings, folder / name, metrics=metrics, hardware=CPU)
    shutil.copy(folder / "crate" / "best.safetensors", folder / "crate" / "early.safetensors")
    return folder


@pytest.fixture(autouse=True)
def few(monkeypatch):
    few_stored_copies(monkeypatch, COPIES, RANDOM)


@pytest.fixture(scope="module")
def result(runs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # other tests check shapes
        few_draws(patch)
        few_stored_copies(patch, COPIES, RANDOM)
        # theories get some of the test images only, as of large sets
        patch.setattr(image_sets, "MAX_SAMPLES", 200)
        models = [
            runs / "crate",
            runs / "vit" / "best.safetensors",
            runs / "crate" / "early.safetensors",
            runs / "crate",
        ]
        return tt.compare((TRAIN, TEST), [THEORY], models=models, seeds=1, claim_seeds=0)


NAMES = ["crate", "vit", "crate (crate/early)"]


def test_theories_measure_the_images_and_the_features_of_each_network(result):
    for model in ("", *NAMES):
        assert (
            len(
                result.select(
                    theory=THEORY.name, kind="on data", quantity=THEORY.on_data.headline, model=model
                )
            )
            == 1
        )
    assert result.settings["n"] == 200
    assert "steps" not in result.settings
    assert list(result.settings["models"]) == NAMES
    assert result.arrays["network/crate/features"].shape == (200, 2)
    assert result.arrays["network/vit/attention"].shape == (1, 2, 2, 6, 5, 5)
    assert set(result.table.column("data")) == {"noise"}


def test_accuracy_is_that_of_evaluate_on_all_test_images(result, runs):
    for name in ("crate", "vit"):
        row = result.select(quantity=ACCURACY, model=name, split="test").one()
        (expected,) = [row for row in evaluate(runs / name, TRAIN, TEST)[0] if row.quantity == ACCURACY]
        assert (row.value, row.interval, row.n) == (expected.value, expected.interval, 300)
        assert row.interval[0] < row.value < row.interval[1]


def test_the_timeline_is_that_of_the_run_for_the_chosen_theories(result, runs):
    for name in ("crate", "vit"):
        run = Result.load(runs / name).table
        assert run.select(theory="crate")  # which the comparison leaves out
        own = run.select(theory=("network", THEORY.name)).where(lambda row: row.split != "test")
        timeline = result.select(model=name).where(lambda row: row.step is not None)
        assert timeline == own.replace(model=name, data="noise", seed=0)
        assert {row.step for row in timeline if row.theory == THEORY.name} == {0, 3, 6}


def test_theories_that_a_run_did_not_measure_have_one_step(result, runs):
    lone = result.select(model="crate (crate/early)").where(lambda row: row.step is not None)
    step = saved.load(runs / "crate").origin["step"]
    assert set(lone.column("step")) == {step}
    assert set(lone.column("theory")) == {"network", THEORY.name}
    (network,) = load_stored_networks([runs / "second"], TEST)
    measured, _ = measure_metrics(network, TEST, metrics=lambda: theory_metrics("rate_reduction"))
    rows = list(STORED._timeline(network, [THEORY], measured))
    assert {row.step for row in rows if row.theory == "network"} == {0, 3, 6}
    assert [row for row in rows if row.theory == THEORY.name] == [
        row for row in measured if row.theory == THEORY.name
    ]
    assert {row.split for row in rows if row.theory == THEORY.name} == {"test"}


def test_headlines_are_measured_on_test_images_of_all_classes(result):
    for name in ("crate", "vit"):
        rows = result.select(kind="in network", quantity=THEORY.in_networks.headline, model=name, step=None)
        whole, layers = (
            rows.select(layer=None).one(),
            rows.where(lambda row: row.layer is not None),
        )
        assert (whole.split, whole.n, whole.scope, whole.side) == (
            "test",
            300,
            "training",
            THEORY.in_networks.side,
        )
        assert whole.value > 1e-6  # of one class it is 0, and the test images are sorted by class
        assert layers.column("layer") == [0, 1]
        assert sum(layers.column("value")) / 2 == pytest.approx(whole.value)
        tested, own, shown = whole.nulls
        assert [null.kind for null in whole.nulls] == [EQUAL_SCALE, "permuted labels", UNTRAINED]
        assert (len(tested.draws), len(shown.draws)) == (COPIES, RANDOM)
        assert tested.value is not None  # on the images of the copies
        assert own.mean == pytest.approx(sum(row.null.mean for row in layers) / 2)


def test_the_attention_maps_are_those_of_the_stored_pictures(result, runs):
    model = saved.load(runs / "crate").model
    keeper = AttentionMaps(keep=6)
    with tt.probe(model, [keeper]), torch.no_grad():
        model(torch.from_numpy(result.arrays["network/images"]).float())
    expected = np.stack([keeper.sums[where].numpy().swapaxes(0, 1) for where in sorted(keeper.sums)])
    np.testing.assert_allclose(result.arrays["network/crate/attention"][0], expected, atol=1e-5)


def test_a_network_without_attention_maps_has_none(tmp_path):
    settings = replace(SETTINGS, network="tost", depth=1, epochs=1, batch_size=32)
    train((TRAIN, TEST), settings, tmp_path / "tost", hardware=CPU)
    (network,) = load_stored_networks([tmp_path / "tost"], TEST)
    assert not maps(network, TEST)


def test_quantities_without_a_null_get_that_of_untrained_networks(runs):
    (network,) = load_stored_networks([runs / "crate"], TEST)
    rows, untrained = measure_metrics(network, TEST, metrics=lambda: theory_metrics("scan_snap"))
    headline = tt.scan_snap.THEORY.in_networks.headline
    rows = [row for row in rows if row.quantity == headline]
    assert {row.layer for row in rows} == {0, 1}
    assert len(untrained) == RANDOM
    for row in rows:
        assert (row.null.kind, len(row.null.draws)) == (UNTRAINED, RANDOM)
        draws = [other.value for each in untrained for other in each if place_of(other) == place_of(row)]
        assert row.null.draws == tuple(draws)
        assert len(set(draws)) == RANDOM
        assert (row.n, row.split) == (monitor.SAMPLES, "test")  # attention of fewer images than classes


def test_each_run_is_compared_once(result):
    rows = result.select(quantity=ACCURACY, split="validation", step=None)
    for setting in (EQUAL_STEPS, EQUAL_TIME):
        assert rows.select(at={"compared at": setting}).column("model") == ["crate", "vit"]
    # a ViT of this width has more parameters
    assert rows.select(at={"compared at": EQUAL_PARAMETERS}).one().value is None


def test_small_networks_beside_them_learn_training_images(runs):
    data = TRAIN, noise(60, 1)
    both = tt.compare(
        data, [THEORY], models=[saved.load(runs / "vit")], networks=("ViT",), seeds=1, steps=2, claim_seeds=0
    )
    assert both.settings["steps"] == 2
    assert both.settings["networks"] == ["ViT"]
    assert set(both.select(kind="on data", quantity=THEORY.on_data.headline).column("model")) == {
        "",
        "ViT",
        "vit",
    }
    assert both.arrays["network/ViT/features"].shape == both.arrays["network/vit/features"].shape == (60, 2)


def test_names_are_unique(runs, tmp_path):
    shutil.copytree(runs / "crate", tmp_path / "a" / "x$y")
    shutil.copytree(runs / "second", tmp_path / "b" / "x$y")
    networks = load_stored_networks([tmp_path / "a" / "x$y", tmp_path / "b" / "x$y", runs / "vit"], TEST)
    assert [network.name for network in networks] == [
        "crate (a/x_y)",
        "crate (b/x_y)",
        f"vit ({runs.name}/vit)",
    ]
    loaded = [saved.load(runs / "crate"), saved.load(runs / "second")]
    assert [network.name for network in load_stored_networks(loaded, TEST)] == ["crate, 1", "crate, 2"]
    assert [network.name for network in load_stored_networks([runs / "second"], TEST)] == ["crate (second)"]


def test_a_network_beside_the_result_of_another_run_has_no_run(runs, tmp_path):
    shutil.copytree(runs / "crate", tmp_path / "run")
    assert load_stored_networks([tmp_path / "run"], TEST)[0].run is not None
    shutil.copy(runs / "second" / "best.safetensors", tmp_path / "run" / "best.safetensors")
    assert load_stored_networks([tmp_path / "run"], TEST)[0].run is None


def test_a_masked_autoencoder_is_measured_in_its_encoder_with_nothing_hidden(tmp_path):
    test = noise(60, 1)
    settings = replace(SETTINGS, epochs=1, batch_size=32)
    train((TRAIN, test), settings, tmp_path / "mae", objective=MaskedAutoencoding(), hardware=CPU)
    (network,) = load_stored_networks([tmp_path / "mae"], test)
    data = image_sets.tokens_of(test[:20], torch.Generator().manual_seed(0))
    measured = features(network.measured, data, layer=network.last_block, inputs="images")
    inner = network.saved.model.network.autoencoder
    images = (data.images.float() - network.saved.model.mean) / network.saved.model.std
    with torch.no_grad():
        torch.testing.assert_close(inner.norm(measured.tokens.float()), inner.encode(images))
    first, second = (
        measure_metrics(network, test, metrics=lambda: theory_metrics("rate_reduction"))[0] for _ in range(2)
    )
    assert first == second
    assert {row.layer for row in first if row.layer is not None} == {0, 1}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((TRAIN, replace(TEST, pixels=TEST.pixels[..., :4, :4])), r"\[1, 8, 8\], got \[1, 4, 4\]"),
        ((TRAIN, replace(TEST, pixels=TEST.pixels.repeat(1, 3, 1, 1))), r"\[1, 8, 8\], got \[3, 8, 8\]"),
        ((TRAIN, replace(TEST, names=("bright", "dark"))), "dark, bright, ..., got bright, dark, ..."),
        (TokenData(torch.zeros(4, 2, 3, dtype=torch.float64)), "models .* images, got tokens"),
    ],
)
def test_data_that_do_not_fit_are_named_in_one_line(runs, data, words):
    with pytest.raises(ValueError, match=words) as caught:
        tt.compare(data, models=[runs / "crate"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "model", "options", "words"),
    [
        ("digits", "crate", ["--steps", "3"], "--steps"),
        ("digits", "crate", ["--networks", "VIT"], "'VIT'"),
        ("shapes", "crate", [], "[1, 8, 8], got [3, "),
        ("digits", "nowhere", [], "nowhere', which does not exist"),
        ("digits", "crate/result.json", [], ".safetensors"),
    ],
)
def test_the_command_refuses_what_it_cannot_compare(runs, tmp_path, capsys, data, model, options, words):
    out = tmp_path / "out"
    assert main(["compare", "--data", data, "--model", str(runs / model), "--out", str(out), *options]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error
    assert not out.exists()


def test_stored_networks_are_rungs_of_a_reach(runs):
    own = Rung("own", "", lambda generator: [THEORY.ladder.row(0.5)], COLUMNS[0])
    theory = replace(THEORY, ladder=replace(THEORY.ladder, rungs=(own,)))
    models = [runs / "crate", runs / "second", runs / "vit"]
    result = tt.reach(theory, seeds=1, images=(TRAIN, TEST), models=models)
    rows = {
        rung["name"]: result.select(rung=rung["name"])
        for rung in result.settings["ladders"][theory.name]["rungs"]
    }
    assert {name: [row.seed for row in table] for name, table in rows.items()} == {
        "own": [0],
        "stored crate": [0, 1],
        "stored vit": [0],
    }
    assert len({row.value for row in rows["stored crate"]}) == 2
    assert all(
        row.quantity == theory.ladder.quantity and row.verdict == "not covered"
        for row in (*rows["stored crate"], *rows["stored vit"])
    )
    with pytest.raises(ValueError, match="models are measured on images, got none"):
        tt.reach(theory, seeds=1, models=models)
    other = replace(theory, in_networks=replace(theory.in_networks, headline="another quantity"))
    assert len(tt.reach(other, seeds=1, images=(TRAIN, TEST), models=models).table) == 1
