"""Nuclear-norm solvers: closed forms, a general solver, the KKT conditions recomputed, and problems without a
verified answer.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.core.errors import Infeasible, NotConverged
from transformer_theory.theories.attention_svm import Constraints, builders, solvers
from transformer_theory.theories.attention_svm.constraint_set import stack
from transformer_theory.theories.attention_svm.published import published_instances, published_picture
from transformer_theory.theories.attention_svm.solution import MaxMargin
from transformer_theory.theories.attention_svm.solvers import nuclear
from transformer_theory.theories.attention_svm.solvers.conic import conic
from transformer_theory.theories.attention_svm.solvers.dense import dot
from transformer_theory.theories.attention_svm.solvers.interior_point import inside, interior_point
from transformer_theory.theories.attention_svm.solvers.nuclear import Data, Reduced


def published(seeds, inputs, tokens, dim) -> Constraints:
    drawn = published_instances(seeds, inputs=inputs, tokens=tokens, dim=dim)
    return builders.constraints(drawn.tokens, drawn.query, drawn.optimal())


def mixed(seed: int, m: int = 12) -> Constraints:
    """Twelve constraints on 6 x 5 weights with right-hand sides of both signs, some of them equations."""
    generator = torch.Generator().manual_seed(seed)
    d, z = (torch.randn(m, k, generator=generator, dtype=torch.float64) for k in (6, 5))
    rhs = torch.randn(m, generator=generator, dtype=torch.float64)
    return Constraints(d, z, rhs=rhs, equality=torch.rand(m, generator=generator) < 0.3)


def general(c: Constraints) -> tuple[float, np.ndarray]:
    """Norm and W of Clarabel, in all entries of W."""
    import cvxpy as cp

    W, _ = conic(c.difference.numpy(), c.query.numpy(), c.rhs.numpy(), c.equality.numpy(), cp.normNuc)
    return float(np.linalg.norm(W, "nuc")), W


def assert_optimal(c: Constraints, solution: MaxMargin, tol: float) -> None:
    """The KKT conditions, from W and the multipliers alone."""
    margins = ((c.difference @ solution.W) * c.query).sum(-1)
    M = (c.difference * solution.dual[:, None]).mT @ c.query
    norm = float(torch.linalg.svdvals(solution.W).sum())
    assert float(torch.where(c.equality, (margins - c.rhs).abs(), c.rhs - margins).max()) <= tol * float(
        c.rhs.abs().max()
    )
    assert float(torch.where(c.equality, 0.0, -solution.dual).max()) <= tol * norm
    assert float(torch.linalg.matrix_norm(M, 2)) <= 1 + tol
    assert abs(norm - float(c.rhs @ solution.dual)) <= tol * norm
    assert solution.norm == pytest.approx(norm, rel=10 * tol)


IDENTITY = torch.eye(4, dtype=torch.float64)


@each_case(
    ("c", "W"),
    [
        (Constraints(IDENTITY[:1], 2 * IDENTITY[1:2]), 0.5 * torch.outer(IDENTITY[0], IDENTITY[1])),
        (Constraints(IDENTITY, IDENTITY), IDENTITY),  # W_ii >= 1
        # all W_ij >= 1
        (
            Constraints(IDENTITY.repeat(4, 1), IDENTITY.repeat_interleave(4, 0)),
            torch.ones(4, 4, dtype=torch.float64),
        ),
        (
            Constraints(IDENTITY, IDENTITY[:1].expand(4, 4).contiguous()),
            torch.outer(torch.ones(4, dtype=torch.float64), IDENTITY[0]),
        ),
    ],
)
def test_closed_forms(c, W):
    solution = solvers.nuclear_max_margin(c)
    assert_close(solution.W, W, rtol=0, atol=1e-9)
    assert solution.rank == int(torch.linalg.matrix_rank(W))
    assert solution.norm == pytest.approx(float(torch.linalg.svdvals(W).sum()), abs=1e-9)


@pytest.mark.parametrize(
    ("number", "norm", "rank", "W"),
    [
        (1, 9.754810, 1, [[0.486706, 0.469258], [7.005536, 6.754383]]),
        (2, 1.872604, 2, [[0.99375, -1.25966], [-0.13324, -0.25784]]),
    ],
)
def test_the_published_pictures(number, norm, rank, W):
    picture = published_picture(number)
    solution = solvers.nuclear_max_margin(
        builders.constraints(picture.tokens, picture.query, picture.optimal())
    )
    assert solution.norm == pytest.approx(norm, abs=5e-7)
    assert solution.rank == rank
    assert_close(solution.W, torch.tensor(W, dtype=torch.float64), rtol=0, atol=1e-5)
    assert solution.kkt < 1e-13


@each_case("seed", range(6))
def test_right_hand_sides_and_equations_against_a_general_solver(seed):
    c = mixed(seed)
    solution = solvers.nuclear_max_margin(c)
    norm, W = general(c)
    assert_optimal(c, solution, 1e-12)
    assert solution.norm == pytest.approx(norm, rel=1e-9)
    assert_close(solution.W, torch.from_numpy(W), rtol=0, atol=1e-4 * norm)


def test_equations_only():
    c = mixed(3)
    c = Constraints(c.difference, c.query, rhs=c.rhs, equality=torch.ones(12, dtype=torch.bool))
    solution = solvers.nuclear_max_margin(c)
    assert_optimal(c, solution, 1e-12)
    assert (solution.dual < 0).any()


@each_case(
    ("size", "trials"),
    [((6, 8, 10), 30), ((10, 5, 20), 20), ((15, 5, 4), 60), ((15, 5, 5), 30), ((2, 5, 2), 60)],
)
def test_batches_are_solved_to_rounding(size, trials):
    """Easy and nearly infeasible problems."""
    c = published(range(trials), *size)
    solutions = solvers.nuclear_max_margins(c)
    feasible = solvers.frobenius_max_margins(c).solved
    assert (solutions.solved == feasible).all()
    assert float(solutions.gap[feasible].max()) <= 1e-9
    assert float(solutions.gap[feasible].median()) <= 1e-12
    for at in feasible.nonzero().squeeze(-1)[:5].tolist():
        assert_optimal(c.problem(at), solutions[at], 1e-9)


def test_a_batch_agrees_with_the_solver_of_single_problems():
    c = published(range(110, 120), 10, 5, 4)
    solutions = solvers.nuclear_max_margins(c)
    assert 0 < int(solutions.solved.sum()) < 10
    for at in range(10):
        if solutions.solved[at]:
            one = solvers.nuclear_max_margin(c.problem(at))
            assert_close(solutions.W[at], one.W, rtol=0, atol=1e-8 * one.norm)
            assert int(solutions.rank[at]) == one.rank == solutions[at].rank
        else:
            assert solutions.status[at] == "infeasible"
            assert not solutions.W[at].any()
            assert torch.isinf(solutions.kkt[at])
            with pytest.raises(Infeasible) as caught:
                solutions[at]
            assert caught.value.certificate.residual < 1e-9


def test_problems_of_different_length_form_a_batch():
    short, long = published(range(1), 3, 4, 6).problem(0), published(range(1), 5, 4, 6).problem(0)
    solutions = solvers.nuclear_max_margins(stack([short, long]))
    for at, one in enumerate((short, long)):
        assert_close(solutions.W[at], solvers.nuclear_max_margin(one).W, rtol=0, atol=1e-10)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_scales_do_not_matter(scale):
    c = published(range(1), 5, 4, 6).problem(0)
    plain, scaled = (
        solvers.nuclear_max_margin(c),
        solvers.nuclear_max_margin(Constraints(scale * c.difference, c.query)),
    )
    asked = solvers.nuclear_max_margin(Constraints(c.difference, c.query, rhs=scale * c.rhs))
    assert_close(scaled.W * scale, plain.W)
    assert_close(asked.W / scale, plain.W)
    assert max(scaled.kkt, asked.kkt) < 1e-12
    assert scaled.rank == asked.rank == plain.rank


@pytest.mark.parametrize("size", [(3, 4, 8), (8, 3, 4)])
def test_differences_and_queries_may_change_places(size):
    c = published(range(1), *size).problem(0)
    one, other = solvers.nuclear_max_margin(c), solvers.nuclear_max_margin(Constraints(c.query, c.difference))
    assert_close(other.W.mT, one.W, rtol=0, atol=1e-9 * one.norm)


@each_case(("d_x", "d_z"), [(2, 9), (9, 2), (30, 3), (3, 30)])
def test_narrow_weights(d_x, d_z):
    generator = torch.Generator().manual_seed(1)
    d, z = (torch.randn(6, k, generator=generator, dtype=torch.float64) for k in (d_x, d_z))
    assert_optimal(Constraints(d, z), solvers.nuclear_max_margin(Constraints(d, z)), 1e-11)


def test_for_one_query_all_norms_have_the_same_solution():
    c = published(range(1), 4, 3, 20).problem(0)
    c = Constraints(c.difference, torch.ones(len(c), 1, dtype=torch.float64))
    assert_close(solvers.nuclear_max_margin(c).W, solvers.frobenius_max_margin(c).W, rtol=0, atol=1e-10)


def test_constraints_given_twice_change_nothing():
    c = published(range(1), 5, 4, 6).problem(0)
    twice = Constraints(*(torch.cat([v, v]) for v in (c.difference, c.query)))
    solution = solvers.nuclear_max_margin(twice)
    assert_close(solution.W, solvers.nuclear_max_margin(c).W, rtol=0, atol=1e-9)
    assert solution.kkt < 1e-12


@pytest.mark.parametrize("rhs", [0.0, -1.0])
def test_constraints_that_hold_for_zero_give_zero(rhs):
    c = mixed(0)
    solution = solvers.nuclear_max_margin(
        Constraints(c.difference, c.query, rhs=torch.full((12,), rhs, dtype=torch.float64))
    )
    assert not solution.W.any()
    assert (solution.rank, solution.norm, solution.kkt) == (0, 0, 0)


def test_no_constraint_and_no_problem():
    c = published(range(2), 3, 3, 4)
    none = solvers.nuclear_max_margin(c.problem(0).take(slice(0, 0)))
    assert not none.W.any()
    assert len(solvers.nuclear_max_margins(c.problem(slice(0, 0)))) == 0


def test_a_single_problem_and_a_batch_are_not_confused():
    c = published(range(2), 3, 3, 4)
    with pytest.raises(ValueError, match="nuclear_max_margins"):
        solvers.nuclear_max_margin(c)
    with pytest.raises(ValueError, match="batch"):
        solvers.nuclear_max_margins(c.problem(0))


def reduced(c, size):
    return Reduced.of(Data.of(c), size.numpy())


def test_the_interior_point_alone_comes_near():
    c = published(range(10), 6, 8, 10)
    near = solvers.frobenius_max_margins(c)
    problems = reduced(c, near.norm)
    point = interior_point(
        problems.cone, inside(problems.cone, (near.dual / near.norm[:, None]).numpy()), tol=1e-6
    )
    rows, square = problems.cone.image(point.multipliers)
    assert (np.linalg.eigvalsh(square)[:, -1] < 1).all()
    assert (point.multipliers > 0).all()
    margins = dot(rows @ point.weight, problems.cone.query)
    assert float((problems.cone.rhs - margins).max()) < 1e-6
    exact = solvers.nuclear_max_margins(c).norm
    assert_close(
        near.norm * torch.from_numpy(dot(problems.cone.rhs, point.multipliers)), exact, rtol=1e-5, atol=0
    )


def test_constraints_that_nearly_cancel_keep_their_digits():
    """A W of norm 7,546 for entries near one: inner products of the constraints alone leave a gap
    of 1e-10.
    """
    solution = solvers.nuclear_max_margin(published([78], 10, 5, 4).problem(0))
    assert solution.norm == pytest.approx(7546.4292687)
    assert solution.gap < 1e-12


def test_unverified_answers_are_not_returned(monkeypatch):
    c = published(range(3), 5, 4, 6)
    monkeypatch.setattr(nuclear, "STAGES", ())
    solutions = solvers.nuclear_max_margins(c)
    assert solutions.status == ("not converged",) * 3
    assert not solutions.W.any()
    assert torch.isinf(solutions.kkt).all()
    with pytest.raises(NotConverged) as caught:
        solutions[0]
    assert caught.value.state.kkt == caught.value.residuals > 1e-9


def test_overflowing_iterates_are_never_the_answer():
    c = published(range(2), 5, 4, 6)
    near = solvers.frobenius_max_margins(c)
    problems = reduced(c, near.norm)
    Q = np.zeros((2, *problems.cone.query.shape[-1:] * 2))
    Q[1] = 1e200
    with np.errstate(over="ignore"):
        answer = problems.factored(near.dual.numpy(), Q)
    assert (answer.kkt >= 1).all()
    assert np.isfinite(answer.W).all()


def test_a_tolerance_below_rounding_does_not_converge():
    c = published(range(1), 5, 4, 6).problem(0)
    with pytest.raises(NotConverged, match="tol") as caught:
        solvers.nuclear_max_margin(c, tol=1e-30)
    assert caught.value.residuals < 1e-12
    assert_optimal(c, caught.value.state, 1e-12)


def nearly_opposite(delta: float, *, query: list[list[float]]) -> Constraints:
    """Differences (1, 0) and (-1, delta), and a third: the smallest W is of the length 1 / delta, in
    multipliers of its square.
    """
    d = torch.tensor([[1.0, 0.0], [-1.0, delta], [0.3, 0.7]], dtype=torch.float64)
    return Constraints(d[: len(query)], torch.tensor(query, dtype=torch.float64))


@each_case("delta", [1e-4, 1e-5, 1e-6, 1e-7])
def test_a_nearly_contradictory_problem_does_not_disturb_its_neighbours(delta):
    """The smallest W is (1, 2 / delta): the Gram matrix of the constraints is singular to rounding, and its
    factorisation breaks down.
    """
    hard = nearly_opposite(delta, query=[[1.0], [1.0]])
    easy = Constraints(IDENTITY[:2, :2], torch.ones(2, 1, dtype=torch.float64))
    solutions = solvers.nuclear_max_margins(stack([easy, hard, easy]))
    assert solutions.status == ("optimal",) * 3
    assert_close(solutions.W[[0, 2], :, 0], torch.ones(2, 2, dtype=torch.float64))
    assert_close(solutions.W[1, :, 0], torch.tensor([1.0, 2 / delta], dtype=torch.float64), rtol=1e-9, atol=0)
    assert solutions[1].rank == solvers.nuclear_max_margin(hard).rank == 1


@each_case("delta", [1e-3, 1e-4, 1e-5])
@each_case("third", [[0.0, 1.0], [0.6, 0.8]])
def test_nearly_opposite_constraints_are_solved_or_refused_with_their_residual(delta, third):
    """Sums of multipliers of order 1 / delta cancel here; an answer that cannot be verified is the state of
    the exception.
    """
    c = nearly_opposite(delta, query=[[1.0, 0.0], [1.0, 0.0], third])
    frobenius = solvers.frobenius_max_margin(c, tol=1e-9).norm
    try:
        solution = solvers.nuclear_max_margin(c)
    except NotConverged as refusal:
        solution = refusal.state
    assert solution.kkt < 1e-2
    assert (solution.status == "optimal") == (solution.kkt <= 1e-9)
    assert_optimal(c, solution, 1.01 * max(solution.kkt, 1e-9))
    assert solution.norm >= (1 - max(solution.kkt, 1e-9)) * frobenius  # the nuclear norm of W is its longest


def test_an_error_carries_the_best_point():
    c = nearly_opposite(1e-3, query=[[1.0, 0.0], [1.0, 0.0], [0.3, 1.0]])
    with pytest.raises(NotConverged, match="tol") as caught:
        solvers.nuclear_max_margin(c, tol=1e-30)
    assert caught.value.state.kkt == caught.value.residuals < 1e-4


def planted(n: int, T: int, d: int, d_z: int, *, seed: int = 0) -> Constraints:
    """Many constraints that a known W meets."""
    generator = torch.Generator().manual_seed(seed)
    x, z, W = (
        torch.randn(*size, generator=generator, dtype=torch.float64)
        for size in ((n, T, d), (n, d_z), (d, d_z))
    )
    return builders.constraints(x, z, torch.einsum("ntd,de,ne->nt", x, W, z).argmax(-1))


def test_batches_of_many_constraints_with_equations_and_padding():
    many = planted(70, 8, 6, 5)
    binding = solvers.nuclear_max_margin(many).dual.topk(3).indices
    tied = Constraints(
        many.difference,
        many.query,
        equality=torch.zeros(len(many), dtype=torch.bool).index_fill(0, binding, True),
    )
    problems = [many, tied, many.take(slice(0, 9))]
    solutions = solvers.nuclear_max_margins(stack(problems))
    for at, one in enumerate(problems):
        assert_optimal(one, solvers.nuclear_max_margin(one), 1e-10)
        assert float(solutions.norm[at]) == pytest.approx(solvers.nuclear_max_margin(one).norm, rel=1e-10)
        assert float(solutions.kkt[at]) < 1e-10


def test_a_batch_of_many_constraints_none_of_which_can_be_met():
    c = planted(70, 8, 6, 5)
    c = Constraints(torch.cat([c.difference, -c.difference[:1]]), torch.cat([c.query, c.query[:1]]))
    assert solvers.nuclear_max_margins(stack([c, c])).status == ("infeasible",) * 2
