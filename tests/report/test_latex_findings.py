"""The findings in LaTeX and Markdown: a line per headline with its outcome, a block per theory, floats that
fit on a page in one and in two columns, names that stay names.
"""

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from tests.report import synthetic
from transformer_theory.comparison.judged import findings
from transformer_theory.core.math_text import prose
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.sources import entries
from transformer_theory.core.statistics import UNTRAINED
from transformer_theory.core.table import Table
from transformer_theory.report import aggregate
from transformer_theory.report.md import markdown
from transformer_theory.report.tex import PACKAGES, itemize, latex
from transformer_theory.theories import list_theories

NETWORKS = ("ViT", "CRATE (released form)", "CRATE (paper form)")
LABELS, RANDOM = (
    Null(kind, tuple(np.linspace(0.08, 0.16, count)))
    for kind, count in (("permuted labels", 199), (UNTRAINED, 19))
)
VALUES = {
    "as predicted": 0.61234,
    "not significant": 0.12345,
    "opposite": -0.054321,
    "any data": 0.61234,
    "too few draws": 0.61234,
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
            value = None if value is None else value + 0.0123 * seed * (outcome != "not significant")
            null = Null("permuted labels", (0.1,)) if outcome == "too few draws" else LABELS
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
                    replace(null, kind=UNTRAINED, draws=null.draws[:1])
                    if outcome == "too few draws"
                    else RANDOM
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


ON_DATA, INSIDE = (
    "rank correlation of held-out distinctness and logit change ",
    "stable rank of the lower layer's weights ",
)


def lines(text, headline):
    """The first line of the table for each headline with this name: lists of cells."""
    starts = [line for line in text.splitlines() if rf"\newline{{\scriptsize {prose(headline)}" in line]
    starts = [line for line in starts if line.endswith(r" \\")]
    assert starts
    return [line.removesuffix(r" \\").split(" & ") for line in starts]


def test_lines_say_value_null_p_and_outcome():
    result, made = compared()
    judged = [one.judged for one in found(result, made).all if one.view == "raw tokens"]
    assert [one.outcome for one in judged] == [
        "as predicted",
        "not significant",
        "opposite",
        "not tested",
        "too few draws",
    ]
    predicted, chance, opposite, any_data, few = lines(latex(result, theories=made), ON_DATA)
    assert predicted[0].startswith(r"raw tokens\newline{")
    assert predicted[1].startswith(r"62.5~\%\newline{\scriptsize [")
    assert predicted[2] == r"100.00~\%"
    assert predicted[3].startswith(r"12.0~\%\newline{\scriptsize permuted labels, 8.0~\%")
    assert predicted[5].startswith(".005 (.0")
    assert predicted[6] == "as predicted"
    assert chance[1] == r"12.35~\%\newline{\scriptsize 3 seeds}"
    assert chance[6] == "not significant"
    assert opposite[1].startswith(r"\ensuremath{-}4.2~\%")
    assert opposite[6] == "opposite"
    assert r"on noise 59.1~\%" in any_data[3]
    assert "(" not in any_data[5]
    assert any_data[6] == r"not tested\newline{\scriptsize any data}"
    assert few[5] == ""
    assert few[6].startswith(r"too few draws\newline{\scriptsize no p-value: all draws of the null are equal")
    in_networks = lines(latex(result, theories=made), INSIDE)
    assert len(in_networks) == len(made)
    assert in_networks[0][0].startswith(r"trained ViT\newline{")
    assert in_networks[0][6] == r"as predicted\newline{\scriptsize training}"


def test_reasons_stand_in_their_lines():
    result, made = compared(2, ("not measured",))
    text = latex(result, theories=made)
    reason = r"needs 100 \% of a\_b \& \textless{}i\textgreater{}"
    assert text.count(rf"not measured\newline{{\scriptsize {reason}}} \\") == len(result.table) / 3  # seeds


def test_every_theory_has_a_block_and_a_citation():
    made = tuple(list_theories())
    result, _ = compared(made=made)
    none = replace(result, table=Table(row for row in result.table if row.theory not in ("crate", "turing")))
    titles = {prose(theory.title): theory for theory in made}
    for shown in (result, none):
        text = latex(shown, theories=made)
        absent = "".join(re.findall(r"Not measured on these data: (.*)\} \\\\", text))
        blocks = re.findall(r"\\textbf\{([^{}]+)\}~\\cite(?:\[.*?\])?\{(.+?)\}", text)
        others = re.findall(r"(?:^|; )(.+?)~\\cite(?:\[.*?\])?\{(.+?)\}", absent)
        measured = {row.theory for row in shown.table}
        # a block that continues on the next page repeats its title
        assert list(dict.fromkeys(titles[title].name for title, _ in blocks)) == [
            theory.name for theory in made if theory.name in measured
        ]
        assert {titles[title].name for title, _ in others} == {
            theory.name for theory in made if theory.name not in measured
        }
        for title, key in (*blocks, *others):
            assert key == titles[title].sources[0].key
            assert key in entries()
    assert len(others) >= 2


def test_the_caption_explains_the_columns_and_the_outcomes_that_occur():
    result, made = compared(4)
    caption = re.search(r"\\caption\{(.*)\}\\label", latex(result, theories=made))[1]
    for shared in ("mean over seeds", f"{found(result, made).tests} tests", "0.1.0", "aaaaaaaa"):
        assert shared in caption
    assert "Opposite: " in caption
    assert "Nulls conflict: " not in caption


def test_several_data_sets_have_lines_of_their_own():
    (first, made), (second, _) = compared(2), compared(2, data="other")
    text = latex([first, second], theories=made)
    for data in ("digits", "other"):
        assert len(re.findall(rf"^{data}: raw tokens", text, re.MULTILINE)) == 2
        assert len(re.findall(rf"^{data}: trained ViT", text, re.MULTILINE)) == 2


HOSTILE = r"\input{/etc/passwd} 50% a_b & {c} #1 $\write18{x}$ a$x^2^3$"


def typeset(folder, name, body, layout):
    """Sets a document with this body by pdflatex."""
    head = rf"\documentclass[{layout}]{{article}}\usepackage[T1]{{fontenc}}\usepackage{{lmodern}}\usepackage{{{','.join(PACKAGES)}}}"  # noqa: E501
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
@pytest.mark.parametrize(
    ("layout", "made", "networks", "data"),
    [
        *((layout, None, NETWORKS, "digits") for layout in ("", "a4paper", "twocolumn", "11pt")),
        *((layout, theories(5), ("ViT", HOSTILE), HOSTILE) for layout in ("", "a4paper,twocolumn")),
        *((layout, theories(40), NETWORKS, "digits") for layout in ("", "twocolumn")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_float_fits_on_a_page_in_one_and_in_two_columns(tmp_path, layout, made, networks, data):
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
    assert int(re.search(r"\((\d+) pages?,", log)[1]) <= text.count(r"\begin{table*}")
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


def test_markdown_begins_with_the_sentences_and_the_headlines():
    result, made = compared()
    text = markdown(aggregate(replace(result, provenance={}), theories=made))
    head, said, legend, table, *_ = text.split("\n\n")
    assert head == "# Results"
    assert said.count("\n- ") == 4
    assert said.startswith(f"- {made[0].title}")
    assert legend.startswith("Headlines of the theories on the data and in the networks. Value: the mean")
    assert f"{found(result, made).tests} tests" in legend
    lines = table.splitlines()
    assert lines[0] == "| on | value | prediction | nulls | effect | p (q) | outcome |"
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {8}
    raw = [line.removesuffix(" |").split(" | ") for line in lines if line.startswith("| raw tokens<br>")]
    outcomes = [line[6].split("<br>")[0] for line in raw]
    assert outcomes == ["as predicted", "not significant", "opposite", "not tested", "too few draws"]
    assert raw[0][1].startswith("**62.5")
    assert "on noise 59.1" in raw[3][3]
    assert "draws of the null are equal" in raw[4][6]  # the reason
