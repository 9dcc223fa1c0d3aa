"""Tables for a terminal with at least 80 columns. Names are never cut, so that they can be copied."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..core import format
from ..core.claims import CONTROL_TEXT, Verification
from ..core.measurement import Measurement
from ..core.result import Result
from ..core.theory import Theory
from . import tables
from .aggregate import NETWORK, aggregate
from .findings import Finding, findings, interval_text, p_text, sentences, short
from .math_text import plain
from .own_quantities import Quantity, headlines, quantities, subject
from .reached import by_theory, reached, statements

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table
    from rich.text import Text

_STYLES = {"good": "green", "bad": "bold red", "unsure": "yellow", "outside": "cyan", "none": "dim"}
_OUTCOME_STYLES = {
    "as predicted": "green",
    "changed as predicted": "green",
    "opposite": "bold red",
    "any data": "cyan",
}
_BASIS = {"theory": "theory", "limit": "limit", **tables.BASIS_TEXT}


def summary(result: Result, *, theories: Iterable[Theory] | None = None) -> "Group":
    """Returns what a comparison found: the sentences, the headlines of each theory with their nulls and
    p-values, and the claims.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    combined = aggregate(result, theories=theories)
    found = findings(combined)
    parts: list[RenderableType] = [
        Text(f"Theories of transformers on {result.settings.get('data', 'the data')}", style="bold")
    ]
    parts += [Padding(Text(plain(sentence)), (1, 0, 0, 2)) for sentence in sentences(found)]
    if found:
        tests = (
            f"{format.several(found.tests, 'test')}; q controls the false discovery rate (Benjamini and "
            "Hochberg)"
        )
        parts.append(
            Padding(
                Text(f"{tests}. Null: median and range. The page explains the outcomes.", style="dim"),
                (1, 0, 0, 0),
            )
        )
    for theory in combined.theories:
        own, verified = (
            [finding for finding in found.all if finding.theory is theory],
            combined.claims_of(theory),
        )
        if own or verified:
            parts.append(
                Text(f"\n{plain(theory.title)}", style="bold").append(
                    f" · {plain(theory.question)}", style="not bold dim"
                )
            )
        for quantity in dict.fromkeys(finding.row.quantity for finding in own):
            parts.append(headline([finding for finding in own if finding.row.quantity == quantity]))
        if verified:
            parts.append(
                Padding(Text(f"Generated instances: {plain(tables.claims_text(verified))}"), (0, 0, 0, 2))
            )
    return Group(*parts)


def headline(same: Sequence[Finding]) -> "Group":
    """Returns the name of a quantity with its prediction, and one line per place where it was measured."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    first = same[0].row
    prediction = format.prediction(first)
    heading = Text(f"  {plain(first.quantity)}").append(
        "" if prediction == format.NOTHING else f"  {prediction}", style="dim"
    )
    table = _columns(7, 7, 8, 5, 6)
    for finding in same:
        row = finding.row
        if row.value is None:
            table.add_row(
                Padding(Text(finding.where), (0, 0, 0, 4)),
                Text(finding.reason, style="dim"),
                "",
                "",
                Text(finding.outcome, style="dim"),
            )
            continue
        null = "" if row.null is None or not row.null.draws else f"null {short(row.null.median, row)}"
        spread = (
            f" ({short(row.null.low, row)} … {short(row.null.high, row)})"
            if row.null is not None and len(row.null.draws) > 1
            else ""
        )
        noise = "" if finding.on_noise is None else f"noise {short(finding.on_noise, row)}"
        test = (
            ""
            if row.p is None
            else f"p {p_text(row.p)}" + (f", q {p_text(finding.q)}" if finding.q is not None else "")
        )
        table.add_row(
            Padding(Text(finding.where), (0, 0, 0, 4)),
            Text(short(row.value, row), style="bold").append(f" {interval_text(row)}", style="not bold"),
            Text(f"{null}{spread}", style="dim"),
            Text(noise or test),
            Text(
                finding.outcome if not (noise and test) else f"{finding.outcome}, {test}",
                style=_OUTCOME_STYLES.get(finding.outcome, "dim"),
            ),
        )
    return Group(heading, table)


def _columns(*ratios: int) -> "Table":
    """Returns a table without heads whose columns share the width of the console in these ratios."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, show_header=False)
    for ratio in ratios:
        table.add_column(ratio=ratio, vertical="top")
    return table


