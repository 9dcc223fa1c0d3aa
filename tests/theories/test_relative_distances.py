"""Relative distances of several theories do not depend on the scale of what they compare."""

import pytest
import torch
from torch import Tensor

from transformer_theory.theories.crate.approximations import gradient_error
from transformer_theory.theories.graph_tokens.layers import relative_difference
from transformer_theory.theories.in_context.dual import affine_residual
from transformer_theory.theories.random_features.features import share_explained
from transformer_theory.theories.universal.in_networks import contextual_share, smallest_distance

SCALES = (1e-200, 1e200)
LINE = torch.tensor([[0.0], [1.0], [2.0], [3.0]], dtype=torch.float64)
PARABOLA = LINE.square()  # off its regression line by 1, -1, -1, 1; its variance sum is 49
GROUPS = torch.tensor([0, 0, 1, 1])


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("scale", SCALES)
def test_by_hand(scale):
    assert affine_residual(scale * LINE, scale * PARABOLA) == pytest.approx(4 / 49)
    assert share_explained(scale * (PARABOLA - 1), scale * PARABOLA) == pytest.approx(1 - 4 / 49)
    assert relative_difference(scale * LINE, 0 * LINE) == 1.0
    assert relative_difference(0 * LINE, 0 * LINE) == 0.0
    # squared deviations from the means of the groups are 1/4 each, unbiased 1/2; from the mean of all 5/4
    assert contextual_share(scale * LINE, GROUPS) == (pytest.approx(0.5 / 1.25), 4)
    distance, pairs = smallest_distance(scale * LINE, GROUPS, LINE[:, 0])
    assert (distance, pairs) == (pytest.approx(1 / 1.25**0.5), 2)


def test_the_error_of_the_series_for_tiny_tokens():
    z, bases = normal(5, 4), torch.eye(4, dtype=torch.float64).reshape(1, 4, 4)
    A = 4 / (5 * 1.0) * z @ z.T
    exact = torch.linalg.solve(torch.eye(5, dtype=torch.float64) + A, z)
    expected = float(((torch.eye(5, dtype=torch.float64) - A) @ z - exact).norm() / exact.norm())
    relative, _ = gradient_error(1e-30 * z.float(), bases.float(), eps=1e-30)
    assert float(relative) == pytest.approx(expected, rel=1e-3)
