"""Closed forms of positional attention by second routes, association, label-relevant tokens; bad input."""

import itertools
import math

import numpy as np
import pytest
import torch

from tests.cases import each_case
from transformer_theory.theories import vision
from transformer_theory.theories.vision.in_networks import grid_distances


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def listed(data: vision.SpatialPatchData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All images with y = 1 and the first group active: coefficients, probabilities."""
    others = data.patches - data.group
    values = np.array(list(itertools.product((-1, 0, 1), repeat=others)))
    mass = np.where(values == 0, 1 - data.q, data.q / 2).prod(1)
    return np.concatenate([np.ones((len(values), data.group)), values], 1), mass, values


@pytest.mark.parametrize(("size", "group", "q"), [(6, 2, 0.3), (6, 3, 0.7), (8, 2, 0.5)])
def test_exact_accuracies_are_those_of_all_images(size: int, group: int, q: float):
    data = vision.SpatialPatchData(size, group, q=q)
    x, mass, _ = listed(data)
    S = vision.group_attention(data.groups).numpy()
    u = size * x @ S.T
    F = (u**3 + 0.1 * u).sum(1)
    right = np.where(np.abs(F) < 1e-9, 0.5, F > 0)
    assert vision.group_accuracy(data) == pytest.approx(float(mass @ right), abs=1e-12)
    total = x.sum(1)
    assert vision.sum_accuracy(data) == pytest.approx(
        float(mass @ np.where(total == 0, 0.5, total > 0)), abs=1e-12
    )


def test_the_mean_margin_is_that_of_all_images():
    data = vision.SpatialPatchData(6, 2, q=0.4)
    S = torch.softmax(torch.randn(6, 6, generator=generator(), dtype=torch.float64), -1)
    x, mass, _ = listed(data)
    means = []
    for active in range(3):  # the coefficients of the active group come first in the list
        order = np.argsort(
            np.argsort(np.where(np.arange(6) // 2 == active, -1, np.arange(6)), kind="stable"), kind="stable"
        )
        u = 6 * x[:, order] @ S.numpy().T
        means.append(mass @ (u**3 + 0.1 * u).sum(1))
    assert vision.mean_margin(S.float().numpy(), data.groups, q=0.4) == pytest.approx(
        np.mean(means), rel=1e-5
    )


def test_the_largest_group_coefficients_have_the_frequencies_of_the_data():
    data = vision.SpatialPatchData(q=0.3)
    x, labels, active = data.coefficients(20_000, generator())
    inside = active[:, None] == data.groups
    assert torch.equal(x[inside].reshape(-1, 3), labels[:, None].expand(-1, 3))
    shares = [float((x[~inside] == value).double().mean()) for value in (-1, 0, 1)]
    assert shares == pytest.approx([0.15, 0.7, 0.15], abs=0.005)
    sample = data.sample(50, w := data.direction(generator(1)), generator())
    assert float((sample.patches @ w - data.coefficients(50, generator())[0]).abs().max()) < 1e-5


def test_ranking_and_mass_of_written_and_constant_scores():
    groups = torch.tensor([0, 1, 2, 0, 1, 2])
    for A, ranking, mass in (
        (100.0 * (groups[:, None] == groups), 1.0, 1.0),
        (torch.zeros(6, 6), 0.2, 0.2),
        (-1e-6 * (groups[:, None] == groups), 0.0, 0.2),
        (1e-6 * (groups[:, None] == groups), 1.0, 0.2),
    ):
        found = vision.patch_association(A, groups)
        assert (found.ranking, found.mass) == pytest.approx((ranking, mass), abs=1e-6)
        assert found.chance == pytest.approx(0.2)


def test_rows_at_other_groups_have_no_mass_and_the_same_function():
    groups = vision.SpatialPatchData(12, 3).groups[torch.randperm(12, generator=generator())]
    own, other = vision.group_attention(groups), vision.other_group_attention(groups)
    assert float(vision.group_mass(own, groups)) == pytest.approx(1)
    assert float(vision.group_mass(other, groups)) == 0
    assert sorted(map(tuple, own.tolist())) == sorted(map(tuple, other.tolist()))


def test_the_model_computes_its_formula():
    model = vision.PositionalAttentionModel(6, 4, rank=2, diagonal=False)
    x = torch.randn(3, 6, 4, generator=generator())
    P, v = model.positions.detach(), model.value.detach()
    expected = torch.zeros(3)
    for i in range(6):
        others = [j for j in range(6) if j != i]
        weights = torch.softmax(P[i] @ P[others].mT, -1)
        u = 6 * sum(s * (x[:, j] @ v) for s, j in zip(weights, others))
        expected += u**3 + 0.1 * u
    torch.testing.assert_close(model(x).detach(), expected, rtol=1e-4, atol=1e-6)


def test_training_repeats_and_leaves_the_global_generator():
    state = torch.get_rng_state()
    runs = [
        vision.train_patches(vision.SpatialPatchData(6, 2, dim=4), generator=generator(), steps=20, batch=16)
        for _ in range(2)
    ]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(runs[0].model.scores(), runs[1].model.scores())


def test_moved_rows_transfer_like_the_own_group():
    """F is the same function for each v, so the training of v takes the same steps."""
    data = vision.SpatialPatchData(12, 3, q=0.1)
    found = []
    for S in (vision.group_attention(data.groups), vision.other_group_attention(data.groups)):
        model = vision.PositionalAttentionModel(12, 16, diagonal=True)
        with torch.no_grad():
            model.positions.copy_(S.clamp(min=1e-9).log().float())
        found.append(vision.transfer_accuracy(model, data, images=20, generator=generator(), steps=50))
    assert found[0] == pytest.approx(found[1], abs=2e-3)
    assert found[0] > 0.9


def test_label_relevant_tokens_have_their_share_and_the_label():
    data = vision.LabelRelevantTokens(0.25, noise=0.0, tokens=16)
    sample = data.sample(3, 50, generator=generator())
    assert sample.tokens.shape == (3, 50, 16, 32)
    assert float(sample.relevant.double().mean()) == 0.25
    carried = sample.tokens[..., :4, :2].mean(2)
    assert torch.equal(carried[..., 0] - carried[..., 1], sample.labels)
    assert float(sample.tokens[..., 4:, :2].abs().max()) == 0
    assert float(sample.tokens.norm(dim=-1).max()) == pytest.approx(1)


def test_stacked_models_compute_what_each_computes():
    model = vision.AttentionReLU(2, 4, hidden=6)
    x = torch.randn(2, 3, 5, 4, generator=generator())
    for k in range(2):
        S = torch.softmax(x[k] @ model.score[k] @ x[k].mT, -1)
        expected = (torch.relu(S @ x[k] @ model.value[k]) @ model.output).mean(-1)
        torch.testing.assert_close(model(x)[k], expected, rtol=1e-4, atol=1e-6)


def test_needed_samples_interpolate_in_the_logarithm():
    assert vision.needed_samples((10, 100, 1000), (0.5, 0.7, 0.9), 0.8) == pytest.approx(10**2.5)
    assert vision.needed_samples((10, 100), (0.5, 0.6), 0.8) is None
    assert vision.needed_samples((10, 100), (0.9, 0.95), 0.8) is None


def test_attention_mass_of_uniform_attention_is_the_share():
    relevant = torch.arange(8) < 2
    assert float(vision.attention_mass(np.full((8, 8), 1 / 8), relevant.numpy())) == pytest.approx(0.25)


def test_posteriors_are_counted_frequencies():
    ids, labels = torch.tensor([[0, 1], [0, 0], [1, 1], [0, 1]]), torch.tensor([0, 0, 1, 1])
    found = vision.word_posteriors(ids, labels, words=2, classes=2, shrinkage=1e-9)
    assert found.log_ratio[0, 0].exp().tolist() == pytest.approx([4 / 3, 2 / 3], rel=1e-6)
    assert float(found.relevance[0, 0]) == pytest.approx(2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3))
    gains = found.gains(ids, labels)
    assert float(gains[0, 0]) == pytest.approx(math.log(4 / 3))
    assert vision.relevant_share(found, ids[:1], labels[:1], threshold=0.2) == 0.5


def test_relevant_mass_takes_the_most_relevant_patches():
    weights, relevance = torch.tensor([[[0.1, 0.2, 0.3, 0.4]]]), torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    assert float(vision.relevant_mass(weights, relevance, share=0.5)) == pytest.approx(0.6)
    assert float(vision.relevant_mass(weights, relevance, share=0.1)) == pytest.approx(0.2)


def test_hsic_is_the_mean_over_quadruples():
    """The unbiased estimator is a U-statistic: the mean over different i, j, q, r of K_ij (L_ij + L_qr - 2
    L_iq).
    """
    x, y = torch.randn(2, 6, 3, generator=generator(), dtype=torch.float64)
    K, L = x @ x.mT, y @ y.mT
    terms = [
        K[i, j] * (L[i, j] + L[q, r] - 2 * L[i, q]) for i, j, q, r in itertools.permutations(range(6), 4)
    ]
    assert float(vision.hsic(K, L)) == pytest.approx(float(sum(terms) / len(terms)), rel=1e-10)


def test_the_neighbours_on_a_grid():
    near, distance = grid_distances(3, 3)
    assert near.sum(1).tolist() == [2, 3, 2, 3, 4, 3, 2, 3, 2]
    assert float(distance[0, 8]) == pytest.approx(8**0.5)
    near, distance = grid_distances(2, 4)
    assert near.sum(1).tolist() == [2, 3, 3, 2, 2, 3, 3, 2]
    assert float(distance[0, 7]) == pytest.approx(10**0.5)


ONES = torch.ones(4, 4)
POSTERIORS = vision.word_posteriors([[0, 1], [1, 0]], [0, 1], words=2, classes=2)
BAD = {
    "groups that do not divide": (lambda: vision.SpatialPatchData(10, 3), "group must divide the patches"),
    "one group": (lambda: vision.SpatialPatchData(6, 6), "group must divide the patches"),
    "q above 1": (lambda: vision.SpatialPatchData(q=1.2), "q must be a probability"),
    "noise NaN": (lambda: vision.SpatialPatchData(noise=math.nan), "noise must be at least 0"),
    "groups of unequal size": (
        lambda: vision.group_attention([0, 0, 1, 1, 1]),
        "groups must be at least two of equal size",
    ),
    "continuous groups": (lambda: vision.group_attention([0.5, 0.5, 1.5, 1.5]), "groups must hold integers"),
    "groups of one patch": (
        lambda: vision.patch_association(ONES, [0, 1, 2, 3]),
        "groups must be at least two of equal size",
    ),
    "scores of another size": (
        lambda: vision.patch_association(torch.ones(6, 6), [0, 0, 1, 1]),
        "A must be finite of shape",
    ),
    "weights NaN": (lambda: vision.group_mass(ONES * math.nan, [0, 0, 1, 1]), "S must be attention weights"),
    "weights that sum to 4": (
        lambda: vision.mean_margin(ONES, [0, 0, 1, 1], q=0.1),
        "S must be attention weights",
    ),
    "weights of another size": (
        lambda: vision.group_mass(torch.full((6, 6), 1 / 6), [0, 0, 1, 1]),
        "S must be attention weights",
    ),
    "margin with q above 1": (
        lambda: vision.mean_margin(ONES / 4, [0, 0, 1, 1], q=2.0),
        "q must be a probability",
    ),
    "a group larger than all": (lambda: vision.chance(3, 5), "patches must be at least 6"),
    "linear NaN": (
        lambda: vision.group_accuracy(vision.SpatialPatchData(), linear=math.nan),
        "linear must be at least 0",
    ),
    "feature of another norm": (
        lambda: vision.SpatialPatchData().sample(2, torch.ones(16), generator()),
        "w must have shape",
    ),
    "decay of SGD": (
        lambda: vision.train_patches(vision.SpatialPatchData(), generator=generator(), decay=0.1),
        "decay must be 0 for SGD",
    ),
    "model of another size": (
        lambda: vision.transfer_accuracy(
            vision.PositionalAttentionModel(8, 4), vision.SpatialPatchData(), images=2, generator=generator()
        ),
        "model must have the 24 patches",
    ),
    "odd hidden": (lambda: vision.AttentionReLU(1, 4, hidden=3), "hidden must be even"),
    "rate of tokens 0": (
        lambda: vision.train_tokens(
            vision.LabelRelevantTokens(), 8, networks=1, generator=generator(), rate=0.0
        ),
        "rate must be positive",
    ),
    "sizes that fall": (lambda: vision.needed_samples((100, 10), (0.5, 0.95), 0.9), "sizes must increase"),
    "accuracy NaN": (lambda: vision.needed_samples((10, 100), (math.nan, 0.95), 0.9), "sizes must increase"),
    "fewer accuracies": (lambda: vision.needed_samples((1, 2, 3), (0.5, 0.95), 0.9), "sizes must increase"),
    "word below 0": (
        lambda: vision.relevant_share(POSTERIORS, [[0, -1]], [0], threshold=0.1),
        "ids and labels must fit",
    ),
    "label of no class": (
        lambda: vision.relevant_share(POSTERIORS, [[0, 1]], [7], threshold=0.1),
        "ids and labels must fit",
    ),
    "threshold NaN": (
        lambda: vision.relevant_share(POSTERIORS, [[0, 1]], [0], threshold=math.nan),
        "threshold must be a number",
    ),
    "negative weights": (lambda: vision.relevant_mass(-ONES, ONES), "weights must be nonnegative"),
    "Gram matrix that is not square": (lambda: vision.hsic(torch.ones(5, 4), torch.ones(5, 4)), "n >= 4"),
    "scores NaN": (
        lambda: vision.patch_association(ONES * math.nan, [0, 0, 1, 1]),
        "A must be finite of shape",
    ),
    "unknown optimiser": (
        lambda: vision.train_patches(vision.SpatialPatchData(), generator=generator(), optimiser="lion"),  # pyright: ignore[reportArgumentType]
        "optimiser must be 'sgd' or 'adam'",
    ),
    "no steps": (
        lambda: vision.train_patches(vision.SpatialPatchData(), generator=generator(), steps=0),
        "steps must be at least 1",
    ),
    "rate 0": (
        lambda: vision.train_patches(vision.SpatialPatchData(), generator=generator(), rate=0.0),
        "rate must be positive",
    ),
    "spread below 0": (
        lambda: vision.PositionalAttentionModel(4, 2, spread=-1.0),
        "spread must be at least 0",
    ),
    "one patch": (lambda: vision.PositionalAttentionModel(1, 2), "patches must be at least 2"),
    "share above 1": (lambda: vision.LabelRelevantTokens(1.5), "alpha must be a share"),
    "too few dimensions": (
        lambda: vision.LabelRelevantTokens(dim=5),
        "dim must be at least the number of patterns",
    ),
    "two patterns": (lambda: vision.LabelRelevantTokens(patterns=2), "patterns must be at least 3"),
    "mask of other keys": (
        lambda: vision.attention_mass(ONES, torch.ones(3, dtype=torch.bool)),
        "relevant must be a mask of the keys",
    ),
    "one class": (
        lambda: vision.word_posteriors([[0]], [0], words=1, classes=1),
        "classes must be at least 2",
    ),
    "continuous labels": (
        lambda: vision.word_posteriors([[0], [0]], [0.5, 1.5], words=1, classes=2),
        "labels must be integers",
    ),
    "labels of other images": (
        lambda: vision.word_posteriors([[0]], [0, 1], words=1, classes=2),
        "ids and labels must have shapes",
    ),
    "words out of range": (lambda: vision.word_posteriors([[3]], [0], words=2, classes=2), "ids must lie in"),
    "share of patches": (
        lambda: vision.relevant_mass(torch.ones(2, 4), torch.ones(2, 4), share=1.0),
        "share must lie inside",
    ),
    "class token left in": (
        lambda: vision.relevant_mass(torch.ones(2, 5), torch.ones(2, 4)),
        "leave out the class token",
    ),
    "three samples": (lambda: vision.hsic(torch.eye(3), torch.eye(3)), "at least 4|n >= 4"),
    "patches that do not divide": (lambda: patches_of(), "size must divide height and width"),
}


def patches_of():
    from transformer_theory import data

    return data.patches(torch.zeros(2, 1, 8, 8), 3)


@each_case("case", BAD)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_has_one_line(case: str):
    call, message = BAD[case]
    with pytest.raises((ValueError, TypeError), match=message) as error:
        call()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 200
