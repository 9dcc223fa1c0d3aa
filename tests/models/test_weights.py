"""Weights on disk: what is written comes back, what would run code does not, and every defect is named."""

import builtins
import os
import pickle
import zipfile

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from transformer_theory import models
from transformer_theory.models.weights import fill, listed, without_prefix

ENDINGS = ("pt", "pth", "safetensors")


class Runs:
    """Unpickling it makes a folder."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.fixture
def network():
    return models.build(
        lambda: models.CRATE.for_images(image_size=4, patch_size=2, num_classes=3, dim=8, depth=2, heads=2),
        torch.Generator(),
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_saved_weights_are_loaded_unchanged(network, tmp_path, ending):
    path = tmp_path / f"weights.{ending}"
    models.save_weights(network, path)
    back = models.load_weights(path)
    assert sorted(back) == sorted(network.state_dict())
    assert all(torch.equal(back[name], value) for name, value in network.state_dict().items())
    images = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    assert_close(
        models.CRATE.from_released(back, 4, 2, heads=2)(images), network.eval()(images), atol=0, rtol=0
    )
    models.save_weights({"a": torch.ones(2)}, path)  # over the old file
    assert list(models.load_weights(path)) == ["a"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]  # no drafts


@pytest.mark.parametrize("ending", ENDINGS)
def test_views_and_shared_tensors_are_written_by_value(tmp_path, ending):
    whole = torch.arange(1000.0).reshape(10, 100)
    path = tmp_path / f"w.{ending}"
    models.save_weights({"row": whole[3], "column": whole[:, 1], "again": whole[3]}, path)
    back = models.load_weights(path)
    assert torch.equal(back["row"], whole[3])
    assert torch.equal(back["column"], whole[:, 1])
    assert torch.equal(back["again"], whole[3])
    assert path.stat().st_size < 3500


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch, ending):
    path = tmp_path / f"w.{ending}"
    models.save_weights({"a": torch.ones(2)}, path)

    def fail(_, draft):
        with open(draft, "wb") as file:
            file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("safetensors.torch.save_file" if ending == "safetensors" else "torch.save", fail)
    with pytest.raises(OSError, match="no space left"):
        models.save_weights({"b": torch.ones(2)}, path)
    assert list(models.load_weights(path)) == ["a"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda w: {"model": w, "epoch": 3, "optimizer": {"lr": 0.1}},
        lambda w: {"state_dict": w, "best": 0.7},
        lambda w: {f"module.{name}": value for name, value in w.items()},
        lambda w: {"model": {"state_dict": {f"module._orig_mod.{name}": value for name, value in w.items()}}},
    ],
)
def test_checkpoints_are_unwrapped(network, tmp_path, wrap):
    torch.save(wrap(network.state_dict()), tmp_path / "checkpoint.pth")
    assert list(models.load_weights(tmp_path / "checkpoint.pth")) == list(network.state_dict())
    models.CRATE.from_released(wrap(network.state_dict()), 4, 2, heads=2)


def prefixed(weights, prefix):
    return {prefix + name: value for name, value in weights.items()}


def inside(weights, wrapper):
    return {name.replace("layers.0.", f"layers.0.{wrapper}."): value for name, value in weights.items()}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda w: {"pytorch-lightning_version": "2.6", "state_dict": prefixed(w, "model.")},
        lambda w: prefixed(w, "net."),
        lambda w: prefixed(w, "backbone.model."),
        lambda w: prefixed(w, "_forward_module.module.model._orig_mod."),
        lambda w: prefixed(w, "module.") | {"n_averaged": torch.tensor(3)},
        lambda w: {"model": prefixed(w, "module.") | {"n_averaged": torch.tensor(3)}},
        lambda w: {"model_ema": w, "epoch": 3},
        lambda w: {"state_dict_ema": prefixed(w, "module.")},
        lambda w: {"ema": {"decay": 0.99, "module": w}},
        lambda w: {"net": w, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []}},
        lambda w: {
            "model": w,
            "normalisation": {"mean": torch.ones(3)},
            "rng": {"cpu": torch.get_rng_state()},
        },
        lambda w: inside(w, "_checkpoint_wrapped_module"),
        lambda w: prefixed(
            inside(w, "_fsdp_wrapped_module._checkpoint_wrapped_module"), "_fsdp_wrapped_module."
        ),
        lambda w: {"state_dict": prefixed(inside(w, "_orig_mod"), "model.")},
    ],
)
def test_names_of_other_programs_are_those_of_the_network(network, tmp_path, wrap):
    torch.save(wrap(network.state_dict()), tmp_path / "c.ckpt")
    images = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    expected = network.eval()(images)
    read = models.CRATE.from_released(models.load_weights(tmp_path / "c.ckpt"), 4, 2, heads=2)
    assert torch.equal(read(images), expected)
    loaded = models.load(tmp_path / "c.ckpt", heads=2)
    assert torch.equal(loaded.network(images), expected)


@pytest.mark.parametrize(
    ("wrap", "main", "other"),
    [
        (lambda w, e: {"model": w, "model_ema": e}, "model", "model_ema"),
        (lambda w, e: {"state_dict": w, "state_dict_ema": e, "arch": "x"}, "state_dict", "state_dict_ema"),
        (lambda w, e: {"model": w, "ema": prefixed(e, "module.")}, "model", "ema"),
        (lambda w, e: {"model": w, "ema": {"step": 1, "module": e}}, "model", "ema.module"),
        (lambda w, e: {"state_dict": w, "current_model_state": e}, "state_dict", "current_model_state"),
        (lambda w, e: {"student": w, "teacher": e}, "student", "teacher"),
        (lambda w, e: {"model": {"state_dict": w, "ema": e}}, "model.state_dict", "model.ema"),
        (lambda w, e: {"state_dict": w, "model": e}, "state_dict", "model"),
    ],
)
def test_one_of_several_sets_of_weights_must_be_chosen(network, tmp_path, wrap, main, other):
    weights = network.state_dict()
    average = {name: 1.5 * value for name, value in weights.items()}
    path = tmp_path / "c.ckpt"
    torch.save(wrap(weights, average), path)
    message = rf"c\.ckpt: .* one set of weights, got {main}, {other}; choose one by its name"
    for read in (models.load_weights, models.load):
        with pytest.raises(ValueError, match=message) as error:
            read(path)
        assert "\n" not in str(error.value)
    for choice, right in ((main, weights), (other, average)):
        read = models.load_weights(path, weights=choice)
        assert all(torch.equal(read[name], value) for name, value in right.items())
        assert read.keys() == right.keys()
        assert torch.equal(
            models.load(path, heads=2, weights=choice).network.pos_embedding, right["pos_embedding"]
        )
    with pytest.raises(ValueError, match=rf"got 'other'; it holds the sets {main}, {other}"):
        models.load_weights(path, weights="other")


def test_averages_without_names_are_not_passed_over(network, tmp_path):
    weights = network.state_dict()
    torch.save(
        {"model": weights, "ema": {"decay": 0.9, "shadow_params": list(weights.values())}}, tmp_path / "c.pt"
    )
    with pytest.raises(ValueError, match=r"got model, ema.shadow_params; choose one"):
        models.load_weights(tmp_path / "c.pt")
    assert models.load_weights(tmp_path / "c.pt", weights="model").keys() == weights.keys()
    with pytest.raises(ValueError, match="must map names to tensors, got list"):
        models.load_weights(tmp_path / "c.pt", weights="ema.shadow_params")


def test_a_part_of_the_names_can_be_chosen(network):
    weights = network.state_dict()
    both = prefixed(weights, "model.") | prefixed(
        {name: value + 1 for name, value in weights.items()}, "ema."
    )
    assert models.unwrap(both, weights="model").keys() == weights.keys()
    assert torch.equal(
        models.unwrap({"state_dict": both}, weights="ema")["cls_token"], weights["cls_token"] + 1
    )
    with pytest.raises(ValueError, match="got 'ema'; it holds one set without a name"):
        models.unwrap(weights, weights="ema")


def test_a_prefix_that_belongs_to_the_network_stays():
    model = nn.Sequential()
    model.add_module("model", nn.Linear(1, 1))
    weights = model.state_dict()
    assert without_prefix(weights, weights.keys()) == weights
    assert list(without_prefix(weights, ["weight", "bias"])) == ["weight", "bias"]
    assert list(without_prefix(weights, ["other", "names"])) == list(weights)
    with pytest.raises(ValueError, match="the same with and without a wrapper's name"):
        models.unwrap({"a._orig_mod.b": torch.ones(1), "a.b": torch.ones(1)})


def test_a_prefix_of_some_names_stays():
    assert list(models.unwrap({"module.a": torch.ones(1), "b": torch.ones(1)})) == ["module.a", "b"]
    assert list(models.unwrap({"model": torch.ones(1)})) == ["model"]  # a tensor of that name is no wrapper


@pytest.mark.parametrize("whole", [True, False], ids=["zip", "bare pickle"])
def test_a_pickle_that_would_run_code_does_not(tmp_path, whole):
    path, trace = tmp_path / "weights.pth", tmp_path / "ran"
    content = {"cls_token": torch.zeros(1), "other": Runs(trace)}
    if whole:
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(Runs(trace), protocol=2))
    with pytest.raises(
        ValueError,
        match=r"tensors alone, got .*weights\.pth, which is not read because .*, and reading could run code",
    ) as error:
        models.load_weights(path)
    assert not trace.exists()
    assert not whole or "posix.mkdir" in str(error.value) or "nt.mkdir" in str(error.value)
    torch.load(path, weights_only=False) if whole else pickle.loads(path.read_bytes())
    assert trace.exists()  # the file does run code where it is trusted: the test has power


def test_whole_models_and_damaged_files_are_refused(network, tmp_path):
    torch.save(network, tmp_path / "model.pt")
    with pytest.raises(
        ValueError,
        match=r"it asks for transformer_theory\.models\.crate\.network\.CRATE, .*; save "
        r"model\.state_dict\(\)",
    ):
        models.load_weights(tmp_path / "model.pt")
    for ending in ENDINGS:
        whole, path = tmp_path / f"whole.{ending}", tmp_path / f"half.{ending}"
        models.save_weights(network, whole)
        for share in (0, 0.3, 0.99):
            path.write_bytes(whole.read_bytes()[: int(share * whole.stat().st_size)])
            with pytest.raises(ValueError, match=r"weights must be .*half.*, which"):
                models.load_weights(path)
    random = torch.Generator().manual_seed(0)
    noise = [bytes(torch.randint(256, (200,), generator=random).tolist()) for _ in range(20)]
    for content in (
        b"<html>404</html>",
        b"\x80",
        b"version https://git-lfs",
        *noise,
        *(b"\x80\x02" + bits for bits in noise),
    ):
        (tmp_path / "page.pt").write_bytes(content)
        with pytest.raises(ValueError, match=r"weights must be .*page\.pt"):
            models.load_weights(tmp_path / "page.pt")


def test_flipped_bits_and_tensors_that_exceed_their_file_are_refused(network, tmp_path):
    path = tmp_path / "w.pt"
    models.save_weights(network, path)
    content = bytearray(path.read_bytes())
    # between the tensors lies padding without a checksum
    content[content.index(network.cls_token.detach().numpy().tobytes())] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot be read \(the checksum of .* is wrong\)"):
        models.load_weights(path)
    models.save_weights({"zeros": torch.zeros(2**16)}, path)
    with (
        zipfile.ZipFile(path) as stored,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    with pytest.raises(ValueError, match=r"bomb\.pt, which cannot be read \(.* is compressed\)"):
        models.load_weights(tmp_path / "bomb.pt")
    for tensor in (torch.zeros(1).expand(10**12), torch.eye(2).to_sparse(), torch.zeros(2, device="meta")):
        torch.save({"a": torch.ones(2), "b": tensor}, path)
        with pytest.raises(
            ValueError,
            match=r"w\.pt: weights must be dense tensors with all their numbers in the file, got others for "
            r"b",
        ):
            models.load_weights(path)


def test_weights_must_be_finite_floating_point_numbers_in_the_precision_of_the_model():
    layer = nn.Linear(1, 1)
    for weight, message in (
        (torch.ones(1, 1, dtype=torch.int64), "1 of torch.int64 in place of floating-point numbers: weight"),
        (torch.ones(1, 1, dtype=torch.complex64), "1 of torch.complex64 in place"),
        (torch.full((1, 1), 1e300, dtype=torch.float64), "1 with NaN or infinity: weight"),
        (
            torch.full((10**6, 1), float("nan")).expand(10**6, 10**6),
            r"1 of another shape: weight \[1000000, 1000000\]",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            fill(layer, {"weight": weight, "bias": torch.zeros(1)})


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"weights must be a file, got .*none\.pt, which is not there"
    ):
        models.load_weights(tmp_path / "none.pt")
    with pytest.raises(FileNotFoundError, match="which is a folder"):
        models.load_weights(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"got .*; make .*deeper first"):
        models.save_weights({}, tmp_path / "deeper" / "w.pt")
    with pytest.raises(ValueError, match=r"\.pt, \.pth, \.bin, \.ckpt, \.safetensors, got .*w\.foo"):
        models.save_weights({}, tmp_path / "w.foo")
    assert not list(tmp_path.iterdir())


def test_a_missing_safetensors_package_is_named(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    models.save_weights({"a": torch.ones(1)}, path)
    real = builtins.__import__

    def missing(name, *rest):
        if name.startswith("safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    for use in (lambda: models.load_weights(path), lambda: models.save_weights({}, path)):
        with pytest.raises(ImportError, match=r"pip install safetensors, or use a \.pt file"):
            use()


def test_files_without_weights_are_refused(tmp_path, unchecked):
    torch.save({"a": torch.ones(1), "epoch": 3}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"tensors alone, got epoch \(int\); pass the part"):
        models.load_weights(tmp_path / "w.pt")
    torch.save([torch.ones(1)], tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"must map names to tensors, got list; pass model\.state_dict\(\)"):
        models.load_weights(tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"got Linear; pass model\.state_dict\(\)"):
        models.unwrap(nn.Linear(1, 1))


def test_nothing_is_copied_if_weights_do_not_fit():
    model = nn.Linear(2, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(
        ValueError, match=r"hold the 2 weights of Linear, got 1 missing: bias; 1 unknown: scale$"
    ):
        fill(model, {"weight": torch.zeros(3, 2), "scale": torch.zeros(1)})
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_names_are_listed_once_for_all_layers_up_to_a_limit():
    assert listed(f"layers.{i}.norm.weight" for i in range(12)) == "layers.{0-11}.norm.weight"
    assert listed(["a", "layers.1.w", "layers.3.w", "layers.4.b"]) == "a, layers.{1,3}.w, layers.4.b"
    assert listed(f"name{i}" for i in range(30)).endswith("name18, name19 and 10 more")
    assert listed(["head.0.weight", "blocks.2.mlp.0.weight", "blocks.2.mlp.1.weight"]) == (
        "head.0.weight, blocks.2.mlp.0.weight, blocks.2.mlp.1.weight"
    )
