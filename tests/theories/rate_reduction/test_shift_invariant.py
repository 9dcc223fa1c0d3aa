"""The shift-invariant ReduNet: equal to the vector one on all shifts, equivariant, and the liftings in front
of it.
"""

import itertools

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.theories import rate_reduction

SETTINGS = {"eps": 0.5, "step": 0.5, "sharpness": 3.0}
GRIDS = ((5,), (6,), (3, 4), (4, 3), (2, 1, 3))


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def shifted(samples, by):
    return torch.roll(samples, by, tuple(range(2, samples.ndim)))


def all_shifts(samples):
    return [shifted(samples, by) for by in itertools.product(*map(range, samples.shape[2:]))]


@each_case("grid", GRIDS, ids=str)
def test_it_is_the_vector_network_on_all_shifts(grid):
    """The circulant matrices themselves, c T x c T, are the independent route."""
    samples, labels, unseen = normal(7, 3, *grid), torch.arange(7) % 2, normal(5, 3, *grid, seed=1)
    net = rate_reduction.construct_shift_invariant(samples, labels, layers=4, **SETTINGS)
    copies = all_shifts(samples)
    vector = rate_reduction.construct(
        torch.cat(copies).flatten(1), labels.repeat(len(copies)), layers=4, **SETTINGS
    )
    assert_close(net.features.flatten(1), vector.features[:7], rtol=0, atol=1e-13)
    assert_close(net.rates, vector.rates, rtol=1e-12, atol=0)
    moved = net.transform(unseen)
    assert_close(moved.flatten(1), vector.transform(unseen.flatten(1)), rtol=0, atol=1e-13)
    assert_close(net.probabilities(moved), vector.probabilities(moved.flatten(1)), rtol=1e-9, atol=1e-12)
    assert_close(net.predict(moved), vector.predict(moved.flatten(1)))


@each_case("grid", GRIDS, ids=str)
def test_features_of_a_shifted_sample_are_the_shifted_features(grid):
    net = rate_reduction.construct_shift_invariant(
        normal(9, 2, *grid), torch.arange(9) % 3, layers=5, **SETTINGS
    )
    unseen = normal(4, 2, *grid, seed=2)
    moved = net.transform(unseen)
    for by in itertools.product(*map(range, grid)):
        again = net.transform(shifted(unseen, by))
        assert_close(again, shifted(moved, by), rtol=0, atol=1e-13)
        assert_close(net.probabilities(again), net.probabilities(moved), rtol=1e-10, atol=0)


def test_what_any_layer_does_is_a_cyclic_convolution():
    """E applied in frequency = convolution with the impulse responses of E."""
    net = rate_reduction.construct_shift_invariant(normal(6, 2, 7), torch.arange(6) % 2, layers=1, **SETTINGS)
    spectrum, E = net.spectrum, net.layers[0].expansion
    unseen, impulses = normal(3, 2, 7, seed=3), torch.zeros(2, 2, 7, dtype=torch.float64)
    impulses[range(2), range(2), 0] = 1
    response = spectrum.backward(spectrum.forward(impulses) @ E)  # [in, out, T]
    convolved = sum(unseen[:, :, s, None, None] * response.roll(s, 2) for s in range(7)).sum(1)
    assert_close(spectrum.backward(spectrum.forward(unseen) @ E), convolved, rtol=0, atol=1e-13)


def test_norms_are_those_of_the_samples():
    for grid in GRIDS:
        samples = normal(3, 2, *grid)
        net = rate_reduction.construct_shift_invariant(samples, torch.tensor([0, 1, 1]), layers=1, **SETTINGS)
        rows = net.spectrum.forward(samples)
        assert_close(net.spectrum.norms(rows), samples.flatten(1).norm(dim=1))
        assert_close(net.spectrum.backward(rows), samples)
        assert_close(net.features.flatten(1).norm(dim=1), torch.ones(3, dtype=torch.float64))


def test_classes_are_told_apart_wherever_the_signal_starts(generator):
    """Three noisy patterns on a ring, lifted; training has seen one phase of each, the vector network cannot
    cope with others.
    """
    labels, patterns = torch.arange(120) % 3, torch.randn(3, 24, dtype=torch.float64, generator=generator)
    noisy = (patterns[labels] + 0.3 * torch.randn(120, 24, dtype=torch.float64, generator=generator))[:, None]
    lifted = rate_reduction.lift(noisy, rate_reduction.random_filters(6, 1, (5,), generator=generator))
    train, y, truth = lifted[:60], labels[:60], labels[60:]
    phases = torch.stack(
        [x.roll(int(s), -1) for x, s in zip(lifted[60:], torch.randint(24, (60,), generator=generator))]
    )
    net = rate_reduction.construct_shift_invariant(train, y, layers=10, eps=0.1**0.5, step=0.5)
    assert bool((net.reductions.diff() > 0).all())
    assert float((net.predict(net.transform(phases)) == truth).double().mean()) >= 0.95
    vector = rate_reduction.construct(train.flatten(1), y, layers=10, eps=0.1**0.5, step=0.5)
    assert float((vector.predict(vector.transform(phases.flatten(1))) == truth).double().mean()) < 0.7


