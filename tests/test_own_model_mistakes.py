"""Mistakes in the model of a user: each is answered in one line, before anything is measured or written."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.problems.networks import Net
from transformer_theory.cli import main
from transformer_theory.comparison import user_models
from transformer_theory.comparison.user_models import measure
from transformer_theory.models.user_model import UserModel, untrained_network

FUNCTIONS = """
import torch
from torch import nn

value = 3

def small():
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), torch.randn(6, 5, 8), torch.arange(6) % 2

def alone(): return small()[0]
def raises(): raise KeyError("checkpoint")
def leaves(): raise SystemExit(3)
def needs(size): return small()
def number(): return 7
def four(): return (*small(), 1)
def empty(): return alone(), torch.randn(0, 5, 8)
def words(): return alone(), ["a", "b"]
def not_finite(): return alone(), torch.full((2, 5, 8), float("nan"))
def of_another_size(): return alone(), torch.randn(2, 5, 9)
def few_labels(): return alone(), torch.randn(2, 5, 8), torch.arange(3)
def real_labels(): return alone(), torch.randn(2, 5, 8), torch.randn(2)
def lengths(): return alone(), {"src": torch.randn(2, 5, 8), "mask": torch.zeros(5, 5)}
def unknown_argument(): return alone(), {"source": torch.randn(2, 5, 8)}
def without_attention(): return nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
def broken_weights():
    network = alone()
    network.layers[0].linear1.weight.data[0, 0] = float("inf")
    return network, torch.randn(2, 5, 8)
"""  # noqa: E501


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A file of functions, files that are no models, and folders of a small ViT, one of them wrong in each
    way.
    """
    from transformers import ViTConfig, ViTForImageClassification

    root = tmp_path_factory.mktemp("mistakes")
    (root / "net.py").write_text(FUNCTIONS, encoding="utf-8")
    (root / "syntax.py").write_text("def broken(:", encoding="utf-8")
    (root / "imports.py").write_text("import there_is_no_such_module", encoding="utf-8")
    sizes: dict[str, Any] = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "num_labels": 2,
    }
    ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=8)).save_pretrained(root / "vit")
    for name, change in {
        "wide": {"hidden_size": 10**6},
        "deep": {"num_hidden_layers": 10**6},
        "unknown": {"architectures": ["ViTForNothing"]},
        "function": {"architectures": ["os.system"]},
    }.items():
        shutil.copytree(root / "vit", root / name)
        config = json.loads((root / name / "config.json").read_text(encoding="utf-8"))
        (root / name / "config.json").write_text(json.dumps(config | change), encoding="utf-8")
    (root / "pickled").mkdir()
    shutil.copy(root / "vit" / "config.json", root / "pickled")
    (root / "pickled" / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(str(root / "executed"))))
    (root / "model.pt").write_bytes(pickle.dumps(Trap(str(root / "executed"))))
    (root / "run").mkdir()
    (root / "run" / "best.safetensors").touch()
    (root / "preprocessed").mkdir()
    shutil.copytree(root / "vit", root / "preprocessed", dirs_exist_ok=True)
    (root / "preprocessed" / "preprocessor_config.json").write_text(
        '{"image_mean": [0.5, 0.5], "image_std": 1}', encoding="utf-8"
    )
    return root