def reach(result: Result, *, theories: Iterable[Theory] | None = None) -> "Group":
    """Returns how far the theories reach: the sentences, and one line per rung."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    cells = reached(aggregate(result, theories=theories))
    parts: list[RenderableType] = [
        Padding(Text(plain(f"{title}: {text}.")), (0, 0, 1, 2)) for title, text in statements(cells)
    ]
    for own in by_theory(cells):
        theory = own[0].theory
        parts.append(
            Text(plain(theory.title), style="bold").append(
                f" · {plain(own[0].row.quantity)}", style="not bold dim"
            )
        )
        table = _columns(8, 8, 8, 6, 5)
        for cell in own:
            row = cell.row
            if row.value is None:
                table.add_row(Text(f"  {cell.name}"), Text(row.reason, style="dim"), "", "", "")
                continue
            spread = (
                f" ({short(row.null.low, row)} … {short(row.null.high, row)})"
                if row.null is not None and row.null.draws
                else ""
            )
            null = f"null {short(row.null.median, row)}{spread}" if spread and row.null is not None else ""
            value = Text(short(row.value, row), style="bold").append(
                f" {interval_text(row)}", style="not bold"
            )
            style = {"beyond chance": "green", "opposite": "bold red"}.get(cell.outcome, "dim")
            agreement = "" if row.agreement is None else f"agreement {cell.number}"
            table.add_row(
                Text(f"  {cell.name}"),
                value,
                Text(null, style="dim"),
                Text(agreement),
                Text(cell.outcome, style=style),
            )
        parts.append(table)
    return Group(*parts)


def verdict(name: str) -> "Text":
    """Returns a verdict with its symbol and colour; empty if there is no verdict."""
    from rich.text import Text

    group, symbol = format.verdict_style(name) if name else ("none", "")
    return Text(f"{symbol} {name}" if name else "", style=_STYLES[group])


def verifications(claims: Sequence[Verification], console: "Console") -> "Table":
    """Returns a table of claims, one line per claim if the console is wide enough.

    Otherwise each claim has two lines: the source below the claim, the seeds below the verdict, and the
    threshold below the value.
    """
    table = _wide(claims)
    # measure the natural width, not the width after wrapping
    unlimited = console.options.update(width=10_000)
    return table if console.measure(table, options=unlimited).maximum <= console.width else _narrow(claims)


def _wide(claims: Sequence[Verification]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(
        "claim",
        "verdict",
        "seeds",
        "95 % interval",
        "measured",
        "threshold",
        "control",
        "source",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for claim in claims:
        numbers = (Text(text) for text in (*_seeds(claim), *_worst(claim)))
        table.add_row(claim.id, verdict(claim.outcome), *numbers, _control(claim), Text(claim.source.label))
    return table


def _narrow(claims: Sequence[Verification]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("claim\n  source", "verdict\nseeds, interval", "measured\nthreshold"):
        table.add_column(name, no_wrap=True)
    table.add_column("control")
    for claim in claims:
        verdict_and_seeds = verdict(claim.outcome).append(f"\n{' '.join(_seeds(claim))}", style="default")
        table.add_row(
            Text(f"{claim.id}\n  {claim.source.label}"),
            verdict_and_seeds,
            "\n".join(_worst(claim)),
            _control(claim),
        )
    return table


def _seeds(claim: Verification) -> tuple[str, str]:
    """Formats the number of consistent seeds out of all seeds, and the interval of their share among the
    decided seeds.
    """
    low, high = claim.interval
    return f"{claim.consistent}/{len(claim.seeds)}", f"[{low:.2f}, {high:.2f}]"


def _worst(claim: Verification) -> tuple[str, str]:
    """Formats the value of the worst seed and its threshold."""
    return f"{claim.worst.value:.3g}", f"{claim.worst.op} {claim.worst.threshold:.3g}"


def _control(claim: Verification) -> "Text":
    from rich.text import Text

    return Text(CONTROL_TEXT[claim.control], style="" if claim.control == "fails" else "red")


def measurements(rows: Sequence[Measurement]) -> "Table":
    """Returns a table with one line per row: value, reference and its origin, null, threshold and verdict.
    Empty columns are omitted.
    """
    from rich.table import Table
    from rich.text import Text

    cells = {
        "measured": [_number(row.value) if row.value is not None else row.reason for row in rows],
        "reference": [_reference(row) for row in rows],
        "origin": [_BASIS[row.basis] if _reference(row) else "" for row in rows],
        "null": ["" if row.null is None or not row.null.draws else _number(row.null.median) for row in rows],
        "threshold": [
            "" if row.threshold is None or row.op is None else f"{row.op} {row.threshold:.6g}" for row in rows
        ],
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


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _reference(row: Measurement) -> str:
    """Returns the prediction; empty if it is the same number as the threshold."""
    same = row.op is not None and row.basis == "theory" and row.predicted == row.threshold
    return "" if row.predicted is None or same else _number(row.predicted)


def heads(result: Result, *, top: int = 3, brief: bool = False) -> "Group":
    """Returns a summary of a measured network: what stands out, and per theory and quantity the mean, the
    null and the strongest places.

    A place stands out if its value leaves the null on the side that the theory expects, with a p-value of at
    most .05. The ``top`` of them are named. By chance at most one place in twenty does. Quantities without a
    value are listed with their reason.

    Args:
        result: result of ``probe_model``.
        top: largest number of places that are named.
        brief: whether to leave out the quantities, for a result that has a page.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from .own_model import NOTHING, rest, statements

    theories = aggregate(result).theories
    found, titles = quantities(result, theories), {theory.name: theory.title for theory in theories}
    chosen = headlines(found, theories)
    parts: list[RenderableType] = [Text(plain(subject(result)), style="bold")]
    said = statements(chosen, found, titles)
    parts += [] if said else [Padding(Text(NOTHING), (1, 0, 0, 2))]
    for title, text, meaning in said:
        sentence = Text(f"{plain(title)}: ", style="bold").append(f"{plain(text)}.", style="not bold")
        parts.append(
            Padding(
                sentence.append(f" {meaning[:1].upper()}{meaning[1:]}." if meaning else "", style="dim"),
                (1, 0, 0, 2),
            )
        )
    others = Text()
    for outcome, names in rest(chosen, found, titles):
        others.append(f"{outcome.capitalize()}: ", style="bold").append(f"{plain(names)}. ")
    parts.append(Padding(others, (1, 0, 0, 2)))
    if not brief:
        for theory in theories:
            parts += _quantities(theory, [each for each in found if each.theory == theory.name], top)
    parts.append(
        Text(
            "\nBeyond: on the predicted side of the null with p ≤ .05; by chance up to one place in twenty.",
            style="dim",
        )
    )
    return Group(*parts)


