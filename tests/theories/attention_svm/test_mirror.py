"""Other geometries and other step lengths: mirror descent in an entrywise norm, and the Polyak step."""

import cvxpy as cp
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.maths.linalg import cosine
from transformer_theory.theories.attention_svm import builders, dynamics, solvers
from transformer_theory.theories.attention_svm.dynamics.losses import EXPONENTIAL, LINEAR, LOGISTIC
from transformer_theory.theories.attention_svm.problem import Instance, equal_distractors


def instance(seed: int = 0, trials: int | None = None) -> Instance:
    return equal_distractors(
        inputs=2, tokens=4, dim=4, generator=torch.Generator().manual_seed(seed), trials=trials
    )


def loss_at(problem: Instance, W: torch.Tensor, loss) -> torch.Tensor:
    return loss.value((problem.attention(W) * problem.scores).sum(-1)).mean(-1)


def gradient(problem: Instance, W: torch.Tensor, loss) -> torch.Tensor:
    V = W.clone().requires_grad_()
    return torch.autograd.grad(loss_at(problem, V, loss).sum(), V)[0]


def weights(*trials: int) -> torch.Tensor:
    return torch.randn(*trials, 4, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


@each_case("power", [1.75, 2.0, 3.0])
@each_case("loss", [LOGISTIC, EXPONENTIAL, LINEAR], ids=lambda loss: loss.name)
def test_one_mirror_step_by_the_definition(power, loss):
    problem, W = instance(trials=3), weights(3)
    g = gradient(problem, W, loss)
    size = (g.abs() ** (power / (power - 1))).sum((-2, -1), keepdim=True) ** ((power - 1) / power)
    after = dynamics.mirror_descent(
        problem, dynamics.start(problem, W=W), power=power, steps=1, rate=0.2, loss=loss
    ).W
    # the gradient of the potential, before and after
    dual = W.sign() * W.abs() ** (power - 1) - 0.2 * g / size
    assert_close(after.sign() * after.abs() ** (power - 1), dual, atol=1e-12, rtol=1e-12)


def test_power_two_is_normalised_descent():
    problem = instance(trials=3)
    mirror = dynamics.mirror_descent(problem, dynamics.start(problem, W=weights(3)), power=2.0, steps=50)
    assert_close(
        mirror.W,
        dynamics.normalised_descent(problem, dynamics.start(problem, W=weights(3)), steps=50).W,
        atol=1e-11,
        rtol=0,
    )
    assert mirror.step == 50


@pytest.mark.parametrize("power", [1.75, 3.0])
def test_mirror_descent_goes_to_the_solution_of_its_own_norm(power, unchecked):
    problem = instance(3)
    pairs = builders.constraints(problem.tokens, problem.query, problem.optimal())
    W = cp.Variable((4, 4))
    D, Z = pairs.difference.numpy(), pairs.query.numpy()
    cp.Problem(
        cp.Minimize(cp.pnorm(cp.vec(W, order="C"), power)), [cp.sum(cp.multiply(D @ W, Z), axis=1) >= 1]
    ).solve(solver=cp.CLARABEL)
    target, frobenius = torch.from_numpy(W.value), solvers.frobenius_max_margin(pairs).W
    rate = 20.0 if power > 2 else 0.3
    end = dynamics.mirror_descent(problem, dynamics.start(problem), power=power, steps=2000, rate=rate)
    distance = 1 - float(cosine(end.W, target))
    assert distance < 1e-3
    assert distance < 0.1 * (1 - float(cosine(end.W, frobenius)))
    divergences = [
        float(dynamics.bregman_divergence(goal, end.W, power=power)) for goal in (target, frobenius)
    ]
    assert 0 <= divergences[0] < 0.1 * divergences[1]


@pytest.mark.parametrize("power", [1.5, 2.0, 4.0])
def test_the_divergence_by_its_definition(power):
    A, B = weights(2)
    A, B = (V / (V.abs() ** power).sum() ** (1 / power) for V in (A, B))
    potential = [(V.abs() ** power).sum() / power for V in (A, B)]
    slope = B.sign() * B.abs() ** (power - 1)
    expected = potential[0] - potential[1] - (slope * (A - B)).sum()
    assert_close(dynamics.bregman_divergence(3 * A, 5 * B, power=power), expected)
    assert abs(float(dynamics.bregman_divergence(B, 2 * B, power=power))) < 1e-15


@pytest.mark.parametrize("loss", [LOGISTIC, EXPONENTIAL, LINEAR], ids=lambda loss: loss.name)
def test_one_polyak_step_by_the_definition(loss):
    problem, W = instance(trials=3), weights(3)
    g = gradient(problem, W, loss)
    least = loss.value(problem.scores.amax(-1)).mean(-1)
    step = (loss_at(problem, W, loss) - least) / (g**2).sum((-2, -1))
    after = dynamics.polyak_descent(
        problem, dynamics.start(problem, W=W), steps=1, rate=0.5, longest=1e9, loss=loss
    ).W
    assert_close(after, W - 0.5 * step[:, None, None] * g, atol=1e-12, rtol=1e-10)


def test_polyak_steps_are_at_most_as_long_as_the_max_margin_solution(unchecked):
    """There loss and gradient are sums over the nearest tokens, and no mean of their constraints is shorter
    than 1 / |W_mm|.
    """
    problem = instance(1)
    target = solvers.frobenius_max_margin(
        builders.constraints(problem.tokens, problem.query, problem.optimal())
    )
    far = dynamics.polyak_descent(problem, dynamics.start(problem), steps=500)
    step = dynamics.polyak_descent(problem, far, steps=1).W - far.W
    assert 0.5 * target.norm < float(step.norm()) < target.norm * (1 + 1e-9)
    assert 1 - float(cosine(far.W, target.W)) < 1e-5
    assert far.W.norm() > 300 * target.norm  # the gradient is e^-300 there


@pytest.mark.parametrize("shift", [-900.0, 380.0, 900.0])
def test_polyak_steps_do_not_change_with_a_shift_of_an_exponential_loss(shift):
    problem, W = instance(), weights()
    problem = Instance(problem.tokens, problem.query, (problem.scores * 64).round() / 64)
    far = Instance(problem.tokens, problem.query, problem.scores + shift)
    want = dynamics.polyak_descent(problem, dynamics.start(problem, W=W), steps=20, loss=EXPONENTIAL).W
    for loss in [EXPONENTIAL] + [LOGISTIC] * (shift > 0):
        assert_close(
            dynamics.polyak_descent(far, dynamics.start(far, W=W), steps=20, loss=loss).W,
            want,
            atol=1e-7,
            rtol=1e-7,
        )


@each_case("spread", [380.0, 2000.0])
@each_case("loss", [LOGISTIC, EXPONENTIAL, LINEAR], ids=lambda loss: loss.name)
def test_no_step_is_long_where_scores_are_far_apart(loss, spread):
    problem = instance()
    far = Instance(problem.tokens, problem.query, spread * (2 * problem.scores - 1))
    mirror = dynamics.mirror_descent(far, dynamics.start(far), power=2.0, steps=50, loss=loss).W
    polyak = dynamics.polyak_descent(far, dynamics.start(far), steps=50, longest=0.1, loss=loss).W
    assert 0.05 < float(mirror.norm()) <= 5 * (1 + 1e-12)
    assert 0 < float(polyak.norm()) <= 5 * (1 + 1e-12)


def test_a_mirror_step_from_zero_does_not_depend_on_the_scale_of_the_data():
    """Entries of 1e-60 to the eleventh power are none."""
    problem = instance()
    small = Instance(problem.tokens * 2.0**-190, problem.query, problem.scores)
    one, other = (
        dynamics.mirror_descent(p, dynamics.start(p), power=1.1, steps=1).W for p in (problem, small)
    )
    assert float(one.norm()) > 0
    assert_close(one, other, atol=0, rtol=1e-9)


def test_both_converge_sooner_than_constant_steps(unchecked):
    problem = instance(2)
    goal = solvers.frobenius_max_margin(
        builders.constraints(problem.tokens, problem.query, problem.optimal())
    ).W
    begin = dynamics.start(problem)
    ends = [
        descend(problem, begin, steps=300).W
        for descend in (dynamics.plain_descent, dynamics.normalised_descent, dynamics.polyak_descent)
    ]
    plain, normalised, polyak = (1 - float(cosine(W, goal)) for W in ends)
    assert normalised < 0.5 * plain
    assert polyak < 0.1 * normalised


def test_no_step_is_longer_than_the_limit():
    """At a saddle the loss stays above its infimum while the gradient is zero."""
    one = torch.eye(2, dtype=torch.float64)
    problem = Instance(
        torch.stack([one, one[[1, 0]]]),
        torch.ones(2, 1, dtype=torch.float64),
        torch.tensor([[1.0, 0.0]] * 2).double(),
    )
    W = torch.tensor([[1e-9], [0.0]], dtype=torch.float64)
    assert torch.isfinite(dynamics.polyak_descent(problem, dynamics.start(problem, W=W), steps=30).W).all()
    state = dynamics.start(problem, W=W)
    assert (
        float((dynamics.polyak_descent(problem, state, steps=1, longest=0.25).W - W).norm()) <= 0.25 + 1e-12
    )


@pytest.mark.parametrize(
    "descend", [lambda *a, **k: dynamics.mirror_descent(*a, power=3.0, **k), dynamics.polyak_descent]
)
def test_a_run_can_be_stopped_and_continued(descend):
    problem, begin = instance(trials=2), dynamics.start(instance(trials=2), W=weights(2))
    whole = descend(problem, begin, steps=20)
    halves = descend(problem, descend(problem, begin, steps=8), steps=12)
    assert_close(whole.W, halves.W, atol=1e-10, rtol=1e-10)
    assert whole.step == halves.step == 20
