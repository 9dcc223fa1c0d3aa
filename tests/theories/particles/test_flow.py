"""The flow and the equations, each against an independent route: fixed Runge-Kutta steps, quadrature,
enumeration.
"""

import math
from functools import partial

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import quad

from tests.cases import each_case
from transformer_theory.core.errors import NotConverged
from transformer_theory.theories import particles
from transformer_theory.theories.particles.dynamics import softmax_field, unit, unnormalised_field
from transformer_theory.theories.particles.equiangular import softmax_rate, unnormalised_rate


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    return unit(torch.randn(*shape, generator=generator(seed), dtype=torch.float64))


def plain_velocity(X: np.ndarray, beta: float, normalised: bool) -> np.ndarray:
    """Token by token, as the definition is written."""
    rows = []
    for x in X:
        weights = np.array([math.exp(beta * float(x @ y)) for y in X])
        weights /= weights.sum() if normalised else len(X)
        y = weights @ X
        rows.append(y - float(x @ y) * x)
    return np.array(rows)


@pytest.mark.parametrize(("field", "normalised"), [(softmax_field, True), (unnormalised_field, False)])
def test_the_flow_agrees_with_fixed_runge_kutta_steps(field, normalised: bool):
    X, beta, h = uniform(7, 3), 2.0, 0.01
    x = X.numpy()
    for _ in range(100):
        a = plain_velocity(x, beta, normalised)
        b = plain_velocity(x + h / 2 * a, beta, normalised)
        c = plain_velocity(x + h / 2 * b, beta, normalised)
        d = plain_velocity(x + h * c, beta, normalised)
        x = x + h / 6 * (a + 2 * b + 2 * c + d)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = particles.flow(X, partial(field, beta=beta), times=(0.5, 1.0))
    assert found.shape == (2, 7, 3)
    assert np.abs(found[-1].numpy() - x).max() < 1e-5  # stages off the sphere: an error of order h^2 in beta
    assert float((found.norm(dim=-1) - 1).abs().max()) < 1e-14


def test_times_split_the_flow_and_a_batch_is_its_sequences():
    X = uniform(2, 6, 4)
    field = partial(softmax_field, beta=3.0)
    both = particles.flow(X, field, times=(0.0, 1.0, 2.5))
    assert torch.allclose(both[0], X, atol=1e-15)
    alone = particles.flow(X[1], field, times=(2.5,))
    assert float((both[-1, 1] - alone[-1]).abs().max()) < 1e-6


def test_tokens_at_rest_stay_and_long_flows_end_early():
    X = torch.tensor([[1.0, 0], [-1, 0]], dtype=torch.float64)
    assert torch.equal(particles.flow(X, partial(softmax_field, beta=1.0), times=(1e6,))[0], X)


@each_case("times", [(), (1.0, 1.0), (-1.0,), (2.0, 1.0), (math.nan,), (1.0, math.inf)])
def test_times_that_do_not_increase_are_refused(times):
    with pytest.raises(ValueError, match="times must be non-negative and increase"):
        particles.flow(uniform(3, 3), partial(softmax_field, beta=1.0), times=times)
    with pytest.raises(ValueError, match="times must be non-negative and increase"):
        particles.common_cosine(times, n=3, beta=1.0)


def test_tokens_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="tokens must be finite"):
        particles.flow(torch.full((2, 3), torch.nan), partial(softmax_field, beta=1.0), times=(1.0,))


@each_case(
    ("call", "message"),
    [
        (
            lambda X: particles.flow(X, partial(softmax_field, beta=1.0), times=(1.0,), tolerance=-1.0),
            "tolerance must be positive",
        ),
        (
            lambda X: particles.flow(X, partial(softmax_field, beta=math.nan), times=(1.0,)),
            "beta must be finite, got nan",
        ),
        (
            lambda X: particles.flow(X[:0], partial(softmax_field, beta=1.0), times=(1.0,)),
            "tokens must be floats",
        ),
        (
            lambda X: particles.common_cosine((1.0,), n=3, beta=800.0, rate=unnormalised_rate),
            "beta must be between",
        ),
        (lambda X: particles.separation_time(beta=1.0, cosine=1.0), "strictly between -1 and 1"),
        (lambda X: particles.layer_cosine(-0.9, n=10, beta=1.0), "common cosine between"),
        (lambda X: particles.layer_cosine(-1 / 9, n=10, beta=0.0), "outputs of a simplex"),
        (lambda X: particles.half_space_probability(0, 3), "n must be at least 1"),
        (lambda X: particles.in_half_space(X * math.nan), "must be finite"),
        (lambda X: particles.count_clusters(X[None] * math.nan), "must be finite"),
        (lambda X: particles.mean_cosine(X[:1]), "must be at least 2"),
    ],
)
def test_bad_arguments_are_refused(call, message: str):
    with pytest.raises(ValueError, match=message):
        call(uniform(4, 3))


