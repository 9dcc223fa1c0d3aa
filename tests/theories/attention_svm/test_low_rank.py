"""Max-margin solutions of bounded rank, and the figure of descent on factors with few columns."""

import pytest
import torch

from transformer_theory.theories import attention_svm
from transformer_theory.theories.attention_svm.balance import common_norm_descent
from transformer_theory.theories.attention_svm.builders import constraints, multi_token
from transformer_theory.theories.attention_svm.dynamics import random_factors
from transformer_theory.theories.attention_svm.figures.rank_bound import (
    DISTANCE,
    FREE,
    MARGIN,
    PRICE,
    PRICE_OF_PROBLEM,
    TARGETS,
    rank_bound,
)
from transformer_theory.theories.attention_svm.problem import cross_attention
from transformer_theory.theories.attention_svm.solvers import low_rank_max_margin


@pytest.fixture
def problem():
    instance = cross_attention(inputs=5, tokens=4, dim=6, generator=torch.Generator().manual_seed(0))
    return instance, lambda m: common_norm_descent(
        instance, random_factors(instance, generator=torch.Generator().manual_seed(1), width=m), steps=600
    )


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_solution_meets_its_conditions(problem, width):
    instance, descend = problem
    factors = descend(width)
    pairs = constraints(instance.tokens, instance.query, instance.selected(factors.W))
    solution, nuclear = (
        low_rank_max_margin(pairs, factors.K, factors.Q),
        attention_svm.nuclear_max_margin(pairs),
    )
    assert float(pairs.margins(solution.W).min()) == pytest.approx(1, abs=1e-5)
    assert solution.norm == pytest.approx(float(torch.linalg.matrix_norm(solution.W, ord="nuc")), rel=1e-6)
    torch.testing.assert_close(solution.K.mT @ solution.K, solution.Q.mT @ solution.Q, atol=1e-4, rtol=1e-4)
    assert int(torch.linalg.matrix_rank(solution.W)) <= width
    if width < nuclear.rank:
        assert solution.norm > nuclear.norm * (1 + 1e-3)
        assert solution.price > 1 + 1e-3
    else:
        assert solution.norm == pytest.approx(nuclear.norm, rel=1e-5)
        assert solution.price == pytest.approx(1, abs=1e-5)
        torch.testing.assert_close(solution.W, nuclear.W, atol=1e-3, rtol=1e-3)


def test_both_sides_of_the_rank_occur(problem):
    instance, descend = problem
    ranks = [
        attention_svm.nuclear_max_margin(
            constraints(instance.tokens, instance.query, instance.selected(descend(m).W))
        ).rank
        for m in (1, 5)
    ]
    assert ranks[0] > 1
    assert ranks[1] <= 5


def test_one_column_has_a_closed_form():
    """Two tokens in the plane at the queries e_1 and e_2: W = k q^T must have both diagonal entries at least
    one.
    """
    tokens = torch.tensor([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]], dtype=torch.float64)
    pairs = constraints(tokens, torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.long))
    K, Q = (
        torch.tensor([[2.0], [1.0]], dtype=torch.float64),
        torch.tensor([[1.0], [3.0]], dtype=torch.float64),
    )
    one = low_rank_max_margin(pairs, K, Q)
    torch.testing.assert_close(one.W, torch.ones(2, 2, dtype=torch.float64), atol=1e-5, rtol=0)
    assert one.norm == pytest.approx(2)
    two = low_rank_max_margin(pairs, torch.eye(2, dtype=torch.float64) * 3, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(two.W, torch.eye(2, dtype=torch.float64), atol=1e-5, rtol=0)
    # both are nuclear solutions: their norms are equal
    assert (one.price, two.price) == pytest.approx((1, 1), abs=1e-5)


def test_refused_factors_and_constraints():
    instance = cross_attention(inputs=2, tokens=3, dim=4, generator=torch.Generator().manual_seed(0))
    pairs = constraints(instance.tokens, instance.query, instance.optimal())
    K = torch.zeros(4, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="K Q\\^T must have positive margins"):
        low_rank_max_margin(pairs, K, K)
    with pytest.raises(ValueError, match="constraints must be one problem of inequalities"):
        low_rank_max_margin(
            multi_token(instance.tokens, instance.query, torch.tensor([[True, True, False]] * 2)), K, K
        )


def test_the_figure_shows_that_the_bound_matters_below_the_rank_only(run):
    experiment = rank_bound(widths=(1, 4), trials=10, steps=2000)
    result = run(experiment)
    table = result.table.where(lambda row: "rank" in row.at)
    below, enough = 1, 4  # columns; the rank of the nuclear solutions lies between

    def values(quantity, **at):
        return {row.at["m"]: row.value for row in table.select(quantity=quantity, at=at)}

    assert values(FREE) == {below: 0, enough: 1}
    assert values(PRICE)[below] > 1.5
    assert values(PRICE)[enough] == pytest.approx(1, abs=1e-5)
    for row in table.select(quantity=MARGIN, at={"of": "descent"}):
        assert row.value == pytest.approx(row.predicted, abs=0.03)
        assert row.value <= row.predicted
    truncated = values(MARGIN, of="nuclear solution cut to the rank")
    assert truncated[below] < values(MARGIN, of="descent")[below] - 0.1
    bounded, nuclear = (values(DISTANCE, target=target)[below] for target in TARGETS)
    assert bounded < 0.01 * nuclear
    assert len(result.select(quantity=PRICE_OF_PROBLEM, at={"m": 4})) == 10
    assert len(experiment.plot(result).axes) == 3
