"""The reach of theories: what each rung of a ladder measured, over all seeds, and one sentence per theory.

The rungs of a ladder with a p-value form one family of tests, in which the false discovery rate is controlled
(Benjamini and Hochberg). A null with fewer draws than a p-value needs counts by its range: a value beyond all
of at least 19 draws has p = .05 or less. Such rungs, and second nulls, are outside the family.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..core.ladder import ORDER
from ..core.measurement import Measurement
from ..core.statistics import LEVEL, agreement
from ..core.theory import Theory
from .aggregate import REACH, Aggregate
from .findings import short
from .outcomes import adjusted, other_p, side_of_null

Outcome = Literal[
    "beyond chance",
    "undecided",
    "explained",
    "nulls disagree",
    "at chance",
    "opposite",
    "not tested",
    "not measured",
]
HALF = 0.5  # agreement below which a sentence says so
OUTCOMES: dict[Outcome, str] = {
    "beyond chance": f"beyond all nulls on the predicted side, false discovery rate at most {LEVEL:g}",
    "undecided": f"p is at most {LEVEL:g} but its adjusted value is not, or the mean leaves the nulls but "
    "some seed lies on the other side",
    "explained": "beyond the null, but within a second null of the same quantity, which gives as much",
    "nulls disagree": "beyond the null on one side, and beyond a second null of the same quantity on the "
    "other side",
    "at chance": "not distinguishable from the null, for want of an effect or of power",
    "opposite": "beyond all nulls on the side opposite to the prediction, or farther from it; false "
    f"discovery rate at most {LEVEL:g}",
    "not tested": "a null has too few draws",
    "not measured": "no value; the reason stands in the cell",
}


@dataclass(frozen=True, eq=False)
class Reached:
    """One rung of a theory, over all seeds.

    Attributes:
        theory: the theory.
        name, relaxes, column, covered: see :class:`~transformer_theory.core.ladder.Rung`.
        row: the summary of the ladder's quantity over seeds.
        seeds: number of seeds with a value.
        mixed: whether seeds lie on different sides of the medians of one of their nulls.
        second: the same value with a second null, if the rung has one.
        other_p: p-value on the side opposite to the prediction.
        q, other_q: p-values adjusted for the false discovery rate; None without p-value.
    """

    theory: Theory
    name: str
    relaxes: str
    column: str
    covered: bool
    row: Measurement
    seeds: int
    mixed: bool = False
    second: Measurement | None = None
    other_p: float | None = None
    q: float | None = None
    other_q: float | None = None

    @property
    def outcome(self) -> Outcome:
        """The meaning of the value."""
        if self.row.value is None:
            return "not measured"
        first, second = self._side, None if self.second is None else side_of_null(self.second)
        if first is None or (self.second is not None and second is None):
            return "not tested"
        if first == 0:
            undecided = any(p is not None and p <= LEVEL for p in (self.row.p, self.other_p))
            return "undecided" if undecided else "at chance"
        if second == 0:
            return "explained"
        if second == -first:
            return "nulls disagree"
        if self.mixed:
            return "undecided"
        return "beyond chance" if first == 1 else "opposite"

    @property
    def _side(self) -> int | None:
        """The side of the null, by the adjusted p-values if there are any."""
        if self.q is None:
            return side_of_null(self.row)
        return 1 if self.q <= LEVEL else -1 if self.other_q is not None and self.other_q <= LEVEL else 0

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the agreement over seeds, from the interval of the value; None without one."""
        row = self.row
        if row.interval is None or row.null is None or row.agreement is None:
            return None
        ends = [agreement(end, row.predicted, row.null.median) for end in row.interval]
        known = sorted(end for end in ends if end is not None)
        return (known[0], known[1]) if len(known) == 2 else None

    @property
    def number(self) -> str:
        """The agreement, followed by "×" if it is relative to the first rung; the value if there is no
        agreement; empty without value.
        """
        if self.row.value is None:
            return ""
        if self.row.agreement is None:
            return short(self.row.value, self.row)
        return f"{two_digits(self.row.agreement)}{'×' if self.row.basis == 'own setting' else ''}"


def two_digits(number: float) -> str:
    """Formats an agreement with two digits after the point, from 2 on with one: ``".97"``, ``"1.03"``,
    ``"−.12"``, ``"−3.4"``.
    """
    text = f"{number:.{2 if abs(number) < 1.995 else 1}f}".replace("-0.00", "0.00").replace("-", "−")
    return text.replace("0.", ".", 1) if abs(number) < 0.995 else text


def reached(aggregate: Aggregate) -> tuple[Reached, ...]:
    """Returns all rungs of the results of :func:`~transformer_theory.reach`, theory by theory in the order of
    the ladders.
    """
    return tuple(cell for theory in aggregate.theories for cell in adjusted(_of_theory(aggregate, theory)))


def by_theory(cells: Sequence[Reached]) -> list[list[Reached]]:
    """Groups rungs by their theory, in the order of the first rungs."""
    groups: dict[str, list[Reached]] = {}
    for cell in cells:
        groups.setdefault(cell.theory.name, []).append(cell)
    return list(groups.values())


