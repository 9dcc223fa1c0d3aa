"""ReduNet beyond its construction: input it refuses, its soft prediction, and back-propagation afterwards."""

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.metrics.coding import coding_rate, unit_norm
from transformer_theory.theories import rate_reduction as room

SETTINGS = {"layers": 3, "eps": 0.1**0.5, "step": 0.5, "sharpness": 20.0}


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def textbook_layer(X, y, eps, step, memberships=None):
    """One layer by inverses and diagonal membership matrices, in the papers' columns; memberships of X's own labels if not given."""
    n, d = X.shape
    Z, k = X.T, int(y.max()) + 1
    moved = d / (n * eps**2) * torch.linalg.inv(torch.eye(d, dtype=X.dtype) + d / (n * eps**2) * Z @ Z.T) @ Z
    for j in range(k):
        Pi = torch.diag((y == j).to(X.dtype))
        a = d / (Pi.trace() * eps**2)
        C = a * torch.linalg.inv(torch.eye(d, dtype=X.dtype) + a * Z @ Pi @ Z.T)
        moved = moved - Pi.trace() / n * C @ Z @ Pi
    Z = Z + step * moved
    return (Z / Z.norm(dim=0)).T


def test_layers_are_those_of_the_textbook():
    X, y = unit_norm(normal(40, 6)), torch.arange(40) % 3
    net = room.construct(X, y, **SETTINGS)
    for _ in range(3):
        X = textbook_layer(X, y, 0.1**0.5, 0.5)
    assert_close(net.features, X, rtol=0, atol=1e-12)


def test_unnormalised_features_give_the_network_of_the_normalised_ones():
    X, y = normal(40, 6), torch.arange(40) % 3
    long, unit = room.construct(1e3 * X, y, **SETTINGS), room.construct(unit_norm(X), y, **SETTINGS)
    assert_close(long.features, unit.features, rtol=0, atol=1e-12)
    assert_close(long.transform(5 * X), unit.transform(X), rtol=0, atol=1e-12)


def test_float32_stays_float32_and_is_close():
    X, y = normal(60, 6), torch.arange(60) % 3
    single, double = room.construct(X.float(), y, **SETTINGS), room.construct(X, y, **SETTINGS)
    assert single.features.dtype == torch.float32
    assert_close(single.features.double(), double.features, rtol=0, atol=1e-4)


def test_predictions_are_the_most_probable_classes(generator):
    X, y = room.gaussian_toy(3, 40, generator=generator)
    net = room.construct(X, y, **SETTINGS)
    moved = net.transform(X)
    soft = net.probabilities(moved)
    assert_close(soft.sum(1), torch.ones(120, dtype=soft.dtype))
    assert_close(soft.argmax(1), net.predict(moved))
    assert_close(soft, net.layers[-1].memberships(moved, sharpness=20.0))


def test_the_trainable_network_starts_as_the_constructed_one(generator):
    X, y = room.gaussian_toy(3, 40, generator=generator)
    net = room.construct(X, y, **SETTINGS)
    module = room.TrainableReduNet(net)
    unseen = normal(25, 3, seed=5)
    with torch.no_grad():
        assert_close(module.transform(unseen), net.transform(unseen), rtol=0, atol=1e-13)
        assert_close(module(unseen).softmax(1), net.probabilities(net.transform(unseen)), rtol=1e-9, atol=1e-13)
    assert {name for name, _ in module.named_parameters()} == {"expansions", "compressions"}
    again = room.TrainableReduNet(room.construct(*room.gaussian_toy(3, 40, generator=generator), **SETTINGS))
    again.load_state_dict(module.state_dict())
    with torch.no_grad():
        assert_close(again(unseen), module(unseen))


