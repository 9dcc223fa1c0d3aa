r"""LaTeX: tables (booktabs) with a ``\cite`` in each row, and a folder of files for a paper.

Tables that may be long use longtable, which breaks across pages. The table of all theories is a float,
because longtable does not work in two-column documents: the findings, or, for results without findings, the
rungs of a reach or the summary, as a sequence of floats of at most a page each.

:func:`latex_folder` makes the folder, ready for ``\input``:

* ``table-column.tex``, ``table-page.tex``: one table, a line per theory, for a column and for a page;
* ``figures/column``, ``figures/page``: one figure as PDF and SVG;
* ``sentences.tex``: what was found, as a list;
* ``macros.tex``: a macro for every number; ``macros.html``: the same list with a search field;
* ``references.bib``: the cited works; ``example.tex``: a page that shows all of these and compiles with
  pdflatex and bibtex;
* on request an appendix, ``appendix.tex``: ``headlines.tex`` or ``reach.tex``, the tables of each theory,
  those of the trained networks, the provenance of the numbers, and all figures.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from string import Template

from ..comparison.judged import Findings, findings, is_of_one_network, rung_results
from ..comparison.pooling import NETWORK, REACH, Aggregate, aggregate
from ..core import format
from ..core.math_text import escape, prose, typewriter
from ..core.result import Result
from ..core.sources import Source
from ..core.theory import Theory
from . import changes, interventions, number_tables, side_by_side, tables
from .figures import Drawn, Picture, draw, file_names, for_paper, pictures
from .html import TEMPLATES
from .macros import Macro, definitions, example, macros
from .macros import index as index_page
from .origins import behind, references, sentence, software_key
from .paper import COLUMN, PAGE, parts
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
OWN = (
    *("table-column", "table-page", "sentences", "macros", "example"),
    *("appendix", "headlines", "reach", "networks", "provenance"),
)


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


def floats(table: Table, software: str = "", *, environment: str = "table*") -> str:
    """Returns the LaTeX of a table as floats that fit on a page each. The captions of later floats refer to
    the first.

    Args:
        table, software: see :func:`longtable`.
        environment: ``table`` for a float as wide as a column.
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
            rf"\begin{{{environment}}}",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}\setlength{\belowcaptionskip}{6pt}",
            caption,
            rf"\begin{{tabular}}{{{_columns(table.columns)}}}",
            *_head(table),
            *(line for block in blocks for line in _block(block, table.columns)),
            r"\bottomrule",
            r"\end{tabular}",
            rf"\end{{{environment}}}",
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
    appendix: bool = False,
    folders: Sequence[str] = (),
    checksums: Sequence[Mapping[str, str]] = (),
    drawn: Drawn | None = None,
) -> tuple[dict[str, bytes], list[str]]:
    """Returns the contents of the files by name, and one sentence per figure that could not be drawn.

    Args:
        combined: the results.
        appendix: whether all tables and figures and the provenance are written as well.
        folders: folders of the results, in the order of the results; empty if the results are not stored.
        checksums: for each result, a mapping from file name to SHA-256; empty if the results are not stored.
        drawn: figures as files; if None, they are drawn here.
    """
    drawn = drawn or draw(folder_pictures(combined, appendix=appendix))
    texts = _texts(combined, drawn.shown, appendix, folders, checksums)
    return {name: text.encode() for name, text in texts.items()} | {
        f"figures/{name}": data for name, data in drawn.files.items()
    }, drawn.failed


def folder_pictures(combined: Aggregate, *, appendix: bool = False) -> list[Picture]:
    """Returns the figures of the folder: that of a paper for a page and for a column, and on request all."""
    others = [one for one in pictures(combined) if not one.name.endswith(f"-{COLUMN}")] if appendix else []
    return [*for_paper(combined), *others]


def _texts(
    combined: Aggregate,
    shown: Sequence[Picture],
    appendix: bool = False,
    folders: Sequence[str] = (),
    checksums: Sequence[Mapping[str, str]] = (),
) -> dict[str, str]:
    """Returns the files of the folder except the figures; documents include those ``shown``."""
    content, software, named = parts(combined), _software(combined), macros(combined)
    texts = {
        f"table-{COLUMN}.tex": floats(content.column, software, environment="table"),
        f"table-{PAGE}.tex": floats(content.page, software),
        "macros.tex": definitions(combined, named),
        "macros.html": index_page(combined, named),
        "references.bib": references(combined.results, theories=combined.theories),
    }
    if content.sentences:
        texts["sentences.tex"] = _items([prose(each) for each in content.sentences])
    texts["example.tex"] = _example(example(named), bool(content.sentences), shown)
    return texts | (_appendix(combined, shown, folders, checksums) if appendix else {})


