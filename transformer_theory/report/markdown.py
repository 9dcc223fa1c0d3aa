"""The tables in GitHub's Markdown, for notes and README files. Formulas stay between dollars; sources become
links.
"""

import re

from ..core import format
from ..core.sources import Source
from ..core.statistics import LEVEL
from . import findings, reach_map, tables
from .aggregate import Aggregate
from .findings import Finding, Findings, sentences
from .math_text import spans
from .origins import sentence
from .reached import reached, statements
from .table_model import Cell, Code, Note, Piece, Plain, Strong, StrongNote, Table, pieces

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~$#])")


def markdown(aggregate: Aggregate, provenance: Table | None = None) -> str:
    """Returns the findings in sentences and as a matrix, then all tables: the summary, each theory, the
    networks and the provenance.

    Args:
        aggregate: the results.
        provenance: table of provenance; if None, a table without folders and checksums is made from the
            results.
    """
    found = findings.findings(aggregate)
    parts = ["# Results", *filter(None, (_prose(sentence(aggregate.results)),))]
    if cells := reached(aggregate):
        parts += ["\n".join(f"- **{_prose(title)}**: {_prose(text)}." for title, text in statements(cells))]
        parts += [table(part) for part in [reach_map.table(cells)] if part is not None]
    if found:
        parts += ["\n".join(f"- {_prose(line)}" for line in sentences(found)), matrix(found)]
    parts += [table(tables.summary(aggregate))]
    for theory in aggregate.theories:
        parts += [f"## {text(theory.title)}", *([text(theory.question)] if theory.question else [])]
        parts += [table(item) for item in tables.of_theory(aggregate, theory)]
    if (networks := tables.networks(aggregate)) is not None:
        parts += ["## Networks", table(networks)]
    parts += ["## Provenance of the numbers", table(provenance or tables.provenance(aggregate))]
    return "\n\n".join(parts) + "\n"


def matrix(found: Findings) -> str:
    """Formats the findings as a table with a line per theory and a column per view of the data and per
    network, and explains the marks.
    """
    columns = found.columns
    several = len({column[0] for column in columns}) > 1
    heads = [
        escape(f"{model if kind == 'network' else format.view_name(model)}{f', {data}' if several else ''}")
        for data, kind, model in columns
    ]
    lines = [_line(["theory", *heads]), _line([":--"] * (len(columns) + 1))]
    for theory in found.theories:
        cells = {column: found.at(theory, column) for column in columns}
        # The headline on data, and the one in networks.
        quantities = dict.fromkeys(cell.row.quantity for cell in cells.values() if cell is not None)
        name = "<br>".join([f"**{text(theory.title)}**", *map(_prose, quantities)])
        lines.append(_line([name, *("" if cell is None else _finding(cell) for cell in cells.values())]))
    marks = (
        f"Bold: as predicted (false discovery rate at most {LEVEL:g}, "
        f"{format.several(found.tests, 'test')}); ↓: on the side opposite to the prediction; ≈: a null "
        "gives as much. In brackets: the 95 % interval. A: agreement with a predicted number (0: chance, "
        "1: prediction)."
    )
    return "\n".join([*lines, "", _prose(marks)])


def _finding(cell: Finding) -> str:
    """Formats one cell: the value with its interval and mark, null, noise, p-value and agreement, or the
    reason.
    """
    row = cell.row
    if row.value is None:
        return f"{format.NOTHING} {_prose(cell.reason)}"
    value = escape(findings.value_text(row))
    chance = f"≈ {value}"
    marked = {
        **dict.fromkeys(findings.FOUND, f"**{value}**"),
        "opposite": f"{value} ↓",
        "at chance": chance,
        "explained": chance,
    }
    value = marked.get(cell.outcome, value)
    numbers = [findings.against(row)]
    if row.scope == "any data":
        numbers.append("any data" if row.on_noise is None else f"noise {findings.short(row.on_noise, row)}")
    numbers += [f"p = {findings.p_text(row.p)}"] if row.p is not None else []
    numbers += [f"A = {format.number(row.agreement, 2)}"] if row.agreement is not None else []
    reason = _prose(cell.reason) if cell.outcome == "not tested" else ""
    return "<br>".join(filter(None, (value, escape(", ".join(filter(None, numbers))), reason)))


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
            title = tuple(piece for piece in pieces(block.heading) if not isinstance(piece, Source | Note))
            rest = [piece for piece in pieces(block.heading) if piece not in title]
            heading = " ".join(
                [
                    f"{mark}{text(title).strip()}{mark}",
                    *(text(piece) for piece in rest if isinstance(piece, Source)),
                ]
            )
            notes = [text(str(piece)) for piece in rest if isinstance(piece, Note) and piece]
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
    parts = []
    for kind, part in spans(words):
        if kind == "text":
            parts.append(escape(part))
        else:
            parts.append(code(part) if kind == "code" else _formula(part))
    return "".join(parts)


def _formula(latex: str) -> str:
    """Replaces the bars in a formula, which would end the table cell, and the signs < and >, which HTML would
    read as tags.
    """
    for sign, command in ((r"\|", r"\Vert "), ("|", r"\vert "), ("<", r"\lt "), (">", r"\gt ")):
        latex = latex.replace(sign, command)
    return f"${' '.join(latex.split())}$"
