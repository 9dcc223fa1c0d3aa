"""Balance of K and Q: the bound of one common norm, its loss under separate norms, and the point at which a
penalty stops descent.
"""

import pytest
import torch

from transformer_theory.theories.attention_svm.balance import (
    common_norm_descent,
    common_norm_trajectory,
    imbalance,
    penalised_residual,
)
from transformer_theory.theories.attention_svm.dynamics import (
    Factors,
    descent_direction,
    normalised_descent,
    random_factors,
)
from transformer_theory.theories.attention_svm.problem import Instance, cross_attention

EPS = torch.finfo(torch.float64).eps


def problem(seed: int = 0, trials: int | None = None) -> tuple[Instance, Factors]:
    generator = torch.Generator().manual_seed(seed)
    instance = cross_attention(inputs=3, tokens=4, dim=6, generator=generator, trials=trials)
    return instance, random_factors(instance, generator=generator)


def test_a_step_with_a_common_norm_changes_the_imbalance_by_terms_of_second_order_only():
    instance, first = problem()
    M, _ = descent_direction(instance, first.W)
    to_K, to_Q = M @ first.Q, M.mT @ first.K
    alpha = 0.3 / torch.cat([to_K, to_Q]).norm()
    change = imbalance(common_norm_descent(instance, first, steps=1, rate=0.3)) - imbalance(first)
    torch.testing.assert_close(change, alpha**2 * (to_K.mT @ to_K - to_Q.mT @ to_Q), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_holds_after_every_step(seed):
    instance, first = problem(seed)
    for state in common_norm_trajectory(instance, first, steps=range(0, 60, 7), rate=0.4):
        change = torch.linalg.matrix_norm(imbalance(state) - imbalance(first), ord="nuc")
        assert float(change) <= 0.16 * state.step * (1 + 1e-9) + 1e-13


def test_a_run_continues_where_it_stopped_and_trials_do_not_interact():
    instance, first = problem(trials=3)
    whole = common_norm_descent(instance, first, steps=30)
    part = common_norm_descent(instance, common_norm_descent(instance, first, steps=12), steps=18)
    assert torch.equal(whole.K, part.K)
    assert torch.equal(whole.Q, part.Q)
    assert whole.step == 30
    alone = common_norm_descent(instance[1], Factors(first.K[1], first.Q[1]), steps=30)
    torch.testing.assert_close(alone.W, whole.W[1])


def test_balanced_factors_attain_the_nuclear_norm():
    W = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    U, sigma, Vh = torch.linalg.svd(W, full_matrices=False)
    K, Q = U * sigma.sqrt(), Vh.mT * sigma.sqrt()
    assert float(imbalance(Factors(K, Q)).abs().max()) < 1e-12
    assert float(K.square().sum() + Q.square().sum()) == pytest.approx(2 * float(sigma.sum()))
    assert float(imbalance(Factors(2 * K, Q / 2)).abs().max()) > 1


def test_the_residual_is_the_gradient_by_automatic_differentiation():
    instance, first = problem(1)
    K, Q = (V.clone().requires_grad_() for V in (first.K, first.Q))
    attention = (instance.tokens @ K @ Q.mT @ instance.query[..., None]).squeeze(-1).softmax(-1)
    loss = torch.nn.functional.softplus(-(attention * instance.scores).sum(-1)).mean() + 0.01 * (
        K.square().sum() + Q.square().sum()
    )
    gradients = torch.autograd.grad(loss, [K, Q])
    expected = torch.cat(gradients).norm() / (0.02 * torch.cat([first.K, first.Q]).norm())
    torch.testing.assert_close(penalised_residual(instance, first, penalty=0.01), expected)


def test_the_published_penalty_stops_descent_at_a_stationary_point():
    instance, first = problem(2)
    state = normalised_descent(instance, first, steps=1500, penalty=EPS)
    later = normalised_descent(instance, state, steps=1500, penalty=EPS)
    assert float(later.W.norm()) == pytest.approx(float(state.W.norm()), rel=1e-2)
    for rate in (0.01, 1e-3, 1e-4):
        later = normalised_descent(instance, later, steps=200, rate=rate, penalty=EPS)
    assert float(penalised_residual(instance, later, penalty=EPS)) < 2e-3
    assert float(imbalance(later).norm() / later.W.norm()) < 1e-3
    M, C = descent_direction(instance, later.W)
    assert float(torch.linalg.matrix_norm(M, ord=2) * C.exp()) == pytest.approx(2 * EPS, rel=1e-2)
    free = normalised_descent(instance, first, steps=3000)
    assert float(free.W.norm()) > 100 * float(later.W.norm())


def test_narrow_factors_can_stop_where_the_gradient_exceeds_the_penalty():
    """K and Q of one column satisfy the equations, and W is no stationary point of the loss with the nuclear
    norm.
    """
    generator = torch.Generator().manual_seed(0)
    instance = cross_attention(inputs=4, tokens=5, dim=8, generator=generator, trials=10)
    state = normalised_descent(
        instance, random_factors(instance, generator=generator, width=1), steps=3000, penalty=EPS
    )
    for rate in (0.01, 1e-3, 1e-4):
        state = normalised_descent(instance, state, steps=200, rate=rate, penalty=EPS)
    assert float(penalised_residual(instance, state, penalty=EPS).median()) < 2e-3
    M, C = descent_direction(instance, state.W)
    assert float((torch.linalg.matrix_norm(M, ord=2) * C.exp()).median()) > 1.2 * 2 * EPS


def test_wrong_arguments_are_refused():
    instance, first = problem()
    with pytest.raises(ValueError, match=r"rate must be positive and finite, got 0"):
        common_norm_descent(instance, first, steps=3, rate=0)
    with pytest.raises(ValueError, match=r"penalty must be positive and finite, got 0"):
        penalised_residual(instance, first, penalty=0.0)
    with pytest.raises(TypeError, match=r"state must be Factors"):
        common_norm_descent(instance, first.W, steps=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"steps must increase from 5, got 4"):
        list(common_norm_trajectory(instance, first, steps=(5, 4)))
    with pytest.raises(
        ValueError, match=r"the run must keep K finite, got an overflow by step 9; pass a smaller rate"
    ):
        common_norm_descent(instance, first, steps=9, rate=1e308)
