"""The example section of a survey: every number is a macro of stored results, each theory has a theorem, a
number and a caveat, LaTeX sets it on two pages, and their pictures are up to date.
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

from transformer_theory.comparison.judged import rung_results  # noqa: E402
from transformer_theory.report.macros import definitions  # noqa: E402

NUMBERS = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|half|dozen|hundred|thousand"
WORDS = re.compile(rf"\b(?:{NUMBERS})\b")
# outcomes of the rungs about which the text says that a prediction fails or that it still holds
OUTCOMES = {
    ("attention_svm", "head trained"): "as predicted",
    ("attention_svm", "AdamW"): "matched by a second null",
    ("scan_snap", "short sequences"): "as predicted",
    ("scan_snap", "K, Q and V"): "as predicted",
    ("scan_snap", "AdamW"): "not significant",
    ("in_context", "patches of digits"): "as predicted",
    ("in_context", "softmax"): "nulls conflict",
    ("induction", "attention only, trained"): "as predicted",
    ("induction", "decoder on WikiText"): "as predicted",
    ("turing", "bfloat16"): "as predicted",
    ("length", "trained head"): "as predicted",
    ("length", "ViT on digits"): "opposite",
    ("rate_reduction", "digits"): "as predicted",
    ("rate_reduction", "plain cross-entropy"): "nulls conflict",
    ("collapse", "tokens of the digits"): "as predicted",
    ("collapse", "two blocks"): "opposite",
}


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
        r"\\(?:cite|includegraphics|label|ref|begin|end|bibliography|bibliographystyle|setlength|vspace)"
        r"(?:\[.*?\])?\{[^}]*\}(?:\{[^}]*\})?",
        "",
        body,
    )
    # 1 - cos is the name of a quantity
    return re.sub(r"\$1 - \\cos\$", "", re.sub(r"\\TT[A-Za-z]+", "", body))


def test_every_number_is_a_macro(combined):
    text = prose(survey_page.SOURCE.read_text(encoding="utf-8"))
    assert re.findall(r"\d[\d.,]*", text) == []
    assert WORDS.findall(" ".join(text.lower().split())) == []
    assert len(survey_page.used(combined)) >= 40


def test_every_theory_has_a_theorem_a_number_and_a_caveat():
    source = survey_page.SOURCE.read_text(encoding="utf-8")
    *theories, last = source.split(r"\theory{")[1:]
    assert last.startswith("What to remember")
    assert len(theories) == 8
    for text in theories:
        theorem, number, caveat = re.split(r"\\point\{(?:Number|Caveat)\.\}", text)
        assert r"\point{Theorem.}" in theorem
        assert r"\cite{" in theorem
        assert r"\TT" not in theorem
        assert r"\TT" in number
        assert r"\TT" in caveat
    cited = {key for keys in re.findall(r"\\cite\{([^}]*)\}", source) for key in keys.split(",")}
    assert 25 <= len(cited) <= 35
    claimed = re.compile(r"\b(?:proved|prove[sn]?(?! none)|confirm\w*|validat\w*)\b")
    assert claimed.findall(" ".join(source.split())) == []


def test_the_text_says_what_the_rungs_say(combined):
    found = {(rung.theory.name, rung.name): rung.judged.outcome for rung in rung_results(combined)}
    assert {place: found[place] for place in OUTCOMES} == OUTCOMES


def test_a_number_in_the_text_is_found():
    source = survey_page.SOURCE.read_text(encoding="utf-8")
    assert re.findall(r"\d+", prose(source.replace(r"\TTClaims\ statements", "326 statements"))) == ["326"]


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
    for path in survey_page.PICTURES:
        with Image.open(path) as picture:
            stored = picture.info.get(survey_page.KEY)
        assert stored == survey_page.fingerprint(combined), "run python docs/survey_page.py"
        assert path.stat().st_size < 300_000


@pytest.mark.skipif(
    shutil.which("pdflatex") is None or shutil.which("bibtex") is None, reason="no pdflatex and bibtex here"
)
def test_latex_sets_it_on_two_pages(combined, tmp_path):
    survey_page.compile_page(combined, tmp_path)
    log = (tmp_path / "survey.log").read_text(errors="replace").replace("\n", "")
    assert re.findall(r"\((\d+) pages?,", log) == ["2"]
    for word in ("undefined", "multiply defined", "Missing character", "Float too large", "Overfull \\vbox"):
        assert word not in log
    assert [wide for wide in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log) if float(wide) > 3] == []


def test_the_entry_on_the_page_is_that_of_the_list(combined):
    page = (ROOT / "docs" / "survey_example.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```latex\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    text = definitions(combined)
    assert len(shown.split("\n")) > 5
    assert all(line in text.splitlines() for line in shown.splitlines())
