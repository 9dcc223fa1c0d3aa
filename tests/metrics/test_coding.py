"""Coding rates and coding lengths: closed forms, the textbook formula, invariances, arrays, and bad input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.rate_reduction import flat_features, flat_rate, textbook_class_rate
from transformer_theory import metrics
from transformer_theory.metrics import coding

EPS, SMALL_EPS = 0.5, 0.1


def sample(n=60, d=7, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    labels[0] = classes - 1
    return torch.randn(n, d, dtype=torch.float64, generator=generator), labels


def test_rate_of_one_vector():
    x = torch.tensor([[3.0, 4.0, 0.0]], dtype=torch.float64)
    assert_close(float(coding.coding_rate(x, eps=EPS)), 0.5 * math.log(1 + 3 * 25 / EPS**2))


@pytest.mark.parametrize(("n", "d", "rank"), [(20, 6, 3), (5, 30, 5), (40, 8, 8)])
def test_rate_of_a_flat_spectrum(generator, n, d, rank):
    X = flat_features(n, d, rank, generator=generator)
    assert_close(float(coding.coding_rate(X, eps=EPS)), flat_rate(d, rank, EPS), rtol=1e-12, atol=0)


def test_eps_is_the_distortion_and_is_squared_inside(generator):
    X = flat_features(20, 6, 2, generator=generator)
    assert_close(float(coding.coding_rate(X, eps=0.1)), math.log(1 + 6 / (2 * 0.01)))


def test_class_rates_are_the_rates_of_the_classes():
    X, y = sample()
    rates = coding.class_coding_rates(X, y, eps=EPS)
    for j, rate in enumerate(rates):
        assert_close(rate, coding.coding_rate(X[y == j], eps=EPS))
    weights = torch.bincount(y) / len(y)
    assert_close(coding.class_coding_rate(X, y, eps=EPS), weights.double() @ rates, rtol=1e-6, atol=0)


@given(n=st.integers(2, 60), d=st.integers(1, 12), classes=st.integers(1, 8), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_class_rate_agrees_with_the_membership_matrices_of_the_papers(n, d, classes, seed):
    X, y = sample(n, d, classes, seed)
    assert_close(
        coding.class_coding_rate(X, y, eps=EPS), textbook_class_rate(X, y, EPS), rtol=1e-10, atol=1e-12
    )


def test_classes_of_very_different_sizes_and_gaps():
    X, _ = sample(300, 9)
    y = torch.zeros(300, dtype=torch.int64)
    y[:3], y[3:4], y[4:40] = 2, 5, 7
    y = y[torch.randperm(300, generator=torch.Generator().manual_seed(3))]
    rates = coding.class_coding_rates(X, y, eps=EPS)
    assert rates.shape == (8,)
    assert rates[[1, 3, 4, 6]].tolist() == [0.0] * 4
    for j in (0, 2, 5, 7):
        assert_close(rates[j], coding.coding_rate(X[y == j], eps=EPS))


def test_gradients():
    X, y = sample(14, 4, 3)
    X.requires_grad_()
    assert torch.autograd.gradcheck(lambda X: coding.rate_reduction(X, y, eps=EPS), X)
    assert torch.autograd.gradgradcheck(lambda X: coding.rate_reduction(X, y, eps=EPS), X)


def test_rate_reduction_is_rotation_and_permutation_invariant():
    X, y = sample()
    value = coding.rate_reduction(X, y, eps=EPS)
    rotation = torch.linalg.qr(sample(7, 7)[0]).Q
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(1))
    assert_close(coding.rate_reduction(X @ rotation, y, eps=EPS), value)
    assert_close(coding.rate_reduction(X[order], y[order], eps=EPS), value)
    assert_close(coding.rate_reduction(X, 3 - y, eps=EPS), value)


@given(
    n=st.integers(2, 40),
    d=st.integers(1, 10),
    classes=st.integers(1, 5),
    seed=st.integers(0, 1000),
    eps=st.floats(0.01, 10),
)
@settings(max_examples=40, deadline=None)
def test_rate_reduction_is_between_zero_and_the_rate(n, d, classes, seed, eps):
    X, y = sample(n, d, classes, seed)
    value = float(coding.rate_reduction(X, y, eps=eps))
    assert -1e-10 <= value <= float(coding.coding_rate(X, eps=eps)) + 1e-10


def test_float32_agrees_with_float64():
    X, y = sample(500, 32, 10)
    assert coding.rate_reduction(X.float(), y, eps=0.1).dtype == torch.float32
    assert_close(
        coding.class_coding_rates(X.float(), y, eps=0.1).double(),
        coding.class_coding_rates(X, y, eps=0.1),
        rtol=1e-5,
        atol=0,
    )
    assert_close(
        coding.rate_reduction(X.float(), y, eps=0.1).double(),
        coding.rate_reduction(X, y, eps=0.1),
        rtol=1e-4,
        atol=0,
    )


def test_float32_keeps_small_rates_of_ill_conditioned_features():
    X, y = sample(500, 32, 10)
    X = X * torch.logspace(0, -6, 32, dtype=X.dtype)
    for eps in (1.0, 1e-2, 1e-4):
        assert_close(
            coding.coding_rate(X.float(), eps=eps).double(), coding.coding_rate(X, eps=eps), rtol=1e-4, atol=0
        )
        assert_close(
            coding.class_coding_rates(X.float(), y, eps=eps).double(),
            coding.class_coding_rates(X, y, eps=eps),
            rtol=1e-4,
            atol=0,
        )


def test_batches_of_features():
    X = torch.stack([sample(seed=s)[0] for s in range(3)])
    assert_close(coding.coding_rate(X, eps=EPS), torch.stack([coding.coding_rate(x, eps=EPS) for x in X]))


def test_subspace_rate_is_the_sum_over_projections(generator):
    X = torch.randn(2, 10, 8, dtype=torch.float64, generator=generator)
    bases = torch.randn(3, 8, 4, dtype=torch.float64, generator=generator)
    expected = [sum(float(coding.coding_rate(x @ U, eps=EPS)) for U in bases) for x in X]
    assert_close(coding.subspace_coding_rate(X, bases, eps=EPS), torch.tensor(expected, dtype=torch.float64))


def test_unit_norm_at_the_ends_of_the_number_line():
    X = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e-200, 4e-200], [3e200, -4e200]], dtype=torch.float64)
    expected = torch.tensor([[0.6, 0.8], [0, 0], [0.6, 0.8], [0.6, -0.8]], dtype=torch.float64)
    assert_close(coding.unit_norm(X), expected)


@each_case("dtype", ["float64", "float32", "float16", "int32"])
def test_arrays_lists_and_integers_are_converted_without_loss(unchecked, dtype):
    features, labels = np.random.default_rng(0).integers(-5, 6, (12, 3)).astype(dtype), np.arange(12) % 3
    X, y = torch.from_numpy(features.astype("float64")), torch.from_numpy(labels)
    expected = torch.float32 if dtype in ("float32", "float16") else torch.float64
    assert metrics.coding_rate(features, eps=EPS).dtype == expected
    functions = (
        metrics.class_coding_rate,
        metrics.rate_reduction,
        metrics.segmented_coding_length,
        metrics.rate_reduction_gradient,
    )
    for classes in (labels, labels.astype("int16"), labels.tolist(), y):
        for function in functions:
            value = function(features, classes, eps=EPS)
            assert value.dtype == expected
            assert_close(value.double(), function(X, y, eps=EPS), rtol=1e-4, atol=1e-5)
    memberships = np.full((12, 2), 0.5)
    assert_close(
        metrics.class_coding_rates(features, memberships, eps=EPS).double(),
        metrics.coding_rate(X, eps=EPS).expand(2),
        rtol=1e-4,
        atol=0,
    )
    assert_close(metrics.unit_norm(features).double(), metrics.unit_norm(X), rtol=1e-3, atol=1e-6)
    state = metrics.SecondMoments()
    state.update(features, labels)
    assert_close(state.coding_rate(eps=EPS), metrics.coding_rate(X, eps=EPS))
    assert_close(
        metrics.rate_reduction(labels=labels, features=features, eps=EPS),
        metrics.rate_reduction(features, labels, eps=EPS),
    )


@pytest.mark.parametrize(
    ("features", "name"),
    [(torch.ones(3, 2) > 0, "features"), (torch.ones(3, 2) * 1j, "features"), ("ab", "features")],
)
def test_wrong_types_are_named(unchecked, features, name):
    for function in (coding.coding_rate, coding.unit_norm, coding.coding_length):
        with pytest.raises(TypeError, match=f"{name} must"):
            function(features, **({} if function is coding.unit_norm else {"eps": 1.0}))


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
    # nothing deviates from the mean
    assert_close(coding.centred_coding_length(x, eps=0.5), coding.mean_coding_length(x, eps=0.5))


def test_a_length_is_n_plus_d_rates():
    X, _ = two_lines()
    bits = 64 * coding.coding_rate(X, eps=SMALL_EPS) / math.log(2)
    assert_close(coding.coding_length(X, eps=SMALL_EPS), bits)


def test_segmented_length_is_the_groups_lengths_and_the_bits_of_their_names():
    X, _ = two_lines()
    y = torch.tensor([0] * 10 + [3] * 50)  # groups 1 and 2 are empty
    parts = sum(coding.coding_length(X[y == j], eps=SMALL_EPS) for j in (0, 3))
    names = -(10 * math.log2(10 / 60) + 50 * math.log2(50 / 60))
    assert_close(coding.segmented_coding_length(X, y, eps=SMALL_EPS), parts + names)
    assert_close(
        coding.segmented_coding_length(X, torch.zeros(60).long(), eps=SMALL_EPS),
        coding.coding_length(X, eps=SMALL_EPS),
    )


def test_soft_groups():
    X, y = two_lines()
    own = torch.nn.functional.one_hot(y).double()
    assert_close(
        coding.segmented_coding_length(X, own, eps=SMALL_EPS),
        coding.segmented_coding_length(X, y, eps=SMALL_EPS),
    )
    lengths = [
        float(coding.segmented_coding_length(X, (1 - mix) * own + mix / 2, eps=SMALL_EPS))
        for mix in (0, 0.2, 0.5)
    ]
    assert lengths == sorted(lengths)


def test_the_true_grouping_is_shortest():
    X, y = two_lines()
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    true, together, shuffled, split = (
        float(coding.segmented_coding_length(X, labels, eps=SMALL_EPS))
        for labels in (y, 0 * y, y[order], y + 2 * (torch.arange(60) % 2))
    )
    assert true < min(together, shuffled, split)


def test_centring_shortens_the_code_of_samples_far_from_zero():
    X, _ = two_lines()
    away = X + 10
    assert float(coding.centred_coding_length(away, eps=SMALL_EPS)) < float(
        coding.coding_length(away, eps=SMALL_EPS)
    )
    deviations = away - away.mean(0)
    mean = 4 / 2 * math.log2(1 + float(away.mean(0).square().sum()) / SMALL_EPS**2)
    assert_close(
        float(coding.centred_coding_length(away, eps=SMALL_EPS)),
        mean + float(coding.coding_length(deviations, eps=SMALL_EPS)),
    )


def test_lengths_are_differentiable():
    X, y = two_lines(4, 3)
    X = (
        X + 0.1 * torch.randn(X.shape, dtype=X.dtype, generator=torch.Generator().manual_seed(0))
    ).requires_grad_()
    assert torch.autograd.gradcheck(lambda X: coding.segmented_coding_length(X, y, eps=SMALL_EPS), X)
    assert torch.autograd.gradcheck(lambda X: coding.centred_coding_length(X, eps=SMALL_EPS), X)


LABELS = torch.tensor([0, 1, 1])


@each_case(
    ("call", "message"),
    [
        (lambda: coding.coding_rate(torch.ones(3, 2), eps=0.0), "eps must be a positive distortion"),
        (lambda: coding.coding_rate(torch.ones(3, 2), eps=-1.0), "got -1"),
        (lambda: coding.coding_rate(torch.ones(3, 2), eps=math.nan), "got nan"),
        (lambda: coding.coding_rate(torch.ones(0, 2), eps=1.0), "n, d >= 1"),
        (
            lambda: coding.coding_rate(torch.tensor([[1.0, math.inf]]), eps=1.0),
            "1 NaN or infinite values of 2",
        ),
        (lambda: coding.rate_reduction(torch.ones(3, 2), LABELS[:2], eps=1.0), r"got \[3, 2\] and \[2\]"),
        (
            lambda: coding.rate_reduction(torch.ones(3, 2), LABELS.float(), eps=1.0),
            r"integers, got torch.float32; convert with .long\(\)",
        ),
        (lambda: coding.rate_reduction(torch.ones(3, 2), LABELS - 9, eps=1.0), "got 3 negative ones"),
        (lambda: coding.rate_reduction_gradient(torch.ones(3, 2), LABELS - 1, eps=1.0), "got -1; relabel"),
        (lambda: coding.rate_reduction(torch.full((3, 2), math.nan), LABELS, eps=1.0), "finite"),
        (
            lambda: coding.subspace_coding_rate(torch.ones(3, 2), torch.ones(2, 3, 1), eps=1.0),
            r"d = 2, got \[2, 3, 1\]",
        ),
        (lambda: coding.mean_coding_length(torch.full((3, 2), math.nan), eps=1.0), "6 NaN"),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()
