"""Shared linear algebra: closed forms, accuracy where textbook formulas lose it, and bad input."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.maths import linalg


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(n=st.integers(1, 9), d=st.integers(1, 9), scale=st.floats(0, 1e3), seed=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_sylvester_both_sides_agree_and_match_lu(n, d, scale, seed):
    X = normal(n, d, seed=seed)
    value = linalg.logdet_identity_plus(X, scale)
    assert_close(value, linalg.logdet_identity_plus(X.mT, scale), rtol=1e-9, atol=1e-9)
    assert_close(
        value,
        torch.linalg.slogdet(torch.eye(d, dtype=torch.float64) + scale * X.mT @ X).logabsdet,
        rtol=1e-8,
        atol=1e-8,
    )


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 5, 3)])
def test_gradients_of_first_and_second_order(shape):
    X, scale = (
        normal(*shape).requires_grad_(),
        torch.tensor([0.3, 2.0], dtype=torch.float64, requires_grad=True),
    )
    assert torch.autograd.gradcheck(linalg.logdet_identity_plus, (X, scale))
    assert torch.autograd.gradgradcheck(linalg.logdet_identity_plus, (X, scale))


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 6, 4)])
def test_vectors_of_less_than_full_rank_keep_their_digits_or_are_refused(shape):
    """Singular values 1 (twice) and 0: log det is 2 log(1 + s), the gradient 2 s / (1 + s) X."""
    left, right = (
        linalg.orthonormalise(normal(*shape[:-1], 2)),
        linalg.orthonormalise(normal(*shape[:-2], shape[-1], 2)),
    )
    X = (left @ right.mT).requires_grad_()
    for scale in (1e6, 1e9):
        value = linalg.logdet_identity_plus(X, scale)
        assert_close(value, torch.full(shape[:-2], 2 * math.log1p(scale), dtype=X.dtype), rtol=0, atol=1e-6)
        (gradient,) = torch.autograd.grad(value.sum(), X)
        assert_close(gradient, 2 * scale / (1 + scale) * X.detach(), rtol=0, atol=1e-6)
    for scale in (1e11, 1e14, 1e17):
        with pytest.raises(
            ValueError, match=r"less than full rank must have .* at most 1e\+10.*take a larger eps"
        ):
            linalg.logdet_identity_plus(X, scale)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 6, 4)])
def test_vectors_of_full_rank_are_exact_at_any_scale(shape):
    X = normal(*shape).requires_grad_()
    for scale in (1e11, 1e17, 1e60):
        value = linalg.logdet_identity_plus(X, scale)
        squares = torch.linalg.svdvals(X.detach()).square()
        assert_close(value, (scale * squares).log1p().sum(-1), rtol=1e-12, atol=0)
        padded = torch.cat([X, torch.zeros(*shape[:-2], 2, shape[-1], dtype=X.dtype)], -2)
        assert_close(linalg.logdet_identity_plus(padded, scale), value, rtol=1e-12, atol=0)
        (gradient,) = torch.autograd.grad(value.sum(), X)
        assert_close(gradient, 2 * torch.linalg.pinv(X.detach()).mT, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 5, 3)])
def test_gradients_at_a_great_scale(shape):
    X, scale = normal(*shape), torch.tensor([2e3, 1e4], dtype=torch.float64)  # above 1e10 in all
    assert torch.autograd.gradcheck(lambda X: linalg.logdet_identity_plus(1e4 * X, scale), X.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda X: linalg.logdet_identity_plus(1e4 * X, scale), X)


def test_rows_of_zeros_change_nothing():
    X = normal(4, 6)
    assert_close(
        linalg.logdet_identity_plus(torch.cat([X, torch.zeros(20, 6, dtype=X.dtype)]), 2.0),
        linalg.logdet_identity_plus(X, 2.0),
    )


def test_float32_keeps_its_digits_where_the_textbook_formula_loses_them():
    X = normal(8, 256)
    X = (X / X.norm(dim=1, keepdim=True)).float()
    exact = float(linalg.logdet_identity_plus(X.double(), 1e8))
    textbook = float(torch.logdet(torch.eye(256) + 1e8 * X.mT @ X))
    assert not abs(textbook / exact - 1) < 0.1  # the trap is real on this instance (NaN counts)
    assert abs(float(linalg.logdet_identity_plus(X, 1e8)) / exact - 1) < 1e-6
    nearly = torch.cat([normal(200, 32), normal(200, 32)], 1)
    nearly[:, 32:] = nearly[:, :32] + 1e-4 * nearly[:, 32:]  # ill-conditioned on the smaller side as well
    ours = linalg.logdet_identity_plus(nearly.float(), 1e5)
    assert ours.dtype == torch.float32
    expected = (1e5 * torch.linalg.svdvals(nearly.float().double()).square()).log1p().sum()
    assert_close(ours.double(), expected, rtol=1e-6, atol=0)


def test_autocast_and_half_precision_do_not_spoil_it():
    X = (normal(16, 8) / 3).float()
    expected = linalg.logdet_identity_plus(X, 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(linalg.logdet_identity_plus(X, 1.0), expected)
    half = linalg.logdet_identity_plus(X.bfloat16(), 1.0)
    assert half.dtype == torch.bfloat16
    assert_close(half.float(), expected, rtol=2e-2, atol=0)


def test_cosines():
    a = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert float(linalg.cosine(a, 7 * a)) == 1.0
    assert float(linalg.cosine(a, -a)) == -1.0
    A, B = normal(5, 3, 4), normal(5, 3, 4, seed=1)
    expected = torch.nn.functional.cosine_similarity(A.flatten(1), B.flatten(1))
    assert_close(linalg.cosine(A, B, dim=(1, 2)), expected)
    assert_close(linalg.cosine(1e-200 * A[0], 1e200 * B[0]), expected[0])


def test_orthonormalise_keeps_the_span_and_is_unique():
    A = normal(2, 6, 3)
    U = linalg.orthonormalise(A)
    assert_close(U.mT @ U, torch.eye(3, dtype=A.dtype).expand(2, 3, 3))
    assert_close(U @ (U.mT @ A), A)
    assert_close(linalg.orthonormalise(A * torch.tensor([2.0, 3.0, 0.5], dtype=A.dtype)), U)


def test_ranks_of_a_matrix_with_known_singular_values():
    left, right = linalg.orthonormalise(normal(7, 3)), linalg.orthonormalise(normal(5, 3, seed=1))
    A = (left * torch.tensor([4.0, 2.0, 2e-5], dtype=left.dtype)) @ right.mT
    assert_close(float(linalg.stable_rank(A)), (16 + 4) / 16, rtol=1e-9, atol=0)
    p = torch.tensor([4.0, 2.0, 2e-5], dtype=left.dtype)
    p /= p.sum()
    assert_close(linalg.effective_rank(A), (-(p * p.log()).sum()).exp())
    assert [int(linalg.numerical_rank(A, tolerance=t)) for t in (0.6, 1e-3, 1e-7)] == [1, 2, 3]
    assert_close(linalg.effective_rank(torch.eye(4).double()), torch.tensor(4.0).double())
    assert int(linalg.numerical_rank(torch.zeros(3, 3), tolerance=0.1)) == 0


def test_principal_angles_small_and_large():
    U = linalg.orthonormalise(normal(8, 4))
    angles = torch.tensor([1e-10, 1e-3, 0.7, math.pi / 2], dtype=torch.float64)[:2]
    B = U[:, :2] * angles.cos() + U[:, 2:] * angles.sin()
    mixed = B @ normal(2, 2, seed=3)
    assert_close(linalg.principal_angles(U[:, :2], mixed), angles, rtol=1e-5, atol=1e-15)
    assert_close(
        linalg.principal_angles(U[:, :2], U[:, 2:]), torch.full((2,), math.pi / 2, dtype=torch.float64)
    )
    assert_close(
        linalg.principal_angles(normal(8, 3), normal(8, 2, seed=1)),
        linalg.principal_angles(normal(8, 2, seed=1), normal(8, 3)),
    )


def test_principal_angles_agree_with_scipy():
    from scipy.linalg import subspace_angles

    A, B = normal(9, 4), normal(9, 3, seed=5)
    assert_close(
        linalg.principal_angles(A, B).flip(0), torch.from_numpy(subspace_angles(A.numpy(), B.numpy()).copy())
    )


@each_case(
    ("call", "message"),
    [
        (
            lambda: linalg.logdet_identity_plus(torch.tensor([[1.0, math.nan]]), 1.0),
            "1 NaN or infinite values of 2",
        ),
        (lambda: linalg.logdet_identity_plus(torch.ones(2, 2), -1.0), "scale"),
        (lambda: linalg.logdet_identity_plus(torch.ones(2, 2), math.nan), "scale"),
        (
            lambda: linalg.logdet_identity_plus(torch.full((2, 2), 1e300, dtype=torch.float64), 1.0),
            "normalise",
        ),
        (
            lambda: linalg.logdet_identity_plus(1e10 * torch.ones(3, 3, dtype=torch.float64), 1.0),
            r"at most 1e\+10.*got 9.0e\+20; normalise",
        ),
        (lambda: linalg.logdet_identity_plus(torch.ones(2), 1.0), r"\[\*batch, n, d\]"),
        (lambda: linalg.cosine(torch.zeros(3), torch.ones(3)), "first argument"),
        (lambda: linalg.cosine(torch.ones(3), torch.ones(4)), "one shape"),
        (lambda: linalg.orthonormalise(torch.ones(4, 2)), "independent"),
        (lambda: linalg.orthonormalise(torch.ones(2, 4)), "p <= d"),
        (lambda: linalg.stable_rank(torch.zeros(2, 2)), "zero matrix"),
        (lambda: linalg.effective_rank(torch.full((2, 2), math.inf)), "finite"),
        (lambda: linalg.numerical_rank(torch.eye(2), tolerance=0.0), "tolerance"),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()


SCALES = [(torch.float32, 1e-37), (torch.float32, 1e-30), (torch.float32, 1e-4), (torch.float32, 1e37)] + [
    (torch.float64, scale) for scale in (1e-300, 1e-160, 1e-8, 1e300)
]


@each_case(("dtype", "scale"), SCALES)
def test_norms_and_directions_of_any_scale(dtype, scale):
    x = torch.tensor([[3.0, 4.0, 0.0], [1.0, -2.0, 2.0]], dtype=torch.float64)
    scaled = (scale * x).to(dtype)
    rtol = 4 * torch.finfo(dtype).eps
    assert_close(
        linalg.vector_norm(scaled, -1).double() / scale,
        torch.tensor([5.0, 3.0], dtype=torch.float64),
        rtol=rtol,
        atol=0,
    )
    assert float(linalg.vector_norm(scaled, (0, 1))) == pytest.approx(scale * 34**0.5, rel=rtol, abs=0)
    expected = x / torch.tensor([[5.0], [3.0]], dtype=torch.float64)
    assert_close(linalg.directions(scaled).double(), expected, rtol=rtol, atol=0)
    inputs = scaled.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(linalg.vector_norm(inputs, -1).sum(), inputs)
    assert_close(gradient.double(), expected, rtol=rtol, atol=0)


def test_zero_vectors_have_norm_and_direction_zero_and_others_are_refused():
    zero = torch.tensor([[0.0, 0.0], [3e-30, 4e-30]])
    assert_close(linalg.directions(zero), torch.tensor([[0.0, 0.0], [0.6, 0.8]]))
    assert_close(linalg.vector_norm(zero, -1), torch.tensor([0.0, 5e-30]), rtol=1e-6, atol=0)
    for bad in (math.inf, math.nan):
        assert not math.isfinite(float(linalg.vector_norm(torch.tensor([bad, 1.0]), -1)))
        with pytest.raises(ValueError, match="finite vectors"):
            linalg.directions(torch.tensor([[bad, 1.0]]))


def test_the_scale_is_a_power_of_two_that_rounds_nothing():
    x = torch.tensor([[1e-45, 3e-39], [5.0, -7.9], [0.0, 0.0], [3e38, 1.0]])
    scale = linalg.binary_scale(x, -1).squeeze(1)
    assert scale.tolist() == [2.0**-126, 4.0, 2.0**-126, 2.0**127]
    assert torch.equal(x / scale[:, None] * scale[:, None], x)


@each_case("shape", [(9, 4), (4, 9)])
@each_case(("dtype", "scale"), [case for case in SCALES if case[1] < 1])
def test_small_log_determinants_keep_their_digits(dtype, scale, shape):
    X = normal(*shape)
    # With the factor c^-2 s the log-determinant is that of X itself; with the factor 1 it is tiny.
    rtol = 20 * torch.finfo(dtype).eps
    same = linalg.logdet_identity_plus((scale * X).to(dtype), 0.5 / scale**2 if scale > 1e-150 else 0.0)
    if scale > 1e-150:
        expected = (0.5 * torch.linalg.svdvals(X).square()).log1p().sum()
        assert_close(same.double(), expected, rtol=rtol, atol=0)
    if scale > 1e-10:
        expected = (0.5 * (scale * torch.linalg.svdvals(X)).square()).log1p().sum()
        inputs = (scale * X).to(dtype).requires_grad_()
        value = linalg.logdet_identity_plus(inputs, 0.5)
        assert_close(value.double(), expected, rtol=rtol, atol=0)
        (gradient,) = torch.autograd.grad(value, inputs)
        assert_close(gradient.double(), scale * X, rtol=1e-3, atol=0)


@each_case(("dtype", "scale"), SCALES)
def test_ranks_and_angles_do_not_depend_on_the_scale(dtype, scale):
    A = torch.linalg.qr(normal(6, 4)).Q
    B = A * torch.tensor([4.0, 2.0, 1.0, 0.0], dtype=torch.float64)
    assert float(linalg.stable_rank((scale * B).to(dtype))) == pytest.approx(21 / 16, rel=1e-5)
    assert int(linalg.numerical_rank((scale * B).to(dtype), tolerance=1e-3)) == 3
    p = torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64) / 7
    assert float(linalg.effective_rank((scale * B).to(dtype))) == pytest.approx(
        math.exp(float(torch.special.entr(p).sum())), rel=1e-4
    )
    turned = math.cos(0.3) * A[:, :1] + math.sin(0.3) * A[:, 1:2]
    angle = linalg.principal_angles((scale * A[:, :1]).to(dtype), (scale * turned).to(dtype))
    assert float(angle) == pytest.approx(0.3, rel=1e-5)
    with pytest.raises(ValueError, match="linearly independent"):
        linalg.orthonormalise((scale * A[:, :1]).to(dtype).expand(6, 2))


def test_the_gradient_under_autocast_is_that_without():
    X = normal(6, 3).float().requires_grad_()
    (expected,) = torch.autograd.grad(linalg.logdet_identity_plus(X, 2.0), X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (found,) = torch.autograd.grad(linalg.logdet_identity_plus(X, 2.0), X)
    assert_close(found, expected, rtol=1e-6, atol=0)
