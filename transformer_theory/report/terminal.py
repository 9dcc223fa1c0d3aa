"""Tables for a terminal of 80 columns or more; names are never cut, so that they can be copied."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..core.claims import CONTROL_TEXT, Verification
from ..core.measurement import Measurement
from ..core.result import Result
from ..core.sources import Source
from ..core.theory import Theory
from . import format, tables
from .aggregate import NETWORK, aggregate
from .formulas import spans
from .table_model import Cell, Note, Plain, Strong, StrongNote, Verdict, pieces

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table
    from rich.text import Text

_STYLES = {"good": "green", "bad": "bold red", "unsure": "yellow", "outside": "cyan", "none": "dim"}
_SUMMARY = (
    ("on", 14, 8),
    ("quantity and prediction", 18, 10),
    ("measured", 15, 9),
    ("verdict", 11, 6),
    ("source", 10, 7),
)  # least width, share
_BASIS = {"theory": "theory", "limit": "limit", **tables.BASIS_TEXT}


def summary(result: Result, *, theories: Iterable[Theory] | None = None) -> "Group":
    """The summary of all theories: a block per theory, a line per view of the data and per trained network."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [Text(f"Theories of transformers on {result.settings.get('data', 'the data')}", style="bold")]
    for block in tables.summary(aggregate(result, theories=theories)).blocks:
        title, _, question = pieces(block.heading)
        made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, show_header=len(parts) == 1, header_style="dim")
        below: list[RenderableType] = []
        for name, least, share in _SUMMARY:
            made.add_column(name, min_width=least, ratio=share, vertical="top")
        parts.append(Text(f"\n{plain(str(title))}", style="bold").append(f" · {plain(str(question))}", style="not bold dim"))
        for line in block.lines:
            if not line.cells:
                below.append(Padding(_cell(line.below), (0, 0, 0, 2)))
                continue
            on, quantity, prediction, value, null, judged, source = line.cells
            missing = not value
            measured = _cell(value)
            if not missing and null != format.NOTHING:
                middle, spread, *_ = pieces(null)  # the median, then the range of the draws
                measured.append(f"\nnull {middle}\n  {spread}", style="dim")
            shown = _cell(quantity, notes=missing)
            shown.append(f" {prediction}" if prediction and shown.plain else str(prediction))
            made.add_row(_cell(on), shown, measured, _cell(judged), _cell(source))
        parts += [made, *below]
    return Group(*parts)


def _cell(cell: Cell, *, notes: bool = True) -> "Text":
    from rich.text import Text

    text = Text()
    for piece in pieces(cell):
        if isinstance(piece, Source):
            text.append(piece.label)
        elif isinstance(piece, Note):
            if notes and piece:
                style = "bold" if isinstance(piece, StrongNote) else "dim"
                text.append(f"\n{plain(piece)}" if text.plain else plain(piece), style=style)
        elif isinstance(piece, Verdict):
            text.append_text(verdict(piece))
        else:
            text.append(str(piece) if isinstance(piece, Plain) else plain(piece), style="bold" if isinstance(piece, Strong) else "")
    return text


def verdict(name: str) -> "Text":
    """A verdict with its symbol and colour; nothing without one."""
    from rich.text import Text

    group, symbol = format.verdict_style(name) if name else ("none", "")
    return Text(f"{symbol} {name}" if name else "", style=_STYLES[group])


def plain(text: str) -> str:
    """A text without the dollars, braces and backslashes of its formulas."""
    return "".join(part if kind in ("text", "code") else re.sub(r"[\\{}]", "", part) for kind, part in spans(text))


def verifications(found: Sequence[Verification], console: "Console") -> "Table":
    """A line per claim where that fits the console, otherwise a few: the source under the claim, the seeds under the verdict."""
    table = _one_line_each(found)
    unbound = console.options.update(width=10_000)
    return table if console.measure(table, options=unbound).maximum <= console.width else _lines_each(found)


