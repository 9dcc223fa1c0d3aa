"""The words of rows: shares in per cent, and notes, which say in parts between semicolons what was read and how.

Source: none, this is bookkeeping.
"""

import re
from collections.abc import Iterable, Sequence

from .rows import Row

SEMICOLON = "; "
RANGE = re.compile(r"(?P<name>.+): (?P<low>-?[\d.]+(?:e[+-]?\d+)?) to (?P<high>-?[\d.]+(?:e[+-]?\d+)?)")


def percent(share: float, decimals: int = 2) -> str:
    """A share in words, with the two decimals that ten thousand images tell apart: ``0.4648 -> "46.48 %"``."""
    return f"{100 * share:.{decimals}f} %"


def is_share(quantity: str) -> bool:
    """Whether a quantity is a share of images, which is told in per cent."""
    return "accuracy" in quantity


def joined(*parts: str | None) -> str:
    """One note of several parts, those that are empty left out."""
    return SEMICOLON.join(filter(None, parts))


def annotate(rows: Sequence[Row], words: str) -> None:
    """Adds a part to the notes of rows in which something was read, in place."""
    for row in rows:
        if row["value"] is not None:
            row["note"] = joined(row.get("note"), words)


def common(rows: Iterable[Row]) -> str:
    """The parts that the notes of all rows have, in the order of the first: what a mean over them may say."""
    return joined(*(part for part, rest in _parts(row.get("note") or "" for row in rows) if all(part in parts for parts in rest)))


def shared(notes: Iterable[str]) -> str:
    """What all notes say, as :func:`common`, and of ranges as ``"3 untrained networks: 0.1 to 0.2"`` that differ in their ends alone the
    one that holds all."""
    return joined(*(part if all(part in parts for parts in rest) else _widened(part, rest) for part, rest in _parts(notes)))


def without(note: str, said: str) -> str:
    """A note without the parts that are said already."""
    return joined(*(part for part in note.split(SEMICOLON) if part not in said.split(SEMICOLON)))


def _parts(notes: Iterable[str]) -> list[tuple[str, list[list[str]]]]:
    """The parts of the first note, each with those of the others."""
    first, *rest = [note.split(SEMICOLON) for note in dict.fromkeys(notes)] or [[""]]
    return [(part, rest) for part in first]


def _widened(part: str, rest: Iterable[list[str]]) -> str | None:
    """A range that holds those of its name in all notes; None if it is no range, or one of them has none."""
    own = RANGE.fullmatch(part)
    same = [[found for each in parts if (found := RANGE.fullmatch(each)) and own and found["name"] == own["name"]] for parts in rest]
    if own is None or not all(same):
        return None
    ranges = [own, *(each[0] for each in same)]
    low, high = min((found["low"] for found in ranges), key=float), max((found["high"] for found in ranges), key=float)
    return f"{own['name']}: {low} to {high}"
