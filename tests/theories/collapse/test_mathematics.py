"""Residuals, gradients, random weights and phases, each by another route."""

import math

import mpmath
import pytest
import torch

from tests.cases import each_case
from transformer_theory.metrics.attention import row_deviation
from transformer_theory.theories import collapse
from transformer_theory.theories.collapse.initialisation import (
    equiangular_cosines,
    exactly_equiangular,
    gaussian_scores_matrix,
    largest_variance,
)
from transformer_theory.theories.collapse.phases import standard_scores
from transformer_theory.theories.collapse.residuals import (
    exact_differences,
    mean_weights,
    near_tokens,
    weighted_covariance,
    weights,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def test_one_head_by_loops():
    x, W, V = normal(4, 3), normal(3, 3, seed=1), normal(3, 2, seed=2)
    expected = []
    for i in range(4):
        scores = [math.exp(float(x[i] @ W @ x[j])) for j in range(4)]
        expected.append(sum(s / sum(scores) * (x[j] @ V) for j, s in enumerate(scores)))
    assert torch.allclose(collapse.pure_attention(x, W[None], V[None]), torch.stack(expected), rtol=1e-12)
    two = collapse.pure_attention(x, torch.stack([W, W]), torch.stack([V, 2 * V]))
    assert torch.allclose(two, 3 * torch.stack(expected), rtol=1e-12)


def test_the_composite_norm_by_hand():
    M = torch.tensor([[1.0, -2.0], [3.0, 0.5]], dtype=torch.float64)
    assert float(collapse.composite_norm(M)) == pytest.approx(math.sqrt(4 * 3.5))


def test_the_bound_of_one_layer_by_hand():
    x, W, V = normal(5, 3), normal(1, 1, 3, 3, seed=1), normal(1, 1, 3, 3, seed=2)
    beta = float(W[0, 0].abs().sum(0).max() * collapse.composite_norm(V[0, 0]))
    size = float(collapse.composite_norm(x - x.mean(0)))
    assert collapse.log_bound(x, W, V) == pytest.approx(math.log(4 * beta * size**3))
    deep = collapse.log_bound(x, W.expand(3, 2, 3, 3), V.expand(3, 2, 3, 3))
    assert deep == pytest.approx(13 * math.log(8 * beta) + 27 * math.log(size))
    assert collapse.bound_ratio(x, torch.ones(5, 3, dtype=torch.float64), W, V) == 0


def test_the_cubic_law_is_the_derivative_of_attention():
    # For differences r d the residual is r^3 times a tensor: compare with the third-order difference
    # quotient.
    mean, D = normal(1, 4), collapse.residual(normal(6, 4, seed=1))
    W, V = normal(4, 4, seed=2) / 2, normal(4, 3, seed=3)

    def scaled(r: float) -> torch.Tensor:
        return collapse.residual(collapse.pure_attention(mean + r * D, W[None], V[None])) / r**3

    # removes the odd orders, roughly
    limit = 2 * (scaled(1e-3) + scaled(-1e-3)) / 2 - (scaled(2e-3) + scaled(-2e-3)) / 2
    formula = collapse.cubic_law(mean + 1e-3 * D, W, V) / 1e-9
    assert torch.allclose(formula, limit, atol=2e-2 * float(limit.abs().max()))


def test_weights_of_the_mean_token_and_their_covariance():
    x, W = normal(6, 4), normal(4, 4, seed=1)
    a = mean_weights(x, W)
    assert torch.allclose(a, torch.softmax(x @ W.T @ x.mean(0), 0), rtol=1e-12)
    C = sum(a[j] * torch.outer(x[j], x[j]) for j in range(6)) - torch.outer(a @ x, a @ x)
    assert torch.allclose(weighted_covariance(x, a), C, atol=1e-12)


def test_gradients_are_those_of_autograd():
    x, G = normal(6, 4), normal(6, 3, seed=3)
    W, V = normal(4, 4, seed=1).requires_grad_(), normal(4, 3, seed=2).requires_grad_()
    (collapse.pure_attention(x, W[None], V[None]) * G).sum().backward()
    assert torch.allclose(collapse.score_gradient(x, W.detach(), V.detach(), G), W.grad, atol=1e-12)
    assert torch.allclose(collapse.value_gradient(x, W.detach(), G), V.grad, atol=1e-12)


def test_near_tokens_keep_their_draw():
    first, drawn = near_tokens(5, 3, 0.1, generator())
    second, same = near_tokens(5, 3, 0.01, generator(), differences=drawn)
    assert same is drawn
    assert torch.allclose(collapse.residual(first), 10 * collapse.residual(second), atol=1e-12)


def test_exactly_equiangular_tokens_and_their_averages():
    x = exactly_equiangular(6, 10, 0.3, generator())
    assert torch.allclose(x @ x.T, 0.3 + 0.7 * torch.eye(6, dtype=torch.float64), atol=1e-12)
    A = torch.softmax(3 * normal(6, 6, seed=1), -1)
    y = torch.nn.functional.normalize(A @ x, dim=-1)
    assert torch.allclose(equiangular_cosines(A, 0.3), y @ y.T, atol=1e-12)
    with pytest.raises(ValueError, match="need more than 6 dimensions"):
        exactly_equiangular(6, 6, 0.3, generator())


def test_cosine_and_dimension_by_hand():
    x = exactly_equiangular(6, 10, 0.3, generator())
    assert float(collapse.mean_cosine(x)) == pytest.approx(0.3)
    # Five equal eigenvalues: n - 1 tokens in general position with one common cosine.
    assert float(collapse.dimension(x)) == pytest.approx(5)
    wide = normal(400, 50)
    assert float(collapse.dimension(wide)) == pytest.approx(1 / (1 / 400 + 1 / 50), rel=0.02)


def test_scores_have_the_deviation():
    x = normal(200, 64)
    x = 8 * x / x.norm(dim=1, keepdim=True)
    found = [float((x @ gaussian_scores_matrix(64, 0.7, generator(k)) @ x.T).std()) for k in range(5)]
    assert sum(found) / 5 == pytest.approx(0.7, rel=0.05)


def test_the_formula_of_any_tokens_is_that_of_equiangular_ones():
    v, rho, n, d = 0.4, 0.3, 64, 128
    D = torch.tensor((1 - 1 / n) / (1 / n + 1 / d), dtype=torch.float64)
    general = collapse.contraction_of_tokens(torch.tensor(v).double(), torch.tensor(rho).double(), n, D)
    assert float(general) ** 2 == pytest.approx(collapse.squared_contraction(v, rho, n, d))
    assert largest_variance(64) == 1
    assert largest_variance(4) == pytest.approx(math.log(4) / 2)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_formula_of_any_tokens_holds_for_few_tokens(n: int):
    x = normal(n, 6) * torch.tensor([3.0, 2, 1, 1, 0.5, 0.2]) + 1
    W = 0.05 / x.square().sum(1).mean() * normal(3000, 6, 6, seed=1)
    v = row_deviation(x @ W @ x.mT).square().mean()
    predicted = collapse.contraction_of_tokens(v, collapse.mean_cosine(x), n, collapse.dimension(x))
    measured = collapse.contraction(weights(x, W), x.expand(3000, n, 6)).square().mean()
    assert float(predicted) ** 2 == pytest.approx(float(measured), rel=0.1)


def test_exact_differences_are_those_of_attention():
    x, W, V = normal(6, 4), normal(4, 4, seed=1), normal(4, 3, seed=2)
    mean, differences = exact_differences(x.mean(0, keepdim=True), collapse.residual(x), W, V)
    y = collapse.pure_attention(x, W[None], V[None])
    assert torch.allclose(mean, y.mean(0, keepdim=True), rtol=1e-12)
    assert torch.allclose(differences, collapse.residual(y), rtol=1e-12)
    _, tiny = exact_differences(mean := normal(1, 4), 1e-7 * collapse.residual(x), W, V)
    assert torch.allclose(tiny, collapse.cubic_law(mean + 1e-7 * collapse.residual(x), W, V), rtol=1e-6)


def test_large_scores_delay_the_collapse_only():
    for layers, low, high in ((5, 0.5, 1.0), (20, 0.0, 1e-6)):
        x = collapse.stream(64, 64, layers, 1.0, generator(), deviation=9.0, skip=0.0)
        assert low <= float(collapse.residual(x).norm() / x.norm()) <= high


@pytest.mark.parametrize("n", [16, 64])
def test_curves_have_the_mean_of_gaussian_scores(n: int):
    # A metric averages some 512 rows, so the error of the table must be below the standard error of 512 rows.
    table, scores = collapse.curves(n), standard_scores(20000, n, generator(5))
    for s in (0.05, 0.2, 0.5, 1.0, 2.5):
        direct = collapse.participation((s * scores).softmax(-1))
        error = float(table.expected(torch.tensor([s]).double())) - float(direct.mean())
        assert abs(error) < float(direct.std()) / 512**0.5


def test_depth_by_recursion():
    # X + alpha A X V with A uniform: the squared norm of the mean grows by 1 + alpha^2, the differences stay.
    n, alpha = 16, 0.4
    mean, total = 1 / n, 1.0  # of |mean|^2 and |x|^2, orthogonal tokens
    for _ in range(5):
        mean, total = mean * (1 + alpha**2), total + alpha**2 * mean
    rho = (n * mean - total) / ((n - 1) * total)
    assert collapse.depth_cosine(alpha, 5, n) == pytest.approx(rho)
    with pytest.raises(ValueError, match="need at least as many dimensions"):
        collapse.stream(8, 4, 2, 1.0, generator())


def test_standard_scores_and_curves():
    scores = standard_scores(50, 7, generator())
    assert torch.allclose(scores.mean(-1), torch.zeros(50, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(row_deviation(scores), torch.ones(50, dtype=torch.float64))
    table = collapse.curves(7)
    assert float(table.expected(torch.tensor([0.0]).double())) == pytest.approx(1 / 7)
    assert float(table.expected(torch.tensor([1e3]).double())) > 0.9
    direct = collapse.participation((1.3 * standard_scores(20_000, 7, generator(5))).softmax(-1)).mean()
    assert float(table.expected(torch.tensor([1.3]).double())) == pytest.approx(float(direct), rel=0.05)
    drawn = table.draw(torch.full((20_000,), 1.3).double(), generator(1))
    assert float(drawn.mean()) == pytest.approx(float(table.expected(torch.tensor([1.3]).double())), rel=0.02)
    with pytest.raises(ValueError, match="two keys"):
        collapse.curves(1)


def test_deviation_within_allowed_keys():
    scores = torch.tensor([[1.0, 3.0, 100.0]]).double()
    assert float(row_deviation(scores, torch.tensor([[1.0, 1.0, 0.0]]).double())) == pytest.approx(1)


def test_the_limits_of_the_phases():
    assert collapse.limit(0.5, 100) == pytest.approx(math.exp(0.25 * math.log(100)) / 100)
    assert collapse.limit(1.0, 100) == 0
    assert collapse.limit(3.0, 100) == pytest.approx(1 - math.sqrt(2) / 3)
    for b, n in ((-1.0, 5), (1.0, 1)):
        with pytest.raises(ValueError, match="b must be at least 0"):
            collapse.limit(b, n)


def test_contraction_of_known_heads():
    x = normal(5, 3)
    assert float(collapse.contraction(torch.eye(5).double(), x)) == pytest.approx(1)
    assert float(collapse.contraction(torch.full((5, 5), 0.2).double(), x)) == pytest.approx(0, abs=1e-7)
    A = weights(x, normal(3, 3, seed=1))
    direct = collapse.residual(A @ x).norm() / collapse.residual(x).norm()
    assert float(collapse.contraction(A, x)) == pytest.approx(float(direct))
    # A common part, such as a sink, contracts: A = (1 - m) A' + m 1 e_0^T has (1 - m) times the contraction
    # of A'.
    sink = 0.75 * A + 0.25 * torch.eye(5).double()[0]
    assert float(collapse.contraction(sink, x)) == pytest.approx(0.75 * float(direct))


@each_case(
    ("call", "message"),
    [
        (lambda: collapse.contraction(torch.eye(1).double(), normal(1, 3)), "n >= 2 tokens"),
        (
            lambda: collapse.contraction(torch.eye(2).double(), torch.ones(2, 3).double()),
            "tokens that differ",
        ),
        (lambda: collapse.contraction(2 * torch.eye(4).double(), normal(4, 3)), "must sum to 1"),
        (lambda: collapse.contraction(torch.eye(4), normal(4, 3)), "share a dtype"),
        (lambda: collapse.equiangular(4, 8, 1.5, generator()), "rho must lie"),
        (lambda: collapse.squared_contraction(-1.0, 0.3, 8, 8), "the formula needs"),
        (lambda: collapse.cosine_after(0.3, 2.0, 8, 8), "the formula needs"),
        (lambda: collapse.depth_cosine(1.0, -1, 8), "layers at least 0"),
        (lambda: collapse.gaussian_participation(0, 1.0, 3, generator()), "n at least 1"),
        (
            lambda: collapse.log_bound(normal(5, 3), normal(1, 1, 3, 3), normal(1, 1, 3, 3)[:, :0]),
            "W and V must be",
        ),
        (
            lambda: collapse.log_bound(torch.ones(5, 3).double(), normal(1, 1, 3, 3), normal(1, 1, 3, 3)),
            "tokens that differ",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_has_one_line(call, message: str):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


SCALES = [(torch.float32, scale) for scale in (1e-36, 1e-23, 1e-12, 1e18, 1e36)] + [
    (torch.float64, scale) for scale in (1e-300, 1e-160, 1e160, 1e300)
]


@each_case(("dtype", "scale"), SCALES)
def test_cosine_dimension_and_norm_of_tokens_of_any_scale(dtype, scale):
    X = normal(6, 4) + 0.5
    x = (scale * X).to(dtype)
    gram = X @ X.mT
    cosine = (gram.sum() - gram.trace()) / (5 * gram.trace())
    assert float(collapse.mean_cosine(x)) == pytest.approx(float(cosine), rel=2e-5)
    C = torch.cov(X.mT)
    assert float(collapse.dimension(x)) == pytest.approx(float(C.trace() ** 2 / C.square().sum()), rel=1e-5)
    norm = float(X.abs().sum(0).max() * X.abs().sum(1).max()) ** 0.5
    assert float(collapse.composite_norm(x)) / scale == pytest.approx(norm, rel=1e-5)
    A = normal(6, 6, seed=1).softmax(-1)
    Y = A @ X
    share = (Y - Y.mean(0)).norm() / (X - X.mean(0)).norm()
    assert float(collapse.contraction(A.to(dtype), x)) == pytest.approx(float(share), rel=1e-4)


def test_tokens_that_are_nearly_equal_keep_their_dimension():
    X = 1.0 + 2.0**-12 * torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    C = torch.cov(X.double().mT)
    expected = float(C.trace() ** 2 / C.square().sum())
    assert float(collapse.dimension(1e-20 * X)) == pytest.approx(expected, rel=1e-2)
    with pytest.raises(ValueError, match="dimension needs tokens that differ, got 1 of 1 sequences"):
        collapse.dimension(torch.full((3, 2), 1e-20))


def test_the_bound_of_tiny_matrices_is_that_of_their_logarithms():
    x, W, V = normal(4, 3), normal(1, 1, 3, 3, seed=1), normal(1, 1, 3, 3, seed=2)
    expected = collapse.log_bound(x, W, V) + math.log(1e-30 * 1e-30)
    tiny = [(1e-30 * matrix).float() for matrix in (W, V)]
    assert collapse.log_bound(x.float(), *tiny) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("v", "rho", "n", "d"), [(1e-12, 1 - 1e-6, 4, 1e20), (1e-9, 0.5, 7, 1e30), (0.5, 1 - 1e-13, 3, 1e40)]
)
def test_the_contraction_at_small_variances_keeps_its_digits(v, rho, n, d):
    with mpmath.workdps(60):
        exact = (mpmath.exp(mpmath.mpf(v)) - mpmath.exp(mpmath.mpf(rho) * v)) / n
        exact = float(exact + (1 - mpmath.mpf(rho)) * v / d)
    assert collapse.squared_contraction(v, rho, n, d) == pytest.approx(exact, rel=1e-9, abs=0)
    found = collapse.contraction_of_tokens(
        *(torch.tensor(x, dtype=torch.float64) for x in (v, rho)), n, torch.tensor(d, dtype=torch.float64)
    )
    assert float(found) ** 2 == pytest.approx(exact, rel=1e-9, abs=0)


def test_weights_of_half_precision_are_summed_in_float32():
    uniform = torch.full((2**14,), 2.0**-14, dtype=torch.float16)  # float16 has no 2^-28
    assert float(collapse.participation(uniform)) == 2.0**-14
