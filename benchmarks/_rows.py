"""The rows that benchmarks return, and their table: the time of another version divided by ours.

``python -m benchmarks`` ends with the table of all rows. ``python -m benchmarks peers`` measures those alone
and stores them; the page ``docs/peers.md`` is made from the stored rows.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_theory.core.files import replacing

STORED = Path(__file__).parents[1] / "docs" / "peers.json"
PAGE = STORED.with_suffix(".md")
ABOUT = """# Ours against official and textbook versions

The time of the other version divided by ours: processor time of one thread, with the preparation of the data.
The versions take turns in one process, so that other jobs on the machine slow all of them alike. The ratio is
the median over the rounds; the smallest and the largest round stand in brackets. One benchmark is measured by
`python -m benchmarks NAME`, all of them and this page by `python -m benchmarks peers`. Solutions of cvxpy
differ by its tolerances: ours have KKT residuals of at most 1e-12.
"""


@dataclass(frozen=True)
class Row:
    """One comparison of two versions of a computation.

    Attributes:
        what: what is computed.
        other: the version that ours is compared with.
        size: sizes of the problem.
        ours, theirs: seconds of both versions in each round; the ratio does not depend on their unit.
        difference: largest difference of the results.
        of: what the difference is of.
        target: smallest ratio that is wanted; None without a target.
        command: name of the benchmark.
    """

    what: str
    other: str
    size: str
    ours: Sequence[float]
    theirs: Sequence[float]
    difference: float
    of: str
    target: float | None = None
    command: str = ""

    @property
    def ratios(self) -> list[float]:
        """Time of the other version divided by ours, in each round."""
        return [theirs / ours for theirs, ours in zip(self.theirs, self.ours, strict=True)]

    @property
    def gain(self) -> str:
        """Median of the ratios with their range: "64 (58 to 71)"."""
        middle, low, high = (
            f"{value:.0f}" if value >= 20 else f"{value:.3g}"
            for value in (statistics.median(self.ratios), min(self.ratios), max(self.ratios))
        )
        return f"{middle} ({low} to {high})"


def table(rows: Iterable[Row]) -> str:
    """Returns the table as Markdown, one line per row."""
    lines = [
        "| what | against | size | times faster | rounds | largest difference | benchmark |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        missed = row.target is not None and statistics.median(row.ratios) < row.target
        gain = row.gain + (f"; target {row.target:g} missed" if missed else "")
        cells = (row.what, row.other, row.size, gain, len(row.ratios), f"{row.difference:.0e}, {row.of}")
        lines.append(f"| {' | '.join(map(str, cells))} | `{row.command}` |")
    return "\n".join(lines)


def page(stored: dict) -> str:
    """Returns the page of stored rows."""
    rows = [Row(**row) for row in stored["rows"]]
    return f"{ABOUT}\n{stored['machine']}\n\n{table(rows)}\n"


def store(rows: Sequence[Row], machine: str) -> None:
    """Writes the rows and their page.

    Args:
        rows: the rows.
        machine: date, machine, threads and versions.
    """
    stored = {"machine": machine.replace("\n", " · "), "rows": [asdict(row) for row in rows]}
    for path, text in ((STORED, json.dumps(stored, indent=1) + "\n"), (PAGE, page(stored))):
        with replacing(path) as draft:
            draft.write_text(text, encoding="utf-8")
