"""The Frobenius solvers: right-hand sides and equations, contradictions, accuracy, thousands
of constraints.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.attention_svm import orthogonal_constraints
from transformer_theory.core.errors import Infeasible, NotConverged
from transformer_theory.theories.attention_svm import builders, solvers
from transformer_theory.theories.attention_svm.constraint_set import Constraints
from transformer_theory.theories.attention_svm.problem import cross_attention
from transformer_theory.theories.attention_svm.solvers.active_set import block_pivoting, least_distance
from transformer_theory.theories.attention_svm.solvers.contradictions import Contradiction
from transformer_theory.theories.attention_svm.solvers.frobenius import residuals
from transformer_theory.theories.attention_svm.solvers.frobenius_batched import Batch
from transformer_theory.theories.attention_svm.solvers.pairs import Pairs
from transformer_theory.theories.attention_svm.solvers.tolerances import DIRECT_SIZE, EPSILON
from transformer_theory.theories.attention_svm.solvers.working_sets import solve_large


def drawn(n, T, d, *, trials, seed=0):
    instance = cross_attention(
        inputs=n, tokens=T, dim=d, generator=torch.Generator().manual_seed(seed), trials=trials
    )
    return builders.constraints(instance.tokens, instance.query, instance.optimal())


def mixed(seed, m=20, d=5, equations=4):
    """Random constraints with random right-hand sides, some negative, and some equations."""
    g = torch.Generator().manual_seed(seed)
    difference, query = torch.randn(2, m, d, generator=g, dtype=torch.float64)
    rhs = torch.randn(m, generator=g, dtype=torch.float64)
    return Constraints(difference, query, rhs=rhs, equality=torch.arange(m) % (m // equations) == 0)


def plain(c):
    return Pairs(*(v.numpy() for v in (c.difference, c.query, c.rhs, c.equality)))


def interior_point(c):
    """cvxpy's solution; None if it finds none."""
    import cvxpy as cp

    W = cp.Variable((c.difference.shape[1], c.query.shape[1]))
    margins = cp.sum(cp.multiply(c.difference.numpy() @ W, c.query.numpy()), axis=1)
    e, rhs = c.equality.numpy(), c.rhs.numpy()
    held = [margins[np.flatnonzero(~e)] >= rhs[~e], margins[np.flatnonzero(e)] == rhs[e]]
    cp.Problem(cp.Minimize(cp.sum_squares(W)), held[: 1 + bool(e.any())]).solve(
        solver="CLARABEL", tol_gap_rel=1e-11, tol_feas=1e-11
    )
    return None if W.value is None else torch.from_numpy(np.array(W.value))


# ---- right-hand sides and equations


@pytest.mark.parametrize("m", [20, 80])
def test_right_hand_sides_and_equations_agree_with_an_interior_point_solver(m):
    """m = 20: independent constraints. m = 80 in 36 dimensions: dependent ones, of which some draws are
    infeasible.
    """
    outcomes = []
    for seed in range(8):
        c = mixed(seed, m=m, d=5 if m == 20 else 8, equations=4)
        if m == 80:
            c = Constraints(
                c.difference,
                c.query[:, :5].contiguous(),
                rhs=c.rhs - 0.8 * (~c.equality),
                equality=c.equality,
            )
        expected = interior_point(c)
        if expected is None:
            with pytest.raises(Infeasible):
                solvers.frobenius_max_margin(c)
        else:
            solution = solvers.frobenius_max_margin(c)
            assert solution.kkt < 1e-12
            # what the other solver reaches
            assert_close(solution.W, expected, rtol=0, atol=1e-5 * solution.norm)
            assert_close(solution.margins[c.equality], c.rhs[c.equality], rtol=0, atol=1e-13)
            assert float((solution.margins - c.rhs).min()) > -1e-12
            assert float(solution.dual[~c.equality].min()) >= 0
        outcomes.append(expected is not None)
    assert any(outcomes)


def test_equations_alone_give_the_smallest_solution_of_the_linear_system():
    c = mixed(3, m=9, d=4, equations=9)
    assert c.equality.all()
    flat = torch.einsum("cx,cz->cxz", c.difference, c.query).reshape(9, -1)
    solution = solvers.frobenius_max_margin(c)
    assert_close(solution.W.reshape(-1), torch.linalg.pinv(flat) @ c.rhs, rtol=0, atol=1e-13)
    assert solution.kkt < 1e-14
    assert float(solution.dual.min()) < 0  # multipliers of equations have either sign


def test_the_same_equation_twice_changes_nothing():
    c = mixed(1)
    twice = Constraints(
        *(torch.cat([v, v[:1]]) for v in (c.difference, c.query)),
        **{name: torch.cat([v, v[:1]]) for name, v in (("rhs", c.rhs), ("equality", c.equality))},
    )
    assert_close(solvers.frobenius_max_margin(twice).W, solvers.frobenius_max_margin(c).W, rtol=0, atol=1e-12)


