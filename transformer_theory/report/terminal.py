"""Tables for a terminal with at least 80 columns. Names are never cut, so that they can be copied."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..comparison.changes import changes as changed
from ..comparison.interventions import judged_interventions
from ..comparison.judged import findings, headlines, quantities, rung_results, with_headlines
from ..comparison.pooling import NETWORK, aggregate
from ..core import format
from ..core.claim_table import verdict
from ..core.math_text import plain
from ..core.measurement import Measurement
from ..core.result import Result
from ..core.sources import Source
from ..core.theory import Theory
from ..theories import list_theories
from . import changes, interventions, number_tables, tables
from .sentences import (
    MEANING_OF_P,
    NAMED_PLACES,
    NOTHING,
    network_statements,
    other_outcomes,
    reach_statements,
    sentences,
    subject,
)
from .tables import Cell, Note, Plain, Strong, StrongNote, pieces
from .token_sentences import token_statements

_OUTCOME_STYLES = {"as predicted": "green", "opposite": "bold red"}
_BASIS = {"theory": "theory", "limit": "limit", **number_tables.BASIS_TEXT}


def summary(result: Result, *, theories: Iterable[Theory] | None = None) -> Group:
    """Returns what a comparison found: the sentences, the headlines of each theory with their nulls and
    p-values, and the claims.
    """
    combined = aggregate(result, theories=theories)
    found = findings(combined)
    parts: list[RenderableType] = [
        Text(f"Theories of transformers on {result.settings.get('data', 'the data')}", style="bold")
    ]
    parts += [Padding(Text(plain(sentence)), (1, 0, 0, 2)) for sentence in sentences(found)]
    if (headlines := tables.findings(found)) is not None:
        explained = f"{format.counted(found.tests, 'test')}; the page explains the columns and the outcomes."
        parts.append(Padding(Text(explained, style="dim"), (1, 0, 0, 0)))
        parts.append(table(headlines, without=("prediction", "effect")))
    claims = [
        Text(f"  {plain(theory.title)}: {plain(number_tables.claims_text(verified))}")
        for theory in combined.theories
        if (verified := combined.claims_of(theory))
    ]
    return Group(*parts, *([Text("\nGenerated instances", style="bold"), *claims] if claims else []))


def reach(result: Result, *, theories: Iterable[Theory] | None = None) -> Group:
    """Returns how far the theories reach: the sentences, and one line per rung."""
    rungs = rung_results(aggregate(result, theories=theories))
    said = [
        Padding(Text(plain(f"{title}: {text}.")), (0, 0, 1, 2)) for title, text in reach_statements(rungs)
    ]
    numbers = tables.reach(rungs)
    return Group(*said, *([] if numbers is None else [table(numbers, without=("prediction", "p (q)"))]))


def table(shown: tables.Table, *, without: Sequence[str] = ()) -> Group:
    """Returns a table of the report: the heads of its columns, then a heading and the lines of each block.

    The column "outcome" is coloured.

    Args:
        shown: the table.
        without: heads of columns that are left out, for want of width.
    """
    kept = [(i, column) for i, column in enumerate(shown.columns) if column.head not in without]

    def grid(cells: Sequence[Text]) -> Table:
        line = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, show_header=False)
        for _, column in kept:
            line.add_column(ratio=column.share, vertical="top")
        line.add_row(*cells)
        return line

    def styled(cell: Cell, head: str) -> Text:
        known = head == "outcome" and cell
        return _text(cell, _OUTCOME_STYLES.get(str(pieces(cell)[0]), "") if known else "")

    parts: list[RenderableType] = [grid([Text(column.head, style="dim") for _, column in kept])]
    for block in shown.blocks:
        if block.heading:
            parts.append(Text("\n").append(_text(block.heading, "bold")))
        for line in block.lines:
            if line.cells:
                parts.append(grid([styled(line.cells[i], column.head) for i, column in kept]))
            parts += [_text(line.below, "dim")] if line.below else []
    return Group(*parts)


def _text(cell: Cell, style: str = "") -> Text:
    """Returns a cell as text; each note begins a new line, in dim type."""
    text = Text()
    for piece in pieces(cell):
        if isinstance(piece, Source):
            text.append(piece.label, style="dim")
        elif isinstance(piece, Note):
            strong = "bold" if isinstance(piece, StrongNote) else "not bold dim"
            text.append(f"{chr(10) if text.plain else ''}{plain(piece)}", style=strong)
        else:
            words = str(piece) if isinstance(piece, Plain) else plain(piece)
            text.append(words, style="bold" if isinstance(piece, Strong) else style)
    return text


def measurements(rows: Sequence[Measurement]) -> Table:
    """Returns a table with one line per row: value, reference and its origin, null, threshold and verdict.
    Empty columns are omitted.
    """
    cells = {
        "measured": [format.value_text(row) if row.value is not None else row.reason for row in rows],
        "reference": [_reference(row) for row in rows],
        "origin": [_BASIS[row.basis] if _reference(row) else "" for row in rows],
        "null": [format.null_median(row) for row in rows],
        "threshold": [format.threshold(row.op, row.threshold, row.unit) for row in rows],
    }
    verdicts = [verdict(row.verdict or "") for row in rows]
    columns = {name: column for name, column in cells.items() if name == "measured" or any(column)}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("quantity", min_width=20)
    for name in columns:
        right = name in ("measured", "reference", "null")
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=name != "origin" and all(row.value is not None for row in rows),
        )
    if any(verdicts):
        table.add_column("verdict")
    for i, row in enumerate(rows):
        where = format.place(row, "setting", "model", "rung", "layer", "head", "step", "seed")
        quantity = f"{format.label(row)} ({where})" if where else format.label(row)
        table.add_row(
            Text(quantity),
            *(Text(column[i]) for column in columns.values()),
            *([verdicts[i]] if any(verdicts) else []),
        )
    return table


def _reference(row: Measurement) -> str:
    """Returns the prediction; empty if it is the same number as the threshold."""
    same = row.op is not None and row.basis == "theory" and row.predicted == row.threshold
    return "" if row.predicted is None or same else format.amount(row.predicted, row.unit)


def heads(result: Result, *, brief: bool = False) -> Group:
    """Returns a summary of a measured network: what stands out, and per theory the judged quantities with the
    strongest places.

    Args:
        result: result of ``measure``.
        brief: whether to leave out the quantities, for a result that has a page.
    """
    theories = aggregate(result).theories
    found = quantities(result, theories)
    chosen = headlines(found, theories)
    parts: list[RenderableType] = [Text(plain(subject(result)), style="bold")]
    said = network_statements(chosen, found)
    parts += [] if said else [Padding(Text(NOTHING), (1, 0, 0, 2))]
    for title, text, meaning in [*said, *token_statements(result, found)]:
        sentence = Text(f"{plain(title)}: ", style="bold").append(f"{plain(text)}.", style="not bold")
        parts.append(
            Padding(
                sentence.append(f" {format.sentence_case(meaning)}." if meaning else "", style="dim"),
                (1, 0, 0, 2),
            )
        )
    others = Text()
    for outcome, names in other_outcomes(chosen, found):
        others.append(f"{format.sentence_case(outcome)}: ", style="bold").append(f"{plain(names)}. ")
    parts.append(Padding(others, (1, 0, 0, 2)))
    parts += _changed(result, theories)
    if said := interventions.sentences(judged_interventions(result), theories):
        parts.append(Text("\nInterventions", style="bold"))
    for title, text in said:
        sentence = Text(f"{plain(title)}: ", style="bold").append(f"{plain(text)}.", style="not bold")
        parts.append(Padding(sentence, (0, 0, 0, 2)))
    for theory in theories if not brief else ():
        own = tables.in_network(with_headlines(found, chosen), theory)
        if own["table"] is not None or own["reasons"]:
            title = Text(f"\n{plain(theory.title)}", style="bold")
            parts.append(title.append(f" · {plain(theory.question)}", style="not bold dim"))
        parts += [] if own["table"] is None else [table(own["table"], without=("prediction", "effect"))]
        parts += [
            Text(f"  {plain(labels)}: not measured: {reason}", style="dim")
            for labels, reason in own["reasons"]
        ]
    parts.append(
        Text(
            f"\n{MEANING_OF_P} {NAMED_PLACES}",
            style="dim",
        )
    )
    return Group(*parts)


def _changed(result: Result, theories: Sequence[Theory]) -> list[RenderableType]:
    """Returns what differs from a second network; nothing without one."""
    found = changed(result, theories)
    if found is None:
        return []
    parts: list[RenderableType] = [Text(f"\n{changes.heading(found)}", style="bold")]
    said = changes.sentences(found)
    parts += [] if said else [Padding(Text(changes.NOTHING), (0, 0, 0, 2))]
    for title, text, _ in said:
        sentence = Text(f"{plain(title)}: ", style="bold").append(f"{plain(text)}.", style="not bold")
        parts.append(Padding(sentence, (0, 0, 1, 2)))
    rest = Text()
    for outcome, names in changes.others(found):
        rest.append(f"{format.sentence_case(outcome)}: ", style="bold").append(f"{plain(names)}. ")
    remark = f"{found.left_out}. " if found.left_out else ""
    return [*parts, Padding(rest, (0, 0, 0, 2)), Text(f"{remark}{changes.MEANING}", style="dim")]


def effects(result: Result) -> Group:
    """Returns what interventions in a network did: one line per intervention."""
    found = judged_interventions(result)
    title = Text(f"{result.settings.get('model', 'network')}: interventions", style="bold")
    return Group(title, table(tables.interventions(found, list_theories()), without=("prediction", "effect")))


def networks(result: Result) -> Table:
    """Returns the results of the trained networks, one line per quantity and network. A line without a value
    states the reason.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=True)
    for name, share in (("quantity", 4), ("network", 3), ("measured", None), ("remarks", 9)):
        table.add_column(name, ratio=share, justify="right" if share is None else "left")
    previous = ""
    for row in result.select(theory=NETWORK, kind="network", step=None):
        quantity = format.label(row)
        value = "" if row.value is None else format.of_row(row.value, row)
        remark = row.reason if row.value is None else "; ".join(filter(None, (_samples(row), row.note)))
        table.add_row(
            Text("" if quantity == previous else quantity), Text(row.model), value, Text(remark, style="dim")
        )
        previous = quantity
    return table


def _samples(row: Measurement) -> str:
    """Formats the number of samples of a row and the interval of its value."""
    interval = f"95 % interval {format.interval_text(row)}" if row.interval is not None else ""
    return ", ".join(filter(None, ("" if row.n is None else f"{row.n:,} samples", interval)))