def _software(combined: Aggregate, theory: str = "", *, claims: bool = False) -> str:
    """Returns the sentence on version and commit of the results behind a table: that of a paper, or one of a
    theory, of its claims or of its other numbers.
    """
    if theory:
        return sentence(behind(combined, theory, claims=claims), (theory,))
    return sentence([result for result in combined.results if result.table] or list(combined.results))


def _appendix(
    combined: Aggregate,
    shown: Sequence[Picture],
    folders: Sequence[str],
    checksums: Sequence[Mapping[str, str]],
) -> dict[str, str]:
    """Returns the files of the appendix."""
    texts: dict[str, str] = {}
    sections: list[str] = []
    rungs, found = rung_results(combined), findings(combined)
    if found:
        texts["headlines.tex"] = all_theories(combined)
        sections += [r"\section{Headlines}", r"\input{headlines}"]
    if (numbers := tables.reach(rungs)) is not None:
        said = [rf"\textbf{{{prose(title)}}}: {prose(text)}." for title, text in reach_statements(rungs)]
        with_rungs = [result for result in combined.results if result.name == REACH]
        texts["reach.tex"] = _items(said) + longtable(numbers, sentence(with_rungs))
        sections += [r"\section{Reach}", r"\input{reach}"]
    placed: list[Picture] = []
    for name, theory, theory_tables in _theories(combined):
        texts[f"{name}.tex"] = "\n".join(
            longtable(table, _software(combined, theory.name, claims=table.name.endswith("-claims")))
            for table in theory_tables
        )
        own = [picture for picture in shown if picture.theory == theory.name and picture.name != PAGE]
        placed += own
        sections += [rf"\section{{{escape(theory.title)}}}", rf"\input{{{name}}}", *map(_figure, own)]
    if (networks := number_tables.networks(combined)) is not None:
        texts["networks.tex"] = longtable(networks, _software(combined, NETWORK))
        sections += [r"\section{Networks}", r"\input{networks}"]
    others = [picture for picture in shown if picture not in placed and picture.name not in (PAGE, COLUMN)]
    texts["provenance.tex"] = longtable(number_tables.provenance(combined, folders, checksums))
    sections += [*map(_figure, others), r"\section{Provenance of the numbers}", r"\input{provenance}"]
    return texts | {"appendix.tex": "\n".join([NEEDS.replace("xcolor", "xcolor,graphicx"), *sections, ""])}


def names(combined: Aggregate, *, appendix: bool = False) -> list[str]:
    """Lists the files that :func:`latex_folder` may write, without drawing; figures that turn out to be empty
    are listed too.
    """
    possible = folder_pictures(combined, appendix=appendix)
    return [*_texts(combined, possible, appendix), *(f"figures/{name}" for name in file_names(possible))]


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


def _example(number: Macro | None, listed: bool, shown: Sequence[Picture]) -> str:
    """Returns the example document: a page with a macro, the sentences, the table, the figure and the
    references.
    """
    macro_text = (
        rf"A number in the text is a macro: {typewriter(chr(92) + number.name)} is \{number.name}."
        if number
        else ""
    )
    narrow = [picture for picture in shown if picture.name == COLUMN]
    wide = [picture for picture in shown if picture.name == PAGE]
    body = [r"\input{sentences}"] if listed else []
    body += [rf"\input{{table-{COLUMN}}}"]
    if narrow:
        body += [_float(narrow[0], "")]
    elif wide:
        body += [_float(wide[0], r"[width=\linewidth,height=0.4\textheight,keepaspectratio]")]
    template = (TEMPLATES / "example.tex").read_text(encoding="utf-8")
    return _Template(template).substitute(
        packages=",".join(PACKAGES), software=software_key(), number=macro_text, body="\n".join(body)
    )


def _float(picture: Picture, size: str) -> str:
    """Returns the LaTeX of a figure with a caption."""
    title = escape(format.sentence_case(picture.title.partition(", as wide")[0]))
    return "\n".join(
        [
            r"\begin{figure}",
            r"\centering",
            rf"\includegraphics{size}{{figures/{picture.name}}}",
            rf"\caption{{{title}.}}",
            r"\end{figure}",
        ]
    )


class _Template(Template):
    """A template with placeholders such as ``@{name}``, because a dollar begins a formula in LaTeX."""

    delimiter = "@"


def _figure(picture: Picture) -> str:
    """Returns the LaTeX code of a figure that does not float, because LaTeX limits the number of pending
    floats.
    """
    size = r"[width=\linewidth,height=0.8\textheight,keepaspectratio]"
    image = rf"\includegraphics{size}{{figures/{picture.name}}}"
    title = rf"\\{{\small {escape(picture.title)}}}"
    return "\n".join(
        [r"\noindent\begin{minipage}{\linewidth}\centering", image, title, r"\end{minipage}\par\bigskip"]
    )