def test_doubled_right_hand_sides_double_the_solution():
    c = drawn(4, 5, 6, trials=1).problem(0)
    for factor in (2.0, 1e-9, 1e9):
        scaled = solvers.frobenius_max_margin(Constraints(c.difference, c.query, rhs=factor * c.rhs))
        assert_close(scaled.W, factor * solvers.frobenius_max_margin(c).W, rtol=1e-12, atol=0)
        assert scaled.kkt < 1e-14


def test_constraints_that_hold_for_zero_give_zero(generator):
    pairs, _, _ = orthogonal_constraints(generator)
    free = Constraints(pairs.difference, pairs.query, rhs=-torch.ones(4, dtype=torch.float64))
    solution = solvers.frobenius_max_margin(free)
    assert not solution.W.any()
    assert solution.kkt == 0
    assert solution.rank == 0


def test_a_constraint_with_a_lower_margin_is_met_with_equality_only_if_it_binds(generator):
    """Orthogonal constraints: each multiplier is its right-hand side over the squared length, or zero where
    that is negative.
    """
    pairs, _, ones = orthogonal_constraints(generator)
    rhs = torch.tensor([2.0, -3.0, 0.5, 0.0], dtype=torch.float64)
    assert_close(
        solvers.frobenius_max_margin(Constraints(pairs.difference, pairs.query, rhs=rhs)).dual,
        ones * rhs.clamp(min=0),
    )
    equal = Constraints(pairs.difference, pairs.query, rhs=rhs, equality=torch.ones(4, dtype=torch.bool))
    assert_close(solvers.frobenius_max_margin(equal).dual, ones * rhs)


# ---- contradictions


def combination(c, proof):
    """What the certificate combines the constraints to: a matrix that should be zero, and a right-hand side
    that should be one.
    """
    return float(c.combine(proof.weights).norm()), float(proof.weights @ c.rhs)


def test_inconsistent_equations_are_refused_with_weights_of_both_signs(generator):
    u, z = torch.randn(2, 1, 4, generator=generator, dtype=torch.float64)
    c = Constraints(
        torch.cat([u, 2 * u, u + 1]),
        z.expand(3, 4).contiguous(),
        rhs=torch.tensor([1.0, 3.0, 1.0], dtype=torch.float64),
        equality=torch.ones(3, dtype=torch.bool),
    )
    with pytest.raises(Infeasible, match=r"input 0 .*input 1") as caught:
        solvers.frobenius_max_margin(c)
    matrix, rhs = combination(c, caught.value.certificate)
    assert matrix < 1e-12
    assert rhs == pytest.approx(1)
    assert caught.value.certificate.weights[:2].sign().tolist() == [-1, 1]
    assert caught.value.certificate.constraints == ((0, 0), (1, 0))  # the third equation has no part in it


@pytest.mark.parametrize("rhs", [0.0, 0.5])
def test_inequalities_against_equations_are_refused_with_a_proof(rhs):
    """Random equations fix 12 of 16 directions; many inequalities cannot hold in the rest."""
    g = torch.Generator().manual_seed(0)
    difference, query = torch.randn(2, 60, 4, generator=g, dtype=torch.float64)
    equality = torch.arange(60) < 12
    c = Constraints(difference, query, rhs=torch.where(equality, rhs, 1.0).double(), equality=equality)
    with pytest.raises(Infeasible) as caught:
        solvers.frobenius_max_margin(c)
    matrix, one = combination(c, caught.value.certificate)
    assert matrix < 1e-10
    assert one == pytest.approx(1)
    assert float(caught.value.certificate.weights[~equality].min()) >= 0
    assert interior_point(c) is None


