"""LaTeX, Markdown and macros: nothing of the data becomes a command, and a real LaTeX sets all of it."""

import hashlib
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.report import synthetic
from transformer_theory.core.measurement import Row
from transformer_theory.core.result import Result
from transformer_theory.core.sources import entries
from transformer_theory.report import latex_folder, page
from transformer_theory.report.latex import floats, latex
from transformer_theory.report.latex import text as in_latex
from transformer_theory.report.latex_folder import names
from transformer_theory.report.latex_text import escape, prose
from transformer_theory.report.macros import macros
from transformer_theory.report.markdown import markdown
from transformer_theory.report.markdown import text as in_markdown
from transformer_theory.report.mathematics import FONTS, ONE, OPERATORS, SIGNS, SIZES, SYMBOLS, TEXT, TWO, is_mathematics
from transformer_theory.report.merged import merged
from transformer_theory.report.pictures import Picture, files, pictures
from transformer_theory.report.tables import Code, Plain, of_theory, overall, provenance
from transformer_theory.theories import THEORIES

EVIL = r"\input{/etc/passwd} 50% a_b & {c} #1 $\write18{x}$ ^~ | --x Żółć Δ 数 <b>"
EXPERIMENT = "attention_svm.made_up"


@pytest.fixture(scope="module")
def together():
    """Two runs of a comparison, an experiment with many rows, and names with all that LaTeX takes for a command."""
    whole = synthetic.result(data=EVIL)
    runs = [
        replace(whole, arrays={}, params={**whole.params, "seed": seed}, provenance={**whole.provenance, "command": EVIL})
        for seed in (0, 1)
    ]
    quantity = "share of $x_i$ with |p_mm|^2 > 1e-07 & 5 % of ΔR, $\\input{/etc/passwd}$"
    rows = [
        Row(theory="attention_svm", quantity=quantity, value=0.1 * i, step=i, predicted=0.5, source=str(synthetic.SVM)) for i in range(60)
    ]
    rows[0] |= {"note": "[a bracket] at the start of a line * and a star"}
    experiment = Result(EXPERIMENT, {"eta": 0.5, "names": ["a", "b"]}, rows)
    return merged([*runs, experiment], theories=synthetic.THEORIES)


@pytest.fixture(scope="module")
def folder(together):
    with pytest.MonkeyPatch.context() as patch:  # some figures are enough here
        patch.setattr(sys.modules[latex_folder.__module__], "pictures", lambda merged: pictures(merged)[:2])
        made, failed = latex_folder(together, folders=[EVIL, "runs/b", "runs/c"], checksums=[{"result.json": "0f" * 32}] * 3)
    assert failed == []
    return made


def test_latex_escapes_every_special_character():
    assert escape(r"50% of a_b & {c} #1 $x ~ ^ \cmd") == (
        r"50\% of a\_b \& \{c\} \#1 \$x \textasciitilde{} \textasciicircum{} \textbackslash{}cmd"
    )
    assert escape("1.20·10⁻¹³ → ≥ 0 — ΔR") == (
        r"1.20\ensuremath{\cdot}10\ensuremath{^{-13}} \ensuremath{\to} \ensuremath{\ge} 0 -- \ensuremath{\Delta R}"
    )
    assert escape("café Ł ő λ Σ Α 数 \x1b[0m\u202e\n`--x`") == (
        r"caf\'{e} \L{} \H{o} \ensuremath{\lambda} \ensuremath{\Sigma} A \texttt{U+6570} [0m \textasciigrave{}-{}-x\textasciigrave{}"
    )


@pytest.mark.parametrize(
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
        "x^2^3",
        "x_1'_2",
        "x^2'",
        "x_",
        r"\left( x",
        r"x \right)",
        r"{\left(} x \right)",
        r"\left\alpha x \right)",
        r"a \middle| b",
        r"\frac",
        r"\frac{a}",
        r"\sqrt",
        r"\sqrt[3",
        r"\hat\mathcal F",
        r"x^\sqrt{2}",
        r"x_\log",
        r"\text{a_b}",
        r"\text{\alpha}",
        r"\textbf",
        r"x \limits",
        "{" * 200 + "}" * 200,
    ],
)
def test_what_latex_could_not_set_as_a_formula_is_text(formula):
    assert not is_mathematics(formula)
    assert prose(f"see ${formula}$ here") == f"see {escape(f'${formula}$')} here"


