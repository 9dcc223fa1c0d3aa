"""Batches of Frobenius problems against the solver of single problems."""

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.core.errors import Infeasible, NotConverged
from transformer_theory.theories.attention_svm import builders, solvers
from transformer_theory.theories.attention_svm.constraint_set import Constraints, stack
from transformer_theory.theories.attention_svm.problem import cross_attention
from transformer_theory.theories.attention_svm.solvers import frobenius_batched, primal_interior
from transformer_theory.theories.attention_svm.solvers.frobenius import solve_problem


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


@each_case(
    ("n", "T", "d"), [(6, 8, 10), (10, 5, 20), (5, 15, 10), (10, 5, 4), (8, 5, 3), (20, 10, 12), (3, 4, 1)]
)
def test_a_batch_gives_the_solutions_of_its_problems(n, T, d):
    c = drawn(n, T, d, trials=24)
    batch = solvers.frobenius_max_margins(c)
    assert len(batch) == 24
    for b in range(24):
        try:
            one = solvers.frobenius_max_margin(c.problem(b))
        except (Infeasible, NotConverged) as refusal:
            expected, one = refusal, None
        if one is None:
            assert batch.status[b] == ("infeasible" if isinstance(expected, Infeasible) else "not converged")
            assert not batch.W[b].any()
            assert batch.kkt[b] == torch.inf
            with pytest.raises(type(expected)):
                batch[b]
            continue
        assert batch.status[b] == "optimal"
        assert_close(batch.W[b], one.W, rtol=0, atol=1e-11 * one.norm)
        assert_close(batch.dual[b], one.dual, rtol=1e-7, atol=1e-9 * float(one.dual.max()))
        assert batch[b].rank == one.rank
        assert batch[b].norm == pytest.approx(one.norm)
    assert batch.W.isfinite().all()


def test_a_batch_takes_equations_padding_and_right_hand_sides():
    problems = [mixed(seed, m=12 + 4 * seed, equations=4) for seed in range(5)]
    batch = solvers.frobenius_max_margins(stack(problems))
    assert batch.solved.all()
    for b, c in enumerate(problems):
        one = solvers.frobenius_max_margin(c)
        assert_close(batch.W[b], one.W, rtol=0, atol=1e-12 * one.norm)
        assert_close(batch.dual[b, : len(c)], one.dual, rtol=0, atol=1e-11 * float(one.dual.abs().max()))
        assert not batch.dual[b, len(c) :].any()


def test_an_infeasible_problem_does_not_disturb_its_neighbours():
    good, bad = mixed(0), mixed(1)
    difference, query, rhs = bad.difference.clone(), bad.query, bad.rhs.clone()
    difference[1], rhs[1] = 0.0, 1.0
    batch = solvers.frobenius_max_margins(
        stack([good, Constraints(difference, query, rhs=rhs, equality=bad.equality)])
    )
    assert batch.status == ("optimal", "infeasible")
    assert_close(batch.W[0], solvers.frobenius_max_margin(good).W, rtol=0, atol=1e-12)
    with pytest.raises(Infeasible, match=r"input 1 \(token 0\)"):
        batch[1]


def test_a_failure_is_stored_with_the_batch(monkeypatch):
    """Indexing runs no solver: it raises what the solver raised."""
    c = drawn(15, 5, 4, trials=20)
    batch = solvers.frobenius_max_margins(c)
    assert not batch.solved.all()

    def fail(*_, **__):
        raise AssertionError("the solver ran again")

    monkeypatch.setattr(frobenius_batched, "solve_problem", fail)
    for b in (~batch.solved).nonzero().squeeze(-1).tolist():
        with pytest.raises(Infeasible) as caught:
            batch[b]
        assert caught.value is batch.failures[b]


def test_empty_batches_and_problems_without_constraints():
    c = drawn(3, 4, 5, trials=4)
    assert len(solvers.frobenius_max_margins(c.problem(slice(0, 0)))) == 0
    single = drawn(3, 1, 5, trials=4)
    batch = solvers.frobenius_max_margins(single)
    assert batch.solved.all()
    assert not batch.W.any()
    assert batch.rank.tolist() == [0] * 4


def test_tensors_with_gradients_are_detached():
    c = drawn(3, 4, 5, trials=2)
    trained = Constraints(c.difference.clone().requires_grad_(), c.query)
    assert not solvers.frobenius_max_margins(trained).W.requires_grad
    assert not solvers.frobenius_max_margin(trained.problem(0)).W.requires_grad


def test_the_wrong_number_of_problems_is_refused_with_the_right_function():
    c = drawn(3, 4, 5, trials=4)
    with pytest.raises(ValueError, match=r"got a batch \[4\]; use frobenius_max_margins"):
        solvers.frobenius_max_margin(c)
    with pytest.raises(ValueError, match=r"got leading dimensions \[\]; use frobenius_max_margin"):
        solvers.frobenius_max_margins(c.problem(0))
    nested = Constraints(c.difference[None], c.query[None])
    with pytest.raises(ValueError, match=r"got leading dimensions \[1, 4\]; flatten"):
        solvers.frobenius_max_margins(nested)


# ---- more constraints than entries of W: steps on W itself


@each_case(("n", "T", "d"), [(15, 5, 5), (6, 8, 5), (10, 10, 8), (5, 5, 3)])
def test_only_infeasible_problems_are_solved_one_by_one(n, T, d, monkeypatch):
    c, alone = drawn(n, T, d, trials=60), []

    def count(constraints, problem, tol):
        alone.append(problem)
        return solve_problem(constraints, problem, tol)

    monkeypatch.setattr(frobenius_batched, "solve_problem", count)
    batch = solvers.frobenius_max_margins(c)
    unsolved = (~batch.solved).nonzero().squeeze(-1).tolist()
    assert set(unsolved) <= set(alone)
    assert len(alone) <= len(unsolved) + 1
    assert float(batch.kkt[batch.solved].max()) <= 1e-12


def test_steps_on_w_take_padding_and_any_right_hand_sides(generator):
    """Lengths from 1e-4 to 1e4, negative right-hand sides, duplicates, constraints that always hold, and a
    problem that W = 0 solves.
    """
    problems = []
    for number in range(8):
        m = 40 + 3 * number
        target = torch.randn(5, 5, generator=generator, dtype=torch.float64)
        difference, query = torch.randn(2, m, 5, generator=generator, dtype=torch.float64)
        difference = difference * 10 ** (8 * torch.rand(m, 1, generator=generator, dtype=torch.float64) - 4)
        margins = ((difference @ target) * query).sum(-1)
        rhs = margins - margins.abs() * torch.rand(m, generator=generator, dtype=torch.float64)
        difference[1], query[1], rhs[1] = difference[0], query[0], rhs[0]
        problems.append(Constraints(difference, query, rhs=-rhs.abs() if number == 3 else rhs))
    batch = solvers.frobenius_max_margins(stack(problems))
    assert batch.solved.all()
    assert not batch.W[3].any()
    for b, c in enumerate(problems):
        one = solvers.frobenius_max_margin(c)
        assert_close(batch.W[b], one.W, rtol=0, atol=1e-11 * max(one.norm, 1e-300))


def test_an_interior_point_gives_up_problems_whose_w_is_certainly_long():
    """Two opposite constraints: w >= 1 and -w >= 1. The bound on the norm ends the iteration long before the
    largest number of rounds.
    """
    rows = torch.tensor([[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64).numpy()
    rhs = torch.ones(1, 3, dtype=torch.float64).numpy()
    _, finished = primal_interior._interior_point(rows, rhs, primal_interior._start(rows, rhs), 1e-6)
    assert not finished.any()
