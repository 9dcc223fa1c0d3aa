"""Programs that recompute the reference numbers of the figures: ``python -m benchmarks.references [NAME ...]``.

Where a paper prints no number, a figure compares itself with a number of another program. These are the programs, one file per figure. Each
is written from the formulas and the published recipe with textbook tools: plain automatic differentiation, cvxpy, scipy. None of them uses a
solver, a gradient or a sampler of the library.
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
        kind: "recomputed", or "another draw" if the program draws other random numbers than the stored run.
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
        """Whether the computed number rounds to the stored one, up to one unit of its last decimal."""
        return abs(self.computed - self.stored) <= 10.0**-self.digits


def table(references: Iterable[Reference]) -> Iterator[str]:
    """Yields one line per reference: stored, computed, difference, and whether they agree in the stored decimals."""
    for r in references:
        verdict = r.kind if r.kind != "recomputed" else "agrees" if r.agrees else "DIFFERS"
        yield f"  {r.quantity:<66} {r.stored:>14.10g} {r.computed:>14.8g} {r.computed - r.stored:>+10.1e}  {verdict}{'; ' + r.note if r.note else ''}"
