"""LaTeX, Markdown, macros and figures as files: no name of the data becomes a command, and a real LaTeX sets
all of it.
"""

import hashlib
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from tests.cases import each_case
from tests.report import synthetic
from tests.report.synthetic import in_network
from transformer_theory.core.math_text import escape, prose
from transformer_theory.core.measurement import Measurement
from transformer_theory.core.result import Result
from transformer_theory.core.sources import entries
from transformer_theory.core.table import Table
from transformer_theory.report import aggregate, latex_folder, origins, page
from transformer_theory.report.figures import Picture, draw, pictures
from transformer_theory.report.macros import definitions, macros
from transformer_theory.report.md import markdown
from transformer_theory.report.md import text as in_markdown
from transformer_theory.report.number_tables import of_theory, provenance, summary
from transformer_theory.report.tables import Code, Note, Plain
from transformer_theory.report.tex import floats, latex, names
from transformer_theory.report.tex import text as in_latex
from transformer_theory.theories import list_theories

EVIL = r"\input{/etc/passwd} 50% a_b & {c} #1 $\write18{x}$ ^~ | --x Żółć Δ 数 <b>"
EXPERIMENT = "attention_svm.made_up"


def together(*results):
    return aggregate(results, theories=synthetic.THEORIES)


@pytest.fixture(scope="module")
def whole():
    """A comparison of two seeds, an experiment with many rows, and names with all that LaTeX takes for a
    command.
    """
    compared = synthetic.comparison(data=EVIL)
    runs = [
        replace(
            compared,
            arrays={},
            settings={**compared.settings, "seed": seed},
            provenance={**compared.provenance, "command": EVIL},
        )
        for seed in (0, 1)
    ]
    quantity = "share of $x_i$ with |p_mm|^2 > 1e-07 & 5 % of ΔR, $\\input{/etc/passwd}$"
    rows = [
        Measurement(
            "attention_svm",
            "figure",
            quantity,
            0.1 * i,
            step=i,
            predicted=0.5,
            source=synthetic.SVM,
            at={"setting": "a_b $x^"},
        )
        for i in range(60)
    ]
    rows[0] = replace(rows[0], note="[a bracket] at the start of a line * and a star")
    return together(*runs, Result(EXPERIMENT, {"eta": 0.5, "names": ["a", "b"]}, Table(rows)))


@pytest.fixture(scope="module")
def folder(whole):
    drawn = draw(pictures(whole)[:2])  # some figures are enough here
    made, failed = latex_folder(
        whole,
        appendix=True,
        folders=[EVIL, "runs/b", "runs/c"],
        checksums=[{"result.json": "0f" * 32}] * 3,
        drawn=drawn,
    )
    assert failed == []
    return made


def test_latex_escapes_every_special_character():
    assert escape(r"50% of a_b & {c} #1 $x ~ ^ \cmd") == (
        r"50\% of a\_b \& \{c\} \#1 \$x \textasciitilde{} \textasciicircum{} \textbackslash{}cmd"
    )
    assert escape("1.20·10⁻¹³ → ≥ 0 — ΔR") == (
        r"1.20\ensuremath{\cdot}10\ensuremath{^{-13}} \ensuremath{\to} \ensuremath{\ge} 0 -- "
        r"\ensuremath{\Delta R}"
    )
    assert escape("café Ł ő λ Σ Α 数 \x1b[0m\u202e\n`--x`") == (
        r"caf\'{e} \L{} \H{o} \ensuremath{\lambda} \ensuremath{\Sigma} A \texttt{U+6570} [0m "
        r"\textasciigrave{}-{}-x\textasciigrave{}"
    )


@each_case(
    "formula",
    [
        r"\input{/etc/passwd}",
        r"\write18{x}",
        r"x^^5cinput",
        r"a}b{",
        r"\def\a{}",
        r"\csname x\endcsname",
        "a%b",
        r"x\\\input y",
        "#1",
    ],
)
def test_formulas_that_could_do_harm_are_text(formula):
    assert prose(f"see ${formula}$ here") == f"see {escape(f'${formula}$')} here"


