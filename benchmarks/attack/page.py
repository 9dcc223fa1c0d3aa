"""``python -m benchmarks.attack.page FILE.json ...`` writes the rows of attacks, as ``--out`` stored them, to
``docs/attack.json`` and ``docs/attack_rows.md``, which the page on reliability includes. A row replaces that
of the same kind and seed.
"""

import json
import sys
from pathlib import Path
from typing import Any

from transformer_theory.core.files import write_together

from .__main__ import KINDS

DOCS = Path(__file__).resolve().parents[2] / "docs"
STORED, PAGE = DOCS / "attack.json", DOCS / "attack_rows.md"
KEPT = ("kind", "seed", "tried", "failed", "seconds", "counts", "made", "failures")


def page(rows: list[dict[str, Any]]) -> str:
    """Returns the table of the rows, and what failed."""
    lines = ["| kind | seed | tried | failed | minutes | outcomes |", "|---|---:|---:|---:|---:|---|"]
    for row in rows:
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(row["counts"].items()))
        numbers = (row["seed"], f"{row['tried']:,}", row["failed"], f"{row['seconds'] / 60:.0f}")
        lines.append(f"| `{row['kind']}` | {' | '.join(map(str, numbers))} | {counts} |")
    made = dict.fromkeys(" · ".join(row["made"]) for row in rows)
    failures = [f"- `{row['kind']}`, {each['what']}" for row in rows for each in row["failures"]]
    return (
        "\n".join([*lines, "", *(f"Made {each}." for each in made), *(["", *failures] if failures else [])])
        + "\n"
    )


def main(files: list[str]) -> int:
    """Stores the rows of the files."""
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else []
    found = {(row["kind"], row["seed"]): row for row in stored}
    for file in files:
        for row in json.loads(Path(file).read_text(encoding="utf-8")):
            found[row["kind"], row["seed"]] = {name: row[name] for name in KEPT}
    rows = sorted(found.values(), key=lambda row: (KINDS.index(row["kind"]), row["seed"]))
    text = json.dumps(rows, indent=1) + "\n"
    write_together({STORED: text.encode(), PAGE: page(rows).encode()})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
