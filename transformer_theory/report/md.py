"""The tables in GitHub's Markdown, for notes and README files. Formulas stay between dollars; sources become
links.
"""

import re

from ..comparison.judged import findings, rung_results
from ..comparison.pooling import Aggregate
from ..core.math_text import rendered_parts
from ..core.sources import Source
from . import changes, interventions, number_tables, side_by_side, tables
from .origins import sentence
from .sentences import reach_statements, sentences
from .tables import Cell, Code, Note, Piece, Plain, Strong, StrongNote, Table, pieces

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~$#])")


def markdown(aggregate: Aggregate, provenance: Table | None = None) -> str:
    """Returns what was found in sentences and as tables of judged rows, then all other tables: the summary,
    each theory, the networks and the provenance.

    Args:
        aggregate: the results.
        provenance: table of provenance; if None, a table without folders and checksums is made from the
            results.
    """
    parts = ["# Results", *filter(None, (_prose(sentence(aggregate.results)),))]
    rungs, found = rung_results(aggregate), findings(aggregate)
    if rungs:
        parts.append(
            "\n".join(f"- **{_prose(title)}**: {_prose(text)}." for title, text in reach_statements(rungs))
        )
    if found:
        parts.append("\n".join(f"- {_prose(line)}" for line in sentences(found)))
    changed = interventions.found_in(aggregate.results)
    side = side_by_side.of(found, changed)
    judged = (
        tables.reach(rungs),
        None if side is None else side_by_side.table(side),
        tables.findings(found, tables.absent(aggregate, found), changed),
    )
    parts += [table(each) for each in judged if each is not None]
    parts += [table(number_tables.summary(aggregate))]
    for theory in aggregate.theories:
        parts += [f"## {text(theory.title)}", *([text(theory.question)] if theory.question else [])]
        parts += [table(item) for item in number_tables.of_theory(aggregate, theory)]
    if (networks := number_tables.networks(aggregate)) is not None:
        parts += ["## Networks", table(networks)]
    for result in aggregate.results:
        if (paired := changes.of_result(result, aggregate.theories)) is not None:
            parts += [f"## {text(str(paired.caption).rstrip('.'))}", table(paired)]
    if changed:
        parts += ["## Interventions", table(tables.interventions(changed, aggregate.theories))]
    parts += ["## Provenance of the numbers", table(provenance or number_tables.provenance(aggregate))]
    return "\n\n".join(parts) + "\n"


def table(source: Table) -> str:
    """Formats a table below its caption.

    A Markdown cell cannot span several columns. A text that spans them elsewhere becomes the first cell of
    its line.
    """
    width = len(source.columns)
    caption = " ".join(filter(None, (text(source.caption), text(source.legend))))
    lines = [caption, "", _line([column.head for column in source.columns])]
    lines.append(_line(["--:" if column.role == "n" else ":--" for column in source.columns]))
    for block in source.blocks:
        if block.heading:
            mark = "**" if block.strong else "*"
            sources = [text(piece) for piece in block.beside if isinstance(piece, Source)]
            heading = " ".join([f"{mark}{text(block.title).strip()}{mark}", *sources])
            notes = [text(str(piece)) for piece in block.beside if isinstance(piece, Note) and piece]
            heading = "<br>".join([heading, *notes, *([text(block.note)] if block.note else [])])
            lines.append(_line([heading, *[""] * (width - 1)]))
        for line in block.lines:
            cells = [text(cell) for cell in line.cells] or [""] * width
            if line.below:
                cells[0] = "<br>".join(filter(None, (cells[0], text(line.below).removeprefix("<br>"))))
            lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def text(cell: Cell) -> str:
    """Formats a cell: names are escaped, formulas stay, sources become links, and each note begins a new
    line.
    """
    return "".join(map(_piece, pieces(cell)))


def _piece(piece: Piece) -> str:
    if isinstance(piece, Source):
        return f"[{escape(piece.label)}]({piece.url})" if piece.url else escape(piece.label)
    if isinstance(piece, Note):
        return (
            f"<br>**{_prose(piece)}**"
            if isinstance(piece, StrongNote)
            else f"<br>{_prose(piece)}"
            if piece
            else ""
        )
    if isinstance(piece, Strong):
        return f"**{escape(piece)}**"
    if isinstance(piece, Code):
        return code(piece)
    return escape(piece) if isinstance(piece, Plain) else _prose(piece)


def code(name: str) -> str:
    """Formats a span of code. Its fence is longer than any run of backticks in it; bars are escaped, because
    a bar ends a table cell.
    """
    name = " ".join(name.split()).replace("|", r"\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", name)), default=0))
    return f"{fence} {name} {fence}" if "`" in name else f"{fence}{name}{fence}"


def escape(name: str) -> str:
    r"""Escapes plain text, so that Markdown and HTML print it literally, and joins its lines."""
    # each run of white space becomes one blank; no-break spaces stay
    name = re.sub(r"[^\S\u00a0]+", " ", name)
    return _SPECIAL.sub(r"\\\1", name.replace("&", "&amp;")).replace(r"\<", "&lt;").replace(r"\>", "&gt;")


def _prose(words: str) -> str:
    """Formats a text: formulas between dollars stay, code between backticks becomes a span of code, the rest
    is escaped.
    """
    return "".join(rendered_parts(words, escape, code, _formula))


def _formula(latex: str) -> str:
    """Replaces the bars in a formula, which would end the table cell, and the signs < and >, which HTML would
    read as tags.
    """
    for sign, command in ((r"\|", r"\Vert "), ("|", r"\vert "), ("<", r"\lt "), (">", r"\gt ")):
        latex = latex.replace(sign, command)
    return f"${' '.join(latex.split())}$"
