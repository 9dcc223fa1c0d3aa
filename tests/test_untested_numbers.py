"""The script that lists numbers without a stored source counts as it says, and the demo's page has the
numbers that the demo stored.
"""

import json
import re
from pathlib import Path

import pytest

from benchmarks.untested_numbers import (
    GENERATED,
    Stated,
    main,
    missing,
    pages,
    sizes,
    sources,
    stated,
    theory_of,
)
from tests.cases import each_case
from transformer_theory.theories import list_theories

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DEMO = json.loads((DOCS / "demo.json").read_text(encoding="utf-8"))
FINDINGS = (DOCS / "demo_findings.md").read_text(encoding="utf-8")
BULLETS = dict(re.findall(r"^- \*\*(.+?)\.\*\*((?:.*\n)(?:  .*\n)*)", FINDINGS, re.MULTILINE))
THEORIES = {
    "Attention as a support vector machine": "attention_svm",
    "Scan and snap": "scan_snap",
    "JoMA": "joma",
    "Rate reduction": "rate_reduction",
    "CRATE": "crate",
    "Turing completeness": "turing",
    "Universal approximation": "universal",
    "Learning in context": "in_context",
    "Induction heads": "induction",
    "Random features": "random_features",
    "Routing": "router",
    "Information bottleneck": "bottleneck",
    "Vision transformers": "vision",
    "Collapse": "collapse",
    "Interacting particles": "particles",
    "Attention to many keys": "length",
}

DERIVED = {"universal": [3 * 32**3], "length": [4096 - 1]}  # what a page computes in its text

PAGE = """# Section 3, 7.5

In 2023, on 23 November 2026, version 1.2.3 of `x = 8` and $n = 9$ had .883 (.717 to .964), see Theorem 4.2.
There are 1,797 images, 16 to 26 % of 4.5 million, and 16.2 % [15.9, 16.6]; 2e-9.

| CIFAR-10 | −.05 |
|---|---|
"""


def test_the_numbers_of_a_page():
    found = list(stated(PAGE))
    assert [each.text for each in found] == [
        ".883", ".717", ".964", "1,797", "16", "26 %", "4.5 million", "16.2 %", "15.9", "16.6", "2e-9", ".05",
    ]  # fmt: skip
    assert found[3] == Stated("1,797", 1797, 0.5, 4)
    assert [each.value for each in found[4:9]] == pytest.approx([0.16, 0.26, 4.5e6, 0.162, 0.159])
    assert found[-1].line == 6


def test_a_number_is_found_by_the_precision_that_is_printed():
    numbers = list(stated("It is .88, .883 and 16 %."))
    assert missing(numbers, [0.1649, 0.8834]) == []
    assert [each.text for each in missing(numbers, [0.876, 0.9])] == [".883", "16 %"]
    assert len(missing(numbers, [0.1649, 0.8834], shift=1)) == 3


def test_sizes_of_what_is_stored():
    row = {
        "value": 2.0,
        "flag": True,
        "nulls": [{"draws": [1.0, 5.0, 3.0]}],
        "note": "4 of 7",
        "provenance": {"a": 9},
    }
    assert sorted(sizes(row)) == [1.0, 2.0, 3.0, 3.0, 4.0, 5.0, 7.0]


def test_generated_pages_are_written_or_compared_by_a_script_and_left_out():
    scripts = "".join(
        path.read_text(encoding="utf-8")
        for folder in (DOCS, ROOT / "benchmarks", ROOT / "tests")
        for path in folder.rglob("*.py")
        if not path.name.endswith("untested_numbers.py")
    )
    for name in GENERATED:
        assert name in scripts or "_figures" in name, name
    assert not {Path(page).name for page in pages()} & set(GENERATED)
    assert theory_of("docs/theories/attention_svm_reference.md") == "attention_svm"
    assert theory_of("docs/start.md") is None


def test_the_script_prints_a_line_for_a_page(capsys: pytest.CaptureFixture[str]):
    main(["docs/theories/router.md"])
    head, line, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["page", "numbers", "not", "found", "by", "chance"]
    assert line.startswith("docs/theories/router.md ")


def test_the_page_of_the_demo_names_its_date_and_its_tests():
    assert set(BULLETS) == set(THEORIES)
    assert set(THEORIES.values()) <= {theory.name for theory in list_theories()}
    assert f"; {DEMO['about']['tests']} tests" in FINDINGS
    day = int(DEMO["about"]["date"][8:10])
    assert f"the numbers below are from {day} November" in FINDINGS
    assert f"on {day} November 2026 ({DEMO['about']['machine']})" in (DOCS / "start.md").read_text(
        encoding="utf-8"
    )


@each_case("title", THEORIES)
def test_each_number_of_the_demo_is_one_that_its_theory_has_stored(title: str):
    known = [size for row in DEMO["rows"] if row["theory"] == THEORIES[title] for size in sizes(row)]
    assert [each.text for each in missing(list(stated(BULLETS[title])), sorted(map(abs, known)))] == []


@each_case("title", THEORIES)
def test_each_value_with_an_interval_is_a_row_of_the_demo(title: str):
    """Value and both bounds belong to the same row."""
    text = BULLETS[title]
    rows = [row for row in DEMO["rows"] if row["theory"] == THEORIES[title] and row.get("interval")]
    for found in re.finditer(r"[\d.]+(?: %| nats)?(?: of [\w -]+)? \[[^\]]+\]", text):
        numbers = list(stated(found[0]))
        assert len(numbers) == 3
        assert any(
            all(
                not missing([number], [abs(size)])
                for number, size in zip(numbers, [row.get("value", 0.0), *row["interval"]], strict=True)
            )
            for row in rows
        ), found[0]


@each_case("name", [theory.name for theory in list_theories()])
def test_a_short_page_states_only_numbers_with_a_source(name: str):
    page = f"docs/theories/{name}.md"
    lost = missing(
        list(stated((ROOT / page).read_text(encoding="utf-8"))),
        sorted([*sources(name), *DERIVED.get(name, [])]),
    )
    assert [(each.line, each.text) for each in lost] == []


PATH = {  # the pages on a user's path: numbers that no result can hold, such as sizes of data and of networks
    "README.md": [],
    "docs/index.md": [],
    "docs/start.md": [],
    "docs/which_theory.md": [],
    "docs/all_questions.md": [],
    "docs/own_models/overview.md": ["124 million"],
    "docs/own_models/torch.md": [],
    "docs/own_models/timm.md": [],
    "docs/own_models/lightning.md": [],
    "docs/own_models/transformers.md": [],
    "docs/own_models/transformer_lens.md": [],
    "docs/atlas.md": ["9.1 million"],
    "docs/interventions.md": [],
    "docs/statistics.md": [],
    "docs/comparing.md": [],
    "docs/training.md": ["4.3 million"],
    "docs/reach.md": [],
}


@each_case("page", PATH)
def test_a_page_on_the_path_of_a_user_states_only_numbers_with_a_source(page: str):
    lost = missing(list(stated((ROOT / page).read_text(encoding="utf-8"))), sources(None))
    assert [each.text for each in lost] == PATH[page]
