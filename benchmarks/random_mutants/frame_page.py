"""``python -m benchmarks.random_mutants.frame_page`` writes ``docs/frame_mutants.md``, which the page on
reliability includes: how many random mutants of the frame its tests detect, and those that they do not.
"""

import json
from pathlib import Path
from typing import Any

from transformer_theory.core.files import replacing
from transformer_theory.report.ledger import random_mutants

from . import FRAME

DOCS = Path(__file__).resolve().parents[2] / "docs"
STORED, PAGE = DOCS / "random_mutants_frame.json", DOCS / "frame_mutants.md"


def page(record: dict[str, Any]) -> str:
    """Returns the table of the outcomes and the lists of mutants that no test detects."""
    parts = random_mutants(record, {part: f"`{part}`" for part in FRAME}, "part")
    lines = [parts["table"], "", f"{parts['origin']}; the sample of seed {parts['seed']}."]
    for words, listed in (("Not detected", "survivors"), ("Equivalent, with the reason", "equivalent")):
        lines += ["", f"{words}:", "", *([f"- {line}" for line in parts[listed]] or ["none"])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with replacing(PAGE) as draft:
        draft.write_text(page(json.loads(STORED.read_text(encoding="utf-8"))), encoding="utf-8")
