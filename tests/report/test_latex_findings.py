"""The findings in LaTeX and Markdown: marks by outcome, a row per theory, one page in one and in two columns,
names that stay names.
"""

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from tests.report import synthetic
from transformer_theory.core.measurement import Measurement, Null, Table
from transformer_theory.core.result import Result
from transformer_theory.core.sources import entries
from transformer_theory.core.statistics import UNTRAINED
from transformer_theory.report import aggregate
from transformer_theory.report.findings import findings
from transformer_theory.report.latex import PACKAGES, latex
from transformer_theory.report.latex_findings import ABSENT, MAX_REASON, brief, itemize
from transformer_theory.report.markdown import markdown
from transformer_theory.report.math_text import prose
from transformer_theory.theories import list_theories

NETWORKS = ("ViT", "CRATE (released form)", "CRATE (paper form)")
LABELS, RANDOM = (
    Null(kind, tuple(np.linspace(0.08, 0.16, count)))
    for kind, count in (("permuted labels", 199), (UNTRAINED, 19))
)
VALUES = {
    "as predicted": 0.61234,
    "at chance": 0.12345,
    "opposite": -0.054321,
    "any data": 0.61234,
    "not tested": 0.61234,
}


def theories(count):
    """Copies of the synthetic theories with long titles and long names of quantities."""
    made = []
    for index in range(count):
        one = synthetic.THEORIES[index % 4]
        in_networks = replace(one.in_networks, headline=f"stable rank of the lower layer's weights {index}")
        on_data = replace(
            one.on_data, headline=f"rank correlation of held-out distinctness and logit change {index}"
        )
        title = f"{one.title} {index}"
        made.append(
            replace(one, name=f"t{index}", title=title, claims=(), in_networks=in_networks, on_data=on_data)
        )
    return tuple(made)


def rows(made, outcomes, networks=NETWORKS, data="digits", seeds=3):
    """Rows of every theory on raw tokens, on features and in networks; ``outcomes`` are those of the
    theories, in turn.
    """
    for index, theory in enumerate(made):
        outcome = outcomes[index % len(outcomes)]
        on_data, inside = (part.headline if part else "" for part in (theory.on_data, theory.in_networks))
        for seed in range(seeds):
            value = VALUES.get(outcome)
            columns = {
                "data": data,
                "seed": seed,
                "side": ">=",
                "reason": "" if value is not None else "needs 100 % of a_b & <i>",
            }
            value = None if value is None else value + 0.0123 * seed * (outcome != "at chance")
            null = Null("permuted labels", (0.1,)) if outcome == "not tested" else LABELS
            more = {"scope": "any data", "on_noise": 0.5912} if outcome == "any data" else {"predicted": 1.0}
            for model in ("", *networks) if on_data else ():
                yield Measurement(
                    theory.name,
                    "on data",
                    on_data,
                    value,
                    model=model,
                    nulls=(null,),
                    unit="share",
                    **more,
                    **columns,
                )
            for model in networks if inside else ():
                null = (
                    replace(null, kind=UNTRAINED, draws=null.draws[:1]) if outcome == "not tested" else RANDOM
                )
                yield Measurement(
                    theory.name,
                    "in network",
                    inside,
                    value,
                    model=model,
                    nulls=(null,),
                    scope="training",
                    **columns,
                )


MADE = {"machine": "Linux x86_64, 2 cores", "versions": {"transformer-theory": "0.1.0"}, "commit": 40 * "a"}


def compared(count=5, outcomes=tuple(VALUES), made=None, **columns):
    made = theories(count) if made is None else made
    settings = {"data": columns.get("data", "digits"), "n": 1797, "theories": [one.name for one in made]}
    return Result("compare", settings, Table(rows(made, outcomes, **columns)), provenance=MADE), made


def found(result, made):
    return findings(aggregate(result, theories=made))


