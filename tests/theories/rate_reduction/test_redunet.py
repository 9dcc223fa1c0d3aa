"""ReduNet: its layers, its ascent, its predictions, back-propagation afterwards, and bad input."""

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.metrics.coding import class_coding_rate, coding_rate, unit_norm
from transformer_theory.metrics.coding import rate_reduction as reduction
from transformer_theory.theories import rate_reduction

SETTINGS = {"layers": 3, "eps": 0.1**0.5, "step": 0.5, "sharpness": 20.0}


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def textbook_layer(X, y, eps, step, memberships=None):
    """One layer by inverses and diagonal membership matrices, in the papers' columns; memberships of X's own
    labels if not given.
    """
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
    net = rate_reduction.construct(X, y, **SETTINGS)
    for _ in range(3):
        X = textbook_layer(X, y, 0.1**0.5, 0.5)
    assert_close(net.features, X, rtol=0, atol=1e-12)


def test_unnormalised_features_give_the_network_of_the_normalised_ones():
    X, y = normal(40, 6), torch.arange(40) % 3
    long, unit = (
        rate_reduction.construct(1e3 * X, y, **SETTINGS),
        rate_reduction.construct(unit_norm(X), y, **SETTINGS),
    )
    assert_close(long.features, unit.features, rtol=0, atol=1e-12)
    assert_close(long.transform(5 * X), unit.transform(X), rtol=0, atol=1e-12)


def test_float32_stays_float32_and_is_close():
    X, y = normal(60, 6), torch.arange(60) % 3
    single, double = (
        rate_reduction.construct(X.float(), y, **SETTINGS),
        rate_reduction.construct(X, y, **SETTINGS),
    )
    assert single.features.dtype == torch.float32
    assert_close(single.features.double(), double.features, rtol=0, atol=1e-4)


def test_predictions_are_the_most_probable_classes(generator):
    X, y = rate_reduction.gaussian_toy(3, 40, generator=generator)
    net = rate_reduction.construct(X, y, **SETTINGS)
    moved = net.transform(X)
    soft = net.probabilities(moved)
    assert_close(soft.sum(1), torch.ones(120, dtype=soft.dtype))
    assert_close(soft.argmax(1), net.predict(moved))
    assert_close(soft, net.layers[-1].memberships(moved, sharpness=20.0))


def test_the_trainable_network_starts_as_the_constructed_one(generator):
    X, y = rate_reduction.gaussian_toy(3, 40, generator=generator)
    net = rate_reduction.construct(X, y, **SETTINGS)
    module = rate_reduction.TrainableReduNet(net)
    unseen = normal(25, 3, seed=5)
    with torch.no_grad():
        assert_close(module.transform(unseen), net.transform(unseen), rtol=0, atol=1e-13)
        assert_close(
            module(unseen).softmax(1), net.probabilities(net.transform(unseen)), rtol=1e-9, atol=1e-13
        )
    assert {name for name, _ in module.named_parameters()} == {"expansions", "compressions"}
    again = rate_reduction.TrainableReduNet(
        rate_reduction.construct(*rate_reduction.gaussian_toy(3, 40, generator=generator), **SETTINGS)
    )
    again.load_state_dict(module.state_dict())
    with torch.no_grad():
        assert_close(again(unseen), module(unseen))


def test_gradient_descent_lowers_the_loss_of_the_constructed_network(generator):
    X, y = rate_reduction.gaussian_toy(3, 40, noise=0.6, generator=generator)  # classes that overlap
    constructed = rate_reduction.construct(X, y, **SETTINGS)
    module = rate_reduction.TrainableReduNet(constructed)
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
    # the constructed network is untouched
    assert_close(moved, rate_reduction.construct(X, y, **SETTINGS).transform(X))


def test_the_hessians_of_the_rates_lie_where_the_guaranteed_step_needs_them():
    """Autograd's Hessians of R and of one class's share of R^c have eigenvalues in [-α/8, α], and come near
    to the lower end.
    """
    lows, highs = [], []
    for seed, (n, d) in enumerate([(6, 3), (3, 6), (5, 5), (1, 1), (2, 2)] * 4):
        X, eps = (0.3 + seed / 2) * normal(n, d, seed=seed), 0.7
        alpha = d / (n * eps**2)
        H = (
            torch.autograd.functional.hessian(lambda x, eps=eps: coding_rate(x, eps=eps), X).reshape(
                n * d, n * d
            )
            / alpha
        )
        eigenvalues = torch.linalg.eigvalsh(H)
        lows.append(float(eigenvalues[0]))
        highs.append(float(eigenvalues[-1]))
    assert -0.125 - 1e-9 <= min(lows) < -0.12
    assert 0.8 < max(highs) <= 1 + 1e-9
    assert rate_reduction.guaranteed_step(30, 5, eps=0.5) == pytest.approx(8 / 9 * 30 * 0.25 / 5)