@pytest.mark.parametrize(("grid", "size"), [((9,), (4,)), ((5, 6), (3, 2))])
def test_lifting_is_a_rectified_cyclic_convolution(generator, grid, size):
    samples, filters = normal(3, 2, *grid), rate_reduction.random_filters(4, 2, size, generator=generator)
    lifted = rate_reduction.lift(samples, filters)
    expected = torch.zeros(3, 4, *grid, dtype=torch.float64)
    for place in itertools.product(*map(range, size)):
        weights = filters[(..., *place)]
        expected += torch.einsum("nc...,kc->nk...", shifted(samples, place), weights)
    assert_close(lifted, expected.clamp(min=0), rtol=0, atol=1e-13)
    by = tuple(1 for _ in grid)
    assert_close(rate_reduction.lift(shifted(samples, by), filters), shifted(lifted, by), rtol=0, atol=1e-13)
    assert_close(filters.flatten(1).norm(dim=1), torch.ones(4, dtype=torch.float64))


def test_a_quarter_turn_is_a_quarter_of_the_angles():
    images = normal(3, 2, 8, 8)
    rings = rate_reduction.polar(images, rings=5, angles=16)
    assert rings.shape == (3, 10, 16)
    assert_close(
        rate_reduction.polar(images.rot90(1, (2, 3)), rings=5, angles=16),
        rings.roll(-4, 2),
        rtol=0,
        atol=1e-12,
    )
    net = rate_reduction.construct_shift_invariant(rings, torch.tensor([0, 1, 1]), layers=3, **SETTINGS)
    turned = rate_reduction.polar(normal(4, 2, 8, 8, seed=1).rot90(2, (2, 3)), rings=5, angles=16)
    upright = rate_reduction.polar(normal(4, 2, 8, 8, seed=1), rings=5, angles=16)
    assert_close(net.predict(net.transform(turned)), net.predict(net.transform(upright)))


def test_a_linear_lifting_of_one_channel_leaves_one_dimension_a_frequency(generator):
    filters = rate_reduction.random_filters(6, 1, (5,), generator=generator)
    positive = normal(8, 1, 9)
    # max(0, z) - max(0, -z) = z
    linear = rate_reduction.lift(positive, filters) - rate_reduction.lift(-positive, filters)
    assert torch.linalg.matrix_rank(torch.fft.rfft(linear).permute(2, 0, 1)).tolist() == [1] * 5
    assert (
        min(
            torch.linalg.matrix_rank(
                torch.fft.rfft(rate_reduction.lift(positive, filters)).permute(2, 0, 1)
            ).tolist()
        )
        == 6
    )


def shift_net(samples=None, labels=None, **more):
    samples = normal(4, 2, 5) if samples is None else samples
    labels = torch.tensor([0, 1, 0, 1]) if labels is None else labels
    return rate_reduction.construct_shift_invariant(samples, labels, **{"layers": 1, **SETTINGS, **more})


@each_case(
    ("call", "message"),
    [
        (lambda: shift_net(normal(4, 5)), r"samples must have shape \[n, c, T\] or \[n, c, h, w\]"),
        (lambda: shift_net(normal(4, 2, 0)), "no side empty"),
        (lambda: shift_net(labels=torch.tensor([0, 2, 0, 2])), "no sample of class 1"),
        (
            lambda: shift_net(normal(4, 2, 5) * torch.tensor([0.0, 1, 1, 1])[:, None, None]),
            "1 of 4 that are zero, the first at 0",
        ),
        (lambda: shift_net(eps=-1.0), "eps must be positive and finite"),
        (lambda: shift_net(step=float("inf")), "step must be positive and finite"),
        (lambda: shift_net().transform(normal(3, 2, 5).float()), "samples and network must share a dtype"),
        (
            lambda: shift_net().transform(normal(3, 2, 6)),
            r"shape \[n, 2, 5\] as in training, got \[3, 2, 6\]",
        ),
        (lambda: rate_reduction.lift(normal(2, 1, 5), normal(3, 2, 3)), r"got \[3, 2, 3\] for \[2, 1, 5\]"),
        (lambda: rate_reduction.lift(normal(2, 1, 5), normal(3, 1, 6)), "no larger than the grid"),
        (
            lambda: rate_reduction.random_filters(0, 1, (3,), generator=torch.Generator()),
            "at least one channel",
        ),
        (
            lambda: rate_reduction.polar(normal(2, 5, 5), rings=2, angles=4),
            r"images must have shape \[n, c, h, w\]",
        ),
        (lambda: rate_reduction.polar(normal(1, 1, 5, 5), rings=0, angles=4), "rings and angles"),
    ],
)
def test_bad_input_is_named(unchecked, call, message):
    with pytest.raises(ValueError, match=message):
        call()


