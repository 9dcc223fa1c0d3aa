"""Quantities of one network: each in all heads or layers, with its summary, its test and the places beyond
chance.

A quantity is measured in many places, heads or layers. Its summary is the mean over them; draw i of its null
is the mean of the draws i of all places. Nulls with at least 99 draws give the mean a p-value, and the false
discovery rate over the theories is controlled (Benjamini and Hochberg); of other nulls the range is shown.
Single places are counted at p ≤ .05, which one place in twenty has by chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..core import format
from ..core.measurement import Measurement
from ..core.result import Result
from ..core.statistics import LEVEL, SMALLEST_P, UNTRAINED, false_discoveries, over_heads, without_p
from ..core.theory import Theory
from .aggregate import NETWORK, PROBE
from .outcomes import OTHER_SIDE, side_of_null

MIN_PLACES = 3  # with fewer tested places, the strongest one is not worth a line
BEYOND, OPPOSITE, CHANCE = "beyond chance", "opposite", "at chance"
BEYOND_RANGE, OPPOSITE_RANGE, IN_RANGE = "beyond all draws", "opposite to all draws", "within the range"
UNTESTED, NO_SIDE, MISSING = "no test", "no side predicted", "not measured"
AS_UNTRAINED = "as with random weights"  # below an outcome in LEAVING
OUTCOMES = {
    BEYOND: "the mean over heads and layers lies on the predicted side of its null; false discovery rate "
    f"at most {LEVEL:g}",
    OPPOSITE: f"it lies on the other side; false discovery rate at most {LEVEL:g}",
    CHANCE: "not distinguishable from the null, for want of an effect or of power",
    BEYOND_RANGE: "the null has too few draws for a p-value; the mean lies beyond all of them, on the "
    "predicted side",
    OPPOSITE_RANGE: "the same on the other side",
    IN_RANGE: "the mean lies between the smallest and the largest draw",
    UNTESTED: "the null has too few draws, or there is none",
    NO_SIDE: "the theory does not predict a side of the null",
    MISSING: "no value; the reason stands in the line",
}
LEAVING = (BEYOND, BEYOND_RANGE, OPPOSITE, OPPOSITE_RANGE)
ORDER = (BEYOND, BEYOND_RANGE, OPPOSITE, OPPOSITE_RANGE, NO_SIDE, UNTESTED, CHANCE, IN_RANGE, MISSING)


@dataclass(frozen=True, eq=False)
class Quantity:
    """One quantity of a theory in one network, in all its heads or layers.

    Attributes:
        theory: name of the theory.
        name, setting: the quantity, and the test on synthetic inputs that measured it; empty for the user's
            inputs.
        rows: rows with a value, one per place.
        reason: why there is no value.
        q, other_q: adjusted p-values of the mean on the predicted and on the other side; None without a test.
        untrained: the mean beside networks with random weights, if the rows have another null; None if it was
            not measured.
        meaning: what a headline is, in words.
    """

    theory: str
    name: str
    setting: str
    rows: tuple[Measurement, ...]
    reason: str = ""
    q: float | None = None
    other_q: float | None = None
    untrained: Measurement | None = None
    meaning: str = ""

    @property
    def as_untrained(self) -> bool:
        """Whether a network with random weights lies as far from the null, on the same side, as the mean
        does.
        """
        row = self.untrained
        if row is None or row.null is None or row.value is None or self.mean.null is None:
            return False
        return row.value <= row.null.high if row.value > self.mean.null.median else row.value >= row.null.low

    @property
    def label(self) -> str:
        """The quantity with its setting."""
        return f"{self.name}, {self.setting}" if self.setting else self.name

    @cached_property
    def mean(self) -> Measurement:
        """The mean over places with the null of the mean."""
        return over_heads(self.rows)

    @cached_property
    def beyond(self) -> list[Measurement]:
        """The places beyond their null on the predicted side, those farthest from its median first."""
        found = [row for row in self.rows if side_of_null(row) == 1]
        return sorted(
            found,
            key=lambda row: -abs((row.value or 0.0) - (row.null.median if row.null is not None else 0.0)),
        )

    @cached_property
    def tested(self) -> int:
        """The number of places with a test."""
        return sum(side_of_null(row) is not None for row in self.rows)

    @property
    def p(self) -> float | None:
        """The p-value of the mean; None if its null has too few draws."""
        row = self.mean if self.rows else None
        if row is None or row.value is None or row.null is None or row.side is None or without_p(row):
            return None
        p = row.null.p(row.value, row.side, predicted=row.predicted)
        return p if 1 / (1 + len(row.null.draws)) <= SMALLEST_P else None

    @property
    def other_p(self) -> float | None:
        """The p-value of the mean on the side opposite to the prediction."""
        row = self.mean if self.rows else None
        other = None if row is None or self.p is None else OTHER_SIDE.get(row.side)
        if row is None or row.null is None or row.value is None or other is None:
            return None
        return row.null.p(row.value, other, predicted=row.predicted)

    @property
    def outcome(self) -> str:
        """One of :data:`OUTCOMES`."""
        if not self.rows:
            return MISSING
        if self.mean.side is None and self.mean.null is not None:
            return NO_SIDE
        if self.q is not None:
            return (
                BEYOND
                if self.q <= LEVEL
                else OPPOSITE
                if self.other_q is not None and self.other_q <= LEVEL
                else CHANCE
            )
        side = side_of_null(self.mean)
        return UNTESTED if side is None else (IN_RANGE, BEYOND_RANGE, OPPOSITE_RANGE)[side]

    @property
    def places(self) -> str:
        """The number of places in words: ``"16 heads in 4 layers"``."""
        layers, heads = (
            {row.layer for row in self.rows} - {None},
            [row for row in self.rows if row.head is not None],
        )
        if heads:
            return f"{format.several(len(heads), 'head')} in {format.several(len(layers), 'layer')}"
        return format.several(len(layers), "layer") if layers else "the network"


def is_of_one_network(result: Result) -> bool:
    """Returns whether a result is one measurement of one network, not a curve over the steps of a training."""
    steps = {row.step for row in result.table} - {None}
    return (
        result.name == PROBE
        and len(steps) <= 1
        and len({row.model for row in result.table}) <= 1
        and bool(len(result.table))
    )


def shape(result: Result) -> str:
    """Returns layers and heads of a network in words: ``"4 layers of 4 heads"``; empty if nothing was
    measured by layer.
    """
    rows = [row for row in result.table if row.layer is not None and row.value is not None]
    if not rows:
        return ""
    heads = {row.layer: 0 for row in rows}
    for row in rows:
        if row.head is not None:
            heads[row.layer] = max(heads[row.layer], row.head + 1)
    counts = set(heads.values())
    own = f" of {format.several(counts.pop(), 'head')}" if len(counts) == 1 and counts != {0} else ""
    return f"{format.several(len(heads), 'layer')}{own}"


def inputs_of(result: Result) -> str:
    """Returns the inputs of a probed network in words, or the number of its forward passes."""
    passes = int(result.settings.get("forward_passes") or 1)
    return str(result.settings.get("inputs") or f"{passes:,} forward pass{'es' * (passes > 1)}")


def subject(result: Result) -> str:
    """Returns what was measured: ``"my ViT (4 layers of 4 heads) on 128 images of shape [1, 8, 8]"``."""
    model = next((row.model for row in result.table if row.model), "the network")
    size = shape(result)
    return f"{model}{f' ({size})' if size else ''} on {inputs_of(result)}"


def quantities(result: Result, theories: Sequence[Theory]) -> list[Quantity]:
    """Returns the quantities of a network in the order of the theories; those of no theory come last.

    The headline of a theory has the side that the theory expects.
    """
    headlines = {theory.name: theory.in_networks for theory in theories if theory.in_networks is not None}
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for row in result.table:
        groups.setdefault((row.theory, row.quantity, row.setting), []).append(row)
    untrained: dict[tuple[str, str], Measurement] = {}
    for (theory, name, setting), rows in groups.items():
        by_place = [row for row in rows if row.layer is not None or row.head is not None]
        # The mean over heads and layers comes after them; its first null are the untrained networks.
        if by_place and rows[-1].null is not None and rows[-1] is not by_place[-1] and not setting:
            groups[theory, name, setting] = by_place
            if any(row.null is not None and row.null.kind != UNTRAINED for row in by_place):
                untrained[theory, name] = rows[-1]
    found = []
    for (theory, name, setting), rows in groups.items():
        measured = [row for row in rows if row.value is not None]
        own = headlines.get(theory)
        meaning = "" if own is None or name != own.headline else own.meaning
        if own is not None and name == own.headline and not setting:
            measured = [replace(row, side=own.side) for row in measured]
        beside = None if setting else untrained.get((theory, name))
        reason = "" if measured else rows[0].reason
        found.append(
            Quantity(theory, name, setting, tuple(measured), reason, untrained=beside, meaning=meaning)
        )
    order = {theory.name: index for index, theory in enumerate(theories)}
    return sorted(found, key=lambda quantity: order.get(quantity.theory, len(order)))


def headlines(found: Sequence[Quantity], theories: Sequence[Theory]) -> list[Quantity]:
    """Returns the headline of each theory, with p-values adjusted over the theories; theories without any row
    are left out.
    """
    chosen = []
    for theory in theories:
        own = [quantity for quantity in found if quantity.theory == theory.name]
        if theory.in_networks is None or not own:
            continue
        named = sorted(
            (each for each in own if each.name == theory.in_networks.headline),
            key=lambda each: (not each.rows, each.setting),
        )
        reason = next((each.reason for each in own if each.reason), "not measured in this network")
        chosen.append(
            named[0] if named else Quantity(theory.name, theory.in_networks.headline, "", (), reason)
        )
    tested = [(p, other) for each in chosen if (p := each.p) is not None for other in [each.other_p]]
    q = iter(false_discoveries([p for p, _ in tested]))
    other_q = iter(false_discoveries([1.0 if other is None else other for _, other in tested]))
    return [
        replace(each, q=next(q), other_q=next(other_q)) if each.p is not None else each for each in chosen
    ]


def standing_out(found: Sequence[Quantity]) -> list[Quantity]:
    """Returns the quantities of which more places are beyond chance than chance explains, the largest share
    first.

    So many places would have to have a probability of at most 5 % if each were beyond chance with probability
    1/20, independently.
    """
    chosen = [
        each
        for each in found
        if each.theory != NETWORK and each.tested >= MIN_PLACES and _more_than_chance(each)
    ]
    return sorted(chosen, key=lambda each: -len(each.beyond) / each.tested)


def _more_than_chance(quantity: Quantity) -> bool:
    """Returns whether the number of places beyond chance is in the upper 5 % of the binomial distribution
    with probability 1/20.
    """
    from scipy.stats import binom

    return (
        bool(quantity.beyond) and float(binom.sf(len(quantity.beyond) - 1, quantity.tested, LEVEL)) <= LEVEL
    )
