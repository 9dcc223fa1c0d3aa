"""Accuracy where digits are lost first: distortions far below the features, and classes of
vanishing weight.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.maths.linalg import orthonormalise
from transformer_theory.metrics import coding


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def of_known_spectrum(n, d, sizes, seed=0):
    left, right = (
        orthonormalise(normal(n, len(sizes), seed=seed)),
        orthonormalise(normal(d, len(sizes), seed=seed + 1)),
    )
    return (left * torch.tensor(sizes, dtype=torch.float64)) @ right.mT


SIZES = [4.0, 3.0, 2.0]


def exact_rate(n, d, eps):
    return 0.5 * sum(math.log1p(d / (n * eps**2) * size**2) for size in SIZES)


@each_case("eps", [1e-2, 1e-3, 2e-4])
@each_case(("n", "d"), [(30, 12), (8, 40)])
def test_a_small_distortion_of_features_of_less_than_full_rank(n, d, eps):
    X, y = of_known_spectrum(n, d, SIZES), torch.arange(n) % 2
    expected = torch.tensor(exact_rate(n, d, eps), dtype=torch.float64)
    certain = torch.nn.functional.one_hot(torch.zeros(n, dtype=torch.int64), 2).double()
    for rate in (
        coding.coding_rate(X, eps=eps),
        coding.class_coding_rates(X, 0 * y, eps=eps)[0],
        coding.class_coding_rates(X, certain, eps=eps)[0],
        coding.coding_rate(X @ orthonormalise(normal(d, d, seed=9)), eps=eps),
    ):
        assert_close(rate, expected, rtol=0, atol=1e-6)
    reduction = (
        coding.coding_rate(X, eps=eps) - sum(coding.coding_rate(X[y == j], eps=eps) for j in range(2)) / 2
    )
    assert_close(coding.rate_reduction(X, y, eps=eps), reduction, rtol=0, atol=1e-6)


@pytest.mark.parametrize("eps", [1e-3, 1e-4])
def test_gradients_where_classes_have_collapsed(eps):
    """X = U S V^T: the gradient of R is U [a s / (1 + a s^2)] V^T, and that of a class of one direction goes
    along it.
    """
    n, d = 30, 12
    left, right = orthonormalise(normal(n, 3)), orthonormalise(normal(d, 3, seed=1))
    sizes, alpha = torch.tensor(SIZES, dtype=torch.float64), d / (n * eps**2)
    X, y = (left * sizes) @ right.mT, torch.zeros(n, dtype=torch.int64)
    expected = (left * (alpha * sizes / (1 + alpha * sizes**2))) @ right.mT
    leaf = X.clone().requires_grad_()
    (automatic,) = torch.autograd.grad(coding.coding_rate(leaf, eps=eps), leaf)
    certain = torch.nn.functional.one_hot(y, 1).double()
    for gradient in (
        automatic,
        coding.coding_rate_gradient(X, eps=eps),
        coding.class_coding_rate_gradient(X, y, eps=eps),
        coding.class_coding_rate_gradient(X, certain, eps=eps),
    ):
        assert_close(gradient, expected, rtol=0, atol=1e-6)
    (soft,) = torch.autograd.grad(coding.class_coding_rate(leaf, certain, eps=eps), leaf)
    assert_close(soft, expected, rtol=0, atol=1e-6)
    duplicates = coding.unit_norm(normal(3, d, seed=4))[torch.arange(n) % 3]  # three collapsed classes
    gradient = coding.rate_reduction_gradient(duplicates, torch.arange(n) % 3, eps=eps)
    within = coding.class_coding_rate_gradient(duplicates, torch.arange(n) % 3, eps=eps)
    assert_close(within, duplicates * (alpha / (1 + alpha * n)), rtol=0, atol=1e-6)
    assert_close(gradient, coding.coding_rate_gradient(duplicates, eps=eps) - within, rtol=0, atol=1e-6)


def test_the_gradient_of_memberships_at_a_small_distortion():
    """d R_j / d w_i from x_i^T (I + a X^T W X)^-1 x_i, which for a class of one direction is 1 / (1 + a n)
    along it.
    """
    x = coding.unit_norm(normal(1, 5))
    X, memberships, eps = (
        x.expand(6, 5).contiguous(),
        torch.ones(6, 1, dtype=torch.float64).requires_grad_(),
        3e-5,
    )
    (gradient,) = torch.autograd.grad(coding.class_coding_rate(X, memberships, eps=eps), memberships)
    rate = 0.5 * math.log1p(5 / eps**2)
    assert_close(gradient, torch.full((6, 1), rate / 6, dtype=torch.float64), rtol=1e-6, atol=0)


def test_operators_at_a_small_distortion():
    X, eps = of_known_spectrum(30, 12, SIZES), 1e-4
    alpha = 12 / (30 * eps**2)
    E = coding.expansion_operator(X, eps=eps) / alpha
    assert_close(E @ E, E, rtol=0, atol=1e-6)  # the projection on what X leaves free
    assert_close(E.trace(), torch.tensor(9.0, dtype=torch.float64), rtol=0, atol=1e-6)
    assert float((X @ E).abs().max()) < 1e-6


RANK_ERROR = r"less than full rank must have .*at most 1e\+10.* eps"
DEFICIENT = of_known_spectrum(30, 12, SIZES)
HALVES = torch.arange(30) % 2


@each_case(
    "function",
    [
        lambda eps: coding.coding_rate(DEFICIENT, eps=eps),
        lambda eps: coding.class_coding_rates(DEFICIENT, HALVES, eps=eps),
        lambda eps: coding.class_coding_rates(
            DEFICIENT, torch.full((30, 2), 0.5, dtype=torch.float64), eps=eps
        ),
        lambda eps: coding.coding_rate_gradient(DEFICIENT, eps=eps),
        lambda eps: coding.class_coding_rate_gradient(DEFICIENT, HALVES, eps=eps),
        lambda eps: coding.class_coding_rate_gradient(
            DEFICIENT, torch.full((30, 2), 0.5, dtype=torch.float64), eps=eps
        ),
        lambda eps: coding.rate_reduction_gradient(DEFICIENT, HALVES, eps=eps),
        lambda eps: coding.compression_operators(DEFICIENT, HALVES, eps=eps),
        lambda eps: coding.coding_length(DEFICIENT, eps=eps),
    ],
    ids=range(9),
)
def test_every_function_refuses_what_rounding_would_spoil(function):
    """One rule for all, that of ReduNet and SecondMoments: 1e10, or full rank on the smaller side."""
    assert bool(torch.isfinite(function(1e-4)).all())
    with pytest.raises(ValueError, match=RANK_ERROR):
        function(1e-7)


def test_features_of_full_rank_may_have_any_distortion():
    X, y = normal(40, 3), torch.arange(40) % 4
    for eps in (1e-7, 1e-30):
        rates = [
            torch.linalg.svdvals(x).log().sum() + 1.5 * math.log(3 / (len(x) * eps**2))
            for x in (X, *(X[y == j] for j in range(4)))
        ]
        assert_close(coding.rate_reduction(X, y, eps=eps), rates[0] - sum(rates[1:]) / 4, rtol=0, atol=1e-10)
        inverses = [x @ torch.linalg.inv(x.mT @ x) for x in (X, *(X[y == j] for j in range(4)))]
        expected = inverses[0].clone()
        for j in range(4):
            expected[y == j] -= inverses[1 + j] / 4
        assert_close(coding.rate_reduction_gradient(X, y, eps=eps), expected, rtol=1e-9, atol=1e-12)
        soft = torch.nn.functional.one_hot(y, 4).double()
        assert_close(coding.rate_reduction_gradient(X, soft, eps=eps), expected, rtol=1e-9, atol=1e-12)


def test_moments_refuse_what_they_cannot_resolve():
    full = normal(60, 5)
    for X, eps in ((DEFICIENT, 1e-3), (full, 1e-3), (full, 1e-8)):
        state = coding.SecondMoments()
        state.update(X, torch.zeros(len(X), dtype=torch.int64))
        assert_close(state.coding_rate(eps=eps), coding.coding_rate(X, eps=eps), rtol=0, atol=1e-6)
    for X, eps in ((DEFICIENT, 1e-7), (normal(5, 40), 1e-8)):
        state = coding.SecondMoments()
        state.update(X, torch.zeros(len(X), dtype=torch.int64))
        with pytest.raises(ValueError, match=RANK_ERROR):
            state.coding_rate(eps=eps)


@each_case(
    ("dtype", "lower"), [(torch.float32, 60), (torch.float32, 95), (torch.float64, 690), (torch.float64, 730)]
)
def test_a_class_of_vanishing_weight_counts_as_absent(dtype, lower):
    """Memberships down to the smallest numbers there are: the value is that without the class, and all
    gradients are finite.
    """
    X, y = coding.unit_norm(normal(40, 6, dtype=dtype)), torch.arange(40) % 2
    scores = 200.0 * torch.nn.functional.one_hot(y, 3).to(dtype)
    scores[:, 2] = 200.0 - lower
    scores = scores.requires_grad_()
    memberships = scores.softmax(1)
    assert 0 < float(memberships[:, 2].detach().max()) < 1e-25
    value = coding.rate_reduction(X, memberships, eps=0.5)
    assert_close(value, coding.rate_reduction(X, y, eps=0.5), rtol=1e-4, atol=0)
    (gradient,) = torch.autograd.grad(value, scores)
    assert bool(torch.isfinite(gradient).all())
    state = coding.SecondMoments()
    state.update(X, memberships)
    assert_close(state.rate_reduction(eps=0.5).to(dtype), value.detach(), rtol=1e-4, atol=0)


def test_the_gradient_of_a_small_class_is_the_slope():
    X, scores = coding.unit_norm(normal(30, 4)), normal(30, 3, seed=2)
    scores[:, 2] -= 40

    def value(scores):
        return coding.class_coding_rate(X, scores.softmax(1), eps=0.5)

    leaf = scores.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(leaf), leaf)
    own = scores.softmax(1)[:, 2]
    rate = 0.5 * torch.logdet(torch.eye(4, dtype=X.dtype) + 16 / own.sum() * X.mT @ torch.diag(own) @ X)
    inverse = torch.linalg.inv(torch.eye(4, dtype=X.dtype) + 16 / own.sum() * X.mT @ torch.diag(own) @ X)
    pulls = ((X @ inverse) * X).sum(1)
    slope = rate + 8 * pulls - 8 * (own @ pulls) / own.sum()  # of n_j R_j with respect to each weight
    others = scores[:, :2].softmax(1)
    hard = value(torch.cat([scores[:, :2], torch.full((30, 1), -300.0, dtype=X.dtype)], 1))
    assert_close(value(scores), hard, rtol=1e-12, atol=0)
    leaf_two = others.clone().requires_grad_()
    (lost,) = torch.autograd.grad(coding.class_coding_rate(X, leaf_two, eps=0.5), leaf_two)
    expected = own * (slope / 30 - (others * lost).sum(1))
    assert_close(gradient[:, 2], expected, rtol=1e-6, atol=0)


LABELS, X = torch.arange(40) % 4, normal(40, 3)
FLAT = torch.cat([X[:, :2], X[:, :1] + X[:, 1:2]], 1)  # rank 2


@each_case(
    ("call", "message"),
    [
        (lambda f: f(X, LABELS + 10**9, eps=1.0), r"got 1000000003 for 40 samples; relabel"),
        (lambda f: f(X, LABELS[:, None], eps=1.0), r"shape \[n\], got \[40, 1\]; pass labels.squeeze\(1\)"),
        (lambda f: f(X, LABELS.double(), eps=1.0), "labels must be integers, got torch.float64"),
        (lambda f: f(X, [*"ab"] * 19 + [3, 4], eps=1.0), "one integer or word per sequence, got list"),
        (lambda f: f(X, LABELS, eps=None), "eps must be .* got None"),
        (lambda f: f(X, LABELS, eps="a"), "eps must be .* got 'a'"),
        (lambda f: f(X, LABELS, eps=1e-200), "eps must be .* got 1e-200"),
        (lambda f: f(FLAT, LABELS, eps=1e-30), "take a larger eps"),
        (lambda f: f(X.float(), LABELS, eps=1e-30), "take a larger eps"),
        (lambda f: f(X, LABELS, eps=math.inf), "eps must be .* got inf"),
    ],
)
@each_case(
    "function",
    [
        coding.rate_reduction,
        coding.class_coding_rates,
        coding.rate_reduction_gradient,
        coding.compression_operators,
        coding.segmented_coding_length,
    ],
)
def test_invalid_labels_and_distortions_are_named(unchecked, function, call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(function)
    assert "\n" not in str(caught.value)


@each_case(
    ("call", "message"),
    [
        (lambda: coding.coding_rate(FLAT, eps=1e-30), "take a larger eps"),
        (lambda: coding.coding_rate(X.float(), eps=1e-30), "larger eps"),
        (
            lambda: coding.subspace_coding_rate(X.float(), normal(2, 3, 1), eps=1.0),
            "got torch.float32 and torch.float64",
        ),
        (lambda: coding.SecondMoments().update(X, LABELS + 10**9), "got 1000000003 for 40 samples"),
    ],
)
def test_other_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_many_empty_classes_are_accepted():
    assert coding.class_coding_rates(X, LABELS + 20_000, eps=1.0).shape == (20_004,)


def test_a_rate_reduction_falls_below_zero_by_rounding_only():
    """At a large distortion ΔR is smaller than the rounding of float32: 6e-8 a dimension, as the docstring
    says.
    """
    X, y = coding.unit_norm(normal(1000, 128)).float(), torch.arange(1000) % 10
    exact = float(coding.rate_reduction(X.double(), y, eps=100.0))
    assert 0 < exact < 1e-6
    assert abs(float(coding.rate_reduction(X, y, eps=100.0)) - exact) < 1.5 * 6e-8 * 128


SCALES = [(torch.float32, scale) for scale in (1e-35, 1e-25, 1e25, 1e35)] + [
    (torch.float64, scale) for scale in (1e-90, 1e90)
]


@each_case(("dtype", "scale"), SCALES)
@each_case("soft", [False, True], ids=["labels", "memberships"])
@each_case(("n", "d"), [(20, 6), (6, 20)])
def test_features_and_distortion_of_one_scale_have_the_rates_of_ordinary_ones(dtype, scale, soft, n, d):
    X, eps = normal(n, d), 0.5
    labels = normal(n, 2, seed=1).softmax(1) if soft else torch.arange(n) % 2
    if soft:
        labels = labels.to(dtype)
    tiny = (scale * X).to(dtype)
    rtol = 1e-4 if dtype == torch.float32 else 1e-9

    def close(found, expected, size=None):
        size = float(expected.abs().max()) if size is None else size
        assert_close(found.double(), expected, rtol=0, atol=rtol * size)

    with torch.no_grad():
        eye = torch.eye(d, dtype=torch.float64)
        shares = labels.double() if soft else torch.nn.functional.one_hot(labels).double()
        moments = [X.mT @ (w[:, None] * X) * d / (w.sum() * eps**2) for w in shares.mT]
        moment = X.mT @ X * d / (n * eps**2)
        class_rates = torch.stack([0.5 * torch.linalg.slogdet(eye + each).logabsdet for each in moments])
        rate = 0.5 * torch.linalg.slogdet(eye + moment).logabsdet
        gradient = d / (n * eps**2) * X @ torch.linalg.inv(eye + moment)
        class_gradient = sum(
            w.sum() / n * w[:, None] * X @ torch.linalg.inv(eye + each) * d / (w.sum() * eps**2)
            for w, each in zip(shares.mT, moments)
        )
    close(coding.coding_rate(tiny, eps=scale * eps), rate)
    close(coding.class_coding_rates(tiny, labels, eps=scale * eps), class_rates)
    close(coding.coding_rate_gradient(tiny, eps=scale * eps) * scale, gradient)
    close(coding.class_coding_rate_gradient(tiny, labels, eps=scale * eps) * scale, class_gradient)
    # the two gradients nearly cancel, so the error is measured by the first one
    difference = coding.rate_reduction_gradient(tiny, labels, eps=scale * eps) * scale
    close(difference, gradient - class_gradient, float(gradient.abs().max()))


@each_case("n", [50, 4])
@each_case("scale", [1e-2, 1e-4, 1e-7])
def test_tiny_features_have_a_rate_to_all_digits(n, scale):
    X, d, labels = normal(n, 8), 8, torch.arange(n) % 2
    expected = 0.5 * (d / (n * 0.25) * (scale * torch.linalg.svdvals(X)).square()).log1p().sum()  # eps = 1/2
    tiny = (scale * X).float()
    assert_close(coding.coding_rate(tiny, eps=0.5).double(), expected, rtol=2e-6, atol=0)
    parts = [coding.coding_rate((scale * X)[labels == j], eps=0.5) for j in (0, 1)]
    assert_close(
        coding.class_coding_rates(tiny, labels, eps=0.5).double(), torch.stack(parts), rtol=2e-6, atol=0
    )
    moments = coding.SecondMoments()
    moments.update(scale * X, torch.zeros(n, dtype=torch.int64))
    assert float(moments.coding_rate(eps=0.5)) == pytest.approx(float(expected), rel=1e-12)


@each_case(
    ("dtype", "scale", "eps"),
    [
        (torch.float32, 1e30, 1.0),
        (torch.float32, 3e37, 1e-20),
        (torch.float32, 1e-30, 1e-31),
        (torch.float32, 1e-3, 10.0),
        (torch.float64, 1e200, 1.0),
        (torch.float64, 1e300, 1e-90),
        (torch.float64, 1e-95, 1e-96),
    ],
)
def test_bits_for_the_mean_at_any_scale(dtype, scale, eps):
    mean = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    deviations = torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float64) * torch.tensor(
        [[-1.0], [0.0], [1.0]], dtype=torch.float64
    )
    X = (scale * (mean + deviations)).to(dtype)
    ratio = math.log(5.25) / 2 + math.log(scale) - math.log(eps)  # log of ||mean|| / eps
    expected = 1.5 * (math.log1p(math.exp(2 * ratio)) if ratio < 300 else 2 * ratio) / math.log(2)
    inputs = X.requires_grad_()
    value = coding.mean_coding_length(inputs, eps=eps)
    assert float(value) == pytest.approx(expected, rel=1e-5)
    (gradient,) = torch.autograd.grad(value, inputs)
    # The derivative by the mean is 3 mu / (eps^2 + |mu|^2) / log 2; each sample has a third of it.
    size = 1.0 / (5.25 + (eps / scale) ** 2) / math.log(2)
    assert_close(gradient.double() * scale, (size * mean).expand(3, 3), rtol=1e-4, atol=0)


@pytest.mark.usefixtures("unchecked")
def test_vectors_without_direction_are_refused():
    for bad in (torch.tensor([[math.inf, 1.0]]), torch.tensor([[math.nan, 1.0]])):
        with pytest.raises(ValueError, match="features must be finite"):
            coding.unit_norm(bad)
    with pytest.raises(ValueError, match="d >= 1"):
        coding.unit_norm(torch.zeros(3, 0))
    assert torch.equal(coding.unit_norm(torch.zeros(2, 3)), torch.zeros(2, 3))
