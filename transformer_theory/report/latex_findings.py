r"""The findings in LaTeX: one table on one page, for papers with one or two columns, and the sentences as a list.

The table has a column per theory, and a row per view of the data and per network, because a page is higher than it is wide. More than
:data:`MAX_THEORIES` theories are divided into several panels, one below the other.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence

from ..core.statistics import LEVEL, UNTRAINED
from ..core.theory import Theory
from . import findings, format
from .aggregate import Aggregate
from .findings import Finding, Findings
from .latex_text import escape, prose, typewriter
from .software import sentence

MAX_THEORIES = 6  # theories of one panel; the cells of more would be too narrow for an interval on two lines
MAX_LINES = 55  # lines of \scriptsize type on a page, without the caption
MAX_WORD = 13  # letters of a word that fits into a narrow cell
SHARE = "\u00a0%"  # sign of a share
PREFIX = "tt"  # prefix of the names in \label
_LABEL = 16  # share of the width for the labels of the rows, per cent
_LETTERS = 82  # letters of \scriptsize type in a line of a page with wide margins
# A value that the null explains is grey, or slanted in documents without xcolor.
_COMMANDS = r"\providecommand{\TTchance}[1]{\ifdefined\textcolor\textcolor[gray]{0.45}{#1}\else\textsl{#1}\fi}"

Column = tuple[str, findings.View, str]


def matrix(found: Findings, aggregate: Aggregate, head: str) -> str:
    """Returns the table of findings as one float that fits on a page.

    If the table is too long for a page, the cells of features have only value and interval; if it is still too long, features are omitted,
    and finally every panel becomes a float.

    Args:
        found: the findings; there must be at least one.
        aggregate: the results of the findings, for the counts of claims.
        head: comment for the first line of the file, which names the packages.
    """
    columns = found.few_columns()
    without = [column for column in columns if column[1] != "features"] or columns
    count = -(-len(found.theories) // MAX_THEORIES)  # panels; -(-a // b) rounds up
    size = -(-len(found.theories) // count)  # theories of a panel
    groups = [found.theories[start : start + size] for start in range(0, len(found.theories), size)]
    panels: list[_Panel] = []
    for chosen, short in ((columns, False), (columns, True), (without, False)):
        panels = [_Panel(found, group, chosen, aggregate, short) for group in groups]
        if _height(panels) <= MAX_LINES:
            break
    together = _height(panels) <= MAX_LINES
    features = [column for column in found.columns if column[1] == "features"]
    omitted = ""
    if features:
        shown = {column for panel in panels for _, members in panel.groups for column in members}
        omitted = " Features: value and interval only." if panels[0].short else "" if set(features) <= shown else " Features are omitted."
    label = f"tab:{PREFIX}-all"
    floats = []
    for index, group in enumerate([panels] if together else [[panel] for panel in panels]):
        caption = rf"\caption{{{_caption(found, panels)}}}\label{{{label}}}" if not index else rf"Table~\ref{{{label}}}, continued\\[4pt]"
        reasons: list[str] = []
        tables = ("\n\n" + r"\vspace{4pt}" + "\n\n").join(panel.latex(reasons) for panel in group)
        floats.append(
            "\n".join(
                [
                    r"\begin{table*}",
                    r"\centering\scriptsize\setlength{\tabcolsep}{2pt}\setlength{\belowcaptionskip}{4pt}",
                    caption,
                    tables,
                    "",
                    r"\vspace{3pt}",
                    rf"\parbox{{\linewidth}}{{\raggedright {_note(found, omitted, reasons, sentence(aggregate.results))}}}",
                    r"\end{table*}",
                ]
            )
        )
    return "\n".join([head, _COMMANDS, *floats, ""])


def _height(panels: "Sequence[_Panel]") -> int:
    """Returns an upper bound on the number of lines of panels with their note."""
    reasons: list[str] = []
    for panel in panels:
        panel.latex(reasons)
    return sum(panel.height for panel in panels) + 3 + sum(map(len, reasons)) // _LETTERS


def _caption(found: Findings, panels: "Sequence[_Panel]") -> str:
    """Returns the caption, at most 45 words for data with short names."""
    data = " and ".join(_breakable(name) for name in dict.fromkeys(column[0] for column in found.columns))
    seeds = max(finding.seeds for finding in found.all)
    value = f"mean over {seeds} seeds" if seeds > 1 else "value"
    claims = " Claims: how many are consistent on all seeds." if any(panel.claims for panel in panels) else ""
    return (
        rf"Predictions and measurements on {data}: {value} with 95~\% interval, median of the null, $p$-value and agreement $A$ "
        f"(0: chance, 1: prediction).{claims}"
    )


def _note(found: Findings, omitted: str, reasons: Sequence[str], software: str) -> str:
    """Explains the marks in one line and the letters in further lines; the last sentence names the version and the commit."""
    tests = format.several(found.tests, "test")
    marks = (
        rf"\textbf{{Bold}}: as predicted (FDR $\le$ {LEVEL:g}, {tests}). \TTchance{{Grey}}: a null gives as much. "
        rf"$^\dagger$: opposite side. $^\circ$: about any data.{omitted}"
    )
    letters = "; ".join(rf"\textsuperscript{{{_letter(index)}}}~{prose(reason)}" for index, reason in enumerate(reasons))
    lines = filter(None, (marks, f"{letters}." if letters else "", prose(software)))
    return r"\\ ".join(lines)


class _Panel:
    """The part of the table for some of the theories."""

    def __init__(self, found: Findings, theories: Sequence[Theory], columns: Sequence[Column], aggregate: Aggregate, short: bool):
        self.found, self.theories, self.aggregate, self.short = found, theories, aggregate, short
        of_panel = {finding.column for finding in found.all if finding.theory in theories}
        columns = [column for column in columns if column in of_panel]
        self.several_data = len({column[0] for column in columns}) > 1
        self.groups = [
            ("On the data", [column for column in columns if column[1] != "network"]),
            ("In networks", [column for column in columns if column[1] == "network"]),
        ]

    @property
    def height(self) -> int:
        """An upper bound on the number of lines."""
        letters = max(1, _LETTERS * (100 - _LABEL) // (100 * len(self.theories)))
        lines = 4 + max(_lines(theory.title, letters) + 1 for theory in self.theories)  # with a line for the citation
        for _, columns in self.groups:
            for column in columns:
                cells = self._cells(column)
                label = _lines(f"features of {column[2]}" if column[1] == "features" else column[2], _LETTERS * _LABEL // 100)
                lines += max(label, *(sum(_lines(part, letters) for part in _parts(cell, self._short(column))) for cell in cells))
            lines += 1 + max(_lines(self._quantity(theory, columns), letters) for theory in self.theories) if columns else 0
        return lines

    def latex(self, reasons: list[str]) -> str:
        """Returns the panel as a tabular. The cells refer by letters to reasons, which are appended to ``reasons`` if they are new."""
        share = (100 - _LABEL) / len(self.theories)
        width = rf"\linewidth-{2 * len(self.theories)}\tabcolsep"
        specification = "".join(
            rf">{{\raggedright\arraybackslash}}p{{\dimexpr({width})*{round(10 * part)}/1000\relax}}"
            for part in (_LABEL, *[share] * len(self.theories))
        )
        titles = [rf"\textbf{{{prose(theory.title)}}}{_cited(theory)}" for theory in self.theories]
        rows = [rf"\begin{{tabular}}{{@{{}}{specification}@{{}}}}", r"\toprule", _row("", titles)]
        for title, columns in self.groups:
            if not columns:
                continue
            nulls = {cell.row.null.kind for column in columns for cell in self._cells(column) if cell is not None and cell.row.null}
            title = f"{title} (null: untrained)" if nulls == {UNTRAINED} else title
            quantities = [rf"\emph{{{prose(self._quantity(theory, columns))}}}" for theory in self.theories]
            rows += [r"\midrule", _row(rf"\emph{{{title}}}", quantities), r"\addlinespace[2pt]"]
            for column in columns:
                cells = [_cell(cell, reasons, self._short(column)) for cell in self._cells(column)]
                rows += [_row(self._name(column), cells), r"\addlinespace[2pt]"]
        if counts := self.claims:
            rows += [r"\midrule", _row("claims", counts)]
        return "\n".join([*rows, r"\bottomrule", r"\end{tabular}"])

    def _cells(self, column: Column) -> list[Finding | None]:
        return [self.found.at(theory, column) for theory in self.theories]

    def _short(self, column: Column) -> bool:
        """Returns whether the cells of a column have only value and interval."""
        return self.short and column[1] == "features"

    def _quantity(self, theory: Theory, columns: Sequence[Column]) -> str:
        """Returns the headline of a theory in some of the columns."""
        cells = (self.found.at(theory, column) for column in columns)
        return next((cell.row.quantity for cell in cells if cell is not None), "")

    def _name(self, column: Column) -> str:
        data, view, model = column
        name = _breakable(model) if view == "network" else f"features of {_breakable(model)}" if model else "raw tokens"
        return f"{name}, {_breakable(data)}" if self.several_data else name

    @property
    def claims(self) -> list[str]:
        """The number of consistent claims of each theory; empty if no claim was verified."""
        counts = []
        for theory in self.theories:
            claims = [checked.verification for checked in self.aggregate.claims_of(theory)]
            consistent = sum(claim.outcome == "consistent" and claim.consistent == len(claim.seeds) for claim in claims)
            counts.append(f"{consistent} of {len(claims)}" if claims else "")
        return counts if any(counts) else []


def _lines(text: str, letters: int) -> int:
    """Estimates the number of lines of a text in a cell."""
    return len(textwrap.wrap(text, letters)) or 1


def _parts(cell: Finding | None, short: bool) -> list[str]:
    """Returns the lines of a cell as plain text: the value with its agreement, the interval, and null, value on noise and p-value."""
    if cell is None:
        return [""]
    row = cell.row
    if row.value is None:
        return [format.NOTHING]
    interval = findings.interval_text(row)
    if row.unit == "share" and interval:  # one sign for both ends
        interval = f"{interval.replace(SHARE, '')}{SHARE}"
    if short:
        return list(filter(None, (findings.short(row.value, row), interval)))
    agreement = f" A\u00a0= {format.number(row.agreement, 2)}" if row.agreement is not None else ""
    rest = [f"null\u00a0{findings.short(row.null.median, row)}"] if row.null is not None and row.null.draws else []
    if row.scope == "any data":  # a p-value would not be evidence about these data
        rest += [f"noise\u00a0{findings.short(row.on_noise, row)}"] if row.on_noise is not None else []
    elif row.p is not None:
        rest.append(f"p\u00a0= {findings.p_text(row.p)}")
    return list(filter(None, (findings.short(row.value, row), interval, ", ".join(rest) + ("," * bool(rest and agreement)) + agreement)))


def _cell(cell: Finding | None, reasons: list[str], short: bool) -> str:
    """Returns the LaTeX of a cell, marked by its outcome."""
    value, *others = map(escape, _parts(cell, short))
    if cell is None:
        return value
    others = [re.sub(r"\b([pA])~= ", r"$\1$~=~", text) for text in others]
    outcome = cell.outcome
    if outcome in findings.FOUND:
        value = rf"\textbf{{{value}}}"
    elif outcome == "opposite":
        value = rf"{value}$^\dagger$"
    elif outcome == "any data":
        value = rf"{value}$^\circ$"
    elif cell.reason:
        if cell.reason not in reasons:
            reasons.append(cell.reason)
        value = rf"{value}\textsuperscript{{{_letter(reasons.index(cell.reason))}}}"
    lines = [value, *others]
    if outcome in ("at chance", "explained"):
        lines = [rf"\TTchance{{{line}}}" for line in lines]
    return r"\newline ".join(lines)


def _letter(index: int) -> str:
    """Returns a, b, ..., z, aa, ab, ..."""
    return ("" if index < 26 else _letter(index // 26 - 1)) + chr(ord("a") + index % 26)


def _row(label: str, cells: Iterable[str]) -> str:
    return rf"{' & '.join([label, *cells])} \\"


def _cited(theory: Theory) -> str:
    """Returns the citation of the first paper of a theory."""
    return rf"~\cite{{{theory.sources[0].key}}}" if theory.sources and theory.sources[0].known else ""


def _breakable(name: str) -> str:
    """Escapes a name; a word that is too long for a narrow cell may be broken anywhere after a few letters."""
    words = [
        escape(word) if len(word) <= MAX_WORD else typewriter(word).removeprefix(r"\texttt{").removesuffix("}") for word in name.split()
    ]
    return " ".join(words)


def itemize(found: Findings) -> str:
    r"""Returns the sentences about the findings as an ``itemize`` list; empty if there are none."""
    items = [rf"\item {prose(sentence)}" for sentence in findings.sentences(found)]
    return "\n".join([r"\begin{itemize}", *items, r"\end{itemize}", ""]) if items else ""