def test_the_limit_of_long_sequences_excludes_orthogonal_tokens():
    """Their critical scale is 1/2: the cosine tends to 0 at 3/4, below 1 / (1 - 0)."""
    assert particles.layer_cosine(0.0, n=1e12, beta=0.75 * math.log(1e12)) < 1e-5
    assert particles.layer_cosine(0.0, n=1e12, beta=0.25 * math.log(1e12)) > 0.99
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        particles.layer_cosine_limit(0.0, gamma=0.75)


def test_a_flow_that_needs_too_many_steps_says_so(monkeypatch):
    monkeypatch.setattr(particles.dynamics, "MAX_STEPS", 3)
    with pytest.raises(NotConverged, match="loosen the tolerance"):
        particles.flow(uniform(5, 3), partial(softmax_field, beta=5.0), times=(50.0,))


@pytest.mark.parametrize("rate", [softmax_rate, unnormalised_rate])
def test_the_common_cosine_solves_its_equation(rate):
    """Time as a function of g, by quadrature."""
    n, beta = 9, 1.5
    (g,) = particles.common_cosine((1.3,), n=n, beta=beta, rate=rate)
    time, _ = quad(lambda x: 1 / rate(x, n=n, beta=beta), 0, g)
    assert time == pytest.approx(1.3, rel=1e-8)


def test_a_simplex_is_at_rest_and_impossible_cosines_are_refused():
    assert softmax_rate(-1 / 4, n=5, beta=2.0) == pytest.approx(0, abs=1e-12)
    for n, start in ((5, -0.5), (1, 0.0), (3, 1.5)):
        with pytest.raises(ValueError, match="common cosine between"):
            particles.common_cosine((1.0,), n=n, beta=1.0, start=start)
    assert particles.common_cosine((0.0,), n=3, beta=1.0, start=0.2).tolist() == [0.2]


def test_the_printed_estimate_fails_at_time_zero():
    assert particles.consensus_estimate(0.0, n=2, beta=0.0) == pytest.approx(0.5 * math.exp(2 / 3))
    assert particles.consensus_estimate(0.0, n=2, beta=0.0) < 1


def test_the_time_of_separation_is_that_of_the_integral():
    for beta in (15.0, 30.0):
        exact, _ = quad(
            lambda g, b: (math.exp(b * (1 - g)) + 1) / (2 * (1 - g * g)), 0.2, 0.9, args=(beta,), limit=200
        )
        assert particles.separation_time(beta=beta, cosine=0.2) / exact == pytest.approx(1, abs=2 / beta)


def test_numbers_of_the_context_formula():
    assert particles.layer_cosine(0.5, n=100, beta=2 * math.log(100)) == pytest.approx(0.8028, abs=5e-5)
    assert particles.layer_cosine(0.5, n=1e12, beta=1.8 * math.log(1e12)) == pytest.approx(0.9965, abs=1e-4)
    assert [particles.layer_cosine_limit(0.5, gamma=gamma) for gamma in (1.9, 2.0, 2.1)] == [1.0, 0.8, 0.5]


def test_energy_clusters_and_half_spaces_by_hand():
    X = torch.tensor([[[1.0, 0], [1, 0], [-1, 0], [0, 1]]], dtype=torch.float64)
    pairs = [math.exp(2 * (float(x @ y) - 1)) for x in X[0] for y in X[0]]
    assert float(particles.energy(X, beta=2.0)) == pytest.approx(sum(pairs) / 16)
    # directions alone count
    assert float(particles.energy(5 * X, beta=2.0)) == pytest.approx(sum(pairs) / 16)
    assert particles.count_clusters(X).tolist() == [3]
    assert particles.count_clusters(X, valid=torch.tensor([[True, True, False, False]])).tolist() == [1]
    assert float(particles.mean_cosine(X)) == pytest.approx(-2 / 12)
    assert not particles.in_half_space(X[0])
    assert particles.in_half_space(X[0, [0, 1, 3]])
    assert particles.half_space_probability(3, 2) == 0.75
    assert particles.half_space_probability(4, 7) == 1


