"""``models.load``: runs, released layouts and folders of transformers in one line, and what is refused."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from tests.problems.crate import published_alpha
from tests.problems.image_trainings import trained, with_
from transformer_theory import models
from transformer_theory.models import stored
from transformer_theory.models.stored import IMAGENET
from transformer_theory.theories.rate_reduction.tasks import RateReduction
from transformer_theory.training.image import saved
from transformer_theory.training.objectives import MaskedAutoencoding

SIZES = {"image_size": 8, "patch_size": 4, "num_classes": 3, "dim": 24, "depth": 2, "heads": 4}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def built(**other):
    return models.build(lambda: models.CRATE.for_images(**{**SIZES, **other}), generator()).eval()


def images(size=8, channels=3):
    return torch.rand(2, channels, size, size, generator=generator(1))


def normalised(pixels):
    mean, std = (torch.tensor(values)[:, None, None] for values in IMAGENET)
    return (pixels - mean) / std


def test_a_run_is_loaded_with_its_settings(tmp_path):
    settings = with_(epochs=1, pooling="mean", eta=0.3, lam=0.2)
    trained(tmp_path / "run", settings)
    pixels = images(channels=1)
    with torch.no_grad():
        expected = saved.load(tmp_path / "run").model(pixels)
        state = torch.random.get_rng_state()
        for path in (tmp_path / "run", str(tmp_path / "run" / "best.safetensors")):
            model = models.load(path)
            assert not model.training
            assert torch.equal(model(pixels), expected)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.settings["network"] == "crate"
    assert model.settings["names"] == ["a", "b", "c"]
    assert {name: model.settings["sizes"][name] for name in ("dim", "pooling", "eta", "lam")} == {
        "dim": 8, "pooling": "mean", "eta": 0.3, "lam": 0.2,
    }  # fmt: skip
    assert repr(model).startswith("Pretrained(crate, ")
    assert len(repr(model)) < 250
    with pytest.raises(
        ValueError, match=r"eta must be left out, since .*run.* holds the settings of its training"
    ):
        models.load(tmp_path / "run", eta=0.2)


def test_a_running_training_may_replace_the_file_while_it_is_read(tmp_path, monkeypatch):
    for seed in (0, 1):
        trained(tmp_path / f"{seed}", with_(epochs=1, seed=seed))
    files = [(tmp_path / f"{seed}" / "best.safetensors") for seed in (0, 1)]
    contents, read, path = (
        [file.read_bytes() for file in files],
        stored.read_safetensors,
        tmp_path / "best.safetensors",
    )
    calls = iter(range(100))

    def reading(path):
        found = read(path)
        (tmp_path / "draft").write_bytes(contents[next(calls) % 2])
        (tmp_path / "draft").replace(path)
        return found

    path.write_bytes(contents[1])
    monkeypatch.setattr(stored, "read_safetensors", reading)
    for _ in range(2):
        assert models.load(path).settings["origin"]["seed"] in (0, 1)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"must hold best\.safetensors, .* got 0, 1; name the folder"):
        models.load(tmp_path)


def test_features_are_loaded_and_autoencoders_are_not(tmp_path):
    trained(tmp_path / "features", with_(epochs=1), objective=RateReduction(features=9))
    model = models.load(tmp_path / "features")
    assert model(images(channels=1)).shape == (2, 9)
    trained(tmp_path / "masked", with_(epochs=1), objective=MaskedAutoencoding(masked=0.5))
    with pytest.raises(ValueError, match=r"autoencoder, .*saved\.load"):
        models.load(tmp_path / "masked")


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_released_classifiers_are_loaded_on_images_from_0_to_1(tmp_path, ending):
    model = built(num_classes=24)
    top = torch.randn(5, 24, generator=generator(3)), torch.randn(5, generator=generator(4))
    weights = model.state_dict() | {"head.weight": top[0], "head.bias": top[1]}
    path = tmp_path / f"crate.{ending}"
    wrapped = {f"module.{name}": value for name, value in weights.items()}
    torch.save({"state_dict": wrapped, "epoch": 3}, path) if ending == "pth" else save_file(wrapped, path)
    loaded = models.load(path, heads=4)
    with torch.no_grad():
        assert_close(loaded(images()), model(normalised(images())) @ top[0].T + top[1])
        mean = models.CRATE.from_released(weights, 8, 4, heads=4, eta=0.2, lam=0.3, pooling="mean")
        assert_close(
            models.load(path, heads=4, eta=0.2, lam=0.3, pooling="mean")(images()), mean(normalised(images()))
        )
    assert loaded.settings["sizes"]["patch_size"] == 4


def test_weights_in_half_precision_and_grey_images_are_loaded(tmp_path):
    models.save_weights(
        {name: value.half() for name, value in built(channels=1).state_dict().items()}, tmp_path / "grey.pt"
    )
    assert models.load(tmp_path / "grey.pt", heads=4)(images(channels=1)).dtype == torch.float32


def test_other_released_networks_are_loaded(tmp_path):
    published = published_alpha()
    torch.save({"model": published}, tmp_path / "alpha.pth")
    pixels = images(12)
    with torch.no_grad():
        expected = models.crate_alpha_from_published(published).float()(normalised(pixels))
        assert_close(models.load(tmp_path / "alpha.pth")(pixels), expected)
        changed = models.load(tmp_path / "alpha.pth", eta=0.3, pooling="mean")(pixels)
        assert (changed - expected).abs().max() > 1e-3
    mae = models.build(
        lambda: models.CRATEMAE(image_size=8, patch_size=4, dim=24, depth=1, heads=4), generator()
    )
    models.save_weights(mae, tmp_path / "mae.pt")
    assert isinstance(models.load(tmp_path / "mae.pt", heads=4), models.CRATEMAE)


def test_a_folder_of_transformers_is_loaded(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    model = models.load(tmp_path / "gpt2")
    assert not model.training
    assert model.config.n_embd == 8


def test_what_is_no_network_is_refused(tmp_path, unchecked):
    """Each message names the file, and says what came and what would fit."""
    torch.save({"cls_token": torch.zeros(1), "other": Runs(tmp_path / "ran")}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match=r"evil\.pth, which is not read because it asks for posix\.mkdir"):
        models.load(tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()
    models.save_weights(
        {f"blocks.{i}.attn.qkv.weight": torch.zeros(3) for i in range(4)}, tmp_path / "timm.pth"
    )
    with pytest.raises(
        ValueError,
        match=r"timm\.pth: weights must have the names of a released network \(crate: to_patch.* got 4 "
        r"others, bl",
    ):
        models.load(tmp_path / "timm.pth")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(
        FileNotFoundError,
        match=r"folder must hold best\.safetensors, a trained network, got pytorch_model\.bin",
    ):
        models.load(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(
        ValueError, match=r"folder must hold weights in \.safetensors files, got pytorch_model\.bin"
    ):
        models.load(folder)
    for names in ([True], "GPT2LMHeadModel", 3, {"a": "b"}):
        (folder / "config.json").write_text(json.dumps({"architectures": names}))
        with pytest.raises(ValueError, match="architectures must be a list of names, got"):
            models.load(folder)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        models.load(tmp_path / "nowhere")
    model = built()
    for name, change, message in (
        (
            "nan.pt",
            {"mlp_head.1.bias": torch.full((3,), float("nan"))},
            r"1 with NaN or infinity: mlp_head\.1\.bias",
        ),
        (
            "shape.pt",
            {"mlp_head.1.bias": torch.zeros(4)},
            r"1 of another shape: mlp_head\.1\.bias \[4\] for \[3\]",
        ),
        (
            "patch.pt",
            {"to_patch_embedding.2.weight": torch.zeros(24, 50)},
            "square patches of 3 channels or 1, got 4 patches of 50",
        ),
        ("grid.pt", {"pos_embedding": torch.zeros(1, 7, 24)}, "got 6 patches"),
    ):
        models.save_weights(model.state_dict() | change, tmp_path / name)
        with pytest.raises(ValueError, match=rf"{name}: .*{message}"):
            models.load(tmp_path / name, heads=4)
    models.save_weights(model, tmp_path / "whole.safetensors")
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "whole.safetensors").read_bytes()[:-9])
    with pytest.raises(
        ValueError, match=r"whole safetensors file, got .*half\.safetensors, which cannot be read"
    ):
        models.load(tmp_path / "half.safetensors")
    with pytest.raises(ValueError, match=r"heads must divide the 24 rows of qkv, got None; pass heads="):
        models.load(tmp_path / "whole.safetensors")


class Runs:
    """Unpickling it makes a folder."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_metadata_of_absurd_sizes_allocate_nothing(tmp_path):
    trained(tmp_path / "run", with_(epochs=1))
    weights, record = stored.stored(tmp_path / "run" / "best.safetensors")
    for change in ({"dim": 120_000}, {"depth": 10**9}, {"image_size": 2**40}, {"dim": 2**40}):
        record["sizes"] |= change
        record["crc32"] = stored.checksum(weights, record)
        save_file(
            weights, tmp_path / "other.safetensors", metadata={"transformer_theory": json.dumps(record)}
        )
        with pytest.raises(
            ValueError, match=r"other\.safetensors does not describe a network that this version can build"
        ):
            models.load(tmp_path / "other.safetensors")