def test_formulas_stay_and_dollars_are_dollars():
    assert prose(r"$\lVert W \rVert_F \ge 1$ costs \$5, 5%") == r"$\lVert W \rVert_F \ge 1$ costs \$5, 5\%"
    assert (
        prose(r"$Δ ≥ 0$ of $\theta \left( \frac12 \right)$")
        == r"${\Delta} {\ge} 0$ of $\theta \left( \frac12 \right)$"
    )
    assert prose("as `crate/a_b` says, `") == r"as \texttt{crate/a\_b} says, \textasciigrave{}"
    assert in_latex((Plain("a_i $x$"), Note("50 %"))) == r"a\_i \$x\$\newline{\scriptsize 50 \%}"
    assert in_latex(("rate", " ", synthetic.SVM)) == r"rate~\cite[{Thm. 3}]{tarzanagh2023transformers}"


def texts_of_the_registry():
    for theory in list_theories():
        yield from (theory.title, theory.question, theory.statement, *theory.assumptions)
        for claim in theory.claims:
            yield from (
                claim.statement,
                claim.measures,
                claim.control_description,
                claim.corrects,
                *claim.assumptions,
            )


def test_no_formula_of_the_registry_is_taken_for_harmful():
    formulas = [
        found
        for text in texts_of_the_registry()
        for found in re.findall(r"(?<!\\)\$\$?(.+?)(?<!\\)\$\$?", text, re.DOTALL)
    ]
    assert len(formulas) > 300
    assert [formula for formula in formulas if not prose(f"${formula}$").startswith("$")] == []


def test_theories_of_like_names_have_files_and_labels_of_their_own():
    rows = [Measurement(name, "on data", "x", 1.0) for name in ("my theory", "my-theory", "macros")]
    like = together(Result("compare", {"data": "d"}, Table(rows)))
    made, _ = latex_folder(like, appendix=True, drawn=draw([]))
    assert {"my-theory.tex", "my-theory-2.tex", "theory-macros.tex", "macros.tex"} <= set(made)
    assert set(made) == {name for name in names(like, appendix=True) if not name.startswith("figures/")}
    labels = re.findall(r"\\label\{(.*?)\}", b"".join(made.values()).decode())
    assert len(labels) == len(set(labels)) > 4
    assert made["appendix.tex"].count(rb"\input{my-theory") == 2


def test_every_table_has_whole_rows_and_known_keys(folder):
    texts = {
        name: text.decode()
        for name, text in folder.items()
        if name.endswith(".tex") and name not in ("macros.tex", "example.tex", "appendix.tex")
    }
    assert set(texts) == {
        "table-column.tex",
        "table-page.tex",
        "sentences.tex",
        "headlines.tex",
        "provenance.tex",
        "networks.tex",
        *(f"{theory.name}.tex" for theory in synthetic.THEORIES),
    }
    cited = set()
    for name, text in texts.items():
        assert text.isascii()
        if name == "sentences.tex":  # a list
            continue
        for part in re.split(r"(?=\\begin\{(?:longtable|tabular)\})", text)[1:]:
            columns = part.splitlines()[0].count("p{")
            # the titles, whose rows are tables
            if name == "headlines.tex" and not part.startswith(r"\begin{tabular}[t]"):
                continue
            part = part.partition(r"\end{tabular}")[0]
            rows = [
                line
                for line in part.splitlines()
                if line.endswith((r"\\", r"\\*")) and not line.startswith((r"\TTacross", r"\caption"))
            ]
            assert rows
            spans = [sum(int(n) - 1 for n in re.findall(r"\\TTwide\{(\d+)\}", line)) for line in rows]
            assert {len(re.findall(r"(?<!\\)&", line)) + more for line, more in zip(rows, spans)} == {
                columns - 1
            }
        cited |= set(re.findall(r"\\cite(?:\[[^]]*\])?\{([^}]*)\}", text))
    assert (
        cited
        == {"tarzanagh2023transformers", "tian2023scan", "yu2020learning", "yu2023white"}
        <= set(entries())
    )
    assert all(f"{{{key}," in folder["references.bib"].decode() for key in cited)


def test_one_comparison_has_the_same_table_beside_it(compared, theories):
    made, _ = latex_folder(together(compared), appendix=True, drawn=draw([]))
    assert latex(compared, theories=theories) == made["headlines.tex"].decode()


def test_results_without_findings_have_the_summary(compared, theories):
    verified = replace(compared, name="verify", table=Table())
    assert latex(verified, theories=theories) == floats(summary(together(verified)))
    made, _ = latex_folder(together(verified), drawn=draw([]))
    assert "headlines.tex" not in made


