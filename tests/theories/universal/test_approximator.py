"""The network: layers against the step function, errors against direct integration, counts
against formulas.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from transformer_theory import universal
from transformer_theory.theories.universal import UniversalApproximator
from transformer_theory.theories.universal.layers import quantiser, run, value_step


def target(x: torch.Tensor) -> torch.Tensor:
    return x * x.mean(1, keepdim=True) + torch.sin(3 * x.roll(1, 1))


def symmetric(x: torch.Tensor) -> torch.Tensor:
    return x * x.mean(1, keepdim=True) + torch.sin(3 * x.sum(1, keepdim=True))


def test_the_network_is_the_function_at_the_centres_of_the_cubes():
    network = UniversalApproximator(target, 3, 1, 1 / 5).fit()
    points = torch.rand(500, 3, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(network(points), target((torch.floor(points * 5) + 0.5) / 5), atol=1e-12)
    assert torch.equal(network(points[0]), network(points)[0])


def test_without_positions_only_grids_with_distinct_tokens_are_exact():
    network = UniversalApproximator(symmetric, 3, 1, 1 / 5, equivariant=True).fit()
    grids = universal.all_grids(5, 1, 3)
    exact = (network(grids / 5) - symmetric(torch.from_numpy((grids + 0.5) / 5))).abs().amax((1, 2)) < 1e-12
    distinct = np.array([len(set(grid)) == 3 for grid in grids[..., 0].tolist()])
    assert exact.numpy()[distinct].all()
    assert not exact.numpy()[~distinct].all()
    order = [2, 0, 1]
    assert torch.allclose(network(grids[:, order] / 5), network(grids / 5)[:, order], atol=1e-12)


@pytest.mark.parametrize(
    ("k", "d", "n", "equivariant"), [(3, 1, 3, False), (2, 2, 2, False), (4, 1, 3, True)]
)
def test_the_layers_compute_the_network(k: int, d: int, n: int, equivariant: bool):
    network = UniversalApproximator(symmetric, n, d, Fraction(1, k), equivariant).fit()
    generator = torch.Generator().manual_seed(1)
    grids = torch.randint(k, (50, n, d), generator=generator)
    points = (grids + 0.9 * torch.rand(grids.shape, generator=generator, dtype=torch.float64)) / k
    positions = 0 if equivariant else np.arange(n)[:, None]
    outputs = run(network.layers(ramp=1 / 16), (points.numpy() + positions) * k) / k
    assert np.abs(outputs - network(points).numpy()).max() < 1e-3


def test_feed_forward_layers_are_the_functions_that_they_stand_for():
    z = np.array([-0.5, 0.0, 0.4, 0.9, 1.0, 1.5, 2.0, 2.3])[:, None, None]
    moved = quantiser(0, 1, 1, ramp=1 / 8)(z)
    assert moved.ravel() == pytest.approx([-0.5, 0.0, 0.4, 0.9, 1.0, 1.0, 2.0, 2.3])
    bump = value_step(np.array([1], dtype=object), 2, np.array([10.0]))
    assert bump.width == 4
    assert (bump(z) - z).ravel() == pytest.approx([0, 0, 0, 0, 0, 0, 10, 8])


def test_attention_scores_are_those_of_the_definition():
    layer = universal.ContextualMapping(1, 3, 1 / 4).layers()[1]
    tokens = np.array([[[0.0], [1.0], [3.0]]])
    expected = tokens.copy()
    for head in layer.heads:
        for j, k in itertools.product(range(3), range(3)):
            scores = [(tokens[0, j, 0] - head.twice_threshold / 2) * tokens[0, m, 0] for m in range(3)]
            expected[0, j, 0] += (k == int(np.argmax(scores))) * tokens[0, k, 0] * head.output[0]
    assert layer(tokens).tolist() == expected.tolist() == [[[0.0], [13.0], [3.0]]]
    soft = layer(tokens, scale=2.0)
    for j in range(3):
        moved = 0.0
        for head in layer.heads:
            weights = torch.softmax(
                torch.tensor(
                    [2.0 * (tokens[0, j, 0] - head.twice_threshold / 2) * t for t in (0, 1, 3)]
                ).double(),
                0,
            )
            moved += float((weights * torch.tensor([0.0, 1.0, 3.0]).double()).sum()) * head.output[0]
        assert soft[0, j, 0] - tokens[0, j, 0] == pytest.approx(moved, abs=1e-6)


def test_errors_are_integrals():
    network = UniversalApproximator(lambda x: x.roll(1, 1), 2, 1, 1 / 4).fit()
    # |x - centre| has the mean delta/4 and the mean square delta^2/12 in each of two tokens, and the maximum
    # delta/2.
    assert network.error(1, samples=50_000) == pytest.approx(2 / 16, rel=0.02)
    assert network.error(2, samples=50_000) == pytest.approx(math.sqrt(2 / (16 * 12)), rel=0.02)
    assert network.error(math.inf, samples=50_000) == pytest.approx(1 / 8, rel=0.01)
    assert network.error(1, samples=100) == network.error(1, samples=100)


def test_high_orders_do_not_underflow():
    network = UniversalApproximator(lambda x: x.roll(1, 1), 2, 1, 1 / 4).fit()
    assert network.error(400) == pytest.approx(network.error(math.inf), rel=0.02)


def test_functions_of_numpy_and_modules_are_targets():
    plain = UniversalApproximator(lambda x: x.numpy()[:, ::-1].copy(), 2, 1, 1 / 4).fit()
    assert plain.error(1) == pytest.approx(2 / 16, rel=0.02)
    UniversalApproximator(torch.nn.Linear(1, 1).double(), 2, 1, 1 / 4).fit().error(1)


def test_value_layers_are_exact_within_a_quarter_of_a_code():
    bump = value_step(np.array([1], dtype=object), 100, np.array([-98.0]))
    z = np.array([100.0, 100.25, 100.3, 100.5])[:, None]
    assert bump(z).ravel() == pytest.approx([2.0, 2.25, 21.9, 100.5])


def test_without_attention_each_token_has_its_mean():
    network = UniversalApproximator(target, 3, 1, 1 / 3, attention="none").fit()
    grids = universal.all_grids(3, 1, 3)
    values = target(torch.from_numpy((grids + 0.5) / 3))
    rows = grids[:, 1, 0] == 2
    assert network(grids / 3)[rows, 1, 0].numpy() == pytest.approx(
        np.full(rows.sum(), float(values[rows, 1].mean()))
    )


@pytest.mark.parametrize("equivariant", [True, False])
def test_layers_and_parameters_are_counted(equivariant: bool):
    network = UniversalApproximator(symmetric, 3, 1, 1 / 4, equivariant).fit()
    counts, expected = network.layer_counts(), universal.expected_layers(4, 1, 3, equivariant=equivariant)
    assert {name: counts[name] for name in expected} == expected
    assert expected == (
        {"quantise": 4, "attention": 5, "value": 12}
        if equivariant
        else {"quantise": 12, "attention": 13, "value": 192}
    )
    attention = (2 * (expected["attention"] - 1) + 1) * 5  # heads of four vectors of size 1 and a threshold
    # four units of inner weight, bias and outer weight
    values = (expected["value"] + counts["repeated"]) * 4 * 3
    assert network.parameters() == attention + values + expected["quantise"] * 3 * 3


def test_values_that_reach_a_code_are_refused():
    settings = UniversalApproximator(target, 3, 1, 1 / 4)
    codes, values = settings.fit().codes, np.zeros((64, 3, 1))
    values[0, 0] = codes[-1] / 4 + 0.1  # 0.4 units of delta beside the largest code
    with pytest.raises(
        ValueError, match=r"values of f must stay below the codes, got a value of .*; scale f"
    ):
        settings.fit_values(values)
    settings.fit_values(values + 0.1)  # 0.8 units beside it


def test_random_functions_are_smooth_and_equivariant_if_asked():
    x = torch.rand(20, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = [3, 1, 0, 2]
    f = universal.random_function(torch.Generator().manual_seed(1), n=4, d=2, equivariant=True)
    g = universal.random_function(torch.Generator().manual_seed(1), n=4, d=2)
    assert torch.allclose(f(x[:, order]), f(x)[:, order])
    assert not torch.allclose(g(x[:, order]), g(x)[:, order])
    assert (f(x + 1e-4) - f(x)).abs().max() < 0.01
    moved = x.clone()
    moved[:, 2] = 0.5
    assert (f(moved) - f(x))[:, 0].abs().min() > 0, "a value depends on all tokens"


def test_the_speed_that_the_page_states():
    import time

    started = time.process_time()
    mapping = universal.ContextualMapping(1, 4, 1 / 4, "integers")
    mapping.codes(mapping.grids())
    assert time.process_time() - started < 2
