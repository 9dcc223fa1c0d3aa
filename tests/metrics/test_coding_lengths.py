"""Coding lengths in bits: by hand, from the rates, and what grouping saves."""

import math

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.metrics import coding

EPS = 0.1


def two_lines(per_line=30, d=4):
    """Samples on two orthogonal lines, and which is on which."""
    generator = torch.Generator().manual_seed(0)
    along = torch.randn(2 * per_line, 1, dtype=torch.float64, generator=generator)
    labels = torch.arange(2).repeat_interleave(per_line)
    return along * torch.eye(d, dtype=torch.float64)[labels], labels


def test_one_vector_by_hand():
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert_close(float(coding.coding_length(x, eps=0.5)), (1 + 2) / 2 * math.log2(1 + 2 * 25 / 0.25))
    assert_close(float(coding.mean_coding_length(x, eps=0.5)), 2 / 2 * math.log2(1 + 25 / 0.25))
    assert_close(coding.centred_coding_length(x, eps=0.5), coding.mean_coding_length(x, eps=0.5))  # nothing deviates from the mean


def test_a_length_is_n_plus_d_rates():
    X, _ = two_lines()
    bits = 64 * coding.coding_rate(X, eps=EPS) / math.log(2)
    assert_close(coding.coding_length(X, eps=EPS), bits)


def test_segmented_length_is_the_groups_lengths_and_the_bits_of_their_names():
    X, _ = two_lines()
    y = torch.tensor([0] * 10 + [3] * 50)  # groups 1 and 2 are empty
    parts = sum(coding.coding_length(X[y == j], eps=EPS) for j in (0, 3))
    names = -(10 * math.log2(10 / 60) + 50 * math.log2(50 / 60))
    assert_close(coding.segmented_coding_length(X, y, eps=EPS), parts + names)
    assert_close(coding.segmented_coding_length(X, torch.zeros(60).long(), eps=EPS), coding.coding_length(X, eps=EPS))


def test_soft_groups():
    X, y = two_lines()
    own = torch.nn.functional.one_hot(y).double()
    assert_close(coding.segmented_coding_length(X, own, eps=EPS), coding.segmented_coding_length(X, y, eps=EPS))
    lengths = [float(coding.segmented_coding_length(X, (1 - mix) * own + mix / 2, eps=EPS)) for mix in (0, 0.2, 0.5)]
    assert lengths == sorted(lengths)


def test_the_true_grouping_is_shortest():
    X, y = two_lines()
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    true, together, shuffled, split = (
        float(coding.segmented_coding_length(X, labels, eps=EPS)) for labels in (y, 0 * y, y[order], y + 2 * (torch.arange(60) % 2))
    )
    assert true < min(together, shuffled, split)


def test_centring_shortens_the_code_of_samples_far_from_zero():
    X, _ = two_lines()
    away = X + 10
    assert float(coding.centred_coding_length(away, eps=EPS)) < float(coding.coding_length(away, eps=EPS))
    deviations = away - away.mean(0)
    mean = 4 / 2 * math.log2(1 + float(away.mean(0).square().sum()) / EPS**2)
    assert_close(float(coding.centred_coding_length(away, eps=EPS)), mean + float(coding.coding_length(deviations, eps=EPS)))


def test_lengths_are_differentiable():
    X, y = two_lines(4, 3)
    X = (X + 0.1 * torch.randn(X.shape, dtype=X.dtype, generator=torch.Generator().manual_seed(0))).requires_grad_()
    assert torch.autograd.gradcheck(lambda X: coding.segmented_coding_length(X, y, eps=EPS), X)
    assert torch.autograd.gradcheck(lambda X: coding.centred_coding_length(X, eps=EPS), X)


@pytest.mark.parametrize("function", [coding.coding_length, coding.mean_coding_length, coding.centred_coding_length])
def test_bad_input_is_named(unchecked, function):
    for features, eps, message in (
        (torch.ones(3, 2), -1.0, "eps must be a positive distortion"),
        (torch.ones(0, 2), 1.0, "n, d >= 1"),
        (torch.ones(3, 2).half(), 1.0, "got torch.float16"),
        (torch.full((3, 2), math.nan), 1.0, "finite, got 6 NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            function(features, eps=eps)
