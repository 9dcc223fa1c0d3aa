"""The rows of the demo that docs/start.md explains: ``python docs/demo_rows.py`` copies them from runs/digits
into the page.

The text of the page explains one row of each kind, so a demo whose rows have other outcomes is refused.
"""

import io
import re
import sys
from pathlib import Path

from transformer_theory.comparison.judged import Findings, findings
from transformer_theory.comparison.pooling import aggregate
from transformer_theory.core.files import replacing
from transformer_theory.core.result import Result
from transformer_theory.report import tables, terminal
from transformer_theory.report.origins import dates

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "start.md"
BEGIN, END = "<!-- rows of the demo, by docs/demo_rows.py -->\n", "<!-- end -->\n"
ROWS = {  # theory and place: outcome, draws of the null and seeds, as the text of the page has them
    ("rate_reduction", "raw tokens"): ("as predicted", 199, 3),
    ("attention_svm", "trained ViT"): ("as predicted", 19, 3),
    ("attention_svm", "trained CRATE (released form)"): ("matched by a second null", 19, 3),
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


def written(page: str, result: Result) -> str:
    """Returns the page with the rows of a demo in place of its present ones."""
    return re.sub(
        f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", lambda _: block(result), page, flags=re.DOTALL
    )


def main() -> int:
    try:
        page = written(PAGE.read_text(encoding="utf-8"), Result.load(ROOT / "runs" / "digits"))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    with replacing(PAGE) as draft:
        draft.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