class Trap:
    """A pickle that makes a file when it is read."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self):
        return Path(self.path).touch, ()


WRONG = {
    "net.py:smal": "net.py has no function 'smal'; did you mean 'small'?",
    "net.py:value": "must be a function that returns a network, got int",
    "net.py:number": "must return a torch.nn.Module, (module, inputs) or (module, inputs, labels), got int",
    "net.py:four": "(module, inputs, labels), got TransformerEncoder, Tensor, Tensor, int",
    "net.py:raises": "raised KeyError at line 12 of net.py: 'checkpoint'",
    "net.py:leaves": "raised SystemExit at line 13 of net.py: 3",
    "net.py:needs": "must take no arguments, got needs(size)",
    "net.py:alone": "must return (network, inputs), got a network alone; or name images with --data",
    "net.py:empty": "inputs must be a tensor [n, ...] of ids, images or tokens, got float32 [0, 5, 8]",
    "net.py:words": "inputs must be a tensor [n, ...] of ids, images or tokens, got list",
    "net.py:not_finite": "inputs must be finite, got 80 NaN or infinite values",
    "net.py:of_another_size": "of_another_size must run on inputs [1, 5, 9], but raised",
    "net.py:few_labels": "labels must be one integer for each of the 2 sequences, got int64 [3]",
    "net.py:real_labels": "labels must be one integer for each of the 2 sequences, got float32 [2]",
    "net.py:lengths": "got src 2, mask 5",
    "net.py:unknown_argument": "must run on inputs source [1, 5, 8], but raised TypeError",
    "net.py:without_attention": "must have attention or a list of similar blocks to be measured, got neither",
    "net.py:broken_weights": "must have finite weights, got NaN or infinity in layers.0.linear1.weight",
    "net.py:small --data digits": "returns its own inputs, got --data as well",
    "net.py:alone --data shapes --size 100000": "must fit into 1 GiB, got 14,305 GiB for 128 images of "
    "100,000 pixels",
    "net.py": "write net.py:FUNCTION",
    "nothing.py:small": "got nothing.py, which does not exist",
    "nothing:small": "nothing raised ModuleNotFoundError: No module named 'nothing'",
    "syntax.py:broken": "syntax.py raised SyntaxError",
    "imports.py:small": "imports.py raised ModuleNotFoundError at line 1 of imports.py",
    "model.pt": "got model.pt, a pickle, which is not read since it could run code",
    "pickled": "must hold weights in .safetensors files, got pytorch_model.bin",
    "run": "weights must be a whole safetensors file, got run/best.safetensors",
    "unknown": "got 'ViTForNothing'; update transformers",
    "function": "got 'os.system'; update transformers",
    "wide --data shapes": "weights of other shapes than config.json states: classifier.weight [2, 8] for "
    "[2, 1000000]",
    "deep --data shapes": "must state the depth of the weights, got 1,000,000 layers for",
    "vit": "takes images; name them with --data",
    "vit --data digits": "vit takes images of 16 × 16 pixels, got 8 × 8 of digits; --size 16 scales them",
    "vit --data shapes --size 4": "the side of the images of vit, got 4, which it refuses",
    "vit --data nothing": "unknown images 'nothing'",
    "vit --data shapes --size 16 --text a.txt": "--text applies to models of ids",
    "vit --data shapes --size 16 --sequences 100000000": "must fit into 1 GiB",
    "preprocessed --data digits --size 16": "preprocessor_config.json must hold image_mean and image_std "
    "for 3 channels",
    "nowhere": "got 'nowhere', which does not exist",
    "net.txt": "got 'net.txt', which does not exist",
}


@pytest.mark.parametrize(("words", "message"), WRONG.items(), ids=WRONG)
def test_a_mistake_is_answered_in_one_line(
    folder: Path, words: str, message: str, capsys, monkeypatch: pytest.MonkeyPatch, unchecked
):
    monkeypatch.chdir(folder)
    assert main(["measure", *words.split(), "--out", "page"]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("transformer-theory: ")
    assert message in line
    assert not Path("page").exists()
    assert not Path("executed").exists()


def test_the_trap_works(tmp_path: Path):
    pickle.loads(pickle.dumps(Trap(str(tmp_path / "executed"))))
    assert (tmp_path / "executed").exists()


def test_inputs_must_be_given_and_arrays_of_numpy_are_inputs(unchecked):
    with pytest.raises(ValueError, match="must have inputs to be measured on"):
        measure(Net(8, 1), name="net")
    with pytest.raises(
        ValueError, match=r"model must be a torch.nn.Module, got int; build or load the network first"
    ):
        measure(3, np.zeros((6, 4, 8)))  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        ValueError, match=r"^labels must be one integer for each of the 6 sequences, got float64"
    ):
        measure(Net(8, 1), np.zeros((6, 4, 8)), np.zeros(6))
    result = measure(
        Net(8, 1), np.random.default_rng(0).normal(size=(6, 4, 8)), np.arange(6) % 2, theories=["scan_snap"]
    )
    assert result.settings["labels"] == 2
    assert any(row.value is not None for row in result.select(quantity="sharpness"))


def test_a_network_that_cannot_be_copied_is_measured_without_untrained_ones(unchecked):
    class Locked(Net):
        def __deepcopy__(self, memo):
            raise TypeError("locked")

    with torch.random.fork_rng():
        torch.manual_seed(0)
        result = measure(UserModel(Locked(8, 1), "locked", torch.randn(6, 4, 8)), theories=["scan_snap"])
    (row,) = result.select(quantity="untrained networks")
    assert "TypeError: locked" in row.reason
    assert all(row.null is None for row in result.select(quantity="sharpness"))


def test_large_attention_maps_are_stored_as_means_over_heads(monkeypatch: pytest.MonkeyPatch, unchecked):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network, tokens = Net(8, 1), torch.randn(6, 4, 8)
    (full,) = (
        array
        for name, array in measure(network, tokens, theories=["scan_snap"]).arrays.items()
        if name.endswith("attention")
    )
    heads, numbers = full.shape[2], full[:, :, :, 0].size
    assert heads > 1
    monkeypatch.setattr(user_models, "MAP_NUMBERS", 2 * numbers - 1)  # two sequences do not fit
    (means,) = (
        array
        for name, array in measure(network, tokens, theories=["scan_snap"]).arrays.items()
        if name.endswith("attention")
    )
    assert means.shape[2] == 1
    assert means.shape[3] >= 2
    np.testing.assert_allclose(means[:, :, 0], full.mean(2)[:, :, : means.shape[3]], rtol=1e-6)


def test_untrained_networks_have_other_weights_and_the_same_seed_gives_the_same_ones():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Net(8, 1)
    network.scale = nn.Parameter(torch.arange(5.0))
    state = torch.get_rng_state()
    first, again, other = (untrained_network(network, seed) for seed in (0, 0, 1))
    assert torch.equal(state, torch.get_rng_state())
    weights = [each.state_dict() for each in (network, first, again, other)]
    for name in ("head.weight", "scale"):
        assert torch.equal(weights[1][name], weights[2][name])
        assert not torch.equal(weights[1][name], weights[0][name])
    assert not torch.equal(weights[1]["head.weight"], weights[3]["head.weight"])
    assert sorted(weights[1]["scale"].tolist()) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert torch.equal(weights[0]["scale"], torch.arange(5.0))
