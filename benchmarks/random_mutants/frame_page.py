"""``python -m benchmarks.random_mutants.frame_page`` writes ``docs/frame_mutants.md``, which the page on
reliability includes: how many random mutants of the frame its tests detect, and those that they do not.
"""

import json
from pathlib import Path
from typing import Any

from transformer_theory.core.files import replacing
from transformer_theory.report.ledger import other_sample, random_mutants

from . import FRAME

DOCS = Path(__file__).resolve().parents[2] / "docs"
STORED, PAGE = DOCS / "random_mutants_frame.json", DOCS / "frame_mutants.md"
FRESH = DOCS / "random_mutants_frame_fresh.json"  # another sample, against which no test was written


def page(record: dict[str, Any], fresh: dict[str, Any]) -> str:
    """Returns the table of the outcomes, a sentence about a fresh sample, and the lists of mutants that no
    test detects.
    """
    titles = {part: f"`{part}`" for part in FRAME}
    parts, others = (random_mutants(one, titles, "part") for one in (record, fresh))
    lines = [parts["table"], "", f"{parts['origin']}; the sample of seed {parts['seed']}.", ""]
    lines += [other_sample(fresh)]
    for words, listed in (
        ("Not detected", parts["survivors"]),
        ("Not detected of the fresh sample", others["survivors"]),
        ("Equivalent, with the reason", parts["equivalent"] + others["equivalent"]),
    ):
        lines += ["", f"{words}:", "", *([f"- {line}" for line in listed] or ["none"])]
    return "\n".join(lines) + "\n"


def stored() -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the outcomes of the sample, and those of the fresh one."""
    sample, fresh = (json.loads(file.read_text(encoding="utf-8")) for file in (STORED, FRESH))
    return sample, fresh


if __name__ == "__main__":
    with replacing(PAGE) as draft:
        draft.write_text(page(*stored()), encoding="utf-8")
