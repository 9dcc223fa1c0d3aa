"""The MCR² loss: value, gradients and their order, the two weights, ranks, memory, and bad input."""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.ranks import on_two_ranks
from tests.problems.rate_reduction import MCR2_OPTIMUM, textbook_class_rate
from transformer_theory.metrics.coding import coding_rate, rate_reduction, unit_norm
from transformer_theory.metrics.coding.gradients import rates_and_gradient
from transformer_theory.theories.rate_reduction.evaluation import nearest_subspace
from transformer_theory.theories.rate_reduction.loss import MaximalCodingRateReduction, union_of_ranks

EPS = 0.5**0.5


def batch(n=60, d=8, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = unit_norm(torch.randn(n, d, dtype=torch.float64, generator=generator))
    return features, torch.randint(classes, (n,), generator=generator)


def textbook(X, y, gamma1, gamma2):
    alpha = X.shape[1] / (len(X) * EPS**2)
    inside = torch.eye(X.shape[1], dtype=X.dtype) + gamma1 * alpha * X.mT @ X
    return textbook_class_rate(X, y, EPS) - gamma2 / 2 * torch.linalg.slogdet(inside).logabsdet


# classes larger and smaller than d, all fewer than d
SHAPES = [(60, 8, 4), (12, 30, 3), (90, 8, 30), (200, 8, 2), (1, 5, 1), (8, 8, 1)]


@each_case(("gamma1", "gamma2"), [(1.0, 1.0), (20.0, 0.05), (0.3, 2.0)])
@each_case(("n", "d", "classes"), SHAPES)
def test_value_and_gradient_are_those_of_the_membership_matrices(n, d, classes, gamma1, gamma2):
    X, y = batch(n, d, classes)
    X.requires_grad_()
    parts = MaximalCodingRateReduction(eps=EPS, gamma1=gamma1, gamma2=gamma2)(X, y)
    expected = textbook(X, y, gamma1, gamma2)
    assert_close(parts.loss, expected, rtol=1e-10, atol=1e-12)
    (ours,), (theirs,) = (torch.autograd.grad(3 * each, X) for each in (parts.loss, expected))
    assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_parts_add_up_and_only_the_loss_has_a_gradient():
    X, y = batch()
    X.requires_grad_()
    parts = MaximalCodingRateReduction(eps=EPS, gamma1=20, gamma2=0.05)(X, y)
    assert_close(parts.loss, parts.class_rate - 0.05 * parts.expansion)
    assert_close(parts.reduction, parts.rate - parts.class_rate)
    assert_close(parts.reduction, rate_reduction(X, y, eps=EPS).detach())
    assert_close(parts.rate, coding_rate(X, eps=EPS).detach())
    assert parts.loss.requires_grad
    assert not any(
        part.requires_grad for part in (parts.reduction, parts.rate, parts.class_rate, parts.expansion)
    )
    assert_close(-MaximalCodingRateReduction(eps=EPS)(X, y).loss, rate_reduction(X, y, eps=EPS))


@pytest.mark.parametrize("sizes", [(40, 40, 10), (3, 30, 31), (1, 2, 57)])
def test_classes_of_very_different_sizes(sizes):
    X, _ = batch(sum(sizes), 8)
    y = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))[
        torch.randperm(len(X), generator=torch.Generator().manual_seed(1))
    ]
    X.requires_grad_()
    ours, theirs = (
        torch.autograd.grad(each, X)[0]
        for each in (MaximalCodingRateReduction(eps=EPS)(X, y).loss, textbook(X, y, 1, 1))
    )
    assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_second_derivatives():
    X, y = batch(9, 4, 3)
    raw = X.requires_grad_()
    loss = MaximalCodingRateReduction(eps=EPS, gamma1=2, gamma2=0.7)
    assert torch.autograd.gradcheck(lambda raw: loss(unit_norm(raw), y).loss, raw)
    assert torch.autograd.gradgradcheck(lambda raw: loss(unit_norm(raw), y).loss, raw)


def test_an_empty_class_changes_nothing():
    X, y = batch(40, 8, 3)
    loss = MaximalCodingRateReduction()
    assert_close(loss(X, y).loss, loss(X, y + (y > 0) * 5).loss)


def test_soft_memberships_are_labels_where_they_are_certain():
    X, y = batch()
    loss = MaximalCodingRateReduction(gamma1=20, gamma2=0.05)
    grads = []
    for labels in (y, torch.nn.functional.one_hot(y).double()):
        leaf = X.clone().requires_grad_()
        parts = loss(leaf, labels)
        grads.append((parts.loss.detach(), *torch.autograd.grad(parts.loss, leaf)))
    assert_close(grads[0], grads[1], rtol=1e-10, atol=1e-12)


def test_uncertain_memberships_lose_part_of_the_reduction():
    X, y = batch()
    own = torch.nn.functional.one_hot(y).double()
    reductions = [
        float(MaximalCodingRateReduction()(X, (1 - mix) * own + mix / 4).reduction)
        for mix in (0, 0.3, 0.7, 1.0)
    ]
    assert reductions == sorted(reductions, reverse=True)
    assert abs(reductions[-1]) < 1e-12


