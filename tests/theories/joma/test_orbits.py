"""The linear and the nonlinear MLP in closed form, against quadrature, a plain loop, other integrators and
the joint flow.
"""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.maths.linalg import stable_rank
from transformer_theory.theories.joma import nonlinear, orbit
from transformer_theory.theories.joma.block import Contexts, Softmax, zero_block
from transformer_theory.theories.joma.dynamics import Model, gradient_flow, signed
from transformer_theory.theories.joma.figures import two_phases
from transformer_theory.theories.joma.nonlinear import (
    equal_columns,
    gaussian_points,
    linear_layer,
    nonlinear_layer,
)

DELTA = torch.tensor([1.0, 0.8, -0.5, 0.1], dtype=torch.float64)


def test_orbit_solves_its_equation():
    """t = int_0^v e^{-u^2/2} du / Delta, by quadrature."""
    remaining = torch.tensor([0.7, 0.2, 1e-3], dtype=torch.float64)
    result = orbit.orbit(DELTA, remaining)
    for at, r in enumerate(remaining.tolist()):
        t = (1 - r) * orbit.blow_up_time(DELTA)
        for token, delta in enumerate(DELTA.tolist()):
            passed = mpmath.quad(lambda u: mpmath.exp(-u * u / 2), [0, float(result[at, token])])
            assert float(passed) == pytest.approx(delta * t, rel=1e-12)


def test_near_the_end_the_leader_grows_and_the_others_stop():
    result = orbit.orbit(DELTA, torch.tensor([1e-12, 1e-300], dtype=torch.float64))
    assert float(result[0, 0]) == pytest.approx(
        float(mpmath.findroot(lambda v: mpmath.erfc(v / mpmath.sqrt(2)) - mpmath.mpf("1e-12"), 7.1))
    )
    assert torch.isfinite(result).all()
    assert_close(result[1, 1:], orbit.limits(DELTA)[1:])
    assert float(orbit.limits(DELTA)[0]) == math.inf


def test_the_constant_is_erf_of_v_over_root_two():
    """The two candidates at t = .9999 t*: one number for all tokens, and four different ones."""
    v = orbit.orbit(DELTA, torch.tensor([1e-4], dtype=torch.float64))[0]
    right, wrong = orbit.progress(v, DELTA), orbit.progress(v / math.sqrt(2), DELTA)
    assert_close(right, torch.full_like(right, 0.9999), rtol=0, atol=1e-12)
    assert float(wrong.max() / wrong.min()) > 1.3


def test_normalised_clock_by_another_integrator():
    frequency = torch.tensor([0.5, 1.0, 0.2, 0.3], dtype=torch.float64)
    remaining = torch.tensor([0.5, 0.05, 1e-3], dtype=torch.float64)
    times = orbit.normalised_clock(DELTA, frequency, remaining)

    def velocity(_, v):
        grown = torch.exp(torch.as_tensor(v).square() / 2)
        return (DELTA * grown / (frequency * grown).sum()).numpy()

    other = solve_ivp(
        velocity,
        (0, float(times[-1])),
        [0.0] * 4,
        t_eval=times.numpy(),
        method="DOP853",
        rtol=1e-12,
        atol=1e-12,
    )
    assert_close(torch.as_tensor(other.y.T), orbit.orbit(DELTA, remaining), rtol=0, atol=1e-5)
    assert float(orbit.normalised_clock(DELTA, frequency, torch.ones(1, dtype=torch.float64))) == 0


def test_softmax_in_the_joint_flow_is_not_on_the_orbit():
    """Even with one normaliser for all samples (equal sums, one context) z is not v^2/2: by another
    integrator of the plain equations.
    """
    x = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)

    def velocity(_, state):
        v, z = torch.as_tensor(state[:3]), torch.as_tensor(state[3:])
        b = torch.exp(z) * x / (torch.exp(z) * x).sum()
        return torch.cat([b, b * (v - b @ v)]).numpy()

    time = orbit.blow_up_time(x)
    v, z = torch.as_tensor(solve_ivp(velocity, (0, time), [0.0] * 6, rtol=1e-11, atol=1e-12).y[:, -1]).split(
        3
    )
    contexts = Contexts(x[None], torch.zeros(1, dtype=torch.long), torch.ones(1, dtype=torch.long))
    path = gradient_flow(
        zero_block(contexts, units=1), contexts, Model(Softmax(), loss=signed), step=time / 100, steps=100
    )
    assert_close(path.state(-1).lower[0], v, atol=1e-7, rtol=0)
    assert float((z - v.square() / 2).abs().max()) > 0.1
    progress = orbit.progress(v, x)
    assert float(progress.max() / progress.min()) > 1.05


def time_to(mu: float, log_delta: float) -> float:
    """t at which ln delta is reached: int exp(-mu^2 (1 - e^s)^2 / 2) ds from log_delta to 0."""
    return float(
        mpmath.quad(
            lambda s: mpmath.exp(-(mu**2) * mpmath.expm1(s) ** 2 / 2),
            [log_delta, max(log_delta, -40.0), -5, -1, 0],
        )
    )


