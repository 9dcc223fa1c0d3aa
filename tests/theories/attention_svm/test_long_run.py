"""The long run: its rows, its figure, the rate of convergence and the accuracy asked for at step 10,000."""

import math
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.theories import attention_svm
from transformer_theory.theories.attention_svm.claims.rate import CLAIMS, direction_error
from transformer_theory.theories.attention_svm.experiments.long_run import EPS, KNOWN, LongRun, by_differentiation, spread_out


@pytest.fixture
def result(run):
    return run(LongRun.quick())


def test_the_direction_error_is_exact_where_the_cosine_has_no_digits_left():
    one = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    other = torch.tensor([[3.0, 3e-12]], dtype=torch.float64)
    assert float(direction_error(one, other)) == pytest.approx(1e-12, rel=1e-9)
    assert float(direction_error(one, -2 * one)) == 2
    assert float(direction_error(0 * one, one)) == 1  # no direction, and no NaN


def test_one_minus_cosine_is_below_1e_4_at_step_10_000():
    """And follows the medians of another program, whose problems were other draws of the same law."""
    instance = attention_svm.cross_attention(inputs=6, tokens=8, dim=10, trials=24, generator=torch.Generator().manual_seed(0))
    states = list(attention_svm.trajectory(instance, attention_svm.start(instance), at=KNOWN))
    targets = attention_svm.frobenius_max_margins(attention_svm.constraints(instance.tokens, instance.query, instance.selected(states[-1].W)))
    assert targets.solved.all()
    median = [float((direction_error(state.W, targets.W) ** 2 / 2).median()) for state in states]
    assert median[-1] <= 1e-4
    for value, known in zip(median, KNOWN.values()):
        assert 0.5 < value / known < 2
    assert all(later < earlier for earlier, later in pairwise(median))
    slope = math.log(median[-1] / median[-3]) / math.log(10)
    assert -2.2 < slope < -1.7


def test_descent_by_differentiation_agrees_until_it_goes_wrong():
    instance = attention_svm.cross_attention(inputs=6, tokens=8, dim=10, trials=4, generator=torch.Generator().manual_seed(0))
    at = [0, 50, 300, 2500]
    states = list(attention_svm.trajectory(instance, attention_svm.start(instance), at=at))
    plain = by_differentiation(instance, at=at, rate=0.1, eps=0.0)
    stalled = by_differentiation(instance, at=at, rate=0.1, eps=EPS)
    for k in range(3):
        assert_close(plain[k], states[k].W, rtol=0, atol=1e-6)
        assert_close(stalled[k], states[k].W, rtol=0, atol=1e-6)
    targets = attention_svm.frobenius_max_margins(attention_svm.constraints(instance.tokens, instance.query, instance.selected(states[-1].W)))
    errors = [float(direction_error(W, targets.W).median()) for W in (states[-1].W, stalled[-1], plain[-1])]
    assert errors[1] > 1.5 * errors[0]
    assert errors[2] > 3 * errors[1]


def test_steps_are_spread_out_and_end_where_asked():
    assert spread_out(1) == [1]
    assert spread_out(7)[-1] == 7
    at = spread_out(1_000_000)
    assert at == sorted(set(at))
    assert {1, 30, 300, 10_000, 1_000_000} <= set(at)
    assert 60 < len(at) < 90


def test_the_rows_say_what_was_measured(result):
    rows = {(row["quantity"], row.get("step")): row for row in result.table}
    later = rows["1 - cosine to the max-margin solution", 1000]
    assert "predicted" not in later  # of another number of problems
    assert 0 < later["value"] < 0.05
    assert rows["slope of the logarithm of the direction error", 3000]["predicted"] == -1
    assert rows["1 - cosine at the end, by autograd", 1500]["value"] > 0
    assert all(math.isfinite(row["value"]) and row["note"] for row in result.table)
    assert result.arrays["attention_svm/error"].shape[1] == 4


def test_the_figure_shows_three_ways_and_the_known_numbers(result, run):
    left, right = LongRun.quick().draw(result).axes
    named = [text.get_text() for text in left.get_legend().get_texts()]
    assert named == ["exact gradient", "by autograd", "by autograd, eps in the norm", "slope of $1/t^2$"]
    assert len(right.get_lines()) == 4
    usual = LongRun(steps=120, naive_steps=20)
    found = run(usual)
    assert {row["step"]: row["predicted"] for row in found.table if row.get("basis") == "recomputed"} == {s: KNOWN[s] for s in (30, 100)}
    assert "recomputed independently" in [text.get_text() for text in usual.draw(found).axes[0].get_legend().get_texts()]


def test_the_rate_is_seen_and_constant_steps_do_not_have_it(unchecked):
    (claim,) = CLAIMS
    check, control = (f(torch.Generator().manual_seed(0)) for f in (claim.check, claim.control))
    assert check.verdict == "consistent"
    assert control.verdict == "violated"
    assert check.detail["problems"] >= 8
    assert control.value > 2 * control.bound  # far from the bound: the check has power
