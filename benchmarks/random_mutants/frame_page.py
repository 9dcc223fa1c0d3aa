"""``python -m benchmarks.random_mutants.frame_page`` writes ``docs/frame_mutants.md``, which the page on
reliability includes: how many random mutants of the frame its tests detect, and those that they do not.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformer_theory.core.files import replacing

from . import FRAME

DOCS = Path(__file__).resolve().parents[2] / "docs"
STORED, PAGE = DOCS / "random_mutants_frame.json", DOCS / "frame_mutants.md"
HEADS = ("part", "mutants", "equivalent", "detected", "not detected", "share", "share at first")


def page(record: dict[str, Any]) -> str:
    """Returns the table of the outcomes and the lists of mutants that no test detects."""
    mutants = record["mutants"]
    rows = [(part, [one for one in mutants if one["theory"] == part]) for part in FRAME]
    lines = [f"| {' | '.join(HEADS)} |", "| --- |" + " ---: |" * (len(HEADS) - 1)]
    lines += [f"| {' | '.join((name, *_counts(part)))} |" for name, part in (*rows, ("all", mutants))]
    lines += ["", f"{' · '.join(record['made'])}; seed {record['seed']}.", "", "Not detected:", ""]
    lines += _listed(one for one in mutants if one["outcome"] in ("undetected", "undecided"))
    lines += ["", "Equivalent, with the reason:", ""]
    lines += _listed(one for one in mutants if one["outcome"] == "equivalent")
    return "\n".join(lines) + "\n"


def _counts(mutants: list[dict[str, Any]]) -> list[str]:
    """Returns the cells of a row; shares leave out equivalent mutants."""
    counts = Counter(one["outcome"] for one in mutants)
    detected, different = counts["tests"] + counts["claims"], len(mutants) - counts["equivalent"]
    missed = sum(bool(one.get("missed")) and one["outcome"] in ("tests", "claims") for one in mutants)
    shares = [f"{100 * each / different:.0f} %" for each in (detected, detected - missed)]
    return [*map(str, (len(mutants), counts["equivalent"], detected, different - detected)), *shares]


def _listed(mutants: Iterable[dict[str, Any]]) -> list[str]:
    """Returns one line about each mutant: its function, its change and why it stays."""
    found = []
    for one in mutants:
        place = f"{one['file'].removeprefix('transformer_theory/')}, `{one['function'] or 'module'}`"
        old, new, text = (" ".join(one[name].split()) for name in ("old", "new", "text"))
        change = f"``{old}`` {f'becomes ``{new}``' if new else 'left out'}, in ``{text}``"
        found.append(f"- {place}: {change}" + (f": {one['by']}" if one["by"] else ""))
    return found or ["none"]


if __name__ == "__main__":
    with replacing(PAGE) as draft:
        draft.write_text(page(json.loads(STORED.read_text(encoding="utf-8"))), encoding="utf-8")
