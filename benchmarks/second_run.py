"""Two measurements of the same networks, such as on two machines: how far are the headlines apart?

    python -m benchmarks.second_run runs/atlas other/atlas

compares the folders of ``transformer-theory measure MODEL ... --out FOLDER`` network by network. Values do
not depend on the machine beyond rounding. The number of sequences on which copies are measured depends on its
speed, and with it the draws, p-values and outcomes.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from transformer_theory.comparison.judged import headlines, quantities
from transformer_theory.core.judgement import Judged
from transformer_theory.core.result import Result
from transformer_theory.theories import list_theories


def judged(folder: Path) -> dict[str, Judged]:
    """Returns the judged headline of each theory in a stored network."""
    theories = list_theories()
    found = headlines(quantities(Result.load(folder), theories), theories)
    return {each.theory: each.judged for each in found}


def lines(first: Path, second: Path) -> Iterator[str]:
    """Yields a line per network: the largest relative difference of a value, and the outcomes that differ."""
    names = sorted(path.parent.name for path in first.glob("*/result.json"))
    for name in names:
        if not (second / name / "result.json").is_file():
            yield f"{name}: not in {second}"
            continue
        one, other = judged(first / name), judged(second / name)
        pairs = {theory: (one[theory], other[theory]) for theory in one.keys() & other.keys()}
        distances = {
            theory: abs(a.row.value - b.row.value) / max(abs(a.row.value), abs(b.row.value), 1e-300)
            for theory, (a, b) in pairs.items()
            if a.row.value is not None and b.row.value is not None
        }
        most = max(distances, key=distances.__getitem__, default="")
        changed = [
            f"{theory} ({a.outcome} / {b.outcome})"
            for theory, (a, b) in sorted(pairs.items())
            if a.outcome != b.outcome
        ]
        largest = f"{distances[most]:.1e} ({most})" if most else "none"
        yield (
            f"{name}: {len(distances)} values, largest relative difference {largest}; outcomes that differ: "
            f"{', '.join(changed) or 'none'}"
        )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("expected two folders of measured networks; see the first lines of this file")
    print("\n".join(lines(Path(sys.argv[1]), Path(sys.argv[2]))))
