"""The demo in the documentation: ``python docs/demo_rows.py`` copies the rows that docs/start.md explains
from runs/digits into the page, and what the demo measured, without draws and arrays, into docs/demo.json.

The text of the page explains one row of each kind, so a demo whose rows have other outcomes is refused. The
numbers of docs/demo_findings.md are tested against docs/demo.json.
"""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

from transformer_theory.comparison.judged import Findings, findings
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.core.files import replacing
from transformer_theory.core.result import Result
from transformer_theory.report import tables, terminal
from transformer_theory.report.origins import dates

ROOT = Path(__file__).parents[1]
PAGE, STORED = ROOT / "docs" / "start.md", ROOT / "docs" / "demo.json"
DIGITS = 5  # significant digits of the stored numbers
BEGIN, END = "<!-- rows of the demo, by docs/demo_rows.py -->\n", "<!-- end -->\n"
ROWS = {  # theory and place: outcome, draws of the null and seeds, as the text of the page has them
    ("rate_reduction", "raw tokens"): ("as predicted", 1199, 3),
    ("joma", "trained ViT"): ("as predicted", 39, 3),
    ("attention_svm", "trained ViT"): ("matched by a second null", 39, 3),
}
WIDTH = 116  # columns of the terminal; as many as the page shows without scrolling


def block(result: Result) -> str:
    """Returns date, machine and the rows of a demo, as Markdown.

    Raises:
        ValueError: a row is missing, or differs from what the page explains.
    """
    from rich.console import Console

    found = findings(aggregate(result))
    known = {(one.theory.name, one.where): one for one in found.all}
    for place, expected in ROWS.items():
        one = known.get(place)
        null = one.judged.row.null if one is not None else None
        draws = len(null.draws) if null is not None else 0
        has = None if one is None else (one.judged.outcome, draws, one.judged.seeds)
        if has != expected:
            raise ValueError(
                f"{PAGE} explains the row {place} with {expected}, but the demo has "
                f"{has or 'no such row'}; change the text of the page and ROWS, or run make demo again"
            )
    printed = io.StringIO()
    shown = tables.findings(Findings(tuple(known[place] for place in ROWS)))
    assert shown is not None  # ROWS is not empty
    Console(file=printed, width=WIDTH).print(terminal.table(shown, without=("prediction", "effect")))
    rows = "\n".join(line.rstrip() for line in printed.getvalue().splitlines())
    lead = (
        f"Three of its rows, as `make demo` printed them on {dates([result])} "
        f"({result.provenance['machine']}):"
    )
    return f"{lead}\n\n```text\n{rows}\n```\n"


def stored(result: Result) -> str:
    """Returns what a demo measured as JSON: a line for each quantity, with the median and range of its nulls,
    and the outcome of each headline.
    """
    combined = aggregate(result)
    found = findings(combined)
    outcomes = {id(one.judged.row): one for one in found.all}
    lines = []
    for entry in combined.entries:
        row, one = entry.row, outcomes.get(id(entry.row))
        line = {
            "theory": row.theory,
            "on": entry.on,
            "quantity": row.quantity,
            "value": row.value,
            "interval": row.interval,
            "predicted": row.predicted,
            "on_noise": row.on_noise,
            "nulls": [
                {"kind": null.kind, "draws": len(null.draws), "median": null.median}
                | {"range": [null.low, null.high]}
                for null in row.nulls
            ],
            "p": row.p,
            "q": one.judged.q if one else None,
            "outcome": one.judged.outcome if one else None,
        }
        lines.append(
            json.dumps(_rounded({name: each for name, each in line.items() if each not in (None, [])}))
        )
    about = {
        name: result.provenance[name] for name in ("date", "machine", "commit") if name in result.provenance
    }
    head = json.dumps(about | {"tests": found.tests, "headlines": len(found.all)})
    return f'{{"about": {head},\n"rows": [\n' + ",\n".join(lines) + "\n]}\n"


def _rounded(stored: Any) -> Any:
    if isinstance(stored, dict):
        return {name: _rounded(each) for name, each in stored.items()}
    if isinstance(stored, list | tuple):
        return [_rounded(each) for each in stored]
    return float(f"{stored:.{DIGITS}g}") if isinstance(stored, float) else stored


def written(page: str, result: Result) -> str:
    """Returns the page with the rows of a demo in place of its present ones."""
    return re.sub(
        f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", lambda _: block(result), page, flags=re.DOTALL
    )


def main() -> int:
    try:
        result = Result.load(ROOT / "runs" / "digits")
        page = written(PAGE.read_text(encoding="utf-8"), result)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for path, text in ((PAGE, page), (STORED, stored(result))):
        with replacing(path) as draft:
            draft.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