def test_formulas_stay_and_dollars_are_dollars():
    assert prose(r"$\lVert W \rVert_F \ge 1$ costs \$5, 5%") == r"$\lVert W \rVert_F \ge 1$ costs \$5, 5\%"
    assert prose("$Δ ≥ 0$ of eps^2") == r"${\Delta} {\ge} 0$ of $\varepsilon^2$"
    assert prose("as `crate/a_b` says, `") == r"as \texttt{crate/a\_b} says, \textasciigrave{}"
    assert in_latex(Plain("a_i $x$")) == r"a\_i \$x\$"


def texts_of_the_registry():
    for theory in THEORIES:
        yield from (theory.title, theory.question, theory.statement, *theory.assumptions)
        for claim in theory.claims:
            yield from (claim.statement, claim.control_says, claim.corrects, *claim.assumptions)


def test_all_formulas_of_the_registry_are_known_mathematics():
    formulas = [found for text in texts_of_the_registry() for found in re.findall(r"(?<!\\)\$\$?(.+?)(?<!\\)\$\$?", text, re.DOTALL)]
    assert len(formulas) > 300
    assert [formula for formula in formulas if not is_mathematics(" ".join(formula.split()))] == []


def test_theories_of_like_names_have_files_and_labels_of_their_own():
    rows = [Row(theory=name, quantity="x", value=1.0) for name in ("my theory", "my-theory", "macros")]
    like = merged([Result("compare", {"data": "d"}, rows)])
    made, _ = latex_folder(like, drawn=files([]))
    assert {"my-theory.tex", "my-theory-2.tex", "theory-macros.tex", "macros.tex"} <= set(made)
    assert set(made) == {name for name in names(like) if not name.startswith("figures/")}
    labels = re.findall(r"\\label\{(.*?)\}", b"".join(made.values()).decode())
    assert len(labels) == len(set(labels)) > 4
    assert made["example.tex"].count(rb"\input{my-theory") == 2


def test_every_table_has_whole_rows_and_known_keys(folder):
    tables = {name: text.decode() for name, text in folder.items() if name.endswith(".tex") and name not in ("macros.tex", "example.tex")}
    assert set(tables) == {"all.tex", "appendix.tex", "networks.tex", *(f"{theory.name}.tex" for theory in synthetic.THEORIES)}
    cited = set()
    for text in tables.values():
        assert text.isascii()
        for part in re.split(r"(?=\\begin\{(?:longtable|tabular)\})", text)[1:]:
            columns = part.splitlines()[0].count("p{")
            rows = [
                line for line in part.splitlines() if line.endswith((r"\\", r"\\*")) and not line.startswith((r"\TTacross", r"\caption"))
            ]
            assert rows
            assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {columns - 1}
        cited |= set(re.findall(r"\\cite(?:\[[^]]*\])?\{([^}]*)\}", text))
    assert cited == {"tarzanagh2023transformers", "tian2023scan", "yu2020learning", "yu2023white"} <= set(entries())
    assert all(f"{{{key}," in folder["references.bib"].decode() for key in cited)


def test_one_comparison_has_the_same_table_beside_it(compared, theories):
    assert latex(compared, theories=theories) == floats(overall(merged([compared], theories=theories)))


def test_verifications_alone_are_a_line_a_theory(compared, theories):
    claims = [row for row in compared.table if row["quantity"].startswith("claim")]
    table = overall(merged([Result("verify", {"seeds": 3}, claims)], theories=theories))
    told = {line.cells[0]: line.cells[1:] for block in table.blocks for line in block.lines}
    assert told[theories[0].title] == ("2", "2", "3", "2")
    assert list(told) == [theory.title for theory in theories if theory.claims]


def test_a_published_number_is_told_as_such():
    shown = [
        Row(theory="crate", quantity=basis, value=0.5, predicted=0.25, basis=basis) for basis in ("theory", "limit", "printed", "figure")
    ]
    (table,) = of_theory(merged([Result("made.up", {}, shown)], theories=synthetic.THEORIES), synthetic.THEORIES[3])
    told = [line.cells[1].replace("\u00a0", " ") for line in table.blocks[0].lines]
    assert told == ["→ 0.250", "→ 0.250", "0.250, printed", "0.250, read off a figure"]


