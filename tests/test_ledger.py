"""The ledger: its page holds what stored verifications say, and the page in docs holds every claim."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cases import each_case
from tests.stand_in import THEORY, install
from transformer_theory.core.claims import Measured, but
from transformer_theory.core.result import Result, provenance
from transformer_theory.core.sources import Source
from transformer_theory.report.ledger import document, ledger, main, updated
from transformer_theory.theories import list_theories

PAGE = Path(__file__).parents[1] / "docs" / "claims.md"


def of_seeds(*values: float, **columns):
    """A check that measures these values, one per seed."""
    return lambda generator: Measured(values[generator.initial_seed() % len(values)], **columns)


def verified(claims, seeds) -> Result:
    record = provenance() | {
        "seconds": 12.34,
        "workers": 2,
        "command": "transformer-theory verify",
        "commit": "0123456789abc",
    }
    return Result(
        "verify",
        {"seeds": list(seeds)},
        verifications=tuple(claim.verify(seeds) for claim in claims),
        provenance=record,
    )


@pytest.fixture(scope="module")
def page() -> str:
    """Claims of every verdict, and one that was not verified."""
    first = replace(
        THEORY.claims[0],
        function=of_seeds(0.25, 0.75, 0.5),
        change=but("v is replaced", of_seeds(3.0, 2.0, 4.0)),
    )
    claims = (
        replace(
            first,
            id="stand_in/good",
            change=replace(first.change, description="is $v$ replaced"),
            corrects=r"Printed $\|v\|_2 \le 2$.",
            corrected=Source("tian2024joma", "Eq. (3)", "second-hand"),
        ),
        replace(
            first,
            id="stand_in/report",
            corrects="Printed 3.",
            corrected=Source("wong2023understanding", "Lemma 1", "confirmed"),
        ),
        replace(first, id="stand_in/violated", function=of_seeds(0.25, 3.0, 0.5)),
        replace(
            first,
            id="stand_in/open",
            function=of_seeds(0.5, converged=False),
            change=but("v is replaced", of_seeds(2.0, converged=False)),
        ),
        replace(
            first,
            id="stand_in/not-covered",
            function=of_seeds(0.5, covered=False),
            change=but("v is replaced", of_seeds(0.5)),
        ),
        replace(first, id="stand_in/one-open", function=of_seeds(0.25, float("nan"), 0.5)),
    )
    record = replace(THEORY, claims=(*claims, replace(first, id="stand_in/new")))
    return ledger([document(verified(claims, range(3)))], (record,))


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
            r"- **Corrects:** {cite:t}`tian2024joma`, Eq. (3) ([arXiv:2310.00535](https://arxiv.org/abs/2310.00535)), second-hand. Printed $\Vert v\Vert_2 \le 2$. See [corrections](errors_in_the_literature.md).",  # noqa: E501
            "- **Verdict:** consistent on 3 of 3 seeds, 95 % interval [0.292, 1].",
            "- **Measured:** v: 0.750 on the worst seed, 0.500 in the median; threshold: ≤\N{NO-BREAK SPACE}1.",  # noqa: E501
            "- **Control, which must fail:** Is $v$ replaced. It fails on every seed (nearest to the threshold: 2).",  # noqa: E501
        ]
    )


def test_a_text_that_was_not_published_is_named_and_not_counted(page: str):
    assert (
        "- **Differs from an unpublished text:** {cite:t}`wong2023understanding`, Lemma 1, confirmed. "
        "Printed 3. See [corrections](errors_in_the_literature.md).\n"
    ) in section(page, "stand_in/report")
    table = section(page, "A stand-in")
    assert re.search(r"\[good\].*\| yes \|$", table, re.MULTILINE)
    assert re.search(r"\[report\].*\|  \|$", table, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "verdict", "control"),
    [
        (
            "violated",
            "violated; consistent on 2 of 3 seeds, 95 % interval [0.0943, 0.992].",
            "It fails on every seed",
        ),
        (
            "open",
            "inconclusive on all 3 seeds.",
            "**It is inconclusive on some seed, so the power of the check is unknown**",
        ),
        (
            "not-covered",
            "not covered on all 3 seeds.",
            "**It passes on some seed, so the check has no power**",
        ),
        (
            "one-open",
            "consistent on 2 of 2 seeds, 95 % interval [0.158, 1]; 1 seed was not decided.",
            "It fails on every seed",
        ),
        ("new", "not verified yet.", "not verified yet."),
    ],
)
def test_every_verdict_is_shown_as_it_is(page: str, name: str, verdict: str, control: str):
    text = section(page, f"stand_in/{name}")
    assert f"- **Verdict:** {verdict}" in text
    assert control in text.splitlines()[-1]


def test_the_overview_counts(page: str):
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section(page, "Overview").splitlines()
    ]
    assert lines[0] == [
        "theory",
        "claims",
        "consistent",
        "violated",
        "undecided seeds",
        "controls fail",
        "corrected",
    ]
    assert lines[2] == ["[A stand-in](#a-stand-in)", "7", "3", "1", "7", "4", "1"]
    assert lines[3] == ["all", "7", "3", "1", "7", "4", "1"]
    table = section(page, "A stand-in")
    assert (
        "| [violated](#stand_inviolated) | violated\N{NO-BREAK SPACE}2/3 | 3 | ≤\N{NO-BREAK SPACE}1 | 2 |"
        "  |  |" in table
    )
    assert "- 6 claims by `transformer-theory verify`" in page
    assert "2 processes" in page


def test_results_are_put_together_and_a_claim_may_be_in_one_of_them_only():
    one, two = THEORY.claims[0], replace(THEORY.claims[1], id="stand_in/other")
    record = replace(THEORY, claims=(one, two))
    first, second = document(verified([one], range(4))), document(verified([two], range(2)))
    page = ledger([first, second], (record,))
    assert "consistent on 4 of 4 seeds" in section(page, "stand_in/good")
    assert "consistent on 0 of 2 seeds" in section(page, "stand_in/other")
    assert "checked on 2 to 4 seeds" in page
    with pytest.raises(ValueError, match="stand_in/good"):
        ledger([first, first], (record,))


def test_claims_that_are_not_verified_again_stay_and_deleted_ones_go():
    def part(number: int, *ids: str) -> dict:
        return {"provenance": {"number": number}, "verifications": [{"id": id, "from": number} for id in ids]}

    stored = [part(1, "a/one", "a/two"), part(2, "b/gone"), part(3, "b/one")]
    assert updated(stored, [part(4, "a/two")], ["a/one", "a/two", "b/one"]) == [
        part(1, "a/one"),
        part(3, "b/one"),
        part(4, "a/two"),
    ]


def test_sources_and_mutants_are_counted():
    first = THEORY.claims[0]
    claims = tuple(
        replace(first, id=f"stand_in/{name}", source=replace(first.source, status=status))
        for name, status in (("a", "confirmed"), ("b", "not found"), ("c", "not found"), ("d", "own"))
    )
    mutant = {
        "theory": THEORY.name,
        "function": "f",
        "kind": "flipped sign",
        "description": "minus",
        "outcome": "detected",
        "by": "a",
    }
    mutants = [
        mutant,
        {**mutant, "outcome": "undetected", "by": "", "description": "half of $v$"},
        {**mutant, "outcome": "equivalent", "by": "even"},
    ]
    record = {"made": ["today", "here"], "seeds": [0, 1], "seconds": 61, "mutants": mutants}
    page = ledger([document(verified(claims, range(2)))], (replace(THEORY, claims=claims),), mutants=record)
    assert "| all | 1 | 0 | 2 | 1 |" in section(page, "Sources")
    score = section(page, "Mutants")
    assert "| all | 3 | 1 | 1 | 0 | 1 | 50\N{NO-BREAK SPACE}% |" in score
    assert "- stand_in, half of $v$: undetected\n- stand_in, minus: equivalent: even" in score
    assert "today · here; seeds 0, 1" in score
    place = "{cite:t}`tian2023scan`, Sec. 2 ([arXiv:2305.16380](https://arxiv.org/abs/2305.16380))"
    for name, line in {
        "a": f"- **Stated in:** {place}; read in the full text",
        "b": f"- **Attributed to:** {place}; no full text could be read, so number and wording are unknown",
        "d": f"- **This library's own statement**, in the setting of {place}",
    }.items():
        assert section(page, f"stand_in/{name}").splitlines()[2] == line
    rows = [line.split(" | ")[5:] for line in section(page, "A stand-in").splitlines()[4:8]]
    assert [row[0] for row in rows] == ["confirmed", "not found", "not found", "own"]
    assert "### Mutants" not in ledger([], (THEORY,))
    assert page.endswith(".\n")


def test_random_mutants_are_counted_and_shown_with_their_place():
    mutant = {
        "theory": THEORY.name,
        "file": "transformer_theory/theories/stand_in/maths.py",
        "line": 7,
        "text": "return a *  b[0]",
        "old": "0",
        "new": "1",
        "outcome": "claims",
        "by": "stand_in/a",
        "left": 0,
    }
    mutants = [
        mutant,
        {**mutant, "outcome": "tests", "by": "tests/test_a.py::test_b", "missed": True},
        {**mutant, "outcome": "undetected", "by": "nothing executes it"},
        {**mutant, "outcome": "undetected", "by": "", "old": ", dim=0", "new": "", "left": 3},
        {**mutant, "outcome": "equivalent", "by": "a is 0"},
    ]
    record = {"made": ["today", "here"], "seed": 47, "seeds": [0, 1], "mutants": mutants}
    former = [{"seed": 46, "mutants": 8, "detected": 6}]
    fresh = record | {"seed": 48, "mutants": mutants[1:4], "former": former}
    page = ledger([], (THEORY,), random=record, fresh=fresh)
    score = section(page, "Random mutants")
    assert (
        "Of 3 others (seed 48), run before tests of their kind were written, claims detect 0 and tests 1: "
        "33\N{NO-BREAK SPACE}%, equivalent ones included. Of 8 of a former sample "
        "(seed 46) 75\N{NO-BREAK SPACE}% were detected, before tests of their kind were written. `python"
    ) in score
    assert "| all | 5 | 1 | 1 | 1 | 0 | 2 | 50\N{NO-BREAK SPACE}% | 25\N{NO-BREAK SPACE}% |" in score
    place = "stand_in/maths.py, line 7: `0` becomes `1`, in `return a * b[0]`"
    assert f"- {place}: nothing executes it\n" in score
    assert "line 7: `, dim=0` left out, in `return a * b[0]`; 3 slower tests did not run\n" in score
    assert score.rstrip().endswith(f"Equivalent:\n\n- {place}: a is 0")
    assert "(seed 47)" in score
    some = ledger([], (THEORY,), random=record, fresh=fresh | {"mutants": mutants[1:]})
    assert "and tests 1: 33\N{NO-BREAK SPACE}%, not counting equivalent ones (1). Of 8" in some
    assert "### Random mutants" not in ledger([], (THEORY,))


@each_case(
    ("threshold", "text"),
    [(0.02, "0.02"), (1e-7, "10⁻⁷"), (2.5e-9, "2.5·10⁻⁹"), (10, "10"), (0.1, "0.1"), (1200, "1,200")],
)
def test_a_threshold_has_the_digits_it_was_given(threshold: float, text: str):
    claim = replace(THEORY.claims[0], threshold=threshold, function=lambda generator: 0.0)
    page = ledger([document(verified([claim], range(1)))], (replace(THEORY, claims=(claim,)),))
    assert f"; threshold: ≤\N{NO-BREAK SPACE}{text}.\n" in page


def test_the_page_in_docs_is_made_from_its_numbers_and_holds_every_claim():
    documents = json.loads(PAGE.with_suffix(".json").read_text(encoding="utf-8"))
    claims = {claim.id: claim for theory in list_theories() for claim in theory.claims}
    verifications = {one["id"]: one for stored in documents for one in stored["verifications"]}
    assert verifications.keys() == claims.keys(), (
        "a claim was never verified, or is no more: run `make ledger`"
    )
    texts = ("statement", "measures", "control_description", "corrects")
    cited = {id: claim.corrected and claim.corrected.to_json() for id, claim in claims.items()}
    changed = [
        f"{id}: {name}"
        for id, claim in claims.items()
        for name in texts
        if verifications[id][name] != getattr(claim, name)
    ]
    changed += [
        id for id, claim in claims.items() if tuple(verifications[id]["assumptions"]) != claim.assumptions
    ]
    assert changed == [], "a text of a claim was changed: run `make ledger`"
    limits = {id: (stored["op"], stored["threshold"]) for id, stored in verifications.items()}
    changed += [id for id, claim in claims.items() if limits[id] != (claim.op, claim.threshold)]
    assert changed == [], "a threshold was changed: run `make ledger`"
    changed += [
        f"{id}: source"
        for id, claim in claims.items()
        if verifications[id]["source"] != claim.source.to_json()
    ]
    assert changed == [], "a source was changed: run `make ledger`"
    changed += [id for id, one in verifications.items() if one.get("corrected") != cited[id]]
    assert changed == [], "a corrected text was changed: run `make ledger`"
    mutants, random, fresh = (
        json.loads(PAGE.with_name(name).read_text(encoding="utf-8"))
        for name in ("mutants.json", "random_mutants.json", "random_mutants_fresh.json")
    )
    assert PAGE.read_text(encoding="utf-8") == ledger(
        documents, list_theories(), mutants=mutants, random=random, fresh=fresh
    )
    least = {"quick": 100, "training": 5}
    assert [id for id, one in verifications.items() if len(one["seeds"]) < least[claims[id].cost]] == []


def test_every_link_within_the_page_has_its_heading():
    text = PAGE.read_text(encoding="utf-8")
    anchors = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= anchors
    addresses = [
        re.sub(r"[^a-z0-9]+", "-", claim.id) for theory in list_theories() for claim in theory.claims
    ]
    # of the built page: claims.html#attention-svm-global-direction
    assert len(addresses) == len(set(addresses))
    assert "attention-svm-global-direction" in addresses


def test_formulas_survive_markdown():
    text = PAGE.read_text(encoding="utf-8")
    for line in text.splitlines():
        assert line.count("$") % 2 == 0, line
    for formula in re.findall(r"\$([^$]*)\$", text):
        assert not re.search(r"\\[|,;!{}]", formula), f"Markdown takes this backslash away: {formula}"


def test_the_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch, capsys):
    install(monkeypatch)
    verified(THEORY.claims, range(1)).save(tmp_path / "stored")
    page = tmp_path / "claims.md"
    assert main([str(tmp_path / "stored"), str(page)]) == 0
    before = page.read_text(encoding="utf-8")
    assert "violated; consistent on 0 of 1 seeds" in section(before, "stand_in/violated")
    assert main([str(page)]) == 0  # from the JSON beside it
    assert page.read_text(encoding="utf-8") == before
    for wrong in ([str(tmp_path / "nothing"), str(page)], [str(tmp_path / "new.md")], []):
        assert main(wrong) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert page.read_text(encoding="utf-8") == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["claims.json", "claims.md", "stored"]
