"""Least loss within a ball, and the loss above its infimum."""

import mpmath
import pytest
import scipy.optimize
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.maths.linalg import cosine
from transformer_theory.theories.attention_svm import builders, dynamics, solvers
from transformer_theory.theories.attention_svm.dynamics.losses import EXPONENTIAL, LINEAR, LOGISTIC
from transformer_theory.theories.attention_svm.problem import Instance, cross_attention


def small(seed: int = 0, trials: int | None = None) -> Instance:
    return cross_attention(
        inputs=3, tokens=3, dim=4, generator=torch.Generator().manual_seed(seed), trials=trials
    )


def exact_log_excess(instance: Instance, W: torch.Tensor, value) -> float:
    """With 400 digits."""
    with mpmath.workdps(400):
        total = mpmath.mpf(0)
        for x, z, gamma in zip(instance.tokens.tolist(), instance.query.tolist(), instance.scores.tolist()):
            u = [sum(mpmath.mpf(w) * mpmath.mpf(q) for w, q in zip(row, z)) for row in W.tolist()]
            weight = [mpmath.exp(sum(mpmath.mpf(a) * b for a, b in zip(token, u))) for token in x]
            f = sum(w * mpmath.mpf(g) for w, g in zip(weight, gamma)) / sum(weight)
            total += value(f) - value(mpmath.mpf(max(gamma)))
        return float(mpmath.log(total / len(instance.tokens)))


@each_case("norm", [0.1, 10.0, 300.0])
@each_case(
    ("loss", "value"),
    [
        (LOGISTIC, lambda f: mpmath.log(1 + mpmath.exp(-f))),
        (EXPONENTIAL, lambda f: mpmath.exp(-f)),
        (LINEAR, lambda f: -f),
    ],
    ids=["logistic", "exponential", "linear"],
)
def test_the_loss_above_its_infimum_against_400_digits(loss, value, norm):
    instance = small()
    W = solvers.frobenius_max_margin(
        builders.constraints(instance.tokens, instance.query, instance.optimal())
    ).W
    W = norm * W / W.norm()
    # gaps below and above one
    for scaled in (instance, Instance(instance.tokens, instance.query, 5 * instance.scores)):
        for V in (W, -W if norm < 20 else W):
            assert float(dynamics.log_excess_loss(scaled, V, loss=loss)) == pytest.approx(
                exact_log_excess(scaled, V, value), abs=1e-11
            )


def test_equal_scores_have_no_loss_above_the_infimum():
    instance = Instance(small().tokens, small().query, torch.ones(3, 3, dtype=torch.float64))
    assert dynamics.log_excess_loss(instance, torch.zeros(4, 4, dtype=torch.float64)) == -torch.inf


def test_forbidden_tokens_do_not_count():
    instance = small()
    hidden = torch.zeros(3, 3, dtype=torch.bool).scatter(1, instance.optimal()[:, None], True)
    masked = Instance(instance.tokens, instance.query, instance.scores, ~hidden)
    kept = (~hidden).nonzero()[:, 1].reshape(3, 2)
    fewer = Instance(
        instance.tokens.gather(1, kept[..., None].expand(3, 2, 4)),
        instance.query,
        instance.scores.gather(1, kept),
    )
    W = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_close(dynamics.log_excess_loss(masked, W), dynamics.log_excess_loss(fewer, W))


def test_the_ball_is_full_and_its_gradient_points_out():
    path = dynamics.regularisation_path(
        small(), (1, 5, 25), generator=torch.Generator().manual_seed(0), starts=3, steps=300
    )
    assert_close(path.W.flatten(1).norm(dim=1), path.radii)
    assert path.residual.max() < 1e-10
    assert (path.log_excess.diff() < 0).all()
    for W in path.W:
        M, _ = dynamics.descent_direction(small(), W)
        assert 1 - float(cosine(W, M)) < 1e-10


def test_least_loss_agrees_with_a_general_optimiser():
    instance, R = small(2), 3.0
    path = dynamics.regularisation_path(
        instance, (R,), generator=torch.Generator().manual_seed(0), starts=4, steps=300
    )

    def loss(w):
        W = torch.from_numpy(w).reshape(4, 4)
        return float(torch.nn.functional.softplus(-(instance.attention(W) * instance.scores).sum(-1)).mean())

    ball = {"type": "ineq", "fun": lambda w: R**2 - w @ w}
    found = scipy.optimize.minimize(
        loss, path.W[0].flatten().numpy() * 0.3, constraints=[ball], method="SLSQP", options={"maxiter": 500}
    )
    assert loss(path.W[0].flatten().numpy()) <= found.fun + 1e-9
    assert 1 - float(cosine(torch.from_numpy(found.x), path.W[0].flatten())) < 1e-3


@pytest.mark.parametrize("seed", [1, 3])
def test_both_paths_go_to_their_own_solution(seed, unchecked):
    instance = small(seed)
    pairs = builders.constraints(instance.tokens, instance.query, instance.optimal())
    frobenius, nuclear = solvers.frobenius_max_margin(pairs).W, solvers.nuclear_max_margin(pairs).W
    generator = torch.Generator().manual_seed(seed)
    ball = dynamics.regularisation_path(instance, (3, 10, 30, 100), generator=generator, starts=2, steps=200)
    factors = dynamics.factored_path(instance, (3, 10, 30, 100), generator=generator, starts=2, steps=200)
    assert 1 - float(cosine(ball.W[-1], frobenius)) < 2e-3
    assert 1 - float(cosine(factors.W[-1], nuclear)) < 6e-3
    assert 1 - float(cosine(ball.W[-1], nuclear)) > 3e-2
    # the ball, written in factors
    assert torch.linalg.matrix_norm(factors.W, ord="nuc")[-1].item() == pytest.approx(100, rel=1e-4)