def test_a_published_number_is_shown_as_such():
    rows = [
        Measurement("crate", "figure", basis, 0.5, predicted=0.25, basis=basis)
        for basis in ("theory", "limit", "printed", "figure", "recomputed")
    ]
    (table,) = of_theory(together(Result("made.up", {}, Table(rows))), synthetic.THEORIES[3])
    shown = [line.cells[1].replace("\u00a0", " ") for line in table.lines]
    assert shown == ["→ 0.250", "→ 0.250", "0.250, printed", "0.250, read off a figure", "0.250, recomputed"]


def test_macros_have_letters_only_and_every_number_has_one(whole):
    found = macros(whole)
    names = [macro.name for macro in found]
    assert len(names) == len(set(names)) > 200
    assert all(re.fullmatch("TT[A-Za-z]+", name) for name in names)
    of = {macro.name: macro.text for macro in found}
    assert of["TTattnsvmGlobalDirection"] == "1"
    assert of["TTattnsvmGlobalDirectionThreshold"] == "0.990"
    assert of["TTattnsvmGlobalDirectionConsistent"] == "3"
    assert of["TTattnsvmClaims"] == "2"
    assert of["TTattnsvmFeaturesViT"] == "0.831"
    assert of["TTattnsvmFeaturesViTN"] == "2"
    assert of["TTcrateLosMinModRawTokLayXI"] == "0.250"


def test_every_macro_has_n_interval_and_command_in_its_list(whole):
    """In macros.tex: the comment above the definitions of a row or claim, and version, commit and date of
    each command at the head.
    """
    shown = {
        "versions": {"transformer-theory": "0.1.0"},
        "commit": "0123456789",
        "dirty": True,
        "date": "2026-11-27T01:02:03Z",
    }
    # as one copies it, all blanks included
    command = f"transformer-theory compare --data 'Größe  50% 中.npz' {' '.join(['long'] * 50)}"
    first, *others = (replace(result, provenance={**result.provenance, **shown}) for result in whole.results)
    text = definitions(together(replace(first, provenance=first.provenance | {"command": command}), *others))
    head, *blocks = text.split("\n\n")
    state = r"\(transformer_theory 0\.1\.0, commit 01234567 with uncommitted changes, 27 November 2026\)"
    labels = re.findall(rf"^% (R\d+): \S.* {state}$", head, re.MULTILINE)
    assert labels == ["R1", "R2", "R3"]
    assert command in head
    intervals = Counter()
    for block in blocks:
        about, *lines = block.strip().splitlines()
        assert all(line.startswith(r"\newcommand{\TT") for line in lines), block
        assert re.search(r" \| R\d: \S", about), about
        if about.startswith("% of all results"):
            assert {
                r"\newcommand{\TTVersion}{0.1.0} % 0.1.0",
                r"\newcommand{\TTCommit}{01234567} % 01234567",
            } <= set(lines)
        elif ": claims | " not in about:
            n, interval = re.search(
                r" \| n = (\d[\d,]*) .*?\| (95 % interval .+ to \S+|no interval)", about
            ).groups()
            assert int(n) > 0 or not any(re.search(r" % -?\d", line) for line in lines), about
            intervals[interval == "no interval"] += 1
            if low := [line for line in lines if re.search(r"% lower end of the 95 % interval of", line)]:
                assert "95 % interval" in about, low
    assert min(intervals[True], intervals[False]) > 0


