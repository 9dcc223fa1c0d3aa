"""The rate reduction as an objective of training: its loss, its gradient over two processes, its
measurements, and training itself.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot
from torch.testing import assert_close

from transformer_theory.metrics import rate_reduction, unit_norm
from transformer_theory.models.image_networks import Sizes
from transformer_theory.theories.rate_reduction.tasks import REDUCTION, RateReduction
from transformer_theory.training.objectives.protocol import Objective, alone

SIZES = Sizes(image_size=8, channels=1, num_classes=3, patch_size=2, dim=16, depth=1, heads=2)


def bars(n, seed=0):
    """Noisy images with a bright pair of columns, whose place is the class: uint8 [n, 1, 8, 8] and labels
    [n], sorted.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) * 3 // n
    pixels = torch.randint(0, 60, (n, 1, 8, 8), generator=generator)
    for i, label in enumerate(labels.tolist()):
        pixels[i, :, :, 3 * label : 3 * label + 2] += 150
    return pixels.to(torch.uint8), labels


def network(features, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, features)).double()


def batch(*, mix=False, n=12, seed=2):
    pixels, labels = bars(n, seed)
    images, targets = pixels.double() / 255, one_hot(labels, 3).double()
    return (
        (0.7 * images + 0.3 * images.flip(0), 0.7 * targets + 0.3 * targets.flip(0))
        if mix
        else (images, targets)
    )


def plain_rate(features, weights, scale):
    """1/2 log det(I + scale X^T diag(weights) X), as it is written."""
    d = features.shape[1]
    return (
        0.5
        * torch.linalg.slogdet(
            torch.eye(d, dtype=torch.float64) + scale * features.T @ torch.diag(weights) @ features
        )[1]
    )


def test_it_is_an_objective_whose_network_has_features_for_logits():
    objective = RateReduction(features=12)
    assert isinstance(objective, Objective)
    assert objective.network("crate", SIZES)(torch.rand(2, 1, 8, 8)).shape == (2, 12)


@pytest.mark.parametrize("mix", [False, True])
def test_the_loss_is_the_formula_for_labels_and_for_mixtures(mix):
    objective, model, (images, targets) = (
        RateReduction(eps=0.6, gamma1=2.0, gamma2=0.5, features=5),
        network(5),
        batch(mix=mix),
    )
    X = unit_norm(model(images))
    n, d = X.shape
    together = plain_rate(X, torch.ones(n, dtype=torch.float64), 2.0 * d / (n * 0.6**2))
    sizes = targets.sum(0)
    classes = sum(
        size / n * plain_rate(X, column, d / (size * 0.6**2)) for size, column in zip(sizes, targets.T)
    )
    assert_close(objective.loss(model, images, targets, alone), classes - 0.5 * together)


def test_two_processes_have_the_gradient_of_one():
    """Each half has its copy of the network; in the backward pass the gather adds up both losses, then the
    copies are averaged.
    """
    objective, one, (images, targets) = RateReduction(features=6, eps=0.05), network(6), batch(mix=True)
    halves = [slice(0, 6), slice(6, 12)]
    copies = [copy.deepcopy(one) for _ in halves]
    objective.loss(one, images, targets, alone).backward()
    features = [unit_norm(model(images[half])) for model, half in zip(copies, halves)]
    losses = []
    for model, half in zip(copies, halves):

        def gather(part):
            return torch.cat(features if part.shape[1] == 6 else [targets[each] for each in halves])

        losses.append(objective.loss(model, images[half], targets[half], gather))
    sum(losses).backward()
    assert_close(sum(losses) / 2, objective.loss(one, images, targets, alone))
    for weight, *parts in zip(*(model.parameters() for model in (one, *copies))):
        assert_close(weight.grad, (parts[0].grad + parts[1].grad) / 2)
    apart = (
        sum(objective.loss(model, images[half], targets[half], alone) for model, half in zip(copies, halves))
        / 2
    )
    assert abs(float((apart - losses[0]).detach())) > 0.003  # without the gather it is another loss


def test_training_separates_the_classes_and_the_null_does_not_rise():
    objective, model = RateReduction(features=12), network(12)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(40):
        loss = objective.loss(model, *batch(n=30, seed=100 + step), alone)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    images = bars(60, seed=1)
    rows = {row.quantity: row for row in objective.measure(model, bars(120), images, 50)}
    features = unit_norm(model((images[0] / 255).double())).detach()
    assert rows[REDUCTION].value == pytest.approx(float(rate_reduction(features, images[1], eps=0.5**0.5)))
    assert rows[REDUCTION].value > 3 * rows[REDUCTION].null.mean > 0
    assert rows[objective.score].value > 0.9
    assert (rows[objective.score].n, rows[objective.score].layer, rows[objective.score].setting) == (
        60,
        None,
        "",
    )


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="gamma1 must be"):
        RateReduction(gamma1=0.0)
    with pytest.raises(ValueError, match="features must be"):
        RateReduction(features=1)
    images, targets = batch()
    with pytest.raises(ValueError, match="at least two classes"):
        RateReduction(features=5).loss(network(5), images[:4], targets[:4], alone)