def in_unitary_frequencies(x, y, unseen, *, eps_squared, step, sharpness, layers):
    """The released form, written out: ``norm="ortho"`` in the formulas of the module. Returns features,
    unseen features and distances.
    """
    rows, new = (
        np.fft.fft(v / np.linalg.norm(v, axis=(1, 2), keepdims=True), axis=2, norm="ortho")
        for v in (x, unseen)
    )
    n, c, T = rows.shape
    shares = np.bincount(y) / n

    def operators():
        """E, then the C_j, [T, c, c] each."""
        for members in (rows, *(rows[y == j] for j in range(len(shares)))):
            scale = c / (len(members) * eps_squared)
            yield [
                scale * np.linalg.inv(np.eye(c) + scale * members[:, :, t].conj().T @ members[:, :, t])
                for t in range(T)
            ]

    def applied(v, matrices):
        return np.stack([v[:, :, t] @ matrices[t] for t in range(T)], 2)

    def normalised(v):
        return v / np.linalg.norm(v, axis=(1, 2), keepdims=True)

    for _ in range(layers):
        E, *C = operators()
        compressed = [applied(new, matrices) for matrices in C]
        scores = -sharpness * np.stack([np.linalg.norm(v, axis=(1, 2)) for v in compressed], 1)
        estimated = np.exp(scores - scores.max(1, keepdims=True))
        weights = shares * estimated / estimated.sum(1, keepdims=True)
        new = normalised(
            new
            + step * (applied(new, E) - sum(weights[:, j, None, None] * v for j, v in enumerate(compressed)))
        )
        moves = applied(rows, E) - sum(
            shares[j] * (y == j)[:, None, None] * applied(rows, matrices) for j, matrices in enumerate(C)
        )
        rows = normalised(rows + step * moves)
    _, *C = operators()
    distances = np.stack([np.linalg.norm(applied(new, matrices), axis=(1, 2)) for matrices in C], 1)
    return (
        np.fft.ifft(rows, axis=2, norm="ortho").real,
        np.fft.ifft(new, axis=2, norm="ortho").real,
        distances,
    )


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_the_released_form_is_this_one_with_eps_squared_step_and_sharpness_times_the_places(dtype, atol):
    """ε² = T ε'², η = T η', λ = T λ'; at the published ε'² = .1 itself the features differ by more
    than .01.
    """
    x, y, unseen, T = normal(12, 3, 7), torch.arange(12) % 3, normal(5, 3, 7, seed=1), 7
    released = {"eps_squared": 0.1, "step": 0.1, "sharpness": 4.0}
    features, new, distances = in_unitary_frequencies(
        x.numpy(), y.numpy(), unseen.numpy(), layers=4, **released
    )

    def built(factor):
        eps, step, sharpness = (factor * 0.1) ** 0.5, factor * 0.1, factor * 4.0
        return rate_reduction.construct_shift_invariant(
            x.to(dtype), y, layers=4, eps=eps, step=step, sharpness=sharpness
        )

    net = built(T)
    moved = net.transform(unseen.to(dtype))
    assert_close(net.features.double(), torch.from_numpy(features), rtol=0, atol=atol)
    assert_close(moved.double(), torch.from_numpy(new), rtol=0, atol=atol)
    assert_close(T * net.distances(moved).double(), torch.from_numpy(distances), rtol=0, atol=100 * atol)
    assert float((built(1).features.double() - torch.from_numpy(features)).abs().max()) > 0.01


def test_samples_of_another_kind_are_refused_by_every_method(unchecked):
    samples = normal(6, 2, 5)
    net = rate_reduction.construct_shift_invariant(samples, torch.arange(6) % 2, layers=2, **SETTINGS)
    for method in (net.transform, net.predict, net.predict_balanced, net.probabilities, net.distances):
        with pytest.raises(ValueError, match=r"must share a dtype, got torch\.float32 and torch\.float64"):
            method(samples.float())
        with pytest.raises(
            ValueError, match=r"samples must have shape \[n, 2, 5\] as in training, got \[6, 1, 5\]"
        ):
            method(samples[:, :1])
        with pytest.raises(ValueError, match=r"got \[2, 5\]; a single sample is x\[None\]"):
            method(samples[0])
