"""Membership maps: their formula, the agreement with a region, and its chance levels."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from transformer_theory.models.crate import ReleasedTokenStatisticsAttention
from transformer_theory.models.image_networks import Mlp
from transformer_theory.theories.crate import networks
from transformer_theory.theories.crate.figures import memberships, region_agreement
from transformer_theory.theories.crate.figures.region_agreement import (
    OTHERS,
    PERMUTED,
    Examples,
    agreements,
    membership_maps,
    preferences,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_maps_are_the_memberships_of_the_patches():
    data = networks.digit_parts(seed=0)
    model = networks.crate(
        data.train, seed=0, attention=ReleasedTokenStatisticsAttention, sparsify=Mlp, dim=16, depth=2
    )
    with torch.no_grad():
        model.transformer.layers[0][0].fn.temp.mul_(torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
    tokens = data.test.tokens[:5]
    maps = membership_maps(model, tokens)
    assert maps.shape == (2, 5, 4, 16)
    assert_close(maps.sum(2), torch.ones(2, 5, 16, dtype=torch.float64), atol=1e-6, rtol=0)
    with torch.no_grad():
        stream = (
            torch.cat([model.cls_token.expand(5, -1, -1), model.to_patch_embedding(tokens.float())], 1)
            + model.pos_embedding
        )
        half = model.transformer.layers[0][0]
        squares = half.fn.qkv(half.norm(stream)).unflatten(-1, (4, 4)).square()  # [n, 17, K, p]
        shares = (squares / squares.sum(1, keepdim=True)).sum(-1)
        expected = (shares * half.fn.temp[:, 0]).softmax(-1)[:, 1:]
    assert_close(maps[0], expected.mT.double(), atol=1e-6, rtol=0)


def test_preferences_are_areas_under_the_roc_curve():
    from sklearn.metrics import roc_auc_score

    maps = torch.randint(4, (6, 3, 10), generator=generator()).double()  # with ties
    region = torch.rand(6, 10, generator=generator(1)) < 0.4
    region[2], region[4] = False, True  # images with one kind of patch only do not count
    expected = [np.mean([roc_auc_score(region[i], maps[i, k]) for i in (0, 1, 3, 5)]) for k in range(3)]
    assert preferences(maps, region).tolist() == pytest.approx(expected)


def fake(monkeypatch, *, regions):
    """A network of one layer whose head 2 has small memberships in the regions; the other heads are noise."""
    n, seq = regions.shape

    def maps(model, tokens):
        drawn = torch.rand(1, n, 4, seq, generator=generator(5), dtype=torch.float64)
        drawn[0, :, 2] = 0.1 * drawn[0, :, 2] - regions.double()
        return drawn

    monkeypatch.setattr(region_agreement, "membership_maps", maps)
    examples = Examples(torch.zeros(n, seq, 1), regions, torch.zeros(n, 1, 1, 1))
    return agreements(torch.nn.Identity(), examples, examples, draws=30, generator=generator(6))


def test_the_best_head_may_prefer_the_background_and_regions_of_other_images_show_the_share_of_the_position(
    monkeypatch,
):
    varied = torch.rand(40, 16, generator=generator()) < 0.5
    found = fake(monkeypatch, regions=varied)
    assert found.head.tolist() == [2]
    assert_close(found.test, torch.ones(1, dtype=torch.float64))
    assert_close(found.validation, found.test)
    for kind in (PERMUTED, OTHERS):
        assert found.nulls[kind].shape == (30, 1)
        assert float(found.nulls[kind].mean()) == pytest.approx(0.5, abs=0.03)
    # Where all images have the same region, the position says everything; only permuted positions are at
    # chance.
    found = fake(monkeypatch, regions=varied[:1].expand(40, -1).clone())
    assert_close(found.nulls[OTHERS], found.test.expand(30, 1))
    assert float(found.nulls[PERMUTED].mean()) == pytest.approx(0.5, abs=0.03)


def test_foregrounds_are_ink_and_objects():
    _, _, digits = memberships.digit_examples(0, 0)
    ink = digits.images[..., 0].unflatten(2, (4, 2)).unflatten(1, (4, 2)).mean((2, 4)).flatten(1)
    assert_close(digits.foreground, ink > memberships.INK)
    _, validation, test = memberships.object_examples(0, 60)
    assert len(test.tokens) == len(validation.tokens) == 60
    assert not torch.equal(test.tokens, validation.tokens)
    colour = test.images.amax(-1) - test.images.amin(-1)  # the background is grey
    patches = colour.unflatten(2, (8, 3)).unflatten(1, (8, 3)).mean((2, 4)).flatten(1)
    assert float(patches[test.foreground].mean()) > 2 * float(patches[~test.foreground].mean())


def test_a_row_of_each_layer_has_three_chance_levels():
    result = memberships.memberships(seeds=1, images=60, steps=1, dim=8, depth=2).run()
    rows = result.select(quantity=memberships.AGREEMENT, data="digits")
    assert [(row.layer, row.at) for row in rows] == [(0, {}), (1, {}), (None, memberships.BEST)]
    for row in rows:
        assert [null.kind for null in row.nulls] == [PERMUTED, OTHERS, memberships.UNTRAINED]
        assert row.p == row.null.p(row.value, ">=")
    assert rows.select(at=memberships.BEST).one().value in [row.value for row in rows[:2]]
