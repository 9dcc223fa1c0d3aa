"""Measurements as a ``pandas.DataFrame``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas

if TYPE_CHECKING:
    from .measurement import Measurement


def frame(rows: "Sequence[Measurement]", columns: Sequence[str]) -> pandas.DataFrame:
    """Returns one line per row, in the order of ``columns``.

    A null becomes five columns (``null_kind``, ``null_draws``, ``null_low``, ``null_median``, ``null_high``),
    an interval two (``interval_low``, ``interval_high``), and a source its text.
    """
    table = pandas.DataFrame(
        [{name: getattr(row, name) for name in columns} for row in rows], columns=list(columns)
    )
    nulls = [row.null for row in rows]
    position = list(table.columns).index("null")
    table = table.drop(columns="null")
    for offset, name in enumerate(("kind", "draws", "low", "median", "high")):
        values = [
            None if null is None else len(null.draws) if name == "draws" else getattr(null, name)
            for null in nulls
        ]
        column = pandas.Series(values, index=table.index, dtype=None if name == "kind" else float)
        table.insert(position + offset, f"null_{name}", column)
    low, high = zip(*((row.interval or (None, None)) for row in rows)) if rows else ((), ())
    position = list(table.columns).index("interval")
    table = table.drop(columns="interval")
    table.insert(position, "interval_low", pandas.Series(low, index=table.index, dtype=float))
    table.insert(position + 1, "interval_high", pandas.Series(high, index=table.index, dtype=float))
    table["source"] = [None if row.source is None else str(row.source) for row in rows]
    return table
