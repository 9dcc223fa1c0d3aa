"""What is read of a network, on how many images, beside what: attention of a few, features by class of many, encoders on whole images."""

import pytest
import torch
from torch.testing import assert_close

from tests.problems.image_trainings import noise
from transformer_theory import crate, rate_reduction
from transformer_theory.metrics import neural_collapse
from transformer_theory.metrics import rate_reduction as delta
from transformer_theory.metrics.coding import unit_norm
from transformer_theory.models import build
from transformer_theory.probes import Geometry, NeuralCollapse
from transformer_theory.training import observe, watch
from transformer_theory.training.networks import Pixels, Sizes
from transformer_theory.training.objectives import CrossEntropy, MaskedAutoencoding, Objective
from transformer_theory.training.objectives.reading import scaled
from transformer_theory.training.observe import Observer, reader_of

SIZES = Sizes(image_size=8, channels=1, num_classes=3, patch_size=4, dim=8, depth=1, heads=2)
IMAGES = noise(40)


@pytest.fixture(autouse=True)
def few(monkeypatch) -> None:
    for name, value in (("READ", 20), ("READ_BY_CLASS", 30), ("AT_A_TIME", 18), ("BY_CLASS_AT_A_TIME", 25), ("UNTRAINED", 2)):
        monkeypatch.setattr(observe, name, value)


def network(seed: int = 0, objective: Objective | None = None) -> Pixels:
    made = build(lambda: (objective or CrossEntropy()).network("crate", SIZES), torch.Generator().manual_seed(seed))
    return Pixels.centring(made, IMAGES.pixels)


def test_classes_are_read_of_more_images_than_attention_and_the_notes_say_so():
    model, tokens = network(), []
    observer = Observer(IMAGES, (rate_reduction.THEORY, crate.THEORY), name="crate", untrained=lambda number: network(1 + number))
    rows = observer.read(model, 0)
    model.network.transformer.layers[0].register_forward_hook(lambda module, read, out: tokens.append(out[:, 0].detach().double()))
    model.eval()(scaled(IMAGES.pixels[:30], model.mean))
    read = {(row["quantity"], row.get("head")): row for row in rows}
    rate, collapse = read["rate reduction", None], read["variability within classes (NC1)", None]
    assert_close(rate["value"], float(delta(unit_norm(tokens[0]), IMAGES.labels[:30], eps=0.5**0.5)), rtol=1e-5, atol=0)
    assert_close(collapse["value"], neural_collapse(tokens[0], IMAGES.labels[:30]).nc1, rtol=1e-4, atol=0)
    assert rate["note"] == collapse["note"] == "read at the class token; 30 held-out images"
    assert read["R^c before attention", None]["note"].endswith("random subspaces; 18 sequences, at most 16 a pass; 20 held-out images")

    twins = [row["value"] for n in (1, 2) for row in observer.read(network(n), 5) if place(row) == ("attention entropy", 1)]
    entropy = read["attention entropy", 1]
    assert entropy["note"] == f"20 held-out images; 2 untrained networks: {min(twins):.3g} to {max(twins):.3g}"
    assert entropy["null"] == pytest.approx(sum(twins) / 2)


def place(row) -> tuple:
    return row["quantity"], row.get("head")


def test_a_masked_autoencoder_is_read_in_its_encoder_on_whole_images():
    """No mask is drawn, the decoder is not read, and the network is trained on as it was."""
    model, made = network(0, MaskedAutoencoding()).train(), [network(1 + number, MaskedAutoencoding()) for number in range(2)]
    before = torch.get_rng_state()
    rows = Observer(IMAGES, (), name="crate", untrained=made.__getitem__).read(model, 3)
    assert torch.equal(before, torch.get_rng_state())
    assert all(module.training for module in model.modules())
    assert {row["layer"] for row in rows} == {0}
    assert rows == Observer(IMAGES, (), name="crate", untrained=lambda number: reader_of(made[number])).read(reader_of(model), 3)


def test_small_networks_are_read_by_the_same_reducers():
    kinds = {type(reducer) for reducer in observe.and_general([])}
    assert {Geometry, NeuralCollapse} < kinds
    assert watch.and_general is observe.and_general