def _one_line_each(found: Sequence[Verification]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(
        "claim", "verdict", "seeds", "95 % interval", "measured", "threshold", "control", "source", box=None, padding=(0, 2, 0, 0)
    )
    for one in found:
        numbers = (Text(text) for text in (*_seeds(one), *_worst(one)))
        table.add_row(one.id, verdict(one.outcome), *numbers, _control(one), Text(one.source.label))
    return table


def _lines_each(found: Sequence[Verification]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("claim\n  source", "verdict\nseeds, interval", "measured\nthreshold"):
        table.add_column(name, no_wrap=True)
    table.add_column("control")
    for one in found:
        judged = verdict(one.outcome).append(f"\n{' '.join(_seeds(one))}", style="default")
        table.add_row(Text(f"{one.id}\n  {one.source.label}"), judged, "\n".join(_worst(one)), _control(one))
    return table


def _seeds(one: Verification) -> tuple[str, str]:
    """Consistent seeds of all, and the interval of their share among those decided."""
    low, high = one.interval
    return f"{one.consistent}/{len(one.seeds)}", f"[{low:.2f}, {high:.2f}]"


def _worst(one: Verification) -> tuple[str, str]:
    """The value of the worst seed, and its threshold."""
    return f"{one.worst.value:.3g}", f"{one.worst.op} {one.worst.threshold:.3g}"


def _control(one: Verification) -> "Text":
    from rich.text import Text

    return Text(CONTROL_TEXT[one.control], style="" if one.control == "fails" else "red")


def measurements(rows: Sequence[Measurement]) -> "Table":
    """Each row with its prediction and where that comes from, its null, its threshold and its verdict; empty columns are left out."""
    from rich.table import Table
    from rich.text import Text

    cells = {
        "measured": [_number(row.value) if row.value is not None else row.reason for row in rows],
        "reference": [_reference(row) for row in rows],
        "which is": [_BASIS[row.basis] if _reference(row) else "" for row in rows],
        "null": ["" if row.null is None or not row.null.draws else _number(row.null.median) for row in rows],
        "threshold": ["" if row.threshold is None or row.op is None else f"{row.op} {row.threshold:.6g}" for row in rows],
    }
    verdicts = [verdict(row.verdict or "") for row in rows]
    shown = {name: column for name, column in cells.items() if name == "measured" or any(column)}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("quantity", min_width=20)
    for name in shown:
        right = name in ("measured", "reference", "null")
        table.add_column(
            name, justify="right" if right else "left", no_wrap=name != "which is" and all(row.value is not None for row in rows)
        )
    if any(verdicts):
        table.add_column("verdict")
    for at, row in enumerate(rows):
        where = format.place(row, "setting", "model", "rung", "layer", "head", "step", "seed")
        quantity = f"{format.label(row)} ({where})" if where else format.label(row)
        table.add_row(Text(quantity), *(Text(column[at]) for column in shown.values()), *([verdicts[at]] if any(verdicts) else []))
    return table


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _reference(row: Measurement) -> str:
    """The prediction, unless it is the threshold itself."""
    bound = row.op is not None and row.basis == "theory" and row.predicted == row.threshold
    return "" if row.predicted is None or bound else _number(row.predicted)


def networks(result: Result) -> "Table":
    """What the trained networks reached: a line per quantity and network; what was not compared states its reason."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=True)
    for name, share in (("networks", 4), ("network", 3), ("measured", None), ("with", 9)):
        table.add_column(name, ratio=share, justify="right" if share is None else "left")
    before = ""
    for row in result.select(theory=NETWORK, kind="network", step=None):
        quantity = format.label(row)
        value = "" if row.value is None else format.amount(row.value, row.unit)
        remark = row.reason if row.value is None else "; ".join(filter(None, (_samples(row), row.note)))
        table.add_row(Text("" if quantity == before else quantity), Text(row.model), value, Text(remark, style="dim"))
        before = quantity
    return table


def _samples(row: Measurement) -> str:
    """The number of samples and the interval of a value."""
    interval = f"95 % interval {format.bounds(row.interval, row.unit)}" if row.interval is not None else ""
    return ", ".join(filter(None, ("" if row.n is None else f"{row.n:,} samples", interval)))
