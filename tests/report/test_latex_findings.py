"""The findings in LaTeX and Markdown: marks by outcome, one page in one and in two columns, names that stay names."""

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from tests.report import synthetic
from transformer_theory.core.measurement import Measurement, Null, Table
from transformer_theory.core.result import Result
from transformer_theory.core.statistics import UNTRAINED
from transformer_theory.report import aggregate
from transformer_theory.report.findings import findings
from transformer_theory.report.latex import PACKAGES, latex
from transformer_theory.report.latex_findings import itemize
from transformer_theory.report.markdown import markdown

NETWORKS = ("ViT", "CRATE (released form)", "CRATE (paper form)")
LABELS, RANDOM = (Null(kind, tuple(np.linspace(0.08, 0.16, count))) for kind, count in (("permuted labels", 199), (UNTRAINED, 19)))
VALUES = {"as predicted": 0.61234, "at chance": 0.12345, "opposite": -0.054321, "any data": 0.61234, "not tested": 0.61234}


def theories(count):
    """Copies of the synthetic theories with long titles and long names of quantities."""
    made = []
    for index in range(count):
        one = synthetic.THEORIES[index % 4]
        in_networks = replace(one.in_networks, headline=f"stable rank of the lower layer's weights {index}")
        on_data = replace(one.on_data, headline=f"rank correlation of held-out distinctness and logit change {index}")
        title = f"{one.title} {index}"
        made.append(replace(one, name=f"t{index}", title=title, claims=(), in_networks=in_networks, on_data=on_data))
    return tuple(made)


def rows(made, outcomes, networks=NETWORKS, data="digits", seeds=3):
    """Rows of every theory on raw tokens, on features and in networks; ``outcomes`` are those of the theories, in turn."""
    for index, theory in enumerate(made):
        outcome = outcomes[index % len(outcomes)]
        on_data, inside = theory.on_data.headline, theory.in_networks.headline
        for seed in range(seeds):
            value = VALUES.get(outcome)
            columns = {"data": data, "seed": seed, "side": ">=", "reason": "" if value is not None else "needs 100 % of a_b & <i>"}
            value = None if value is None else value + 0.0123 * seed * (outcome != "at chance")
            null = Null("permuted labels", (0.1,)) if outcome == "not tested" else LABELS
            more = {"scope": "any data", "on_noise": 0.5912} if outcome == "any data" else {"predicted": 1.0}
            for model in ("", *networks):
                yield Measurement(theory.name, "on data", on_data, value, model=model, null=null, unit="share", **more, **columns)
            for model in networks:
                null = replace(null, kind=UNTRAINED, draws=null.draws[:1]) if outcome == "not tested" else RANDOM
                yield Measurement(theory.name, "in network", inside, value, model=model, null=null, scope="training", **columns)


def compared(count=5, outcomes=tuple(VALUES), **columns):
    made = theories(count)
    table = Table(rows(made, outcomes, **columns))
    return Result("compare", {"data": columns.get("data", "digits"), "theories": [one.name for one in made]}, table), made


def found(result, made):
    return findings(aggregate(result, theories=made))


def cells(text, label):
    """The cells of the first row with this label."""
    (row, *_) = re.findall(rf"^{re.escape(label)} & (.*) \\\\$", text, re.MULTILINE)
    return row.split(" & ")


def test_cells_are_marked_by_their_outcome():
    result, made = compared()
    outcomes = [one.outcome for one in found(result, made).all if one.view == "raw tokens"]
    assert outcomes == list(VALUES)
    predicted, chance, opposite, any_data, untested = cells(latex(result, theories=made), "raw tokens")
    assert predicted.startswith(r"\textbf{62.5~\%}\newline [")
    assert r"$p$~=~.005, $A$~=~" in predicted
    assert r"null~12.0~\%" in predicted
    assert chance == r"\TTchance{12.3~\%}\newline \TTchance{null~12.0~\%, $p$~=~.46, $A$~=~0.0039}"
    assert opposite.startswith(r"\ensuremath{-}4.2~\%$^\dagger$\newline [")
    assert any_data.startswith(r"62.5~\%$^\circ$\newline [")
    assert r"noise~59.1~\%" in any_data
    assert "$p$" not in any_data
    assert untested.startswith(r"62.5~\%\textsuperscript{a}\newline [")


