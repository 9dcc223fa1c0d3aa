"""What differs between two networks that were measured on the same inputs (:mod:`~..probes.paired`).

The headlines of the theories are one family of tests. All heads and layers in which headlines were measured
are another family, which alone permits to name a place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.judgement import JudgedDifference, judge_differences
from ..core.measurement import Measurement
from ..core.result import Result
from ..core.table import grouped
from ..core.theory import Theory
from ..probes.paired import AGAINST, PAIRED, SUBTRACTED


@dataclass(frozen=True, eq=False)
class Change:
    """The headline of one theory in two networks.

    Attributes:
        theory: the theory.
        judged: the difference of the headline, averaged over heads and layers.
        others: values in the network that was subtracted, by layer and head; that of the mean has neither.
        places: the differences in single heads and layers.
        differing: the places that differ in their family, the largest difference first.
        largest_p: the largest adjusted p-value of these places; None without places.
        smallest_effect: see :class:`~..core.theory.InNetworks`.
    """

    theory: Theory
    judged: JudgedDifference
    others: Mapping[tuple[int | None, int | None], float]
    places: tuple[Measurement, ...]
    differing: tuple[Measurement, ...]
    largest_p: float | None
    smallest_effect: float

    @property
    def other(self) -> float | None:
        """The mean in the other network; None if the headline was not measured in both."""
        return self.others.get((None, None))

    @property
    def value(self) -> float | None:
        """The mean in the network itself, on the inputs of the groups."""
        return self.value_at(self.judged.row)

    @property
    def effect(self) -> float | None:
        """The effect of the mean, see :meth:`effect_at`."""
        return self.effect_at(self.judged.row)

    def other_at(self, row: Measurement) -> float | None:
        """Returns the value of the other network in the place of a difference."""
        return self.others.get((row.layer, row.head))

    def value_at(self, row: Measurement) -> float | None:
        """Returns the value of the network itself in the place of a difference."""
        other = self.other_at(row)
        return None if other is None or row.value is None else other + row.value

    def effect_at(self, row: Measurement) -> float | None:
        """Returns a difference divided by the size of the value in the other network; None if that is 0."""
        other = self.other_at(row)
        return row.value / abs(other) if other and row.value is not None else None

    @property
    def is_large(self) -> bool:
        """Whether the headline differs, and by enough for a sentence."""
        return self.judged.outcome == "differs" and self._is_large_at(self.judged.row)

    @property
    def large_places(self) -> tuple[Measurement, ...]:
        """The places that differ by enough for a sentence."""
        return tuple(row for row in self.differing if self._is_large_at(row))

    def _is_large_at(self, row: Measurement) -> bool:
        effect = self.effect_at(row)
        return effect is None or abs(effect) >= self.smallest_effect

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
    subtracted: dict[tuple[str, str], dict[tuple[int | None, int | None], float]] = {}
    for row in result.table:
        if row.at == {SUBTRACTED: against} and row.value is not None:
            subtracted.setdefault((row.theory, row.quantity), {})[row.layer, row.head] = row.value
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
            places = [row for row in mine if row is not means[0]]
            chosen.append((theory, _with_own_reason(means[0], result), places))
    judged = judge_differences([mean for _, mean, _ in chosen])
    family = judge_differences([row for *_, places in chosen for row in places])
    remaining = iter(family)
    found = []
    for (theory, mean, places), one in zip(chosen, judged):
        differing = [each for each, _ in zip(remaining, places) if each.outcome == "differs"]
        assert theory.in_networks is not None
        found.append(
            Change(
                theory,
                one,
                subtracted.get((theory.name, mean.quantity), {}),
                tuple(places),
                tuple(sorted((each.row for each in differing), key=lambda row: -abs(row.value or 0.0))),
                max((each.q for each in differing if each.q is not None), default=None),
                theory.in_networks.smallest_effect,
            )
        )
    left_out = next((row.reason for row in rows if row.theory == "network" and row.value is None), "")
    return Changes(against, tuple(found), left_out)


def _with_own_reason(row: Measurement, result: Result) -> Measurement:
    """Returns a difference; without a value, it has the reason why the network itself has none, if so."""
    if row.value is not None:
        return row
    own = result.table.select(theory=row.theory, quantity=row.quantity)
    reasons = [each.reason for each in own if not PAIRED & each.at.keys() and each.value is None]
    return replace(row, reason=reasons[0]) if reasons else row