@pytest.mark.parametrize("time", sorted(two_phases.RATIOS))
def test_log_remaining_agrees_with_quadrature(time):
    mu = torch.tensor(two_phases.RATIO_MU, dtype=torch.float64)
    logs = nonlinear.log_remaining(mu, torch.tensor([time], dtype=torch.float64))[0]
    for value, log_delta in zip(mu.tolist(), logs.tolist()):
        assert time_to(value, log_delta) == pytest.approx(time, rel=1e-7)
    for result, wanted in zip((logs / logs[-1]).tolist(), two_phases.RATIOS[time]):
        assert result == pytest.approx(wanted, rel=4e-3)


@each_case("mu", [1e-3, -3.0, 9.6, 12.0, 37.0])
def test_the_time_of_log_remaining_is_met_over_the_whole_range(mu):
    """t(s) by mpmath in steps of the exponent agrees with the time; beyond s = 60 the integrand is constant
    to 1e-22.
    """
    times = torch.tensor([1e-9, 0.01, 1.0, 1e5], dtype=torch.float64)
    logs = nonlinear.log_remaining(torch.tensor([mu], dtype=torch.float64), times)[:, 0]
    with mpmath.workdps(20):
        roots = [mpmath.sqrt(3 * k) / abs(mu) for k in range(31)]
        edges = sorted({-mpmath.log1p(-root) for root in roots if root < 1} | {*range(0, 12, 2), 20, 60})
        for time, log in zip(times.tolist(), logs.tolist()):
            s = mpmath.mpf(-log)
            inner = [edge for edge in edges if edge < min(s, 60)] + [min(s, mpmath.mpf(60))]
            passed = mpmath.quad(
                lambda u: mpmath.exp(-((mu * mpmath.expm1(-u)) ** 2) / 2),
                inner,
                method="gauss-legendre",
                maxdegree=4,
            )
            passed += max(s - 60, 0) * mpmath.exp(-(mpmath.mpf(mu) ** 2) / 2)
            assert float(passed / time) == pytest.approx(1, rel=0, abs=2e-13)


def test_log_remaining_agrees_with_an_integrator():
    mu = torch.tensor([0.5, 2.0, 4.5], dtype=torch.float64)
    times = torch.tensor([0.0, 0.1, 0.5, 2.0], dtype=torch.float64)
    squares, options = mu.square().numpy(), {"method": "DOP853", "rtol": 1e-12, "atol": 1e-13}
    other = solve_ivp(
        lambda _, s: -np.exp(squares * np.expm1(s) ** 2 / 2),
        (0, 2),
        np.zeros(3),
        t_eval=times.numpy(),
        **options,
    )
    assert_close(
        nonlinear.log_remaining(mu, times), torch.from_numpy(other.y.T.copy()), rtol=1e-9, atol=1e-11
    )


def test_beyond_floating_point_nothing_remains():
    logs = nonlinear.log_remaining(
        torch.tensor([60.0, 1e200], dtype=torch.float64), torch.tensor([1e-3, 1.0], dtype=torch.float64)
    )
    assert math.isfinite(float(logs[0, 0]))
    assert bool((logs[1] == -math.inf).all())
    points = torch.full((2, 3), 50.0, dtype=torch.float64)
    assert_close(nonlinear_layer(points, torch.tensor([1.0], dtype=torch.float64))[0], points)


def test_small_discriminancies_keep_their_digits():
    delta = torch.tensor([1.0, 1e-300, -1e-14], dtype=torch.float64)
    v = orbit.orbit(delta, torch.tensor([0.5], dtype=torch.float64))[0]
    expected = delta[1:] * 0.5 * orbit.blow_up_time(delta)  # v = Delta t to first order
    assert_close(v[1:], expected, rtol=1e-13, atol=0)


def test_ratios_tend_to_their_limit():
    mu = torch.tensor(two_phases.RATIO_MU, dtype=torch.float64)
    times = torch.tensor([10.0, 100.0, 1000.0, 10000.0], dtype=torch.float64)
    logs = nonlinear.log_remaining(mu, times)
    errors = (logs / logs[:, -1:] / nonlinear.learning_ratio(mu)[:, -1] - 1).abs()[:, :-1]
    assert bool((errors[:-1] > 5 * errors[1:]).all()), "the error falls as 1/t"
    assert float(logs[-1, 0]) < -8e5, "delta itself would be zero in floating point"


