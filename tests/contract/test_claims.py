"""Every quick claim: on one seed its check is consistent and its control is violated. The ledger has 100
seeds of each.
"""

import inspect
import pickle
import time
from collections import Counter

import numpy as np
import pytest
import torch

from tests.cases import each_case
from tests.contract.test_theories import formulas
from transformer_theory.core.claims import Claim
from transformer_theory.core.sources import Source
from transformer_theory.theories import list_theories

CLAIMS = [(theory.name, claim) for theory in list_theories() for claim in theory.claims]
SEEDS = (3,)
REPEATED = 0.5  # CPU seconds up to which a check is repeated
THEORIES = [theory.name for theory in list_theories()]
# of the others the ledger has five seeds
QUICK = [(theory, claim) for theory, claim in CLAIMS if claim.cost == "quick"]
every_quick_claim = pytest.mark.parametrize(("theory", "claim"), QUICK, ids=[claim.id for _, claim in QUICK])


def test_ids_are_unique():
    assert [id for id, count in Counter(claim.id for _, claim in CLAIMS).items() if count > 1] == []


@pytest.mark.parametrize("name", THEORIES, ids=[f"{name}/" for name in THEORIES])  # as of its claims
def test_the_record_is_complete(name: str):
    claims = [(theory, claim) for theory, claim in CLAIMS if theory == name]
    each_case(("theory", "claim"), claims, ids=[claim.id for _, claim in claims])(is_complete)()


def is_complete(theory: str, claim: Claim):
    assert claim.id.startswith(f"{theory}/")
    assert len(claim.id) > len(f"{theory}/")
    assert claim.id == claim.id.lower().replace(" ", "-")
    assert isinstance(claim.source, Source)
    assert claim.source.status, "confirmed, second-hand, not found or own"
    assert claim.assumptions
    assert all(isinstance(text, str) and len(text) > 3 for text in claim.assumptions)
    assert claim.control_description.strip()
    assert len(claim.measures.strip()) > 3
    assert not claim.measures.endswith(".")
    assert formulas(claim.statement), "the statement must hold a formula between dollars"
    assert all(formula.count("{") == formula.count("}") for formula in formulas(claim.statement))

    assert pickle.loads(pickle.dumps(claim)) is claim, "other processes get the claim by its name"
    parameters = inspect.signature(claim.function).parameters
    assert all(one.default is not inspect.Parameter.empty for one in list(parameters.values())[1:])
    if claim.change.instead is None:  # the control is the same function with other arguments
        for name, value in claim.change.changed.items():
            assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
            assert parameters[name].default != value


@every_quick_claim
def test_the_check_is_consistent_and_its_control_is_violated(theory: str, claim: Claim, request):
    torch.manual_seed(1)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]
    started = time.process_time()
    result = claim.verify(SEEDS)
    seconds = time.process_time() - started
    print(f"{claim.id}: {seconds / len(SEEDS):.2f} s per seed, check and control")
    assert torch.equal(state, torch.get_rng_state()), "torch's global generator was used"
    assert np.array_equal(numpy_state, np.random.get_state()[1]), "numpy's global generator was used"
    assert result.verdict == "consistent", [
        (e.value, e.op, e.threshold, e.verdict, dict(e.detail)) for e in result.evidence
    ]
    assert result.control == "fails", [
        (e.value, e.op, e.threshold, e.verdict, dict(e.detail)) for e in result.controls
    ]
    assert [row.seed for row in result.measurements()] == [*SEEDS]
    if seconds < REPEATED:
        request.getfixturevalue("unchecked")  # the first run has checked the shapes
        torch.manual_seed(2)
        assert claim.check(torch.Generator().manual_seed(SEEDS[0])).value == result.evidence[0].value, (
            "the seed does not decide"
        )
