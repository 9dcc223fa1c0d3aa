"""Training of the block against autograd of an explicit embedding, and the invariants against their own
derivation.
"""

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.core.errors import NotConverged
from transformer_theory.theories.joma import dynamics, invariants
from transformer_theory.theories.joma.block import (
    Block,
    Contexts,
    Exponential,
    Linear,
    Softmax,
    gaussian_block,
    sampled_contexts,
)
from transformer_theory.theories.joma.dynamics import (
    Model,
    cross_entropy,
    gradient_descent,
    gradient_flow,
    relu,
    signed,
    squared,
    tanh,
)

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


@each_case("form", FORMS, ids=lambda form: type(form).__name__)
@each_case("activation", ACTIVATIONS, ids=lambda f: f.__name__)
@each_case("loss", [cross_entropy, squared], ids=lambda f: f.__name__)
def test_velocity_is_the_gradient_of_an_explicit_network(form, activation, loss):
    """With random orthonormal embeddings U and f = U b + u_m, autograd on the units W (d x K) and on z gives
    the velocity of v = U^T W.
    """
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
    result = model.velocity(block, contexts)
    assert_close(model.mean_loss(block, contexts), value.detach())
    assert_close(result.logits, -0.3 * dz)
    assert_close(result.lower, -0.7 * (U[:, :6].T @ dW).T)
    assert_close(result.offset, -0.7 * (U[:, 6:].T @ dW).T)


def test_weight_decay_agrees_with_sgd():
    contexts = sampled_contexts(generator(), queries=2)
    start = gaussian_block(contexts, units=5, scale=0.5, generator=generator(1))
    lower = start.lower.clone().requires_grad_()
    optimiser = torch.optim.SGD([lower], lr=0.2, weight_decay=0.05)
    Model(Softmax()).mean_loss(Block(start.logits, lower, start.offset), contexts).backward()
    optimiser.step()
    path = gradient_descent(start, contexts, Model(Softmax(), decay=0.05), rate=0.2, steps=1)
    assert_close(path.state(-1).lower, lower.detach())


def test_runs_are_independent_of_each_other():
    one = sampled_contexts(generator(), classes=3)
    targets = torch.stack([one.targets, one.targets.flip(0)])
    both = Contexts(one.counts, one.query, targets)
    start = gaussian_block(one, units=3, scale=0.4, generator=generator(1), runs=(2,))
    path = gradient_descent(start, both, Model(Softmax(), tanh), rate=0.3, steps=5, save_steps=(2,))
    assert path.times.tolist() == pytest.approx([0, 0.6, 1.5])
    for run in range(2):
        alone = Contexts(one.counts, one.query, targets[run])
        part = Block(start.logits[run], start.lower[run], start.offset[run])
        single = gradient_descent(part, alone, Model(Softmax(), tanh), rate=0.3, steps=5, save_steps=(2,))
        assert_close(path.states.logits[:, run], single.states.logits)
        assert_close(path.states.lower[:, run], single.states.lower)
        assert_close(path.loss[:, run], single.loss)


def test_the_flow_agrees_with_another_integrator():
    from scipy.integrate import solve_ivp

    contexts = sampled_contexts(generator(), n=9, tokens=4, classes=3)
    model, start = (
        Model(Softmax(), tanh),
        gaussian_block(contexts, units=3, scale=0.5, generator=generator(3)),
    )
    sizes = [(1, 4), (3, 4), (3, 1)]

    def unflatten(flat) -> Block:
        parts = torch.as_tensor(flat, dtype=torch.float64).split([a * b for a, b in sizes])
        return Block(*(part.reshape(shape) for part, shape in zip(parts, sizes)))

    def flat(block: Block):
        return torch.cat([part.flatten() for part in (block.logits, block.lower, block.offset)]).numpy()

    other = solve_ivp(
        lambda _, y: flat(model.velocity(unflatten(y), contexts)), (0, 5), flat(start), rtol=1e-11, atol=1e-12
    )
    path = gradient_flow(start, contexts, model, step=0.05, steps=100)
    assert_close(path.state(-1).lower, unflatten(other.y[:, -1]).lower, rtol=0, atol=1e-8)
    assert_close(path.state(-1).logits, unflatten(other.y[:, -1]).logits, rtol=0, atol=1e-8)


