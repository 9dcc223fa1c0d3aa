"""The head v^T o - lambda |o|^2: its gradient, the shares of attention that it asks for, and the figure."""

import itertools

import numpy as np
import pytest
import torch

from transformer_theory.theories.attention_svm.dynamics import (
    HeadInstance,
    concave_head,
    differentiable,
    plain_descent,
    start,
)
from transformer_theory.theories.attention_svm.figures.concave_head import (
    COUNT,
    DISTANCE,
    ERROR,
    LOST,
    TARGETS,
    draw,
)
from transformer_theory.theories.attention_svm.figures.concave_head import (
    concave_head as figure,
)
from transformer_theory.theories.attention_svm.sharing import lost_margins, optimal_shares


def best_on_the_simplex(scores: np.ndarray, penalty: float) -> np.ndarray:
    """The maximum over every set of tokens: on a set of k, s = (gamma - mean) / (2 lambda) + 1 / k, kept if
    it is positive.
    """
    best, value = scores * 0, -np.inf
    for size in range(1, len(scores) + 1):
        for chosen in map(list, itertools.combinations(range(len(scores)), size)):
            s = scores * 0
            s[chosen] = (scores[chosen] - scores[chosen].mean()) / (2 * penalty) + 1 / size
            if (s >= 0).all() and scores @ s - penalty * s @ s > value:
                best, value = s, scores @ s - penalty * s @ s
    return best


@pytest.mark.parametrize("penalty", [0.05, 0.3, 2.0])
def test_the_shares_are_the_maximum_over_all_sets_of_tokens(penalty):
    scores = torch.randn(6, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    shares = optimal_shares(scores, penalty=penalty)
    expected = np.stack([best_on_the_simplex(row, penalty) for row in scores.numpy()])
    np.testing.assert_allclose(shares, expected, atol=1e-14)
    assert bool((shares > 0).any(-1).all())


def test_shares_of_extreme_penalties_and_of_excluded_tokens():
    scores = torch.tensor([[1.0, 0.4, -0.2]], dtype=torch.float64)
    assert optimal_shares(scores, penalty=1e-3).tolist() == [[1, 0, 0]]
    np.testing.assert_allclose(optimal_shares(scores, penalty=1e9), 1 / 3, atol=1e-8)
    np.testing.assert_allclose(
        optimal_shares(torch.tensor([[1.0, -torch.inf, 0.8]]), penalty=1.0), [[0.55, 0, 0.45]]
    )


@pytest.mark.parametrize("penalty", [0.0, -1.0])
def test_shares_need_a_positive_penalty(penalty):
    with pytest.raises(ValueError, match="penalty must be"):
        optimal_shares(torch.zeros(1, 2), penalty=penalty)


def test_the_head_is_that_of_automatic_differentiation():
    generator = torch.Generator().manual_seed(0)
    v, mixture = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((3, 4), (3, 2, 4))
    )
    value, gradient = concave_head(v, 0.7)(mixture)
    other_value, other_gradient = differentiable(
        lambda o: torch.einsum("bnd,bd->bn", o, v) - 0.7 * o.norm(dim=-1) ** 2
    )(mixture)
    torch.testing.assert_close(value, other_value)
    torch.testing.assert_close(gradient, other_gradient)
    with pytest.raises(ValueError, match="penalty must be at least 0"):
        concave_head(v, -0.1)


def test_descent_reaches_the_shares_where_all_tokens_keep_attention():
    """W is then finite, so that descent converges to rounding."""
    v, x, z = draw(1, inputs=1, tokens=3, dim=4, generator=torch.Generator().manual_seed(1))
    instance = HeadInstance(x, z, torch.ones(1, 1, dtype=torch.float64), concave_head(v, 1.5))
    shares = optimal_shares((x @ v[:, None, :, None]).squeeze(-1), penalty=1.5)
    assert float(shares.min()) > 0.1
    end = plain_descent(instance, start(instance), steps=2000, rate=2.0)
    torch.testing.assert_close(instance.attention(end.W), shares, atol=1e-12, rtol=0)


def test_a_lost_token_has_its_margin_under_the_direction():
    """One input in the plane: token 0 has all attention, token 1 (margin 1 by construction) and 2 score
    higher.
    """
    x = torch.tensor([[[[0.0, 0.0], [-1.0, 0.0], [-3.0, 0.0]]]], dtype=torch.float64)
    z, shares = (
        torch.tensor([[[1.0]]], dtype=torch.float64),
        torch.tensor([[[1.0, 0.0, 0.0]]], dtype=torch.float64),
    )
    margins = lost_margins(x, z, torch.tensor([[[0.0, 1.0, 2.0]]], dtype=torch.float64), shares, penalty=0.1)
    torch.testing.assert_close(margins, torch.tensor([1.0, 3.0], dtype=torch.float64))
    assert (
        len(lost_margins(x, z, torch.tensor([[[2.0, 1.0, 0.0]]], dtype=torch.float64), shares, penalty=0.1))
        == 0
    )


def test_the_figure_compares_with_the_prediction_and_with_controls(run):
    result = run(figure(penalties=(0.2, 1.6), trials=30, steps=3000))
    value = {(row.quantity, row.at["lambda"], row.at.get("target")): row for row in result.table}
    for penalty in (0.2, 1.6):
        count, error = (value[quantity, penalty, None] for quantity in (COUNT, ERROR))
        assert count.value == pytest.approx(count.predicted, abs=0.25)
        assert error.value < 0.01
        near, alone, one, other = (value[DISTANCE, penalty, target].value for target in TARGETS)
        assert near < alone
        assert 3 * near < one < other
    assert value[COUNT, 1.6, None].value > 3.9 > 2 * value[COUNT, 0.2, None].predicted
    assert all(row.predicted == 1 for row in result.table if row.quantity == LOST)


def test_tokens_must_fit_into_the_dimension():
    with pytest.raises(ValueError, match="tokens must be at most dim = 3, got 4"):
        figure(tokens=4, dim=3)
