"""Training of the block against autograd of an explicit embedding, and the invariants against their own derivation."""

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.core.errors import NotConverged
from transformer_theory.theories.joma import dynamics, invariants
from transformer_theory.theories.joma.dynamics import Model, cross_entropy, relu, rk4, signed, squared, tanh, train
from transformer_theory.theories.joma.forms import Exponential, Linear, Softmax
from transformer_theory.theories.joma.problem import Block, Contexts, gaussian_block, sampled_contexts, zero_block

FORMS = (Linear(), Exponential(normaliser=2.0, temperature=0.7), Softmax(temperature=0.6))
ACTIVATIONS = (dynamics.linear, relu, tanh)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def explicit(form, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Attention written out, without the methods under test."""
    if isinstance(form, Linear):
        return z * x
    grown = torch.exp(z / form.temperature) * x
    return grown / form.normaliser if isinstance(form, Exponential) else grown / grown.sum(-1, keepdim=True)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: type(form).__name__)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("loss", [cross_entropy, squared], ids=lambda f: f.__name__)
def test_velocity_is_the_gradient_of_an_explicit_network(form, activation, loss):
    """W in R^{d x K} reads f = U b + u_m with random orthonormal embeddings: autograd on W and z gives v = U^T W and its motion."""
    contexts, d = sampled_contexts(generator(), n=12, tokens=6, classes=4, queries=3), 17
    block = gaussian_block(contexts, units=4, scale=0.5, generator=generator(1), logit=0.3)
    U = torch.linalg.qr(torch.randn(d, 6 + 3, generator=generator(2), dtype=torch.float64)).Q
    W = (U[:, :6] @ block.lower.mT + U[:, 6:] @ block.offset.mT).requires_grad_()
    z = block.logits.clone().requires_grad_()
    f = explicit(form, z[contexts.query], contexts.counts) @ U[:, :6].T + U[:, 6:].T[contexts.query]
    p = f @ W
    h = {"linear": p, "relu": torch.relu(p), "tanh": torch.tanh(p)}[activation.__name__]
    if loss is cross_entropy:
        value = torch.nn.functional.cross_entropy(h, contexts.targets)
    else:
        value = (h - torch.eye(4, dtype=torch.float64)[contexts.targets]).square().sum(-1).mean() / 2
    dW, dz = torch.autograd.grad(value, (W, z))
    model = Model(form, activation, loss, rate_logits=0.3, rate_lower=0.7)
    found = model.velocity(block, contexts)
    assert_close(model.loss_of(block, contexts), value.detach())
    assert_close(found.logits, -0.3 * dz)
    assert_close(found.lower, -0.7 * (U[:, :6].T @ dW).T)
    assert_close(found.offset, -0.7 * (U[:, 6:].T @ dW).T)


def test_decay_is_that_of_sgd():
    contexts = sampled_contexts(generator(), queries=2)
    start = gaussian_block(contexts, units=5, scale=0.5, generator=generator(1))
    lower = start.lower.clone().requires_grad_()
    optimiser = torch.optim.SGD([lower], lr=0.2, weight_decay=0.05)
    Model(Softmax()).loss_of(Block(start.logits, lower, start.offset), contexts).backward()
    optimiser.step()
    found = train(start, contexts, Model(Softmax(), decay=0.05), step=0.2, steps=1)
    assert_close(found.at(-1).lower, lower.detach())


def test_runs_are_what_each_would_be_alone():
    one = sampled_contexts(generator(), classes=3)
    targets = torch.stack([one.targets, one.targets.flip(0)])
    both = Contexts(one.counts, one.query, targets)
    start = gaussian_block(one, units=3, scale=0.4, generator=generator(1), runs=(2,))
    path = train(start, both, Model(Softmax(), tanh), step=0.3, steps=5, keep=(2,))
    assert path.times.tolist() == pytest.approx([0, 0.6, 1.5])
    for run in range(2):
        alone = Contexts(one.counts, one.query, targets[run])
        part = Block(start.logits[run], start.lower[run], start.offset[run])
        single = train(part, alone, Model(Softmax(), tanh), step=0.3, steps=5, keep=(2,))
        assert_close(path.states.logits[:, run], single.states.logits)
        assert_close(path.states.lower[:, run], single.states.lower)
        assert_close(path.loss[:, run], single.loss)


def test_the_flow_agrees_with_another_integrator():
    from scipy.integrate import solve_ivp

    contexts = sampled_contexts(generator(), n=9, tokens=4, classes=3)
    model, start = Model(Softmax(), tanh), gaussian_block(contexts, units=3, scale=0.5, generator=generator(3))
    sizes = [(1, 4), (3, 4), (3, 1)]

    def unflatten(flat) -> Block:
        parts = torch.as_tensor(flat, dtype=torch.float64).split([a * b for a, b in sizes])
        return Block(*(part.reshape(shape) for part, shape in zip(parts, sizes)))

    def flat(block: Block):
        return torch.cat([part.flatten() for part in (block.logits, block.lower, block.offset)]).numpy()

    other = solve_ivp(lambda _, y: flat(model.velocity(unflatten(y), contexts)), (0, 5), flat(start), rtol=1e-11, atol=1e-12)
    path = train(start, contexts, model, step=0.05, steps=100, method=rk4)
    assert_close(path.at(-1).lower, unflatten(other.y[:, -1]).lower, rtol=0, atol=1e-8)
    assert_close(path.at(-1).logits, unflatten(other.y[:, -1]).logits, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("form", "activation", "bound"),
    [
        (Exponential(), dynamics.linear, 1e-9),
        (Exponential(), tanh, 1e-9),
        (Exponential(), relu, 1e-5),
        (Linear(), dynamics.linear, 1e-11),
        (Linear(), tanh, 1e-11),
        (Linear(), relu, 1e-5),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_drift_of_the_exact_invariants(form, activation, bound, unchecked):  # the same steps as above, many times
    contexts = sampled_contexts(generator())
    start = gaussian_block(contexts, units=5, scale=0.3, generator=generator(), logit=0.5)
    path = train(start, contexts, Model(form, activation), step=0.05, steps=400, method=rk4, keep=range(0, 400, 50))
    moved = float((path.states.logits - path.states.logits[0]).abs().max())
    assert moved > 0.1
    assert float(invariants.drift(form, path)) < bound


def test_drift_of_descent_falls_with_the_learning_rate():
    contexts = sampled_contexts(generator())
    start = gaussian_block(contexts, units=5, scale=0.3, generator=generator())
    drifts = [float(invariants.drift(Exponential(), train(start, contexts, Model(Exponential()), step=10 / n, steps=n))) for n in (40, 400)]
    assert drifts[0] / drifts[1] == pytest.approx(10, rel=0.1)
    assert 1e-5 < drifts[1] < 1e-2


def test_the_ratio_of_learning_rates_enters():
    contexts = sampled_contexts(generator())
    start = gaussian_block(contexts, units=5, scale=0.3, generator=generator())
    model = Model(Exponential(), rate_logits=2.0, rate_lower=0.5)
    path = train(start, contexts, model, step=0.02, steps=200, method=rk4)
    assert float(invariants.drift(Exponential(), path, ratio=model.ratio)) < 1e-11
    assert float(invariants.drift(Exponential(), path)) > 1e-2


def test_first_term_is_the_whole_prediction_for_exponential_attention():
    contexts = sampled_contexts(generator())
    path = train(gaussian_block(contexts, units=5, scale=0.3, generator=generator()), contexts, Model(Exponential()), step=0.05,
                 steps=100, method=rk4)  # fmt: skip
    z = path.states.logits[:, 0]
    assert_close(invariants.first_term(Exponential(), path)[-1], z[-1] - z[0], rtol=0, atol=1e-10)


def test_equal_contexts_leave_only_the_motion_of_the_mean(unchecked):
    """Where the expectation factorises, the mean attention of each moment makes the softmax invariant exact; that of the start does not."""
    drawn = sampled_contexts(generator())
    contexts = Contexts(drawn.counts.mean(0).expand_as(drawn.counts), drawn.query, drawn.targets)
    model, start = Model(Softmax(0.5)), gaussian_block(contexts, units=5, scale=1.0, generator=generator())
    path = train(start, contexts, model, step=0.01, steps=400, method=rk4, keep=range(400))
    change = path.states.logits[-1, 0] - path.states.logits[0, 0]
    moving, fixed = (way(model, contexts, path)[-1] for way in (invariants.moving_mean, invariants.fixed_mean))
    assert float(invariants.agreement(moving, change).error) < 1e-5
    assert float(invariants.agreement(fixed, change).error) > 1e-2
    assert_close(change.sum(), torch.tensor(0.0, dtype=torch.float64), rtol=0, atol=1e-12)
    assert_close(fixed.sum(), torch.tensor(0.0, dtype=torch.float64), rtol=0, atol=1e-12)


def test_agreement_sees_what_correlation_hides():
    true = torch.randn(7, generator=generator(), dtype=torch.float64)
    found = invariants.agreement(3 * true + 5, true)
    assert_close(found.correlation, torch.tensor(1.0, dtype=torch.float64))
    assert_close(found.error, torch.tensor(2.0, dtype=torch.float64))


def test_signed_loss_has_a_constant_gradient():
    h = torch.randn(4, 1, generator=generator(), dtype=torch.float64)
    value, down = signed(h, torch.tensor([0, 1, 1, 0]))
    assert_close(down[:, 0], torch.tensor([-1.0, 1, 1, -1], dtype=torch.float64))
    assert_close(value, -(down * h).sum(-1))


def test_what_is_refused(unchecked):
    contexts = sampled_contexts(generator())
    start, model = zero_block(contexts, units=5), Model(Softmax())
    with pytest.raises(ValueError, match="steps must be at least 1, step positive"):
        train(start, contexts, model, step=0.1, steps=0)
    with pytest.raises(ValueError, match=r"keep within \[0, steps\]"):
        train(start, contexts, model, step=0.1, steps=3, keep=(4,))
    with pytest.raises(ValueError, match="temperature must be positive and finite, got 0"):
        Softmax(0.0)
    with pytest.raises(ValueError, match="normaliser must be positive"):
        Exponential(normaliser=-1.0)
    with pytest.raises(ValueError, match="with a token in each row"):
        Contexts(torch.zeros(1, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    with pytest.raises(ValueError, match="equally many"):
        Contexts(contexts.counts, contexts.query[:-1], contexts.targets)
    with pytest.raises(ValueError, match="numbered from 0"):
        Contexts(contexts.counts, contexts.query - 1, contexts.targets)
    grown = gaussian_block(contexts, units=5, scale=30.0, generator=generator())
    with pytest.raises(NotConverged, match="take smaller steps") as caught:
        train(grown, contexts, Model(Exponential(), loss=squared), step=10.0, steps=20)
    assert torch.isfinite(caught.value.state.logits).all()
