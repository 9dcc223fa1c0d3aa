"""The page of corrections: published statements, released code and the rest, and the numbers that cite it."""

import importlib.util
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import transformer_theory as tt
from tests.cases import each_case
from transformer_theory.core.claims import Claim
from transformer_theory.core.result import Result, provenance
from transformer_theory.core.sources import Source
from transformer_theory.core.theory import Theory
from transformer_theory.report import bibtex
from transformer_theory.theories import list_theories

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "errors_in_the_literature.md").read_text(encoding="utf-8")
SPEC = importlib.util.spec_from_file_location("statement_origins", DOCS / "statement_origins.py")
assert SPEC
assert SPEC.loader
ORIGINS = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(ORIGINS)
STATEMENTS, CODE, REST = re.split(r"^## .*\n", PAGE, flags=re.MULTILINE)[1:]
PLACES = "Eq|Theorem|Lemma|Appendix|Figure|Chapter|Section"
CLAIMS = [claim for theory in list_theories() for claim in theory.claims]
CORRECTING = [claim for claim in CLAIMS if claim.corrected]


def entries(part: str) -> list[tuple[str, str]]:
    """The title and the lines of each entry of a list."""
    found = re.split(r"^\*\*(.+)\*\*$", part, flags=re.MULTILINE)
    return list(zip(found[1::2], (re.split(r"^###", text, flags=re.MULTILINE)[0] for text in found[2::2])))


def place(claim: Claim) -> Source:
    assert claim.corrected is not None
    return claim.corrected


def of_code(claim: Claim) -> bool:
    return place(claim).locator.startswith("released code")


def test_each_published_correction_has_its_text_its_place_its_status_and_a_derivation():
    assert entries(STATEMENTS)
    assert entries(CODE)
    for title, text in entries(STATEMENTS):
        quoted = re.search(rf"^- \*Text:\* \{{cite:t\}}`(\w+)`, (?:{PLACES})", text, re.MULTILINE)
        assert quoted, title
        assert Source(quoted[1]).published, title
        status = re.search(r"^- \*Status:\* (confirmed|second-hand)\b", text, re.MULTILINE)
        assert status, title
        assert re.search(r"^- \*Derivation:\* \S", text, re.MULTILINE), title
    for title, text in entries(CODE):
        assert re.search(r"^- \*Text:\* .*(?:code|notebook)", text, re.MULTILINE), title
        assert re.search(r"^- \*Derivation:\* \S", text, re.MULTILINE), title
    assert "wong2023understanding" not in STATEMENTS + CODE


@each_case("claim", CORRECTING, ids=lambda claim: claim.id)
def test_a_claim_is_named_in_the_list_of_its_text(claim: Claim):
    """With the status that its correction has there."""
    source = place(claim)
    here = REST if not source.published else CODE if of_code(claim) else STATEMENTS
    assert f"`{claim.id}`" in here
    assert source.locator
    assert source.status in ("confirmed", "second-hand")
    if here is STATEMENTS:
        (text,) = [text for _, text in entries(STATEMENTS) if f"`{claim.id}`" in text]
        assert f"{{cite:t}}`{source.key}`" in text
        assert f"*Status:* {source.status}" in text


def test_the_counts_on_the_page_are_those_of_the_claims():
    code = sum(claim.corrects_published and of_code(claim) for claim in CORRECTING)
    published = sum(claim.corrects_published for claim in CORRECTING)
    rest = len(CORRECTING) - published
    words = {9: "Nine", 10: "Ten", 8: "Eight"}
    text = " ".join(PAGE.split())
    assert (
        f"{published} claims of [the ledger](claims.md) correct a published text: {published - code} a paper "
        f"or book, {code} released code. {words[rest]} more differ from a report that was not published"
    ) in text
    table = re.search(r"^\| all \| .*\| (\d+) \|$", (DOCS / "claims.md").read_text(encoding="utf-8"), re.M)
    assert table
    assert int(table[1]) == published


def test_the_ledger_counts_no_unpublished_text():
    stored = json.loads((DOCS / "claims.json").read_text(encoding="utf-8"))
    corrected = [one["corrected"] for part in stored for one in part["verifications"] if "corrected" in one]
    assert {one["key"] for one in corrected if not Source(one["key"]).published} == {"wong2023understanding"}
    assert len(corrected) == len(CORRECTING)


def test_numbers_of_the_derivations_that_a_calculator_gives():
    assert f"{math.exp(2 / 3) / 2:.3f}".lstrip("0") in STATEMENTS  # the estimate at t = 0, n = 2, beta = 0
    condition = 1 / (100 * 2**2 * 0.01**2)  # n = 2, beta = 1/100
    assert rf"\delta < {condition:.0f}$, which any two tokens meet" in STATEMENTS


def test_two_antipodal_tokens_stay_antipodal_in_pre_norm_layers():
    """Euler steps of the pre-norm flow, by hand: the variance of the directions stays 1."""
    beta, step = 0.01, 0.1
    z = np.array([[0.6, 0.8], [-0.6, -0.8]])
    for _ in range(1000):
        unit = z / np.linalg.norm(z, axis=1, keepdims=True)
        weights = np.exp(beta * unit @ unit.T)
        z = z + step * (weights / weights.sum(1, keepdims=True)) @ unit
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    assert np.linalg.norm(z[0]) > 1.1  # they do move
    assert ((unit - unit.mean(0)) ** 2).sum(1).mean() == pytest.approx(1)


@each_case("theory", list_theories(), ids=lambda theory: theory.name)
def test_the_page_of_a_theory_tells_what_papers_state_from_what_the_library_adds(theory: Theory):
    page = ORIGINS.claims_page(theory.name).read_text(encoding="utf-8")
    (text,) = re.findall(r"\*\*Whose statements\.\*\* (.*?)<!-- end -->", " ".join(page.split()))
    stated, _, added = text.partition("This library adds ")
    own = [claim.id.partition("/")[2] for claim in theory.claims if claim.source.status == "own"]
    cited = [claim.id.partition("/")[2] for claim in theory.claims if claim.source.status != "own"]
    assert sorted(re.findall(r"`(.+?)`", stated)) == sorted(cited)
    assert re.findall(r"`(.+?)`", added) == own
    assert stated.startswith(
        f"Papers state {len(cited)} of the {len(theory.claims)} claims" if cited else "No"
    )
    assert added.startswith(f"{len(own)}: ")
    assert page == ORIGINS.updated(page, theory), "outdated: run `python docs/statement_origins.py`"


def test_every_bibliography_has_the_texts_that_are_corrected():
    """The report of a result, the sources of a stored result, and ``cite`` of a theory and of a claim."""
    (claim,) = [one for one in CORRECTING if one.id == "turing/first-visit"]
    result = Result(
        "verify", {"seeds": [0]}, verifications=(claim.verify(range(1)),), provenance=provenance()
    )
    entry = "@unpublished{wong2023understanding,"
    assert entry in bibtex(result, theories=())
    assert result.citations == ("perez2021attention", "wong2023understanding", "clopper1934use")
    assert all(entry in tt.cite(name) for name in ("turing", "universal", "bottleneck", claim.id))
    assert entry not in tt.cite("scan_snap")