def _quantities(theory: Theory, own: Sequence[Quantity], top: int) -> "Iterator[RenderableType]":
    """Yields the quantities of a theory in a network: its name, a line per quantity, and the reasons of those
    without a value.
    """
    from rich.text import Text

    if not own:
        return
    yield Text(f"\n{plain(theory.title)}", style="bold").append(
        f" · {plain(theory.question)}", style="not bold dim"
    )
    table = _columns(10, 4, 6, 10)
    for each in (each for each in own if each.rows):
        row = each.mean
        null = (
            f"null {short(row.null.median, row)} ({row.null.kind})"
            if row.null is not None and row.null.draws
            else "no null"
        )
        places = ", ".join(
            f"{format.place(row, 'layer', 'head')} {short(row.value or 0.0, row)}"
            for row in each.beyond[:top]
        )
        count = (
            f"{len(each.beyond)} of {each.tested} "
            f"beyond{f': {places}' if len(each.rows) > 1 and places else ''}"
        )
        value = Text(short(row.value or 0.0, row), style="bold")
        table.add_row(
            Text(f"  {plain(each.label)}"), value, Text(null, style="dim"), Text(count if each.tested else "")
        )
    yield table
    yield from (
        Text(f"  {plain(each.label)}: not measured: {each.reason}", style="dim")
        for each in own
        if not each.rows
    )


def networks(result: Result) -> "Table":
    """Returns the results of the trained networks, one line per quantity and network. A line without a value
    states the reason.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=True)
    for name, share in (("quantity", 4), ("network", 3), ("measured", None), ("remarks", 9)):
        table.add_column(name, ratio=share, justify="right" if share is None else "left")
    previous = ""
    for row in result.select(theory=NETWORK, kind="network", step=None):
        quantity = format.label(row)
        value = "" if row.value is None else format.amount(row.value, row.unit)
        remark = row.reason if row.value is None else "; ".join(filter(None, (_samples(row), row.note)))
        table.add_row(
            Text("" if quantity == previous else quantity), Text(row.model), value, Text(remark, style="dim")
        )
        previous = quantity
    return table


def _samples(row: Measurement) -> str:
    """Formats the number of samples of a row and the interval of its value."""
    interval = f"95 % interval {format.bounds(row.interval, row.unit)}" if row.interval is not None else ""
    return ", ".join(filter(None, ("" if row.n is None else f"{row.n:,} samples", interval)))
