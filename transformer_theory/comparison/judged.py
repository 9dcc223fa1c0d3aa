"""What results found: headlines of a comparison, rungs of a ladder, and quantities of one network, each with
its judgement (:mod:`~transformer_theory.core.judgement`).

* Headlines: the one quantity that stands for a theory on data, and another one in networks. The tests about
  the data are one family, those about training another one. A headline that holds for any data is in none.
* Rungs: the tests of a ladder are one family.
* Quantities of one network: the headlines of the theories are one family. A quantity is measured in many
  places, heads or layers; its value is their mean, and draw i of its null the mean of their draws i. All
  places of all headlines are another family, which alone permits to name a place.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..core import format
from ..core.judgement import HEADLINES, ONE_NETWORK, RUNGS, Judged, against_copies, judge
from ..core.ladder import ORDER
from ..core.measurement import Measurement
from ..core.result import Result
from ..core.statistics import LEVEL, NETWORKS, in_order, over_heads, over_seeds
from ..core.table import grouped
from ..core.theory import Theory
from ..probes.paired import PAIRED
from .pooling import COMPARE, NETWORK, PROBE, REACH, Aggregate, Entry, result_label

View = Literal["raw tokens", "features", "network"]
VIEWS: tuple[View, ...] = ("raw tokens", "features", "network")
_OF_HEADLINE = ("meaning", "below_zero", "smallest_effect", "of_labels")
MAX_COLUMNS = 8  # of one matrix; with several data sets, features are omitted first


# ---- headlines of comparisons


@dataclass(frozen=True, eq=False)
class Finding:
    """One headline of a theory in one place.

    Attributes:
        theory: the theory.
        judged: the headline over seeds.
        view: the tokens or networks on which it was measured.
        data: name of the data set.
        results: names of the results behind it, ``"R1, R2"``.
    """

    theory: Theory
    judged: Judged
    view: View
    data: str
    results: str = ""

    @property
    def model(self) -> str:
        """Name of the network; empty for the raw tokens."""
        return self.judged.row.model

    @property
    def column(self) -> tuple[str, View, str]:
        """The column of the matrix."""
        return self.data, self.view, self.model

    @property
    def where(self) -> str:
        """The tokens or the network in words: ``"raw tokens"``, ``"features of ViT"``, ``"trained ViT"``."""
        return f"trained {self.model}" if self.view == "network" else format.view_name(self.model)


@dataclass(frozen=True, eq=False)
class Findings:
    """The findings of one or several comparisons.

    Attributes:
        all: findings sorted by theory; within a theory raw tokens, then features, then networks.
    """

    all: tuple[Finding, ...]

    def __bool__(self) -> bool:
        return bool(self.all)

    @property
    def tests(self) -> int:
        """The number of p-values in both families."""
        return sum(finding.judged.q is not None for finding in self.all)

    @property
    def theories(self) -> list[Theory]:
        """The theories with findings: the rows of the matrix."""
        return list({finding.theory.name: finding.theory for finding in self.all}.values())

    @property
    def columns(self) -> list[tuple[str, View, str]]:
        """The columns of the matrix: for each data set the raw tokens, the features and the networks."""
        seen = dict.fromkeys(finding.column for finding in self.all)
        data = list(dict.fromkeys(column[0] for column in seen))
        return sorted(seen, key=lambda column: (data.index(column[0]), VIEWS.index(column[1])))

    def of(self, theory: Theory) -> list[Finding]:
        """Returns the findings of one theory."""
        return [finding for finding in self.all if finding.theory is theory]

    def at(self, theory: Theory, column: tuple[str, View, str]) -> Finding | None:
        """Returns the finding in one cell of the matrix; None if the theory was not measured there."""
        return next((finding for finding in self.of(theory) if finding.column == column), None)

    def few_columns(self) -> list[tuple[str, View, str]]:
        """Returns the columns of a figure: all of them, or without features if there are more than
        :data:`MAX_COLUMNS`.
        """
        columns = self.columns
        if len(columns) <= MAX_COLUMNS:
            return columns
        return [column for column in columns if column[1] != "features"]


def findings(aggregate: Aggregate) -> Findings:
    """Returns the findings of the comparisons in an aggregate, and the headlines of networks if it holds
    several that were measured one by one; none otherwise. The headlines of one network are one family.
    """
    places = [place for theory in aggregate.theories for place in _headlines(aggregate, theory)]
    found: dict[int, Finding] = {}
    for scope in dict.fromkeys(entry.row.scope for *_, entry in places):
        indices = [index for index, (*_, entry) in enumerate(places) if entry.row.scope == scope]
        family = [(places[index][-1].row, places[index][-1].rows) for index in indices]
        for index, judged in zip(indices, judge(family, HEADLINES)):
            theory, view, data, entry = places[index]
            found[index] = Finding(theory, judged, view, data, aggregate.labels(entry))
    every = [found[index] for index in range(len(places))] + _of_networks(aggregate)
    order = {theory.name: number for number, theory in enumerate(aggregate.theories)}
    every.sort(key=lambda finding: (order[finding.theory.name], VIEWS.index(finding.view)))
    return Findings(tuple(_distinct(every)))


def _of_networks(aggregate: Aggregate) -> list[Finding]:
    """Returns the headlines of networks that were measured one by one, if there are several."""
    networks = [
        (number, result) for number, result in enumerate(aggregate.results) if is_of_one_network(result)
    ]
    if len(networks) < 2:
        return []
    theories = {theory.name: theory for theory in aggregate.theories}
    found = []
    for number, result in networks:
        for each in headlines(quantities(result, aggregate.theories), aggregate.theories):
            row = replace(each.judged.row, model=str(result.settings["model"]))  # also of what is missing
            judged = replace(each.judged, row=row)
            found.append(Finding(theories[each.theory], judged, "network", "", result_label(number)))
    return found


def _headlines(aggregate: Aggregate, theory: Theory) -> list[tuple[Theory, View, str, Entry]]:
    """Returns the headlines of one theory with the view and the name of the data, in the order of
    the views.
    """
    places = []
    for entry in sorted(aggregate.headlines(theory), key=lambda entry: VIEWS.index(_view(entry.row))):
        result = aggregate.results[entry.results[0]]
        if result.name == COMPARE and not entry.row.at:
            data = entry.row.data or str(result.settings.get("data") or "data")
            places.append((theory, _view(entry.row), data, entry))
    return places


def _view(row: Measurement) -> View:
    return "network" if row.kind == "in network" else "features" if row.model else "raw tokens"


def _distinct(found: list[Finding]) -> list[Finding]:
    """Adds the names of the results to the data of columns in which a theory was measured twice, with
    different settings.
    """
    count = Counter((finding.theory.name, finding.column) for finding in found)
    twice = {column for (_, column), number in count.items() if number > 1}
    return [
        replace(finding, data=f"{finding.data} ({finding.results})") if finding.column in twice else finding
        for finding in found
    ]


# ---- rungs of ladders


@dataclass(frozen=True, eq=False)
class RungResult:
    """One rung of a theory.

    Attributes:
        theory: the theory.
        judged: the ladder's quantity over seeds.
        name, relaxes, column, covered: see :class:`~transformer_theory.core.ladder.Rung`.
        quantity: the quantity, if it is another one than that of the ladder; otherwise empty.
    """

    theory: Theory
    judged: Judged
    name: str
    relaxes: str
    column: str
    covered: bool
    quantity: str = ""

    @property
    def number(self) -> str:
        """The effect, followed by "×" if it is relative to the first rung; the value if there is no effect,
        or if it is another quantity than that of the ladder; empty without value.
        """
        row = self.judged.row
        if row.value is None:
            return ""
        if self.judged.effect is None or self.quantity:
            return format.of_row(row.value, row)
        return f"{format.effect(self.judged.effect)}{'×' if row.basis == 'own setting' else ''}"


def rung_results(aggregate: Aggregate) -> tuple[RungResult, ...]:
    """Returns all rungs of the results of :func:`~transformer_theory.reach`, theory by theory in the order of
    the ladders.
    """
    return tuple(rung for theory in aggregate.theories for rung in _rungs(aggregate, theory))


def by_theory(rungs: Sequence[RungResult]) -> list[list[RungResult]]:
    """Groups rungs by their theory, in the order of the first rungs."""
    return list(grouped(rungs, lambda rung: rung.theory.name).values())


def _rungs(aggregate: Aggregate, theory: Theory) -> list[RungResult]:
    """Returns the rungs of one theory."""
    ladders = [
        result.settings["ladders"].get(theory.name) for result in aggregate.results if result.name == REACH
    ]
    described: dict[str, dict[str, Any]] = {
        rung["name"]: rung for ladder in ladders if ladder for rung in ladder["rungs"]
    }
    quantities = {ladder["quantity"] for ladder in ladders if ladder}
    measured: list[tuple[dict[str, Any], Entry]] = []
    for name, rung in sorted(described.items(), key=lambda item: ORDER.index(item[1]["column"])):
        entries = [
            entry
            for entry in aggregate.select(theory=theory.name, kind="rung", rung=name)
            if entry.row.quantity in {*quantities, rung.get("quantity")} and not entry.row.at
        ]
        if entries:  # a result without the data of the rung has no value
            measured.append((rung, max(entries, key=lambda entry: entry.seeds)))
    family = judge([(entry.row, entry.rows) for _, entry in measured], RUNGS)
    return [
        RungResult(
            theory,
            judged,
            rung["name"],
            rung["relaxes"],
            rung["column"],
            rung["covered"],
            "" if judged.row.quantity in quantities else judged.row.quantity,
        )
        for (rung, _), judged in zip(measured, family)
    ]


# ---- quantities of one network


@dataclass(frozen=True, eq=False)
class Quantity:
    """One quantity of a theory in one network, in all its heads or layers.

    Attributes:
        theory, title: name and title of the theory; both "network" for a quantity of no theory.
        name, setting: the quantity, and the test on synthetic inputs that measured it; empty for the user's
            inputs.
        rows: rows with a value, one per place.
        judged: the mean over places.
        headline: whether it is the headline of its theory, so that its p-value is adjusted over the theories.
        meaning: what a headline is, in words.
        tested: number of places that are tested in the family of places (:func:`beyond_copies`).
        beyond: those of them that may be named, the one at the largest standardised distance first.
        largest_p: the largest p-value of these places, adjusted in the family; None without places.
        below_zero, smallest_effect, of_labels: see :class:`~transformer_theory.core.theory.InNetworks`.
    """

    theory: str
    title: str
    name: str
    setting: str
    rows: tuple[Measurement, ...]
    judged: Judged
    headline: bool = False
    meaning: str = ""
    tested: int = 0
    beyond: tuple[Measurement, ...] = ()
    largest_p: float | None = None
    below_zero: str = ""
    smallest_effect: float = 0.0
    of_labels: bool = False

    @property
    def short_title(self) -> str:
        """The title up to its colon."""
        return self.title.partition(":")[0]

    @property
    def label(self) -> str:
        """The quantity with its setting."""
        return f"{self.name}, {self.setting}" if self.setting else self.name

    @property
    def mean(self) -> Measurement:
        """The mean over places with the null of the mean."""
        return self.judged.row

    @property
    def is_large(self) -> bool:
        """Whether the mean is significant, and its effect large enough for the first screen."""
        return self.judged.notable(self.smallest_effect)

    @property
    def is_said(self) -> bool:
        """Whether the mean has a sentence on the first screen: it is large, and no quantity of the labels."""
        return self.is_large and not self.of_labels

    @property
    def places(self) -> str:
        """The number of places in words: ``"16 heads in 4 layers"``."""
        layers = {row.layer for row in self.rows} - {None}
        heads = sum(row.head is not None for row in self.rows)
        if heads:
            return f"{format.counted(heads, 'head')} in {format.counted(len(layers), 'layer')}"
        return format.counted(len(layers), "layer") if layers else "the network"


def is_of_one_network(result: Result) -> bool:
    """Returns whether a result is one measurement of one network, not a curve over the steps of
    a training.
    """
    steps = {row.step for row in result.table} - {None}
    return (
        result.name == PROBE
        and len(steps) <= 1
        and len({row.model for row in result.table}) <= 1
        and bool(len(result.table))
    )


def quantities(result: Result, theories: Sequence[Theory]) -> list[Quantity]:
    """Returns the quantities of a network in the order of the theories; those of no theory come last.

    The headline of a theory has the side that the theory expects. The places of all headlines are one family
    (:func:`beyond_copies`). Differences to a second network (:mod:`.changes`) and interventions
    (:func:`.judged_interventions`) are left out.
    """
    sides = {theory.name: theory.in_networks for theory in theories if theory.in_networks is not None}
    titles = {theory.name: theory.title for theory in theories}
    rows_of_one = [row for row in result.table if row.kind != "intervention" and not PAIRED & row.at.keys()]
    groups = grouped(rows_of_one, lambda row: (row.theory, row.quantity, row.setting))
    found: list[Quantity] = []
    in_places: list[int] = []  # numbers of the headlines that are measured in several places
    for (theory, name, setting), rows in groups.items():
        own = sides.get(theory)
        is_headline = own is not None and name == own.headline
        measured = [row for row in rows if row.value is not None]
        if own is not None and is_headline and not setting:
            measured = [replace(row, side=own.side) for row in measured]
        places = [row for row in measured if not _is_mean(row)] or measured[:1]
        mean = over_seeds([_mean(places, measured)]) if places else rows[0]
        (judged,) = judge([(mean, (mean,))], ONE_NETWORK)
        judged = replace(judged, q=None, other_q=None)  # only headlines are a family
        title = titles.get(theory, theory)
        quantity = Quantity(theory, title, name, setting, tuple(places), judged)
        if own is not None and is_headline:
            if len(places) > 1:  # a single place is the mean
                in_places.append(len(found))
            about = {name: getattr(own, name) for name in _OF_HEADLINE}
            quantity = replace(quantity, **about)
        found.append(quantity)
    for index, quantity in zip(in_places, beyond_copies([found[index] for index in in_places])):
        found[index] = quantity
    order = {theory.name: index for index, theory in enumerate(theories)}
    return sorted(found, key=lambda quantity: order.get(quantity.theory, len(order)))


def beyond_copies(found: Sequence[Quantity]) -> list[Quantity]:
    """Returns quantities with the places that may be named (:attr:`Quantity.beyond`).

    All places of all quantities are one family of tests against the copies of the network. A place may be
    named if its adjusted p-value is at most :data:`~.statistics.LEVEL` on the predicted side, and if its
    interval over held-out inputs lies wholly beyond the 95 % quantile of the draws on that side. Places
    without copies or without a side are not tested.
    """
    family = [(index, row) for index, each in enumerate(found) for row in each.rows]
    counts = Counter[int]()
    beyond: dict[int, list[tuple[float, float, Measurement]]] = {}
    for (index, row), test in zip(family, against_copies([row for _, row in family])):
        if test is None:
            continue
        counts[index] += 1
        p, distance = test
        if p <= LEVEL and distance > 0 and _is_stable(row):
            beyond.setdefault(index, []).append((distance, p, row))
    return [
        replace(
            each,
            tested=counts[index],
            beyond=tuple(row for *_, row in sorted(beyond.get(index, ()), key=lambda one: -one[0])),
            largest_p=max((p for _, p, _ in beyond.get(index, ())), default=None),
        )
        for index, each in enumerate(found)
    ]


def _is_stable(row: Measurement) -> bool:
    """Returns whether the interval lies beyond the 95 % quantile of the draws on the predicted side."""
    if row.interval is None or row.null is None:
        return False
    if row.side == ">=":
        return row.interval[0] > np.quantile(row.null.draws, 1 - LEVEL)
    return row.side == "<=" and bool(row.interval[1] < np.quantile(row.null.draws, LEVEL))


def _is_mean(row: Measurement) -> bool:
    """Returns whether a row is the mean over the places of a network, which has the nulls of other
    networks.
    """
    return row.layer is None and row.head is None and any(null.kind in NETWORKS for null in row.nulls)


def _mean(places: Sequence[Measurement], measured: Sequence[Measurement]) -> Measurement:
    """Returns the mean over places. Its nulls are those of the row that holds the mean, if there is one, and
    behind these the means of the places' nulls of other kinds.
    """
    mean = over_heads(places)
    whole = next((row for row in measured if _is_mean(row)), None)
    if whole is None:
        return replace(mean, nulls=in_order(mean.nulls))
    kinds = {null.kind for null in whole.nulls}
    rest = [null for null in mean.nulls if null.kind not in kinds]
    return replace(whole, nulls=in_order([*whole.nulls, *rest]))


def headlines(found: Sequence[Quantity], theories: Sequence[Theory]) -> list[Quantity]:
    """Returns the headline of each theory, with p-values adjusted over the theories; theories without any row
    are left out. A headline without a p-value, such as one whose copies have no value on their fewer inputs,
    has too few draws: its null of 19 draws has a range, which one in ten values leaves by chance.
    """
    chosen = []
    for theory in theories:
        own = [quantity for quantity in found if quantity.theory == theory.name]
        if theory.in_networks is None or not own:
            continue
        name = theory.in_networks.headline
        named = sorted(
            (each for each in own if each.name == name), key=lambda each: (not each.rows, each.setting)
        )
        reason = next((each.judged.reason for each in own if not each.rows), "not measured in this network")
        missing = Measurement(theory.name, "in network", name, None, reason=reason)
        judged = Judged(missing, (), "not measured", reason=reason)
        nothing = Quantity(theory.name, theory.title, name, "", (), judged)
        chosen.append(named[0] if named else nothing)
    family = judge([(each.mean, each.judged.rows) for each in chosen], HEADLINES)
    return [replace(each, judged=judged, headline=True) for each, judged in zip(chosen, family)]


def with_headlines(found: Sequence[Quantity], chosen: Sequence[Quantity]) -> list[Quantity]:
    """Returns the quantities, the headlines among them as they were judged in their family."""
    judged = {(each.theory, each.label): each for each in chosen}
    return [judged.get((each.theory, each.label), each) for each in found]


def notable(found: Sequence[Quantity]) -> list[Quantity]:
    """Returns the quantities of theories with places that may be named, the largest share of them first;
    without quantities of the labels, see :attr:`~transformer_theory.core.theory.InNetworks.of_labels`.
    """
    chosen = [each for each in found if each.theory != NETWORK and each.beyond and not each.of_labels]
    return sorted(chosen, key=lambda each: -len(each.beyond) / each.tested)
