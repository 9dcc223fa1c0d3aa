"""Optimisers: updates against short references, groups of parameters, and exact restoration."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.cases import each_case
from transformer_theory import models
from transformer_theory.models.image_networks import NETWORKS as IMAGE_NETWORKS
from transformer_theory.models.image_networks import Sizes
from transformer_theory.training.optimisers import NAMES, Together, decays, optimiser, places_of, scale

SIZES = {"image_size": 8, "patch_size": 4, "num_classes": 5, "dim": 12, "depth": 3, "heads": 2}
NETWORKS = {
    "crate": lambda: models.CRATE.for_images(**SIZES),
    "vit": lambda: models.ViT.for_images(**SIZES),
    "crate_alpha": lambda: models.crate_alpha(**SIZES),
    "autoencoder": lambda: models.CRATEMAE(image_size=8, patch_size=4, dim=12, depth=3, heads=2),
    "of torch": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(12, 2), 3, enable_nested_tensor=False
    ),
}
SETTINGS = {"learning_rate": 0.01, "weight_decay": 0.1}
muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch 2.9 and later have Muon")
every_name = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=muon) if name == "muon" else name for name in NAMES]
)


class Wrapped(nn.Module):
    """As the training wraps a network."""

    def __init__(self, network):
        super().__init__()
        self.network = network


class Deep(nn.Module):
    """A linear network with layers: what it fits is a least-squares problem with a known end."""

    def __init__(self, dim=8):
        super().__init__()
        self.embed = nn.Linear(6, dim)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim)) for _ in range(2))
        self.head = nn.Linear(dim, 3)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def made(build, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def give_gradients(model, seed=0):
    for i, weight in enumerate(model.parameters()):
        weight.grad = normal(*weight.shape, seed=100 * seed + i, dtype=weight.dtype)


def group_of(steps, weight):
    return next(group for group in steps.param_groups if any(member is weight for member in group["params"]))


@muon
def test_muon_makes_the_steps_of_hidden_matrices_nearly_orthogonal_and_no_others():
    model = made(lambda: models.ViT.for_images(**SIZES | {"dim": 32}))
    before = copy.deepcopy(model.state_dict())
    steps = optimiser(model, name="muon", learning_rate=0.01, weight_decay=0.0)
    give_gradients(model)
    steps.step()
    for name, weight in model.named_parameters():
        step = (weight.detach() - before[name]) / 0.01
        hidden = name.startswith("blocks.") and weight.ndim == 2
        if hidden:
            values = torch.linalg.svdvals(step) / (0.2 * max(weight.shape) ** 0.5)
            assert 0.5 < float(values.min()) <= float(values.max()) < 1.5, name  # the band its authors state
            assert 0.1 < float(step.square().mean().sqrt()) < 0.3, name  # as large as AdamW's, 0.2 to 0.4
        else:
            # AdamW's first step is the sign
            assert torch.allclose(step.abs(), torch.ones_like(step), atol=1e-3), name
    assert {len(group["params"]) for group in steps.parts[0].param_groups} == {12}  # four a layer


@every_name
def test_each_solves_a_least_squares_problem(name):
    model, x = made(Deep), normal(64, 6)
    y = x @ normal(6, 3, seed=1) + 1
    steps = optimiser(model, name=name, learning_rate=0.02, weight_decay=0.0)
    losses = []
    for step in range(300):
        scale(steps, 1 - step / 300)
        steps.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        steps.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 1e-3 * losses[0]


@each_case("name", NETWORKS)
def test_places_follow_the_layers(name):
    model = made(NETWORKS[name])
    places, end = places_of(model)
    assert end == 4
    assert list(places) == [key for key, _ in model.named_parameters()]
    assert set(places.values()) == ({1, 2, 3} if name == "of torch" else {0, 1, 2, 3, 4})
    for key, place in places.items():
        if key.startswith(("transformer.layers.", "blocks.", "layers.")):
            assert place == 1 + int(next(part for part in key.split(".") if part.isdigit())), key
        else:
            assert place == (
                4
                if key.startswith(
                    ("mlp_head", "head", "norm", "decoder_blocks", "decoder_norm", "decoder_pred")
                )
                else 0
            ), key
    assert places_of(Wrapped(model)) == ({f"network.{key}": place for key, place in places.items()}, end)


@pytest.mark.parametrize("network", NETWORKS)
@every_name
def test_each_parameter_is_held_once_with_the_learning_rate_and_decay_of_its_place(network, name):
    model = Wrapped(made(NETWORKS[network]))
    steps = optimiser(model, name=name, layer_decay=0.5, **SETTINGS)
    held = [weight for group in steps.param_groups for weight in group["params"]]
    learnt = [weight for weight in model.parameters() if weight.requires_grad]
    assert (
        len(held) == len(learnt) == len({id(weight) for weight in held} | {id(weight) for weight in learnt})
    )
    places, end = places_of(model)
    for key, weight in model.named_parameters():
        if weight.requires_grad:
            group = group_of(steps, weight)
            assert group["lr"] == group["initial_lr"] == pytest.approx(0.01 * 0.5 ** (end - places[key]))
            assert group["weight_decay"] == (0.1 if decays(weight) else 0.0)
            if key.endswith(("bias", "cls_token", "pos_embedding", "mask_token")) or "norm" in key:
                assert group["weight_decay"] == 0.0, key
    assert any(group["weight_decay"] for group in steps.param_groups)


def test_what_decays():
    matrices, rest = (
        [(4, 3), (4, 3, 2, 2), (4, 1, 3, 3)],
        [(), (1,), (4,), (4, 1), (1, 1, 4), (1, 5, 4), (2, 1, 1)],
    )
    assert all(decays(torch.zeros(shape)) for shape in matrices)
    assert not any(decays(torch.zeros(shape)) for shape in rest)


def test_frozen_parameters_are_left_out_and_a_schedule_keeps_the_ratios():
    model = made(Deep)
    model.embed.requires_grad_(False)
    steps = optimiser(model, layer_decay=0.5, **SETTINGS)
    assert sum(len(group["params"]) for group in steps.param_groups) == 6
    scale(steps, 0.5)
    scale(steps, 0.1)  # of the first learning rate, not of the last
    assert group_of(steps, model.head.weight)["lr"] == pytest.approx(0.001)
    assert group_of(steps, model.blocks[0][0].weight)["lr"] == pytest.approx(0.00025)


@every_name
def test_a_restored_one_goes_on_bit_for_bit(name, tmp_path):
    build = partial(optimiser, name=name, layer_decay=0.7, **SETTINGS)
    models_ = [made(Deep), made(Deep, seed=1)]
    steps = [build(model) for model in models_]
    for i in range(3):
        give_gradients(models_[0], i)
        scale(steps[0], 1 / (1 + i))
        steps[0].step()
    torch.save({"model": models_[0].state_dict(), "optimiser": steps[0].state_dict()}, tmp_path / "all.pt")
    saved = torch.load(tmp_path / "all.pt", weights_only=True)
    models_[1].load_state_dict(saved["model"])
    unrestored = copy.deepcopy(models_[1])
    steps[1].load_state_dict(saved["optimiser"])
    assert [group["lr"] for group in steps[0].param_groups] == [
        group["lr"] for group in steps[1].param_groups
    ]
    for model, step in zip((*models_, unrestored), (*steps, build(unrestored))):
        scale(step, 0.5)
        give_gradients(model, 7)
        step.step()
    assert all(torch.equal(a, b) for a, b in zip(models_[0].parameters(), models_[1].parameters()))
    assert not torch.equal(models_[0].head.weight, unrestored.head.weight)  # control: without its state


def test_together_steps_all_and_lends_its_groups():
    one, other = (nn.Parameter(torch.ones(3)) for _ in range(2))
    both = Together(torch.optim.SGD([one], lr=1.0), torch.optim.SGD([other], lr=2.0, momentum=0.5))
    both.zero_grad()
    loss = both.step(lambda: (loss := (one + other).sum()).backward() or loss)
    assert float(loss.detach()) == 6
    assert (one.tolist(), other.tolist()) == ([0.0] * 3, [-1.0] * 3)
    both.load_state_dict(copy.deepcopy(both.state_dict()))
    for group in both.param_groups:
        group["lr"] = 0.0
    both.step()
    assert (one.tolist(), other.tolist()) == ([0.0] * 3, [-1.0] * 3)  # the parts saw the new rates


@pytest.mark.usefixtures("unchecked")
@each_case(
    ("settings", "message"),
    [
        ({"name": "sgd"}, "adamw, muon.*'sgd'"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive"),
        ({"weight_decay": -1.0}, "weight_decay at least 0"),
        ({"layer_decay": 1.5}, r"layer_decay in \[0, 1\]"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers in \[0, 1\)"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        optimiser(made(Deep), **SETTINGS | settings)


def test_networks_without_layers_or_without_anything_to_learn_are_refused(monkeypatch):
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert len(optimiser(plain, **SETTINGS).param_groups) == 2
    with pytest.raises(
        ValueError,
        match=r"model must hold its layers in a torch\.nn\.ModuleList of modules of one type, got Sequential",
    ):
        optimiser(plain, layer_decay=0.5, **SETTINGS)
    with pytest.raises(ValueError, match="model must have a trainable parameter"):
        optimiser(plain.requires_grad_(False), **SETTINGS)
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(
        ValueError,
        match=r"optimiser muon needs torch 2\.9 or later, got torch .*; choose adamw, or upgrade torch",
    ):
        optimiser(made(Deep), name="muon", **SETTINGS)


@pytest.mark.parametrize("name", ["crate", "vit"])
def test_a_convolutional_stem_is_no_layer(name):
    sizes = Sizes(
        image_size=8, channels=1, num_classes=2, patch_size=4, dim=16, depth=3, heads=2, stem="convolutions"
    )
    model = IMAGE_NETWORKS[name](sizes)
    places, end = places_of(model)
    assert end == 4
    assert {place for key, place in places.items() if ".stages." in key} == {0}
    assert optimiser(model, name="muon", **SETTINGS).param_groups
