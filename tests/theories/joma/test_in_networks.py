"""The metrics of JoMA in networks: the rebound of entropies, and the stable rank of the lower layer with its
null.
"""

import math

import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.metric import Activations
from transformer_theory.core.statistics import RANGE_DRAWS
from transformer_theory.maths.linalg import stable_rank
from transformer_theory.theories.joma.in_networks import (
    IN_NETWORKS,
    LOWER_RANK,
    NULL_KIND,
    RANK_NOTE,
    REBOUND,
    REBOUND_NOTE,
    JointDynamics,
    gaussian_draws,
    gaussian_rank,
)

SHARP, FLAT = torch.eye(4).expand(2, 1, 4, 4), torch.full((2, 1, 4, 4), 0.25)


def attention(weights: torch.Tensor | None, name: str = "block.attention") -> Activations:
    tokens = torch.zeros(2, 4, 4)
    return Activations(name, 0, "attention", tokens, tokens, weights=weights)


def block() -> torch.nn.Module:
    made = torch.nn.Sequential()
    made.add_module("attention", torch.nn.Linear(4, 4))
    made.add_module("mlp", torch.nn.Linear(4, 16))
    return made


def measured(metric: JointDynamics, quantity: str) -> list:
    return [row for row in metric.compute() if row.quantity == quantity]


def test_the_rebound_is_measured_from_the_smallest_entropy():
    metric, values = JointDynamics(), []
    for weights in (FLAT, SHARP, 0.5 * SHARP + 0.5 * FLAT, FLAT):
        metric.reset()
        metric.update(attention(weights))
        (row,) = measured(metric, REBOUND)
        values.append(row.value)
    half = -(0.625 * math.log(0.625) + 3 * 0.125 * math.log(0.125))
    assert values == pytest.approx([0, 0, half, math.log(4)], abs=1e-6)
    assert (row.unit, row.layer, row.head, row.kind) == ("nats", 0, 0, "in network")
    assert (row.null, row.note) == (None, REBOUND_NOTE)


def test_merged_and_restored_states_are_those_of_all_batches():
    whole, parts = JointDynamics(), [JointDynamics(), JointDynamics()]
    network = block()
    for part, weights in zip(parts, (SHARP, FLAT)):
        for metric in (whole, part):
            metric.update(attention(weights))
            metric.update(
                Activations(
                    "block", 0, "features", torch.zeros(2, 4, 4), torch.zeros(2, 4, 4), module=network
                )
            )
    parts[0].merge(parts[1])
    assert parts[0].compute(draws=3) == whole.compute(draws=3)
    restored = JointDynamics()
    restored.load_state_dict(whole.state_dict())
    assert restored.compute(draws=3) == whole.compute(draws=3)
    later = JointDynamics()
    whole.reset()
    later.load_persistent_state(whole.persistent_state())
    later.update(attention(FLAT))
    assert measured(later, REBOUND)[0].value == pytest.approx(math.log(4) / 2)


def test_rows_without_weights_have_no_value():
    metric = JointDynamics()
    metric.update(attention(torch.zeros(2, 1, 4, 4)))
    (row,) = measured(metric, REBOUND)
    assert row.value is None
    assert row.reason


def test_the_lower_layer_is_the_matrix_after_the_attention():
    (metric,), network, tokens = IN_NETWORKS.metrics(), block(), torch.zeros(2, 3, 4)
    metric.update(attention(None))
    metric.update(Activations("block", 0, "features", tokens, tokens, module=network))
    assert metric.compute()[0].null is None
    (row,) = metric.compute(draws=199)
    assert row.quantity == LOWER_RANK == IN_NETWORKS.headline
    assert row.side == IN_NETWORKS.side == "<="
    assert row.value == pytest.approx(float(stable_rank(network.mlp.weight.detach().double())))
    assert (row.null.kind, row.null.draws) == (NULL_KIND, gaussian_draws(16, 4))
    assert len(row.null.draws) == RANGE_DRAWS
    assert metric.compute(draws=9)[0].null.draws == row.null.draws[:9]
    assert row.note == RANK_NOTE


@each_case(
    ("shape", "draws"), [((64, 64), 60), ((16, 64), 200), ((256, 64), 20), ((400, 128), 10), ((16, 4), 400)]
)
def test_the_null_of_the_stable_rank(shape, draws):
    """Within 2.5 % of simulations; the limit of large matrices, mn / (sqrt m + sqrt n)^2, is 3 to 24 % too
    low at these shapes.
    """
    matrices = [
        torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for seed in range(draws)
    ]
    assert float(torch.stack([stable_rank(matrix) for matrix in matrices]).mean()) == pytest.approx(
        gaussian_rank(*shape), rel=0.025
    )


@each_case("shape", [(64, 64), (16, 64), (96, 384), (4, 4)])
def test_the_draws_are_those_of_gaussian_matrices(shape):
    """Mean and spread, within five standard errors of those of 200 matrices."""
    drawn = torch.tensor(gaussian_draws(*shape), dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    ranks = stable_rank(torch.randn(200, *shape, generator=generator, dtype=torch.float64))
    assert abs(float(drawn.mean() - ranks.mean())) < 5 * float(ranks.std()) / len(drawn) ** 0.5
    assert 0.4 < float(drawn.std() / ranks.std()) < 2


def test_a_vector_has_stable_rank_one():
    assert gaussian_draws(7, 1) == gaussian_draws(1, 7) == pytest.approx((1.0,) * RANGE_DRAWS)
    assert gaussian_rank(7, 1) == gaussian_rank(1, 7) == gaussian_rank(1, 1) == 1
