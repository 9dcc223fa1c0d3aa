"""The table as data: columns, blocks of lines, cells. The page, LaTeX, Markdown and the terminal print the same tables.

A cell is a text, in which dollars enclose formulas, or a :class:`Plain` text, in which nothing is a formula (names of data, networks and
files, which are the user's), or a :class:`~..core.sources.Source`, or a tuple of these.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ..core.sources import Source
from .format import NOTHING


class Plain(str):
    """A name: shown letter by letter."""


class Code(Plain):
    """A command, a path or a checksum: in typewriter type, broken where it has to be."""


class Note(str):
    """A remark in small type, on a line of its own."""


class StrongNote(Note):
    """A remark in bold."""


class Strong(Plain):
    """A number in bold."""


class Verdict(Plain):
    """The name of a verdict: a badge on the page."""


Piece: TypeAlias = str | Source
Cell: TypeAlias = Piece | tuple[Piece, ...]


@dataclass(frozen=True)
class Column:
    """Its heading, its share of the width in per cent, and its role: "n" for numbers, "cite" for sources, "on" for places."""

    head: str
    share: int
    role: Literal["", "n", "cite", "on"] = ""


@dataclass(frozen=True)
class Line:
    """A cell for each column (or none), and what stands below them over the whole width."""

    cells: tuple[Cell, ...]
    below: Cell = ""


@dataclass(frozen=True)
class Block:
    """Lines under a heading; a strong heading is one of blocks that follow, too. ``theory`` names the section it belongs to."""

    heading: Cell
    lines: tuple[Line, ...] = ()
    note: Cell = ""
    strong: bool = False
    theory: str = ""


@dataclass(frozen=True)
class Table:
    """A table; ``name`` is made of small letters and hyphens, ``legend`` follows the caption where the reader has nothing but the table."""

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
        """The table without columns that are empty in every line; the first column gets their width."""
        lines = [line for line in self.lines if line.cells]
        kept = [at for at in range(len(self.columns)) if not at or any(line.cells[at] not in ("", NOTHING, ()) for line in lines)]
        first, *rest = (self.columns[at] for at in kept)
        columns = (replace(first, share=100 - sum(column.share for column in rest)), *rest)
        cut = lambda line: replace(line, cells=tuple(line.cells[at] for at in kept) if line.cells else ())  # noqa: E731
        blocks = tuple(replace(block, lines=tuple(map(cut, block.lines))) for block in self.blocks)
        return replace(self, columns=columns, blocks=blocks)


def pieces(cell: Cell) -> tuple[Piece, ...]:
    """The pieces of a cell."""
    return cell if isinstance(cell, tuple) else (cell,) if cell else ()
