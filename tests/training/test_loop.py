"""A training that is interrupted anywhere and resumed equals an uninterrupted one; the caller's random state
is restored.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.problems.image_trainings import (
    CPU,
    SMALL,
    assert_same,
    draft_of,
    interrupting,
    noise,
    table,
    trained,
    with_,
)
from tests.problems.networks import theory_metrics
from transformer_theory.core import cluster
from transformer_theory.core.result import Result
from transformer_theory.training import fitting, monitor
from transformer_theory.training.augment import Augmentation
from transformer_theory.training.image import loop
from transformer_theory.training.image.folder import FILES, claimed, clear
from transformer_theory.training.image.loop import train
from transformer_theory.training.image.processes import Hardware
from transformer_theory.training.image.recipes import image_recipe
from transformer_theory.training.image.saved import load
from transformer_theory.training.objectives import CrossEntropy, MaskedAutoencoding

EVERYTHING = Augmentation(crop=1, flip=0.5, operations=2, cutout=2, mixup=0.8, cutmix=1.0)
KINDS = {
    "adamw": with_(augmentation=EVERYTHING),
    "average": with_(average=0.9, augmentation=Augmentation(mixup=0.8), learning_rate=1e-3),
    "muon, average": with_(optimiser="muon", average=0.9, augmentation=EVERYTHING, interval=2),
    "layer decay": with_(network="vit", layer_decay=0.7, seed=5),
}


@pytest.fixture(autouse=True, scope="module")
def few_nulls() -> Iterator[None]:
    """One untrained network behind each null, for the sake of time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor, "UNTRAINED_NETWORKS", 1)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """An uninterrupted training."""
    folder = tmp_path_factory.mktemp("trained") / "whole"
    trained(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_two_epochs_are_one_and_one(tmp_path, kind):
    options = {"metrics": tuple} if kind == "adamw" else {}
    trained(tmp_path / "whole", KINDS[kind], **options)
    for step in (2, 5):  # resumed, it is interrupted again
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "parts", KINDS[kind], callback=interrupting(step), resume=step > 2, **options)
    trained(tmp_path / "parts", KINDS[kind], resume=True, **options)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_metrics_that_compare_measurements_do_so_over_interruptions(tmp_path):
    options = {"metrics": lambda: theory_metrics("scan_snap", "joma"), "theories": ("scan_snap", "joma")}
    whole = trained(tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "parts", callback=interrupting(4), **options)
    trained(tmp_path / "parts", **options, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")
    # there is nothing to compare with before the first measurement, and untrained networks do not count
    assert not whole.select(quantity="overlap with the previous map", step=0)
    assert whole.select(quantity="overlap with the previous map", step=6)
    assert set(whole.select(quantity="rebound of attention's entropy", step=0).column("value")) == {0.0}


def test_masks_are_drawn_again(tmp_path):
    for name in ("whole", "parts"):
        options = {"objective": MaskedAutoencoding(masked=0.5)}
        if name == "parts":
            with pytest.raises(KeyboardInterrupt):
                trained(tmp_path / name, with_(epochs=1, interval=2), callback=interrupting(3), **options)
            options["resume"] = True
        trained(tmp_path / name, with_(epochs=1, interval=2), **options)
    assert_same(tmp_path / "whole", tmp_path / "parts")


# many trainings, whose shapes the others check
def test_interrupted_between_any_two_files(tmp_path, monkeypatch, unchecked):
    replaced, settings = Path.replace, with_(epochs=1, interval=2)
    trained(tmp_path / "whole", settings)
    for stop in range(100):
        folder, count = tmp_path / str(stop), iter(range(1000))

        def replacing(self, target, count=count, stop=stop):
            if next(count) == stop:
                raise KeyboardInterrupt
            return replaced(self, target)

        monkeypatch.setattr(Path, "replace", replacing)
        try:
            trained(folder, settings)
        except KeyboardInterrupt:
            monkeypatch.setattr(Path, "replace", replaced)
            assert not list(folder.glob(".*"))  # no draft is left
            # before the first checkpoint nothing is left at all
            trained(folder, settings, resume=folder.exists())
            assert_same(folder, tmp_path / "whole")
        else:
            break
    assert stop >= 6 + 2 * 2 + 3  # the first interval, two that need not keep the network, and the end


def test_an_unfinished_training_ends_once(tmp_path):
    """A training that ends between two intervals, and is resumed before the test, has no row twice."""
    settings = with_(interval=4)

    def stop(update) -> None:
        if update.step == 6 and update.measured is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", settings, callback=stop)
    assert "seconds" not in Result.load(tmp_path / "run").provenance  # they are stored at the end
    trained(tmp_path / "run", settings, resume=True)
    for split, steps in (("validation", [0, 4, 6]), ("test", [6])):
        rows = [row for row in table(tmp_path / "run") if row["quantity"] == "loss" and row["split"] == split]
        assert [row["step"] for row in rows] == steps


def test_a_finished_training_stays_unchanged(whole, monkeypatch):
    before = {entry: entry.read_bytes() for entry in whole.iterdir()}
    monkeypatch.setattr(loop, "_Run", None)
    result = trained(whole, resume=True)
    assert result.table == Result.load(whole).table
    assert result.select(quantity="loss", split="test")
    assert {entry: entry.read_bytes() for entry in whole.iterdir()} == before


def test_a_table_may_have_more_rows_than_the_checkpoint_but_not_fewer(tmp_path, whole):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", callback=interrupting(5))
    path = tmp_path / "run" / "table.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[1:]))
    n = len(lines)
    with pytest.raises(
        ValueError,
        match=rf"table\.jsonl must hold the {n} rows of the checkpoint beside it, got {n - 1}; begin again",
    ):
        trained(tmp_path / "run", resume=True)
    path.write_text("".join([*lines, lines[-1]]))  # of an interval whose checkpoint was never written
    draft_of(tmp_path / "run" / "best.safetensors").write_bytes(b"left by a killed process")
    trained(tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", whole)
    assert sorted(entry.name for entry in (tmp_path / "run").iterdir()) == sorted(
        entry.name for entry in whole.iterdir()
    )


@pytest.mark.parametrize("damage", ["cut", "bit", "missing"])
def test_a_lost_best_network_is_chosen_anew_with_a_warning(tmp_path, caplog, damage):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", callback=interrupting(4))
    best = tmp_path / "run" / "best.safetensors"
    content = bytearray(best.read_bytes())
    content[-3] ^= 4
    if damage == "missing":
        best.unlink()
    else:
        best.write_bytes(content if damage == "bit" else content[:100])
    trained(tmp_path / "run", resume=True)
    (record,) = caplog.records
    assert "step 3" in record.getMessage()
    assert "best.safetensors" in record.getMessage()
    assert load(best).origin["step"] == 6


def test_a_best_network_that_is_lost_after_the_last_step_is_the_last_one(tmp_path, caplog):
    def stop(update) -> None:
        if update.step == 6 and update.measured is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", callback=stop)
    (tmp_path / "run" / "best.safetensors").unlink()
    result = trained(tmp_path / "run", resume=True)
    assert result.select(quantity="accuracy", split="test").one().step == 6


def states() -> Iterator:
    """Of torch and NumPy; the shape checks of tests draw from that of Python's random."""
    yield torch.get_rng_state().tolist()
    yield np.random.get_state()[1].tolist()


def test_the_callers_random_state_stays(tmp_path):
    torch.manual_seed(3)
    before = list(states())
    trained(tmp_path / "run", with_(epochs=1, augmentation=EVERYTHING, average=0.5))
    assert list(states()) == before
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "other", callback=interrupting(1))
    assert list(states()) == before


def test_callbacks_and_files_of_a_training(tmp_path):
    updates = []
    names = ("crate", "rate_reduction", "scan_snap", "joma")
    result = trained(
        tmp_path / "run", with_(interval=2), callback=updates.append, metrics=lambda: theory_metrics(*names)
    )
    assert set(FILES[:5]) <= {entry.name for entry in (tmp_path / "run").iterdir()}
    assert [update.step for update in updates if update.measured is None] == [1, 2, 3, 4, 5, 6]
    assert [update.step for update in updates if update.measured is not None] == [0, 2, 4, 6]
    assert (updates[0].speed, updates[0].left, updates[-1].left) == (None, None, 0)
    for each in updates[1:]:  # the rest takes as long as what is done did
        assert each.left == pytest.approx(each.seconds / each.done - each.seconds)
    losses = [update.loss for update in updates if update.measured is None]
    stored = {row.step: row.value for row in result.select(quantity="loss", split="train")}
    assert stored == pytest.approx({2: sum(losses[:2]) / 2, 4: sum(losses[2:4]) / 2, 6: sum(losses[4:]) / 2})
    assert set(result.table.column("theory")) == {"network", *names}
    assert len(result.select(quantity="accuracy", split="test")) == 1
    assert Result.load(tmp_path / "run").table == result.table
    nulls = {row.null for row in result.select(theory="network", quantity="attention entropy")}
    assert None not in nulls
    assert len(nulls) == 2  # one per head


def test_a_run_states_its_recipe_its_id_and_its_samples(tmp_path):
    settings = replace(
        image_recipe("crate", image_size=8),
        **{name: getattr(SMALL, name) for name in ("patch_size", "dim", "epochs")},
    )
    runs = [trained(tmp_path / name, settings).settings for name in ("one", "two")]
    assert runs[0]["settings"]["recipe"] == "digits"
    assert [runs[0][f"{split}_samples"] for split in ("train", "validation", "test")] == [54, 6, 12]
    assert runs[0]["run_id"] != runs[1]["run_id"]
    assert load(tmp_path / "one").origin["run_id"] == runs[0]["run_id"]


@pytest.mark.parametrize("network", ["crate", "vit"])
def test_the_recipe_for_an_accelerator_runs(tmp_path, network):
    """All its settings on a small network: stem, moving average, augmentation of colour images, bfloat16."""
    settings = replace(
        image_recipe(network, name="hours"),
        dim=16,
        depth=1,
        heads=2,
        epochs=2,
        batch_size=16,
        validation_share=0.2,
    )
    result = trained(tmp_path / "run", settings, channels=3, hardware=Hardware("cpu", "bfloat16"))
    losses = result.select(quantity="loss", split="train").column("value")
    assert len(losses) == 2
    assert all(0 < loss < 10 for loss in losses)
    assert result.settings["precision"] == "bfloat16"
    last = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    assert {weight.dtype for weight in last["network"].values()} == {torch.float32}
    average = {name.removeprefix("module.network."): weight for name, weight in last["average"].items()}
    assert not any(
        torch.equal(weight, average[name]) for name, weight in last["network"].items() if weight.ndim == 2
    )
    assert result.select(quantity="accuracy", split="test")


def test_a_network_without_attention_maps_is_trained(tmp_path):
    result = trained(tmp_path / "run", with_(network="crate-exact", epochs=1), metrics=tuple)
    (row,) = result.table.where(lambda row: row.value is None)
    assert (row.quantity, row.step) == ("attention", 0)
    assert "no attention maps" in row.reason


def test_the_clock_goes_on_where_it_stopped(tmp_path, monkeypatch):
    now = [0.0]

    class Clock:
        def perf_counter(self):
            now[0] += 0.1
            return now[0]

    monkeypatch.setattr(fitting, "time", Clock())
    settings = with_(minutes=0.2, interval=3)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", settings, callback=interrupting(7))
    result = trained(tmp_path / "run", settings, resume=True)
    seconds = {row.step: row.value for row in result.select(quantity="seconds")}
    assert list(seconds) == sorted(seconds)
    assert list(seconds.values()) == sorted(seconds.values())
    assert 12 <= max(seconds.values()) < 13
    assert set(range(0, 7, 3)) < set(seconds)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settings": replace(SMALL, learning_rate=0.1)}, r"learning_rate 0\.002 there and 0\.1 here"),
        ({"settings": replace(SMALL, network="vit")}, "network 'crate' there and 'vit' here"),
        ({"settings": replace(SMALL, epochs=3)}, "epochs 2 there and 3 here"),
        ({"objective": CrossEntropy(label_smoothing=0.0)}, r"objective .*0\.1.* there and .*0\.0.* here"),
    ],
)
def test_another_training_is_not_resumed(whole, options, message):
    with pytest.raises(ValueError, match=f"belongs to another training: {message}.*; give the same options"):
        trained(whole, **options, resume=True)


