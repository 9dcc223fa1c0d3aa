"""Claims: a statement from the literature, a check that could refute it, and a control that must be refuted.

A theorem about limits is checked at finite time and finite precision, so a check never *proves* anything: its verdict is
"consistent", "violated", "inconclusive" (not finite, or not converged) or "outside assumptions". A check without power is
worthless: each claim carries a control, the same check with one assumption removed or the target replaced, which must come out violated.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from .citations import Source
from .errors import NotConverged
from .intervals import clopper_pearson

VerdictName = Literal["consistent", "violated", "inconclusive", "outside assumptions"]
ControlName = Literal["fails", "passes", "inconclusive"]
CLAIM, CLAIM_VERDICT = "claim: ", "claim verdict: "  # what the quantities of rows of seeds, and of all seeds, begin with
CONTROL_WORDS: Mapping[ControlName, str] = {  # what each means for the check
    "fails": "fails as it must",
    "passes": "PASSES: no power",
    "inconclusive": "inconclusive: power unknown",
}


@dataclass(frozen=True)
class Evidence:
    """What one check measured, and the line it was held against. The bound is data, so that a reader can draw another.

    >>> import transformer_theory as tt
    >>> tt.Evidence(0.02, 0.1, "<=").verdict
    'consistent'
    >>> tt.Evidence(0.02, 0.1, "<=", converged=False).verdict
    'inconclusive'

    Attributes:
        value: the measured number (say in the claim what its unit is).
        bound: the line.
        op: ``"<="`` or ``">="``: the claim holds if ``value op bound``.
        converged: the iteration behind ``value`` met its tolerance.
        in_assumptions: the instance satisfies the assumptions of the statement.
        detail: further numbers worth keeping.
        note: what a reader must know of them, one short sentence.

    Raises:
        ValueError: another ``op``.
    """

    value: float
    bound: float
    op: Literal["<=", ">="]
    converged: bool = True
    in_assumptions: bool = True
    detail: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self):
        if self.op not in ("<=", ">="):
            raise ValueError(f"op must be '<=' or '>=', got {self.op!r}")
        object.__setattr__(self, "value", float(self.value))
        object.__setattr__(self, "bound", float(self.bound))

    @property
    def verdict(self) -> VerdictName:
        """ "consistent" | "violated" | "inconclusive" | "outside assumptions"."""
        if not self.in_assumptions:
            return "outside assumptions"
        if not (self.converged and math.isfinite(self.value) and math.isfinite(self.bound)):
            return "inconclusive"
        holds = self.value <= self.bound if self.op == "<=" else self.value >= self.bound
        return "consistent" if holds else "violated"


Check = Callable[[torch.Generator], Evidence]


@dataclass(frozen=True)
class Claim:
    """One statement of a theory with its check and its control.

    Attributes:
        id: ``"room/name"``.
        statement: LaTeX in the house notation (``docs/notation.md``), a sentence with ``$...$``.
        source: where the literature says it.
        assumptions: what must hold, each a short sentence.
        check: draws an instance that meets the assumptions and measures.
        control: the same with one assumption removed or the target replaced: must come out violated.
        control_says: what the control changes, in words.
        corrects: where a printed statement, figure or released number had to be corrected for this claim to hold: what was printed, and
            what is right. Markdown with LaTeX between dollars; empty if nothing had to be.
    """

    id: str
    statement: str
    source: Source
    assumptions: tuple[str, ...]
    check: Check
    control: Check
    control_says: str
    corrects: str = ""

    def examine(self, seed: int) -> tuple[Evidence, Evidence]:
        """What check and control measure on one seed, each with its own generator; inconclusive where a solver gives up."""
        return _examined(self.check, seed), _examined(self.control, seed)

    def verify(self, seeds: Iterable[int] = range(5)) -> "Verdict":
        """Run check and control once a seed.

        Raises:
            ValueError: no seed was given.
        """
        seeds = tuple(seeds)
        if not seeds:
            raise ValueError("seeds must name at least one seed, got none; pass e.g. seeds=range(5)")
        return Verdict.of(self, seeds, [self.examine(seed) for seed in seeds])


def _examined(check: Check, seed: int) -> Evidence:
    try:
        return check(torch.Generator().manual_seed(seed))
    except NotConverged as error:
        return Evidence(math.nan, math.nan, "<=", converged=False, note=f"not converged: {' '.join(str(error).split())}")


def overall(verdicts: Iterable[VerdictName]) -> VerdictName:
    """Violated if any seed violates; otherwise consistent if any seed is, else what all seeds say.

    Args:
        verdicts: of at least one seed.
    """
    names = set(verdicts)
    order: tuple[VerdictName, ...] = ("violated", "consistent", "inconclusive", "outside assumptions")
    return next(name for name in order if name in names)


@dataclass(frozen=True)
class Verdict:
    """What the seeds said about a claim. ``verdict`` is never "proved".

    Attributes:
        claim: the claim.
        seeds: the seeds used.
        evidence: one :class:`Evidence` a seed.
        controls: the control's evidence, one a seed.
    """

    claim: Claim
    seeds: tuple[int, ...]
    evidence: tuple[Evidence, ...]
    controls: tuple[Evidence, ...]

    @classmethod
    def of(cls, claim: Claim, seeds: Iterable[int], examined: Iterable[tuple[Evidence, Evidence]]) -> "Verdict":
        """From what :meth:`Claim.examine` returned for each seed."""
        evidence, controls = zip(*examined)
        return cls(claim, tuple(seeds), evidence, controls)

    @property
    def verdict(self) -> VerdictName:
        """That of all seeds together, by :func:`overall`."""
        return overall(e.verdict for e in self.evidence)

    @property
    def share(self) -> float:
        """Share of the decided seeds (consistent or violated) that are consistent; NaN if none was decided."""
        consistent, decided = self._counts()
        return consistent / decided if decided else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper-Pearson 95 % interval of the share: (0, 1) if no seed was decided."""
        low, high = clopper_pearson(*self._counts())
        return float(low), float(high)

    @property
    def control(self) -> ControlName:
        """ "fails" (violated on every seed, as it must be for the check to have power), "passes" (consistent on some), "inconclusive".

        A control drops an assumption, so it is judged by its numbers alone.
        """
        names = {replace(e, in_assumptions=True).verdict for e in self.controls}
        return "fails" if names == {"violated"} else "passes" if "consistent" in names else "inconclusive"

    def _counts(self) -> tuple[int, int]:
        names = [e.verdict for e in self.evidence]
        return names.count("consistent"), names.count("consistent") + names.count("violated")

    def rows(self) -> list[dict]:
        """One row a seed (:class:`~transformer_theory.rows.Row`): ``null`` is the control's value, ``control`` what all controls said."""
        theory = self.claim.id.split("/")[0]
        return [
            {
                "theory": theory,
                "quantity": f"{CLAIM}{self.claim.id}",
                "value": e.value,
                "bound": e.bound,
                "op": e.op,
                "null": c.value,
                "control": self.control,
                "verdict": e.verdict,
                "in_assumptions": e.in_assumptions,
                "source": str(self.claim.source),
                "seed": seed,
                **({"note": e.note} if e.note else {}),
            }
            for seed, e, c in zip(self.seeds, self.evidence, self.controls)
        ]

    def __str__(self) -> str:
        low, high = self.interval
        consistent, decided = self._counts()
        seeds = f"{consistent}/{decided} seeds, 95 % interval [{low:.2f}, {high:.2f}]"
        return f"{self.claim.id}: {self.verdict} ({seeds}; control {CONTROL_WORDS[self.control]})"
