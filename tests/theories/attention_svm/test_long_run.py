"""The long run: its rows, its figure, the rate of convergence and the accuracy at step 10,000."""

import math
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.core.figure import published
from transformer_theory.theories import attention_svm
from transformer_theory.theories.attention_svm.claims.common import direction_error
from transformer_theory.theories.attention_svm.figures.common import logarithmic_steps
from transformer_theory.theories.attention_svm.figures.long_run import (
    AUTOGRAD,
    DISTANCE,
    EPS,
    EXACT,
    KNOWN,
    SLOPE,
    by_differentiation,
    long_run,
)


@pytest.fixture
def result(run):
    return run(long_run.quick())


def test_the_direction_error_is_exact_where_the_cosine_has_no_digits_left():
    one = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    other = torch.tensor([[3.0, 3e-12]], dtype=torch.float64)
    assert float(direction_error(one, other)) == pytest.approx(1e-12, rel=1e-9)
    assert float(direction_error(one, -2 * one)) == 2
    assert float(direction_error(0 * one, one)) == 1  # no direction, and no NaN


def test_one_minus_cosine_is_below_1e_4_at_step_10_000():
    """It also follows the medians of another program on other draws of the same distribution."""
    instance = attention_svm.cross_attention(
        inputs=6, tokens=8, dim=10, trials=24, generator=torch.Generator().manual_seed(0)
    )
    states = list(attention_svm.trajectory(instance, attention_svm.start(instance), steps=KNOWN))
    targets = attention_svm.frobenius_max_margins(
        attention_svm.constraints(instance.tokens, instance.query, instance.selected(states[-1].W))
    )
    assert targets.solved.all()
    median = [float((direction_error(state.W, targets.W) ** 2 / 2).median()) for state in states]
    assert median[-1] <= 1e-4
    for value, known in zip(median, KNOWN.values()):
        assert 0.5 < value / known < 2
    assert all(later < earlier for earlier, later in pairwise(median))
    slope = math.log(median[-1] / median[-3]) / math.log(10)
    assert -2.2 < slope < -1.7


def test_descent_by_differentiation_agrees_until_it_goes_wrong():
    instance = attention_svm.cross_attention(
        inputs=6, tokens=8, dim=10, trials=4, generator=torch.Generator().manual_seed(0)
    )
    steps = [0, 50, 300, 2500]
    states = list(attention_svm.trajectory(instance, attention_svm.start(instance), steps=steps))
    plain = by_differentiation(instance, steps=steps, rate=0.1, eps=0.0)
    stalled = by_differentiation(instance, steps=steps, rate=0.1, eps=EPS["autograd, eps in the norm"])
    for k in range(3):
        assert_close(plain[k], states[k].W, rtol=0, atol=1e-6)
        assert_close(stalled[k], states[k].W, rtol=0, atol=1e-6)
    targets = attention_svm.frobenius_max_margins(
        attention_svm.constraints(instance.tokens, instance.query, instance.selected(states[-1].W))
    )
    errors = [float(direction_error(W, targets.W).median()) for W in (states[-1].W, stalled[-1], plain[-1])]
    assert errors[1] > 1.5 * errors[0]
    assert errors[2] > 3 * errors[1]


def test_steps_are_logarithmic_and_end_at_the_last():
    assert logarithmic_steps(1) == [1]
    assert logarithmic_steps(7)[-1] == 7
    steps = logarithmic_steps(1_000_000)
    assert steps == sorted(set(steps))
    assert {1, 30, 300, 10_000, 1_000_000} <= set(steps)
    assert 60 < len(steps) < 90


def test_the_rows_hold_the_measurements(result):
    late = result.select(quantity=DISTANCE, at={"gradient": EXACT}, step=1000).one()
    assert late.predicted is None  # of another number of problems
    assert 0 < late.value < 0.05
    slope = result.select(quantity=SLOPE, step=3000).one()
    assert (slope.predicted, slope.basis) == (-1, "limit")
    assert result.select(quantity=DISTANCE, at={"gradient": AUTOGRAD}, step=1500).one().value > 0
    assert all(math.isfinite(row.value) for row in result.table)
    assert {row.n for row in result.select(quantity=DISTANCE)} == {4}


def test_the_figure_shows_three_descents_and_the_known_numbers(result, run):
    left, right = long_run.quick().plot(result).axes
    labels = [text.get_text() for text in left.get_legend().get_texts()]
    assert labels == ["exact gradient", "autograd", "autograd, eps in the norm", "slope of $1/t^2$"]
    assert len(right.get_lines()) == 4
    usual = long_run(steps=120, naive_steps=20)
    stored = run(usual)
    assert {row.step: row.predicted for row in published(stored.table)} == {
        step: KNOWN[step] for step in (30, 100)
    }
    assert "recomputed independently" in [
        text.get_text() for text in usual.plot(stored).axes[0].get_legend().get_texts()
    ]