def test_figure_four_by_a_plain_loop():
    assert nonlinear.published_mu()[:3].tolist() == pytest.approx([1.265, 1.396, 1.922], abs=5e-4)
    mu, v, entropies = nonlinear.published_mu().tolist(), [0.05] * 10, []
    for step in range(5001):
        grown = [math.exp(x * x / 3) for x in v]
        shares = [x / sum(grown) for x in grown]
        entropies.append(-sum(x * math.log(x) for x in shares))
        if step < 5000:
            v = [x + 0.02 * (m - x) * a for x, m, a in zip(v, mu, shares)]
    result = nonlinear.salient_descent(nonlinear.published_mu())
    assert_close(result[-1], torch.tensor(v, dtype=torch.float64), rtol=0, atol=1e-12)
    bounced = nonlinear.bounce(nonlinear.attention_entropy(result, temperature=3.0))
    assert bounced.index == entropies.index(min(entropies)) == two_phases.PUBLISHED_LEAST_STEP
    for value, plain, wanted in zip(
        (bounced.start, bounced.least, bounced.end),
        (entropies[0], min(entropies), entropies[-1]),
        two_phases.PUBLISHED_ENTROPY.values(),
    ):
        assert value == pytest.approx(plain, abs=1e-12) == pytest.approx(wanted, abs=5e-5)
    assert result[-1].tolist() == pytest.approx(two_phases.PUBLISHED_COMPONENTS, abs=6e-4)


def test_normalising_keeps_the_nonlinear_orbit():
    """Small normalised steps pass the same places as the flow in ln(delta): compare where the second
    component stands.
    """
    mu = torch.tensor([2.5, 1.5, 1.0], dtype=torch.float64)
    passed = nonlinear.salient_descent(mu, start=0.0, rate=2e-3, temperature=2.0, steps=5000)[-1]
    times = torch.linspace(0.01, 3, 3000, dtype=torch.float64)
    flow = mu * -torch.expm1(nonlinear.log_remaining(mu, times))
    at = int((flow[:, 1] - passed[1]).abs().argmin())
    assert 0 < at < len(times) - 1
    assert_close(flow[at], passed, rtol=0, atol=3e-3)


def test_with_a_linear_mlp_attention_only_becomes_sparser():
    mu = nonlinear.published_mu()
    H = nonlinear.attention_entropy(nonlinear.linear_descent(mu, steps=1000), temperature=3.0)
    assert bool((H.diff() <= 1e-12).all())
    assert float(H[-1]) < 1e-6


def joint_flow(pull, K, M, time):
    """V of the joint flow of V and the logits z, which are not integrated out: dv = pull(V) e^z, dz = sum_k v
    dv.
    """

    def velocity(_, state):
        V, z = state[: K * M].reshape(K, M), state[K * M :]
        dV = pull(V) * np.exp(z)
        return np.concatenate([dV.ravel(), (V * dV).sum(0)])

    result = solve_ivp(velocity, (0, time), np.zeros(K * M + M), rtol=1e-11, atol=1e-12, method="DOP853")
    return torch.from_numpy(result.y[: K * M, -1].reshape(K, M))


def test_nonlinear_units_follow_the_joint_flow(generator):
    points = gaussian_points(generator, units=3, tokens=5, scale=0.8)
    times = torch.tensor([0.05, 0.3, 1.0, 3.0], dtype=torch.float64)
    result = nonlinear_layer(points, times)
    for time, layer in zip(times.tolist(), result):
        assert_close(layer, joint_flow(lambda V: points.numpy() - V, 3, 5, time), rtol=1e-8, atol=1e-9)


def test_linear_units_follow_the_joint_flow(generator):
    delta = gaussian_points(generator, units=3, tokens=5)
    remaining = torch.tensor([0.9, 0.4, 0.05], dtype=torch.float64)
    end = orbit.blow_up_time(delta.norm(dim=0))
    for left, layer in zip(remaining.tolist(), linear_layer(delta, remaining)):
        assert_close(layer, joint_flow(lambda V: delta.numpy(), 3, 5, (1 - left) * end), rtol=1e-8, atol=1e-9)


def test_the_ends_of_the_stable_rank(generator):
    points = gaussian_points(generator, units=6, tokens=9)
    first, last = nonlinear_layer(points, torch.tensor([1e-9, 1e3], dtype=torch.float64))
    assert_close(stable_rank(first), stable_rank(points), rtol=1e-6, atol=0)
    assert_close(last, points)
    blown = linear_layer(points, torch.tensor([1e-300], dtype=torch.float64))[0]
    assert 1 <= stable_rank(blown) < 1.2  # one column is infinite, slowly: sqrt(2 ln 1/r)


def test_without_a_salient_token_the_rank_stays(generator):
    points = equal_columns(gaussian_points(generator))
    times = torch.logspace(-4, 2, 30, dtype=torch.float64)
    assert_close(
        stable_rank(nonlinear_layer(points, times)), stable_rank(points).expand(30), rtol=1e-9, atol=0
    )


def test_numpy_arrays_float32_and_integers_are_converted(unchecked):
    mu = nonlinear.published_mu()
    assert torch.equal(
        nonlinear.salient_descent(mu.numpy(), steps=50), nonlinear.salient_descent(mu, steps=50)
    )
    assert nonlinear.salient_descent(torch.tensor([1, 2]), steps=3).dtype == torch.float64
    assert torch.equal(
        orbit.orbit([1, 2], np.float32([0.5])), orbit.orbit(torch.tensor([1.0, 2.0]), torch.tensor([0.5]))
    )
    assert torch.equal(
        nonlinear_layer(np.eye(2, dtype="float32") + 1, [1, 2]),
        nonlinear_layer(torch.eye(2).double() + 1, torch.tensor([1.0, 2.0])),
    )
