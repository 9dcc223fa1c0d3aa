"""What a newcomer adds by changing one file: a second null of a row, and a column of the reach table.

The third, a figure, is a file that docs/adding_a_theory.md shows, see tests/test_docs_skeleton.py.
"""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from transformer_theory.comparison.judged import rung_results
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.core.measurement import Measurement, Null
from transformer_theory.core.result import Result
from transformer_theory.core.table import Table
from transformer_theory.report import tables, terminal
from transformer_theory.report.html_page import page
from transformer_theory.report.md import markdown
from transformer_theory.report.tables import Column
from transformer_theory.report.tex import latex

STORED = Result.load(Path(__file__).parents[2] / "docs" / "reach")
THEORY = "collapse"  # its rungs in its own setting lie beyond their only null
REACH = replace(STORED, table=STORED.table.select(theory=THEORY))
SECOND = "exchanged weights"


def beyond(row: Measurement) -> Measurement:
    """A row with a second null, which gives more than the value on the predicted side."""
    if row.quantity != STORED.settings["ladders"][THEORY]["quantity"] or row.value is None:
        return row
    draws = tuple(row.value + 1 + i / 100 for i in range(199))
    return replace(row, nulls=(*row.nulls, Null(SECOND, draws)))


def printed(result: Result) -> dict[str, str]:
    """The result as each of the four renderers prints it."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(width=250, file=file)
    console.print(terminal.reach(result))
    combined = aggregate(result)
    return {
        "page": page(result),
        "LaTeX": latex(result),
        "Markdown": markdown(combined),
        "terminal": file.getvalue(),
    }


def test_a_second_null_of_a_row_is_judged_and_printed_without_further_changes():
    result = replace(REACH, table=Table(map(beyond, REACH.table)))
    before, after = (rung_results(aggregate(one)) for one in (REACH, result))
    changed = {
        one.judged.outcome for one, other in zip(after, before) if other.judged.outcome == "as predicted"
    }
    assert changed == {"nulls conflict"}
    for name, text in printed(result).items():
        assert SECOND in " ".join(text.split()), name
    again = Table(Measurement.from_json(row.to_json()) for row in result.table)
    assert again == result.table


def test_a_column_of_the_reach_table_is_added_in_one_file(monkeypatch: pytest.MonkeyPatch):
    cells = tables.judged_cells
    monkeypatch.setattr(tables, "JUDGED", (*tables.JUDGED, Column("samples", 8, "n")))
    monkeypatch.setattr(tables, "judged_cells", lambda *given: (*cells(*given), f"n is {given[1].row.n}"))
    for name, text in printed(REACH).items():
        assert "samples" in text, name
        assert "n is 5" in text.replace("\n", " "), name  # seeds
