"""The example page of a survey: every number is a macro of stored results, LaTeX sets it on one page, and its
picture is up to date.
"""

import re
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import survey_page  # noqa: E402

from transformer_theory.report.macros import definitions  # noqa: E402

NUMBERS = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|half|dozen|hundred|thousand"
# "two classes" is the name of a rung
WORDS = re.compile(rf"\b(?!one (?:after )?another|two classes)(?:{NUMBERS})\b")


@pytest.fixture(scope="module")
def combined():
    return survey_page.results()


def prose(source: str) -> str:
    """The text of the document without comments, macros of the library, and the arguments of commands that
    print no text of ours.
    """
    body = source.partition(r"\begin{document}")[2]
    body = re.sub(r"(?<!\\)%.*", "", body)
    body = re.sub(
        r"\\(?:sbox\d\{.*\}$|includegraphics\[.*\]\{.*\}|renewcommand.*)", "", body, flags=re.MULTILINE
    )
    body = re.sub(
        r"\\(?:cite|label|ref|begin|end|bibliography|bibliographystyle)(?:\[.*?\])?\{[^}]*\}(?:\{[^}]*\})?",
        "",
        body,
    )
    # 1 - cos is the name of a quantity
    return re.sub(r"\$1 - \\cos\$", "", re.sub(r"\\TT[A-Za-z]+", "", body))


def test_every_number_is_a_macro(combined):
    text = prose(survey_page.SOURCE.read_text(encoding="utf-8"))
    assert re.findall(r"\d[\d.,]*", text) == []
    assert WORDS.findall(" ".join(text.lower().split())) == []
    assert len(survey_page.used(combined)) >= 30


def test_a_number_in_the_text_is_found():
    source = survey_page.SOURCE.read_text(encoding="utf-8")
    assert re.findall(r"\d+", prose(source.replace(r"\TTClaims\ claims", "326 claims"))) == ["326"]


def test_the_numbers_of_the_page_have_n_interval_and_command(combined):
    for macro in survey_page.used(combined):
        assert " | R" in macro.about, macro.name
        if not macro.about.startswith("of all results"):
            extent = r" \| n = \d+ seeds?.*\| (95 % interval .* to .*|no interval) "
            assert re.search(extent + r"\| R\d+: transformer-theory (reach|verify) ", macro.about), (
                macro.about
            )


def test_an_unknown_macro_is_named(combined, monkeypatch, tmp_path):
    other = tmp_path / "survey.tex"
    other.write_text(r"\TTClaims\ and \TTNothing", encoding="utf-8")
    monkeypatch.setattr(survey_page, "SOURCE", other)
    with pytest.raises(ValueError, match=r"do not define: TTNothing; look for"):
        survey_page.used(combined)


def test_the_picture_is_that_of_the_source_and_the_results(combined):
    with Image.open(survey_page.PICTURE) as picture:
        stored = picture.info.get(survey_page.KEY)
    assert stored == survey_page.fingerprint(combined), "run python docs/survey_page.py"
    assert survey_page.PICTURE.stat().st_size < 300_000


@pytest.mark.skipif(
    shutil.which("pdflatex") is None or shutil.which("bibtex") is None, reason="no pdflatex and bibtex here"
)
def test_latex_sets_it_on_one_page(combined, tmp_path):
    survey_page.compile_page(combined, tmp_path)
    log = (tmp_path / "survey.log").read_text(errors="replace").replace("\n", "")
    assert re.findall(r"\((\d+) pages?,", log) == ["1"]
    for word in ("undefined", "multiply defined", "Missing character", "Float too large", "Overfull \\vbox"):
        assert word not in log
    assert [wide for wide in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log) if float(wide) > 3] == []


def test_the_entry_on_the_page_is_that_of_the_list(combined):
    page = (ROOT / "docs" / "survey_example.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```latex\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    text = definitions(combined)
    assert len(shown.split("\n")) > 5
    assert all(line in text.splitlines() for line in shown.splitlines())
