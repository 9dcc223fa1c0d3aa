"""One prompt for all inputs: the published examples, and the limit that depends on the loss."""

import pytest
import torch
from torch.testing import assert_close

from transformer_theory.theories.attention_svm import builders, dynamics, solvers
from transformer_theory.theories.attention_svm.dynamics.losses import EXPONENTIAL, LINEAR, LOGISTIC
from transformer_theory.theories.attention_svm.published import (
    PROMPT_KEYS,
    PROMPT_STARTS,
    prompt_limit,
    published_pair,
    published_prompt,
    published_prompts,
)


def begin(trials: int, *, axis: int) -> torch.Tensor:
    W = torch.zeros(trials, 2, 1, dtype=torch.float64)
    W[:, axis, 0] = torch.tensor(PROMPT_STARTS, dtype=torch.float64)
    return W


def test_max_margin_prompts_of_one_input_have_the_closed_form():
    """Nearest point of the segment between the other keys: p = u / |u|^2 with u = k_a minus it."""
    keys = torch.tensor([PROMPT_KEYS], dtype=torch.float64)
    for token, point in ((0, (0.0, 0.0)), (1, (0.0, 0.0))):
        u = keys[0, token] - torch.tensor(point, dtype=torch.float64)
        solution = solvers.frobenius_max_margin(builders.prompt(keys, torch.tensor([token])))
        assert_close(solution.W.squeeze(-1), u / (u @ u), atol=1e-13, rtol=0)


@pytest.mark.parametrize(("case", "tokens"), [("global", [0] * 6), ("local", [0, 0, 0, 0, 1, 1])])
def test_one_input_ends_at_the_published_tokens(case: str, tokens: list[int]):
    instance = published_prompt(case)
    end = dynamics.normalised_descent(instance, dynamics.start(instance, W=begin(6, axis=1)), steps=1000)
    assert instance.selected(end.W).squeeze(-1).tolist() == tokens
    for trial, token in enumerate(tokens):
        goal = solvers.frobenius_max_margin(
            builders.prompt(torch.tensor([PROMPT_KEYS], dtype=torch.float64), torch.tensor([token]))
        ).W
        assert torch.nn.functional.cosine_similarity(end.W[trial], goal, dim=0).item() > 0.9997


def test_eps_stalls_where_the_released_run_does():
    instance = published_prompt("global")
    end = dynamics.normalised_descent(
        instance, dynamics.start(instance, W=begin(6, axis=1)), steps=1000, eps=1e-9
    )
    goal = torch.tensor([[-0.1], [1.0]], dtype=torch.float64)
    cosines = torch.nn.functional.cosine_similarity(end.W, goal.expand(6, 2, 1), dim=1).squeeze(-1)
    assert round(cosines.min().item(), 4) == 0.9943
    assert round(cosines.max().item(), 4) == 0.9956


def test_three_inputs_have_the_published_numbers():
    instance, wide = published_prompts()
    pairs = builders.prompt(instance.tokens, instance.optimal())
    target = solvers.frobenius_max_margin(pairs)
    assert (
        round(solvers.frobenius_max_margin(builders.prompt(wide, instance.optimal())).norm ** 2 / 2, 5)
        == 0.31319
    )
    assert_close(target.W.squeeze(-1), torch.tensor([0.8446, 0.1711], dtype=torch.float64), atol=5e-5, rtol=0)
    at50 = dynamics.normalised_descent(instance, dynamics.start(instance), steps=50, eps=1e-12)
    at199 = dynamics.normalised_descent(instance, at50, steps=149, eps=1e-12)
    plain = dynamics.plain_descent(instance, dynamics.start(instance), steps=199)
    assert round(instance.attention(at50.W)[:, 0].mean().item(), 4) == 0.9931
    assert round(at199.W.norm().item(), 2) == 19.75
    assert round(instance.attention(plain.W)[:, 0].mean().item(), 4) == 0.9719
    assert round(plain.W.norm().item(), 2) == 3.85


@pytest.mark.parametrize("loss", [LINEAR, LOGISTIC, EXPONENTIAL], ids=lambda loss: loss.name)
def test_the_second_coordinate_goes_to_its_limit(loss):
    scores = (1.0, 2.0, 5.0, 10.0)
    instance = published_pair(scores)
    end = dynamics.normalised_descent(instance, dynamics.start(instance), steps=500, loss=loss)
    assert_close(
        end.W[:, 1, 0], prompt_limit(torch.tensor(scores, dtype=torch.float64), loss=loss), atol=1e-5, rtol=0
    )
    assert (end.W[:, 1, 0].abs() / end.W[:, 0, 0]).max() < 0.1  # while the direction is (1, 0)


def test_digits_of_the_limits():
    C = torch.tensor([2.0, 5.0, 10.0], dtype=torch.float64)
    assert_close(
        prompt_limit(C, loss=LINEAR),
        torch.tensor([0.3466, 0.8047, 1.1513], dtype=torch.float64),
        atol=5e-5,
        rtol=0,
    )
    assert_close(
        prompt_limit(C, loss=LOGISTIC),
        torch.tensor([-0.0602, -1.042, -3.192], dtype=torch.float64),
        atol=5e-4,
        rtol=0,
    )


def test_a_limit_far_away_is_reached_by_the_exact_gradient_only():
    """C = 100, logistic: the gradient of input 1 is e^-100 of that of input 2 at first."""
    instance = published_pair((100.0,))
    exact = dynamics.normalised_descent(instance, dynamics.start(instance), steps=1000).W[0, 1, 0].item()
    stalled = (
        dynamics.normalised_descent(instance, dynamics.start(instance), steps=1000, eps=1e-9)
        .W[0, 1, 0]
        .item()
    )
    assert exact == pytest.approx(-47.04078, abs=1e-4)
    assert stalled > -20
