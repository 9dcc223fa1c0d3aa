"""Wrong labels: how many there are, what they become, and that the generator alone decides."""

import pytest
import torch

from tests.cases import each_case
from transformer_theory.data.corruption import (
    CIFAR10_CONFUSIONS,
    next_class,
    relabel_by_map,
    relabel_symmetrically,
    relabel_uniformly,
)

LABELS = torch.arange(20_000) % 10


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_uniform_over_all_classes_keeps_a_tenth_of_what_it_draws(ratio):
    changed = relabel_uniformly(LABELS, ratio, classes=10, generator=seeded()) != LABELS
    assert float(changed.double().mean()) == pytest.approx(0.9 * ratio, abs=0.01)


@each_case("ratio", [0.0, 0.1, 0.29, 1.0])
def test_symmetric_changes_exactly_the_share(ratio):
    changed = relabel_symmetrically(LABELS[:100], ratio, classes=10, generator=seeded())
    assert int((changed != LABELS[:100]).sum()) == round(100 * ratio)
    assert 0 <= int(changed.min()) <= int(changed.max()) < 10


def test_symmetric_is_uniform_over_the_other_classes():
    zeros = torch.zeros(9000, dtype=torch.int64)
    counts = torch.bincount(relabel_symmetrically(zeros, 1.0, classes=10, generator=seeded()), minlength=10)
    assert counts[0] == 0
    assert float((counts[1:] - 1000).abs().max()) < 5 * 1000**0.5


def test_a_map_sends_each_class_to_its_own():
    assert torch.equal(
        relabel_by_map(LABELS, 1.0, mapped=next_class(10), generator=seeded()), (LABELS + 1) % 10
    )
    confused = relabel_by_map(LABELS, 0.4, mapped=CIFAR10_CONFUSIONS, generator=seeded())
    pairs = {(int(a), int(b)) for a, b in zip(LABELS, confused) if a != b}
    assert pairs == {(9, 1), (2, 0), (4, 7), (3, 5), (5, 3)}
    assert (
        int(
            (
                relabel_by_map(LABELS[:100], 0.4, mapped=next_class(10), generator=seeded()) != LABELS[:100]
            ).sum()
        )
        == 40
    )


def test_the_generator_decides_and_the_labels_are_left_alone():
    before = LABELS.clone()
    first, again, other = (relabel_uniformly(LABELS, 0.5, classes=10, generator=seeded(s)) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, LABELS)


@each_case(
    ("labels", "ratio", "classes", "message"),
    [
        (torch.tensor([0.0, 1.0]), 0.5, 2, "labels must be integers, got torch.float32"),
        (torch.tensor([[0, 1]]), 0.5, 2, r"labels must have shape \[n\], got \[1, 2\]"),
        (torch.tensor([0, 3]), 0.5, 3, r"labels must lie in \[0, 3\), got 0 to 3"),
        (torch.tensor([0, -1]), 0.5, 3, r"labels must lie in \[0, 3\), got -1 to 0"),
        (torch.tensor([0, 0]), 0.5, 1, "classes must be at least 2 .* got 1"),
        (torch.tensor([0, 1]), 1.5, 2, r"ratio must lie in \[0, 1\], the share of labels to change, got 1.5"),
        (torch.tensor([0, 1]), float("nan"), 2, r"ratio must lie in \[0, 1\].* got nan"),
    ],
)
@each_case("rule", [relabel_uniformly, relabel_symmetrically])
def test_bad_input_is_refused_in_one_line(labels, ratio, classes, message, rule, unchecked):
    with pytest.raises((ValueError, TypeError), match=message):
        rule(labels, ratio, classes=classes, generator=seeded())


def test_labels_may_be_numpy_arrays(unchecked):
    labels = LABELS[:100].numpy().astype("int32")
    changed = relabel_uniformly(labels, 0.5, classes=10, generator=seeded())
    assert torch.equal(changed, relabel_uniformly(LABELS[:100], 0.5, classes=10, generator=seeded()))


def test_a_map_out_of_its_classes_is_refused():
    with pytest.raises(ValueError, match=r"mapped must hold classes 0\.\.1, one for each class, got 2"):
        relabel_by_map(torch.tensor([0, 1]), 0.5, mapped=(1, 2), generator=seeded())