def cells(text, headline):
    """The cells of the rows with this headline: a list per row."""
    lines = re.findall(rf"^{re.escape(prose(headline))}\d* & (.*) \\\\$", text, re.MULTILINE)
    assert lines
    return [line.split(" & ") for line in lines]


ON_DATA, INSIDE = (
    "rank correlation of held-out distinctness and logit change ",
    "stable rank of the lower layer's weights ",
)


def test_cells_are_marked_by_their_outcome():
    result, made = compared()
    outcomes = [one.outcome for one in found(result, made).all if one.view == "raw tokens"]
    assert outcomes == list(VALUES)
    text = latex(result, theories=made)
    predicted, chance, opposite, any_data, untested = [
        row[0].removeprefix(r"\TTwide{3}{")[:-1] for row in cells(text, ON_DATA)
    ]
    assert predicted.startswith(r"\textbf{62.5~\%} [")
    assert r"null~12.0~\%, $p$~=~.005" in predicted
    assert chance == r"\TTchance{12.3~\%, null~12.0~\%, $p$~=~.46}"
    assert opposite.startswith(r"\ensuremath{-}4.2~\%$^\dagger$ [")
    assert any_data.startswith(r"62.5~\%$^\circ$ [")
    assert r"noise~59.1~\%" in any_data
    assert "$p$" not in any_data
    assert untested.startswith(r"62.5~\%\textsuperscript{a} [")
    assert "$p$" not in untested
    in_networks = cells(text, INSIDE)
    assert [len(row) for row in in_networks] == [len(NETWORKS)] * 5
    assert re.fullmatch(r"\\textbf\{0\.62\d*\} \(0\.1\d*\)", in_networks[0][0])
    largest = max(
        one.row.p
        for one in found(result, made).all
        if one.view == "network" and one.outcome == "changed as predicted"
    )
    assert rf"in networks $p \le$ {largest:.1g}".replace(" 0.", " .") in text


def test_reasons_are_short_and_listed_once():
    result, made = compared(2, ("not measured",))
    text = latex(result, theories=made)
    reason = r"needs 100 \% of a\_b \& \textless{}i\textgreater{}"
    assert cells(text, ON_DATA) == [[rf"\TTwide{{3}}{{-- ({reason})}}"]] * 2
    assert cells(text, INSIDE) == [[r"--\textsuperscript{a}"] * 3] * 2
    assert text.count(rf"\textsuperscript{{a}}~{reason}") == 1
    assert r"\textsuperscript{b}" not in text
    assert brief("no value: the loss diverged; see the note") == "no value: the loss diverged"
    assert brief("needs a single common token, got 32") == "needs a single common token, got 32"
    assert len(brief("word " * 40)) <= MAX_REASON


def test_every_theory_has_a_row_and_a_citation():
    made = tuple(list_theories())
    result, _ = compared(made=made)
    none = replace(result, table=Table(row for row in result.table if row.theory not in ("crate", "turing")))
    for shown in (result, none):
        text = latex(shown, theories=made)
        absent = "".join(re.findall(rf"^\\multicolumn.*\{{{ABSENT}: (.*)\}} \\\\$", text, re.MULTILINE))
        titles = re.findall(r"^([^%&{}\\]+)~\\cite\{(.+)\} &$", text, re.MULTILINE)
        others = re.findall(r"(?:^|; )([^;]+?)~\\cite\{(.+?)\}", absent)
        without = {
            theory.name for theory in made if not any(row.theory == theory.name for row in shown.table)
        }
        names = {theory.title.partition(":")[0]: theory for theory in made}
        assert {names[title].name for title, _ in others} == without
        assert [names[title].name for title, _ in titles] == [
            theory.name for theory in made if theory.name not in without
        ]
        for title, key in (*titles, *others):
            assert key == names[title].sources[0].key
            assert key in entries()
    assert len(without) >= 2


