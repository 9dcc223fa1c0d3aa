r"""The findings in LaTeX: one compact table of one page, for papers with one or two columns, and the
sentences as a list.

The table has a block per theory: a line for its headline on each data set, and a line for its headline in
networks, with a cell per network. What all cells share stands in the caption. Features, intervals over
networks and p-values of single networks are in the tables of the theories and in the macros. Theories that do
not fit on a page continue on a second one.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence

from ..core import format
from ..core.statistics import LEVEL
from ..core.theory import Theory
from . import findings
from .aggregate import COMPARE, Aggregate
from .findings import Finding, Findings
from .math_text import escape, prose, typewriter
from .origins import sentence

MAX_LINES = 62  # lines of a page, with the notes, without the caption
MAX_WORD = 13  # letters of a word that fits into a narrow cell
MAX_REASON = 64  # letters of a reason
MAX_KINDS = 2  # kinds of nulls that the caption names
SHARE = "\u00a0%"  # sign of a share
PREFIX = "tt"  # prefix of the names in \label
SAME = "the same, in networks"
ABSENT = "Not measured on these data"
# share of the width for the theories; share of the rest for the headlines; per cent
_THEORY, _HEADLINE = 18, 40
_LETTERS = 92  # letters in a line of a page with wide margins
_COMMANDS = "\n".join(
    [
        # A value that the null explains is grey, or slanted in documents without xcolor.
        r"\providecommand{\TTchance}[1]{\ifdefined\textcolor\textcolor[gray]{0.45}{#1}\else\textsl{#1}\fi}",
        # beamer, which has one column, does not know the float over both
        r"\ifcsname table*\endcsname\else\newenvironment{table*}{\begin{table}}{\end{table}}\fi",
        r"\providecommand{\TTsize}{\ifdim\textwidth<400pt\fontsize{7}{7.7}\else\fontsize{8}{9.2}\fi\selectfont}",
        r"\providecommand{\TTgap}{\ifdim\textwidth<400pt 1pt\else 3pt\fi}",
        r"\providecommand{\TTwide}[2]{\multicolumn{#1}{>{\raggedright\arraybackslash}p{\dimexpr"
        rf"\linewidth*{100 - _HEADLINE}/100-2\tabcolsep\relax}}@{{}}}}{{#2}}}} % over all networks",
    ]
)


def compact(found: Findings, aggregate: Aggregate, head: str) -> str:
    """Returns the table of findings as floats of at most a page each; usually there is one.

    Args:
        found: the findings; there must be at least one.
        aggregate: the results of the findings.
        head: comment for the first line of the file, which names the packages.
    """
    reasons: list[str] = []
    blocks = [_Block(found, theory, reasons) for theory in found.theories]
    models = _models(found)
    notes = 3 + sum(len(reason) + 3 for reason in reasons) // _LETTERS  # lines
    pages: list[list[_Block]] = [[]]
    for block in blocks:
        if pages[-1] and sum(one.height for one in pages[-1]) + block.height + notes > MAX_LINES:
            pages.append([])
        pages[-1].append(block)
    outer = "".join(_column(rf"(\linewidth-2\tabcolsep)*{share}/100") for share in (_THEORY, 100 - _THEORY))
    label = f"tab:{PREFIX}-all"
    floats = []
    for number, page in enumerate(pages):
        last = number == len(pages) - 1
        floats += [
            r"\begin{table*}",
            r"\centering\TTsize\setlength{\tabcolsep}{2pt}\setlength{\belowcaptionskip}{4pt}",
            rf"\caption{{{_caption(found, aggregate)}}}\label{{{label}}}"
            if not number
            else rf"Table~\ref{{{label}}}, continued\\[4pt]",
            rf"\begin{{tabular}}{{@{{}}{outer}@{{}}}}",
            r"\toprule",
            *_nested(
                "theory",
                [_row("headline", map(_breakable, models) if any(models) else ["value"])],
                len(models),
            ),
            r"\midrule",
            *(line for block in page for line in _nested(block.title, block.rows, len(models))),
            *(_absent(found, aggregate) if last else []),
            r"\bottomrule",
            r"\end{tabular}",
            *(
                [r"", r"\vspace{3pt}", rf"\parbox{{\linewidth}}{{\raggedright {_note(found, reasons)}}}"]
                if last
                else []
            ),
            r"\end{table*}",
        ]
    return "\n".join([head, _COMMANDS, *floats, ""])


def _absent(found: Findings, aggregate: Aggregate) -> list[str]:
    """Returns a row that names the theories of the comparisons of which no headline was measured; empty if
    there are none.
    """
    names = {
        name
        for result in aggregate.results
        if result.name == COMPARE
        for name in result.settings.get("theories") or ()
    }
    absent = [
        theory for theory in aggregate.theories if theory.name in names and theory not in found.theories
    ]
    listed = "; ".join(f"{prose(theory.title.partition(':')[0])}{_cited(theory)}" for theory in absent)
    return [rf"\multicolumn{{2}}{{@{{}}p{{\linewidth}}@{{}}}}{{{ABSENT}: {listed}}} \\"] if absent else []


def _models(found: Findings) -> list[str]:
    """Returns the networks, which are the columns; one empty name if there are none."""
    return list(dict.fromkeys(finding.model for finding in found.all if finding.view == "network")) or [""]


def _data(found: Findings) -> list[str]:
    return list(dict.fromkeys(column[0] for column in found.columns))


def _column(width: str) -> str:
    return rf">{{\raggedright\arraybackslash}}p{{\dimexpr{width}\relax}}"


def _nested(title: str, rows: Sequence[str], count: int) -> list[str]:
    """Returns a row with a title, which may be as high as all rows beside it, and these rows as a table."""
    cell = _column(rf"(\linewidth*{100 - _HEADLINE}/100-{2 * count}\tabcolsep)/{count}")
    specification = _column(rf"\linewidth*{_HEADLINE}/100") + cell * count
    return [
        f"{title} &",
        rf"\begin{{tabular}}[t]{{@{{}}{specification}@{{}}}}",
        *rows,
        r"\end{tabular} \\",
        r"\addlinespace[\TTgap]",
    ]


def _caption(found: Findings, aggregate: Aggregate) -> str:
    """Returns the caption, at most 45 words for data and kinds of nulls with short names."""
    compared = [result for result in aggregate.results if result.name == COMPARE]
    data = " and ".join(_breakable(name) for name in _data(found))
    sizes = {result.settings.get("n") for result in compared}
    n = f"$n={next(iter(sizes))}$" if len(sizes) == 1 and isinstance(next(iter(sizes)), int) else ""
    seeds = max(finding.seeds for finding in found.all)
    mean = f"mean over {seeds} seeds" if seeds > 1 else "value"
    machines = {str(result.provenance.get("machine") or "") for result in compared}
    machine = escape(next(iter(machines))) if len(machines) == 1 and machines != {""} else ""
    about = "; ".join(filter(None, (n, machine)))
    about = f" ({about})" if about else ""
    known = {
        one.row.null.kind
        for one in found.all
        if one.view == "raw tokens" and one.row.null is not None and one.row.null.draws
    }
    kinds = sorted(known) if len(known) <= MAX_KINDS else ["permutations"]
    nulls = [
        *([prose(" or ".join(kinds))] if known else []),
        *(["untrained networks"] if any(_models(found)) else []),
    ]
    networks = "; in networks (null)" if any(_models(found)) else ""
    null = f" Null: median of {' or '.join(nulls)}." if nulls else ""
    made = prose(sentence(aggregate.results))
    made = f" {made}" if made else ""
    return rf"Headlines on {data}{about}: {mean} [95~\% interval]{networks}.{null}{made}"


def _note(found: Findings, reasons: Sequence[str]) -> str:
    """Explains the marks, and the letters of the reasons."""
    tests = format.several(found.tests, "test")
    largest = max(
        (
            one.row.p
            for one in found.all
            if one.view == "network" and one.outcome in findings.FOUND and one.row.p
        ),
        default=None,
    )
    inside = rf", in networks $p \le$ {findings.p_text(largest)}" if largest is not None else ""
    marks = (
        rf"\textbf{{Bold}}: as predicted (FDR $\le$ {LEVEL:g}, {tests}{inside}). \TTchance{{Grey}}: at "
        r"chance or explained. $^\dagger$: opposite side. $^\circ$: any data."
    )
    letters = "; ".join(
        rf"\textsuperscript{{{_letter(index)}}}~{prose(reason)}" for index, reason in enumerate(reasons)
    )
    return f"{marks} {letters}." if letters else marks


class _Block:
    """The lines of one theory."""

    def __init__(self, found: Findings, theory: Theory, reasons: list[str]):
        self.name = theory.title.partition(":")[0]
        self.title = f"{prose(self.name)}{_cited(theory)}"
        self.rows: list[str] = []
        models, self._lines = _models(found), 0
        letters = _LETTERS * (100 - _THEORY) // 100
        for data in _data(found):
            where = f", {_breakable(data)}" if len(_data(found)) > 1 else ""
            if (cell := found.at(theory, (data, "raw tokens", ""))) is not None:
                shown = _on_data(cell, reasons)
                self.rows.append(
                    _row(f"{prose(cell.row.quantity)}{where}", [rf"\TTwide{{{len(models)}}}{{{shown}}}"])
                )
                width = letters * (100 - _HEADLINE) // 100
                plain = ", ".join(_parts(cell)) if cell.row.value is not None else brief(cell.reason)
                self._add(f"{cell.row.quantity}{where}", letters, [(plain, width)])
            inside = [found.at(theory, (data, "network", model)) for model in models]
            if known := [one for one in inside if one is not None]:
                quantity = known[0].row.quantity
                quantity = SAME if cell is not None and quantity == cell.row.quantity else quantity
                self.rows.append(
                    _row(f"{prose(quantity)}{where}", [_in_network(one, reasons) for one in inside])
                )
                width = max(1, letters * (100 - _HEADLINE) // 100 // len(models))
                self._add(f"{quantity}{where}", letters, [(" ".join(_pair(one)), width) for one in inside])

    def _add(self, quantity: str, letters: int, cells: Iterable[tuple[str, int]]) -> None:
        """Adds the height of a row with a headline and cells of the given widths."""
        self._lines += max(
            _wrapped(quantity, letters * _HEADLINE // 100), *(_wrapped(text, width) for text, width in cells)
        )

    @property
    def height(self) -> float:
        """An estimate of the number of lines."""
        return max(self._lines, _wrapped(f"{self.name} [10]", _LETTERS * _THEORY // 100)) + 0.2


def _wrapped(text: str, letters: int) -> int:
    """Estimates the number of lines of a text in a cell."""
    return len(textwrap.wrap(text, max(1, letters))) or 1


def brief(reason: str) -> str:
    """Shortens a reason to its first clause and at most :data:`MAX_REASON` letters."""
    first = re.split(r";\s|, (?:so|because|since)\b", reason)[0]
    return textwrap.shorten(first, MAX_REASON, placeholder=" ...")


def _parts(cell: Finding) -> list[str]:
    """Returns the cell of a headline on data in plain text: value with interval, null, value on noise and
    p-value.
    """
    row = cell.row
    interval = findings.interval_text(row)
    if row.unit == "share" and interval:  # one sign for both ends
        interval = f"{interval.replace(SHARE, '')}{SHARE}"
    parts = [" ".join(filter(None, (findings.short(row.value or 0.0, row), interval)))]
    if row.null is not None and row.null.draws:
        parts.append(f"null\u00a0{findings.short(row.null.median, row)}")
    if row.scope == "any data":  # a p-value would not be evidence about these data
        parts += [f"noise\u00a0{findings.short(row.on_noise, row)}"] if row.on_noise is not None else []
    elif row.p is not None:
        parts.append(f"p\u00a0= {findings.p_text(row.p)}")
    return parts


def _pair(cell: Finding | None) -> list[str]:
    """Returns the cell of a headline in a network in plain text: the value and its null."""
    if cell is None or (value := cell.row.value) is None:
        return ["" if cell is None else "–"]
    row = cell.row
    if row.unit == "share" and row.null and row.null.draws:  # one sign for both
        return [
            findings.short(value, row).replace(SHARE, ""),
            f"({findings.short(row.null.median, row).replace(SHARE, '')}){SHARE}",
        ]
    return [
        findings.short(value, row),
        *([f"({findings.short(row.null.median, row)})"] if row.null and row.null.draws else []),
    ]


def _on_data(cell: Finding, reasons: list[str]) -> str:
    """Returns the LaTeX of a headline on data, or the reason why it has no value."""
    if cell.row.value is None:
        return f"-- ({prose(brief(cell.reason))})"
    value, *others = map(escape, _parts(cell))
    value, _, interval = value.partition(" [")
    others = [re.sub("^p~= ", "$p$~=~", text) for text in others]
    return _marked(
        cell,
        value,
        f"{f' [{interval}' if interval else ''}{''.join(f', {text}' for text in others)}",
        reasons,
    )


def _in_network(cell: Finding | None, reasons: list[str]) -> str:
    """Returns the LaTeX of a headline in a network."""
    value, *null = map(escape, _pair(cell))
    return value if cell is None else _marked(cell, value, "".join(f" {text}" for text in null), reasons)


def _marked(cell: Finding, value: str, rest: str, reasons: list[str]) -> str:
    """Marks a value by its outcome; the reason for a missing value or test is appended to ``reasons`` if it
    is new.
    """
    outcome = cell.outcome
    if outcome in findings.FOUND:
        return rf"\textbf{{{value}}}{rest}"
    if outcome == "opposite":
        return rf"{value}$^\dagger${rest}"
    if outcome == "any data":
        return rf"{value}$^\circ${rest}"
    if outcome in ("at chance", "explained"):
        return rf"\TTchance{{{value}{rest}}}"
    if cell.reason:
        short = brief(cell.reason)
        if short not in reasons:
            reasons.append(short)
        value = rf"{value}\textsuperscript{{{_letter(reasons.index(short))}}}"
    return f"{value}{rest}"


def _letter(index: int) -> str:
    """Returns a, b, ..., z, aa, ab, ..."""
    return ("" if index < 26 else _letter(index // 26 - 1)) + chr(ord("a") + index % 26)


def _row(label: str, cells: Iterable[str]) -> str:
    # LaTeX would read them as an argument of the line break before
    guard = "{}" if label.startswith(("[", "*")) else ""
    return rf"{guard}{' & '.join([label, *cells])} \\"


def _cited(theory: Theory) -> str:
    """Returns the citation of the first paper of a theory."""
    return rf"~\cite{{{theory.sources[0].key}}}" if theory.sources and theory.sources[0].known else ""


def _breakable(name: str) -> str:
    """Escapes a name; a word that is too long for a narrow cell may be broken anywhere after a few letters."""
    words = [
        escape(word)
        if len(word) <= MAX_WORD
        else typewriter(word).removeprefix(r"\texttt{").removesuffix("}")
        for word in name.split()
    ]
    return " ".join(words)


def itemize(found: Findings) -> str:
    r"""Returns the sentences about the findings as an ``itemize`` list; empty if there are none."""
    items = [rf"\item {prose(sentence)}" for sentence in findings.sentences(found)]
    return "\n".join([r"\begin{itemize}", *items, r"\end{itemize}", ""]) if items else ""
