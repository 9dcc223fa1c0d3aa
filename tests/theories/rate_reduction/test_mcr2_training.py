"""Training on the rate reduction with and without labels, augmentation of images, and evaluation
of features.
"""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.cases import each_case
from transformer_theory.data.corruption import relabel_uniformly
from transformer_theory.models import ResNet18, ResNet18Control, ResNet18STL, build
from transformer_theory.theories.rate_reduction import mcr2_training
from transformer_theory.theories.rate_reduction.evaluation import accuracies, agreement, k_means_agreement
from transformer_theory.theories.rate_reduction.mcr2_training import (
    RATE_REDUCTION_RECIPES,
    features_of,
    fit_self_supervised,
    fit_supervised,
)
from transformer_theory.training import augment

CLASSES = 4
SUPERVISED, SELF_SUPERVISED = (
    RATE_REDUCTION_RECIPES[f"CIFAR-10, {kind}"] for kind in ("supervised", "self-supervised")
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def bars(n=96, seed=0):
    """Coloured 8 x 8 images; the class is the row of a bright bar."""
    generator, labels = seeded(seed), torch.arange(n) % CLASSES
    images = 0.3 * torch.rand(n, 3, 8, 8, generator=generator)
    images[torch.arange(n), :, 2 * labels] += 0.7
    return images, labels


def perceptron(seed=0):
    return build(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 16)), seeded(seed)
    )


def small(recipe, **changes):
    return replace(recipe, epochs=10, batch_size=48, milestones=(6,), **changes)


def same(images):
    return images


def test_with_labels_the_rate_reduction_rises_and_subspaces_separate_the_classes():
    (images, labels), (unseen, truth), model = bars(), bars(seed=1), perceptron()
    losses = fit_supervised(
        small(SUPERVISED, augment=same, learning_rate=0.1), model, images, labels, generator=seeded()
    )
    assert losses.shape == (20,)
    assert losses[-1] < losses[0] - 1
    rows = features_of(model, images)
    assert rows.norm(dim=1).sub(1).abs().max() < 1e-5
    measured = accuracies(rows, labels, features_of(model, unseen), truth, rank=3)
    assert min(measured.nearest_subspace, measured.neighbours, measured.linear) > 0.95
    assert k_means_agreement(rows, labels).accuracy > 0.9


def test_random_labels_are_not_learnt():
    (images, labels), (unseen, truth), model = bars(), bars(seed=1), perceptron()
    wrong = relabel_uniformly(labels, 1.0, classes=CLASSES, generator=seeded())
    fit_supervised(
        small(SUPERVISED, augment=same, learning_rate=0.1), model, images, wrong, generator=seeded()
    )
    assert (
        accuracies(
            features_of(model, images), wrong, features_of(model, unseen), truth, rank=3
        ).nearest_subspace
        < 0.6
    )


def test_without_labels_the_copies_of_an_image_come_together():
    images, _ = bars()

    def change(changed):
        return changed + 0.1 * torch.randn(changed.shape)

    def spread(model):
        copies = [features_of(model, change(images)) for _ in range(2)]
        own = (copies[0] * copies[1]).sum(1).mean()
        # cosine to the own copy beyond that to all copies
        return float(own - (copies[0] @ copies[1].mT).mean())

    torch.manual_seed(0)
    model = perceptron()
    before = spread(model)
    recipe = small(SELF_SUPERVISED, augment=change, copies=4, learning_rate=0.1)
    losses = fit_self_supervised(recipe, model, images, generator=seeded())
    assert losses.shape == (80,)  # 12 images a step
    assert losses[-5:].mean() < losses[:5].mean()
    assert spread(model) > before + 0.2


@each_case("name", RATE_REDUCTION_RECIPES)
def test_each_published_recipe_takes_a_step(name):
    recipe = RATE_REDUCTION_RECIPES[name]
    assert (recipe.batch_size, recipe.eps**2, recipe.momentum, recipe.weight_decay) == (
        1000,
        pytest.approx(0.5),
        0.9,
        5e-4,
    )
    tiny = replace(recipe, epochs=1, batch_size=8, copies=min(recipe.copies, 4))
    model = build(lambda: recipe.build(8, width=4), seeded())
    images, labels = torch.rand(8, 3, 16, 16, generator=seeded()), torch.arange(8) % 2
    if tiny.copies == 1:
        losses = fit_supervised(tiny, model, images, labels, generator=seeded())
    else:
        losses = fit_self_supervised(tiny, model, images, generator=seeded())
    assert bool(torch.isfinite(losses).all())
    assert len(losses) == tiny.copies


