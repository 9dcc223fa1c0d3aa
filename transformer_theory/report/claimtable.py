"""The table of all claims of a page: its lines, what they are sorted by, and what they can be filtered by."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..core.sources import Source
from ..core.theory import Theory
from .views import Checked
from .wording import NOTHING, kind, number, slug

_ORDER = ("bad", "none", "unsure", "outside", "good")  # kinds of verdicts, those that need a look first


@dataclass(frozen=True)
class ClaimLine:
    """A claim with what its seeds said, as a line of the table.

    Attributes:
        note: what has to be said beside the verdict.
        number: of several lines of one claim, counted from 1.
    """

    theory: Theory
    checked: Checked
    note: str = ""
    number: int = 1

    @property
    def name(self) -> str:
        """``"attention_svm/global-direction" -> "global direction"``."""
        return self.checked.id.split("/")[-1].replace("-", " ")

    @property
    def anchor(self) -> str:
        """Id of the card that the line links to."""
        return f"claim-{slug(self.checked.id)}{f'-{self.number}' if self.number > 1 else ''}"

    @property
    def rank(self) -> int:
        """What verdicts are sorted by: those that need a look first."""
        return _ORDER.index(kind(self.checked.verdict)[0])

    @property
    def least(self) -> str:
        """Lower end of the interval of the share of consistent seeds, by which seeds are sorted."""
        found = self.checked.summary
        return self.sortable(found.interval[0] if found.decided else None)

    @property
    def line(self) -> str:
        """``"≥ 0.990"``, of the seed that is nearest to it."""
        found = self.checked.summary
        return NOTHING if found.bound is None else f"{'≤' if found.op == '<=' else '≥'}\u00a0{number(found.bound)}"

    @property
    def source(self) -> Source | str:
        """Of the claim; what the result stored if this version does not know the claim."""
        return self.checked.claim.source if self.checked.claim else self.checked.source

    @property
    def key(self) -> str:
        """Of the source in the bibliography; empty if it is not there."""
        found = self.source if isinstance(self.source, Source) else Source.find(self.source)
        return found.key if found else ""

    @staticmethod
    def sortable(value: float | None) -> str:
        """A number as the page's script reads it; empty if there is none."""
        return "" if value is None or not math.isfinite(value) else repr(float(value))


@dataclass(frozen=True)
class Board:
    """The lines and, for each filter, its choices as (value, label, number of lines).

    Attributes:
        data: on which the claims were *not* checked, for the sentence above the table; empty if there are none on the page.
    """

    lines: tuple[ClaimLine, ...]
    verdicts: tuple[tuple[str, str, int], ...]
    theories: tuple[tuple[str, str, int], ...]
    sources: tuple[tuple[str, str, int], ...]
    data: str = ""


def board(lines: Iterable[ClaimLine], data: str = "") -> Board:
    """The table of these lines, in their order; choices of verdicts as they are ranked, of sources in alphabetical order."""
    lines = tuple(lines)
    ranked = sorted(lines, key=lambda line: line.rank)
    sourced = sorted((line for line in lines if line.key), key=lambda line: _label(line.key))
    return Board(
        lines,
        _choices([(line.checked.verdict, line.checked.verdict) for line in ranked]),
        _choices([(line.theory.name, line.theory.title) for line in lines]),
        _choices([(line.key, _label(line.key)) for line in sourced]),
        data,
    )


def tally(claims: Sequence[Checked]) -> list[tuple[str, int]]:
    """How many claims came out how, those that need a look first."""
    found = Counter(claim.verdict for claim in claims)
    return sorted(found.items(), key=lambda pair: _ORDER.index(kind(pair[0])[0]))


def _label(key: str) -> str:
    """A paper without a place in it: ``"Tian et al. (2023)"``."""
    return Source(key).label


def _choices(pairs: Sequence[tuple[str, str]]) -> tuple[tuple[str, str, int], ...]:
    counts = Counter(pairs)
    return tuple((value, label, counts[value, label]) for value, label in dict.fromkeys(pairs))
