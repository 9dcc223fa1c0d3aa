"""``python -m benchmarks.attack.page FILE.json ...`` writes the rows of attacks, as ``--out`` stored them, to
``docs/attack.json`` and ``docs/attack_rows.md``, which the page on reliability includes. A row replaces that
of the same kind and seed.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from transformer_theory.core.files import write_together

from .__main__ import KINDS

DOCS = Path(__file__).resolve().parents[2] / "docs"
STORED, PAGE = DOCS / "attack.json", DOCS / "attack_rows.md"
FOLDERS = re.compile(r"/\S*/attack-[^/\s]*/[^/\s]*/")  # of the cases
REPEATED = re.compile(r"((.)\2{9})\2+")  # more than ten times the same character
KEPT = ("kind", "seed", "tried", "failed", "seconds", "counts", "made")


def page(rows: list[dict[str, Any]]) -> str:
    """Returns the table of the rows, and what failed."""
    lines = [
        "| kind | seed | tried | failed | minutes | outcomes | day |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    machines = dict[str, None]()
    for row in rows:
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(row["counts"].items()))
        (made, software), minutes = row["made"], f"{row['seconds'] / 60:.0f}"
        day, _, machine = made.partition(" UTC · ")
        machines[f"{machine.partition(', load')[0]} · {software}"] = None
        numbers = (row["seed"], f"{row['tried']:,}", row["failed"], minutes)
        lines.append(f"| `{row['kind']}` | {' | '.join(map(str, numbers))} | {counts} | {day[:10]} |")
    failures = [f"- `{row['kind']}`, {each['what']}" for row in rows for each in row["failures"]]
    return "\n".join(
        [*lines, "", *(f"{each}." for each in machines), *(["", *failures] if failures else []), ""]
    )


def main(files: list[str]) -> int:
    """Stores the rows of the files."""
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else []
    found = {(row["kind"], row["seed"]): row for row in stored}
    for file in files:
        for row in json.loads(Path(file).read_text(encoding="utf-8")):
            failures = [
                {"what": REPEATED.sub(r"\1…", FOLDERS.sub("", each["what"]))} for each in row["failures"]
            ]
            kept = {name: row[name] for name in KEPT} | {"failures": failures}
            found[row["kind"], row["seed"]] = kept
    rows = sorted(found.values(), key=lambda row: (KINDS.index(row["kind"]), row["seed"]))
    text = json.dumps(rows, indent=1) + "\n"
    write_together({STORED: text.encode(), PAGE: page(rows).encode()})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
