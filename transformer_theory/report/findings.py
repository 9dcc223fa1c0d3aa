"""What a comparison found: the headlines of all theories, their tests, and sentences that say what they mean.

A headline is the one quantity that stands for a theory on data, and another one in networks. Each headline is
summarised over the seeds. The p-values about these data form one family of tests, those about training
another one; in each the false discovery rate is controlled (Benjamini and Hochberg), also for values on the
side opposite to the prediction. A headline whose scope is "any data" is a theorem about descent or an
identity. Random data give it too, so it is no finding about the data and not part of a family: the same
number on noise stands beside it.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..core import format
from ..core.measurement import Measurement
from ..core.statistics import LEVEL, UNTRAINED, over_seeds, without_p
from ..core.theory import Theory
from .aggregate import COMPARE, Aggregate, Entry
from .math_text import literal
from .outcomes import adjusted, other_p, side_of_own_null

View = Literal["raw tokens", "features", "network"]
Outcome = Literal[
    "as predicted",
    "changed as predicted",
    "explained",
    "at chance",
    "opposite",
    "any data",
    "not tested",
    "not measured",
]
OUTCOMES: dict[Outcome, str] = {
    "as predicted": "on the predicted side of a null that permutes the evaluation; false discovery rate at "
    f"most {LEVEL:g}",
    "changed as predicted": "training moved the value to the predicted side of untrained networks, and "
    "beyond the metric's own null if there is one; a network that memorises noise may change in the same "
    "way",
    "explained": "training moved the value, but on that side it does not leave the metric's own null in "
    "every network, or by a difference whose interval over networks excludes 0; that null gives as much",
    "at chance": "not distinguishable from the null, for want of an effect or of power",
    "opposite": f"on the side of the null opposite to the prediction; false discovery rate at most {LEVEL:g}",
    "any data": "a statement about any data: compare it with the value on noise",
    "not tested": "no p-value; the reason stands in the cell",
    "not measured": "no value; the reason stands in the cell",
}
FOUND: tuple[Outcome, ...] = ("as predicted", "changed as predicted")
MAX_SENTENCES = 5
MAX_COLUMNS = 8  # of one matrix; with several data sets, features are omitted first


@dataclass(frozen=True, eq=False)
class Finding:
    """One headline of a theory, over all seeds.

    Attributes:
        theory: the theory.
        row: the summary over seeds, with p-value, agreement and interval.
        view: the tokens or networks on which it was measured.
        data: name of the data set.
        model: name of the network; empty for the raw tokens.
        seeds: number of seeds with a value.
        q: p-value adjusted for the false discovery rate within its scope; None without p-value.
        other_p, other_q: the same on the side opposite to the prediction.
        results: names of the results behind it, ``"R1, R2"``.
        own: in networks, the same summary with the null of the metric itself instead of untrained networks;
            None if it has none.
        own_side: the side of that null on which the networks lie (:func:`~.outcomes.side_of_own_null`).
    """

    theory: Theory
    row: Measurement
    view: View
    data: str
    model: str
    seeds: int
    q: float | None = None
    other_p: float | None = None
    other_q: float | None = None
    results: str = ""
    own: Measurement | None = None
    own_side: int | None = None

    @property
    def column(self) -> tuple[str, View, str]:
        """The column of the matrix."""
        return self.data, self.view, self.model

    @property
    def where(self) -> str:
        """The tokens or the network in words: ``"raw tokens"``, ``"features of ViT"``, ``"trained ViT"``."""
        return f"trained {self.model}" if self.view == "network" else format.view_name(self.model)

    @property
    def on_noise(self) -> float | None:
        """The value on noise, for statements about any data; elsewhere the permuted null is the control, and
        a bare number misleads.
        """
        return self.row.on_noise if self.row.scope == "any data" else None

    @property
    def outcome(self) -> Outcome:
        """The meaning of the value."""
        row = self.row
        if row.value is None:
            return "not measured"
        if row.scope == "any data":
            return "any data"
        own = self.own_side
        if self.q is None or (self.own is not None and own is None):
            return "not tested"
        if not self.side:
            return "at chance"
        # A value that falls, but stays above a null that the theory expects it to exceed, has moved to the
        # opposite side.
        if own in (0, -1) and own != self.side:
            return "explained"
        return (
            "opposite"
            if self.side == -1
            else "changed as predicted"
            if row.scope == "training"
            else "as predicted"
        )

    @property
    def side(self) -> int:
        """1 on the predicted side of the null, -1 on the opposite side, by the adjusted p-values; 0 if
        neither or without them.
        """
        return (
            1
            if self.q is not None and self.q <= LEVEL
            else -1
            if self.other_q is not None and self.other_q <= LEVEL
            else 0
        )

    @property
    def reason(self) -> str:
        """The reason for a missing value or test; empty if there is a test."""
        if self.row.value is None:
            return self.row.reason
        if self.row.p is None:
            return without_p(self.row, self.seeds)
        return "no test: the metric's own null has too few draws" if self.outcome == "not tested" else ""


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
        return sum(finding.q is not None for finding in self.all)

    @property
    def theories(self) -> list[Theory]:
        """The theories with findings: the rows of the matrix."""
        return list({finding.theory.name: finding.theory for finding in self.all}.values())

    @property
    def columns(self) -> list[tuple[str, View, str]]:
        """The columns of the matrix: for each data set the raw tokens, the features and the networks."""
        seen = dict.fromkeys(finding.column for finding in self.all)
        data = list(dict.fromkeys(column[0] for column in seen))
        views: list[View] = ["raw tokens", "features", "network"]
        return sorted(seen, key=lambda column: (data.index(column[0]), views.index(column[1])))

    def at(self, theory: Theory, column: tuple[str, View, str]) -> Finding | None:
        """Returns the finding in one cell of the matrix; None if the theory was not measured there."""
        cells = [finding for finding in self.all if finding.theory is theory and finding.column == column]
        return cells[0] if cells else None

    def few_columns(self) -> list[tuple[str, View, str]]:
        """Returns the columns of a figure: all of them, or without features if there are more than
        :data:`MAX_COLUMNS`.
        """
        columns = self.columns
        return (
            columns
            if len(columns) <= MAX_COLUMNS
            else [column for column in columns if column[1] != "features"]
        )


def findings(aggregate: Aggregate) -> Findings:
    """Returns the findings of the comparisons in an aggregate; none if it holds no comparison."""
    found = _distinct([finding for theory in aggregate.theories for finding in _of_theory(aggregate, theory)])
    for scope in ("these data", "training"):
        members = [index for index, one in enumerate(found) if one.row.scope == scope]
        for index, one in zip(members, adjusted([found[index] for index in members])):
            found[index] = one
    return Findings(tuple(found))


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


def _of_theory(aggregate: Aggregate, theory: Theory) -> list[Finding]:
    """Returns the findings of one theory, without adjusted p-values."""
    entries: list[tuple[View, Entry]] = []
    if theory.on_data is not None:
        for entry in aggregate.select(
            theory=theory.name, kind="on data", quantity=theory.on_data.headline, layer=None
        ):
            entries.append(("features" if entry.row.model else "raw tokens", entry))
    if theory.in_networks is not None:
        for entry in aggregate.select(
            theory=theory.name, kind="in network", quantity=theory.in_networks.headline, layer=None, head=None
        ):
            entries.append(("network", entry))
    found: list[Finding] = []
    own: dict[tuple, Entry] = {}
    places: list[tuple] = []
    for view, entry in entries:
        results = [aggregate.results[index] for index in entry.results]
        if results[0].name != COMPARE:
            continue
        data = entry.row.data or str(results[0].settings.get("data") or "data")
        # entries of different settings come from different results
        place = (data, entry.row.model, entry.results)
        if not entry.row.setting:
            if view == "network" and len(entry.row.nulls) > 1:  # the second is the metric's own null
                rows = tuple(replace(row, nulls=row.nulls[1:]) for row in entry.rows)
                own[place] = replace(entry, row=over_seeds(list(rows)), rows=rows)
            found.append(
                Finding(
                    theory,
                    entry.row,
                    view,
                    data,
                    entry.row.model,
                    entry.seeds,
                    other_p=other_p(entry),
                    results=aggregate.labels(entry),
                )
            )
            places.append(place)
    for index, (one, place) in enumerate(zip(found, places)):
        if one.view == "network" and (entry := own.get(place)) is not None:
            found[index] = replace(one, own=entry.row, own_side=side_of_own_null(entry))
    return sorted(found, key=lambda finding: ("raw tokens", "features", "network").index(finding.view))


# ---- sentences


def sentences(found: Findings) -> list[str]:
    """Returns the :func:`statements` as sentences: ``"Scan and snap: on the raw tokens ..."``."""
    return [f"{title}: {text}." for title, text in statements(found)]


def statements(found: Findings) -> list[tuple[str, str]]:
    """Returns at most five pairs (title of a theory, what was found), without full stops.

    Of more than five theories, those with the most decided outcomes are chosen. A statement gives the
    headline on the raw tokens with its interval, its null and, if it holds for any data, its value on noise;
    then the number of trained networks in which the theory's quantity differs as predicted from untrained
    ones. Names of data and networks are escaped (:func:`~.formulas.literal`).
    """
    by_theory = [
        (theory, [finding for finding in found.all if finding.theory is theory]) for theory in found.theories
    ]
    decided = sorted(
        by_theory, key=lambda pair: -sum(finding.outcome in (*FOUND, "opposite") for finding in pair[1])
    )
    chosen = {theory.name for theory, _ in decided[:MAX_SENTENCES]}
    names = sorted(
        {name for finding in found.all for name in (finding.data, finding.model) if literal(name) != name},
        key=len,
        reverse=True,
    )
    pairs = []
    for theory, cells in by_theory:
        if theory.name in chosen and (text := _statement(cells)):
            for name in names:
                text = text.replace(name, literal(name))
            pairs.append((theory.title, text))
    return pairs


def _statement(cells: Sequence[Finding]) -> str:
    """Returns the statement about the findings of one theory; empty if nothing was measured."""
    on_data = [cell for cell in cells if cell.view != "network" and cell.row.value is not None]
    raw = [cell for cell in on_data if cell.view == "raw tokens"] or on_data
    inside = [cell for cell in cells if cell.view == "network" and cell.row.value is not None]
    return "; ".join(filter(None, (_on_data(raw[0]) if raw else "", _in_networks(inside))))


def _on_data(cell: Finding) -> str:
    """Describes the headline on one view of the data."""
    row, facts = cell.row, []
    if row.verdict == "not covered":
        facts.append("not covered by the theorem")
    elif row.predicted is not None:
        facts.append(
            f"predicted {plain_number(row.predicted, row)}{' in the limit' if row.basis == 'limit' else ''}"
        )
    elif row.threshold is not None and row.op is not None and row.p is None:
        facts.append(
            f"predicted at {'most' if row.op == '<=' else 'least'} {plain_number(row.threshold, row)}"
        )
    if row.p is not None and row.null is not None:
        p = f", p = {p_text(row.p)}" if row.scope != "any data" else ""
        facts.append(f"{row.null.kind} {plain_number(row.null.median, row)}{p}")
    elif null_text(row):
        facts.append(null_text(row))
    where = f"the {format.view_name(cell.model)} of {cell.data}"
    known = f" ({'; '.join(facts)})" if facts else ""
    text = f"on {where}, the {row.quantity} is {value_text(row)}{known}"
    text += {
        "as predicted": ", a property of these data",
        "at chance": ", not distinguishable from chance",
        "opposite": ", on the side opposite to the prediction",
        "any data": ", no better than its null" if _within_null(row) else "",
    }.get(cell.outcome, "")
    if cell.on_noise is not None:
        noise = short(cell.on_noise, row)
        text += (
            f", as on noise ({noise}), so it is no finding about these data"
            if _as_on_noise(row)
            else f"; on noise it is {noise}"
        )
    return text


def _within_null(row: Measurement) -> bool:
    """Returns whether the value lies within the range of its null, or beyond it on the side opposite to the
    prediction.
    """
    if row.value is None or row.null is None or len(row.null.draws) < 2:
        return False
    return row.null.low <= row.value <= row.null.high or format.unexpected_side(row)


def _as_on_noise(row: Measurement) -> bool:
    """Returns whether the value differs from that on noise by at most a tenth of its distance from the null."""
    if row.value is None or row.on_noise is None or row.null is None or not row.null.draws:
        return False
    return abs(row.value - row.on_noise) <= 0.1 * abs(row.value - row.null.median)


def _in_networks(cells: Sequence[Finding]) -> str:
    """Describes how training changed the theory's quantity in all trained networks, relative to untrained
    ones.
    """
    tested = [cell for cell in cells if cell.outcome != "not tested"]
    if not tested:
        return (
            f"in {cells[0].model}, the {cells[0].row.quantity} is {value_text(cells[0].row)} "
            f"({cells[0].reason})"
            if cells
            else ""
        )
    row = tested[0].row
    verbs = {">=": ("raised", "lowered"), "<=": ("lowered", "raised")}.get(row.side or "", ("moved", "moved"))
    groups = {outcome: [cell for cell in tested if cell.outcome == outcome] for outcome in OUTCOMES}
    parts = []
    if shown := groups["changed as predicted"]:
        parts.append(f"training {verbs[0]} the {row.quantity}, as predicted, in {_listed(shown, len(cells))}")
    for side, verb in zip((1, -1), verbs):
        if shown := [cell for cell in groups["explained"] if cell.side == side]:
            kind = (
                shown[0].own.null.kind
                if shown[0].own is not None and shown[0].own.null is not None
                else "its own null"
            )
            subject = "it too" if parts and side == 1 else "it" if parts else f"the {row.quantity}"
            parts.append(
                f"{'' if parts else 'training '}{verb} {subject} in {_listed(shown, len(cells))}, but "
                f"{kind} give as much"
            )
    if shown := groups["opposite"]:
        parts.append(
            f"training moved {'it' if parts else f'the {row.quantity}'} to the opposite side in "
            f"{_listed(shown, len(cells))}"
        )
    if shown := groups["at chance"]:
        subject = "it" if parts else f"the {row.quantity}"
        parts.append(
            f"{subject} cannot be distinguished from untrained networks in {_listed(shown, len(cells))}"
        )
    return "; ".join(parts)


def _listed(cells: Sequence[Finding], total: int) -> str:
    """Names the networks, with the span of the values and that of the medians of untrained networks."""
    row = cells[0].row
    models = [cell.model for cell in cells]
    names = (
        f"all {total} networks"
        if len(cells) == total > 1
        else " and ".join(filter(None, (", ".join(models[:-1]), models[-1])))
    )
    medians = _span([cell.row.null.median for cell in cells if cell.row.null is not None], row)
    return f"{names} ({_span([cell.row.value for cell in cells], row)} against {medians})"


def _span(numbers: "Sequence[float | None]", row: Measurement) -> str:
    """Formats the smallest and the largest number: ``"0.11 to 0.16"``."""
    known = [number for number in numbers if number is not None]
    ends = (
        list(dict.fromkeys(plain_number(number, row) for number in (min(known), max(known))))
        if known
        else [format.NOTHING]
    )
    return " to ".join(ends)


def value_text(row: Measurement) -> str:
    """Formats a value with its interval: ``"0.91 [0.88, 0.94]"``."""
    if row.value is None:
        return format.NOTHING
    return f"{short(row.value, row)}{f' {interval_text(row)}' if row.interval else ''}"


def interval_text(row: Measurement) -> str:
    """Formats the interval of a row: ``"[0.88, 0.94]"``; empty without interval."""
    return "" if row.interval is None else f"[{short(row.interval[0], row)}, {short(row.interval[1], row)}]"


def short(value: float, row: Measurement) -> str:
    """Formats a number of a row with two digits of the half-width of its interval, otherwise as
    :func:`plain_number` does.
    """
    half = 0.0 if row.interval is None else (row.interval[1] - row.interval[0]) / 2
    if row.unit == "share" or not 1e-6 < half < 100:
        return plain_number(value, row)
    return f"{value:.{min(4, max(0, 1 - math.floor(math.log10(half))))}f}".replace("-", "−")


def plain_number(value: float, row: Measurement) -> str:
    """Formats a number with three digits, a share in per cent."""
    return f"{100 * value:.1f}\u00a0%".replace("-", "−") if row.unit == "share" else format.number(value)


def null_text(row: Measurement) -> str:
    """Describes the null of a row: ``"permuted labels: 0.12, 0.10 … 0.14"``, the median and the range; empty
    without null.
    """
    if row.null is None or not row.null.draws:
        return ""
    low, median, high = (
        plain_number(number, row) for number in (row.null.low, row.null.median, row.null.high)
    )
    return f"{row.null.kind}: {median}{f', {low} … {high}' if len(row.null.draws) > 1 else ''}"


def p_text(p: float | None) -> str:
    """Formats a p-value: ``".005"``, ``".0006"``, ``".35"``."""
    if p is None:
        return format.NOTHING
    return (f"{p:.1g}" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}").removeprefix("0")


def against(row: Measurement) -> str:
    """Names the null of a row in a few words: ``"untrained 0.12"``."""
    if row.null is None or not row.null.draws:
        return ""
    name = "untrained" if row.null.kind == UNTRAINED else "null"
    return f"{name} {short(row.null.median, row)}"
