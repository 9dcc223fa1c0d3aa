"""Rebounds, ranks and the rows of the softmax invariant against numbers from numpy, of unequal heads."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import nn

from transformer_theory.core.metric import Activations
from transformer_theory.theories.joma import in_networks, on_data
from transformer_theory.theories.joma.block import zero_block
from transformer_theory.theories.joma.claims import linear
from transformer_theory.theories.joma.query_data import SoftmaxRun


class Block(nn.Module):
    def __init__(self, weight: np.ndarray):
        super().__init__()
        self.attention = nn.Linear(2, 2)
        self.lower = nn.Linear(*weight.shape[::-1])
        self.lower.weight.data = torch.from_numpy(weight).float()


def test_the_rebound_of_two_heads():
    rng, metric, means, found = np.random.default_rng(0), in_networks.JointDynamics(), [], []
    for concentration in (1.0, 0.2, 3.0):
        weights = rng.dirichlet(np.full(6, concentration), size=(4, 2, 6))
        weights[:, 1] = 0.7 * weights[:, 1] + 0.3 / 6
        means.append(-(weights * np.log(weights)).sum(-1).mean((0, 2)))
        tokens = torch.zeros(4, 6, 2)
        metric.reset()
        metric.update(Activations("", 0, "attention", tokens, tokens, weights=torch.from_numpy(weights)))
        rows = [row for row in metric.compute() if row.quantity == in_networks.REBOUND]
        found.append([row.value for row in rows])
    expected = [means[i] - np.min(means[: i + 1], 0) for i in range(3)]
    assert np.array(found) == pytest.approx(np.array(expected), abs=1e-9)
    assert found[2][0] != pytest.approx(found[2][1], abs=0.05)


def test_the_rank_of_the_lower_layer_and_its_null():
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(9, 4)) * np.array([3, 1, 0.5, 0.2])
    module = Block(weight)
    x = torch.zeros(2, 3, 2)
    metric = in_networks.JointDynamics()
    metric.update(Activations("attention", 0, "attention", x, x, module=module.attention))
    metric.update(Activations("", 0, "features", x, x, module=module))
    (row,) = (row for row in metric.compute(draws=7) if row.quantity == in_networks.LOWER_RANK)
    singular = np.linalg.svd(weight.astype("float32"), compute_uv=False)
    assert row.value == pytest.approx((singular**2).sum() / singular[0] ** 2, rel=1e-4)
    assert row.null.draws == in_networks.gaussian_draws(9, 4)[:7]
    ranks = [np.linalg.svd(rng.normal(size=(9, 4)), compute_uv=False) for _ in range(2000)]
    ranks = [(each**2).sum() / each[0] ** 2 for each in ranks]
    assert np.mean(row.null.draws) == pytest.approx(np.mean(ranks), abs=4 * np.std(ranks) / np.sqrt(7))
    assert row.side == in_networks.IN_NETWORKS.side == "<="
    assert row.bounds == (1.0, 4.0)


@pytest.mark.parametrize(("share", "covered"), [(True, True), (False, False)])
def test_rows_compare_the_last_prediction_of_each_run_with_the_change_of_the_data(share: bool, covered: bool):
    """Run 0 learnt the next tokens of the data; errors are relative to the change, without its mean."""
    rng = np.random.default_rng(2)
    measured = rng.standard_t(4, size=(3, 4, 6))
    fixed = measured + 0.3 * rng.normal(size=(3, 4, 6)) + np.array([0, 1, 1, 1])[:, None] * rng.normal(size=6)
    moving = measured + 0.05 * rng.normal(size=(3, 4, 6))
    run = SoftmaxRun(
        torch.arange(3.0).double(),
        *(torch.from_numpy(each) for each in (measured, fixed, moving)),
        0.05,
        0.02,
    )
    rows = {row.quantity: row for row in on_data._softmax_rows(run, one_query=share, n=5)}
    truth = measured[-1, 0] - measured[-1, 0].mean()

    def errors(predicted: np.ndarray) -> list[float]:
        centred = predicted[-1] - predicted[-1].mean(-1, keepdims=True)
        return [np.linalg.norm(each - truth) / np.linalg.norm(truth) for each in centred]

    correlations = [np.corrcoef(each, truth)[0, 1] for each in fixed[-1]]
    for quantity, values, op, threshold, predicted in (
        (on_data.SOFTMAX_ERROR, errors(fixed), "<=", 0.5, 0.0),
        (on_data.MOVING_ERROR, errors(moving), "<=", 0.5, 0.0),
        (on_data.SOFTMAX_CORRELATION, correlations, ">=", 0.5, 1.0),
    ):
        row = rows[quantity]
        assert row.value == pytest.approx(values[0])
        assert row.null.draws == pytest.approx(values[1:])
        assert (row.side, row.op, row.threshold, row.predicted) == (op, op, threshold, predicted)
        assert (row.verdict != "not covered") == covered
    assert (rows[on_data.STILL].value, rows[on_data.STILL].op) == (0.05, "<=")
    assert (rows[on_data.FACTORISES].value, rows[on_data.FACTORISES].op) == (0.02, "<=")


# ---- claims


def test_the_clock_is_judged_by_the_token_that_is_farthest_from_the_orbit(monkeypatch):
    """Against scipy's solution of dv/dt = Delta e^{v^2/2} / sum of x e^{v^2/2}; the orbit is given."""
    seen = {}

    def clock(discriminancy, frequency, r):
        seen.update(delta=discriminancy.numpy(), x=frequency.numpy(), r=float(r))
        return torch.tensor([0.9])

    given = np.array([0.3, -0.4, 0.1, 0.2, -0.7, 0.6])
    monkeypatch.setattr(linear, "normalised_clock", clock)
    monkeypatch.setattr(linear, "orbit", lambda *_: torch.from_numpy(given)[None])
    found = linear.slower_clock.function(torch.Generator().manual_seed(3))

    def velocity(_, v: np.ndarray) -> np.ndarray:
        weight = np.exp(v**2 / 2)
        return seen["delta"] * weight / (seen["x"] @ weight)

    v = solve_ivp(velocity, (0, 0.9), np.zeros(6), rtol=1e-11, atol=1e-12).y[:, -1]
    distances = np.abs(v - given)
    assert found.value == pytest.approx(distances.max(), abs=1e-8)
    assert distances.max() > 3 * distances.min()
    assert (found.detail["time"], seen["r"]) == (pytest.approx(0.9), pytest.approx(0.1))


