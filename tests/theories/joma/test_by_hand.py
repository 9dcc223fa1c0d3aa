"""Rebounds, ranks and the rows of the softmax invariant against numbers from numpy, of unequal heads."""

import numpy as np
import pytest
import torch
from torch import nn

from transformer_theory.core.metric import Activations
from transformer_theory.theories.joma import in_networks, on_data
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
