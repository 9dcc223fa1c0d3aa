"""Transformers without positions: closed forms, and the ways to break the invariance one at a time."""

import math
from collections import Counter

import pytest
import torch

from tests.cases import each_case
from transformer_theory.theories.turing import machines
from transformer_theory.theories.turing.claims import CLAIMS
from transformer_theory.theories.turing.claims import invariance as claims
from transformer_theory.theories.turing.claims.construction import GAP
from transformer_theory.theories.turing.claims.instances import Run
from transformer_theory.theories.turing.claims.invariance import opposite_pairs
from transformer_theory.theories.turing.claims.precision import growth
from transformer_theory.theories.turing.invariance import (
    hard_weights,
    majority_network,
    random_network,
    same_proportions,
    softmax_weights,
    sum_weights,
)

BY_NAME = {claim.id.partition("/")[2]: claim for claim in CLAIMS}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shares(ids: torch.Tensor) -> dict[int, float]:
    return {symbol: count / len(ids) for symbol, count in Counter(ids.tolist()).items()}


def test_drawn_words_have_the_same_proportions():
    for seed in range(10):
        u, w = same_proportions(generator(seed))
        assert shares(u) == pytest.approx(shares(w))
        assert len(w) in (2 * len(u), 3 * len(u))
        for odd, even in opposite_pairs(generator(seed)):
            assert shares(odd) == pytest.approx(shares(even))
            assert (int((odd == 0).sum()) % 2, int((even == 0).sum()) % 2) == (1, 0)


def test_weights_of_attention():
    scores = torch.tensor([[0.5, -0.1, 0.1], [2.0, 1.0, 3.0]], dtype=torch.float64)
    assert torch.allclose(hard_weights(scores), torch.tensor([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0]]).double())
    assert torch.allclose(softmax_weights(scores).sum(-1), torch.ones(2).double())
    assert torch.allclose(sum_weights(scores), 1 / (1 + (-scores).exp()))
    masked = scores.masked_fill(torch.tensor([[False, True, True], [False, True, False]]), -torch.inf)
    assert hard_weights(masked).tolist() == [[1, 0, 0], [1, 0, 0]]


def test_a_word_of_one_symbol_is_a_word_of_length_one():
    network = random_network(generator())
    for pool in (softmax_weights, hard_weights):
        one, many = (network.output(torch.zeros(n, dtype=torch.long), pool=pool) for n in (1, 7))
        assert torch.allclose(one, many, rtol=1e-9)
    assert not torch.allclose(
        *(network.output(torch.zeros(n, dtype=torch.long), pool=sum_weights) for n in (1, 7)), rtol=1e-3
    )


def test_other_proportions_give_another_output():
    network = random_network(generator(1))
    u, w = torch.tensor([0, 1]), torch.tensor([0, 1, 1])
    assert not torch.allclose(
        network.output(u, pool=softmax_weights), network.output(w, pool=softmax_weights), rtol=1e-3
    )


def test_majority_is_the_difference_of_the_shares():
    ids = torch.tensor([0, 0, 1, 0, 1])

    def output(word: torch.Tensor, preference: float = 0.0) -> float:
        return float(majority_network(preference).output(word, pool=softmax_weights, steps=1)[0])

    assert output(ids) == pytest.approx(1 / 5)
    assert output(ids[1:3]) == pytest.approx(0, abs=1e-15)
    assert output(ids, 1.0) == pytest.approx((3 * math.e - 2 / math.e) / (3 * math.e + 2 / math.e))


def test_majority_is_an_answer_of_the_network(monkeypatch):
    """Without the weights of the value matrix the claim fails."""
    broken = majority_network()
    broken.decoder[0, 2] = 0
    monkeypatch.setattr(claims, "majority_network", lambda preference: broken)
    assert claims.majority.check(generator()).verdict == "violated"


def test_a_machine_that_rewrites_nothing_keeps_an_error():
    sweep = Run("sweep", machines.parity().normalise(), "abab", 4)
    assert growth(sweep).value == 0
    turning = growth(Run("zigzag", machines.zigzag(2).normalise(), "", 40))
    assert turning.value > 0.1


@each_case(
    ("name", "status"),
    [
        ("trace", "second-hand"),
        ("latest-visit", "own"),
        ("softmax", "own"),
        ("errors-grow", "own"),
        ("parity", "second-hand"),
    ],
)
def test_sources_state_what_is_known_about_the_passage(name: str, status: str):
    assert (BY_NAME[name].source.key, BY_NAME[name].source.status) == ("perez2021attention", status)


def test_filters_are_assumptions():
    assert any("width 5 to 20" in text for text in BY_NAME["double-precision"].assumptions)
    assert any("45 steps" in text for text in BY_NAME["trace"].assumptions)
    assert [name for name, claim in BY_NAME.items() if claim.corrects] == [
        "trace",
        "first-visit",
        "normal-form",
        "proportions",
    ]


def test_the_smallest_gap_tends_to_four_thirds():
    """Visits two steps apart, at the times n - 3 and n - 1: (1/(3 n^2)) (1/(n-2)^2 - 1/n^2 ...) n^5, from
    above.
    """
    gaps = [n**3 / 3 * (1 / (n - 3) ** 2 - 1 / (n - 1) ** 2) for n in (10, 100, 1000)]
    assert gaps[0] > gaps[1] > gaps[2] > float(GAP)
    assert gaps[2] == pytest.approx(4 / 3, rel=0.02)