@pytest.mark.parametrize("constants", [[1.0, 1.6, 1.2, 1.1, 1.3, 1.4], [1.6, 1.0, 1.2, 1.1, 1.3, 1.4]])
def test_orbits_are_judged_by_the_ratio_of_the_largest_and_the_smallest_constant(monkeypatch, constants):
    monkeypatch.setattr(linear, "progress", lambda *_: torch.tensor(constants).double())
    on_orbit = linear.linear_orbit.function(torch.Generator().manual_seed(1))
    assert on_orbit.value == pytest.approx(1.6 / 1.0 - 1)
    left = linear.softmax_leaves_the_orbit.function(torch.Generator().manual_seed(1), steps=3)
    assert left.value == pytest.approx(1 - 1.0 / 1.6)


def test_the_other_tokens_are_judged_by_the_one_that_is_farthest_from_its_limit(monkeypatch):
    """Token 0 leads and blows up, so it does not count."""
    lower = torch.tensor([[9.0, 0.5, 0.3, -0.6, 0.2, 0.1]]).double()
    limit = torch.tensor([0.0, 0.45, 0.4, -0.9, 0.2, 0.1]).double()

    def flow(contexts, *_, halvings: int):
        assert halvings == 13
        return dataclasses.replace(zero_block(contexts, units=1), lower=lower)

    monkeypatch.setattr(linear, "flow_towards", flow)
    monkeypatch.setattr(linear, "limits", lambda _: limit)
    assert linear.blow_up.function(torch.Generator().manual_seed(2)).value == pytest.approx(0.3)
