"""What differs between two networks on the same inputs, in sentences and as a table."""

import math
from collections.abc import Sequence
from typing import Any

from ..comparison.changes import Change, Changes, changes
from ..core import format
from ..core.judgement import DIFFERENCES, DifferenceOutcome
from ..core.math_text import literal
from ..core.measurement import Measurement
from ..core.result import Result
from ..core.table import grouped
from ..core.theory import Theory
from .tables import Block, Cell, Column, Line, Note, Plain, Strong, Table

MAX_SENTENCES = 4
TOP = 3  # places that are named for each headline
MEANING = (
    "Both networks were measured on the same inputs. Difference: the value in this network minus the value "
    "in the other one, with its 95 % interval over inputs, paired. p: the rank of the difference among those "
    "of networks that were exchanged in some groups of the inputs, adjusted for the family: all headlines, "
    "or all heads and layers. It says that the two networks differ on such inputs, not why they do."
)
NOTHING = "No headline differs by an effect that is worth a sentence."
_ORDER: tuple[DifferenceOutcome, ...] = (
    "differs",
    "not significant",
    "too few draws",
    "no difference",
    "not tested",
    "not measured",
)


def heading(found: Changes) -> str:
    """Returns the title of the section."""
    return f"Changed against {found.against}"


def section(result: Result, theories: Sequence[Theory]) -> dict[str, Any] | None:
    """Returns the section of the page; None if the result is of one network alone."""
    found = changes(result, theories)
    if found is None:
        return None
    met = {change.judged.outcome for change in found.all}
    return {
        "heading": heading(found),
        "statements": sentences(found),
        "nothing": NOTHING,
        "meaning": MEANING,
        "rest": others(found),
        "left_out": found.left_out,
        "table": table(found),
        "outcomes": {name: meaning for name, meaning in DIFFERENCES.items() if name in met},
    }


def sentences(found: Changes) -> list[tuple[str, str, str]]:
    """Returns at most :data:`MAX_SENTENCES` triples (title of a theory, how its headline differs, what the
    headline is).

    Headlines that differ on average come first, the largest effect first; then those of which single heads or
    layers differ, the largest share of them first.
    """
    large = sorted(
        (each for each in found.all if each.is_large), key=lambda each: -abs(each.effect or math.inf)
    )
    local = sorted(
        (each for each in found.all if not each.is_large and each.large_places and len(each.places) > 1),
        key=lambda each: -len(each.large_places) / len(each.places),
    )
    said = [(each, _on_average(each, found.against)) for each in large]
    said += [(each, _in_places(each, found.against)) for each in local]
    return [(each.theory.title, text, _meaning(each)) for each, text in said[:MAX_SENTENCES]]


def others(found: Changes) -> list[tuple[str, str]]:
    """Returns pairs (outcome, titles of theories) for the headlines that have no sentence."""
    named = {title for title, *_ in sentences(found)}

    def outcome(each: Change) -> str:
        if each.judged.outcome != "differs":
            return each.judged.outcome
        return "also differs" if each.is_large else "differs, by a small effect"

    rest = sorted(
        (each for each in found.all if each.theory.title not in named),
        key=lambda each: _ORDER.index(each.judged.outcome),
    )
    groups = grouped(rest, outcome)
    return [(word, ", ".join(each.theory.short_title for each in same)) for word, same in groups.items()]


def of_result(result: Result, theories: Sequence[Theory]) -> Table | None:
    """Returns the table of a result; None if it is of one network alone."""
    found = changes(result, theories)
    return None if found is None else table(found)


def table(found: Changes) -> Table:
    """Returns one line per theory: the headline in both networks, their difference, and the heads or layers
    that differ.
    """
    columns = (
        Column("theory", 15),
        Column("quantity", 16),
        Column("value", 9, "n"),
        Column("in the other network", 9, "n"),
        Column("difference", 14, "n"),
        Column("adjusted p", 8, "n"),
        Column("heads or layers", 17),
        Column("outcome", 12),
    )
    ordered = sorted(
        (each for each in found.all if each.judged.row.value is not None),
        key=lambda each: (_ORDER.index(each.judged.outcome), -abs(each.effect or 0)),
    )
    blocks = [Block("", (Line(_cells(each)),)) for each in ordered]
    missing = grouped(
        (each for each in found.all if each.judged.row.value is None), lambda each: each.judged.row.reason
    )
    blocks += [
        Block(
            "", (Line((), f"Not measured: {', '.join(each.theory.short_title for each in same)}: {reason}."),)
        )
        for reason, same in missing.items()
    ]
    met = {each.judged.outcome for each in ordered}
    outcomes = " ".join(
        f"{format.sentence_case(outcome)}: {meaning}."
        for outcome, meaning in DIFFERENCES.items()
        if outcome in met
    )
    left_out = f"{format.sentence_case(found.left_out)}. " if found.left_out else ""
    return Table(
        "changes",
        Plain(f"{heading(found)}."),
        columns,
        tuple(blocks),
        f"{literal(left_out)}{MEANING} {outcomes}",
    ).without_empty()