def _of_theory(aggregate: Aggregate, theory: Theory) -> list[Reached]:
    """Returns the rungs of one theory, without adjusted p-values."""
    ladders = [
        result.settings["ladders"].get(theory.name) for result in aggregate.results if result.name == REACH
    ]
    rungs: dict[str, dict[str, Any]] = {
        rung["name"]: rung for ladder in ladders if ladder for rung in ladder["rungs"]
    }
    quantities = {ladder["quantity"] for ladder in ladders if ladder}
    cells = []
    for name, rung in sorted(rungs.items(), key=lambda item: ORDER.index(item[1]["column"])):
        entries = [
            entry
            for entry in aggregate.select(theory=theory.name, kind="rung", rung=name)
            if entry.row.quantity in quantities
        ]
        first, second = (
            [entry for entry in entries if bool(entry.row.setting) is with_setting]
            for with_setting in (False, True)
        )
        if not first:
            continue
        # a result without the data of the rung has no value
        entry = max(first, key=lambda entry: entry.seeds)
        described = {key: rung[key] for key in ("name", "relaxes", "column", "covered")}
        other = max(second, key=lambda entry: entry.seeds) if second else None
        mixed = any(len(_sides(one.rows)) > 1 for one in (entry, other) if one is not None)
        tests = {"mixed": mixed, "second": None if other is None else other.row, "other_p": other_p(entry)}
        cells.append(Reached(theory, **described, row=entry.row, seeds=entry.seeds, **tests))
    return cells


def _sides(rows: Sequence[Measurement]) -> set[bool]:
    """Returns on which sides of the medians of their nulls the values of single seeds lie."""
    return {
        row.value > row.null.median
        for row in rows
        if row.value is not None and row.null is not None and row.null.draws
    }


# ---- sentences


def statements(cells: Sequence[Reached]) -> list[tuple[str, str]]:
    """Returns a pair (title of a theory, how far it reaches) per theory, without full stops."""
    return [(group[0].theory.title, text) for group in by_theory(cells) if (text := _statement(group))]


def _statement(cells: Sequence[Reached]) -> str:
    """Returns the sentence about one theory: agreement at the start, where it ends, and what follows; empty
    if nothing was tested.
    """
    cells = [cell for cell in cells if cell.outcome not in ("not measured", "not tested")]
    if not cells:
        return ""
    count = next((index for index, cell in enumerate(cells) if cell.outcome != "beyond chance"), len(cells))
    subject, rest = f"the {cells[0].row.quantity}", cells[max(1, count) :]
    parts = [
        f"{subject} is beyond chance {_span(cells, count)}"
        if count
        else f"{subject} is {_word(cells[0])} at {_quoted(cells[:1])}"
    ]
    words = [_word(cell) for cell in rest]
    if len(set(words)) == 1:
        parts.append(
            f"{words[0]} {'from' if len(rest) > 1 else 'at'} "
            f"{_quoted(rest[:1])}{' on' if len(rest) > 1 else ''}"
        )
        return "; ".join(parts)
    order = ("explained", "nulls disagree", "undecided", "at chance", "opposite", "beyond chance")
    for word in sorted(dict.fromkeys(words), key=lambda word: order.index(rest[words.index(word)].outcome)):
        group = [cell for cell in rest if _word(cell) == word]
        parts.append(
            f"{word}{' again' if group[0].outcome == 'beyond chance' and count else ''} at {_quoted(group)}"
        )
    return "; ".join(parts)


def _span(cells: Sequence[Reached], count: int) -> str:
    """Describes the first ``count`` rungs, which are beyond chance: the last of them, and the agreement at
    both ends.

    If the agreement falls below one half and stays there, the rung on which it does is named before the last
    one. Earlier rungs below one half are named, too.
    """
    first, last = cells[0], cells[count - 1]
    where = (
        f"on all {count} rungs"
        if count == len(cells)
        else f"up to {_quoted([last])}"
        if count > 1
        else f"at {_quoted([first])} only"
    )
    if first.row.agreement is None:
        return f"{where} ({first.number} at {_quoted([first])})"
    kind = "effect relative to the first rung" if first.row.basis == "own setting" else "agreement"
    low = [cell.row.agreement is not None and cell.row.agreement < HALF for cell in cells[:count]]
    start = next((index for index in range(count) if all(low[index:])), count)
    numbers = [f"{kind} {first.number} at {_quoted([first])}"]
    if between := [cell for cell, below in zip(cells[:start], low) if below]:
        numbers.append(f"below {two_digits(HALF)} at {_quoted(between)}")
    if 0 < start < count - 1:
        numbers.append(
            f"below {two_digits(HALF)} from {_quoted([cells[start]])} on, {last.number} at {_quoted([last])}"
        )
    elif count > 1:
        numbers.append(f"{last.number} at {_quoted([last])}")
    return f"{where} ({', '.join(numbers)})"


def _word(cell: Reached) -> str:
    if cell.outcome in ("explained", "nulls disagree"):
        assert cell.row.null is not None
        assert cell.second is not None
        assert cell.second.null is not None
        first, second = cell.row.null.kind, cell.second.null.kind
        if cell.outcome == "explained":
            return f"explained by {second}"
        sides = (
            "beyond {} but on the opposite side of {}"
            if cell._side == 1
            else "on the opposite side of {} but beyond {}"
        )
        return sides.format(first, second)
    return "on the opposite side" if cell.outcome == "opposite" else cell.outcome


def _quoted(cells: Sequence[Reached]) -> str:
    names = [f"“{cell.name}”" for cell in cells]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