def test_the_generator_decides_and_the_global_one_is_left_alone():
    images, labels = bars(24)
    state = torch.get_rng_state()
    recipe = replace(
        SUPERVISED, augment=lambda i: augment.flip(augment.crop(i, padding=1)), epochs=2, batch_size=12
    )
    runs = [
        fit_supervised(recipe, perceptron(), images, labels, generator=seeded(seed)) for seed in (0, 0, 1)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert torch.equal(state, torch.get_rng_state())


@each_case(
    ("name", "kind", "parameters"),
    [
        ("CIFAR-10, supervised", ResNet18, 11_497_664),
        ("CIFAR-10, self-supervised", ResNet18Control, 3_546_432),
        ("CIFAR-100, self-supervised", ResNet18Control, 3_546_432),
        ("STL-10, self-supervised", ResNet18STL, 735_072),
    ],
)
def test_the_published_networks_have_their_numbers_of_parameters(name, kind, parameters):
    with torch.device("meta"):
        model = RATE_REDUCTION_RECIPES[name].build()
    assert type(model) is kind
    convolutions = [
        module for module in model.modules() if isinstance(module, nn.Conv2d) and module.kernel_size != (1, 1)
    ]
    assert len(convolutions) == 17  # and the head of the first, or the mean over pixels
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("kind", [ResNet18, ResNet18Control, ResNet18STL])
def test_features_of_the_networks_are_directions(kind):
    model = build(lambda: kind(8, width=4), seeded()).eval()
    sides = []
    model.blocks.register_forward_pre_hook(lambda _, inputs: sides.append(inputs[0].shape[-1]))
    features = model(torch.rand(5, 3, 96, 96, generator=seeded()))
    assert features.shape == (5, 8)
    assert features.norm(dim=1).sub(1).abs().max() < 1e-5
    assert sides == [25 if kind is ResNet18STL else 96]  # the released stem turns 96 pixels into 49, then 25
    with pytest.raises(ValueError, match="dim, channels and width must be at least 1, got 0, 3 and"):
        kind(0)


def test_the_jitter_of_stl_is_twice_that_of_cifar(monkeypatch):
    used = []
    monkeypatch.setattr(mcr2_training, "jitter", lambda images, **settings: used.append(settings) or images)
    for name in ("CIFAR-10, self-supervised", "STL-10, self-supervised"):
        RATE_REDUCTION_RECIPES[name].augment(torch.rand(2, 3, 16, 16, generator=seeded()))
    defaults = inspect.signature(augment.jitter).parameters
    assert [{key: defaults[key].default for key in ("strength", "hue")} | each for each in used] == [
        {"strength": 0.4, "hue": 0.1},
        {"strength": 0.8, "hue": 0.2},
    ]


def test_the_first_copy_of_an_image_is_the_image():
    """As in the released loader; the others are augmented."""
    images, seen = torch.rand(6, 3, 8, 8, generator=seeded()), []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Linear(192, 16)

        def forward(self, inputs):
            seen.append(inputs)
            return self.weight(inputs.flatten(1))

    recipe = replace(SELF_SUPERVISED, epochs=1, batch_size=24, copies=4, augment=lambda copies: copies + 1)
    fit_self_supervised(recipe, Watched(), images, generator=seeded())
    firsts, others = seen[0][::4], seen[0].unflatten(0, (6, 4))[:, 1:]
    assert {tuple(x.flatten().tolist()) for x in firsts} == {tuple(x.flatten().tolist()) for x in images}
    assert torch.equal(others, (firsts + 1)[:, None].expand_as(others))


CHANGES = {
    "crop": lambda images: augment.crop(images, padding=2),
    "flip": augment.flip,
    "resized crop": augment.resized_crop,
    "jitter": augment.jitter,
    "grey": augment.greyed,
    "blur": lambda images: augment.blurred(images, size=5),
}


@each_case("name", CHANGES)
def test_changes_keep_shape_and_range_and_differ_between_images(name):
    torch.manual_seed(0)
    images = torch.rand(1, 3, 10, 8).expand(64, -1, -1, -1)
    changed = CHANGES[name](images)
    assert changed.shape == images.shape
    assert changed.dtype == images.dtype
    assert -1e-6 <= float(changed.min()) <= float(changed.max()) <= 1 + 1e-6
    assert len(changed.flatten(1).unique(dim=0)) > 1
    assert torch.equal(images[0], images[1])


def test_changes_are_those_of_their_names():
    torch.manual_seed(0)
    images = torch.rand(40, 3, 6, 5)
    flipped = (augment.flip(images) == images.flip(-1)).flatten(1).all(1)
    assert 8 < int(flipped.sum()) < 32
    windows = (
        torch.nn.functional.pad(images[:1], [1] * 4)
        .unfold(2, 6, 1)
        .unfold(3, 5, 1)[0]
        .permute(1, 2, 0, 3, 4)
        .flatten(0, 1)
    )
    for window in augment.crop(images[:1].expand(30, -1, -1, -1), padding=1):
        assert bool((windows == window).flatten(1).all(1).any())
    grey = augment.greyed(images, share=1.0)
    assert torch.equal(grey[:, 0], grey[:, 2])
    assert torch.allclose(grey[:, 0], 0.299 * images[:, 0] + 0.587 * images[:, 1] + 0.114 * images[:, 2])
    assert torch.equal(augment.jitter(images, share=0.0), images)
    whole = torch.nn.functional.mse_loss(augment.resized_crop(images, smallest=1.0), images)
    assert float(whole) < float(torch.nn.functional.mse_loss(augment.resized_crop(images), images))
    flat = torch.full((3, 3, 9, 9), 0.4)
    assert torch.allclose(augment.blurred(flat, share=1.0), flat, atol=1e-6)
    assert float(augment.blurred(images, size=5, share=1.0).var()) < float(images.var())


def test_groups_agree_up_to_names():
    truth = np.repeat(np.arange(3), 20)
    perfect, none = agreement(truth, (truth + 1) % 3), agreement(truth, np.zeros(60, dtype=np.int64))
    assert (perfect.nmi, perfect.accuracy, perfect.ari) == pytest.approx((1, 1, 1))
    assert (none.nmi, none.accuracy, none.ari) == pytest.approx((0, 1 / 3, 0))


def test_bad_input_is_refused(unchecked):
    (images, labels), model = bars(8), perceptron()
    with pytest.raises(ValueError, match="call fit_supervised"):
        fit_self_supervised(SUPERVISED, model, images, generator=seeded())
    with pytest.raises(ValueError, match="50 copies; call fit_self_supervised"):
        fit_supervised(SELF_SUPERVISED, model, images, labels, generator=seeded())
    with pytest.raises(ValueError, match="got 8 and 7"):
        fit_supervised(SUPERVISED, model, images, labels[:7], generator=seeded())
    with pytest.raises(ValueError, match="holds 1000 images, got 8"):
        fit_supervised(SUPERVISED, model, images, labels, generator=seeded())
    with pytest.raises(ValueError, match=r"labels must be integers, got torch.float32"):
        fit_supervised(
            small(SUPERVISED, augment=same, learning_rate=0.1),
            model,
            *[t.float() for t in bars()],
            generator=seeded(),
        )
    with pytest.raises(
        ValueError, match="copies must divide batch_size, got epochs 1, batch_size 10, copies 3"
    ):
        replace(SELF_SUPERVISED, epochs=1, batch_size=10, copies=3)
    with pytest.raises(ValueError, match="learning_rate must be positive, got nan"):
        replace(SUPERVISED, learning_rate=float("nan"))
    with pytest.raises(ValueError, match=r"got \[2, 1, 4, 4\]"):
        augment.jitter(torch.rand(2, 1, 4, 4))
    with pytest.raises(ValueError, match="got 9 for 4 x 4"):
        augment.blurred(torch.rand(2, 3, 4, 4))
    with pytest.raises(ValueError, match="padding must be at least 1, got 0"):
        augment.crop(images, padding=0)
    with pytest.raises(
        ValueError, match="neighbours must be from 1 to the number of training samples, 8, got 9"
    ):
        accuracies(images.flatten(1), labels, images.flatten(1), labels, neighbours=9)