def test_gradient_descent_lowers_the_loss_of_the_constructed_network(generator):
    X, y = room.gaussian_toy(3, 40, noise=0.6, generator=generator)  # classes that overlap
    constructed = room.construct(X, y, **SETTINGS)
    module = room.TrainableReduNet(constructed)
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(module(X), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert all(each.grad is not None and bool(each.grad.any()) for each in module.parameters())
    assert losses[-1] < 0.95 * losses[0]
    moved = constructed.transform(X)
    assert float(constructed.layers[0].expansion.diff().abs().max()) > 0
    assert_close(moved, room.construct(X, y, **SETTINGS).transform(X))  # the constructed network is untouched


def test_the_hessians_of_the_rates_lie_where_the_guaranteed_step_needs_them():
    """Autograd's Hessians of R and of one class's share of R^c have eigenvalues in [-α/8, α], and come near to the lower end."""
    lows, highs = [], []
    for seed, (n, d) in enumerate([(6, 3), (3, 6), (5, 5), (1, 1), (2, 2)] * 4):
        X, eps = (0.3 + seed / 2) * normal(n, d, seed=seed), 0.7
        alpha = d / (n * eps**2)
        H = torch.autograd.functional.hessian(lambda x, eps=eps: coding_rate(x, eps=eps), X).reshape(n * d, n * d) / alpha
        eigenvalues = torch.linalg.eigvalsh(H)
        lows.append(float(eigenvalues[0]))
        highs.append(float(eigenvalues[-1]))
    assert -0.125 - 1e-9 <= min(lows) < -0.12
    assert 0.8 < max(highs) <= 1 + 1e-9
    assert room.guaranteed_step(30, 5, eps=0.5) == pytest.approx(8 / 9 * 30 * 0.25 / 5)


@pytest.mark.parametrize("seed", range(5))
def test_the_guaranteed_step_raises_the_rate_reduction_of_any_features(seed):
    X, y = normal(40, 7, seed=seed) * torch.logspace(0, -2, 7, dtype=torch.float64), torch.arange(40) % (2 + seed)
    step = room.guaranteed_step(40, 7, eps=0.2)
    reductions = room.construct(X, y, layers=100, eps=0.2, step=step).reductions
    assert float(reductions.diff().min()) >= -1e-12


def net(features=None, labels=None, **more):
    features = normal(4, 2) if features is None else features
    labels = torch.tensor([0, 1, 0, 1]) if labels is None else labels
    return room.construct(features, labels, **{**SETTINGS, **more})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: net(torch.zeros(4, 2, dtype=torch.float64)), "4 of 4 that are zero, the first at 0; drop them"),
        (lambda: net(torch.full((4, 2), torch.nan, dtype=torch.float64)), "features must be finite, got 8 NaN"),
        (lambda: net(normal(4, 2).half()), "float32 or float64, got torch.float16"),
        (lambda: net(torch.ones(4, 2, dtype=torch.int64)), "float32 or float64, got torch.int64"),
        (lambda: net(normal(4, 2, 2)), r"shape \[n, d\] with n, d >= 1, got \[4, 2, 2\]"),
        (lambda: net(normal(0, 2), torch.zeros(0, dtype=torch.int64)), r"shape \[n, d\] with n, d >= 1"),
        (lambda: net(labels=torch.tensor([0.0, 1, 0, 1])), r"integers, got torch.float32; convert with .long\(\)"),
        (lambda: net(labels=torch.tensor([0, 2, 0, 2])), "each class 0..2 at least once, got no sample of class 1; relabel"),
        (lambda: net(labels=torch.tensor([0, -1, 0, 1])), "a negative label"),
        (lambda: net(labels=torch.tensor([0, 1])), r"one a sample, \[4\], got \[2\]"),
        (lambda: net(eps=0.0), "eps must be positive and finite"),
        (lambda: net(eps=float("nan")), "eps must be positive and finite"),
        (lambda: net(normal(4, 8), eps=1e-12), r"moments must have .* at most 1e\+10 .* take a larger eps"),
        (lambda: net(step=0.0), "step must be positive and finite, got 0.0"),
        (lambda: net(step=float("inf")), "step must be positive and finite"),
        (lambda: net(sharpness=-1.0), "sharpness must be positive and finite"),
        (lambda: net(layers=0), "layers must be at least 1"),
        (lambda: net().transform(normal(3, 4)), r"shape \[n, 2\] as in training, got \[3, 4\]"),
        (lambda: net().transform(torch.zeros(3, 2, dtype=torch.float64)), "3 of 3 that are zero"),
        (lambda: net().predict(normal(2)), r"shape \[n, 2\] as in training, got \[2\]; a single sample is x\[None\]"),
        (lambda: net(labels=torch.tensor([0, 1, 0, 10**9])), "0..1000000000 at least once, got no sample of class 2; relabel"),
        (lambda: net(normal(4, 2).numpy()), "features must be a torch.Tensor, got ndarray"),
        (lambda: net(labels=[0, 1, 0, 1]), "labels must be a torch.Tensor, got list"),
        (lambda: room.layer(normal(4, 2), torch.tensor([0, 0, 2, 2]), eps=1.0), "no sample of class 1"),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()