@each_case("seed", range(5))
def test_the_guaranteed_step_raises_the_rate_reduction_of_any_features(seed):
    X, y = (
        normal(40, 7, seed=seed) * torch.logspace(0, -2, 7, dtype=torch.float64),
        torch.arange(40) % (2 + seed),
    )
    step = rate_reduction.guaranteed_step(40, 7, eps=0.2)
    reductions = rate_reduction.construct(X, y, layers=100, eps=0.2, step=step).reductions
    assert float(reductions.diff().min()) >= -1e-12


def test_layer_is_the_gradient_of_the_reduction():
    X, y = normal(30, 5), torch.arange(30) % 3
    step = 1e-6 * normal(30, 5, seed=1)
    slope = (reduction(X + step, y, eps=0.7) - reduction(X - step, y, eps=0.7)) / 2
    gradient = rate_reduction.layer(X, y, eps=0.7).gradient(X, torch.nn.functional.one_hot(y, 3).double())
    assert_close((gradient * step).sum(), slope, rtol=1e-6, atol=0)


def test_redunet_climbs_at_every_layer_and_its_rates_are_the_metrics(generator):
    X, y = rate_reduction.gaussian_toy(3, 100, generator=generator)
    net = rate_reduction.construct(X, y, layers=60, eps=0.1**0.5, step=0.5)
    assert bool((net.reductions.diff() > 0).all())
    for layer, features in ((0, X), (-1, net.features)):
        assert_close(net.rates[layer, 0], coding_rate(features, eps=0.1**0.5))
        assert_close(net.rates[layer, 1], class_coding_rate(features, y, eps=0.1**0.5))
    assert float(net.reductions[-1]) <= rate_reduction.optimum([100] * 3, 3, eps=0.1**0.5).value
    assert_close(net.features.norm(dim=1), torch.ones(300, dtype=X.dtype))


def test_redunet_does_not_depend_on_the_order_of_the_samples(generator):
    X, y = rate_reduction.gaussian_toy(2, 40, generator=generator)
    order = torch.randperm(80, generator=generator)
    one = rate_reduction.construct(X, y, layers=20, eps=0.3, step=0.5)
    other = rate_reduction.construct(X[order], y[order], layers=20, eps=0.3, step=0.5)
    assert_close(other.features, one.features[order])


def test_new_samples_follow_their_class(generator):
    X, y = rate_reduction.gaussian_toy(2, 200, generator=generator)
    unseen, truth = rate_reduction.gaussian_toy(2, 200, generator=generator)
    net = rate_reduction.construct(X, y, layers=100, eps=0.1**0.5, step=0.5)
    moved = net.transform(unseen)
    assert float((moved @ moved.mT).abs()[truth[:, None] != truth].mean()) < 0.5 * float(
        (unseen @ unseen.mT).abs()[truth[:, None] != truth].mean()
    )
    assert bool((net.predict(moved) == truth).all())
    assert bool((rate_reduction.nearest_subspace(net.features, y, moved, rank=1) == truth).all())
    # with the training samples' memberships certain, new and training samples move alike
    assert_close(net.transform(X), net.features, rtol=0, atol=0.2)


def test_nearest_subspace_finds_planes(generator):
    X, y = rate_reduction.orthogonal_classes([30, 30], [2, 3], 6, generator=generator)
    assert bool((rate_reduction.nearest_subspace(X, y, X, rank=2) == y).all())


def test_arrays_and_float32_are_accepted(unchecked):
    X, y = normal(30, 5), torch.arange(30) % 3
    expected = rate_reduction.construct(X, y, **SETTINGS)
    net = rate_reduction.construct(X.numpy(), y.numpy().astype("int32"), **SETTINGS)
    assert torch.equal(net.features, expected.features)
    assert torch.equal(net.predict(net.transform(X.numpy())), expected.predict(expected.transform(X)))
    layer = rate_reduction.layer(X.numpy(), y.tolist(), eps=0.7)
    assert torch.equal(layer.expansion, rate_reduction.layer(X, y, eps=0.7).expansion)
    assert torch.equal(
        rate_reduction.nearest_subspace(X.numpy(), y.numpy(), X.numpy(), rank=2),
        rate_reduction.nearest_subspace(X, y, X, rank=2),
    )


def net(features=None, labels=None, **more):
    features = normal(4, 2) if features is None else features
    labels = torch.tensor([0, 1, 0, 1]) if labels is None else labels
    return rate_reduction.construct(features, labels, **{**SETTINGS, **more})


