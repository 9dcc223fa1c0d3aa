"""Trained networks side by side, for the terminal: test accuracy, and their runs at equal steps, time and parameters."""

from rich.table import Table
from rich.text import Text

from ..core.notes import is_share, percent
from ..core.result import Result
from ..report import wording
from ..report.views import findings


def measured_networks(result: Result) -> Table:
    """A line for each measure and network, with what differs between them; what could not be compared says why.

    Args:
        result: of ``compare`` with models.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=True)
    for name, share in (("networks", 4), ("network", 3), ("measured", None), ("with", 9)):
        table.add_column(name, ratio=share, justify="right" if share is None else "left")
    before = ""
    for row in (row for row in findings(result) if row["theory"] == "network"):
        quantity = row["quantity"]
        told = f"not applicable: {wording.verdict(row)[1]}" if wording.absent(row) else row.get("note", "")
        value = row["value"]
        shown = "" if value is None else percent(value) if is_share(quantity) else wording.number(value)
        table.add_row(Text("" if quantity == before else quantity), Text(row.get("model") or ""), shown, Text(told, style="dim"))
        before = quantity
    return table
