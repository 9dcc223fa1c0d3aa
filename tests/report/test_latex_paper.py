"""What a paper takes from the stored results of the documentation: macros with one meaning per suffix, tables
and figures for a column and a page, one page that shows them, and references in four styles.
"""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.report import synthetic
from tests.report.test_latex_findings import compared
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.sources import bibtex, entries, field, portable
from transformer_theory.core.table import Table
from transformer_theory.report import aggregate, latex_folder, stored_results
from transformer_theory.report.figures import draw, for_paper
from transformer_theory.report.macros import MAX_NAME, SUFFIXES, index, macros
from transformer_theory.report.paper import parts
from transformer_theory.theories import list_theories

DOCS = Path(__file__).parents[2] / "docs"
STORED = {
    "reach": (DOCS / "reach", DOCS / "claims.json"),
    "networks": tuple(sorted(path.parent for path in (DOCS / "atlas").glob("*/result.json"))),
    "one network": (DOCS / "atlas" / "vit-digits",),
    "claims": (DOCS / "claims.json",),
}
NEEDS_LATEX = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("pdflatex", "bibtex", "pdftotext")),
    reason="no pdflatex, bibtex and pdftotext here",
)


def together(places):
    return aggregate([stored.result for stored in stored_results(places)])


@pytest.fixture(scope="module")
def stored():
    found = {name: together(places) for name, places in STORED.items()}
    theories = tuple(list_theories())
    result, _ = compared(made=theories)
    return found | {"a comparison": aggregate(result, theories=theories)}


@pytest.fixture(scope="module")
def macros_of(stored):
    """The macros of stored results by their name, made once."""
    return cache(lambda name: macros(stored[name]))


@pytest.fixture(scope="module")
def folder_of(stored):
    """The folder of stored results by their name without figures, written once."""
    return cache(lambda name: latex_folder(stored[name], drawn=draw([])))


