"""The search of the built documentation finds pages by their words; `make docs` builds it."""

import json
import re
from pathlib import Path

import pytest

INDEX = Path(__file__).parents[1] / "docs" / "_build" / "html" / "searchindex.js"


@pytest.fixture(scope="module")
def index() -> dict:
    if not INDEX.is_file():
        pytest.skip("no built documentation here; make docs builds it")
    return json.loads(
        re.fullmatch(r"Search\.setIndex\((.*)\);?\s*", INDEX.read_text(encoding="utf-8"), re.DOTALL)[1]
    )


@pytest.mark.parametrize(
    ("word", "page"),
    [  # stems, as the index has them
        ("rung", "glossary"),
        ("jackknif", "statistics"),
        ("torchrun", "training"),
        ("macro", "for_survey_writers"),
        ("precondit", "theories/in_context"),
    ],
)
def test_a_word_leads_to_its_page(index, word, page):
    pages = []
    for kind in ("terms", "titleterms"):  # a word of a heading is in the second list alone
        found = index[kind].get(word, [])
        pages += [index["docnames"][number] for number in (found if isinstance(found, list) else [found])]
    assert page in pages, pages


def test_functions_and_source_pages_are_found(index):
    objects = {f"{prefix}.{entry[4]}" for prefix, entries in index["objects"].items() for entry in entries}
    assert {"transformer_theory.compare", "transformer_theory.metrics.rate_reduction"} <= objects
    sources = INDEX.parent / "_modules" / "transformer_theory"
    assert (sources / "core" / "result.html").is_file()
    assert 'class="viewcode-back"' in (sources / "core" / "result.html").read_text(encoding="utf-8")
