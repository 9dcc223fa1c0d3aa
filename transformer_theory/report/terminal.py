"""The summary as a table for the terminal, made for 100 to 120 columns."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..experiment import Result
from ..theory import Theory
from . import wording
from .views import RAW, cite, summary

if TYPE_CHECKING:
    from rich.table import Table

_STYLES = {"good": "green", "bad": "bold red", "unsure": "yellow", "outside": "cyan", "none": "dim"}


def table(result: Result, *, theories: Iterable[Theory] | None = None) -> "Table":
    """Theory, question, prediction on this data, measured, verdict, source: a block for each theory, a line for each view of the data."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_lines=False, expand=False, title_justify="left")
    made.title = Text(f"Theories of transformers on {result.params.get('data', 'the data')}", style="bold")
    for name, ratio in (("theory · question", 5), ("prediction on this data", 6), ("measured", 3), ("verdict", 4), ("source", 4)):
        made.add_column(name, ratio=ratio, overflow="fold", vertical="top")
    before = None
    for line in summary(result, theories):
        first = line.theory is not before
        if first and before is not None:
            made.add_section()
        before = line.theory
        head = Text()
        if first:
            head.append(line.theory.title, style="bold")
            head.append(f"\n{line.theory.question}" if line.theory.question else "")
        row = line.row
        if row is None:
            made.add_row(head, Text("not measured", style="dim"), wording.NOTHING, "", "")
            continue
        verdict, reason = wording.verdict(row)
        where = Text("" if line.view == RAW else f"{wording.subject(line.view)}: ", style="italic")
        if row["quantity"] == "all":
            said, measured = Text(reason), Text(wording.NOTHING)
        else:
            said = Text(f"{plain(row['quantity'])} {wording.prediction(row)}")
            null = row.get("null")
            measured = Text(wording.number(row["value"]) + (f"\n(null {wording.number(null)})" if null is not None else ""))
        group, symbol = wording.kind(verdict)
        source = cite(row.get("source"))
        made.add_row(head, where + said, measured, Text(f"{symbol} {verdict}", style=_STYLES[group]), source.label if source else "")
    return made


def plain(text: str) -> str:
    r"""A quantity without the dollars and backslashes of its formulas."""
    return re.sub(r"\$([^$]*)\$", lambda m: re.sub(r"[\\{}]", "", m[1]), text)