def test_every_table_names_version_and_commit(whole):
    record = {"versions": {"transformer-theory": "0.1.0"}}
    results = [
        replace(result, provenance={**result.provenance, **record, "commit": 40 * str(index)})
        for index, result in enumerate(whole.results)
    ]
    made, _ = latex_folder(together(*results), appendix=True, drawn=draw([]))
    measured = "Measured with transformer_theory 0.1.0, commit 00000000, the last of 3."
    for name in ("table-column.tex", "table-page.tex", "headlines.tex"):
        text = made[name].decode()
        assert text.count(measured.replace("_", r"\_")) == text.count(r"\caption{") > 0, name
    own = {
        re.findall(r"label\{tab:tt-(.*?)\}", caption)[0]: re.findall(
            r"commit \d{8}(?:, the last of \d)?", caption
        )
        for caption in re.findall(
            r"\\caption\{.*", made["attention_svm.tex"].decode() + made["crate.tex"].decode()
        )
    }
    assert all(len(named) == 1 for named in own.values())
    # the experiment has numbers of one theory, and no claims
    assert (
        own["attention-svm-experiments"]
        == own["attention-svm-measured"]
        == ["commit 00000000, the last of 3"]
    )
    assert own["attention-svm-claims"] == own["crate-measured"] == ["commit 00000000, the last of 2"]
    assert measured.replace("_", r"\_") in markdown(together(*results))
    assert "transformer_theory 0.1.0, commit 00000000" in page(results[0])
    days = [
        replace(results[0], provenance={**results[0].provenance, "date": day, "commit": 40 * digit})
        for day, digit in (("2026-11-23", "a"), ("2026-11-25", "b"), ("2026-11-24", "c"))
    ]
    assert origins.sentence(days) == "Measured with transformer_theory 0.1.0, commit bbbbbbbb, the last of 3."
    mixed = [days[0], replace(days[1], provenance=days[1].provenance | {"dirty": True})]
    assert (
        origins.made_by(mixed)
        == "transformer_theory 0.1.0, commit bbbbbbbb, the last of 2, some with uncommitted changes"
    )
    assert origins.sentence([Result("made.up")]) == ""
    measured = {
        "crate": {"date": "2026-11-27T01:02:03Z", "commit": 40 * "e"},
        "joma": {"date": "2026-11-23", "commit": 40 * "f"},
    }
    merged = [Result("reach", {"measured": measured}, provenance={"commit": 40 * "0", "date": "2025"})]
    assert origins.commits(merged) == [8 * "e", 8 * "f"]
    assert origins.last_commit(merged) == 8 * "e"
    assert origins.made_by(merged, ("joma",)) == "transformer_theory, commit ffffffff"
    assert origins.dates(merged) == "23 November 2026 to 27 November 2026"


def named(*rows, **settings):
    result = Result("made.up", settings, Table(rows))
    return {macro.value: macro.name for macro in macros(together(result)) if macro.name != "TTTheories"}


def test_macros_of_one_name_get_the_columns_in_which_they_differ():
    crate = lambda quantity, value, **columns: Measurement("crate", "figure", quantity, value, **columns)  # noqa: E731
    assert named(crate("share, α = 0.5", 0.0)) == {0.0: "TTcrateSharAlphZeroPoinFiveUp"}
    assert named(crate("loss of 1,797 images", 0.0)) == {0.0: "TTcrateLossMDCCXCVIIImagesUp"}
    assert named(crate("q", 0.0, layer=0), crate("q", 1.0, layer=12)) == {
        0.0: "TTcrateQUpLayerZero",
        1.0: "TTcrateQUpLayerXII",
    }
    settings = named(
        crate("rate", 0.0, at={"setting": "paper form"}), crate("rate", 1.0, at={"setting": "released form"})
    )
    assert settings == {0.0: "TTcrateRateUpPaperForm", 1.0: "TTcrateRateUpReleasedForm"}
    assert named(crate("rate", 0.0), crate("rate", 1.0)) == {}  # they differ in no column
    assert named(crate("share of x", 0.0), crate("share, x", 1.0)) == {}