def test_an_inequality_whose_margin_the_equations_fix_is_refused(generator):
    u, z = torch.randn(2, 1, 4, generator=generator, dtype=torch.float64)
    equality = torch.tensor([True, False])
    twice, rhs = torch.cat([u, u]), torch.tensor([0.0, 1.0], dtype=torch.float64)
    c = Constraints(twice, z.expand(2, 4).contiguous(), rhs=rhs, equality=equality)
    with pytest.raises(Infeasible) as caught:
        solvers.frobenius_max_margin(c)
    assert combination(c, caught.value.certificate)[0] < 1e-12
    met = Constraints(twice, z.expand(2, 4).contiguous(), rhs=rhs.flip(0), equality=equality)
    assert_close(solvers.frobenius_max_margin(met).margins, torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize(("rhs", "equality"), [(1.0, False), (1.0, True), (-1.0, True)])
def test_a_zero_constraint_that_fails_is_infeasible(rhs, equality):
    zero = torch.zeros(1, 3, dtype=torch.float64)
    c = Constraints(
        zero, zero, rhs=torch.tensor([rhs], dtype=torch.float64), equality=torch.tensor([equality])
    )
    with pytest.raises(Infeasible) as caught:
        solvers.frobenius_max_margin(c)
    assert combination(c, caught.value.certificate) == (0, 1)
    assert caught.value.certificate.norm_at_least == float("inf")


def of(differences, **how):
    rows = torch.tensor(differences, dtype=torch.float64)
    how = {
        name: torch.tensor(v, dtype=torch.float64 if name == "rhs" else torch.bool) for name, v in how.items()
    }
    return Constraints(rows, torch.ones(len(rows), 1, dtype=torch.float64), **how)


@each_case(
    ("c", "W", "proved"),
    [
        (of([[1, 0], [-1, 2**-39]]), [1, 2**40], 2**40),
        (of([[1, 0], [-1, 1e-13]]), [1, 2e13], 2e13),
        (of([[1, 0], [1, 1e-10]], rhs=[0, 1], equality=[True, False]), [0, 1e10], 1e10),
        (of([[1, 0], [1, 1e-12]], rhs=[0, 1], equality=[True, True]), [0, 1e12], 1e12),
    ],
)
def test_constraints_that_a_long_W_meets_are_not_infeasible(c, W, proved):
    """The weights prove a bound on the norm, which the message gives, and no contradiction."""
    W = torch.tensor(W, dtype=torch.float64)[:, None]
    assert ((c.margins(W) - c.rhs).abs() < 1e-3).all()
    with pytest.raises(NotConverged, match="norm") as caught:
        solvers.frobenius_max_margin(c)
    bound = float(str(caught.value).split("at least ")[1].split(",")[0])
    assert proved / 2.2 < bound < 1.06 * float(W.norm())


@pytest.mark.parametrize(
    "c",
    [
        of([[1, 0.3], [-1, -0.3]]),
        of([[0.1, 0.7]] * 2, rhs=[0, 1], equality=[True, False]),
        of([[0, 0], [1, 1]]),
    ],
)
def test_exact_contradictions_remain_infeasible(c):
    with pytest.raises(Infeasible) as caught:
        solvers.frobenius_max_margin(c)
    assert caught.value.certificate.residual < 5e-16


def test_certificates_are_zero_to_rounding():
    c = drawn(15, 5, 4, trials=60)
    solved = solvers.frobenius_max_margins(c)
    for b in (~solved.solved).nonzero().squeeze(-1).tolist():
        with pytest.raises(Infeasible) as caught:
            solved[b]
        proof = caught.value.certificate
        assert proof.residual <= len(proof.constraints) * 1e-15
        assert combination(c.problem(b), proof)[1] == pytest.approx(1)


@pytest.mark.parametrize("size", [1e-90, 1e90])
def test_lengths_out_of_range_are_refused(size):
    c = Constraints(*torch.full((2, 1, 1), size, dtype=torch.float64))
    with pytest.raises(NotConverged, match=rf"got {size**2:.1e} for input 0 ".replace("+", r"\+")):
        solvers.frobenius_max_margin(c)
    one = Constraints(c.difference, torch.ones(1, 1, dtype=torch.float64))
    assert float(solvers.frobenius_max_margin(one).W) == pytest.approx(1 / size)


@pytest.mark.parametrize("scale", [1e7, 1.0, 1e-7])
def test_a_W_of_the_wrong_length_has_a_large_residual_at_any_scale(scale):
    c = of((scale * np.eye(3)).tolist())
    pairs, W, multipliers = plain(c), np.ones((3, 1)) / scale, np.ones(3) / scale**2
    assert residuals(pairs, W, multipliers)[0] < 1e-15
    batch = Batch(Constraints(c.difference[None], c.query[None], rhs=c.rhs[None]))
    for longer, dual in ((3, 3), (3, 1), (1, 3), (1 + 1e-6, 1 + 1e-6)):
        kkt, gap = residuals(pairs, longer * W, dual * multipliers)
        assert kkt > 1e-7
        batched = batch.residuals(
            torch.from_numpy(longer * W)[None], torch.from_numpy(dual * multipliers)[None]
        )
        assert [float(v) for v in batched] == pytest.approx([kkt, gap], rel=1e-6)


@pytest.mark.parametrize("small", [1e-4, 1e-6])
def test_constraints_of_different_scales_are_solved(small):
    solution = solvers.frobenius_max_margin(of([[1, 0], [-1, small]]), tol=1e-9)
    assert_close(solution.W[:, 0], torch.tensor([1, 2 / small], dtype=torch.float64), rtol=1e-12, atol=1e-9)


def test_a_residual_above_the_tolerance_carries_the_last_iterate():
    """W = (1, 2e6): float64 rounds its margins by about 5e-10."""
    c = of([[1, 0.3], [-1, -0.3 + 1e-6]])
    with pytest.raises(NotConverged, match=r"2\.1e\+06 .*5e-10.*tol") as caught:
        solvers.frobenius_max_margin(c)
    state, kkt = caught.value.state, caught.value.residuals
    assert 1e-12 < state.kkt == kkt < 1e-8
    assert state.status == "not converged"
    assert_close(c.margins(state.W), c.rhs, rtol=0, atol=2 * kkt)
    assert solvers.frobenius_max_margin(c, tol=1.01 * kkt).status == "optimal"


@pytest.mark.parametrize("closeness", [1e-3, 1e-5, 1e-8])
def test_the_residual_bounds_violated_margins(closeness):
    """A token nearly equal to the selected one: norms of 1e3 to 1e9, where rounding of the margins is most of
    the residual.
    """
    generator = torch.Generator().manual_seed(5)
    x, z = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in ((4, 4, 6), (4, 6)))
    x[0, 1] = x[0, 0] + closeness
    c = builders.constraints(x, z, torch.zeros(4, dtype=torch.long))
    for solve in (solvers.frobenius_max_margin, solvers.nuclear_max_margin):
        try:
            solution = solve(c)
        except NotConverged as refusal:
            solution = refusal.state
        if solution is None:
            continue
        rounding = (
            10
            * EPSILON
            * float(solution.W.norm())
            * float((c.difference.norm(dim=1) * c.query.norm(dim=1)).max())
        )
        margins = [_exact_margin(d, solution.W, z) for d, z in zip(c.difference, c.query)]
        assert 1 - min(margins) <= solution.kkt + rounding


