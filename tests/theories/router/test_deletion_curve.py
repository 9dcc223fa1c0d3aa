"""The heaviest keys of each query, removed one share after another."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import transformer_theory as tt
from tests.comparison.test_interventions import ACCURACY, effect
from tests.theories.test_interventions import attended
from transformer_theory.core.intervention import NotChanged, tenths
from transformer_theory.theories.router.interventions import heaviest_removed, random_removed

CURVE = "router/deletion curve of the heaviest keys"
ONE = "router/heaviest key of every query removed"


def test_nine_sequences_lose_nine_shares_in_every_spacing():
    at = attended(n=9, heads=1)
    assert tenths(at).flatten().tolist() == list(range(1, 10))
    for numbers in (torch.arange(9) + 27, 17 - torch.arange(9)):
        assert sorted(tenths(replace(at, numbers=numbers)).flatten().tolist()) == list(range(1, 10))
    for step in range(1, 40):  # evenly spaced sequences have all shares, about equally often
        numbers = step * torch.arange(90)
        many = replace(attended(n=90, heads=1), numbers=numbers)
        assert set(tenths(many).flatten().tolist()) == set(range(1, 10)), step
        assert float(tenths(many).double().mean()) == pytest.approx(5, abs=0.7), step
    # all windows of a sequence lose the same share
    windows = replace(at, sequences=3)
    assert tenths(windows).flatten().tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_the_heaviest_keys_of_each_query_go():
    at = attended(n=9, heads=2, T=6, causal=True)
    new = heaviest_removed(at).weights
    for i in range(9):
        for query in range(6):
            own = at.weights[i, 1, query, : query + 1].double().numpy()
            count = (query + 1) * (i + 1) // 10
            left = own.argsort()[: query + 1 - count]
            expected = torch.zeros(6)
            expected[left] = torch.as_tensor(own[left] / own[left].sum()).float()
            assert_close(new[i, 1, query], expected)
    drawn = [random_removed(replace(at, generator=torch.Generator().manual_seed(s))).weights for s in (0, 1)]
    for each in drawn:
        assert torch.equal((each > 0).sum(-1), (new > 0).sum(-1))
        assert_close(each.sum(-1), torch.ones(9, 2, 6))
        assert not each[~at.mask].any()
    assert not torch.equal(*drawn)


class Twice(nn.Module):
    """The last token reads its class from the keys with a mark, and returns it."""

    def forward(self, x):
        out = nn.functional.scaled_dot_product_attention(30 * x[..., 5:], x[..., 4:5], x[..., :4], scale=1.0)
        return 10 * out[:, -1]


def marked_twice(n: int = 180, T: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [class, mark, query]: two of the first 19 have the mark and the same class."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(4, (n, T), generator=generator)
    places = torch.stack([torch.randperm(T - 1, generator=generator)[:2] for _ in range(n)])
    labels = torch.randint(4, (n,), generator=generator)
    classes.scatter_(1, places, labels[:, None].expand(-1, 2))
    x = torch.zeros(n, T, 6)
    x[..., :4] = nn.functional.one_hot(classes, 4)
    x[..., 4].scatter_(1, places, 1.0)
    x[:, -1, 5] = 1.0
    return x, labels


def test_two_keys_with_the_same_are_found_by_the_curve_alone():
    x, y = marked_twice()
    one = effect(tt.intervene(Twice(), x, ONE, labels=y, draws=19), ACCURACY)
    assert one.value == 0.0
    assert one.nulls[0].p(0.0, "<=") == 1.0
    curve = effect(tt.intervene(Twice(), x, CURVE, labels=y, draws=19), ACCURACY)
    # a tenth of twenty keys are both; the others weigh e^-30, and together they say nothing of the class
    assert curve.value == pytest.approx(-0.75, abs=0.1)
    null, weight = curve.nulls
    assert null.kind == "as many keys removed in a random order"
    # both are among the first share s of the keys with probability about s^2, whose mean is .317
    assert null.median == pytest.approx(-0.75 * sum((k / 10) ** 2 for k in range(1, 10)) / 9, abs=0.06)
    assert null.p(curve.value, "<=") == 1 / 500
    # of the two keys, the last one in the order keeps a part of its weight
    assert weight.kind == "as much weight removed in a random order"
    assert weight.p(curve.value, "<=") == 1 / 500


def test_a_single_marked_key_is_found_beside_both_controls():
    x, y = marked_twice()
    first = x[..., 4].argmax(1, keepdim=True)
    x[..., 4] = 0.0
    x[..., 4].scatter_(1, first, 1.0)
    row = effect(tt.intervene(Twice(), x, ONE, labels=y, draws=19), ACCURACY)
    # without it the most frequent class of the other keys is the answer; ties are a matter of rounding
    others = x[..., :4].sum(1) - nn.functional.one_hot(y, 4)
    right = (others.argmax(1) == y).double().mean()
    assert row.value == pytest.approx(float(right) - 1, abs=0.1)
    assert [null.kind for null in row.nulls] == [
        "another key of every query removed",
        "as much weight of other keys removed",
    ]
    # other keys weigh e^-30, and all of them say less than the marked one
    assert [null.median for null in row.nulls] == [0.0] * 2
    assert [null.p(row.value, "<=") for null in row.nulls] == [1 / 500] * 2


def test_one_key_stays():
    class Single(nn.Module):
        def forward(self, x):
            return 10 * nn.functional.scaled_dot_product_attention(x, x, x)[:, 0]

    y = torch.arange(60) % 4
    with pytest.raises(NotChanged):
        tt.intervene(Single(), nn.functional.one_hot(y, 4).float()[:, None], CURVE, labels=y)
