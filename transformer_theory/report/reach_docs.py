"""The pages of the documentation about the reach of the theories.

``python -m transformer_theory.report.reach_docs DOCS [RESULT]`` stores a result of ``transformer-theory reach`` as DOCS/reach, with fewer
digits of the null draws of the ladders' quantities and without the other draws. From it the program writes DOCS/figures/reach.svg,
DOCS/reach_findings.md and DOCS/reach_rungs.md. Without a result, the stored one is used.
"""

import sys
from dataclasses import replace
from pathlib import Path

from ..core.files import write_together
from ..core.measurement import Measurement, Table
from ..core.plotting import svg
from ..core.result import Result
from .aggregate import aggregate
from .markdown import table as formatted
from .markdown import text
from .reach_map import reach_map, table
from .reached import reached, statements

FOLDER = "reach"
DIGITS = 5  # significant digits of the null draws that are kept


def pages(result: Result) -> dict[str, str]:
    """Returns the figure and the texts by file name.

    Raises:
        ValueError: the result holds no rungs.
    """
    cells = reached(aggregate(result))
    figure, numbers = reach_map(cells), table(cells)
    if figure is None or numbers is None:
        raise ValueError(f"expected a result of reach, got {result.name} without rungs")
    record = result.provenance
    seeds, minutes = len(result.settings["seeds"]), float(record.get("seconds", 0)) / 60
    inputs = ", ".join(result.settings.get("inputs", {}).values())
    lines = [f"- **{text(title)}**: {text(sentence)}." for title, sentence in statements(cells)]
    origin = (
        f"*{seeds} seeds, {len(cells)} rungs; {record.get('machine', '')}, {str(record.get('date', ''))[:10]}, commit "
        f"{str(record.get('commit', ''))[:8]}{f', {minutes:.0f} minutes' if minutes >= 1 else ''}{f'; {inputs}' if inputs else ''}.*"
    )
    return {
        "figures/reach.svg": svg(figure) + "\n",
        "reach_findings.md": "\n".join([*lines, "", origin, ""]),
        "reach_rungs.md": formatted(numbers) + "\n",
    }


def _shortened(row: Measurement, quantities: set[str]) -> Measurement:
    """Returns a row with rounded draws if it has a ladder's quantity, and without draws otherwise."""
    if row.null is None or row.quantity not in quantities:
        return replace(row, null=None)
    return replace(row, null=replace(row.null, draws=tuple(float(f"{draw:.{DIGITS}g}") for draw in row.null.draws)))


def main(arguments: list[str]) -> None:
    """Writes the pages.

    Raises:
        ValueError: the arguments or the result do not fit.
    """
    if not 1 <= len(arguments) <= 2:
        raise ValueError("expected the folder of the documentation, and the folder of a result; got " + (" ".join(arguments) or "nothing"))
    docs, stored = Path(arguments[0]), Path(arguments[0]) / FOLDER
    if len(arguments) == 2:
        result = Result.load(arguments[1])
        pages(result)  # before anything is replaced
        quantities = {ladder["quantity"] for ladder in result.settings["ladders"].values()}
        # Absolute paths describe a machine, so only their last parts are kept.
        words = [Path(word).name if Path(word).is_absolute() else word for word in result.provenance.get("command", "").split()]
        record, rows = result.provenance | {"command": " ".join(words)}, (_shortened(row, quantities) for row in result.table)
        replace(result, table=Table(rows), provenance=record).save(stored, overwrite=True)
    write_together({docs / name: text.encode() for name, text in pages(Result.load(stored)).items()})


if __name__ == "__main__":
    main(sys.argv[1:])
