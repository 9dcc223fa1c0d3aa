"""The table as data: columns, blocks of lines, cells. The page, LaTeX, Markdown and the terminal print the
same tables.

A cell is one of

* a text in which dollars enclose formulas;
* a :class:`Plain` text in which dollars have no meaning, used for names of data, networks and files;
* a :class:`~..core.sources.Source`;
* a tuple of these.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ..core.format import NOTHING
from ..core.sources import Source


class Plain(str):
    """A name, printed literally."""


class Code(Plain):
    """A command, a path or a checksum in typewriter type; a line may break inside it."""


class Note(str):
    """A remark in small type on a separate line."""


class StrongNote(Note):
    """A remark in bold."""


class Strong(Plain):
    """A number in bold."""


class Verdict(Plain):
    """The name of a verdict; the page shows it as a badge."""


Piece: TypeAlias = str | Source
Cell: TypeAlias = Piece | tuple[Piece, ...]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        head: heading.
        share: share of the width of the table, in per cent.
        role: "n" for numbers, "cite" for sources, "on" for places.
    """

    head: str
    share: int
    role: Literal["", "n", "cite", "on"] = ""


@dataclass(frozen=True)
class Line:
    """A line of a table: one cell per column, or no cells; then a text that spans all columns, or an empty
    text.
    """

    cells: tuple[Cell, ...]
    below: Cell = ""


@dataclass(frozen=True)
class Block:
    """Lines under a heading.

    Attributes:
        heading: text above the lines; empty without a heading.
        lines: the lines.
        note: text below the heading.
        strong: whether the heading is in bold; a strong heading also covers the blocks that follow it.
        theory: name of a theory; the heading links to its section on the page. Empty without a link.
    """

    heading: Cell
    lines: tuple[Line, ...] = ()
    note: Cell = ""
    strong: bool = False
    theory: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: identifier of lower-case letters, digits and hyphens.
        caption: text above the table.
        columns: the columns.
        blocks: the lines, in blocks.
        legend: explanation of the columns, printed after the caption in LaTeX and Markdown; the page explains
            them elsewhere.
    """

    name: str
    caption: Cell
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]
    legend: str = ""

    @property
    def lines(self) -> list[Line]:
        """The lines of all blocks."""
        return [line for block in self.blocks for line in block.lines]

    def without_empty(self) -> "Table":
        """Removes columns that are empty in every line. The first column stays, and their width is added to
        it.
        """
        lines = [line for line in self.lines if line.cells]
        indices = [
            i
            for i in range(len(self.columns))
            if i == 0 or any(line.cells[i] not in ("", NOTHING, ()) for line in lines)
        ]
        first, *rest = (self.columns[i] for i in indices)
        columns = (replace(first, share=100 - sum(column.share for column in rest)), *rest)
        select = lambda line: replace(line, cells=tuple(line.cells[i] for i in indices) if line.cells else ())  # noqa: E731
        blocks = tuple(replace(block, lines=tuple(map(select, block.lines))) for block in self.blocks)
        return replace(self, columns=columns, blocks=blocks)


def pieces(cell: Cell) -> tuple[Piece, ...]:
    """Returns the pieces of a cell; an empty cell has no pieces."""
    return cell if isinstance(cell, tuple) else (cell,) if cell else ()
