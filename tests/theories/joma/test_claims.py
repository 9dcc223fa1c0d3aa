"""The claims: their sources, and the sharpness of the softmax invariant."""

import pytest
import torch

from transformer_theory.theories.joma import block
from transformer_theory.theories.joma.claims import CLAIMS

BY_NAME = {claim.id.partition("/")[2]: claim for claim in CLAIMS}


@pytest.mark.parametrize(
    ("name", "locator", "status"),
    [
        ("linear-invariant", "Theorem 1", "second-hand"),
        ("softmax-rate", "", "not found"),
        ("linear-orbit", "Theorem 2", "second-hand"),
        ("blow-up", "", "not found"),
        ("learning-speeds", "Theorem 4", "second-hand"),
        ("drop-and-bounce", "Fig. 3 or 4", "second-hand"),
        ("entropy-floor", "Theorem 3.1", "second-hand"),
        ("several-units", "", ""),
    ],
)
def test_sources_state_what_is_known_about_the_passage(name, locator, status):
    source = BY_NAME[name].source
    assert (source.locator, source.status) == (locator, status)


def test_conditions_on_drawn_instances_are_assumptions():
    assert "sequences in which no other leaf is present are left out" in BY_NAME["near-relatives-first"].assumptions
    assert any("in none have no correlation and are left out" in text for text in BY_NAME["recovery-untrained"].assumptions)
    assert any(r"|\delta_k(t)| \ll |\delta_k(0)|" in text for text in BY_NAME["learning-speeds"].assumptions)


def test_a_wrong_factor_violates_the_softmax_invariant(monkeypatch, unchecked):
    """The factor .65 in the place of 1/2 makes an error of .38 to .44; the threshold is .25."""
    claim = BY_NAME["softmax-invariant"]
    assert claim.check(torch.Generator().manual_seed(0)).verdict == "consistent"
    monkeypatch.setattr(block.Softmax, "factor", property(lambda self: 0.65 / self.temperature))
    assert claim.check(torch.Generator().manual_seed(0)).verdict == "violated"
