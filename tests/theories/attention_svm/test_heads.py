"""Heads other than the linear one: gradients against automatic differentiation, and the linear head as a
special case.
"""

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.theories.attention_svm import dynamics
from transformer_theory.theories.attention_svm.problem import Instance, token_logits, token_scores


@pytest.fixture
def problem(generator):
    """Tokens, queries, labels and the vector of a linear head; three trials."""
    x = torch.randn(3, 4, 5, 6, generator=generator, dtype=torch.float64)
    z = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(2, (3, 4), generator=generator).double() * 2 - 1
    return x, z, labels, torch.randn(3, 6, generator=generator, dtype=torch.float64)


def relu(V):
    return dynamics.differentiable(lambda o: (o @ V).relu().sum(-1))


def test_relu_head_by_hand():
    V = torch.tensor([[1.0, -1.0], [0.0, 2.0]], dtype=torch.float64)
    value, gradient = dynamics.relu_head(V)(torch.tensor([[2.0, 1.5], [1.0, 0.5]], dtype=torch.float64))
    assert value.tolist() == [3.0, 1.0]  # V^T o = (2, 1) and (1, 0)
    assert gradient.tolist() == [[0.0, 2.0], [1.0, 0.0]]  # at the kink, the second unit does not count


def test_relu_head_agrees_with_automatic_differentiation(problem, generator):
    V = torch.randn(3, 6, 7, generator=generator, dtype=torch.float64)
    mixture = problem[0].mean(-2)
    for mine, other in zip(dynamics.relu_head(V)(mixture), relu(V)(mixture)):
        assert_close(mine, other)


def test_a_linear_head_is_an_instance_with_scores(problem, generator):
    x, z, labels, v = problem
    linear = Instance(x, z, token_scores(x, v, labels))
    general = dynamics.HeadInstance(x, z, labels, dynamics.differentiable(lambda o: (o * v[:, None]).sum(-1)))
    begin = dynamics.random_start(linear, generator=generator)
    assert torch.equal(general.selected(begin.W), linear.selected(begin.W))
    assert_close(general.predictions(begin.W), (linear.attention(begin.W) * linear.scores).sum(-1))
    for scale in (1.0, 1e3):
        for one, other in zip(*(dynamics.descent_direction(p, scale * begin.W) for p in (linear, general))):
            assert_close(one, other, rtol=1e-9, atol=1e-12)
    ends = [dynamics.normalised_descent(p, begin, steps=300) for p in (linear, general)]
    assert_close(ends[0].W, ends[1].W, rtol=0, atol=1e-8)
    factors = dynamics.random_factors(general, generator=generator)
    ends = [dynamics.normalised_descent(p, factors, steps=100, penalty=1e-3) for p in (linear, general)]
    assert_close(ends[0].W, ends[1].W, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "loss", [dynamics.LOGISTIC, dynamics.EXPONENTIAL, dynamics.LINEAR], ids=lambda loss: loss.name
)
def test_steps_with_a_network_as_head_are_those_of_automatic_differentiation(problem, loss, generator):
    x, z, labels, _ = problem
    V = 0.3 * torch.randn(3, 6, 8, generator=generator, dtype=torch.float64)
    instance = dynamics.HeadInstance(x, z, labels, dynamics.relu_head(V))
    begin = dynamics.random_start(instance, generator=generator)
    W = begin.W.clone().requires_grad_()
    for _ in range(15):
        attention = token_logits(x, z, W).softmax(-1)
        value = labels * ((attention[..., None, :] @ x).squeeze(-2) @ V).relu().sum(-1)
        (g,) = torch.autograd.grad(loss.value(value).mean(-1).sum(), W)
        W = (W.detach() - 0.1 * g / torch.linalg.matrix_norm(g)[:, None, None]).requires_grad_()
    assert_close(
        dynamics.normalised_descent(instance, begin, steps=15, loss=loss).W, W.detach(), rtol=0, atol=1e-11
    )


def test_a_module_can_be_the_head(problem, generator):
    x, z, labels, _ = problem
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    instance = dynamics.HeadInstance(x, z, labels, dynamics.differentiable(lambda o: net(o).squeeze(-1)))
    begin = dynamics.random_start(instance, generator=generator)
    end = dynamics.normalised_descent(instance, begin, steps=150)
    before, after = (dynamics.LOGISTIC.value(instance.predictions(s.W)).mean(-1) for s in (begin, end))
    assert (after < before).all()
    assert all(p.grad is None for p in net.parameters())
    assert not end.W.requires_grad


def test_a_single_trial_needs_no_batch(problem, generator):
    x, z, labels, _ = problem
    V = torch.randn(6, 8, generator=generator, dtype=torch.float64)
    alone = dynamics.HeadInstance(x[0], z[0], labels[0], dynamics.relu_head(V))
    together = dynamics.HeadInstance(x, z, labels, dynamics.relu_head(V))
    begin = dynamics.random_start(together, generator=generator)
    one = dynamics.normalised_descent(alone, dynamics.State(begin.W[0]), steps=60)
    assert_close(one.W, dynamics.normalised_descent(together, begin, steps=60).W[0], rtol=0, atol=1e-9)


def test_heads_of_other_shapes_are_refused(problem, unchecked):
    x, z, labels, _ = problem
    with pytest.raises(
        ValueError, match=r"head must return a float64 value \[3, 4\] .*got torch.float64 \[3, 4, 2\]"
    ):
        dynamics.HeadInstance(x, z, labels, dynamics.differentiable(lambda o: o[..., :2]))
