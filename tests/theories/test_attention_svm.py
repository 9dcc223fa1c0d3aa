"""Max-margin solvers against closed forms and other solvers, infeasible selections, descent against autograd,
selections.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.cases import each_case
from tests.problems.attention_svm import orthogonal_constraints, published_picture, two_tokens
from transformer_theory.core.errors import Infeasible, NotConverged
from transformer_theory.theories import attention_svm
from transformer_theory.theories.attention_svm.builders import distinct_constraints
from transformer_theory.theories.attention_svm.dynamics import descent_direction, random_start
from transformer_theory.theories.attention_svm.problem import (
    equal_distractors,
    random_selection,
    token_logits,
)
from transformer_theory.theories.attention_svm.selection import (
    first_step_condition,
    locally_optimal,
    neighbours,
)
from transformer_theory.theories.attention_svm.solvers.active_set import block_pivoting, least_distance
from transformer_theory.theories.attention_svm.solvers.pairs import Pairs


def problem(inputs=6, tokens=8, dim=10, seed=0):
    instance = attention_svm.cross_attention(
        inputs=inputs, tokens=tokens, dim=dim, generator=torch.Generator().manual_seed(seed)
    )
    return instance, attention_svm.constraints(instance.tokens, instance.query, instance.optimal())


def narrow(seed):
    """An infeasible selection: too many inputs for the dimension."""
    instance = problem(inputs=12, tokens=6, dim=3, seed=seed)[0]
    select = random_selection(instance, generator=torch.Generator().manual_seed(seed))
    return select, attention_svm.constraints(instance.tokens, instance.query, select)


def outer_products(pairs):
    return torch.einsum("cx,cz->cxz", pairs.difference, pairs.query).reshape(len(pairs), -1)


# ---- constraints


def test_constraints_are_the_differences_to_the_selected_token():
    instance, pairs = problem()
    W = torch.randn(10, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    logits = token_logits(instance.tokens, instance.query, W)
    assert len(pairs) == 6 * 7
    for c, margin in enumerate(pairs.margins(W)):
        i, t = pairs.names(c)
        assert t != instance.optimal()[i]
        assert_close(margin, logits[i, instance.optimal()[i]] - logits[i, t])


def test_gram_matrix_is_that_of_the_outer_products():
    _, pairs = problem(3, 4, 5)
    assert_close(pairs.gram(), outer_products(pairs) @ outer_products(pairs).T)


@pytest.mark.parametrize("solve", [attention_svm.frobenius_max_margin, attention_svm.nuclear_max_margin])
def test_a_single_token_has_no_constraint_and_the_solution_is_zero(solve, generator):
    x, z = torch.randn(3, 1, 4, generator=generator).double(), torch.randn(3, 4, generator=generator).double()
    solution = solve(attention_svm.constraints(x, z, torch.zeros(3, dtype=torch.long)))
    assert solution.W.shape == (4, 4)
    assert not solution.W.any()
    assert solution.rank == 0


# ---- max-margin solvers


@pytest.mark.parametrize("solve", [attention_svm.frobenius_max_margin, attention_svm.nuclear_max_margin])
def test_two_tokens_have_the_closed_form(solve, generator):
    pairs, W = two_tokens(generator)
    solution = solve(pairs)
    assert_close(solution.W, W, atol=1e-7 if solve is attention_svm.nuclear_max_margin else 1e-14, rtol=0)
    assert solution.rank == 1


def test_orthogonal_constraints_have_the_closed_form(generator):
    pairs, W, multipliers = orthogonal_constraints(generator)
    solution = attention_svm.frobenius_max_margin(pairs)
    assert_close(solution.W, W, atol=1e-14, rtol=0)
    assert_close(solution.dual, multipliers, atol=1e-14, rtol=0)
    assert solution.support().tolist() == [0, 1, 2, 3]


@each_case(("n", "T", "d"), [(6, 8, 10), (3, 4, 2), (4, 16, 4), (5, 6, 3), (20, 10, 30), (1, 2, 1)])
def test_kkt_conditions_hold_to_rounding(n, T, d):
    feasible = 0
    for seed in range(8):
        _, pairs = problem(n, T, d, seed)
        try:
            solution = attention_svm.frobenius_max_margin(pairs)
        except Infeasible:
            continue
        feasible, scale = feasible + 1, max(1.0, float(solution.W.square().sum()))
        assert solution.kkt <= 1e-12
        assert float(solution.margins.min()) >= 1 - 1e-12
        assert float(solution.dual.min()) >= 0
        assert float((solution.dual * (pairs.margins(solution.W) - 1)).abs().max()) <= 1e-11 * scale
        assert_close(pairs.combine(solution.dual), solution.W, rtol=1e-9, atol=1e-11)
        assert solution.norm == pytest.approx(float(solution.W.norm()))
        assert solution.rank <= min(n, d)
    assert feasible >= 3


def cvxpy_solution(pairs, norm):
    import cvxpy as cp

    W = cp.Variable((pairs.difference.shape[1], pairs.query.shape[1]))
    margins = cp.sum(cp.multiply(pairs.difference.numpy() @ W, pairs.query.numpy()), axis=1)
    cp.Problem(cp.Minimize(cp.sum_squares(W) if norm == "fro" else cp.normNuc(W)), [margins >= 1]).solve(
        solver="CLARABEL"
    )
    return torch.from_numpy(np.array(W.value))


@pytest.mark.parametrize(("n", "T", "d"), [(6, 8, 10), (4, 12, 3), (10, 5, 6)])
def test_frobenius_agrees_with_an_interior_point_solver(n, T, d):
    _, pairs = problem(n, T, d, seed=3)
    W = attention_svm.frobenius_max_margin(pairs).W
    assert_close(W, cvxpy_solution(pairs, "fro"), rtol=0, atol=1e-5 * float(W.norm()))


def test_frobenius_agrees_with_a_linear_support_vector_machine():
    from sklearn.svm import SVC

    _, pairs = problem(4, 5, 5)
    flat = outer_products(pairs).numpy()
    # symmetric, so the offset is zero
    both, sign = np.concatenate([flat, -flat]), np.r_[np.ones(len(flat)), -np.ones(len(flat))]
    machine = SVC(kernel="linear", C=1e8, tol=1e-8).fit(both, sign)
    solution = attention_svm.frobenius_max_margin(pairs)
    assert_close(solution.W, torch.tensor(machine.coef_).reshape(5, 5), rtol=0, atol=1e-5 * solution.norm)


def test_block_pivoting_and_non_negative_least_squares_find_the_same_active_set():
    for seed in range(10):
        _, pairs = problem(6, 8, 10, seed)
        plain = Pairs(*(v.numpy() for v in (pairs.difference, pairs.query, pairs.rhs, pairs.equality)))
        pivoted = block_pivoting(plain.gram, plain.rhs, plain.free)
        assert pivoted is not None
        assert (pivoted == (least_distance(plain) > 0)).all()


def test_nuclear_solution_meets_its_optimality_conditions():
    for seed in range(4):
        _, pairs = problem(6, 6, 8, seed)
        solution = attention_svm.nuclear_max_margin(pairs)
        dual = pairs.combine(solution.dual)
        assert solution.kkt <= 1e-6
        assert float(torch.linalg.matrix_norm(dual, 2)) <= 1 + 1e-9
        assert float(solution.margins.min()) >= 1 - 1e-12
        assert float(solution.dual.sum()) == pytest.approx(solution.norm, rel=1e-6)  # no duality gap
        assert solution.norm == pytest.approx(float(torch.linalg.matrix_norm(solution.W, "nuc")))
        assert solution.norm <= float(
            torch.linalg.matrix_norm(attention_svm.frobenius_max_margin(pairs).W, "nuc")
        )
        active = int((solution.margins < 1 + 1e-6).sum())
        # Pataki's bound: the solution is unique for random data
        assert solution.rank * (solution.rank + 1) / 2 <= active


def test_nuclear_agrees_with_the_problem_as_written():
    _, pairs = problem(4, 5, 6, seed=1)
    assert_close(attention_svm.nuclear_max_margin(pairs).W, cvxpy_solution(pairs, "nuc"), rtol=0, atol=1e-4)


@pytest.mark.parametrize("number", [1, 2])
def test_the_published_pictures(number):
    instance, known = published_picture(number)
    pairs = attention_svm.constraints(instance.tokens, instance.query, torch.tensor(known["select"]))
    solution, nuclear = attention_svm.frobenius_max_margin(pairs), attention_svm.nuclear_max_margin(pairs)
    assert_close(solution.W, torch.tensor(known["W"], dtype=torch.float64), rtol=0, atol=1e-5)
    assert solution.norm == pytest.approx(known["frobenius"], abs=1e-5)
    assert nuclear.norm == pytest.approx(known["nuclear"], abs=1e-5)
    assert nuclear.rank == known["rank"]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 5), st.integers(2, 6), st.integers(5, 8))
def test_rotations_turn_the_solution_and_order_does_not_matter(seed, n, T, d):
    generator = torch.Generator().manual_seed(seed)
    instance = attention_svm.cross_attention(inputs=n, tokens=T, dim=d, generator=generator)
    select = random_selection(instance, generator=generator)
    solution = attention_svm.frobenius_max_margin(
        attention_svm.constraints(instance.tokens, instance.query, select)
    )
    left, right = (
        torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))[0] for _ in range(2)
    )
    turned = attention_svm.frobenius_max_margin(
        attention_svm.constraints(instance.tokens @ left.T, instance.query @ right.T, select)
    )
    assert_close(turned.W, left @ solution.W @ right.T, rtol=0, atol=1e-9 * solution.norm)
    order, places = torch.randperm(n, generator=generator), torch.randperm(T, generator=generator)
    moved = attention_svm.constraints(
        instance.tokens[order][:, places], instance.query[order], places.argsort()[select[order]]
    )
    assert_close(attention_svm.frobenius_max_margin(moved).W, solution.W, rtol=0, atol=1e-9 * solution.norm)


def test_scaling_the_tokens_scales_the_solution_inversely():
    instance, pairs = problem()
    scaled = attention_svm.constraints(1e4 * instance.tokens, 1e-2 * instance.query, instance.optimal())
    assert_close(
        attention_svm.frobenius_max_margin(scaled).W,
        1e-2 * attention_svm.frobenius_max_margin(pairs).W,
        rtol=1e-9,
        atol=0,
    )


# ---- infeasible selections


@pytest.mark.parametrize("solve", [attention_svm.frobenius_max_margin, attention_svm.nuclear_max_margin])
def test_an_infeasible_selection_comes_with_a_proof(solve):
    for seed in range(6):
        select, pairs = narrow(seed)
        with pytest.raises(Infeasible, match=r"no W selects these tokens.*input \d+ \(token") as caught:
            solve(pairs)
        proof = caught.value.certificate
        assert float(proof.weights.min()) >= 0
        assert float(proof.weights.sum()) == pytest.approx(1)
        assert float(pairs.combine(proof.weights).norm()) < 1e-12  # the combined constraint is 0 >= 1
        assert proof.norm_at_least > 1e12
        assert all(t != select[i] for i, t in proof.constraints)


def test_infeasibility_agrees_with_linear_programming():
    from scipy.optimize import linprog

    agreed = {True: 0, False: 0}
    for seed in range(25):
        _, pairs = problem(8, 5, 3, seed)
        flat = outer_products(pairs).numpy()
        possible = (
            linprog(np.zeros(flat.shape[1]), A_ub=-flat, b_ub=-np.ones(len(flat)), bounds=(None, None)).status
            == 0
        )
        try:
            attention_svm.frobenius_max_margin(pairs, tol=1e-8)
            assert possible
        except Infeasible:
            assert not possible
        agreed[possible] += 1
    assert min(agreed.values()) >= 3


def test_equal_tokens_are_infeasible_and_named_or_dropped_on_request():
    instance, _ = problem(3, 4, 6)
    tokens = instance.tokens.clone()
    tokens[1, 3] = tokens[1, 0]
    select = torch.tensor([0, 0, 2])
    with pytest.raises(Infeasible, match=r"input 1 \(token 3\)"):
        attention_svm.frobenius_max_margin(attention_svm.constraints(tokens, instance.query, select))
    pairs = distinct_constraints(tokens, instance.query, select)
    assert len(pairs) == 8
    assert attention_svm.frobenius_max_margin(pairs).kkt <= 1e-12


def test_a_zero_query_is_infeasible():
    instance, _ = problem(3, 4, 6)
    query = instance.query.clone()
    query[2] = 0
    with pytest.raises(Infeasible, match="input 2"):
        attention_svm.frobenius_max_margin(
            attention_svm.constraints(instance.tokens, query, instance.optimal())
        )


@each_case("width", [1e-3, 1e-6, 1e-9, 1e-12])
def test_margins_below_rounding_are_not_reported_as_solved(width):
    """Directions (1, 0) and (-1, width), feasible by a margin of about width / 2, are solved to 1e-12 or
    refused.
    """
    u = torch.tensor([[1.0, 0.0], [-1.0, width]], dtype=torch.float64)
    pairs = attention_svm.Constraints(u, torch.ones(2, 1, dtype=torch.float64))
    try:
        solution = attention_svm.frobenius_max_margin(pairs)
    except (NotConverged, Infeasible) as refusal:
        assert width < 1e-3
        assert getattr(refusal, "residuals", 1) > 1e-12  # noqa: PT017
    else:
        assert_close(solution.W, torch.tensor([[1.0], [2 / width]], dtype=torch.float64), rtol=1e-9, atol=0)


@each_case(
    ("change", "message"),
    [
        (lambda x, z, a: (x * torch.nan, z, a), "tokens must be finite, got 72 NaN"),
        (lambda x, z, a: (x[0], z, a), r"tokens must .*\[4, 6\]"),
        (lambda x, z, a: (x[:0], z[:0], a[:0]), "at least one input"),
        (lambda x, z, a: (x, z[:2], a), r"query must .*\[3\]"),
        (lambda x, z, a: (x, z / 0, a), "query must be finite"),
        (lambda x, z, a: (x, z, a + 3), r"select must lie in \[0, 4\), got"),
        (lambda x, z, a: (x, z, a[:1]), r"select must .*\[1\]"),
    ],
)
def test_bad_input_is_refused(change, message, unchecked):
    instance, _ = problem(3, 4, 6)
    with pytest.raises(ValueError, match=message):
        attention_svm.constraints(*change(instance.tokens, instance.query, instance.optimal()))


# ---- descent


def loss(instance, W):
    attention = token_logits(instance.tokens, instance.query, W).softmax(-1)
    return torch.nn.functional.softplus(-(attention * instance.scores).sum(-1)).mean(-1)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_the_direction_is_the_negative_gradient(scale, generator):
    instance = attention_svm.cross_attention(inputs=5, tokens=4, dim=6, trials=3, generator=generator)
    W = (scale * torch.randn(3, 6, 6, generator=generator, dtype=torch.float64)).requires_grad_()
    loss(instance, W).sum().backward()
    M, C = descent_direction(instance, W.detach())
    assert_close(M * C.exp()[:, None, None], -W.grad, rtol=1e-9, atol=1e-15)


def test_equal_tokens_and_tied_scores_do_not_disturb_the_gradient(generator):
    drawn = attention_svm.cross_attention(inputs=3, tokens=5, dim=4, generator=generator)
    tokens, scores = drawn.tokens.clone(), drawn.scores.clone()
    tokens[:, 1], scores[:, 1], scores[:, 2] = tokens[:, 0], scores[:, 0], scores[:, 0]
    instance = attention_svm.Instance(tokens, drawn.query, scores)
    W = torch.randn(4, 4, generator=generator, dtype=torch.float64).requires_grad_()
    loss(instance, W).backward()
    M, C = descent_direction(instance, W.detach())
    assert_close(M * C.exp(), -W.grad, rtol=1e-9, atol=1e-15)


def test_the_direction_is_exact_where_the_gradient_underflows():
    """One input, two tokens: the gradient is always along (x_a - x_t) z^T."""
    x = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]], dtype=torch.float64)
    instance = attention_svm.Instance(
        x, torch.tensor([[3.0, 1.0]], dtype=torch.float64), torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    )
    line = torch.outer(x[0, 0] - x[0, 1], instance.query[0])
    M, C = descent_direction(instance, 1e3 * line)
    assert float(C) < -10_000  # exp(C) is zero in float64
    assert_close(M / M.norm(), line / line.norm())


def test_equal_scores_leave_w_where_it_is(generator):
    drawn = attention_svm.cross_attention(inputs=2, tokens=3, dim=4, generator=generator)
    flat = attention_svm.Instance(drawn.tokens, drawn.query, torch.ones_like(drawn.scores))
    begin = random_start(flat, generator=generator)
    assert_close(attention_svm.normalised_descent(flat, begin, steps=5).W, begin.W)


def test_a_batch_is_its_trials_and_two_halves_are_the_whole(generator):
    instance = attention_svm.cross_attention(inputs=4, tokens=5, dim=6, trials=3, generator=generator)
    begin = random_start(instance, generator=generator)
    whole = attention_svm.normalised_descent(instance, begin, steps=60)
    assert whole.step == 60
    half = attention_svm.normalised_descent(instance, begin, steps=25)
    assert_close(attention_svm.normalised_descent(instance, half, steps=35).W, whole.W, rtol=0, atol=0)
    for trial in range(3):
        alone = attention_svm.normalised_descent(
            instance[trial], attention_svm.start(instance[trial], W=begin.W[trial]), steps=60
        )
        assert_close(alone.W, whole.W[trial], rtol=1e-10, atol=1e-12)
    plain = attention_svm.plain_descent(instance, begin, steps=60, rate=1.0)
    assert (loss(instance, plain.W) < loss(instance, begin.W)).all()
    assert [s.step for s in attention_svm.trajectory(instance, begin, steps=(0, 3, 60))] == [0, 3, 60]


def test_the_error_falls_like_one_over_the_square_of_time_and_never_rises():
    """Descent by autograd stalls near 1e-3 and turns back; the exact direction does not."""
    instance = equal_distractors(inputs=1, tokens=8, dim=10, generator=torch.Generator().manual_seed(2))
    target = attention_svm.frobenius_max_margin(
        attention_svm.constraints(instance.tokens, instance.query, instance.optimal())
    ).W
    states = attention_svm.trajectory(instance, attention_svm.start(instance), steps=(300, 1000, 3000))
    errors = [
        float((state.W / state.W.norm() - target / target.norm()).square().sum()) / 2 for state in states
    ]
    assert errors[2] < 2e-4
    assert -2.4 < math.log10(errors[2] / errors[0]) < -1.6


def test_descent_refuses_bad_arguments(unchecked):
    instance, _ = problem(2, 3, 4)
    single = attention_svm.Instance(instance.tokens[:, :1], instance.query, instance.scores[:, :1])
    with pytest.raises(ValueError, match="at least two tokens"):
        attention_svm.start(single)
    with pytest.raises(ValueError, match=r"W must .*\[4, 4\]"):
        attention_svm.start(instance, W=torch.zeros(3, 4))
    with pytest.raises(ValueError, match="rate must be positive and finite, got 0"):
        attention_svm.normalised_descent(instance, attention_svm.start(instance), steps=5, rate=0)
    with pytest.raises(ValueError, match="steps must increase"):
        list(attention_svm.trajectory(instance, attention_svm.start(instance), steps=(5, 3)))
    with pytest.raises(ValueError, match="inputs must be at least 1, got 0"):
        attention_svm.cross_attention(inputs=0, tokens=2, dim=2, generator=torch.Generator())


# ---- selections


def test_optimal_tokens_are_locally_optimal_and_the_worst_are_not():
    instance, pairs = problem()
    best = instance.optimal()
    assert locally_optimal(instance.scores, best, pairs, attention_svm.frobenius_max_margin(pairs)).all()
    worst = instance.scores.argmin(-1)
    others = attention_svm.constraints(instance.tokens, instance.query, worst)
    solution = attention_svm.frobenius_max_margin(others)
    optimal = locally_optimal(instance.scores, worst, others, solution)
    touched = {i for i, _ in neighbours(others, solution)}
    assert touched
    # inputs without a neighbour are locally optimal
    assert all(bool(optimal[i]) == (i not in touched) for i in range(6))


def test_first_step_condition_by_hand():
    """One input: the first step is along sum_t c_t x_t z^T with c_t = (gamma_t - mean) / T."""
    instance = equal_distractors(inputs=1, tokens=2, dim=4, generator=torch.Generator().manual_seed(0))
    # a single direction: parallel to the constraint
    assert first_step_condition(instance) == pytest.approx(1)


def test_constraints_take_numpy_arrays_float32_and_lists():
    instance, pairs = problem(3, 4, 6)
    x, z, a = instance.tokens, instance.query, instance.optimal()
    assert_close(attention_svm.constraints(x.numpy(), z.numpy(), a.tolist()).difference, pairs.difference)
    single = attention_svm.constraints(x.float(), z.float(), a.int())
    assert single.difference.dtype == torch.float64
    assert_close(single.difference, pairs.difference, rtol=0, atol=1e-6)
    with pytest.raises(TypeError, match="select"):
        attention_svm.constraints(x, z, a.double())