def test_float32_keeps_the_gradient_where_the_data_are_ill_conditioned():
    X, y = batch(300, 16, 3)
    X = unit_norm(X * torch.logspace(0, -4, 16, dtype=X.dtype))
    for eps in (EPS, 0.05, 1e-3):  # below 0.04 the determinants are taken in float64
        exact = rates_and_gradient(X, y, eps=eps)
        single = rates_and_gradient(X.float(), y, eps=eps)
        assert single.gradient.dtype == torch.float32
        assert_close(single.rate.double(), exact.rate, rtol=1e-4, atol=0)
        error = torch.linalg.norm(single.gradient.double() - exact.gradient) / torch.linalg.norm(
            exact.gradient
        )
        assert float(error) < 1e-2, (eps, float(error))


def test_between_the_passes_one_gradient_is_kept():
    X, y = batch(500, 16, 50)
    X.requires_grad_()
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        parts = MaximalCodingRateReduction()(X, y)
    numbers = sum(t.numel() for t in kept.values() if t.is_floating_point() and t.data_ptr() != X.data_ptr())
    assert numbers == X.numel()
    assert parts.loss.requires_grad


def test_training_reaches_the_known_optimum(unchecked):
    y = torch.arange(60) % 3
    raw = torch.randn(
        60, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    loss = MaximalCodingRateReduction(eps=EPS)
    optimiser = torch.optim.Adam([raw], lr=0.05)
    for _ in range(250):  # 1e-10 from the optimum
        optimiser.zero_grad()
        loss(unit_norm(raw), y).loss.backward()
        optimiser.step()
    reached = float(loss(unit_norm(raw), y).reduction)
    assert MCR2_OPTIMUM - 1e-6 < reached < MCR2_OPTIMUM + 1e-9


def test_autocast_changes_nothing():
    X, y = batch()
    loss = MaximalCodingRateReduction()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(X.float(), y).loss
    assert torch.equal(inside, loss(X.float(), y).loss)


def gradient_of_union(rank):
    X, y = batch(50, 6, 3)
    own = slice(0, 20) if rank == 0 else slice(20, 50)
    weight = torch.eye(6, dtype=X.dtype).requires_grad_()
    parts = MaximalCodingRateReduction()(*union_of_ranks(unit_norm(X[own] @ weight), y[own]))
    (gradient,) = torch.autograd.grad(parts.loss, weight)
    torch.distributed.all_reduce(gradient)
    return parts.loss.detach(), gradient / 2  # the mean over ranks, as DistributedDataParallel takes it


def test_the_loss_of_two_ranks_is_that_of_their_union(tmp_path):
    X, y = batch(50, 6, 3)
    weight = torch.eye(6, dtype=X.dtype).requires_grad_()
    loss = MaximalCodingRateReduction()(unit_norm(X @ weight), y).loss
    (expected,) = torch.autograd.grad(loss, weight)
    for value, gradient in on_two_ranks(gradient_of_union, tmp_path):
        assert_close(value, loss.detach())
        assert_close(gradient, expected)


ROWS = torch.eye(3)
LABELS = torch.tensor([0, 1, 1])
LOSS = MaximalCodingRateReduction()


@each_case(
    ("call", "message"),
    [
        (lambda: LOSS(2 * ROWS, LABELS), "norms from 2 to 2"),
        (lambda: LOSS(torch.zeros(3, 3), LABELS), "norms from 0 to 0"),
        (lambda: LOSS(torch.cat([ROWS[:2], torch.zeros(1, 3)]), LABELS), "from 0 to 1"),
        (lambda: LOSS(torch.full((3, 3), math.nan), LABELS), "finite rows of norm 1"),
        (
            lambda: LOSS(ROWS.half(), LABELS),
            r"float32 or float64, got torch.float16; convert with .float\(\)",
        ),
        (lambda: LOSS(ROWS.bfloat16(), LABELS), "got torch.bfloat16"),
        (lambda: LOSS(ROWS, LABELS.float()), r"integers, got torch.float32; convert with .long\(\)"),
        (lambda: LOSS(ROWS, LABELS - 9), "got 3 negative ones"),
        (lambda: LOSS(ROWS, LABELS[:2]), r"got \[3, 3\] and \[2\]"),
        (lambda: LOSS(ROWS, torch.full((3, 2), 0.4)), "sum to 1, got one that is 0.2 off"),
        (lambda: LOSS(ROWS, torch.tensor([[1.5, -0.5]] * 3)), ">= 0, got a negative"),
        (lambda: LOSS(ROWS, torch.full((3, 2), math.nan)), ">= 0, got a negative or NaN"),
        (
            lambda: LOSS(ROWS, torch.full((3, 2), 0.5).half()),
            r"memberships \[n, k\] must be float32 or float64, got torch.float16",
        ),
        (lambda: LOSS(torch.zeros(0, 3), LABELS[:0]), "n, d >= 1"),
        (
            lambda: MaximalCodingRateReduction(eps=0.0),
            "eps must be positive and finite, got 0.0; it is the distortion",
        ),
        (lambda: MaximalCodingRateReduction(eps=-1.0), "got -1"),
        (lambda: MaximalCodingRateReduction(gamma1=0.0), "gamma1 must be positive and finite, got 0"),
        (lambda: MaximalCodingRateReduction(gamma2=math.inf), "gamma2 must be positive and finite, got inf"),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 1e-30), (torch.float32, 1e30), (torch.float64, 1e-250)]
)
def test_the_nearest_subspace_of_samples_of_any_scale(dtype, scale):
    train, labels = torch.eye(4, dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    test = torch.tensor([[0.1, 0.0, 0.0, 1.0], [1.0, 1.0, 0.2, 0.0]], dtype=torch.float64)
    found = nearest_subspace(train.to(dtype), labels, (scale * test).to(dtype), rank=2)
    assert found.tolist() == [1, 0]