@each_case(
    ("form", "activation", "tolerance"),
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
# the same steps as above, many times
def test_drift_of_the_exact_invariants(form, activation, tolerance, unchecked):
    contexts = sampled_contexts(generator())
    start = gaussian_block(contexts, units=5, scale=0.3, generator=generator(), logit=0.5)
    path = gradient_flow(
        start, contexts, Model(form, activation), step=0.05, steps=200, save_steps=range(0, 200, 50)
    )
    moved = float((path.states.logits - path.states.logits[0]).abs().max())
    assert moved > 0.05
    assert float(invariants.drift(form, path)) < tolerance


def test_the_runge_kutta_step_is_of_fourth_order():
    """On v' = v^2 from 1, whose solution is 1 / (1 - t), half the step leaves about a sixteenth of
    the error.
    """
    errors = []
    for steps in (10, 20):
        v = torch.ones(1, dtype=torch.float64)
        for _ in range(steps):
            v = dynamics.runge_kutta(v, torch.square, step=0.5 / steps)
        errors.append(abs(float(v) - 2))
    assert errors[1] < 1e-6
    assert 13 < errors[0] / errors[1] < 19


def test_drift_of_descent_falls_with_the_learning_rate():
    contexts = sampled_contexts(generator())
    start = gaussian_block(contexts, units=5, scale=0.3, generator=generator())
    model = Model(Exponential())
    paths = [gradient_descent(start, contexts, model, rate=10 / n, steps=n) for n in (40, 400)]
    drifts = [float(invariants.drift(Exponential(), path)) for path in paths]
    assert drifts[0] / drifts[1] == pytest.approx(10, rel=0.1)
    assert 1e-5 < drifts[1] < 1e-2


def test_the_ratio_of_learning_rates_enters(unchecked):
    contexts = sampled_contexts(generator())
    start = gaussian_block(contexts, units=5, scale=0.3, generator=generator())
    model = Model(Exponential(), rate_logits=2.0, rate_lower=0.5)
    path = gradient_flow(start, contexts, model, step=0.02, steps=200)
    assert float(invariants.drift(Exponential(), path, ratio=model.ratio)) < 1e-11
    assert float(invariants.drift(Exponential(), path)) > 1e-2


def test_first_term_is_the_whole_prediction_for_exponential_attention():
    contexts = sampled_contexts(generator())
    start = gaussian_block(contexts, units=5, scale=0.3, generator=generator())
    path = gradient_flow(start, contexts, Model(Exponential()), step=0.05, steps=100)
    z = path.states.logits[:, 0]
    assert_close(invariants.first_term(Exponential(), path)[-1], z[-1] - z[0], rtol=0, atol=1e-10)


def test_equal_contexts_leave_only_the_motion_of_the_mean(unchecked):
    """Where the expectation factorises, the mean attention of each moment makes the softmax invariant exact;
    that of the start does not.
    """
    drawn = sampled_contexts(generator())
    contexts = Contexts(drawn.counts.mean(0).expand_as(drawn.counts), drawn.query, drawn.targets)
    model, start = Model(Softmax(0.5)), gaussian_block(contexts, units=5, scale=1.0, generator=generator())
    path = gradient_flow(start, contexts, model, step=0.01, steps=400, save_steps=range(400))
    change = path.states.logits[-1, 0] - path.states.logits[0, 0]
    moving, fixed = (
        way(model, contexts, path)[-1] for way in (invariants.moving_mean, invariants.fixed_mean)
    )
    assert float(invariants.goodness_of_fit(moving, change).error) < 1e-5
    assert float(invariants.goodness_of_fit(fixed, change).error) > 1e-2
    assert_close(change.sum(), torch.tensor(0.0, dtype=torch.float64), rtol=0, atol=1e-12)
    assert_close(fixed.sum(), torch.tensor(0.0, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_error_sees_a_wrong_size_and_the_correlation_does_not():
    true = torch.randn(7, generator=generator(), dtype=torch.float64)
    result = invariants.goodness_of_fit(3 * true + 5, true)
    assert_close(result.correlation, torch.tensor(1.0, dtype=torch.float64))
    assert_close(result.error, torch.tensor(2.0, dtype=torch.float64))


def test_signed_loss_has_a_constant_gradient():
    h = torch.randn(4, 1, generator=generator(), dtype=torch.float64)
    value, down = signed(h, torch.tensor([0, 1, 1, 0]))
    assert_close(down[:, 0], torch.tensor([-1.0, 1, 1, -1], dtype=torch.float64))
    assert_close(value, -(down * h).sum(-1))


def test_numpy_arrays_and_other_dtypes_are_converted(unchecked):
    contexts = sampled_contexts(generator())
    again = Contexts(
        contexts.counts.numpy().astype("float32"),
        contexts.query.numpy().astype("int16"),
        contexts.targets.tolist(),
    )
    assert torch.equal(again.counts, contexts.counts)  # shares of 16 are exact in float32
    assert torch.equal(again.query, contexts.query)
    assert torch.equal(again.targets, contexts.targets)
    block = gaussian_block(contexts, units=5, scale=0.3, generator=generator())
    single = Block(block.logits.float().numpy(), block.lower.float(), block.offset.float())
    assert single.lower.dtype == torch.float64
    assert torch.isfinite(gradient_descent(single, again, Model(Softmax()), rate=0.1, steps=2).loss).all()


def test_a_diverging_training_carries_its_last_finite_state():
    contexts = sampled_contexts(generator())
    large = gaussian_block(contexts, units=5, scale=30.0, generator=generator())
    with pytest.raises(NotConverged, match="20 steps of size 10") as caught:
        gradient_descent(large, contexts, Model(Exponential(), loss=squared), rate=10.0, steps=20)
    assert torch.isfinite(caught.value.state.logits).all()
