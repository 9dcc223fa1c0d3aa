"""Patches with a feature and positional attention to them against loops in numpy."""

import itertools
import math

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.models.embedding import build
from transformer_theory.theories import vision
from transformer_theory.theories.vision import learning
from transformer_theory.theories.vision.association import group_ranking
from transformer_theory.theories.vision.patches import SpatialPatches, group_accuracy


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_law_of_the_coefficients_of_the_feature():
    """The active group has the label; elsewhere +1 and -1 have the probability q/2 each."""
    data = vision.SpatialPatchData(patches=12, group=3, dim=7, q=0.4, noise=0.5)
    values, labels, active = (each.numpy() for each in data.coefficients(6000, generator(3)))
    groups = np.repeat(np.arange(4), 3)
    assert data.groups.tolist() == groups.tolist()
    inside = groups == active[:, None]
    assert (values[inside].reshape(-1, 3) == labels[:, None]).all()
    for value, share in ((-1, 0.2), (0, 0.6), (1, 0.2)):
        assert np.mean(values[~inside] == value) == pytest.approx(share, abs=0.01)
    assert np.mean(labels) == pytest.approx(0, abs=0.05)
    assert np.bincount(active) / 6000 == pytest.approx(np.full(4, 0.25), abs=0.03)
    w = data.direction(generator(4)).numpy()
    assert np.linalg.norm(w) == pytest.approx(1, rel=1e-6)
    images = data.sample(500, torch.from_numpy(w), generator(3)).patches.numpy()
    along = images @ w
    assert along == pytest.approx(data.coefficients(500, generator(3))[0].numpy(), abs=1e-5)
    rest = images - along[..., None] * w
    assert (rest**2).sum(-1).mean() == pytest.approx(6 * 0.25, rel=0.05)  # six directions orthogonal to w


@each_case(("rank", "diagonal"), [(0, False), (0, True), (3, False), (3, True)])
def test_positional_attention_sums_a_cubic_function_over_the_rows(rank: int, diagonal: bool):
    settings = {"rank": rank, "diagonal": diagonal, "linear": 0.7, "spread": 2.0}
    model = build(lambda: learning.PositionalAttentionModel(5, 4, **settings), generator(5))
    with torch.no_grad():
        model.value.mul_(6)
    P, v = model.positions.detach().double().numpy(), model.value.detach().double().numpy()
    A = P @ P.T if rank else P
    e = np.exp(A) * (1 - (0 if diagonal else 1) * np.eye(5))
    S = e / e.sum(1, keepdims=True)
    assert model.weights().detach().numpy() == pytest.approx(S, rel=1e-4, abs=1e-6)
    x = np.random.default_rng(6).normal(size=(6, 5, 4))
    inner = 5 * (x @ v) @ S.T
    expected = (inner**3 + 0.7 * inner).sum(1)
    images, labels = torch.from_numpy(x).float(), np.array([1.0, -1, 1, 1, -1, -1])
    with torch.no_grad():
        assert model(images).numpy() == pytest.approx(expected, rel=1e-3, abs=1e-4)
    batch = SpatialPatches(images, torch.from_numpy(labels).float(), torch.zeros(6, dtype=torch.long))
    loss = np.mean(np.logaddexp(0, -labels * expected))
    assert float(learning.logistic_loss(model, batch)) == pytest.approx(loss, rel=1e-3)
    assert learning.accuracy(model, batch) == pytest.approx(np.mean(labels * expected > 0))
    with torch.no_grad():
        model.value.zero_()
    assert learning.accuracy(model, batch) == 0.5  # all outputs are 0


@pytest.mark.parametrize(("rank", "size"), [(0, 0.3), (16, 0.3**0.5 / 2)])
def test_the_initial_scores_have_their_spread(rank: int, size: float):
    model = build(lambda: learning.PositionalAttentionModel(60, 40, rank=rank, spread=0.3), generator(7))
    assert float(model.positions.detach().std()) == pytest.approx(size, rel=0.06)
    model = build(lambda: learning.PositionalAttentionModel(2, 3000), generator(8))
    assert float(model.value.detach().std()) == pytest.approx(0.1 / 3000**0.5, rel=0.06)


@each_case(
    ("size", "group", "q", "linear"), [(6, 2, 0.6, 0.1), (6, 3, 0.9, 2.0), (4, 2, 1.0, 0.0), (8, 2, 0.8, 5.0)]
)
def test_accuracy_and_mean_margin_by_all_images(size: int, group: int, q: float, linear: float):
    """Every assignment of -1, 0 and 1 to the patches outside of the active group, with its probability."""
    data = vision.SpatialPatchData(patches=size, group=group, q=q)
    groups, rng = np.arange(size) // group, np.random.default_rng(8)
    own = (groups[:, None] == groups) / group
    S, right, mean = rng.dirichlet(np.full(size, 0.7), size=size), 0.0, 0.0
    for active in range(size // group):
        for values in itertools.product((-1, 0, 1), repeat=size - group):
            mass = math.prod(1 - q if value == 0 else q / 2 for value in values) * group / size
            x = np.ones(size)
            x[groups != active] = values
            F, general = ((i**3 + linear * i).sum() for i in (size * own @ x, size * S @ x))
            right += mass * (1.0 if F > 1e-9 else 0.5 if F > -1e-9 else 0.0)
            mean += mass * general
    assert group_accuracy(data, linear=linear) == pytest.approx(right)
    found = vision.mean_margin(torch.from_numpy(S), torch.from_numpy(groups), q=q, linear=linear)
    assert found == pytest.approx(mean)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_positional_attention_is_trained_as_its_arguments_say(monkeypatch, optimiser: str):
    """Rates of v and of the scores, the decay of AdamW, and images of the feature that is returned."""
    seen = {}

    def fitted(model, task, *, optimiser, steps, generator, callbacks):
        seen.update(optimiser=optimiser, steps=steps, batch=next(task.batches(generator)))

    monkeypatch.setattr(learning, "fit", fitted)
    data = vision.SpatialPatchData(patches=6, group=2, dim=5)
    decay, rates = 0.0 if optimiser == "sgd" else 0.3, {"rate": 0.02, "score_rate": 0.5}
    found = learning.train_patches(
        data, generator=generator(8), optimiser=optimiser, **rates, steps=7, batch=11, decay=decay
    )
    value, scores = seen["optimiser"].param_groups
    assert (value["lr"], scores["lr"], seen["steps"]) == (0.02, 0.5, 7)
    assert value["params"][0] is found.model.value
    assert scores["params"][0] is found.model.positions
    assert type(seen["optimiser"]) is (torch.optim.SGD if optimiser == "sgd" else torch.optim.AdamW)
    assert value["weight_decay"] == scores["weight_decay"] == decay
    assert seen["batch"].patches.shape == (11, 6, 5)
    along = (seen["batch"].patches @ found.w).numpy()
    assert along == pytest.approx(along.round(), abs=1e-5)
    assert found.association.chance == pytest.approx(1 / 5)
    A = found.model.positions.detach().double()
    assert found.association.ranking == pytest.approx(group_ranking(A, data.groups))