def test_the_caption_is_short_and_has_what_all_cells_share():
    result, made = compared(4)
    caption = re.search(r"\\caption\{(.*)\}\\label", latex(result, theories=made))[1]
    assert len(caption.split()) <= 45
    for shared in (
        "digits",
        "$n=1797$",
        "mean over 3 seeds",
        r"Linux x86\_64, 2 cores",
        "untrained networks",
        "0.1.0",
        "aaaaaaaa",
    ):
        assert shared in caption
    assert "permuted labels" in caption
    bare, made = compared(2, ("as predicted",), networks=(), seeds=1)
    text = latex(replace(bare, provenance={}, settings={"data": "digits"}), theories=made)
    caption = re.search(r"\\caption\{(.*)\}\\label", text)[1]
    assert not {"untrained", "Measured", "seeds", "$n"} & set(caption.replace("=", " ").split())
    assert cells(text, ON_DATA)[0][0].startswith(r"\TTwide{1}{")


def test_several_data_sets_have_a_row_each():
    (first, made), (second, _) = compared(2), compared(2, data="other")
    text = latex([first, second], theories=made)
    assert text.count(r"weights 0, digits & ") == text.count(r"weights 0, other & ") == 1
    assert text.count(r"\TTwide{3}") == 4


HOSTILE = r"\input{/etc/passwd} 50% a_b & {c} #1 $\write18{x}$ a$x^2^3$"


def typeset(folder, name, body, layout):
    """Sets a document with this body by pdflatex."""
    head = rf"\documentclass[{layout}]{{article}}\usepackage[T1]{{fontenc}}\usepackage{{lmodern}}\usepackage{{{','.join(PACKAGES)}}}"
    (folder / f"{name}.tex").write_text(f"{head}\\begin{{document}}\n{body}\n\\end{{document}}\n")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1500:]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here")
@pytest.mark.parametrize("layout", ["", "a4paper", "twocolumn", "a4paper,twocolumn", "11pt"])
@pytest.mark.parametrize(
    ("made", "networks", "data", "pages"),
    [
        (None, NETWORKS, "digits", 1),
        (theories(5), ("ViT", HOSTILE), HOSTILE, 1),
        (theories(40), NETWORKS, "digits", None),
    ],
    ids=["all theories", "hostile", "forty"],
)
def test_the_table_takes_one_page_in_one_and_in_two_columns(tmp_path, layout, made, networks, data, pages):
    outcomes, columns = (*VALUES, "not measured"), {"networks": networks, "data": data}
    if made is None:  # as in a comparison on images: two theories need other data
        result, made = compared(made=tuple(list_theories()), outcomes=outcomes, **columns)
        result = replace(
            result,
            table=Table(
                row for row in result.table if row.theory not in ("graph_tokens", "chain_of_thought")
            ),
        )
    else:
        result, made = compared(made=made, outcomes=outcomes, **columns)
    (tmp_path / "all.tex").write_text(latex(result, theories=made))
    typeset(tmp_path, "table", r"\input{all}", layout)
    log = (tmp_path / "table.log").read_text(errors="replace").replace("\n", "")
    text = (tmp_path / "all.tex").read_text()
    assert int(re.search(r"\((\d+) pages?,", log)[1]) == text.count(r"\begin{table*}")
    assert text.count(r"\begin{table*}") == pages or (pages is None and text.count(r"\begin{table*}") > 1)
    assert "Float too large" not in log
    assert [wide for wide in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log) if float(wide) > 2] == []
    assert r"\tiny" not in text
    if not layout:  # the list is set in lines of any width
        (tmp_path / "findings.tex").write_text(itemize(found(result, made)))
        typeset(tmp_path, "list", r"\input{findings}", layout)
        if shutil.which("pdftotext"):
            shown = subprocess.run(
                ["pdftotext", "list.pdf", "-"], cwd=tmp_path, capture_output=True, text=True, check=True
            ).stdout
            assert "root:" not in shown
            assert re.sub(r"\s|-", "", data) in re.sub(r"\s|-", "", shown)


def test_markdown_begins_with_the_sentences_and_the_matrix():
    result, made = compared()
    text = markdown(aggregate(replace(result, provenance={}), theories=made))
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
