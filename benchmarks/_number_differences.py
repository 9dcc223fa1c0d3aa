"""The differences of two files of numbers that :mod:`.same_numbers` stored.

Numbers and null draws are compared bit for bit; NaN equals NaN. A version before the coordinates has a text
``setting`` in place of ``at`` and one null per row, and stores a second null in a row of its own. Its
setting is "null: <kind>". Such rows are joined to the row that they belong to (:func:`joined`). The rows
are then aligned by their identity (:func:`aligned`). Within an item, the map from old to new coordinates
must be one-to-one, and no two coordinates may look exchanged (:func:`map_differences`).
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.same_numbers import Record, chosen, read

IDENTITY = ("theory", "kind", "scope", "quantity", "unit", "split", "data", "model", "rung")
IDENTITY += ("layer", "head", "step", "seed")
MEASURED = ("value", "interval", "interval_kind", "predicted", "basis", "op", "threshold", "verdict", "side")
MEASURED += ("p", "agreement", "on_noise", "n", "reason", "note", "source")
PLACE = ("theory", "kind", "quantity", "rung", "layer", "head", "step", "seed")  # of a second null, too
SHOWN = 30  # differences that are printed per part
NUMBER = r"(?<![\w.])-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


@dataclass(frozen=True)
class Difference:
    """One difference of two files.

    Attributes:
        part, item, row: its place; ``row`` is empty if it is not in a row.
        column: name of the number or text that differs.
        old, new: both values; None if one is missing.
        rows: the old and the new row, or the only one; empty if the difference is not in a row.
    """

    part: str
    item: str
    row: str
    column: str
    old: Any
    new: Any
    rows: tuple[Record, ...] = ()

    def __str__(self) -> str:
        old, new = _short(self.old), _short(self.new)
        if isinstance(self.old, list) and isinstance(self.new, list) and len(self.old) == len(self.new):
            places = [number for number, pair in enumerate(zip(self.old, self.new)) if not same(*pair)]
            old, new = (f"[{places[0]}] = {_short(values[places[0]])}" for values in (self.old, self.new))
            old = f"{len(places)} of {len(self.old)} entries differ, {old}"
        return " | ".join(filter(None, (self.item, self.row, self.column, f"{old} -> {new}")))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:157]}..."


@dataclass(frozen=True)
class Explained:
    """A deliberate difference.

    Attributes:
        part: part in which it is expected; empty: all.
        covers: whether a difference is of this kind.
        reason: one sentence.
    """

    part: str
    covers: Callable[[Difference], bool]
    reason: str


def bounded_interval(difference: Difference) -> bool:
    """Returns whether an interval over seeds of a bounded quantity moved within its bounds."""
    if difference.column != "interval" or difference.old is None or difference.new is None:
        return False
    old, new = difference.rows
    bounds = new.get("bounds") or ([0, 1] if old["unit"] == "share" else None)
    if bounds is None or old["interval_kind"] != "over seeds":
        return False
    low, high = difference.new
    least, most = (
        end if bound is None else bound for end, bound in zip((low, high), bounds)
    )  # None: no bound
    return least <= low <= new["value"] <= high <= most


def new_row(difference: Difference) -> bool:
    """Returns whether a row is in the new version alone."""
    return difference.column == "row of one version" and difference.old is None


def refined(difference: Difference) -> bool:
    """Returns whether rows that shared one text have coordinates of their own."""
    return difference.column == "one coordinate became several"


def clearer(difference: Difference) -> bool:
    """Returns whether rungs differ in the text of the assumption that they relax alone."""
    if not re.fullmatch(r"settings\.ladders\.\w+\.rungs", difference.column):
        return False
    old, new = (
        [rung | {"relaxes": ""} for rung in rungs or ()] for rungs in (difference.old, difference.new)
    )
    return same(old, new)


def of_rungs(*names: str) -> Callable[[Difference], bool]:
    """Returns the check that a difference is in rows of these rungs, "theory/rung"."""
    return lambda difference: (
        bool(difference.rows) and all(f"{row['theory']}/{row['rung']}" in names for row in difference.rows)
    )


def of_item(*names: str, columns: tuple[str, ...]) -> Callable[[Difference], bool]:
    """Returns the check that a difference is in one of these items, in columns that begin with one of the
    texts.
    """
    return lambda difference: difference.item in names and difference.column.startswith(columns)


EXPLAINED: list[Explained] = [
    Explained(
        "",
        bounded_interval,
        "Intervals over seeds of bounded quantities are computed on the logit scale, within the bounds.",
    ),
    Explained("reach", clearer, "Rungs say what replaces what: an MLP instead of ISTA."),
    Explained(
        "reach",
        of_rungs(
            "particles/B trained, V = I",
            "particles/B and V trained",
            "particles/one block of a ViT",
            "particles/four blocks",
            "vision/ViT on the digits",
        ),
        "In particles and vision all seeds share the split of the digits, as in the other theories.",
    ),
    Explained("figures", new_row, "What was drawn from arrays are rows now."),
    Explained("figures", refined, "Rows that shared one text as their setting have their own coordinates."),
    Explained(
        "figures",
        of_item("attention_svm.global_convergence", "attention_svm.rank", columns=("settings.common",)),
        "The value of n while T varies, and of T while n varies, is 5 and no setting.",
    ),
    Explained(
        "figures",
        of_item("joma.relatives", columns=("several coordinates became one",)),
        "The root is a quantity of the same coordinate H.",
    ),
    Explained(
        "figures",
        of_item("crate.memberships", columns=("null.", "row of one version")),
        "Three rows of one value with a null each are one row with three nulls.",
    ),
    Explained(
        "figures", of_item("crate.variants", columns=("array crate/variants/seconds",)), "These are times."
    ),
]


def same(old: Any, new: Any) -> bool:
    """Returns whether two JSON values are equal bit for bit; the order of keys is free."""
    return json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)


def changed(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields the path and both values of each entry that differs in two JSON values. A list is one entry."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            yield from changed(old.get(name), new.get(name), f"{path}.{name}" if path else str(name))
    elif not same(old, new):
        yield path, old, new


def joined(rows: Sequence[Record]) -> list[Record]:
    """Joins the rows of second nulls to their main rows, which have the same place and no coordinates.

    The setting of such a row is "null: <kind>" or "untrained networks". A second null without draws adds
    nothing. If the row has another value than the main row, its null keeps that value.
    """
    copies = [row | {"nulls": list(row["nulls"])} for row in rows]
    mains: dict[str, list[Record]] = {}
    for row in copies:
        if not row["at"]:
            mains.setdefault(_key(row, PLACE), []).append(row)
    others = []
    for row in copies:
        setting = str(row["at"].get("setting", ""))
        second = setting.startswith("null: ") or setting == "untrained networks"
        found = mains.get(_key(row, PLACE), []) if second else []
        # The row of a second null names the data and the model of its main row, or none.
        found = [main for main in found if all(row[name] in ("", main[name]) for name in ("data", "model"))]
        if len(found) != 1:
            others.append(row)
            continue
        value = {} if same(row["value"], found[0]["value"]) else {"value": row["value"]}
        found[0]["nulls"] += [null | value for null in row["nulls"] if null["draws"]]
    return others


def _key(row: Record, names: Sequence[str]) -> str:
    return json.dumps([row[name] for name in names])


def contents(row: Record) -> Record:
    """Returns what is compared: the measured columns, the kind of the tested null, and all nulls."""
    nulls = [null for number, null in enumerate(row["nulls"]) if number == 0 or null["draws"]]
    by_kind: dict[str, list[Record]] = {}
    for null in nulls:
        by_kind.setdefault(null["kind"], []).append({name: null[name] for name in null if name != "kind"})
    numbered = {
        f"{kind} {number}" if number > 1 else kind: null
        for kind, several in by_kind.items()
        for number, null in enumerate(several, 1)
    }
    tested = nulls[0]["kind"] if nulls else None
    return {name: row.get(name) for name in MEASURED} | {"tested null": tested, "null": numbered}


def _at(row: Record) -> str:
    """Returns the coordinates as JSON; numbers are rounded to 12 digits."""
    at = row["at"].items()
    rounded = {name: float(f"{value:.12g}") if isinstance(value, float) else value for name, value in at}
    return json.dumps(rounded, sort_keys=True, ensure_ascii=False)


@cache
def _words(at: str) -> Counter[Any]:
    """Returns the words and numbers of coordinates, and pairs of neighbours. "n=5" has those of {"n": 5}."""
    named: Mapping[str, Any] = json.loads(at)
    text = ", ".join(str(value) if name == "setting" else f"{name} {value}" for name, value in named.items())
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    words = [_word(word) for word in re.findall(rf"{NUMBER}|[^\W_]+", text)]
    return Counter([*words, *pairwise(words)])


def _word(word: str) -> str:
    try:
        return f"{float(word):.12g}"
    except ValueError:
        return word


def _common(old: str, new: str) -> int:
    """Returns the number of words and pairs that two coordinates share."""
    return (_words(old) & _words(new)).total()


def aligned(old: Sequence[Record], new: Sequence[Record]) -> Iterator[tuple[Record | None, Record | None]]:
    """Pairs rows of equal identity: in order if the contents are equal, otherwise by coordinates."""
    groups: dict[str, tuple[list[Record], list[Record]]] = {}
    for side, rows in enumerate((old, new)):
        for row in rows:
            groups.setdefault(_key(row, IDENTITY), ([], []))[side].append(row)
    for before, after in groups.values():
        if same([contents(row) for row in before], [contents(row) for row in after]):
            yield from zip(before, after)
            continue
        free = list(after)
        for row in before:
            # Equal contents decide among rows whose coordinates are equally near.
            scores = [(_common(_at(row), _at(other)), same(contents(row), contents(other))) for other in free]
            yield row, free.pop(scores.index(max(scores))) if scores else None
        yield from ((None, row) for row in free)


def map_differences(pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Any, Any]]:
    """Yields the faults of a map of coordinates: it is not one-to-one, or two coordinates look exchanged."""
    by_old: dict[str, list[str]] = {}
    by_new: dict[str, list[str]] = {}
    for old, new in pairs:
        by_old.setdefault(old, []).append(new)
        by_new.setdefault(new, []).append(old)
    yield from (("one coordinate became several", old, new) for old, new in by_old.items() if len(new) > 1)
    yield from (("several coordinates became one", old, new) for new, old in by_new.items() if len(old) > 1)
    # Pairs whose old words are all among the new ones can only be exchanged with others.
    partial = [pair for pair in pairs if _common(*pair) < _words(pair[0]).total()]
    for one in partial:
        for other in pairs:
            now, then = _common(*one) + _common(*other), _common(one[0], other[1]) + _common(other[0], one[1])
            if then > now and (other not in partial or one < other):
                yield "coordinates look exchanged", [one[0], other[0]], [one[1], other[1]]


def row_differences(
    part: str, item: str, old: Sequence[Record], new: Sequence[Record]
) -> tuple[list[Difference], list[tuple[str, str]]]:
    """Returns the differences of the rows of an item, and the map from old to new coordinates."""
    found: list[Difference] = []
    pairs: dict[tuple[str, str], None] = {}
    for before, after in aligned(joined(old), joined(new)):
        row = before or after
        assert row is not None
        names = [f"{name} {row[name]}" for name in IDENTITY[3:] if row[name] not in (None, "")]
        place = ", ".join([*names, *([f"at {_at(row)}"] if row["at"] else [])])
        if before is None or after is None:
            values = (None if row is None else row["value"] for row in (before, after))
            found.append(Difference(part, item, place, "row of one version", *values, (row,)))
            continue
        pairs[_at(before), _at(after)] = None
        for column, *values in changed(contents(before), contents(after)):
            found.append(Difference(part, item, place, column, *values, (before, after)))
    found += [Difference(part, item, "", *fault) for fault in map_differences([*pairs])]
    return found, [*pairs]


def item_differences(old: Record, new: Record) -> tuple[list[Difference], list[tuple[str, str]], list[str]]:
    """Returns the differences of an item, its map, and the arrays that only one version has."""
    part, item = old["part"], old["item"]
    found, pairs = row_differences(part, item, old.get("rows", ()), new.get("rows", ()))
    before, after = old.get("arrays", {}), new.get("arrays", {})
    found += [
        Difference(part, item, "", f"array {name}", before[name], after[name])
        for name in before
        if name in after and before[name] != after[name]
    ]
    single = [f"array gone: {item}, {name}" for name in before if name not in after]
    single += [f"array added: {item}, {name}" for name in after if name not in before]
    rest = [
        {name: each[name] for name in each if name not in ("rows", "arrays", "seconds", "sources")}
        for each in (old, new)
    ]
    found += [Difference(part, item, "", *difference) for difference in changed(*rest)]
    return found, pairs, single


def compare(
    old: Path,
    new: Path,
    parts: Sequence[str],
    only: Sequence[str],
    *,
    show_map: bool = False,
    shown: int = SHOWN,
) -> int:
    """Prints the differences of two files and returns their number, without those in :data:`EXPLAINED`."""
    before, after = (
        {(record["part"], record["item"]): record for record in read(path)} for path in (old, new)
    )
    total = 0
    for part in parts:
        keys = [key for key in dict.fromkeys((*before, *after)) if key[0] == part and chosen(key[1], only)]
        both = [key for key in keys if key in before and key in after]
        found = [
            Difference(part, key[1], "", "item of one version", *(key in each for each in (before, after)))
            for key in keys
            if key not in both
        ]
        lines: list[str] = []
        for key in both:
            differences, pairs, arrays = item_differences(before[key], after[key])
            found += differences
            lines += arrays
            if show_map:
                lines += [f"map: {key[1]}, {one} -> {other}" for one, other in pairs if one != other]
        if not keys:
            found.append(Difference(part, "", "", "the part is stored", False, False))
        reasons = [
            next(
                (each.reason for each in EXPLAINED if each.part in ("", part) and each.covers(difference)), ""
            )
            for difference in found
        ]
        left = [difference for difference, reason in zip(found, reasons) if not reason]
        total += len(left)
        rows = sum(len(before[key].get("rows", ())) for key in both)
        print(f"{part}: {len(both)} items, {rows} rows, {len(left)} differences")
        lines += map(str, left[:shown])
        lines += [f"and {len(left) - shown} more"] if len(left) > shown else []
        lines += [
            f"explained, {count} times: {text}" for text, count in Counter(filter(None, reasons)).items()
        ]
        print(*(f"  {line}\n" for line in lines), sep="", end="")
    return total