def test_macros_are_letters_unique_and_stable(together):
    found = macros(together)
    names = [macro.name for macro in found]
    assert len(names) == len(set(names)) > 200
    assert all(re.fullmatch("TT[A-Za-z]+", name) for name in names)
    of = {macro.name: macro.told for macro in found}
    assert of["TTattnsvmGlobalDirection"] == "1"
    assert of["TTattnsvmGlobalDirectionConsistent"] == "3"
    assert of["TTattnsvmClaims"] == "2"
    assert {macro.name for macro in macros(merged(together.results[:1], theories=synthetic.THEORIES))} < set(names)


def test_a_name_for_two_numbers_is_a_name_for_none():
    def measured(*quantities):
        rows = [Row(theory="crate", quantity=quantity, value=float(i)) for i, quantity in enumerate(quantities)]
        return {macro.value: macro.name for macro in macros(merged([Result("made.up", {}, rows)], theories=synthetic.THEORIES))}

    assert measured("share of α = 0.5 at step 12") == {0.0: "TTcrateShareAlphaZeroPointFiveStepOneTwoMadeUp"}
    both = measured("share of x", "share, x")
    assert all(re.fullmatch("TTcrateShareXMadeUpX[a-z]{5}", name) for name in both.values())
    assert len(set(both.values())) == 2
    turned = measured("share, x", "share of x")
    assert (turned[0.0], turned[1.0]) == (both[1.0], both[0.0])  # a name goes with what the number is, not with the order


def mathematics():
    """Every command that may stand in a formula, in every place where it may."""
    yield from (r"\sqrt[3]{x}", r"\left(\frac{a}{b}\right)^2_i", "x''^{2}_3", r"\operatorname*{arg\,max}_x f", r"a_\frac12", "_2F_1", "x^Δ")
    yield from (r"\left.x\middle|y\right\}", r"\text{a\_b \& c, 5\%}", r"\sum\limits_i^n", r"x_\text{max}^\top", "x²", r"\hat é", "x'^2")
    yield from (f"{command} {{}}_a" for command in OPERATORS | SYMBOLS)
    yield from (f"a^{command}_{command} b" for command in SIGNS)
    yield from (f"a_{command}{{B}} {command} X {command}{{A_B}}" for command in FONTS)  # some have no small letters
    yield from (f"{command}{what}" for command in ONE - FONTS for what in ("{a_b}", " x", r"\theta"))
    yield from (f"{command}{what}{what}" for command in TWO for what in ("{a_b}", " x", r"\theta"))
    yield from (f"a{script}{command}{{b c}}" for command in TEXT for script in ("", "_"))
    yield from (f"{size}| x {size}\\rangle" for size in SIZES)


