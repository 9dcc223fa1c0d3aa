"""The claims on further seeds than the contract tests, and that no control passes there."""

import pytest

from transformer_theory.theories.universal.claims import CLAIMS


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_claims_hold_and_controls_fail(claim):
    result = claim.verify(range(10, 13))
    assert (result.verdict, result.control) == ("consistent", "fails"), [
        evidence.value for evidence in result.controls
    ]
