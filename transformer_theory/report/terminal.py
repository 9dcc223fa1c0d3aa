"""The summary as a table for the terminal, made for 100 to 120 columns and whole in 80."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..core.result import Result
from ..core.sources import Source
from ..core.theory import Theory
from . import wording
from .views import RAW, Line, summary

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_STYLES = {"good": "green", "bad": "bold red", "unsure": "yellow", "outside": "cyan", "none": "dim"}


def table(result: Result, *, theories: Iterable[Theory] | None = None) -> "Table":
    """Theory, question, prediction on this data, measured, verdict, source: a block for each theory, a line for each view of the data."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True, title_justify="left")
    made.title = Text(f"Theories of transformers on {result.params.get('data', 'the data')}", style="bold")
    for name, least, share in (
        ("theory · question", 15, 5),
        ("prediction on this data", 18, 7),
        ("measured", 14, 1),
        ("verdict", 13, 4),
        ("source", 10, 5),
    ):
        made.add_column(name, width=least, ratio=share, vertical="top")
    lines = summary(result, theories)
    for theory in dict.fromkeys(line.theory.name for line in lines):
        own = [line for line in lines if line.theory.name == theory]
        if made.row_count:
            made.add_section()
        heads = [Text(own[0].theory.title, style="bold"), Text(plain(own[0].theory.question), style="dim"), *[Text()] * len(own)]
        if len(own) == 1:
            heads[0] = Text("\n").join(heads[:2])
        before: Line | None = None
        for line, head in zip(own, heads):
            said, (measured, verdict, source) = _said(line), _cells(line)
            if before is not None and said == _said(before) and line.trained == before.trained and "null" not in said:
                said = "the same"
            elif before is not None and line.row and before.row and line.row["quantity"] == before.row["quantity"] != "all":
                said = wording.prediction(line.row) if not wording.absent(line.row) else said
            if before is not None and source == _cells(before)[2]:
                source = Text("″" if source.plain else "")
            made.add_row(head, Text(said if line.view == RAW else f"{line.subject}: {said}"), measured, verdict, source)
            before = line
    return made


def _said(line: Line) -> str:
    """Quantity and prediction, or why there is none."""
    if line.row is None:
        return "not measured"
    if wording.absent(line.row):
        return plain(wording.verdict(line.row)[1] or line.row.get("note") or "")
    return f"{plain(line.row['quantity'].removesuffix(wording.TRAINED))} {wording.prediction(line.row)}"


def _cells(line: Line) -> "list[Text]":
    """Measured, verdict and source of a line."""
    from rich.text import Text

    row = line.row
    if row is None:
        return [Text(wording.NOTHING), Text(), Text()]
    null, source = row.get("null"), Source.find(row.get("source"))
    measured = Text(wording.number(row["value"]), style="bold")
    if null is not None:
        told = wording.beside_null(row) if line.trained or wording.missed(row) else ""
        side = {"above its null": "> ", "below its null": "< "}.get(told, "")
        measured.append(f"\n{side}null {wording.number(null)}", style="dim")
    return [measured, judged(wording.verdict(row)[0]), Text(source.label if source else "")]


def judged(name: str) -> "Text":
    """A verdict by its name, with its symbol and colour; nothing without one."""
    from rich.text import Text

    group, symbol = wording.kind(name)
    return Text(f"{symbol} {name}" if name else "", style=_STYLES[group])


def plain(text: str) -> str:
    r"""A quantity without the dollars and backslashes of its formulas, its ASCII mathematics in Unicode."""
    parts = re.split(r"\$([^$]*)\$", text)
    return "".join(re.sub(r"[\\{}]", "", part) if i % 2 else wording.symbols(part) for i, part in enumerate(parts))
