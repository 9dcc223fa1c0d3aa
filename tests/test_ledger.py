"""The ledger: its page is what its maker writes of a stored verification, and the page in docs holds every claim as it stands today."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from transformer_theory.core.verification import Summary, document, summaries, verification

from tests.stand_in import THEORY, install
from transformer_theory.core.claims import Evidence
from transformer_theory.report.ledger import ledger, main, merged
from transformer_theory.theories import THEORIES

PAGE = Path(__file__).parents[1] / "docs" / "claims.md"
CLAIMS = [claim for theory in THEORIES for claim in theory.claims]


def of_seeds(*values: float, **settings):
    """A check that finds these values, one a seed, against the line 1 from below."""
    return lambda generator: Evidence(values[generator.initial_seed() % len(values)], 1.0, "<=", **settings)


@pytest.fixture(scope="module")
def page() -> str:
    """Claims of every verdict, and one that was not verified."""
    first = replace(THEORY.claims[0], check=of_seeds(0.25, 0.75, 0.5), control=of_seeds(3.0, 2.0, 4.0))
    claims = (
        replace(first, id="stand_in/good", control_description="is $v$ replaced", corrects=r"Printed $\|v\|_2 \le 2$."),
        replace(first, id="stand_in/violated", check=of_seeds(0.25, 3.0, 0.5)),
        replace(first, id="stand_in/open", check=of_seeds(0.5, converged=False), control=of_seeds(2.0, converged=False)),
        replace(first, id="stand_in/outside", check=of_seeds(0.5, in_assumptions=False), control=of_seeds(0.5)),
        replace(first, id="stand_in/one-open", check=of_seeds(0.25, float("nan"), 0.5)),
    )
    return ledger(
        [document(verification(claims, range(3)), claims)], (replace(THEORY, claims=(*claims, replace(first, id="stand_in/new"))),)
    )


def section(page: str, heading: str) -> str:
    """What stands under a heading."""
    return re.split(r"^##+ ", page.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0].strip()


def test_a_claim_on_the_page(page: str):
    assert section(page, "stand_in/good") == "\n".join(
        [
            r"$v \le 1$",
            "",
            "- **Source:** {cite:t}`tian2023scan`, Sec. 2 ([arXiv:2305.16380](https://arxiv.org/abs/2305.16380))",
            "- **Assumes:**",
            "  - v is a number",
            r"- **Corrects:** Printed $\Vert v\Vert_2 \le 2$. See [corrections](errors_in_the_literature.md#stand_in).",
            "- **Verdict:** consistent on 3 of 3 seeds, 95 % interval [0.292, 1].",
            "- **Measured:** 0.750 on the worst seed, 0.500 in the median; line: ≤\N{NO-BREAK SPACE}1.",
            "- **Control, which must fail:** Is $v$ replaced. It fails on every seed (nearest to the line: 2).",
        ]
    )


@pytest.mark.parametrize(
    ("name", "verdict", "control"),
    [
        ("violated", "violated; consistent on 2 of 3 seeds, 95 % interval [0.0943, 0.992].", "It fails on every seed"),
        ("open", "inconclusive on all 3 seeds.", "**It is inconclusive on some seed, so the power of the check is unknown**"),
        ("outside", "outside assumptions on all 3 seeds.", "**It passes on some seed, so the check has no power**"),
        ("one-open", "consistent on 2 of 2 seeds, 95 % interval [0.158, 1]; 1 seed was not decided.", "It fails on every seed"),
        ("new", "not verified yet.", "V is replaced."),
    ],
)
def test_every_verdict_is_told_as_it_is(page: str, name: str, verdict: str, control: str):
    told = section(page, f"stand_in/{name}")
    assert f"- **Verdict:** {verdict}\n" in told
    assert control in told.splitlines()[-1]


def test_the_overview_counts(page: str):
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in section(page, "Overview").splitlines()]
    assert lines[0] == ["theory", "claims", "consistent", "violated", "undecided", "controls fail", "corrected"]
    assert lines[2] == ["[A stand-in](#a-stand-in)", "6", "2", "1", "2", "3", "1"]
    assert lines[3] == ["all", "6", "2", "1", "2", "3", "1"]
    assert "| [violated](#stand_inviolated) | violated\N{NO-BREAK SPACE}2/3 | 3 | ≤\N{NO-BREAK SPACE}1 | 2 |  |" in section(
        page, "A stand-in"
    )
    assert "- 5 claims by `" in page


def test_a_claim_that_was_verified_again_has_its_new_numbers_and_its_new_words():
    before = replace(THEORY.claims[0], check=of_seeds(3.0))
    claims = (replace(before, check=of_seeds(0.25), statement="$v < 2$"), replace(THEORY.claims[1], id="stand_in/other"))
    gone = replace(before, id="stand_in/gone")
    told = [document(verification(given, range(n)), given) for given, n in (((before, claims[1]), 2), (claims[:1], 4), ((gone,), 1))]
    kept = merged(told, claims)
    assert [[claim["id"] for claim in one["claims"]] for one in kept] == [["stand_in/other"], ["stand_in/good"]]
    assert merged(kept, claims) == kept
    page = ledger(kept, (replace(THEORY, claims=claims),))
    assert "consistent on 4 of 4 seeds" in section(page, "stand_in/good")
    assert section(page, "stand_in/good").startswith("$v < 2$")
    assert "consistent on 0 of 2 seeds" in section(page, "stand_in/other")
    assert "checked on 2 to 4 seeds, each beside a control" in page


def test_a_document_keeps_what_the_rows_say():
    claims = (THEORY.claims[0], replace(THEORY.claims[1], check=of_seeds(float("nan"), 3.0)))
    result = verification(claims, range(2))
    assert [Summary.of(told) for told in document(result, claims)["claims"]] == summaries(result)


@pytest.mark.parametrize(
    ("bound", "line"), [(0.02, "0.02"), (1e-7, "10⁻⁷"), (2.5e-9, "2.5·10⁻⁹"), (10, "10"), (0.1, "0.1"), (1200, "1,200")]
)
def test_a_line_has_the_digits_it_was_given(bound: float, line: str):
    claim = replace(THEORY.claims[0], check=lambda generator: Evidence(0.0, bound, "<="))
    told = document(verification([claim], range(1)), [claim])
    assert f"; line: ≤\N{NO-BREAK SPACE}{line}.\n" in ledger([told], (replace(THEORY, claims=(claim,)),))


def test_the_page_in_docs_is_what_its_numbers_and_the_claims_of_today_make():
    """Words that were changed need `python -m transformer_theory.report.ledger docs/claims.md`; a new check, or a new claim, `make ledger`,
    or a verification of its own that is named before the page."""
    told = json.loads(PAGE.with_suffix(".json").read_text(encoding="utf-8"))
    assert merged(told, CLAIMS) == told, "the words of a claim were changed"
    assert {claim["id"] for one in told for claim in one["claims"]} == {claim.id for claim in CLAIMS}, "a claim was never verified"
    assert all(claim["seeds"] >= 100 for one in told for claim in one["claims"])
    text = PAGE.read_text(encoding="utf-8")
    assert text == ledger(told, THEORIES)
    assert re.findall(r"^### (\S+)$", text, re.MULTILINE) == [claim.id for claim in CLAIMS]


def test_every_link_within_the_page_has_its_heading():
    text = PAGE.read_text(encoding="utf-8")
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= anchors
    addresses = [re.sub(r"[^a-z0-9]+", "-", claim.id) for claim in CLAIMS]
    assert len(addresses) == len(set(addresses))  # of the built page: claims.html#attention-svm-global-direction
    assert "attention-svm-global-direction" in addresses


def test_formulas_survive_markdown():
    text = PAGE.read_text(encoding="utf-8")
    for line in text.splitlines():
        assert line.count("$") % 2 == 0, line
    for formula in re.findall(r"\$([^$]*)\$", text):
        assert not re.search(r"\\[|,;!{}]", formula), f"Markdown takes this backslash away: {formula}"


def test_the_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch, capsys):
    install(monkeypatch)
    verification(THEORY.claims, range(1)).save(tmp_path / "stored")
    page = tmp_path / "claims.md"
    assert main([str(tmp_path / "stored"), str(page)]) == 0
    before = page.read_text(encoding="utf-8")
    assert "violated; consistent on 0 of 1 seeds" in section(before, "stand_in/violated")
    assert main([str(page)]) == 0  # from the numbers beside it
    assert page.read_text(encoding="utf-8") == before
    for wrong in ([str(tmp_path / "nothing"), str(page)], []):
        assert main(wrong) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert page.read_text(encoding="utf-8") == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["claims.json", "claims.md", "stored"]