def _cells(change: Change) -> tuple[Cell, ...]:
    row, judged = change.judged.row, change.judged
    title = Strong(change.theory.short_title)
    assert row.value is not None
    effect = (
        ()
        if change.effect is None or not row.value
        else (Note(f"{_signed(change.effect, format.effect(change.effect))} of the other value"),)
    )
    difference = (Strong(_difference(row)), Note(format.interval_text(row)), *effect) if row.value else "0"
    return (
        title,
        row.quantity,
        format.of_row(change.value, row),
        format.of_row(change.other, row),
        difference,
        "" if judged.q is None else format.p_value(judged.q),
        _places(change),
        judged.outcome,
    )


def _places(change: Change) -> Cell:
    """Counts the heads or layers that differ, and names the first of them and the layers without any
    difference.
    """
    if len(change.places) < 2:
        return ""
    notes = [_named(change.differing)] if change.differing else []
    equal = _equal(change)
    notes += [equal] if equal else []
    return Plain(f"{len(change.differing)} of {len(change.places)} differ"), *map(Note, notes)


def _named(places: Sequence[Measurement]) -> str:
    return "; ".join(f"{format.place(row, 'layer', 'head')} ({_difference(row)})" for row in places[:TOP])


def _equal(change: Change) -> str:
    """Names the layers without any difference; empty if there are none, or if no layer differs."""
    layers = sorted(change.equal_layers)
    if not layers or not change.judged.row.value:
        return ""
    kind = "layer" if len(layers) == 1 else "layers"
    return f"no difference in {kind} {_ranges(layers)}"


def _ranges(numbers: Sequence[int]) -> str:
    """Lists numbers in order, with their ranges: ``[0, 1, 2, 5] -> "0 to 2, 5"``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _on_average(change: Change, against: str) -> str:
    """Describes a headline that differs: ``"sharpness differs: 0.396, and 0.380 in before, a difference of
    +0.016 [0.012, 0.020] (p = .008, +.04 of the value there)"``.
    """
    row, judged = change.judged.row, change.judged
    assert judged.q is not None
    effect = (
        ""
        if change.effect is None
        else f", {_signed(change.effect, format.effect(change.effect))} of the value there"
    )
    text = (
        f"{row.quantity} differs: {_both(change, row, against)}, a difference of {_difference(row)} "
        f"{format.interval_text(row)} (p = {format.p_value(judged.q)}{effect})"
    )
    if change.differing and len(change.places) > 1:
        kind = "heads" if change.differing[0].head is not None else "layers"
        text += (
            f"; {len(change.differing)} of {len(change.places)} {kind} differ by themselves, most of all "
            f"{_named(change.differing[:1])}"
        )
    return text + _without_difference(change)


def _in_places(change: Change, against: str) -> str:
    """Describes a headline that differs in single places by more than on average: ``"sharpness differs in 17
    of 72 heads, most of all layer 3, head 3 (0.41, and 0.26 in before; p ≤ .03); on average +0.015"``.
    """
    row, first = change.judged.row, change.large_places[0]
    assert change.largest_p is not None
    kind = "heads" if first.head is not None else "layers"
    place = format.place(first, "layer", "head")
    p = f"p ≤ {format.p_value(change.largest_p)}"
    return (
        f"{row.quantity} differs in {len(change.large_places)} of {len(change.places)} {kind}"
        f"{_layers_of(change.large_places)}, {'most of all in ' * (len(change.large_places) > 1)}{place} "
        f"({_both(change, first, against)}; {p}); on average the difference is {_difference(row)} "
        f"{format.interval_text(row)}{_without_difference(change)}"
    )


def _layers_of(places: Sequence[Measurement]) -> str:
    """Names the layers of heads; empty for layers."""
    if places[0].head is None:
        return ""
    layers = sorted({row.layer for row in places if row.layer is not None})
    return f" ({'layer' if len(layers) == 1 else 'layers'} {_ranges(layers)})"


def _both(change: Change, row: Measurement, against: str) -> str:
    value, other = (format.of_row(each, row) for each in (change.value_at(row), change.other_at(row)))
    return f"{value}, and {other} in {literal(against)}"


def _difference(row: Measurement) -> str:
    return _signed(row.value or 0.0, format.of_row(row.value, row))


def _without_difference(change: Change) -> str:
    equal = _equal(change)
    return f"; {equal}" if equal else ""


def _meaning(change: Change) -> str:
    return "" if change.theory.in_networks is None else change.theory.in_networks.meaning


def _signed(value: float, text: str) -> str:
    """Returns a formatted number with its sign."""
    return f"+{text}" if value > 0 else text
