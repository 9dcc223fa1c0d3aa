"""The claims: their sources, and the sharpness of the softmax invariant."""

import pytest
import torch

from tests.cases import each_case
from transformer_theory.core.claims import Claim
from transformer_theory.theories.joma import block
from transformer_theory.theories.joma.claims import CLAIMS, networks, nonlinear

BY_NAME = {claim.id.partition("/")[2]: claim for claim in CLAIMS}


@each_case(
    ("name", "locator", "status"),
    [
        ("linear-invariant", "Theorem 1", "second-hand"),
        ("softmax-rate", "", "not found"),
        ("linear-orbit", "Theorem 2", "second-hand"),
        ("linear-only-sparser", "", "own"),
        ("blow-up", "", "not found"),
        ("learning-speeds", "Theorem 4", "second-hand"),
        ("drop-and-bounce", "Fig. 3 or 4", "second-hand"),
        ("entropy-floor", "Theorem 3.1", "second-hand"),
        ("several-units", "", "own"),
        ("recovery-untrained", "Table 1", "own"),
    ],
)
def test_sources_state_what_is_known_about_the_passage(name, locator, status):
    source = BY_NAME[name].source
    assert (source.locator, source.status) == (locator, status)


def test_conditions_on_drawn_instances_are_assumptions():
    assert (
        "sequences in which no other leaf is present are left out"
        in BY_NAME["near-relatives-first"].assumptions
    )
    assert any(
        "in none have no correlation and are left out" in text
        for text in BY_NAME["recovery-untrained"].assumptions
    )
    assert "late in training: $t = 1000$" in BY_NAME["learning-speeds"].assumptions
    assert any("ReLU is left out" in text for text in BY_NAME["exponential-invariant"].assumptions)


def test_a_wrong_factor_violates_the_softmax_invariant(monkeypatch, unchecked):
    """The factor .65 in the place of 1/2 makes an error of .38 to .44; the threshold is .25."""
    claim = BY_NAME["softmax-invariant"]
    assert claim.check(torch.Generator().manual_seed(0)).verdict == "consistent"
    monkeypatch.setattr(block.Softmax, "factor", property(lambda self: 0.65 / self.temperature))
    assert claim.check(torch.Generator().manual_seed(0)).verdict == "violated"


def verdict(name: str) -> str:
    claim: Claim = BY_NAME[name]
    return claim.check(torch.Generator().manual_seed(0)).verdict


@pytest.mark.parametrize("wrong", [lambda norm, n: 1.2 * norm, lambda norm, n: norm * ((n - 1) / n) ** 0.5])
def test_a_bound_that_is_too_low_violates_the_entropy_floor(monkeypatch, unchecked, wrong):
    """A bound for a larger norm holds, and the bound with the gap s nearly does: only the case of equality
    detects them.
    """
    right = nonlinear.entropy_lower_bound
    assert verdict("entropy-floor") == "consistent"
    monkeypatch.setattr(
        nonlinear, "entropy_lower_bound", lambda norm, *, keys: right(wrong(norm, keys), keys=keys)
    )
    assert verdict("entropy-floor") == "violated"


def test_one_more_degree_of_freedom_violates_the_chance_level(monkeypatch, unchecked):
    """C classes with C - 1 degrees of freedom are C + 1 classes with the right number: .612 for .626."""
    right = networks.chance_recovery
    assert verdict("recovery-by-chance") == "consistent"
    monkeypatch.setattr(networks, "chance_recovery", lambda units, classes: right(units, classes + 1))
    assert verdict("recovery-by-chance") == "violated"


def test_a_rise_and_fall_of_the_entropy_is_not_only_sparser(monkeypatch, unchecked):
    """A curve that rises in between and ends at its smallest value has no rebound."""
    right = nonlinear.attention_entropy

    def bumped(lower: torch.Tensor, *, temperature: float) -> torch.Tensor:
        H = right(lower, temperature=temperature)
        H[1000:1010] += 0.01
        return H

    assert verdict("linear-only-sparser") == "consistent"
    monkeypatch.setattr(nonlinear, "attention_entropy", bumped)
    assert verdict("linear-only-sparser") == "violated"


def test_the_invariant_is_tested_for_each_activation_and_loss(monkeypatch, unchecked):
    """An attention whose gradient is .01 % too large violates it in all four cases."""
    pull, check = block.Exponential.pull, BY_NAME["exponential-invariant"].check
    monkeypatch.setattr(block.Exponential, "pull", lambda self, *rest: 1.0001 * pull(self, *rest))
    evidence = check(torch.Generator().manual_seed(0))
    assert len(evidence.detail) == 4
    assert min(evidence.detail.values()) > evidence.threshold
