"""Max-margin solutions in entrywise and spectral norms: closed forms, the norms' duality, and the Frobenius
solver.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.core.errors import Infeasible, NotConverged
from transformer_theory.theories.attention_svm import Constraints, builders, solvers
from transformer_theory.theories.attention_svm.problem import cross_attention, published_instance


def drawn(seed: int = 0, inputs: int = 3, tokens: int = 4, dim: int = 4) -> Constraints:
    one = published_instance(seed, inputs=inputs, tokens=tokens, dim=dim)
    return builders.constraints(one.tokens, one.query, one.optimal())


@each_case("p", [1, 1.5, 2, 3, math.inf])
def test_one_constraint_has_the_solution_of_hoelder(p):
    F = torch.tensor([[1.0, -2.0], [0.5, 0.0]], dtype=torch.float64)
    d, z = torch.tensor([[1.0, -2.0]], dtype=torch.float64), torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    F = d.mT @ z
    q = math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)
    solution = solvers.lp_max_margin(Constraints(d, z), p=p)
    assert solution.norm == pytest.approx(1 / float(torch.linalg.vector_norm(F, q)), rel=1e-8)
    assert float((solution.W * F).sum()) == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_weights_are_the_gradient_of_the_dual_norm(p):
    """Where the norm is smooth, W is proportional to sign(M) |M|^(1/(p-1)) with M the combination of the
    constraints.
    """
    c = drawn()
    solution = solvers.lp_max_margin(c, p=p)
    M = c.combine(solution.dual)
    image = M.sign() * M.abs() ** (1 / (p - 1))
    assert_close(solution.W / solution.W.norm(), image / image.norm(), rtol=0, atol=1e-5)
    assert float((c.margins(solution.W)).min()) >= 1 - 1e-8
    assert float(solution.dual.sum()) == pytest.approx(
        float(torch.linalg.vector_norm(solution.W, p)), rel=1e-7
    )


def test_p_two_is_frobenius():
    c = drawn(inputs=4, dim=5)
    assert_close(solvers.lp_max_margin(c, p=2).W, solvers.frobenius_max_margin(c).W, rtol=0, atol=1e-5)


@pytest.mark.parametrize("solve", [lambda c: solvers.lp_max_margin(c, p=3.0), solvers.spectral_max_margin])
def test_equations_and_right_hand_sides(solve):
    generator = torch.Generator().manual_seed(0)
    d, z, rhs = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((6, 4), (6, 3), (6,))
    )
    equality = torch.tensor([True, False, True, False, False, False])
    c = Constraints(d, z, rhs=rhs, equality=equality)
    solution = solve(c)
    beyond = c.margins(solution.W) - rhs
    assert float(beyond[equality].abs().max()) < 1e-7
    assert float(beyond.min()) > -1e-7
    assert solution.norm == pytest.approx(float(rhs @ solution.dual), rel=1e-7)


def test_the_spectral_norm():
    eye = torch.eye(3, dtype=torch.float64)
    # W_ii >= 1: the norm is 1, and W the identity
    solution = solvers.spectral_max_margin(Constraints(eye, eye))
    assert solution.norm == pytest.approx(1, abs=1e-8)
    assert_close(solution.W, eye, rtol=0, atol=1e-4)
    c = drawn()
    general = solvers.spectral_max_margin(c)
    assert general.norm == pytest.approx(float(torch.linalg.matrix_norm(general.W, 2)), rel=1e-8)
    nuclear_of_dual = float(torch.linalg.svdvals(c.combine(general.dual)).sum())
    assert float(general.dual.sum()) / nuclear_of_dual == pytest.approx(general.norm, rel=1e-7)
    assert general.norm <= float(torch.linalg.matrix_norm(solvers.frobenius_max_margin(c).W, 2)) + 1e-8


@pytest.mark.parametrize(
    "solve", [lambda c, **kw: solvers.lp_max_margin(c, p=3.0, **kw), solvers.spectral_max_margin]
)
def test_infeasible_and_unconverged_problems_raise(solve):
    one = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    with pytest.raises(Infeasible):
        solve(Constraints(one, one.abs()))
    with pytest.raises(ValueError, match="batch"):
        solve(drawn().problem(None))
    with pytest.raises(NotConverged, match="tol"):
        solve(drawn(), tol=1e-30)
    assert not solve(Constraints(one, one.abs(), rhs=torch.zeros(2, dtype=torch.float64))).W.any()


def test_a_power_below_one_is_no_norm():
    with pytest.raises(ValueError, match="p "):
        solvers.lp_max_margin(drawn(), p=0.5)


@each_case("p", [1.5, 2, 3, 4])
def test_the_rank_ignores_errors_of_the_solver(p):
    """One constraint: |W| is a power of |d_i z_j|, so that W has rank one. Two on separate entries:
    rank two.
    """
    d, z = (
        torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64),
        torch.tensor([[1.0, -1.0, 2.0]], dtype=torch.float64),
    )
    solution = solvers.lp_max_margin(Constraints(d, z), p=p)
    assert solution.rank == 1
    exact = (d.mT @ z).sign() * (d.mT @ z).abs() ** (1 / (p - 1))
    exact = exact / float((exact * (d.mT @ z)).sum())
    assert float(torch.linalg.matrix_norm(solution.W - exact)) <= solution.rank_rtol * float(
        torch.linalg.matrix_norm(solution.W, 2)
    )
    eye = torch.eye(2, dtype=torch.float64)
    assert solvers.lp_max_margin(Constraints(eye, eye), p=p).rank == 2


@pytest.mark.parametrize(
    "solve",
    [
        lambda c: solvers.lp_max_margin(c, p=1),
        lambda c: solvers.lp_max_margin(c, p=math.inf),
        solvers.spectral_max_margin,
    ],
)
def test_the_rank_of_a_solution_that_need_not_be_unique_raises(solve):
    with pytest.raises(ValueError, match="rank"):
        solve(drawn()).rank  # noqa: B018


@pytest.mark.parametrize(
    "solve",
    [solvers.frobenius_max_margin, solvers.nuclear_max_margin, lambda c: solvers.lp_max_margin(c, p=3.0)],
)
def test_the_support_is_the_constraints_met_with_equality(solve):
    """W_11 >= 1, W_22 >= -1 and W_33 >= 0.5, twice as much with the factor two: the second is not met with
    equality.
    """
    eye, rhs = torch.eye(3, dtype=torch.float64), torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    for factor in (1, 2):
        assert solve(Constraints(eye, eye, rhs=factor * rhs)).support().tolist() == [0, 2]


def test_the_support_in_a_batch():
    eye, rhs = (
        torch.eye(2, dtype=torch.float64).expand(3, 2, 2),
        torch.tensor([[1.0, -1.0], [2.0, 1.0], [0.0, 0.0]], dtype=torch.float64),
    )
    for solve in (solvers.frobenius_max_margins, solvers.nuclear_max_margins):
        batch = solve(Constraints(eye, eye, rhs=rhs))
        assert [batch[b].support().tolist() for b in range(3)] == [[0], [0, 1], [0, 1]]


@pytest.mark.parametrize("p", [20, 50, 100])
def test_a_nonzero_W_has_rank_at_least_one(p):
    """For large powers the bound on the error of W exceeds W itself: then nothing but its first singular
    value is certain.
    """
    instance = cross_attention(inputs=4, tokens=3, dim=5, generator=torch.Generator().manual_seed(1))
    solution = solvers.lp_max_margin(
        builders.constraints(instance.tokens, instance.query, torch.zeros(4, dtype=torch.long)), p=p
    )
    assert solution.rank >= 1
    assert solution.rank_rtol > 0.5
    assert (p < 50) or (solution.rank_rtol > 1 and solution.rank == 1)


def test_tensors_with_gradients_are_detached():
    instance = cross_attention(inputs=3, tokens=3, dim=4, generator=torch.Generator().manual_seed(1))
    select = torch.zeros(3, dtype=torch.long)
    trained = builders.constraints(
        instance.tokens.clone().requires_grad_(), instance.query.clone().requires_grad_(), select
    )
    plain = builders.constraints(instance.tokens, instance.query, select)
    for solve in (
        solvers.nuclear_max_margin,
        solvers.frobenius_max_margin,
        solvers.spectral_max_margin,
        lambda c: solvers.lp_max_margin(c, p=3),
    ):
        W = solve(trained).W
        assert not W.requires_grad
        assert torch.equal(W, solve(plain).W)
    assert not solvers.nuclear_max_margins(trained.problem(None)).W.requires_grad
    assert solvers.official_rank(trained) == solvers.official_rank(plain)
