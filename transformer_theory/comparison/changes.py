"""What differs between two networks that were measured on the same inputs (:mod:`~..probes.paired`).

The headlines of the theories are one family of tests. All heads and layers in which headlines were measured
are another family, which alone permits to name a place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.judgement import JudgedDifference, judge_differences
from ..core.measurement import Measurement
from ..core.result import Result
from ..core.statistics import place_of
from ..core.table import grouped
from ..core.theory import Theory
from ..probes.paired import AGAINST, SUBTRACTED


@dataclass(frozen=True, eq=False)
class Change:
    """The headline of one theory in two networks.

    Attributes:
        theory: the theory.
        judged: the difference of the headline, averaged over heads and layers.
        other: value in the network that was subtracted; None if the headline was not measured in both.
        places: the differences in single heads and layers.
        differing: the places that differ by their adjusted p-value, and whose interval does not contain 0,
            the largest difference first.
        smallest_effect: see :class:`~..core.theory.InNetworks`.
    """

    theory: Theory
    judged: JudgedDifference
    other: float | None
    places: tuple[Measurement, ...]
    differing: tuple[Measurement, ...]
    smallest_effect: float

    @property
    def value(self) -> float | None:
        """The value in the network itself, on the inputs of the groups."""
        difference = self.judged.row.value
        return None if self.other is None or difference is None else self.other + difference

    @property
    def effect(self) -> float | None:
        """The difference divided by the size of the value in the other network; None if that is 0."""
        difference = self.judged.row.value
        return difference / abs(self.other) if self.other and difference is not None else None

    @property
    def is_large(self) -> bool:
        """Whether the headline differs, and by enough for a sentence."""
        large = self.effect is None or abs(self.effect) >= self.smallest_effect
        return self.judged.outcome == "differs" and large

    @property
    def equal_layers(self) -> tuple[int, ...]:
        """The layers in which no place differs at all."""
        layers = grouped(self.places, lambda row: row.layer)
        return tuple(
            layer
            for layer, rows in layers.items()
            if layer is not None and all(row.value == 0 for row in rows)
        )


@dataclass(frozen=True, eq=False)
class Changes:
    """The differences between two networks.

    Attributes:
        against: name of the network whose values were subtracted.
        all: one change per theory with a headline, in the order of the theories.
        left_out: why layers and heads were not compared; empty if they were.
    """

    against: str
    all: tuple[Change, ...]
    left_out: str = ""

    @property
    def tests(self) -> int:
        """Number of tests in the family of headlines."""
        return sum(change.judged.q is not None for change in self.all)


def changes(result: Result, theories: Sequence[Theory]) -> Changes | None:
    """Returns what differs between the two networks of a result; None if it is of one network alone."""
    rows = [row for row in result.table if AGAINST in row.at]
    if not rows:
        return None
    against = str(rows[0].at[AGAINST])
    subtracted = {
        (*place_of(row)[:2], *place_of(row)[3:]): row.value
        for row in result.table
        if row.at == {SUBTRACTED: against}
    }
    chosen: list[tuple[Theory, Measurement, list[Measurement]]] = []
    for theory in theories:
        own = theory.in_networks
        mine = [
            row
            for row in rows
            if own is not None
            and (row.theory, row.quantity) == (theory.name, own.headline)
            and row.at == {AGAINST: against}
        ]
        means = [row for row in mine if row.layer is None and row.head is None]
        if means:
            chosen.append((theory, means[0], [row for row in mine if row is not means[0]]))
    judged = judge_differences([mean for _, mean, _ in chosen])
    family = judge_differences([row for *_, places in chosen for row in places])
    remaining = iter(family)
    found = []
    for (theory, mean, places), one in zip(chosen, judged):
        tests = [next(remaining) for _ in places]
        differing = [each.row for each in tests if each.outcome == "differs" and _excludes_zero(each.row)]
        assert theory.in_networks is not None
        found.append(
            Change(
                theory,
                one,
                subtracted.get((theory.name, mean.quantity, None, None)),
                tuple(places),
                tuple(sorted(differing, key=lambda row: -abs(row.value or 0.0))),
                theory.in_networks.smallest_effect,
            )
        )
    left_out = next((row.reason for row in rows if row.theory == "network" and row.value is None), "")
    return Changes(against, tuple(found), left_out)


def _excludes_zero(row: Measurement) -> bool:
    return row.interval is not None and not row.interval[0] <= 0 <= row.interval[1]