@pytest.mark.skipif(shutil.which("pdflatex") is None or shutil.which("bibtex") is None, reason="no pdflatex and bibtex here")
def test_a_real_latex_sets_all_of_it(folder, together, tmp_path):
    for name, data in folder.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert [formula for formula in mathematics() if not is_mathematics(formula)] == []
    every = " ".join(f"${formula}$" for formula in sorted(mathematics()))
    registry = "\n\n".join(prose(text) for text in (*texts_of_the_registry(), every))
    example = (tmp_path / "example.tex").read_text()
    numbers = "\n\n".join(f"number: \\{macro.name}." for macro in macros(together)[:40])
    (tmp_path / "example.tex").write_text(example.replace(r"\bibliographystyle", f"{numbers}\n\n{registry}\n\n\\bibliographystyle"))
    quiet = ["pdflatex", "-interaction=batchmode"]
    for command in (["pdflatex", "-interaction=nonstopmode", "-halt-on-error"], ["bibtex"], quiet, quiet):
        done = subprocess.run([*command, "example"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-1500:]
    log = (tmp_path / "example.log").read_text(errors="replace").replace("\n", "")
    for word in ("Undefined control sequence", "undefined", "Float too large", "multiply defined", "Missing character"):
        assert word not in log
    tables = log.partition("appendix.tex")[0]  # not the sentences of the registry, which no table has room for
    assert [wide for wide in re.findall(r"Overfull \\hbox \(([\d.]+)pt", tables) if float(wide) > 3] == []
    assert 10 <= int(re.findall(r"\((\d+) pages", log)[0]) <= 40
    if shutil.which("pdftotext"):
        shown = subprocess.run(["pdftotext", "example.pdf", "-"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert r"\input{/etc/passwd} 50% a_b & {c} #1" in " ".join(shown.split())
        assert "root:" not in shown
        plain = [macro.told for macro in macros(together)[:40] if re.fullmatch(r"[\d.]+", macro.told)]
        assert len(plain) > 20
        assert all(f"number: {told}." in shown for told in plain)


DRAW = """
from transformer_theory.core.plotting import axes, heatmap, label_ends, line, pdf, svg
import hashlib

figure, (left, right) = axes(1, 2)
line(left, [0, 1, 2], [0.0, 1.0, 0.5], name="crate", label="$R^c$", null=0.1)
label_ends(left)
heatmap(right, [[0.0, 1.0], [2.0, float("nan")]], "ε")
if __name__ == "__main__":
    drawn = svg(figure).encode()
    figure.set_layout_engine("none")
    print(hashlib.sha256(drawn + pdf(figure)).hexdigest())
"""


def test_figures_are_the_same_bytes_in_every_process(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    other = subprocess.run([sys.executable, "-c", DRAW], capture_output=True, text=True, check=True).stdout.strip()
    here: dict = {}
    exec(DRAW, here)
    made, shown, _ = files([Picture("x", "x", None, lambda: here["figure"])])
    assert hashlib.sha256(made["x.svg"] + made["x.pdf"]).hexdigest() == other
    assert len(made["x.pdf"]) > 10_000
    assert made["x.pdf"].startswith(b"%PDF")
    assert b"CreationDate" not in made["x.pdf"]
    assert [picture.name for picture in shown] == ["x"]


def test_a_figure_that_cannot_be_drawn_is_said():
    def fail():
        raise KeyError("curve")

    made, shown, failed = files([Picture("x", "the title", None, fail), Picture("y", "nothing to draw", None, lambda: None)])
    assert (made, shown, failed) == ({}, [], ["the title could not be drawn (KeyError: 'curve')"])


def test_names_with_dollars_are_no_formulas():
    rows = [
        Row(theory="network", quantity="loss", value=1.0 / (step + 1), step=step, model=model)
        for step in range(3)
        for model in ("a$x^2^3$", r"\$\frac$")
    ]
    order = next(theory.order_parameter for theory in THEORIES if theory.name == "crate")
    rows += [Row(theory="crate", quantity=order, value=float(step), null=0.0, step=step, model="a$x^2^3$", layer=0) for step in range(3)]
    result = Result("compare", {"data": "$x^2^3$", "theories": ["crate"], "models": {"a$x^2^3$": {}}}, rows)
    made, _, failed = files(pictures(merged([result])))
    assert failed == []
    assert {"x-2-3-learning.svg", "x-2-3-timeline.pdf"} <= set(made)
    assert "a$x^2^3$" in page(result)


def test_markdown_keeps_formulas_and_escapes_the_rest(together):
    assert in_markdown(r"for $|x| \le \|W\|$ & a_b | <i>") == r"for $\vert x\vert \le \Vert W\Vert$ &amp; $a_b$ \| &lt;i&gt;"
    assert in_markdown("as `crate/a|b` says") == r"as `crate/a\|b` says"
    assert in_markdown(Plain("$x$ *y* [z](u)")) == r"\$x\$ \*y\* \[z\](u)"
    assert in_markdown(Code("a|b `c`")) == r"`` a\|b `c` ``"
    assert in_markdown(synthetic.SVM) == "[Tarzanagh et al. (2023a), Thm. 3](https://arxiv.org/abs/2308.16898)"
    made = markdown(together, provenance(together, ["a", "b", "c"]))
    assert "<b>" not in re.sub("`.*?`", "", made)
    for block in re.findall(r"(?:^\|.*\n)+", made, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