def compiled(folder, name):
    """Sets a document as its first line says, and returns its log and its text."""
    latex = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", name]
    for command in (latex, ["bibtex", name], latex, latex):
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", check=False
        )
        assert done.returncode == 0, done.stdout[-1500:]
    text = subprocess.run(
        ["pdftotext", f"{name}.pdf", "-"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    return (folder / f"{name}.log").read_text(errors="replace").replace("\n", ""), text


# ---- macros


@pytest.mark.parametrize("name", STORED)
def test_names_are_short_and_end_in_one_suffix(macros_of, name):
    found = macros_of(name)
    assert len(found) > 300
    assert max(len(macro.name) for macro in found) <= MAX_NAME == 40
    assert len({macro.name for macro in found}) == len(found)
    suffixes = tuple(filter(None, SUFFIXES))
    for macro in found:
        if macro.about.startswith("of all results"):
            continue
        assert macro.suffix in SUFFIXES
        base = macro.name.removesuffix(macro.suffix)
        assert not base.endswith(suffixes), macro.name
        words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+", base)
        assert not set(words) & set(suffixes), macro.name


def test_each_suffix_has_the_number_that_it_means():
    nulls = (Null("permuted labels", (0.1, 0.2, 0.3)), Null("sign flips", (0.4,)))
    rows = [
        Measurement("crate", "figure", "null: low cosine", value, nulls=nulls, predicted=0.9, seed=seed)
        for seed, value in enumerate((0.4, 0.5, 0.6))
    ]
    combined = aggregate(Result("made.up", {}, Table(rows)), theories=synthetic.THEORIES)
    (row,) = (entry.row for entry in combined.entries)
    of = {macro.name: macro.value for macro in macros(combined)}
    base = "TTcratenulllowCosineUp"
    low, high = row.interval
    expected = {"": 0.5, "Low": low, "High": high, "Null": 0.2, "SecondNull": 0.4, "N": 3, "Predicted": 0.9}
    assert {suffix: of[base + suffix] for suffix in expected} == pytest.approx(expected)


def test_the_ends_of_a_claim_are_those_of_its_share(stored, macros_of):
    """They were ``Low`` and ``High``, which read like the interval of the value."""
    found = {macro.name: macro for macro in macros_of("claims")}
    claims = {checked.verification.id: checked.verification for checked in stored["claims"].claims}
    learnt = claims["graph_tokens/learnt"]
    assert not {"TTgraphtokenLearntLow", "TTgraphtokenLearntHigh"} & set(found)
    share = [found[f"TTgraphtokenLearntShare{end}"].value for end in ("Low", "High")]
    assert share == pytest.approx(learnt.interval)
    assert found["TTgraphtokenLearnt"].value == learnt.worst.value
    worst = found["TTattnsvmFactoredDirection"], claims["attention_svm/factored-direction"]
    assert worst[0].value == max(evidence.value for evidence in worst[1].evidence)
    assert found["TTattnsvmFactoredDirectionN"].value == 100
    assert found["TTattnsvmFactoredDirectionUndecided"].value == 1


def test_a_claims_value_is_not_rounded_to_its_threshold(macros_of):
    found = {macro.name: macro for macro in macros_of("claims")}
    for name, macro in found.items():
        if macro.suffix == "" and f"{name}Threshold" in found and 0.1 < abs(macro.value) < 10:
            threshold = found[f"{name}Threshold"].value
            printed = float(macro.text.replace("−", "-"))
            distance = abs(macro.value - threshold)
            assert abs(printed - macro.value) <= max(distance / 10, 5e-6), (name, macro.text)


@pytest.mark.parametrize("name", STORED)
def test_intervals_lie_inside_the_bounds_of_their_quantity(stored, name):
    for entry in stored[name].entries:
        row = entry.row
        if row.interval is None or row.value is None:
            continue
        assert row.interval[0] <= row.value <= row.interval[1], row
        low, high = row.bounds or (None, None)
        assert low is None or row.interval[0] >= low - 1e-9, row
        assert high is None or row.interval[1] <= high + 1e-9, row
        if re.match("(mean )?(rank )?(cosine|correlation|agreement)", row.quantity):
            assert row.interval[0] + 1e-9 >= -1
            assert row.interval[1] <= 1 + 1e-9, row


def test_the_index_lists_every_macro_with_its_meaning(folder_of, macros_of):
    text = folder_of("claims")[0]["macros.html"].decode()
    listed = re.findall(r"<code>\\(TT\w+)</code>", text)
    assert listed == [macro.name for macro in macros_of("claims")]
    assert '<input type="search"' in text
    assert all(meaning in text for suffix, meaning in SUFFIXES.items() if suffix in ("ShareLow", "Control"))
    assert "<b>" not in index(aggregate(Result("<b>", {"data": "<b>"}), theories=[]))


# ---- tables, figures and sentences


@pytest.mark.parametrize("name", STORED)
def test_tables_have_a_line_per_theory_and_captions_name_one_commit(stored, folder_of, name):
    combined = stored[name]
    made, failed = folder_of(name)
    assert failed == []
    assert set(made) >= {"table-column.tex", "table-page.tex", "sentences.tex", "macros.tex", "macros.html"}
    assert not {"appendix.tex", "provenance.tex", "crate.tex"} & set(made)
    for width in ("column", "page"):
        text = made[f"table-{width}.tex"].decode()
        assert text.count(r"\begin{table") == 1
        assert len(re.findall(r"commits? [0-9a-f]{8}", text)) == 1
        assert "uncommitted" not in text
    content = parts(combined)
    assert len(content.column.columns) <= 4
    assert [line.cells[0] for line in content.column.lines if line.cells]
    assert 1 <= len(content.sentences) <= 6


@pytest.mark.parametrize("name", ["reach", "networks", "one network", "a comparison"])
def test_figures_are_as_wide_as_a_column_with_readable_type_and_of_moderate_height(stored, name):
    wide, narrow = (picture.draw() for picture in for_paper(stored[name]))
    assert wide.get_size_inches()[0] == 7.2
    width, height = narrow.get_size_inches()
    assert width == 3.4
    assert height <= 4.7
    texts = [text for text in narrow.axes[0].texts if text.get_text()]
    assert min(text.get_fontsize() for text in texts) >= 5.9


@NEEDS_LATEX
@pytest.mark.parametrize("name", [*STORED, "a comparison"])
def test_the_example_is_one_page(stored, name, tmp_path):
    made, failed = latex_folder(stored[name])
    assert failed == []
    for file, data in made.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(data)
    log, text = compiled(tmp_path, "example")
    assert re.findall(r"\((\d+) pages?,", log) == ["1"]
    for word in ("undefined", "multiply defined", "Missing character", "Float too large"):
        assert word not in log
    assert [wide for wide in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log) if float(wide) > 3] == []
    assert "A number in the text is a macro" in " ".join(text.split())
    assert "[?]" not in text


# ---- references

STYLES = {
    "plain": ("", r"\bibliographystyle{plain}\bibliography{references}"),
    "alpha": ("", r"\bibliographystyle{alpha}\bibliography{references}"),
    "natbib": (r"\usepackage{natbib}", r"\bibliographystyle{plainnat}\bibliography{references}"),
    "biblatex": (
        r"\usepackage[backend=bibtex]{biblatex}\addbibresource{references.bib}",
        r"\printbibliography",
    ),
}


def locator(key):
    """What tells where to find a work: its number, its first page, its doi or its address."""
    number, pages, volume, doi = (field(key, name) for name in ("eprint", "pages", "volume", "doi"))
    url = field(key, "url")
    if number:
        return f"arXiv:{number}"
    return pages.partition("--")[0] or volume or doi or url.removeprefix("https://")


@NEEDS_LATEX
@pytest.mark.parametrize("style", STYLES)
def test_every_style_prints_where_a_work_is_found(style, tmp_path):
    if (
        style == "biblatex"
        and not subprocess.run(
            ["kpsewhich", "biblatex.sty"], capture_output=True, text=True, check=False
        ).stdout.strip()
    ):
        pytest.skip("no biblatex here")
    preamble, end = STYLES[style]
    (tmp_path / "references.bib").write_text(bibtex(entries()))
    document = (
        rf"\documentclass{{article}}\usepackage[T1]{{fontenc}}\usepackage{{lmodern,url}}{preamble}"
        rf"\begin{{document}}\cite{{tarzanagh2023transformers}}\nocite{{*}}{end}\end{{document}}"
    )
    (tmp_path / "all.tex").write_text(document)
    log, text = compiled(tmp_path, "all")
    assert "undefined" not in log
    solid = re.sub(r"[\s\-–\u00ad]", "", text)
    without = [
        key for key in entries() if (where := locator(key)) and re.sub(r"[\s\-–]", "", where) not in solid
    ]
    assert without == []
    for key in ("tarzanagh2023transformers", "dong2021attention"):  # once: no style repeats it
        assert solid.count(field(key, "eprint")) == 1, key
    assert "Olsson" in text
    assert ("Olah" in text) == (style != "biblatex")  # how many authors are printed is up to the style


def test_entries_keep_all_authors_and_name_no_number_twice():
    for key, entry in entries().items():
        made = portable(entry)
        (authors,) = re.findall(r"^  author +=(.*)", made, re.MULTILINE)
        assert authors.count(" and ") == field(key, "author").count(" and ")
        number = field(key, "eprint")
        assert not number or made.count(number) == 1, key


def test_works_that_are_corrected_or_used_are_exported(stored, folder_of):
    text = folder_of("reach")[0]["references.bib"].decode()
    corrected = {
        checked.verification.corrected.key
        for checked in stored["reach"].claims
        if checked.verification.corrected is not None
    }
    assert "wong2023understanding" in corrected
    data = {"krizhevsky2009learning", "merity2017pointer", "alpaydin1998optical"}
    methods = {"clopper1934use", "benjamini1995controlling"}
    for key in corrected | data | methods:
        assert f"{{{key}," in text, key
    networks = folder_of("networks")[0]["references.bib"].decode()
    assert "{westfall1993resampling," in networks
    assert "{clopper1934use," not in networks  # no claim was verified
