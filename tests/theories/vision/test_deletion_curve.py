"""Places that carry the label, removed in the order of their relevance."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import transformer_theory as tt
from tests.theories.test_interventions import attended
from transformer_theory.core.intervention import NotChanged
from transformer_theory.core.statistics import fixed_generator
from transformer_theory.theories.vision.interventions import Order, order_places, other_order, removed

CURVE = "vision/deletion curve of label-relevant places"


def reading(parts: list):
    """The argument of ``choose``: calls a function with each of the parts."""

    def read(function):
        for part in parts:
            function(part)

    return read


def test_places_are_ordered_by_what_they_say_of_the_label():
    n, T = 60, 11
    labels = torch.arange(n) % 3
    values = torch.randn(n, 1, T, 2, generator=torch.Generator().manual_seed(0))
    values[:, :, 0] = 1.0  # a class token
    values[:, 0, 4] = torch.stack([10.0 * labels, -7.0 * labels], 1)
    values[:, 0, 7] = torch.stack([3.0 * (labels == 1), 20.0 * (labels == 2)], 1)
    at = replace(attended(n=n, heads=1, T=T), value=values)
    names = ("value", "weights", "query", "key", "mask")
    halves = [
        replace(at, **{name: getattr(at, name)[part] for name in names}, sequences=30, labels=labels[part])
        for part in (slice(0, 30), slice(30, 60))
    ]
    chosen = order_places(reading([*halves, replace(halves[0], layer=1)]))
    assert set(chosen.places[:2]) == {4, 7}
    assert sorted(chosen.places) == list(range(1, T))
    assert chosen.tokens == T
    drawn = [other_order(chosen, torch.Generator().manual_seed(seed)) for seed in range(30)]
    assert all(sorted(one.places) == list(range(1, T)) and one.tokens == T for one in drawn)
    assert len({one.places[0] for one in drawn}) == 10


def test_each_sequence_loses_its_tenths_of_the_order():
    at = attended(n=9, heads=1, T=11)
    order = (4, 7, 1, 2, 3, 5, 6, 8, 9, 10)
    new = removed(replace(at, structure=Order(order, 11))).weights
    for i in range(9):
        rest = [0, *order[i + 1 :]]  # the first sequence loses a tenth of ten places, the last one nine
        assert not new[i][..., order[: i + 1]].any()
        own = at.weights[i][..., rest]
        assert_close(new[i][..., rest], own / own.sum(-1, keepdim=True))
    # the numbers of the sequences count, not their places in the batch
    later = removed(replace(at, structure=Order(order, 11), numbers=torch.arange(9).flip(0))).weights
    assert (later > 0).sum(-1)[:, 0, 0].tolist() == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    # a tenth and two tenths of four places are none
    few = removed(replace(at, structure=Order((3, 1, 2, 4), 11))).weights
    assert (11 - (few > 0).sum(-1))[:, 0, 0].tolist() == [0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert torch.equal(few[:1] > 0, at.weights[:1] > 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None}, "need a class of each image, got no labels"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "need two classes, got one"),
        ({"sequences": 1}, "got windows"),
    ],
)
def test_relevant_places_need_labels_of_two_classes_and_whole_images(change, message):
    at = replace(attended(), **({"labels": torch.tensor([0, 1, 2])} | change))
    with pytest.raises(ValueError, match=message):
        order_places(reading([at]))


def test_places_are_those_of_the_first_attention():
    with pytest.raises(ValueError, match="need attention to the 9 tokens of the first one, got 6 keys"):
        removed(replace(attended(), structure=Order((1, 2), 9)))


class Mean(nn.Module):
    """The mean of all tokens under uniform attention, times ten."""

    def forward(self, x):
        zeros = 0 * x[..., :1]
        return 10 * nn.functional.scaled_dot_product_attention(zeros, zeros, x).mean(1)


def planted(n: int = 360) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of ten places: the class is at place 6; the other places show random classes, one half as
    large.
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (n,), generator=generator)
    x = 0.5 * nn.functional.one_hot(torch.randint(4, (n, 10), generator=generator), 4).float()
    x[:, 6] = 9 * nn.functional.one_hot(labels, 4)
    return x, labels


def rows(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict:
    table = tt.intervene(model, x, CURVE, labels=y, draws=19).table
    return {(row.at["measure"], row.at.get("attention")): row for row in table}


def test_the_area_of_a_planted_curve_by_hand():
    x, y = planted()
    found = rows(Mean(), x, y)
    accuracy = found["accuracy", None]
    # a random half of each class orders the places
    mixed = torch.randperm(360, generator=fixed_generator())
    mixed = mixed[y[mixed].argsort(stable=True)]
    first, second = (part.sort().values for part in (mixed[::2], mixed[1::2]))
    at = replace(attended(n=180, heads=1, T=10), value=x[first][:, None], labels=y[first])
    order = order_places(reading([at])).places
    assert order[0] == 6
    # the other half of the images, in three batches, without the first places of the order; what remains of
    # the weights is uniform
    x, y = x[second].double(), y[second]
    golden, tenths = (5**0.5 - 1) / 2, []
    for i in range(180):
        tenths.append((i + int(9 * ((i // 9) ** 2 * golden % 1))) % 9 + 1)
        x[i, list(order[: tenths[i]])] = 0.0
    assert [tenths.count(k) for k in range(1, 10)] == [20] * 9
    logits = 10 * x.sum(1) / (10 - torch.tensor(tenths)[:, None])
    right = (logits.argmax(1) == y).double().mean()
    assert accuracy.value == pytest.approx(float(right) - 1)
    assert found["loss", "changed"].value == pytest.approx(
        float(nn.functional.cross_entropy(logits, y)), rel=1e-5
    )
    (null,) = accuracy.nulls
    assert null.kind == "as many places removed in a random order"
    # place 6 is among the first k of ten in a random order with probability k / 10, and then the class is
    # that of the other places, which is right by chance
    assert null.median == pytest.approx(-0.75 / 2, abs=0.15)
    # one in ten random orders begins with place 6 as well, and loses as much up to the chance of the others;
    # an order in which it is the second loses a ninth less
    as_much = sum(draw <= -0.75 * 8.5 / 9 for draw in null.draws)
    assert as_much <= 4
    assert null.p(accuracy.value, "<=") <= (1 + as_much) / 20


class OwnToken(nn.Module):
    """Attention is multiplied by zero, and the last token says its class."""

    def forward(self, x):
        return 10 * x[:, -1] + 0 * Mean()(x)


def test_a_network_that_reads_no_key_loses_nothing():
    x, y = planted()
    x[:, -1] = nn.functional.one_hot(y, 4)
    found = rows(OwnToken(), x, y)
    assert found["loss", None].value == found["accuracy", None].value == 0.0
    assert found["loss", None].nulls[0].p(0.0, ">=") == 1.0


def test_nine_tenths_of_one_place_are_none():
    x, y = planted()
    x[:, [place for place in range(10) if place != 6]] = 1.0
    with pytest.raises(NotChanged, match="changed no weight"):
        rows(Mean(), x, y)
