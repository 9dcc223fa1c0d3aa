"""Descent where the gradient leaves the range of float64: no step is longer than the rate, and the direction
stays right.

Once factors have settled, steps of one length go to and fro and double any rounding, so exact comparisons
take 40 steps.
"""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from tests.cases import each_case
from transformer_theory.theories.attention_svm import dynamics
from transformer_theory.theories.attention_svm.problem import cross_attention

EPS = torch.finfo(torch.float64).eps
LOSSES = [dynamics.LOGISTIC, dynamics.EXPONENTIAL, dynamics.LINEAR]


def problem(inputs=4, tokens=5, dim=6, *, trials=None, seed=0):
    return cross_attention(
        inputs=inputs, tokens=tokens, dim=dim, trials=trials, generator=torch.Generator().manual_seed(seed)
    )


def both_kinds(instance):
    return dynamics.start(instance), dynamics.random_factors(
        instance, generator=torch.Generator().manual_seed(5)
    )


def moved(begin, end):
    pairs = [(begin.W, end.W)] if isinstance(begin, dynamics.State) else [(begin.K, end.K), (begin.Q, end.Q)]
    return [float((b - a).norm()) for a, b in pairs]


@each_case("inputs", [1, 3])
@each_case("spread", [1e-200, 380.0, 1e5])
@each_case("loss", LOSSES, ids=lambda loss: loss.name)
def test_no_step_is_longer_than_the_rate_at_any_scores(loss, spread, inputs):
    drawn = problem(inputs, 4, 5)
    signs = torch.tensor([1.0, -1.0, -1.0, 0.5], dtype=torch.float64)
    for scores in (spread * signs.expand(inputs, 4), spread + drawn.scores, -spread + drawn.scores):
        instance = replace(drawn, scores=scores.clone())
        for begin in both_kinds(instance):
            for settings in ({}, {"eps": EPS}, {"penalty": EPS}, {"eps": EPS, "penalty": EPS}):
                end = dynamics.normalised_descent(instance, begin, steps=15, loss=loss, **settings)
                assert all(length <= 1.5 * (1 + 1e-12) for length in moved(begin, end)), settings


@each_case("shift", [-900.0, -380.0, 380.0, 900.0])
def test_a_shift_of_the_scores_only_scales_an_exponential_loss(shift):
    drawn = problem(3, 4, 5)
    instance = replace(drawn, scores=(drawn.scores * 64).round() / 64)  # the shift is exact
    far = replace(instance, scores=instance.scores + shift)
    losses = [dynamics.EXPONENTIAL] + [dynamics.LOGISTIC] * (
        shift > 0
    )  # where it is positive, the logistic loss is exponential to all digits
    for begin in both_kinds(instance):
        want = dynamics.normalised_descent(instance, begin, steps=40, loss=dynamics.EXPONENTIAL).W
        for loss in losses:
            assert_close(
                dynamics.normalised_descent(far, begin, steps=40, loss=loss).W, want, rtol=0, atol=1e-9
            )
            direction, C = dynamics.descent_direction(far, begin.W, loss=loss)
            size, known = (
                C + direction.abs().max().log(),
                dynamics.descent_direction(instance, begin.W, loss=dynamics.EXPONENTIAL),
            )
            assert float(size + shift) == pytest.approx(
                float(known[1] + known[0].abs().max().log()), abs=1e-9
            )


@each_case("power", [-600, -300, 300, 600])
def test_a_factor_of_the_scores_only_scales_the_linear_loss(power):
    instance = problem(3, 4, 5)
    scaled = replace(instance, scores=instance.scores * 2.0**power)
    for begin in both_kinds(instance):
        ends = [
            dynamics.normalised_descent(one, begin, steps=40, loss=dynamics.LINEAR).W
            for one in (instance, scaled)
        ]
        assert_close(ends[0], ends[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("gain", [1e-200, 1.0, 1e3])
def test_other_heads_take_no_long_steps_either(gain):
    drawn = problem(3, 4, 5)
    instance = dynamics.HeadInstance(
        drawn.tokens,
        drawn.query,
        torch.ones(3, dtype=torch.float64),
        dynamics.relu_head(gain * torch.eye(5).double()),
    )
    end = dynamics.normalised_descent(instance, dynamics.start(instance), steps=100)
    assert 0.05 < float(end.W.norm()) <= 10 * (1 + 1e-12)


def test_data_that_leave_the_range_of_numbers_are_refused():
    instance = problem(3, 4, 5)
    for name, factor in (("tokens", 1e160), ("tokens", 1e-170), ("query", 1e160), ("query", 1e-170)):
        scaled = replace(instance, **{name: getattr(instance, name) * factor})
        with pytest.raises(ValueError, match=f"{name} .*1e-60.*1e\\+60"):
            dynamics.normalised_descent(scaled, dynamics.start(scaled), steps=1)
    for factor in (1e-50, 1e50):
        scaled = replace(instance, tokens=instance.tokens * factor, query=instance.query * factor)
        for begin in both_kinds(scaled):
            assert all(
                length <= 3 * (1 + 1e-12)
                for length in moved(begin, dynamics.normalised_descent(scaled, begin, steps=30))
            )
    low = replace(instance, scores=instance.scores - 900)
    with pytest.raises(ValueError, match="must keep W finite"):
        dynamics.plain_descent(low, dynamics.start(low), steps=2, loss=dynamics.EXPONENTIAL)
