"""Batches of Frobenius problems against the solver of single problems."""

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.core.errors import Infeasible, NotConverged
from transformer_theory.theories.attention_svm import builders, solvers
from transformer_theory.theories.attention_svm.constraint_set import Constraints, stack
from transformer_theory.theories.attention_svm.problem import cross_attention
from transformer_theory.theories.attention_svm.solvers import frobenius_batched


def drawn(n, T, d, *, trials, seed=0):
    instance = cross_attention(inputs=n, tokens=T, dim=d, generator=torch.Generator().manual_seed(seed), trials=trials)
    return builders.constraints(instance.tokens, instance.query, instance.optimal())


def mixed(seed, m=20, d=5, equations=4):
    """Random constraints with random right-hand sides, some negative, and some equations."""
    g = torch.Generator().manual_seed(seed)
    difference, query = torch.randn(2, m, d, generator=g, dtype=torch.float64)
    rhs = torch.randn(m, generator=g, dtype=torch.float64)
    return Constraints(difference, query, rhs=rhs, equality=torch.arange(m) % (m // equations) == 0)


@pytest.mark.parametrize(("n", "T", "d"), [(6, 8, 10), (10, 5, 20), (5, 15, 10), (10, 5, 4), (8, 5, 3), (20, 10, 12), (3, 4, 1)])
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
    batch = solvers.frobenius_max_margins(stack([good, Constraints(difference, query, rhs=rhs, equality=bad.equality)]))
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

    monkeypatch.setattr(frobenius_batched, "frobenius_max_margin", fail)
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
