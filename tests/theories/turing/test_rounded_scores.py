"""Scores that are rounded to bfloat16 in the forward pass."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import transformer_theory as tt
from tests.comparison.test_interventions import ACCURACY, LOSS, effect
from tests.theories.test_changes_by_hand import generator, scored
from tests.theories.test_interventions import attended
from transformer_theory.core.intervention import NotChanged
from transformer_theory.theories.turing.interventions import changed_at_random, rounded

ROUNDED = "turing/scores rounded to bfloat16"


def nearest(x: float) -> float:
    """Rounds to eight binary digits, ties to even, by the definition."""
    if x == 0:
        return 0.0
    unit = 2.0 ** (math.floor(math.log2(abs(x))) - 7)
    return round(x / unit) * unit  # Python rounds ties to even


def test_the_weights_are_those_of_rounded_scores():
    rows = [[9.03, 9.0, 1.003, 0.0], [9.2, 9.0, -2.51, 0.1], [300.7, 299.2, 298.9, 5.0]]
    new = rounded(scored(rows)).weights[0, 0]
    for row, found in zip(rows, new):
        s = np.array([nearest(np.float32(x)) for x in row])
        expected = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
        assert_close(found.double(), torch.as_tensor(expected), rtol=1e-4, atol=1e-6)
    # between 8 and 16 numbers are 1/16 apart: the two largest tie in the first row, not in the second one
    assert float(new[0, 0]) == pytest.approx(float(new[0, 1]), rel=1e-5)
    assert float(new[1, 0]) > 1.1 * float(new[1, 1])
    # between 256 and 512 they are 2 apart: 300.7 becomes 300 and 299.2 as well, 298.9 becomes 298
    assert new[2].tolist() == pytest.approx([1 / (2 + math.exp(-2))] * 2 + [1 / (1 + 2 * math.e**2), 0.0])


def test_a_bias_of_the_scores_is_not_rounded():
    at = attended(causal=True)
    bias = torch.randn(6, 6, generator=generator(3))
    products = at.query @ at.key.mT / 3
    scores = (products + bias).masked_fill(~at.mask, -math.inf)
    new = rounded(replace(at, scale=1 / 3, weights=scores.softmax(-1))).weights
    expected = (products.bfloat16().float() + bias).masked_fill(~at.mask, -math.inf).softmax(-1)
    assert_close(new, expected)
    assert not torch.equal(new, scores.softmax(-1))


def test_scores_of_few_digits_stay():
    at = scored([[9.0, 8.9375, 1.0, 0.0], [1.5, 300.0, -0.25, 3.0]])
    assert torch.equal(rounded(at).weights, at.weights)
    assert torch.equal(changed_at_random(at).weights, at.weights)
    mixed = scored([[9.0, 8.9375, 1.0, 0.0], [9.03, 8.0, -0.25, 3.0]])
    assert torch.equal(rounded(mixed).weights[0, 0, 0], mixed.weights[0, 0, 0])
    assert not torch.equal(rounded(mixed).weights[0, 0, 1], mixed.weights[0, 0, 1])


def test_random_changes_are_as_large_at_every_key():
    at = attended(causal=True)
    # multiples of 1/64 have no rounding errors in the differences of scores
    before = (at.query @ at.key.mT).masked_fill(~at.mask, -math.inf)
    error = (before.bfloat16().float() - before).nan_to_num()
    signs = set()
    for seed in range(8):
        new = changed_at_random(replace(at, generator=generator(seed))).weights
        added = (new.log() - at.weights.log()).masked_fill(~at.mask, 0.0)
        added = added - added[..., :1] + 0.0  # up to a number for each row
        possible = torch.stack([a * error - b * error[..., :1] for a in (1, -1) for b in (1, -1)])
        assert bool(((possible - added).abs().amin(0) < 2e-5)[at.mask].all())
        assert_close(new.sum(-1), torch.ones_like(new.sum(-1)))
        assert not new[~at.mask].any()
        signs.add(tuple((added[0, 0, 5] > 0).tolist()))
    assert len(signs) > 2


def test_rows_without_a_key_and_weights_of_zero_stay_zero():
    at = attended(causal=True)
    mask, weights = at.mask.clone(), at.weights.clone()
    mask[:, :, 3] = False
    weights[:, :, 3] = 0.0
    weights[:, :, 5, 2] = 0.0
    for change in (rounded, changed_at_random):
        new = change(replace(at, mask=mask, weights=weights)).weights
        assert not new[:, :, 3].any()
        assert not new[:, :, 5, 2].any()
        assert bool(new.isfinite().all())


def test_half_precision_networks_have_scores_that_can_be_rounded():
    at = attended()
    half = replace(at, query=at.query.bfloat16(), key=at.key.bfloat16())
    products = half.query.float() @ half.key.float().mT
    half = half.with_weights(products.softmax(-1))
    assert_close(rounded(half).weights, products.bfloat16().float().softmax(-1))


def test_rounding_needs_the_scale():
    with pytest.raises(ValueError, match="their scale, which is not known"):
        rounded(replace(attended(), scale=None))


class LargestScore(nn.Module):
    """The last token chooses the key with the largest score, and returns its class.

    Tokens are [class (4 dimensions), score, query].
    """

    def forward(self, x: Tensor) -> Tensor:
        out = nn.functional.scaled_dot_product_attention(x[..., 5:], x[..., 4:5], x[..., :4], scale=1.0)
        return 20 * out[:, -1]


def contests(best: float, second: float, n: int = 200) -> tuple[Tensor, Tensor]:
    """Two of seven keys have large scores; the class of the better one is the label."""
    random = generator()
    classes = torch.randint(4, (n, 8), generator=random)
    classes[:, 1] = (classes[:, 0] + 1 + torch.randint(3, (n,), generator=random)) % 4
    x = torch.zeros(n, 8, 6)
    x[..., :4] = nn.functional.one_hot(classes, 4)
    x[:, 0, 4], x[:, 1, 4], x[:, -1, 5] = best, second, 1.0
    return x, classes[:, 0]


def loss(gap: float) -> float:
    """The loss if the best score leads by this gap: the logits are 20 times the weights."""
    a = 1 / (1 + math.exp(-gap))
    logits = [20 * a, 20 * (1 - a), 0.0, 0.0]
    return math.log(sum(map(math.exp, logits))) - logits[0]


def test_scores_that_tie_in_bfloat16_are_no_choice():
    """Between 512 and 1024 bfloat16 numbers are 4 apart: 777 and 775 both become 776."""
    x, y = contests(777.0, 775.0)
    result = tt.intervene(LargestScore(), x, ROUNDED, labels=y, draws=19)
    before = result.select(at={"measure": LOSS, "attention": "unchanged"}).one().value
    assert before == pytest.approx(loss(2.0), rel=1e-3)
    # two classes with the logit 10, two with 0
    tie = math.log(2 * math.exp(10) + 2) - 10
    assert effect(result, LOSS).value == pytest.approx(tie - loss(2.0), rel=1e-4)


def test_scores_that_are_rounded_alike_keep_their_gap_and_random_changes_do_not():
    """Between 64 and 128 bfloat16 numbers are 1/2 apart: 98.2 becomes 98 and 97.7 becomes 97.5."""
    x, y = contests(98.2, 97.7)
    row = effect(tt.intervene(LargestScore(), x, ROUNDED, labels=y, draws=19), LOSS)
    assert row.value == pytest.approx(0.0, abs=1e-5)
    (null,) = row.nulls
    assert null.kind == "as large a change of every score, up or down at random"
    # a change of .2 up or down for each: a quarter of the sequences has the gap .1 and a quarter .9
    expected = (loss(0.1) + loss(0.9)) / 4 - loss(0.5) / 2
    assert null.median == pytest.approx(expected, rel=0.15)
    assert null.p(row.value, "<=") == 1 / 500


def test_scores_that_are_rounded_towards_each_other_lose():
    """100.2 becomes 100 and 99.3 becomes 99.5."""
    x, y = contests(100.2, 99.3)
    row = effect(tt.intervene(LargestScore(), x, ROUNDED, labels=y, draws=19), LOSS)
    assert row.value == pytest.approx(loss(0.5) - loss(0.9), rel=1e-3)
    assert row.nulls[0].p(row.value, "<=") == 1.0


def test_a_choice_with_large_margins_loses_nothing():
    x, y = contests(100.2, 50.1)
    result = tt.intervene(LargestScore(), x, ROUNDED, labels=y, draws=3)
    assert effect(result, ACCURACY).value == 0.0
    assert abs(effect(result, LOSS).value) < 1e-6


def test_exact_scores_are_not_changed():
    x, y = contests(96.0, 64.0)
    with pytest.raises(NotChanged, match="changed no weight"):
        tt.intervene(LargestScore(), x, ROUNDED, labels=y, draws=3)