def test_reasons_are_listed_once_below_the_table():
    result, made = compared(2, ("not measured",))
    text = latex(result, theories=made)
    assert cells(text, "raw tokens") == [r"--\textsuperscript{a}"] * 2
    assert text.count(r"\textsuperscript{a}~needs 100 \% of a\_b \& \textless{}i\textgreater{}") == 1
    assert r"\textsuperscript{b}" not in text


def test_the_caption_is_short_and_a_long_table_drops_features():
    result, made = compared(4, networks=("ViT",))
    caption = re.search(r"\\caption\{(.*)\}\\label", latex(result, theories=made))[1]
    assert len(caption.split()) <= 45
    assert "mean over 3 seeds" in caption
    assert "Features" not in latex(result, theories=made)
    larger, made = compared(5)
    text = latex(larger, theories=made)
    assert "Features: value and interval only." in text
    assert "$p$" in cells(text, "raw tokens")[0]
    assert "$p$" not in cells(text, "features of ViT")[0]
    largest, made = compared(6)
    text = latex(largest, theories=made)
    assert "Features are omitted." in text
    assert "features of ViT" not in text
    assert text.count(r"\begin{tabular}") == text.count(r"\begin{table*}") == 1
    wide, made = compared(12, networks=())
    text = latex(wide, theories=made)
    assert text.count(r"\begin{tabular}") == 2  # one below the other
    assert text.count(r"\begin{table*}") == 1


HOSTILE = r"\input{/etc/passwd} 50% a_b & {c} #1 $\write18{x}$ a$x^2^3$"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here")
@pytest.mark.parametrize("layout", ["", "twocolumn", "11pt"])
@pytest.mark.parametrize(
    ("count", "networks", "data", "pages"),
    [(5, NETWORKS, "digits", 1), (6, NETWORKS, "digits", 1), (5, ("ViT", HOSTILE), HOSTILE, 1), (12, NETWORKS, "digits", 2)],
    ids=["five", "six", "hostile", "twelve"],
)
def test_the_table_takes_one_page_in_one_and_in_two_columns(tmp_path, layout, count, networks, data, pages):
    result, made = compared(count, (*VALUES, "not measured"), networks=networks, data=data)
    (tmp_path / "all.tex").write_text(latex(result, theories=made))
    (tmp_path / "findings.tex").write_text(itemize(found(result, made)))
    head = rf"\documentclass[{layout}]{{article}}\usepackage[T1]{{fontenc}}\usepackage{{lmodern}}\usepackage{{{','.join(PACKAGES)}}}"
    for name, body in (("table", r"\input{all}"), ("list", r"\input{findings}")):
        (tmp_path / f"{name}.tex").write_text(f"{head}\\begin{{document}}\n{body}\n\\end{{document}}\n")
        done = subprocess.run(
            ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", name], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-1500:]
    log = (tmp_path / "table.log").read_text(errors="replace").replace("\n", "")
    assert int(re.search(r"\((\d+) pages?,", log)[1]) == pages
    assert "Float too large" not in log
    assert [wide for wide in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log) if float(wide) > 2] == []
    assert r"\tiny" not in (tmp_path / "all.tex").read_text()
    if shutil.which("pdftotext"):
        shown = subprocess.run(["pdftotext", "list.pdf", "-"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert "root:" not in shown
        assert re.sub(r"\s|-", "", data) in re.sub(r"\s|-", "", shown)


def test_markdown_begins_with_the_sentences_and_the_matrix():
    result, made = compared()
    text = markdown(aggregate(result, theories=made))
    head, *blocks = text.split("\n\n")
    assert head == "# Results"
    assert blocks[0].count("\n- ") == 4
    assert blocks[0].startswith(f"- {made[0].title}")
    lines = blocks[1].splitlines()
    assert lines[0].startswith("| theory | raw tokens | features of ViT | ")
    assert len(lines) == 2 + len(made)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {9}
    cells = [line.split(" | ")[1] for line in lines[2:]]
    assert cells[0].startswith("**62.5")
    assert cells[1].startswith("≈ 12.3")
    assert cells[2].partition("<br>")[0].endswith("↓")
    assert "noise 59.1" in cells[3]
    assert "draw" in cells[4]  # the reason
    assert "15 tests" not in blocks[2]
    assert f"{found(result, made).tests} tests" in blocks[2]