@pytest.mark.skipif(
    shutil.which("pdflatex") is None or shutil.which("bibtex") is None, reason="no pdflatex and bibtex here"
)
def test_a_real_latex_sets_all_of_it(folder, whole, tmp_path):
    for name, data in folder.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    registry = "\n\n".join(prose(text) for text in texts_of_the_registry())
    example = (tmp_path / "example.tex").read_text().replace("10pt,twocolumn", "10pt")
    numbers = "\n\n".join(f"number: \\{macro.name}." for macro in macros(whole)[:40])
    (tmp_path / "example.tex").write_text(
        example.replace(
            r"\bibliographystyle",
            f"\\normalsize\\sloppy\n{numbers}\n\n{registry}\n\n\\input{{appendix}}\n\\bibliographystyle",
        )
    )
    quiet = ["pdflatex", "-interaction=batchmode"]
    for command in (["pdflatex", "-interaction=nonstopmode", "-halt-on-error"], ["bibtex"], quiet, quiet):
        done = subprocess.run(
            [*command, "example"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-1500:]
    log = (tmp_path / "example.log").read_text(errors="replace").replace("\n", "")
    for word in (
        "Undefined control sequence",
        "undefined",
        "Float too large",
        "multiply defined",
        "Missing character",
    ):
        assert word not in log
    tables = log.rpartition("appendix.tex")[2]  # not the sentences of the registry, which are in no table
    assert [wide for wide in re.findall(r"Overfull \\hbox \(([\d.]+)pt", tables) if float(wide) > 3] == []
    assert 10 <= int(re.findall(r"\((\d+) pages", log)[0]) <= 4 * len(list_theories())
    if shutil.which("pdftotext"):
        shown = subprocess.run(
            ["pdftotext", "example.pdf", "-"], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        assert r"\input{/etc/passwd} 50% a_b & {c} #1" in " ".join(shown.split())
        assert "root:" not in shown
        plain = [macro.text for macro in macros(whole)[:40] if re.fullmatch(r"[\d.]+", macro.text)]
        assert len(plain) > 20
        assert all(f"number: {text}." in shown for text in plain)


DRAW = """
from transformer_theory.core.plotting import axes, heatmap, label_ends, line, pdf, style, svg
import hashlib

with style():
    figure, (left, right) = axes(1, 2)
    line(left, [0, 1, 2], [0.0, 1.0, 0.5], name="CRATE", label="$R^c$", null=0.1)
    label_ends(left)
    heatmap(right, [[0.0, 1.0], [2.0, float("nan")]], "ε")
    if __name__ == "__main__":
        drawn = svg(figure).encode()
        figure.set_layout_engine("none")
        print(hashlib.sha256(drawn + pdf(figure)).hexdigest())
"""


def test_figures_are_the_same_bytes_in_every_process(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    other = subprocess.run(
        [sys.executable, "-c", DRAW], capture_output=True, text=True, check=True
    ).stdout.strip()
    own: dict = {}
    exec(DRAW, own)
    made, shown, _ = draw([Picture("x", "x", None, lambda: own["figure"])])
    assert hashlib.sha256(made["x.svg"] + made["x.pdf"]).hexdigest() == other
    assert len(made["x.pdf"]) > 10_000
    assert made["x.pdf"].startswith(b"%PDF")
    assert b"CreationDate" not in made["x.pdf"]
    assert [picture.name for picture in shown] == ["x"]


def test_a_figure_that_cannot_be_drawn_has_a_sentence():
    def fail():
        raise KeyError("curve")

    made, shown, failed = draw(
        [Picture("x", "the title", None, fail), Picture("y", "nothing to draw", None, lambda: None)]
    )
    assert (made, shown) == ({}, [])
    assert len(failed) == 1
    assert "the title" in failed[0]
    assert "KeyError: 'curve'" in failed[0]


def test_names_with_dollars_are_no_formulas():
    name = "a$x^2^3$"
    rows = [
        in_network("network", "loss", 1.0 / (step + 1), step=step, model=model, split="validation")
        for step in range(3)
        for model in (name, r"\$\frac$")
    ]
    crate = synthetic.THEORIES[3]
    rows += [
        in_network("crate", crate.in_networks.headline, float(step), step=step, model=name, layer=0)
        for step in range(3)
    ]
    result = Result("compare", {"data": "$x^2^3$", "theories": ["crate"]}, Table(rows))
    made, _, failed = draw(pictures(together(result)))
    assert failed == []
    assert {"x-2-3-learning.svg", "x-2-3-timeline.pdf"} <= set(made)
    assert name in page(result, theories=synthetic.THEORIES)


def test_markdown_keeps_formulas_and_escapes_the_rest(whole):
    assert (
        in_markdown(r"for $|x| \le \|W\|$ & a_b | <i>")
        == r"for $\vert x\vert \le \Vert W\Vert$ &amp; a\_b \| &lt;i&gt;"
    )
    assert in_markdown("as `crate/a|b` says") == r"as `crate/a\|b` says"
    assert in_markdown(Plain("$x$ *y* [z](u)")) == r"\$x\$ \*y\* \[z\](u)"
    assert in_markdown(Code("a|b `c`")) == r"`` a\|b `c` ``"
    assert (
        in_markdown(synthetic.SVM) == "[Tarzanagh et al. (2023a), Thm. 3](https://arxiv.org/abs/2308.16898)"
    )
    made = markdown(whole, provenance(whole, ["a", "b", "c"]))
    assert "<b>" not in re.sub("`.*?`", "", made)
    for block in re.findall(r"(?:^\|.*\n)+", made, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
