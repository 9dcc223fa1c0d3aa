r"""LaTeX: tables (booktabs) with a ``\cite`` in each row, and a folder of files for a paper.

Tables that may be long use longtable, which breaks across pages. The table of all theories is a float,
because longtable does not work in two-column documents: the findings, or, for results without findings, the
rungs of a reach or the summary, as a sequence of floats of at most a page each.

:func:`latex_folder` makes the folder, ready for ``\input``:

* ``all.tex``: all theories in one table; ``findings.tex``: the findings in a few sentences, as a
  list;
* ``reach.tex``: how far the theories reach, as a list of sentences and a table of the rungs;
* ``<theory>.tex``: the tables of one theory; ``networks.tex``: the results of trained networks;
* ``macros.tex``: a macro for every number; ``appendix.tex``: the provenance of the numbers;
  ``references.bib``: the cited works;
* ``figures/``: each figure as PDF and SVG; ``example.tex``: a document that includes all files and compiles
  with pdflatex and bibtex.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from string import Template

from ..comparison.judged import Findings, findings, is_of_one_network, rung_results
from ..comparison.pooling import Aggregate, aggregate
from ..core import format
from ..core.math_text import escape, prose, typewriter
from ..core.result import Result
from ..core.sources import Source
from ..core.theory import Theory
from . import changes, interventions, number_tables, side_by_side, tables
from .figures import IN_COLUMN, Drawn, Picture, draw, file_names, pictures
from .html import TEMPLATES
from .macros import definitions, example, macros
from .origins import references, sentence, software_key
from .sentences import reach_statements, sentences
from .tables import Block, Cell, Code, Column, Note, Piece, Plain, Strong, StrongNote, Table, pieces

PACKAGES = ("booktabs", "array", "longtable", "amsmath", "amssymb", "xcolor")
NEEDS = f"% needs \\usepackage{{{','.join(PACKAGES)}}}; references are in references.bib"
HEAD = (
    f"{NEEDS}\n"
    r"\providecommand{\TTacross}[2]{\multicolumn{#1}{@{}>{\raggedright\arraybackslash}p{\linewidth}@{}}{#2}}"
    " % over all columns"
)
PAGE_LINES = 44  # largest number of footnotesize lines in a float, including its caption
LINE_LETTERS = 80  # number of characters of such a line on a narrow page
SPACE_LETTERS = 1.5  # number of characters that the space between two columns takes
CITATION_LETTERS = 12  # approximate number of characters of a printed citation
MAX_WORD = 10  # letters of a word that fits into a narrow cell
PREFIX = "tt"  # prefix of the names in \label
_LEFT, _RIGHT = r"\raggedright\arraybackslash", r"\raggedleft\arraybackslash"
# stems of files that belong to no theory; theories may not use them
OWN = ("all", "findings", "reach", "networks", "macros", "appendix", "example")


def latex(results: Result | Iterable[Result], *, theories: Iterable[Theory] | None = None) -> str:
    r"""Returns the table of all theories: the findings as a float as wide as the text.

    Results without a comparison have no findings: their table is that of the rungs of a reach, of the
    headlines in a probed network, or the summary of the results.

    Args:
        results: one result or several; runs that differ only in their seed are averaged into one line.
        theories: records that determine the titles and the order of the theories; None selects all registered
            theories.
    Raises:
        ValueError: there is no result.
    """
    return all_theories(aggregate(results, theories=theories))


def all_theories(combined: Aggregate) -> str:
    """Returns :func:`latex` of results that are already combined."""
    software = sentence(combined.results)
    if len(combined.results) == 1 and is_of_one_network(combined.results[0]):
        result, theories = combined.results[0], combined.theories
        both = (tables.of_network(result, theories), changes.of_result(result, theories))
        return "\n".join(floats(each, software) for each in both if each is not None)
    found, changed = findings(combined), interventions.found_in(combined.results)
    if (side := side_by_side.of(found, changed)) is not None:
        return floats(replace(side_by_side.table(side), name="all"), software)
    headlines, rungs = (
        tables.findings(found, tables.absent(combined, found), changed),
        tables.reach(rung_results(combined)),
    )
    return floats(replace(headlines or rungs or number_tables.summary(combined), name="all"), software)


def itemize(found: Findings) -> str:
    r"""Returns the sentences about the findings as an ``itemize`` list; empty if there are none."""
    return _items([prose(each) for each in sentences(found)])


def _items(texts: Sequence[str]) -> str:
    items = [rf"\item {text}" for text in texts]
    return "\n".join([r"\begin{itemize}", *items, r"\end{itemize}", ""]) if items else ""


def text(cell: Cell) -> str:
    r"""Returns the LaTeX of a cell: names are escaped, formulas kept, sources become ``\cite``, and each note
    starts a new line.
    """
    joined = (
        "".join(map(_piece, pieces(cell))).replace(r" \cite", r"~\cite").replace(r" \newline", r"\newline")
    )
    return joined.removeprefix(r"\newline")  # a note without text before it needs no new line


def _piece(piece: Piece) -> str:
    """Returns the LaTeX of one piece of a cell."""
    if isinstance(piece, Source):
        return f"\\cite{f'[{{{escape(piece.locator)}}}]' if piece.locator else ''}{{{piece.key}}}"
    if isinstance(piece, Note):
        face = r"\scriptsize\bfseries " if isinstance(piece, StrongNote) else r"\scriptsize "
        return rf"\newline{{{face}{prose(piece)}}}" if piece else ""
    if isinstance(piece, Strong):
        return escape(piece)
    if isinstance(piece, Code):
        return typewriter(piece)
    return _breakable(piece) if isinstance(piece, Plain) else prose(piece)


def _breakable(name: str) -> str:
    """Escapes a name; a word that is too long for a narrow cell may be broken anywhere after a
    few letters.
    """
    words = (
        escape(word)
        if len(word) <= MAX_WORD
        else typewriter(word).removeprefix(r"\texttt{").removesuffix("}")
        for word in name.split(" ")
    )
    return " ".join(words)


def longtable(table: Table, software: str = "") -> str:
    """Returns the LaTeX of a table that breaks across pages, for one-column documents.

    Args:
        table: the table.
        software: last sentence of the caption, which names version and commit (:func:`.origins.sentence`);
            may be empty.
    """
    head = _head(table)
    return "\n".join(
        [
            HEAD,
            r"\begingroup",
            r"\footnotesize\setlength{\tabcolsep}{3pt}\setlength{\LTcapwidth}{\linewidth}"
            r"\setlength{\LTleft}{0pt}\setlength{\LTright}{0pt}",
            rf"\begin{{longtable}}{{{_columns(table.columns)}}}",
            rf"\caption{{{_caption(table, software)}}}\label{{tab:{PREFIX}-{table.name}}}\\",
            *head,
            r"\endfirsthead",
            *head,
            r"\endhead",
            r"\bottomrule",
            r"\endfoot",
            *(line for block in table.blocks for line in _block(block, table.columns)),
            r"\end{longtable}",
            r"\endgroup",
            "",
        ]
    )


def floats(table: Table, software: str = "") -> str:
    """Returns the LaTeX of a table as floats that fit on a page each. The captions of later floats refer to
    the first.

    Args:
        table, software: see :func:`longtable`.
    """
    parts = [HEAD]
    for number, blocks in enumerate(_pages(table)):
        label = f"tab:{PREFIX}-{table.name}"
        caption = (
            rf"\caption{{{_caption(table, software)}}}\label{{{label}}}"
            if not number
            else rf"Table~\ref{{{label}}}, continued\\[6pt]"
        )
        parts += [
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
    return "\n".join([*parts, ""])


def _caption(table: Table, software: str) -> str:
    return " ".join(filter(None, (text(table.caption), prose(table.legend), prose(software))))


def _pages(table: Table) -> list[list[Block]]:
    """Returns the blocks of each page; all of them on one for a table that stays whole.

    A strong heading and the blocks up to the next strong heading form a group. A group that fits on a page is
    not split; a longer group is split between blocks, and a block that is longer than a page between lines.
    """
    if table.whole:
        return [list(table.blocks)]
    # the caption is set in the larger type of the text
    used = 3 * _height(Block((*pieces(table.caption), table.legend)), table.columns) // 2
    groups: list[list[Block]] = []
    for block in table.blocks:
        if block.strong or not groups:
            groups.append([])
        # only the first block shares its page with the caption
        groups[-1] += _parts(block, table.columns, PAGE_LINES - (used if block is table.blocks[0] else 0))
    pages: list[list[Block]] = [[]]
    for group in groups:
        sizes = [_height(block, table.columns) for block in group]
        for index, (block, size) in enumerate(zip(group, sizes)):
            # A group that fits on a page needs space for all its blocks at once; a longer group needs space
            # for one block at a time.
            needed = sum(sizes) if index == 0 and sum(sizes) <= PAGE_LINES else size
            if pages[-1] and used + needed > PAGE_LINES:
                pages.append([])
                used = 1  # "Table 1, continued"
            pages[-1].append(block)
            used += size
    return pages


def _parts(block: Block, columns: Sequence[Column], most: int) -> list[Block]:
    """Returns a block in parts of at most half of ``most`` lines of a page, or as it is if it fits
    on them.
    """
    if _height(block, columns) <= most:
        return [block]
    parts = [replace(block, lines=())]
    for line in block.lines:
        longer = replace(parts[-1], lines=(*parts[-1].lines, line))
        if parts[-1].lines and _height(longer, columns) > most // 2:
            heading = (*pieces(block.heading), Note("continued"))
            longer = replace(block, heading=heading, note="", lines=(line,))
            parts.append(longer)
        parts[-1] = longer
    return parts


def _height(block: Block, columns: Sequence[Column]) -> int:
    """Returns an estimate of the number of lines that a block takes on a page."""
    letters = LINE_LETTERS - SPACE_LETTERS * (len(columns) - 1)

    def wrapped(cell: Cell, share: int = 100) -> int:
        """Counts the lines of a cell in a column with ``share`` per cent of the width. A note starts on a new
        line, in smaller type whose characters are three quarters as wide.
        """
        width = max(1, int(letters * share / 100))
        words = "".join(
            (piece if isinstance(piece, str) else CITATION_LETTERS * "x")
            for piece in pieces(cell)
            if not isinstance(piece, Note)
        )
        notes = [str(piece) for piece in pieces(cell) if isinstance(piece, Note)]
        return len(textwrap.wrap(words, width)) + sum(
            len(textwrap.wrap(note, max(1, 4 * width // 3))) for note in notes
        )

    lines = [
        max([wrapped(cell, column.share) for cell, column in zip(line.cells, columns)], default=0)
        for line in block.lines
    ]
    return (
        wrapped(block.heading)
        + wrapped(block.note)
        + sum(lines)
        + sum(wrapped(line.below) for line in block.lines)
        + 1
    )


def _columns(columns: Sequence[Column]) -> str:
    """Returns the column specification. The columns share the width of the text minus the space between
    them.
    """
    width = rf"\linewidth-{2 * len(columns) - 2}\tabcolsep"
    cells = []
    for index, column in enumerate(columns):
        # cells of the first column often wrap; their later lines are indented
        aligned = (_RIGHT if column.role == "n" else _LEFT) + ("" if index else r"\hangindent=1em")
        cells.append(rf">{{{aligned}}}p{{\dimexpr({width})*{column.share}/100\relax}}")
    return f"@{{}}{''.join(cells)}@{{}}"


def _head(table: Table) -> list[str]:
    """Returns the row of column headings between rules."""
    return [r"\toprule", " & ".join(text(column.head) for column in table.columns) + r" \\", r"\midrule"]


def _block(block: Block, columns: Sequence[Column]) -> list[str]:
    """Returns the rows of a block. No page break separates the heading from the first line, or a line from
    the text below it.
    """
    rows: list[tuple[str, bool]] = []  # row, and whether the next row must be on the same page
    if block.heading:
        note = rf"\newline {{\scriptsize {text(block.note)}}}" if block.note else ""
        rows.append((_across(_heading(block) + note, columns), True))
    for line in block.lines:
        if line.cells:
            rows.append((" & ".join(map(text, line.cells)), bool(line.below)))
        if line.below:
            rows.append((_across((r"\scriptsize " if line.cells else "") + text(line.below), columns), False))
    # A row ends in \\, or in \\* if no page break may follow. LaTeX would read a [ or * at the start of the
    # next row as an argument of \\; an empty group {} before it prevents this.
    lines = [
        f"{'{}' if row[:1] in ('[', '*') else ''}{row} {chr(92) * 2}{'*' if joined else ''}"
        for row, joined in rows
    ]
    # Texts below a line and headings span all columns. Space follows the texts, but not a heading, which
    # comes first.
    is_text = [index > 0 and line.startswith(r"\TTacross") for index, line in enumerate(lines)]
    spaced = [f"{line}\n\\addlinespace[2pt]" if space else line for line, space in zip(lines, is_text)]
    return [*spaced, r"\addlinespace[2pt]"] if lines else []


def _heading(block: Block) -> str:
    """Returns the heading of a block. Its source and note are not in its font."""
    face = r"\textbf" if block.strong else r"\emph"
    rest = "".join(
        f"~{_piece(piece)}" if isinstance(piece, Source) else f" {prose(piece)}" for piece in block.beside
    )
    return rf"{face}{{{text(block.title).strip()}}}{rest}"


def _across(content: str, columns: Sequence[Column]) -> str:
    """Returns a row with one cell that spans all columns."""
    return rf"\TTacross{{{len(columns)}}}{{{content}}}"


# ---- the folder


def latex_folder(
    combined: Aggregate,
    *,
    folders: Sequence[str] = (),
    checksums: Sequence[Mapping[str, str]] = (),
    drawn: Drawn | None = None,
) -> tuple[dict[str, bytes], list[str]]:
    """Returns the contents of the files by name, and one sentence per figure that could not be drawn.

    Args:
        combined: the results.
        folders: folders of the results, in the order of the results; empty if the results are not stored.
        checksums: for each result, a mapping from file name to SHA-256; empty if the results are not stored.
        drawn: figures as files; if None, they are drawn here.
    """
    drawn = drawn or draw(pictures(combined))
    texts = _texts(combined, drawn.shown, folders, checksums)
    return {name: text.encode() for name, text in texts.items()} | {
        f"figures/{name}": data for name, data in drawn.files.items()
    }, drawn.failed


def _texts(
    combined: Aggregate,
    shown: Sequence[Picture],
    folders: Sequence[str] = (),
    checksums: Sequence[Mapping[str, str]] = (),
) -> dict[str, str]:
    """Returns the files of the folder except the figures; the example document includes those ``shown``."""
    texts = {"all.tex": all_theories(combined)}
    software = sentence(combined.results)
    leading: list[tuple[str, str]] = []
    rungs = rung_results(combined)
    if (numbers := tables.reach(rungs)) is not None:
        said = [rf"\textbf{{{prose(title)}}}: {prose(text)}." for title, text in reach_statements(rungs)]
        texts["reach.tex"] = _items(said) + floats(numbers, software)
        leading.append(("Reach", "reach"))
    if found := itemize(findings(combined)):
        texts["findings.tex"] = found
        leading.append(("Findings", "findings"))
    inputs: list[tuple[str, Theory | None]] = []
    for name, theory, theory_tables in _theories(combined):
        texts[f"{name}.tex"] = "\n".join(longtable(table, software) for table in theory_tables)
        inputs.append((name, theory))
    if (networks := number_tables.networks(combined)) is not None:
        texts["networks.tex"] = longtable(networks, software)
        inputs.append(("networks", None))
    texts["macros.tex"] = definitions(combined)
    texts["appendix.tex"] = longtable(number_tables.provenance(combined, folders, checksums))
    texts["references.bib"] = references(combined.results, theories=combined.theories)
    texts["example.tex"] = _example(combined, inputs, shown, leading)
    return texts


def names(combined: Aggregate) -> list[str]:
    """Lists the files that :func:`latex_folder` may write, without drawing; figures that turn out to be empty
    are listed too.
    """
    possible = pictures(combined)
    return [*_texts(combined, possible), *(f"figures/{name}" for name in file_names(possible))]


def _theories(combined: Aggregate) -> Iterator[tuple[str, Theory, list[Table]]]:
    """Yields the file name, the theory and the tables of each theory that has a table. Equal names or labels
    are numbered.
    """
    with_tables = [
        (theory, theory_tables)
        for theory in combined.theories
        if (theory_tables := number_tables.of_theory(combined, theory))
    ]
    labels = format.unique(format.slug(theory.name) for theory, _ in with_tables)
    for (theory, theory_tables), label, name in zip(
        with_tables, labels, format.unique(_file_name(theory) for theory, _ in with_tables)
    ):
        slug = format.slug(theory.name)
        yield (
            name,
            theory,
            [replace(table, name=f"{label}{table.name.removeprefix(slug)}") for table in theory_tables],
        )


def _file_name(theory: Theory) -> str:
    """Returns the theory's name if every file system accepts it, otherwise its slug. A name in :data:`OWN`
    gets a prefix.
    """
    name = theory.name if re.fullmatch(r"[a-z0-9_]+", theory.name) else format.slug(theory.name)
    return f"theory-{name}" if name in OWN else name


def _example(
    combined: Aggregate,
    inputs: Sequence[tuple[str, Theory | None]],
    shown: Sequence[Picture],
    leading: Sequence[tuple[str, str]],
) -> str:
    """Returns the example document, with the leading sections (title, file), one per theory and one for the
    networks.
    """
    number = example(macros(combined))
    macro_text = (
        rf"A number in the text is a macro: {typewriter(chr(92) + number.name)} is \{number.name}."
        if number
        else ""
    )
    sections = [line for title, name in leading for line in (rf"\section{{{title}}}", rf"\input{{{name}}}")]
    for name, theory in inputs:
        panels = [picture for picture in shown if picture.theory == (theory.name if theory else None)]
        sections += [
            rf"\section{{{escape(theory.title if theory else 'Networks')}}}",
            rf"\input{{{name}}}",
            *map(_figure, panels),
        ]
    # Figures without a theory belong to the section on networks; without this section, they come last.
    if not any(theory is None for _, theory in inputs):
        sections += map(_figure, (picture for picture in shown if picture.theory is None))
    template = (TEMPLATES / "example.tex").read_text(encoding="utf-8")
    return _Template(template).substitute(
        packages=",".join(PACKAGES), software=software_key(), number=macro_text, sections="\n".join(sections)
    )


class _Template(Template):
    """A template with placeholders such as ``@{name}``, because a dollar begins a formula in LaTeX."""

    delimiter = "@"


def _figure(picture: Picture) -> str:
    """Returns the LaTeX code of a figure that does not float, because LaTeX limits the number of pending
    floats.
    """
    size = (
        ""
        if picture.name.endswith(f"-{IN_COLUMN}")
        else r"[width=\linewidth,height=0.8\textheight,keepaspectratio]"
    )
    image = rf"\includegraphics{size}{{figures/{picture.name}}}"
    title = rf"\\{{\small {escape(picture.title)}}}"
    return "\n".join(
        [r"\noindent\begin{minipage}{\linewidth}\centering", image, title, r"\end{minipage}\par\bigskip"]
    )
