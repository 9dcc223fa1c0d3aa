"""The bibliography is complete and unambiguous, and every source points into it."""

import re
import tomllib
from datetime import date
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml

from tests.cases import each_case
from transformer_theory.core import sources as citations
from transformer_theory.core.sources import BIBLIOGRAPHY, Source, bibtex, entries, field, short, software

TEXT = BIBLIOGRAPHY.read_text(encoding="utf-8")
ROOT = Path(__file__).parents[2]


def test_every_entry_is_found_once():
    keys = re.findall(r"^@\w+\{([^,\s]+),", TEXT, re.MULTILINE)
    assert keys == list(entries())  # in order, none twice, none swallowed by its neighbour
    assert len(keys) == TEXT.count("@") - TEXT.count("\\@")


@each_case("key", entries())
def test_entries_are_well_formed(key):
    entry = entries()[key]
    assert entry.count("{") == entry.count("}")
    assert re.fullmatch(r"[a-z]+\d{4}[a-z]+", key), "keys are author, year, first word"
    for name in ("author", "title", "year"):
        assert field(key, name), name
    assert field(key, "year") in key
    assert re.fullmatch(r"(https://\S+)?", Source(key).url)
    assert not re.search(r"[\\{}]", field(key, "author")), "an accent that is not understood"
    if arxiv := field(key, "eprint"):
        assert Source(key).url == f"https://arxiv.org/abs/{arxiv}"


def test_no_paper_is_there_twice():
    titles = [re.sub(r"\W", "", field(key, "title")).lower() for key in entries()]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize(
    "source",
    [
        Source("tian2023scan", "Thm. 3"),
        Source("yu2020learning"),
        Source("wang2024global", "Thm. 3.1", "confirmed"),
    ],
)
def test_a_source_survives_json(source):
    assert Source.from_json(source.to_json()) == source


def test_labels_are_what_a_reader_sees():
    assert Source("tarzanagh2023transformers", "Thm. 3").label == "Tarzanagh et al. (2023a), Thm. 3"
    assert Source("alpaydin1998optical").label == "Alpaydin and Kaynak (1998)"
    assert short("pataki1998rank") == "Pataki (1998)"
    assert short("bjorck1973numerical") == "Björck and Golub (1973)"
    assert field("bjorck1973numerical", "author") == "Björck, Åke and Golub, Gene H."
    assert field("tian2024joma", "title").startswith("JoMA: ")


def test_absent_fields_are_empty():
    assert field("tian2023scan", "doi") == ""
    assert Source("roy2007effective").url == ""


def test_unknown_keys_get_the_nearest():
    with pytest.raises(
        ValueError,
        match=r"source key must be in references\.bib, got 'tian2023scam'; did you mean 'tian2023scan'",
    ):
        Source("tian2023scam")
    with pytest.raises(ValueError, match="did you mean 'yu2020learning'"):
        bibtex(["tian2023scan", "yu2020learn"])


def test_bibtex_keeps_the_order_and_repeats_nothing():
    text = bibtex(["yu2020learning", "tian2023scan", "yu2020learning"])
    assert re.findall(r"^@\w+\{([^,]+),", text, re.MULTILINE) == ["yu2020learning", "tian2023scan"]
    assert text.startswith("@inproceedings{yu2020learning,")
    assert text.endswith("}\n")


def test_the_library_in_bibtex():
    version = metadata("transformer-theory")["Version"]
    assert software() == (
        "@misc{transformertheory2026,\n"
        "  author       = {{The transformer\\_theory developers}},\n"
        "  title        = {{transformer\\_theory}: theories of transformers, side by side},\n"
        "  year         = {2026},\n"
        "  howpublished = {\\url{https://github.com/transformer-theory/transformer_theory}},\n"
        f"  note         = {{Python library, version {version}, 27 November 2026}},\n"
        "}\n"
        '@preamble{"\\providecommand{\\url}[1]{\\texttt{\\detokenize{#1}}}"}\n'
    )
    assert not re.search(r"transformertheory", TEXT), "a key of its own"


@pytest.fixture(scope="module")
def described() -> dict:
    """CITATION.cff."""
    return yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_the_citation_file_agrees_with_cite(described):
    assert [author["name"] for author in described["authors"]] == [citations.AUTHORS]
    assert described["title"] == citations.TITLE
    packaged = metadata("transformer-theory")
    assert (described["version"], described["license"]) == (
        packaged["Version"],
        packaged["License-Expression"],
    )
    released = described["date-released"]
    assert isinstance(released, date), "an ISO date without quotes"
    assert released.isoformat() == citations.RELEASED
    assert described["repository-code"] == citations.REPOSITORY
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == described["version"]
    assert project["authors"] == [{"name": citations.AUTHORS}]
    for address in project.get("urls", {}).values():
        assert address.startswith(citations.REPOSITORY), address
    for value in (
        described["version"],
        f"{released.day} {released:%B} {released.year}",
        citations.REPOSITORY,
    ):
        assert value in software()
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert licence.startswith(
        f"{described['license']} License\n\nCopyright (c) {citations.YEAR} {citations.AUTHORS}\n"
    )


def test_the_citation_file_is_valid(described):
    """The rules of the Citation File Format 1.2.0 for the fields that we use; a field of another name must be
    looked up there first.
    """
    assert described["cff-version"] == "1.2.0"
    required = {"authors", "cff-version", "message", "title"}
    used = {"abstract", "date-released", "keywords", "license", "repository-code", "type", "version"}
    assert required <= described.keys() <= required | used
    texts = described.keys() - {"authors", "date-released", "keywords"}
    assert all(isinstance(described[name], str) and described[name].strip() for name in texts)
    assert described["type"] in ("software", "dataset")
    # an entity; a person has family-names and given-names in the place of name
    for author in described["authors"]:
        assert author.keys() == {"name"}
        assert author["name"].strip()
    keywords = described["keywords"]
    assert all(isinstance(word, str) and word.strip() for word in keywords)
    assert len(set(keywords)) == len(keywords) > 0


def test_an_unknown_status_is_refused(unchecked):
    with pytest.raises(ValueError, match="hearsay"):
        Source("yu2020learning", "Thm. 1", "hearsay")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="key"):
        Source.from_json({"locator": "Thm. 1"})
