"""Programs that recompute the reference numbers of the figures: ``python -m benchmarks.references [NAME
...]``.

Where a paper prints no number, a figure compares itself with a number of another program. These are the
programs, one file per figure. Each is written from the formulas and the published recipe with textbook tools:
plain automatic differentiation, cvxpy, scipy. None of them uses a solver, a gradient or a sampler of the
library.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


@dataclass(frozen=True)
class Reference:
    """A stored reference number beside the number that a program computes.

    Attributes:
        quantity: what is compared, with its setting.
        stored: the constant in the figure's file.
        computed: the number of the program.
        kind: origin of the stored number: "recomputed" by this program, "printed" by the paper or its code,
            "read off the figure", or "another draw": by a run with other random numbers than the program
            draws.
        note: remark on the comparison.
    """

    quantity: str
    stored: float
    computed: float
    kind: str = "recomputed"
    note: str = ""

    @property
    def digits(self) -> int:
        """Number of decimals of the stored constant."""
        return len(repr(float(self.stored)).partition(".")[2])

    @property
    def agrees(self) -> bool:
        """Whether the computed number rounds to the stored one."""
        return abs(self.computed - self.stored) <= 0.5000001 * 10.0**-self.digits


def table(references: Iterable[Reference]) -> Iterator[str]:
    """Yields one line per reference: stored, computed, difference, origin, and whether a recomputed or
    printed number agrees.
    """
    for r in references:
        judged = ("agrees" if r.agrees else "DIFFERS",) if r.kind in ("recomputed", "printed") else ()
        remark = "; ".join((r.kind, *judged, *filter(None, (r.note,))))
        yield f"  {r.quantity:<66} {r.stored:>14.10g} {r.computed:>14.8g} {r.computed - r.stored:>+10.1e}  {remark}"  # noqa: E501
