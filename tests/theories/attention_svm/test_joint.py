"""Prompt and head together: gradients, the published examples, and the three problems for p."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from transformer_theory.core.errors import Infeasible
from transformer_theory.maths.linalg import cosine
from transformer_theory.theories.attention_svm import dynamics
from transformer_theory.theories.attention_svm.dynamics.losses import EXPONENTIAL, LINEAR, LOGISTIC
from transformer_theory.theories.attention_svm.published import published_joint

ONES = torch.ones(3, dtype=torch.long)
BEGIN = dynamics.JointState(
    torch.tensor([0.0, -1.0], dtype=torch.float64), torch.tensor([-1.0, 0.0], dtype=torch.float64)
)


def random_instance(*trials: int, generator: torch.Generator) -> dynamics.JointInstance:
    tokens = torch.randn(*trials, 4, 3, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(2, (*trials, 4), generator=generator).double() * 2 - 1
    return dynamics.JointInstance(
        tokens, labels, keys=torch.randn(*trials, 4, 3, 2, generator=generator, dtype=torch.float64)
    )


@pytest.mark.parametrize("loss", [LOGISTIC, EXPONENTIAL, LINEAR], ids=lambda loss: loss.name)
def test_one_step_is_along_both_gradients_of_autograd(loss, generator):
    instance = random_instance(2, generator=generator)
    p = torch.randn(2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    v = torch.randn(2, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    share = torch.softmax(torch.einsum("bntk,bk->bnt", instance.key_vectors, p), -1)
    f = instance.labels * torch.einsum("bnt,bntd,bd->bn", share, instance.tokens, v)
    in_p, in_v = torch.autograd.grad(loss.value(f).mean(-1).sum(), (p, v))
    after = dynamics.joint_descent(
        instance, dynamics.JointState(p.detach(), v.detach()), steps=1, rate=0.1, loss=loss
    )
    assert_close(after.p, p.detach() - 0.1 * in_p / in_p.norm(dim=-1, keepdim=True), atol=1e-13, rtol=0)
    assert_close(after.v, v.detach() - 0.1 * in_v / in_v.norm(dim=-1, keepdim=True), atol=1e-13, rtol=0)
    assert_close(instance.predictions(dynamics.JointState(p.detach(), v.detach())), f.detach())
    damped = dynamics.joint_descent(
        instance, dynamics.JointState(p.detach(), v.detach()), steps=1, loss=loss, eps=(0.3, 0.7)
    )
    assert_close(
        damped.p, p.detach() - 0.1 * in_p / (in_p.norm(dim=-1, keepdim=True) + 0.3), atol=1e-13, rtol=0
    )
    assert_close(
        damped.v, v.detach() - 0.1 * in_v / (in_v.norm(dim=-1, keepdim=True) + 0.7), atol=1e-13, rtol=0
    )


def test_a_run_can_be_stopped_and_continued(generator):
    instance = random_instance(generator=generator)
    state = dynamics.JointState(torch.zeros(2, dtype=torch.float64), torch.ones(5, dtype=torch.float64))
    whole = dynamics.joint_descent(instance, state, steps=20)
    halves = dynamics.joint_descent(instance, dynamics.joint_descent(instance, state, steps=8), steps=12)
    assert torch.equal(whole.p, halves.p)
    assert torch.equal(whole.v, halves.v)
    assert whole.step == halves.step == 20


def test_the_published_probabilities():
    instance, state = published_joint("tight"), BEGIN
    for step, attention, probability in (
        (0, 0.423, 0.525),
        (10, 0.389, 0.625),
        (30, 0.719, 0.869),
        (60, 0.967, 0.996),
        (90, 0.996, 1.0),
    ):
        state = dynamics.joint_descent(instance, state, steps=step - state.step)
        assert round(instance.attention(state.p)[:, 1].mean().item(), 3) == attention
        assert round(instance.predictions(state).sigmoid().mean().item(), 3) == probability


def test_the_published_directions_with_the_released_eps():
    tight = dynamics.joint_descent(published_joint("tight"), BEGIN, steps=1000, eps=(1e-19, 1e-9))
    loose = dynamics.joint_descent(published_joint("not tight"), BEGIN, steps=1000, eps=(1e-19, 1e-9))
    sharp, relaxed = (
        dynamics.joint_targets(published_joint("tight"), ONES),
        dynamics.joint_targets(published_joint("not tight"), ONES),
    )
    assert round(float(cosine(tight.p, sharp.sharp.W[:, 0])), 5) == 0.99996
    assert round(float(cosine(tight.v, sharp.head.W[:, 0])), 5) == 0.99996
    assert round(float(cosine(loose.p, relaxed.relaxed.W[:, 0])), 4) == 0.9992
    assert round(float(cosine(loose.p, relaxed.sharp.W[:, 0])), 4) == 0.9875


def test_targets_of_the_published_examples():
    tight, loose = (dynamics.joint_targets(published_joint(case), ONES) for case in ("tight", "not tight"))
    assert_close(tight.sharp.W[:, 0], torch.tensor([4 / 3, 1 / 3], dtype=torch.float64), atol=1e-12, rtol=0)
    assert_close(tight.head.W[:, 0], torch.tensor([0.0, 1.0], dtype=torch.float64), atol=1e-12, rtol=0)
    assert tight.tight
    assert_close(tight.relaxed.W, tight.sharp.W)
    assert loose.support.tolist() == [True, True, False]
    assert_close(loose.sharp.W[:, 0], torch.tensor([1.25, 0.25], dtype=torch.float64), atol=1e-12, rtol=0)
    assert_close(loose.relaxed.W[:, 0], torch.tensor([1.0, 0.0], dtype=torch.float64), atol=1e-12, rtol=0)
    assert loose.equal_steps is loose.relaxed


def test_the_three_problems_against_a_general_solver(generator):
    """The head leaves the last input a surplus of margin: p_relax and p_eq by cvxpy, the latter as its own
    fixed point.
    """
    chosen = torch.tensor([[1.0, 0.2], [1.0, -0.4], [1.6, 1.0]], dtype=torch.float64)
    keys = torch.tensor([[1.0, 0.3], [1.0, -0.4], [0.1, 1.0]], dtype=torch.float64)
    instance = dynamics.JointInstance(pad(chosen), torch.ones(3, dtype=torch.float64), keys=pad(keys))
    targets = dynamics.joint_targets(instance, ONES)
    assert not bool(targets.support[2])
    spare = (targets.head.margins - 1) / targets.head.norm
    for solution, asked in (
        (targets.sharp, torch.ones(3)),
        (targets.relaxed, targets.support.double()),
        (targets.equal_steps, (1 - spare * targets.equal_steps.norm).clamp(min=0)),
    ):
        p = cp.Variable(2)
        cp.Problem(cp.Minimize(cp.sum_squares(p)), [keys.numpy() @ p >= asked.numpy()]).solve(
            solver=cp.CLARABEL
        )
        assert np.allclose(p.value, solution.W[:, 0].numpy(), atol=1e-7)
    assert targets.relaxed.norm < targets.equal_steps.norm < targets.sharp.norm


def pad(chosen: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.zeros_like(chosen), chosen], 1)


def test_descent_far_out_stays_on_its_direction():
    """Predictions of 4,000, where the slope of the loss is zero in floating point."""
    instance = published_joint("tight")
    goal = dynamics.joint_targets(instance, ONES)
    far = dynamics.JointState(
        4000 * goal.sharp.W[:, 0] / goal.sharp.norm, 4000 * goal.head.W[:, 0] / goal.head.norm
    )
    end = dynamics.joint_descent(instance, far, steps=200, rate=1.0)
    assert end.p.norm() > 4190
    assert end.v.norm() > 4190
    assert 1 - float(cosine(end.p, goal.sharp.W[:, 0])) < 1e-6
    assert 1 - float(cosine(end.v, goal.head.W[:, 0])) < 1e-6


@pytest.mark.parametrize("power", [-190, 190])
def test_steps_from_no_prompt_do_not_change_with_the_scale_of_the_data(power, generator):
    instance = random_instance(generator=generator)
    p, v = torch.zeros(2, dtype=torch.float64), torch.randn(5, generator=generator, dtype=torch.float64)
    scaled = dynamics.JointInstance(
        instance.tokens * 2.0**power, instance.labels, keys=instance.key_vectors * 2.0**power
    )
    factor = 2.0 ** (2 * power)
    want = dynamics.joint_descent(instance, dynamics.JointState(p, v), steps=1, loss=LINEAR)
    came = dynamics.joint_descent(
        scaled, dynamics.JointState(p, v * factor), steps=1, loss=LINEAR
    )  # products of 2^760, whose squares overflow
    assert_close(came.p, want.p, atol=1e-15, rtol=1e-12)
    assert_close(came.v - v * factor, want.v - v, atol=1e-15 if power < 0 else torch.inf, rtol=1e-12)
    for loss in (LOGISTIC, EXPONENTIAL, LINEAR):
        end = dynamics.joint_descent(
            scaled, dynamics.JointState(p, v), steps=20, loss=loss, eps=(1e-19, 1e-9)
        )
        assert end.p.norm() <= 2 * (1 + 1e-12)
        assert (end.v - v).norm() <= 2 * (1 + 1e-12)


def test_inseparable_labels_are_infeasible():
    apart = dynamics.JointInstance(
        torch.ones(2, 2, 1, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
    )
    with pytest.raises(Infeasible):
        dynamics.joint_targets(apart, torch.zeros(2, dtype=torch.long))
