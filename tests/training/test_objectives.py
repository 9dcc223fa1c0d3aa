"""Objectives: losses against plain formulas, several processes against one, measurements beside their nulls,
and errors.
"""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn.functional import log_softmax, one_hot
from torch.testing import assert_close

from transformer_theory.maths.linalg import orthonormalise
from transformer_theory.metrics import unit_norm
from transformer_theory.models import random_mask
from transformer_theory.models.image_networks import Pixels, Sizes
from transformer_theory.theories.crate.layer_curves import compression_layers
from transformer_theory.theories.crate.tasks import SparseRateReduction, sparse_rate_reduction
from transformer_theory.theories.rate_reduction.tasks import RateReduction
from transformer_theory.training.objectives import (
    UNTRAINED,
    CrossEntropy,
    MaskedAutoencoding,
    Objective,
    alone,
)
from transformer_theory.training.objectives.masked_autoencoding import Features

SIZES = Sizes(image_size=8, channels=1, num_classes=3, patch_size=2, dim=16, depth=2, heads=2)
EACH = [CrossEntropy(), RateReduction(features=12), SparseRateReduction(weight=0.05), MaskedAutoencoding()]
each = pytest.mark.parametrize("objective", EACH, ids=lambda objective: objective.name)


def bars(n, seed=0):
    """Noisy images with a bright pair of columns, whose position is the class: uint8 [n, 1, 8, 8] and labels
    [n], sorted.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) * 3 // n
    pixels = torch.randint(0, 60, (n, 1, 8, 8), generator=generator)
    for i, label in enumerate(labels.tolist()):
        pixels[i, :, :, 3 * label : 3 * label + 2] += 150
    return pixels.to(torch.uint8), labels


TRAIN, OTHERS = bars(120), bars(60, seed=1)


def made(objective, network="crate", seed=0, sizes=SIZES):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Pixels(objective.network(network, sizes), torch.tensor([0.3]), torch.tensor([0.25])).double()


def batch(n=12, seed=2, classes=3):
    """Images in [0, 1] and one-hot targets, as in the loop."""
    pixels, labels = bars(n, seed)
    return pixels.double() / 255, one_hot(labels, classes).double()


def mixed(images, targets, share=0.7):
    return share * images + (1 - share) * images.flip(0), share * targets + (1 - share) * targets.flip(0)


@functools.cache
def trained(objective, steps):
    model = made(objective)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    with torch.random.fork_rng(devices=[]):
        for step in range(steps):
            torch.manual_seed(step)
            loss = objective.loss(model, *batch(30, seed=100 + step), alone)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return model, losses


def measure(objective, model, *images, batch_size=50):
    """Values and nulls of an objective's rows, by quantity or (quantity, layer), and (quantity, kind of
    null); "null" is the first null.
    """
    rows = objective.measure(model, *(images or (TRAIN, OTHERS)), batch_size)
    values = {}
    for row in rows:
        values[row.quantity if row.layer is None else (row.quantity, row.layer)] = row.value
        values |= {(row.quantity, null.kind): null.mean for null in row.nulls}
        if row.null is not None:
            values[row.quantity, "null"] = row.null.mean
    assert len(values) == len(rows) + sum(len(row.nulls) + bool(row.nulls) for row in rows)
    return values


@each
def test_training_lowers_the_loss_and_the_score_is_measured_without_side_effects(objective):
    assert isinstance(objective, Objective)
    model, losses = trained(objective, steps=30)
    assert sum(losses[-5:]) < sum(losses[:5])
    state, before = torch.get_rng_state(), copy.deepcopy(model.state_dict())
    measured = measure(objective, model)
    assert objective.score in measured
    assert all(value == value and abs(value) < 1e3 for value in measured.values())
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    again = measure(objective, model.eval(), batch_size=7)
    assert not model.training
    assert (
        again == pytest.approx(measured)
        if objective.name != "masked-autoencoding"
        else again.keys() == measured.keys()
    )


@each
def test_the_model_is_called_once_as_a_whole(objective):
    class Wrapped(nn.Module):
        calls = 0

        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *inputs):
            self.calls += 1
            return self.module(*inputs)

    wrapped = Wrapped(made(objective))
    objective.loss(wrapped, *batch(), alone).backward()
    assert wrapped.calls == 1
    # else several processes wait
    assert all((weight.grad is not None) == weight.requires_grad for weight in wrapped.parameters())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_torchs_and_the_formula(smoothing):
    objective = CrossEntropy(label_smoothing=smoothing)
    model, (images, targets) = made(objective, "vit"), batch()
    plain = nn.functional.cross_entropy(model(images), targets.argmax(1), label_smoothing=smoothing)
    assert_close(objective.loss(model, images, targets, alone), plain)
    images, targets = mixed(images, targets)
    soft = (1 - smoothing) * targets + smoothing / 3
    assert_close(
        objective.loss(model, images, targets, alone), -(soft * log_softmax(model(images), 1)).sum(1).mean()
    )


def test_a_classifier_is_measured_on_what_it_was_not_trained_on():
    model, _ = trained(CrossEntropy(), steps=1)
    logits = model((OTHERS[0] / 255).double()).detach()
    expected = float((logits.argmax(1) == OTHERS[1]).double().mean())
    measured = measure(CrossEntropy(), model, batch_size=7)
    assert measured["accuracy"] == pytest.approx(expected)
    assert measured["loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, OTHERS[1])))
    assert measure(CrossEntropy(), trained(CrossEntropy(), steps=30)[0])["accuracy"] > 0.7


def rate(features, weights, scale):
    """1/2 log det(I + scale X^T diag(weights) X), as it is written."""
    d = features.shape[1]
    return (
        0.5
        * torch.linalg.slogdet(
            torch.eye(d, dtype=torch.float64) + scale * features.T @ torch.diag(weights) @ features
        )[1]
    )


@pytest.mark.parametrize(
    "objective",
    [CrossEntropy(), RateReduction(features=6, eps=0.05), SparseRateReduction()],
    ids=lambda o: o.name,
)
def test_two_processes_have_the_gradient_of_one(objective):
    """Both halves, each with its copy of the network; the gather adds up the gradients of both losses, then
    copies are averaged.
    """
    one = made(objective)
    images, targets = mixed(*batch())
    halves = [slice(0, 6), slice(6, 12)]
    copies = [copy.deepcopy(one) for _ in halves]
    objective.loss(one, images, targets, alone).backward()

    features = [unit_norm(model(images[half])) for model, half in zip(copies, halves)]
    losses = []
    for rank, half in enumerate(halves):

        def gather(own, rank=rank):
            parts = list(features) if own.shape[1] == 6 else [targets[part] for part in halves]
            assert torch.equal(own, parts[rank])
            return torch.cat(parts)

        losses.append(objective.loss(copies[rank], images[half], targets[half], gather))
    sum(losses).backward()
    assert_close(sum(losses) / 2, objective.loss(one, images, targets, alone))
    for weight, *own in zip(*(model.parameters() for model in (one, *copies))):
        assert_close(weight.grad, (own[0].grad + own[1].grad) / 2)
    if isinstance(objective, RateReduction):  # without the gather the mean of the losses is another
        apart = (
            sum(
                objective.loss(model, images[half], targets[half], alone)
                for model, half in zip(copies, halves)
            )
            / 2
        )
        assert abs(float((apart - losses[0]).detach())) > 0.003


def test_sparse_rate_reduction_of_orthonormal_tokens_is_closed_form():
    """n = d tokens e_i, K blocks of p coordinates: R = d/2 log(1 + 1/eps^2), R^c = d/2 log(1 + p/(d eps^2)),
    l1 norm 1.
    """
    d, K, eps = 6, 3, 0.4
    identity = torch.eye(d, dtype=torch.float64)
    bases = identity.unflatten(1, (K, d // K)).movedim(1, 0)
    log = lambda x: float(torch.tensor(x, dtype=torch.float64).log())  # noqa: E731
    expected = d / 2 * (log(1 + 1 / (K * eps**2)) - log(1 + 1 / eps**2))
    for tokens in (identity[None], 7 * identity[None]):
        excess, norm = sparse_rate_reduction(tokens, 0.1 * bases, eps=eps)
        assert_close(excess, torch.tensor([expected], dtype=torch.float64))
        assert_close(norm, torch.ones(1, dtype=torch.float64))


def test_the_regulariser_is_the_formula_at_every_layer():
    model, (images, targets) = made(SparseRateReduction()), batch()
    seen, terms = [], []
    handles = [
        layer.register_forward_hook(lambda _, __, tokens: seen.append(tokens))
        for layer, _, _ in compression_layers(model)
    ]
    entropy = CrossEntropy().loss(model, images, targets, alone)
    for handle in handles:
        handle.remove()
    for tokens, (_, _, block) in zip(seen, compression_layers(model)):
        Z, U = unit_norm(tokens), orthonormalise(block.subspaces())
        n, d, p = *Z.shape[1:], U.shape[2]
        one = torch.ones(n, dtype=torch.float64)
        excess = [sum(rate(z @ u, one, p / (n * 0.5)) for u in U) - rate(z, one, d / (n * 0.5)) for z in Z]
        terms.append(torch.stack(excess).mean() + 3.0 * Z.abs().sum(-1).mean())
    for chosen, term in ((None, sum(terms) / 2), (0, terms[0]), (1, terms[1])):
        objective = SparseRateReduction(weight=0.2, sparsity=3.0, layer=chosen)
        assert_close(objective.loss(model, images, targets, alone), entropy + 0.2 * term)
        measured = measure(
            objective, model, TRAIN, ((images * 255).round().byte(), targets.argmax(1)), batch_size=5
        )
        assert measured["sparse rate reduction"] == pytest.approx(float(term.detach()))
    assert all(0 < measured["share of non-zeros", layer] < 1 for layer in (0, 1))
    assert not any(layer._forward_hooks for layer, _, _ in compression_layers(model))


@pytest.mark.parametrize("network", ["crate", "crate-alpha", "tost"])
def test_the_regulariser_s_gradient_is_that_of_finite_differences(network, generator):
    objective = SparseRateReduction(weight=1.0)
    model, (images, targets) = made(objective, network), batch(6)
    objective.loss(model, images, targets, alone).backward()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    directions = [torch.randn(weight.shape, generator=generator, dtype=torch.float64) for weight in weights]
    slope = sum((weight.grad * way).sum() for weight, way in zip(weights, directions))
    values = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):  # forward, then back beyond the start
            for weight, way in zip(weights, directions):
                weight += step * way
            values.append(objective.loss(model, images, targets, alone))
    assert_close((values[0] - values[1]) / 2e-6, slope, rtol=1e-5, atol=1e-6)


def test_the_regulariser_falls_further_than_without_it():
    objective = SparseRateReduction(weight=0.05)
    start, without, regularised = (
        measure(objective, model, batch_size=60)["sparse rate reduction"]
        for model in (made(objective), trained(CrossEntropy(), 30)[0], trained(objective, 30)[0])
    )
    assert regularised < start - 0.5
    assert regularised < without - 0.5


def test_masked_autoencoding_is_the_autoencoder_s_loss():
    objective = MaskedAutoencoding(masked=0.5)
    model, (images, targets) = made(objective), batch()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        found = objective.loss(model, images, targets, alone)
    masks = random_mask(12, 16, generator=torch.Generator().manual_seed(3), share=0.5)
    assert_close(found, model.network.autoencoder.loss((images - model.mean) / model.std, masks))


def test_features_are_the_mean_token_without_the_class_token():
    model, (images, _) = made(MaskedAutoencoding()).eval(), batch()
    autoencoder = model.network.autoencoder
    tokens = autoencoder.encode(images)
    assert tokens.shape[1] == 1 + autoencoder.patches.seq
    assert_close(Features(autoencoder)(images), tokens[:, 1:].sum(1) / autoencoder.patches.seq)


def test_processes_share_the_masks_of_one(monkeypatch):
    objective = MaskedAutoencoding()
    model, (images, targets) = made(objective), batch()

    def loss(half, rank, processes):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: processes > 1)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: processes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return objective.loss(model, images[half], targets[half], alone)

    together, first, second = loss(slice(0, 12), 0, 1), loss(slice(0, 6), 0, 2), loss(slice(6, 12), 1, 2)
    assert_close((first + second) / 2, together)


def test_loss_and_probe_are_measured_beside_their_nulls():
    objective = MaskedAutoencoding()
    model, _ = trained(objective, steps=30)
    measured = measure(objective, model, batch_size=60)
    assert measured["loss"] < 0.6 * measured["loss", UNTRAINED]
    assert measured[objective.score] > 0.9
    even = OTHERS[0][:, :, :1, :1].expand(-1, -1, 8, 8).contiguous()  # nothing to shuffle
    untrained = measure(objective, made(objective, seed=5), TRAIN, (even, OTHERS[1]), batch_size=60)
    assert untrained["loss", "null"] == untrained["loss"]
    untrained = measure(objective, made(objective, seed=5), batch_size=60)
    assert abs(untrained["loss", "null"] - untrained["loss"]) > 1e-3
    # does not depend on the training
    assert untrained["loss", UNTRAINED] == pytest.approx(measured["loss", UNTRAINED])
    assert untrained[objective.score, "null"] == pytest.approx(measured[objective.score, "null"])


def test_settings_out_of_range():
    for wrong, message in (
        (
            lambda: CrossEntropy(label_smoothing=1.0),
            "label_smoothing must be a finite number at least 0 and below 1, got 1.0",
        ),
        (lambda: RateReduction(gamma1=0.0), "gamma1 must be a finite number above 0, got 0.0"),
        (lambda: RateReduction(features=1), "features must be an integer at least 2, got 1"),
        (lambda: SparseRateReduction(weight=0.0), "weight must be a finite number above 0, got 0.0"),
        (
            lambda: SparseRateReduction(sparsity=float("nan")),
            "sparsity must be a finite number above 0, got nan",
        ),
        (lambda: SparseRateReduction(layer=-1), "layer must be at least 0, got -1"),
        (
            lambda: MaskedAutoencoding(masked=1.0),
            "masked must be a finite number above 0 and below 1, got 1.0",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()


def test_networks_that_an_objective_cannot_train():
    with pytest.raises(ValueError, match=r"'resnet'.* crate, "):
        CrossEntropy().network("resnet", SIZES)
    with pytest.raises(ValueError, match="needs attention with subspaces, as in network 'crate', got 'vit'"):
        SparseRateReduction().network("vit", SIZES)
    with pytest.raises(ValueError, match="layer must be below the depth, 2, got 2"):
        SparseRateReduction(layer=2).network("crate", SIZES)
    with pytest.raises(ValueError, match="trains only network 'crate' with stem 'patches', got 'vit'"):
        MaskedAutoencoding().network("vit", SIZES)
    with pytest.raises(ValueError, match="masked must leave a visible patch, got 16 hidden of 16"):
        MaskedAutoencoding(masked=0.99).network("crate", SIZES)


def test_invalid_images_and_targets(unchecked):
    model, (images, targets) = made(CrossEntropy()), batch()
    features = made(RateReduction(features=6))
    for objective, network, wrong, message in (
        (
            CrossEntropy(),
            model,
            targets[:, :2],
            r"targets must be the shares of each class, \[12, 3\], got torch.float64 \[12, 2\]",
        ),
        (
            CrossEntropy(),
            model,
            targets.argmax(1),
            r"got torch.int64 \[12\]; convert labels with torch.nn.functional.one_hot",
        ),
        (
            CrossEntropy(),
            model,
            2 * targets,
            "targets must be >= 0 in rows that sum to 1, got rows from 0 to 2",
        ),
        (CrossEntropy(), model, targets * float("nan"), "targets must be >= 0 in rows that sum to 1"),
        (RateReduction(features=6), features, targets[:6], r"\[12, classes\], got torch.float64 \[6, 3\]"),
        (
            RateReduction(features=6),
            features,
            targets[:1].expand(12, -1),
            "images of at least two classes .*, got one; take a larger",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            objective.loss(network, images, wrong, alone)
    with pytest.raises(ValueError, match="features must be finite"):
        RateReduction(features=6).loss(features, images * float("nan"), targets, alone)
    with pytest.raises(ValueError, match=r"must be finite, got \d+ NaN or infinite values"):
        SparseRateReduction().loss(model, images * float("nan"), targets, alone)
    with pytest.raises(
        ValueError, match="no layer was seen while the model was called; a compiled model hides them"
    ):
        SparseRateReduction().loss(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 3).double()), images, targets, alone
        )


def test_images_that_cannot_be_measured(unchecked):
    model, (pixels, labels) = made(CrossEntropy()), OTHERS
    for others, message in (
        (
            (pixels.float(), labels),
            r"measured images must be torch.uint8 \[n, c, h, w\] with n >= 1, got torch.float32 \[60, 1, 8, "
            r"8\]",
        ),
        ((pixels[:0], labels[:0]), r"with n >= 1, got torch.uint8 \[0, 1, 8, 8\]"),
        (
            (pixels, labels[1:]),
            "measured labels must be 60 integers >= 0, one for each image, got torch.int64",
        ),
        ((pixels, labels - 1), "measured labels must be 60 integers >= 0, .*, got torch.int64 .* from -1"),
        ((pixels, labels + 1), r"labels must lie in \[0, 3\), .*, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            CrossEntropy().measure(model, TRAIN, others, 50)
    with pytest.raises(ValueError, match=r"train labels must contain two classes .*, got one"):
        MaskedAutoencoding().measure(made(MaskedAutoencoding()), (TRAIN[0], TRAIN[1] * 0), OTHERS, 50)
