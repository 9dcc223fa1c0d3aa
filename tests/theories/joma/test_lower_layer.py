"""Several units: the closed form by column against the joint flow, and what the stable rank does."""

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch.testing import assert_close

from transformer_theory.maths.linalg import stable_rank
from transformer_theory.theories import joma
from transformer_theory.theories.joma.lower_layer import alike, gaussian_points, linear_layer, nonlinear_layer
from transformer_theory.theories.joma.orbit import blow_up_time


def joint(pull, K, M, time):
    """V of the joint flow of V and the logits z, which are not integrated out: dv = pull(V) e^z, dz = sum_k v dv."""

    def velocity(_, state):
        V, z = state[: K * M].reshape(K, M), state[K * M :]
        dV = pull(V) * np.exp(z)
        return np.concatenate([dV.ravel(), (V * dV).sum(0)])

    found = solve_ivp(velocity, (0, time), np.zeros(K * M + M), rtol=1e-11, atol=1e-12, method="DOP853")
    return torch.from_numpy(found.y[: K * M, -1].reshape(K, M))


def test_nonlinear_units_follow_the_joint_flow(generator):
    points = gaussian_points(generator, units=3, tokens=5, scale=0.8)
    times = torch.tensor([0.05, 0.3, 1.0, 3.0], dtype=torch.float64)
    found = nonlinear_layer(points, times)
    for time, layer in zip(times.tolist(), found):
        assert_close(layer, joint(lambda V: points.numpy() - V, 3, 5, time), rtol=1e-8, atol=1e-9)


def test_linear_units_follow_the_joint_flow(generator):
    delta = gaussian_points(generator, units=3, tokens=5)
    remaining = torch.tensor([0.9, 0.4, 0.05], dtype=torch.float64)
    end = blow_up_time(delta.norm(dim=0))
    for left, layer in zip(remaining.tolist(), linear_layer(delta, remaining)):
        assert_close(layer, joint(lambda V: delta.numpy(), 3, 5, (1 - left) * end), rtol=1e-8, atol=1e-9)


def test_the_ends_of_the_stable_rank(generator):
    points = gaussian_points(generator, units=6, tokens=9)
    first, last = nonlinear_layer(points, torch.tensor([1e-9, 1e3], dtype=torch.float64))
    assert_close(stable_rank(first), stable_rank(points), rtol=1e-6, atol=0)
    assert_close(last, points)
    blown = linear_layer(points, torch.tensor([1e-300], dtype=torch.float64))[0]
    assert 1 <= stable_rank(blown) < 1.2  # one column is infinite, slowly: sqrt(2 ln 1/r)


def test_without_a_salient_token_the_rank_stays(generator):
    points = alike(gaussian_points(generator))
    times = torch.logspace(-4, 2, 30, dtype=torch.float64)
    assert_close(stable_rank(nonlinear_layer(points, times)), stable_rank(points).expand(30), rtol=1e-9, atol=0)


@pytest.mark.parametrize("column", [0.0, float("nan")])
def test_a_token_that_does_not_move_is_refused(unchecked, generator, column):
    points = gaussian_points(generator, units=2, tokens=3)
    points[:, 1] = column
    with pytest.raises(ValueError, match="finite and not zero"):
        nonlinear_layer(points, torch.ones(1, dtype=torch.float64))
    with pytest.raises(ValueError, match="finite and not zero"):
        linear_layer(points, torch.full((1,), 0.5, dtype=torch.float64))


def test_the_experiment_says_what_the_claim_says():
    result = joma.LowerLayer(seeds=4).run()
    (drop,), (rebound,) = result.select(quantity="drop of the stable rank"), result.select(quantity="rebound of the stable rank")
    assert drop["value"] > 0.1 > 1e-9 > drop["null"]
    assert rebound["value"] > 0.1
    assert rebound["null"] == 0
