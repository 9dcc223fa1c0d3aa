"""Writes on the page of each theory which of its claims a paper states and which this library adds: ``python
docs/statement_origins.py``.

The paragraph stands between two comments at the start of the section Claims. Its text follows from the
statuses of the claims' sources, so a test finds an outdated page.
"""

import re
import textwrap
from pathlib import Path

from transformer_theory.core.format import counted
from transformer_theory.core.sources import Status
from transformer_theory.core.theory import Theory
from transformer_theory.theories import list_theories

PAGES = Path(__file__).parent / "theories"
START, END = "<!-- whose statements: python docs/statement_origins.py -->", "<!-- end -->"
READ: dict[Status, str] = {
    "confirmed": "read in the full text",
    "second-hand": "known from a text that cites them",
    "not found": "attributed to papers of which no text could be read",
}
WIDTH = 145


def claims_page(name: str) -> Path:
    """Returns the page with the claims of a theory: its reference page, if it has one."""
    reference = PAGES / f"{name}_reference.md"
    return reference if reference.is_file() else PAGES / f"{name}.md"


def paragraph(theory: Theory) -> str:
    """Returns the text of a theory, with the names of its claims."""
    names: dict[Status, list[str]] = {}
    for claim in theory.claims:
        names.setdefault(claim.source.status, []).append(f"`{claim.id.partition('/')[2]}`")
    own = names.get("own", [])
    cited = len(theory.claims) - len(own)
    parts = [f"{text}: {', '.join(names[status])}" for status, text in READ.items() if status in names]
    stated = f"Papers state {cited} of the {counted(len(theory.claims), 'claim')}" if cited else ""
    if stated:
        stated += f" ({'; '.join(parts)}). "
    else:
        stated = f"No paper states any of the {counted(len(theory.claims), 'claim')}. "
    added = f"This library adds {len(own)}: {', '.join(own)}." if own else "This library adds none."
    return f"**Whose statements.** {stated}{added} Thresholds and controls are this library's in all of them."


def updated(page: str, theory: Theory) -> str:
    """Returns the page with its paragraph made anew, or put at the start of the section Claims."""
    text = textwrap.fill(paragraph(theory), WIDTH, break_long_words=False, break_on_hyphens=False)
    block = f"{START}\n\n{text}\n\n{END}"
    if START in page:
        return re.sub(
            f"{re.escape(START)}.*?{re.escape(END)}", lambda _: block, page, count=1, flags=re.DOTALL
        )
    heading = re.search(r"^## .*[Cc]laims.*\n", page, re.MULTILINE)
    if heading is None:
        raise ValueError(f"the page of {theory.name} has no section on claims")
    return f"{page[: heading.end()]}\n{block}\n{page[heading.end() :]}"


if __name__ == "__main__":
    for theory in list_theories():
        path = claims_page(theory.name)
        path.write_text(updated(path.read_text(encoding="utf-8"), theory), encoding="utf-8")