def test_half_spaces_of_the_plane_are_gaps_of_angles():
    for seed in range(20):
        X = uniform(5, 2, seed=seed)
        angles = torch.atan2(X[:, 1], X[:, 0]).sort().values.numpy()
        gap = max(np.diff(angles).max(), 2 * math.pi - angles[-1] + angles[0])
        assert particles.in_half_space(X) == (gap > math.pi)


def test_a_causal_mask_and_given_matrices():
    X = uniform(4, 3)
    A = particles.attention(X, beta=1.0, causal=True)
    assert torch.equal(A.triu(1), torch.zeros(4, 4, dtype=torch.float64))
    B, V = torch.randn(2, 3, 3, generator=generator(1), dtype=torch.float64)
    scores = X @ B @ X.mT
    expected = torch.softmax(2 * scores, -1) @ X @ V
    found = softmax_field(X, beta=2.0, bilinear=B, value=V)
    assert float((found - particles.tangent(X, expected)).abs().max()) < 1e-14


SCALES = [(torch.float32, scale) for scale in (1e-36, 1e-23, 1e18, 1e36)] + [
    (torch.float64, scale) for scale in (1e-300, 1e-160, 1e160, 1e300)
]


@each_case(("dtype", "scale"), SCALES)
def test_directions_do_not_depend_on_the_scale(dtype, scale):
    x = torch.randn(5, 3, generator=generator(), dtype=torch.float64)
    u = x / x.square().sum(1, keepdim=True).sqrt()
    scaled = (scale * x).to(dtype)
    assert torch.allclose(unit(scaled).double(), u, rtol=1e-5)
    cosines = u @ u.T
    assert float(particles.mean_cosine(scaled)) == pytest.approx(
        float(cosines.sum() - 5) / 20, rel=1e-4, abs=1e-6
    )
    assert float(particles.energy(scaled, beta=3.0)) == pytest.approx(
        float((3 * (cosines - 1)).exp().mean()), rel=1e-5
    )
    velocity = particles.softmax_field(u, beta=2.0)
    assert torch.allclose(particles.softmax_field(scaled, beta=2.0).double(), velocity, atol=1e-5)
    assert particles.in_half_space(scaled) == particles.in_half_space(u)
    assert (
        particles.count_clusters(scaled[None], same=0.5).tolist()
        == particles.count_clusters(u[None], same=0.5).tolist()
    )


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_tokens_that_are_not_finite_have_no_direction(bad):
    tokens = torch.tensor([[bad, 1.0], [0.0, 1.0]], dtype=torch.float64)
    for function in (unit, particles.mean_cosine, lambda x: particles.energy(x, beta=1.0)):
        with pytest.raises(ValueError, match="finite"):
            function(tokens)


@pytest.mark.parametrize(("beta", "dtype"), [(1e3, torch.float64), (100.0, torch.float32)])
def test_weights_beyond_the_range_of_floats_are_refused(beta, dtype):
    with pytest.raises(ValueError, match="reduce beta"):
        unnormalised_field(10 * uniform(4, 3).to(dtype), beta=beta)


def test_times_beyond_the_range_of_floats_are_refused():
    with mpmath.workdps(30):
        exact = mpmath.exp(mpmath.mpf(710)) / (2 * 710)  # e^710 alone has no float
    assert particles.separation_time(beta=710, cosine=0.0) == pytest.approx(float(exact), rel=1e-11)
    with pytest.raises(ValueError, match="beta must be small enough"):
        particles.separation_time(beta=800, cosine=0.0)
    assert particles.layer_cosine(0.5, n=4, beta=-1e4) == pytest.approx(
        # no weight on the own token and 1/3 on each other one
        (0.5 + 0.5 * 2 / 9) / (0.5 + 0.5 * 3 / 9)
    )