def test_other_images_are_noticed(whole):
    with pytest.raises(
        ValueError,
        match=r"images '48 images, \w+' there|images '60 images, \w{8}' there and '60 images, \w{8}' here",
    ):
        train((noise(seed=7), noise(12)), SMALL, whole, hardware=CPU, resume=True)


OTHER = {
    "one pixel of a test image": lambda images: replace(images, pixels=images.pixels.roll(1, 0)),
    "half of the test images": lambda images: images[: len(images) // 2],
    "the labels of the test images": lambda images: replace(images, labels=images.labels.roll(1)),
}


@pytest.mark.parametrize("change", OTHER)
@pytest.mark.parametrize("ended", [False, True])
def test_other_test_images_are_refused(tmp_path, whole, change, ended):
    """Also those of a training that has ended, whose accuracy would seem to be of these images."""
    folder, (train_images, test_images) = whole, (noise(), noise(12, seed=1))
    if not ended:
        folder = tmp_path / "run"
        with pytest.raises(KeyboardInterrupt):
            trained(folder, callback=interrupting(3))
    data = train_images, OTHER[change](test_images)
    for continued in ({"resume": True}, {"extend": True}):
        with pytest.raises(
            ValueError, match=r"belongs to another training: test_images '.*' there and '.*' here"
        ):
            train(data, SMALL, folder, hardware=CPU, **continued)


def test_other_names_of_classes_are_refused(whole):
    data = tuple(replace(images, names=("a", "b", "d")) for images in (noise(), noise(12, seed=1)))
    with pytest.raises(
        ValueError, match=r"another training: class_names 'a, b, c;.*' there and 'a, b, d;.*' here"
    ):
        train(data, SMALL, whole, hardware=CPU, resume=True)


def test_another_version_of_the_code_is_refused_by_name(whole, monkeypatch):
    monkeypatch.setattr(cluster, "sources", lambda: "1234abcd")
    with pytest.raises(
        ValueError,
        match=r"transformer_theory '.* sources \w{8}' there and '.* sources 1234abcd' here; install the same",
    ):
        trained(whole, resume=True)


def test_one_training_a_folder_at_a_time(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        trained(folder, callback=interrupting(1))
    with claimed(folder):
        for act in (lambda: trained(folder, resume=True), lambda: clear(folder)):
            with pytest.raises(FileExistsError, match="is in use by another training; wait for it"):
                act()


def test_a_folder_that_is_used_is_refused(tmp_path, whole):
    with pytest.raises(FileExistsError, match="holds a training; --resume continues it"):
        trained(whole)
    (tmp_path / "note").write_text("mine")
    with pytest.raises(FileExistsError, match="holds something else; choose another --out"):
        trained(tmp_path)
    with pytest.raises(FileExistsError, match="is not a folder"):
        trained(tmp_path / "note")
    with pytest.raises(FileExistsError, match="something else"):
        trained(tmp_path, resume=True)
    with pytest.raises(FileNotFoundError, match=r"last\.pt .*--extend"):
        trained(tmp_path / "nowhere", extend=True)


def test_a_training_is_replaced_when_the_new_one_can_begin(tmp_path, caplog):
    trained(tmp_path / "run", with_(epochs=1))
    trained(tmp_path / "other", with_(epochs=1, dim=16))
    first, settings = (tmp_path / "run" / "best.safetensors").read_bytes(), with_(epochs=1, seed=1)
    for weights in ("run", "run/best.safetensors"):
        with pytest.raises(
            ValueError, match=r"weights must lie outside the folder that is overwritten, got .*run"
        ):
            trained(tmp_path / "run", settings, overwrite=True, weights=tmp_path / weights)
    for error, message, options in (
        (ValueError, "dim 16 there and 8 here", {"weights": tmp_path / "other"}),
        (FileNotFoundError, "nowhere", {"weights": tmp_path / "nowhere"}),
        (ValueError, "patch_size must be a divisor", {"settings": with_(patch_size=3)}),
        (ValueError, "extend continue it, got both", {"resume": True}),
    ):
        with pytest.raises(error, match=message):
            trained(tmp_path / "run", **{"settings": settings, "overwrite": True, **options})
    assert (tmp_path / "run" / "best.safetensors").read_bytes() == first
    draft_of(tmp_path / "run" / "last.pt").write_bytes(b"")
    assert trained(tmp_path / "run", settings, overwrite=True).settings["settings"]["seed"] == 1
    assert (tmp_path / "run" / "best.safetensors").read_bytes() != first
    assert not list((tmp_path / "run").glob(".*"))


def test_a_stored_result_never_replaces_trained_weights(tmp_path):
    result = trained(tmp_path / "seeds" / "seed-0", with_(epochs=1))
    result.save(tmp_path / "result")
    result.save(tmp_path / "result", overwrite=True)
    result.write_into(tmp_path / "seeds")
    for folder in ("seeds/seed-0", "seeds"):
        with pytest.raises(
            FileExistsError, match=r"holds trained weights \(.*best\.safetensors\), so it is not overwritten"
        ):
            result.save(tmp_path / folder, overwrite=True)
    assert (tmp_path / "seeds" / "seed-0" / "last.pt").exists()


def test_only_a_training_is_cleared(tmp_path, whole):
    clear(tmp_path / "nothing")
    trained(tmp_path / "run", with_(epochs=1))
    (tmp_path / "run" / "note").write_text("mine")
    with pytest.raises(FileExistsError, match="holds note beside a training, so it is not overwritten"):
        clear(tmp_path / "run")
    (tmp_path / "run" / "note").rename(tmp_path / "note")
    draft_of(tmp_path / "run" / "best.safetensors").write_bytes(b"")
    clear(tmp_path / "run")
    assert [entry.name for entry in tmp_path.iterdir()] == ["note"]
    with pytest.raises(FileExistsError, match="holds no training"):
        clear(tmp_path)