@each_case(
    ("call", "message"),
    [
        (
            lambda: net(torch.zeros(4, 2, dtype=torch.float64)),
            "4 of 4 that are zero, the first at 0; drop them",
        ),
        (
            lambda: net(torch.full((4, 2), torch.nan, dtype=torch.float64)),
            "features must be finite, got 8 NaN",
        ),
        (lambda: net(normal(4, 2, 2)), r"shape \[n, d\] with n, d >= 1, got \[4, 2, 2\]"),
        (lambda: net(normal(0, 2), torch.zeros(0, dtype=torch.int64)), r"shape \[n, d\] with n, d >= 1"),
        (
            lambda: net(labels=torch.tensor([0, 2, 0, 2])),
            "each class 0..2 at least once, got no sample of class 1; relabel",
        ),
        (lambda: net(labels=torch.tensor([0, -1, 0, 1])), "a negative label"),
        (lambda: net(labels=torch.tensor([0, 1])), r"\[4\], got \[2\]"),
        (lambda: net(eps=0.0), "eps must be positive and finite"),
        (lambda: net(eps=float("nan")), "eps must be positive and finite"),
        (lambda: net(normal(4, 8), eps=1e-12), r"1e\+10.* eps"),
        (lambda: net(step=0.0), "step must be positive and finite, got 0.0"),
        (lambda: net(step=float("inf")), "step must be positive and finite"),
        (lambda: net(sharpness=-1.0), "sharpness must be positive and finite"),
        (lambda: net(layers=0), "layers must be at least 1"),
        (lambda: net().transform(normal(3, 4)), r"shape \[n, 2\] as in training, got \[3, 4\]"),
        (lambda: net().transform(torch.zeros(3, 2, dtype=torch.float64)), "3 of 3 that are zero"),
        (
            lambda: net().predict(normal(2)),
            r"shape \[n, 2\] as in training, got \[2\]; a single sample is x\[None\]",
        ),
        (
            lambda: net(labels=torch.tensor([0, 1, 0, 10**9])),
            "0..1000000000 at least once, got no sample of class 2; relabel",
        ),
        (lambda: net().transform(normal(3, 2).float()), "samples and network must share a dtype"),
        (lambda: net().predict(normal(3, 2).float()), "samples and network must share a dtype"),
        (
            lambda: rate_reduction.nearest_subspace(normal(2, 2), torch.tensor([0, 1]), normal(1, 2), rank=0),
            "rank must be at least 1",
        ),
        (
            lambda: rate_reduction.layer(normal(4, 2), torch.tensor([0, 0, 2, 2]), eps=1.0),
            "no sample of class 1",
        ),
        (lambda: net(labels=torch.tensor([0.0, 1, 0, 1])), "labels must be integers"),
        (lambda: net(labels="0101"), "labels must be one integer or word per sequence, got str"),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: net(normal(4, 2) > 0), "features"),
        (lambda: net(layers=1.5), "layers"),
        (
            lambda: rate_reduction.nearest_subspace(
                normal(2, 2), torch.tensor([0, 1]), normal(1, 2), rank=2.5
            ),
            "rank",
        ),
    ],
)
def test_wrong_types_are_named(unchecked, call, name):
    with pytest.raises(TypeError, match=f"{name} must"):
        call()


def test_samples_of_another_kind_are_refused_by_every_method(unchecked):
    X, y = normal(6, 4), torch.arange(6) % 2
    built = rate_reduction.construct(X, y, layers=2, eps=0.5, step=0.1)
    trainable = rate_reduction.TrainableReduNet(built)
    methods = (
        built.transform,
        built.predict,
        built.predict_balanced,
        built.probabilities,
        built.distances,
        trainable,
        trainable.transform,
    )
    for method in methods:
        with pytest.raises(ValueError, match=r"must share a dtype, got torch\.float32 and torch\.float64"):
            method(X.float())
        with pytest.raises(
            ValueError, match=r"features must have shape \[n, 4\] as in training, got \[6, 3\]"
        ):
            method(X[:, :3])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_transformed_samples_that_are_not_finite_have_no_class(unchecked, value):
    X, y = normal(6, 2, 3), torch.arange(6) % 2
    vector = rate_reduction.construct(X.flatten(1), y, layers=1, eps=0.5, step=0.1)
    shifts = rate_reduction.construct_shift_invariant(X, y, layers=1, eps=0.5, step=0.1)
    for built in (vector, shifts):
        bad = built.features.clone()
        bad[2] = value
        for method in (built.predict, built.predict_balanced, built.probabilities, built.distances):
            assert len(method(built.features)) == 6
            with pytest.raises(
                ValueError, match=r"^transformed must be finite, got 6 NaN or infinite values; drop them$"
            ):
                method(bad)


def test_a_subspace_of_all_dimensions_is_refused():
    """It contains every sample, so the first class would be predicted always."""
    X, y = normal(20, 4), torch.arange(20) % 2
    with pytest.raises(
        ValueError, match=r"below the dimension 4, got 6: the subspace of class 0 .* pass a rank of at most 3"
    ):
        rate_reduction.nearest_subspace(X, y, X, rank=6)
    # three samples a class span no more than three dimensions, whatever the rank
    few = torch.cat([X[:5], X[:1] + 1e-3])
    assert len(rate_reduction.nearest_subspace(few, torch.arange(6) % 2, X, rank=6)) == 20
