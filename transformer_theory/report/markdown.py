"""The tables in Markdown as GitHub reads it, for notes and README files: formulas stay between dollars, sources are links."""

import re

from ..core.sources import Source
from . import tables, wording
from .latex_text import CODE, FORMULA
from .merged import Merged
from .tables import Cell, Code, Plain, Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~$#])")


def markdown(merged: Merged, provenance: Table) -> str:
    """All tables of the merged results: over all theories, of each theory, of the networks, and where the numbers come from."""
    parts = ["# Results", table(tables.overall(merged))]
    for theory in merged.theories:
        parts += [f"## {text(theory.title)}", *([text(theory.question)] if theory.question else [])]
        parts += [table(one) for one in tables.of_theory(merged, theory)]
    if (networks := tables.networks(merged)) is not None:
        parts += ["## Networks", table(networks)]
    parts += ["## Where the numbers come from", table(provenance)]
    return "\n\n".join(parts) + "\n"


def table(shown: Table) -> str:
    """A table under its caption. What stands over all columns is the first cell of its line."""
    width = len(shown.columns)
    lines = [
        text(shown.caption),
        "",
        _line([column.head for column in shown.columns]),
        _line(["--:" if column.align == "right" else ":--" for column in shown.columns]),
    ]
    for block in shown.blocks:
        if block.heading:
            face = "**" if block.strong else "*"
            note = f"<br>{text(block.note)}" if block.note else ""
            lines.append(_line([f"{_faced(face, block.heading)}{note}", *[""] * (width - 1)]))
        for line in block.lines:
            cells = [text(cell) for cell in line.cells] or [""] * width
            if line.below:
                cells[0] = "<br>".join(filter(None, (cells[0], text(line.below))))
            lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _faced(face: str, heading: Cell) -> str:
    pieces = heading if isinstance(heading, tuple) else (heading,)
    words = "".join(text(piece) for piece in pieces if not isinstance(piece, Source)).strip()
    sources = [text(piece) for piece in pieces if isinstance(piece, Source)]
    return " ".join([f"{face}{words}{face}", *sources])


def text(cell: Cell) -> str:
    """A cell: names escaped, formulas kept, sources as links."""
    if isinstance(cell, tuple):
        return "".join(map(text, cell))
    if isinstance(cell, Source):
        return f"[{escape(cell.label)}]({cell.url})" if cell.url else escape(cell.label)
    if isinstance(cell, Code):
        return code(cell)
    return escape(cell) if isinstance(cell, Plain) else prose(cell)


def code(plain: str) -> str:
    """A span of code that backticks within it do not end, and bars do not break."""
    plain = " ".join(plain.split()).replace("|", r"\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence} {plain} {fence}" if "`" in plain else f"{fence}{plain}{fence}"


def escape(plain: str) -> str:
    r"""Plain text: what Markdown and HTML would read as a sign is shown as it is, on one line."""
    plain = re.sub(r"[^\S\u00a0]+", " ", plain)
    return _SPECIAL.sub(r"\\\1", plain.replace("&", "&amp;")).replace(r"\<", "&lt;").replace(r"\>", "&gt;")


def prose(words: str) -> str:
    r"""Text with formulas between dollars, which stay; a bar in them, which would end the cell, becomes a command."""
    parts = CODE.split(words)
    return "".join(code(part) if i % 2 else _without_code(part) for i, part in enumerate(parts))


def _without_code(words: str) -> str:
    parts = FORMULA.split(wording.formulas(words))
    return "".join(_formula(part) if i % 2 else escape(part.replace(r"\$", "$")) for i, part in enumerate(parts))


def _formula(latex: str) -> str:
    for sign, command in ((r"\|", r"\Vert "), ("|", r"\vert "), ("<", r"\lt "), (">", r"\gt ")):
        latex = latex.replace(sign, command)
    return f"${' '.join(latex.split())}$"
