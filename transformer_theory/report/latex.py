r"""Tables in LaTeX (booktabs) with a ``\cite`` in each row, to be pasted into a paper beside ``references.bib``.

A table that may be long breaks across pages (longtable); that over all theories is one float a page, which two columns allow as well.
"""

import re
from collections.abc import Iterable, Sequence

from ..core.result import Result
from ..core.sources import Source
from ..core.theory import Theory
from .latex_text import escape, prose
from .merged import merged
from .tables import Block, Cell, Code, Column, Plain, Table, overall

PACKAGES = ("booktabs", "array", "longtable", "amsmath", "amssymb")
HEAD = "\n".join(
    [
        f"% needs \\usepackage{{{','.join(PACKAGES)}}}; references are in references.bib",
        r"\providecommand{\TTacross}[2]{\multicolumn{#1}{@{}>{\raggedright\arraybackslash}p{\linewidth}@{}}{#2}} % over all columns",
    ]
)
FITS = 50  # lines of a float with its caption, in footnotesize
WIDE = 88  # letters in such a line of a page that may be narrow
PREFIX = "tt"  # of labels
_RAGGED = {"left": r"\raggedright\arraybackslash", "right": r"\raggedleft\arraybackslash"}


def latex(results: Result | Iterable[Result], *, theories: Iterable[Theory] | None = None) -> str:
    r"""The table over all theories as a float (or more than one, if it is long), as wide as the text: for each theory its claims, and each
    quantity with its ``\cite`` and a line for each view of the data: prediction, measured, null, verdict.

    Args:
        results: one or several; runs that differ only in their seed are one line.
        theories: records that give titles and order; the registry if None.
    Raises:
        ValueError: there is no result.
    """
    one = [results] if isinstance(results, Result) else results
    return floats(overall(merged(one, theories=theories)))


def text(cell: Cell) -> str:
    r"""A cell: names escaped, formulas set, sources as ``\cite``."""
    if isinstance(cell, tuple):
        return "".join(map(text, cell)).replace(r" \cite", r"~\cite")
    if isinstance(cell, Source):
        return cite(cell)
    if isinstance(cell, Code):
        return typewriter(cell)
    return escape(cell) if isinstance(cell, Plain) else prose(cell)


def cite(source: Source) -> str:
    r"""``\cite[Thm. 3]{tarzanagh2023transformers}``."""
    return f"\\cite{f'[{{{escape(source.locator)}}}]' if source.locator else ''}{{{source.key}}}"


def typewriter(name: str) -> str:
    """A path, a command or a checksum in the typewriter face, which may break anywhere after a sign, and after eight letters."""
    pieces = re.findall(r"\\?[A-Za-z0-9]{1,8}|[^A-Za-z0-9]", name)
    breakable = r"\allowbreak{}".join(map(escape, pieces))
    return rf"\texttt{{{breakable}}}" if pieces else ""


def longtable(table: Table) -> str:
    """A table that breaks across pages, in a text of one column."""
    head = _head(table)
    lines = [line for block in table.blocks for line in _block(block, table.columns)]
    return "\n".join(
        [
            HEAD,
            r"\begingroup",
            r"\footnotesize\setlength{\tabcolsep}{3pt}\setlength{\LTcapwidth}{\linewidth}\setlength{\LTleft}{0pt}\setlength{\LTright}{0pt}",
            rf"\begin{{longtable}}{{{_columns(table.columns)}}}",
            rf"\caption{{{text(table.caption)}}}\label{{tab:{PREFIX}-{table.name}}}\\",
            *head,
            r"\endfirsthead",
            *head,
            r"\endhead",
            r"\bottomrule",
            r"\endfoot",
            *lines,
            r"\end{longtable}",
            r"\endgroup",
            "",
        ]
    )


def floats(table: Table) -> str:
    """A table as floats that each fit a page; those after the first say what they continue."""
    made = [HEAD]
    for number, blocks in enumerate(_pages(table)):
        label = f"tab:{PREFIX}-{table.name}"
        caption = rf"\caption{{{text(table.caption)}}}\label{{{label}}}" if not number else rf"Table~\ref{{{label}}}, continued\\[6pt]"
        made += [
            r"\begin{table*}",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}\setlength{\belowcaptionskip}{6pt}",
            caption,
            rf"\begin{{tabular}}{{{_columns(table.columns)}}}",
            *_head(table),
            *(line for block in blocks for line in _block(block, table.columns)),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table*}",
        ]
    return "\n".join([*made, ""])


