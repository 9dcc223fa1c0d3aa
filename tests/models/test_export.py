"""Export: ``torch.export`` and ONNX with a batch size that is chosen later, against our logits.

crate-exact is refused: it chooses its precision by the values of the tokens, and a graph cannot.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.problems.networks import built
from transformer_theory import models
from transformer_theory.core.errors import NotConverged
from transformer_theory.models import CRATELanguageModel, Decoder, exported
from transformer_theory.models.image_networks import NETWORKS, Pixels, Sizes

pytestmark = pytest.mark.usefixtures("unchecked")  # symbolic sizes are not ints

SIZES = Sizes(image_size=8, channels=3, num_classes=3, patch_size=4, dim=16, depth=1, heads=2)
LANGUAGE = {
    "decoder": lambda: Decoder(vocabulary=11, dim=16, heads=2, hidden=16),
    "crate": lambda: CRATELanguageModel(vocabulary=11, context=12, dim=16, depth=1, heads=2),
}


def largest_difference(model: torch.nn.Module, inputs: torch.Tensor) -> float:
    """Difference between the exported model and the model, relative to its outputs, for a larger batch than
    the exported example.
    """
    program = torch.export.export(
        model.eval(), (inputs[:2],), dynamic_shapes=({0: Dim("batch", min=1, max=512)},)
    ).module()
    with torch.no_grad():
        expected = model(inputs)
        return float((program(inputs) - expected).abs().max() / expected.abs().max())


def pixels(name: str) -> Pixels:
    """A network on images in [0, 1], as ``models.load`` returns it."""
    return Pixels(built(lambda: NETWORKS[name](SIZES)), torch.full((3,), 0.4), torch.full((3,), 0.2)).eval()


@pytest.mark.parametrize("name", ["crate-alpha-published", "tost"])
def test_networks_of_images(name: str, generator: torch.Generator):
    assert (
        largest_difference(built(lambda: NETWORKS[name](SIZES)), torch.rand(7, 3, 8, 8, generator=generator))
        < 1e-5
    )


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models(name: str, generator: torch.Generator):
    assert largest_difference(built(LANGUAGE[name]), torch.randint(11, (5, 12), generator=generator)) < 1e-5


@pytest.mark.parametrize("name", ["crate", "crate-paper", "vit"])
def test_onnx_files_have_our_logits_for_any_batch_size(tmp_path, name, generator):
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, path = pixels(name).train(), tmp_path / "network.onnx"
    assert models.export(model, path) < 1e-5
    assert model.training  # as before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert {entry.domain: entry.version for entry in onnx.load(path).opset_import} == {"": 18}
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    model.eval()
    for count in (1, 2, 5, 33):
        images = torch.rand(count, 3, 8, 8, generator=generator)
        (logits,) = session.run(None, {"inputs": images.numpy()})
        with torch.no_grad():
            expected = model(images).numpy()
        assert np.abs(logits - expected).max() < 1e-5
        assert (logits.argmax(1) == expected.argmax(1)).all()


@pytest.mark.parametrize("name", ["crate", "vit"])
def test_programs_of_torch_have_our_logits_for_any_batch_size(tmp_path, name, generator):
    model, path = pixels(name), tmp_path / "network.pt2"
    assert models.export(model, path) < 1e-5
    loaded, images = torch.export.load(path).module(), torch.rand(33, 3, 8, 8, generator=generator)
    with torch.no_grad():
        assert torch.allclose(loaded(images), model(images), atol=1e-5)


def test_a_file_that_differs_from_its_network_is_not_written(tmp_path, monkeypatch):
    right = exported._to_program
    monkeypatch.setattr(
        exported, "_to_program", lambda *arguments: lambda batch: right(*arguments)(batch) + 0.01
    )
    with pytest.raises(
        NotConverged, match=r"must agree to 0\.0001 of the largest output .*, got 0\.01; nothing is written"
    ):
        models.export(pixels("vit"), tmp_path / "network.pt2")
    assert not list(tmp_path.iterdir())


class Branches(nn.Linear):
    """Its operations depend on the values of its inputs."""

    def forward(self, inputs):
        return super().forward(inputs) if inputs.sum() > 0 else inputs[:, :1] - self.bias


def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"must end in \.onnx or \.pt2, got .*\.pth"):
        models.export(pixels("vit"), tmp_path / "network.pth")
    with pytest.raises(ValueError, match="got crate-exact, which chooses its precision by the values"):
        models.export(pixels("crate-exact"), tmp_path / "network.onnx")
    with pytest.raises(FileNotFoundError, match="deeper first"):
        models.export(pixels("vit"), tmp_path / "deeper" / "network.onnx")
    with pytest.raises(ValueError, match="inputs must be given for Linear"):
        models.export(nn.Linear(2, 3), tmp_path / "network.pt2")
    assert models.export(nn.Linear(2, 3), tmp_path / "network.pt2", inputs=torch.zeros(1, 2)) < 1e-6
    with pytest.raises(ValueError, match=r"inputs must be a tensor .*, got ndarray"):
        models.export(nn.Linear(2, 3), tmp_path / "network.pt2", inputs=np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"must take one input, got Bilinear \(.*missing 1 required"):
        models.export(nn.Bilinear(2, 2, 3), tmp_path / "network.pt2", inputs=torch.zeros(1, 2))
    with pytest.raises(ValueError, match="must return a tensor, got tuple from RNN"):
        models.export(nn.RNN(2, 3), tmp_path / "network.pt2", inputs=torch.zeros(1, 4, 2))
    with pytest.raises(ValueError, match=r"Branches cannot be exported to \.pt2 \(.*values of its inputs"):
        models.export(Branches(2, 3), tmp_path / "branches.pt2", inputs=torch.zeros(1, 2))
    monkeypatch.setattr(exported, "ONNX_BYTES", 35)
    with pytest.raises(
        ValueError, match=r"must fit into one ONNX file of .* GiB, got 3\.35e-08 GiB; export to \.pt2"
    ):
        models.export(nn.Linear(2, 3), tmp_path / "network.onnx", inputs=torch.zeros(1, 2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["network.pt2"]
