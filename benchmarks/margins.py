"""Distances of all thresholds from what is measured: ``python -m benchmarks.margins [THEORY ...]``.

The numbers are those of the ledger. A threshold within a factor of two of the worst measured number may be
decided by the draw. One within a factor of two of the nearest control may let a wrong theory pass. Such a
claim needs a reason, its ``margin``.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_theory.core.claims import MARGIN, Verification
from transformer_theory.core.format import number, sign
from transformer_theory.theories import list_theories

LEDGER = Path(__file__).parents[1] / "docs" / "claims.json"


def without_reason(verifications: Sequence[Verification]) -> list[str]:
    """Returns the ids of the claims whose margin is below :data:`~.MARGIN` and that give no reason.

    Claims that measure something else or have another threshold since they were verified are left out.
    """
    claims = {claim.id: claim for theory in list_theories() for claim in theory.claims}
    missing = []
    for one in verifications:
        claim = claims.get(one.id)
        if claim and (claim.measures, claim.threshold) != (one.measures, one.worst.threshold):
            continue
        if min(one.margins) < MARGIN and not (claim and claim.margin):
            missing.append(one.id)
    return missing


def stored(ledger: Path = LEDGER) -> list[Verification]:
    """Reads the verifications of the ledger, in the order of their ids."""
    documents = json.loads(ledger.read_text(encoding="utf-8"))
    every = [Verification.from_json(one) for document in documents for one in document["verifications"]]
    return sorted(every, key=lambda one: one.id)


def line(one: Verification, *, missing: bool) -> str:
    """Formats a claim: its factors, worst number, threshold and nearest control."""
    value, control = (number(factor) if factor < float("inf") else "–" for factor in one.margins)
    mark = "?" if missing else " "
    worst, threshold, nearest = (
        number(x) for x in (one.worst.value, one.worst.threshold, one.worst_control.value)
    )
    return (
        f"{mark} {one.id:40} {value:>10} {control:>10}   {worst} {sign(one.worst.op)} {threshold}, "
        f"control {nearest}"
    )


def main(theories: Sequence[str] = ()) -> int:
    """Prints a line per claim and returns the exit status: 1 if a small margin has no reason."""
    verifications = [one for one in stored() if not theories or one.theory in theories]
    missing = without_reason(verifications)
    print(f"  {'claim':40} {'to value':>10} {'to control':>10}   worst value, threshold, nearest control")
    for one in verifications:
        print(line(one, missing=one.id in missing))
    print(
        f"\n{len(missing)} of {len(verifications)} claims have a factor below {MARGIN:g} and give no reason"
    )
    return min(len(missing), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
