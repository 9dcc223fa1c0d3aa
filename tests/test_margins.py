"""Claims whose threshold is near what is measured give a reason."""

from dataclasses import replace

from benchmarks.margins import line, main, stored, without_reason
from tests.stand_in import THEORY
from transformer_theory.core.claims import but


def test_every_claim_has_a_margin_or_a_reason():
    assert without_reason(stored()) == []


def test_a_small_factor_without_a_reason_is_found():
    near = replace(
        THEORY.claims[0],
        id="stand_in/near",
        function=lambda generator: 0.4,
        change=but("v is replaced", lambda generator: 1.5),
    )
    far = replace(near, id="stand_in/far", change=but("v is replaced", lambda generator: 2.5))
    tight = replace(near, id="stand_in/tight", function=lambda generator: 0.6, change=far.change)
    verifications = [one.verify([0]) for one in (near, far, tight)]
    assert without_reason(verifications) == ["stand_in/near", "stand_in/tight"]
    assert line(verifications[0], missing=True).split() == (
        ["?", "stand_in/near", "2.50", "1.50", "0.400", "≤", "1,", "control", "1.50"]
    )


def test_one_theory_is_listed(capsys):
    assert main(["turing"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(text.split()[0].startswith("turing/") for text in lines[1:-2])
    assert len(lines) > 10
