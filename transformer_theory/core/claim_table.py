"""A table of verified claims for a terminal. It needs nothing of the reports, whose import would take as long
as a quick claim.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import format
from .claims import CONTROL_TEXT, Verification

_STYLES = {"good": "green", "bad": "bold red", "unsure": "yellow", "outside": "cyan", "none": "dim"}


def verdict(name: str) -> Text:
    """Returns a verdict with its symbol and colour; empty if there is no verdict."""
    group, symbol = format.verdict_style(name) if name else ("none", "")
    return Text(f"{symbol} {name}" if name else "", style=_STYLES[group])


def verifications(claims: Sequence[Verification], console: Console) -> Table:
    """Returns a table of claims, one line per claim if the console is wide enough.

    Otherwise each claim has two lines: the source below the claim, the seeds below the verdict, and the
    threshold below the value.
    """
    table = _wide(claims)
    # measure the natural width, not the width after wrapping
    unlimited = console.options.update(width=10_000)
    return table if console.measure(table, options=unlimited).maximum <= console.width else _narrow(claims)


def _wide(claims: Sequence[Verification]) -> Table:
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


def _narrow(claims: Sequence[Verification]) -> Table:
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
    return f"{claim.consistent}/{len(claim.seeds)}", format.share_of_seeds(claim.interval)


def _worst(claim: Verification) -> tuple[str, str]:
    """Formats the value of the worst seed and its threshold."""
    return format.number(claim.worst.value), format.threshold(claim.worst.op, claim.worst.threshold)


def _control(claim: Verification) -> Text:
    return Text(CONTROL_TEXT[claim.control], style="" if claim.control == "fails" else "red")