def _pages(table: Table) -> list[list[Block]]:
    """The blocks by page. What follows a strong heading goes on a new page with it, if the page it begins on cannot hold all."""
    groups: list[list[Block]] = []
    for block in table.blocks:
        if block.strong or not groups:
            groups.append([])
        groups[-1].append(block)
    pages: list[list[Block]] = [[]]
    used = _lines(Block(table.caption), table.columns)
    for group in groups:
        sizes = [_lines(block, table.columns) for block in group]
        for at, (block, size) in enumerate(zip(group, sizes)):
            rest = sum(sizes) if at == 0 and sum(sizes) <= FITS else size
            if pages[-1] and used + rest > FITS:
                pages.append([])
                used = 1
            pages[-1].append(block)
            used += size
    return pages


def _lines(block: Block, columns: Sequence[Column]) -> int:
    """How many lines of a page a block takes, at most: words that do not fit beside each other go on below."""

    def wrapped(cell: Cell, share: int = 100) -> int:
        pieces = cell if isinstance(cell, tuple) else (cell,)
        letters = sum(len(piece) if isinstance(piece, str) else 12 for piece in pieces)
        return -(-letters * 100 // (WIDE * share))

    lines = [max([wrapped(cell, column.share) for cell, column in zip(line.cells, columns)], default=0) for line in block.lines]
    return wrapped(block.heading) + wrapped(block.note) + sum(lines) + sum(wrapped(line.below) for line in block.lines) + 1


def _columns(columns: Sequence[Column]) -> str:
    """Columns that share the width of the text, the space between them taken off."""
    width = rf"\linewidth-{2 * len(columns) - 2}\tabcolsep"
    hanging = [r"\hangindent=1em", *[""] * (len(columns) - 1)]  # the first has many words
    cells = (
        rf">{{{_RAGGED[column.align]}{hang}}}p{{\dimexpr({width})*{column.share}/100\relax}}" for column, hang in zip(columns, hanging)
    )
    return f"@{{}}{''.join(cells)}@{{}}"


def _head(table: Table) -> list[str]:
    return [r"\toprule", " & ".join(prose(column.head) for column in table.columns) + r" \\", r"\midrule"]


def _block(block: Block, columns: Sequence[Column]) -> list[str]:
    """Its heading stays with its first line, and what stands below a line with that line."""
    rows: list[tuple[str, bool]] = []  # with whether the next row must stay with it
    if block.heading:
        face = r"\textbf" if block.strong else r"\emph"
        note = rf"\newline {{\scriptsize {text(block.note)}}}" if block.note else ""
        rows.append((_across(_faced(face, block.heading) + note, columns), True))
    for line in block.lines:
        if line.cells:
            cells = [text(cell) for cell in line.cells]
            rows.append((" & ".join(cells), bool(line.below)))
        if line.below:
            size = r"\scriptsize " if line.cells else ""
            rows.append((_across(size + text(line.below), columns), False))
    # a bracket or star that follows an end would be taken for its argument
    lines = [f"{'{}' if row[:1] in ('[', '*') else ''}{row} {chr(92) * 2}{'*' if joined else ''}" for row, joined in rows]
    wide = [line.startswith(r"\TTacross") and before is not None for before, line in zip([None, *lines], lines)]
    spaced = [f"{line}\n\\addlinespace[2pt]" if after else line for line, after in zip(lines, wide)]
    return [*spaced, r"\addlinespace[2pt]"] if lines else []


def _faced(face: str, heading: Cell) -> str:
    """The words of a heading in a face; its source in that of the text."""
    pieces = heading if isinstance(heading, tuple) else (heading,)
    words = tuple(piece for piece in pieces if not isinstance(piece, Source))
    sources = "".join(f"~{cite(piece)}" for piece in pieces if isinstance(piece, Source))
    return rf"{face}{{{text(words).strip()}}}{sources}"


def _across(content: str, columns: Sequence[Column]) -> str:
    """A cell over all columns."""
    return rf"\TTacross{{{len(columns)}}}{{{content}}}"
