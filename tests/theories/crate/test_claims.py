"""The room's claims on twenty seeds."""

import pytest
import torch

from transformer_theory.theories import crate

# sixty trainings take longer than a minute under shape checks: the contract has five seeds, and docs/theories/crate.md forty
WITHOUT_TRAINING = [claim for claim in crate.THEORY.claims if claim.id != "crate/training-compresses"]


@pytest.mark.parametrize("claim", WITHOUT_TRAINING, ids=lambda claim: claim.id)
def test_claims_hold_and_their_controls_fail_on_twenty_seeds(claim):
    verdict = claim.verify(range(20))
    assert {evidence.verdict for evidence in verdict.evidence} == {"consistent"}
    assert {control.verdict for control in verdict.controls} == {"violated"}


def test_the_paper_step_claim_measures_that_the_neumann_series_converges(generator):
    (claim,) = (each for each in crate.THEORY.claims if each.id == "crate/paper-step")
    evidence = claim.check(generator)
    assert 0.3 < evidence.detail["beta ||W_k||^2"] < 1
    assert evidence.in_assumptions
    bases = crate.random_subspaces(4, 24, 6, generator=generator)
    alike = torch.ones(20, 24, dtype=torch.float64) / 24**0.5  # beta = 0.3 < 1 does not make the series converge
    assert 0.3 * max(float(torch.linalg.matrix_norm(alike @ U, 2)) ** 2 for U in bases) > 1