def _exact_margin(d, W, z) -> float:
    terms = (
        Fraction(x) * Fraction(w) * Fraction(y)
        for x, row in zip(d.tolist(), W.tolist())
        for w, y in zip(row, z.tolist())
    )
    return float(sum(terms, Fraction(0)))


# ---- accuracy


@each_case(("n", "T", "d"), [(6, 8, 10), (10, 5, 20), (20, 10, 30), (5, 15, 10)])
def test_residuals_are_at_rounding(n, T, d):
    c = drawn(n, T, d, trials=20)
    solved = solvers.frobenius_max_margins(c)
    assert solved.solved.all()
    assert float(solved.kkt.max()) < 1e-13
    for b in range(20):
        assert solvers.frobenius_max_margin(c.problem(b)).kkt < 1e-13


# ---- thousands of constraints


@pytest.mark.parametrize("seed", range(3))
def test_working_sets_find_the_solution_of_the_direct_method(seed):
    c = drawn(20, 11, 12, trials=1, seed=seed).problem(0)
    assert len(c) < DIRECT_SIZE
    W, multipliers = solve_large(plain(c), tol=1e-12)
    direct = solvers.frobenius_max_margin(c)
    assert_close(torch.from_numpy(W), direct.W, rtol=0, atol=1e-11 * direct.norm)
    assert_close(torch.from_numpy(multipliers), direct.dual, rtol=0, atol=1e-8 * float(direct.dual.max()))


def test_three_thousand_constraints_are_solved_to_rounding():
    c = drawn(150, 21, 50, trials=1).problem(0)
    assert len(c) == 3000
    solution = solvers.frobenius_max_margin(c)
    assert solution.kkt < 1e-12
    assert_close(c.combine(solution.dual), solution.W, rtol=0, atol=1e-10 * solution.norm)
    active = (solution.dual > 0).nonzero().squeeze(-1)
    few = solvers.frobenius_max_margin(c.take(active))  # the active constraints alone have the same solution
    assert_close(few.W, solution.W, rtol=0, atol=1e-10 * solution.norm)


def test_a_contradiction_among_thousands_is_named():
    c = drawn(500, 5, 3, trials=1).problem(0)
    with pytest.raises(Infeasible) as caught:
        solvers.frobenius_max_margin(c)
    matrix, one = combination(c, caught.value.certificate)
    assert matrix < 1e-11
    assert one == pytest.approx(1)
    assert len(caught.value.certificate.constraints) <= 10  # as many as W has entries, and one


def test_both_methods_find_the_same_active_set_with_equations():
    for seed in range(10):
        pairs = plain(mixed(seed))
        pivoted = block_pivoting(pairs.gram, pairs.rhs, pairs.free)
        assert pivoted is not None
        assert (pivoted == ((least_distance(pairs) > 0) | pairs.free)).all()


def test_least_distance_refuses_equations_that_contradict_one_another(generator):
    pairs = plain(mixed(0))
    doubled = Pairs(
        *(np.concatenate([v, v[:1]]) for v in (pairs.difference, pairs.query, pairs.rhs, pairs.free))
    )
    doubled.rhs[-1] += 1
    with pytest.raises(Contradiction):
        least_distance(doubled)
