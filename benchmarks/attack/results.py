"""The numbers of stored results, to compare two runs of one command."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

TIMED = ("second", "images per second", "time", "date", "memory", "speed")  # differ between any two runs


def numbers(folder: Path) -> dict[str, Any]:
    """Returns all values of a stored result: its rows, its verifications and its arrays, without times.

    Raises:
        ValueError, OSError: a file of the result is missing or not readable.
    """
    rows = [json.loads(line) for line in (folder / "table.jsonl").read_text(encoding="utf-8").splitlines()]
    values: dict[str, Any] = {
        "table": [_without_times(row) for row in rows if not _timed(str(row.get("quantity", "")))],
        "verifications": _without_times(json.loads((folder / "verifications.json").read_text())),
    }
    with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
        values["arrays"] = {name: arrays[name].tolist() for name in arrays.files if not _timed(name)}
    return values


def _timed(name: str) -> bool:
    return any(word in name.lower() for word in TIMED)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(each) for key, each in value.items() if not _timed(key)}
    return [_without_times(each) for each in value] if isinstance(value, list) else value


def difference(first: Any, second: Any, place: str = "") -> str:
    """Says where two values differ first; empty if they are equal to the last bit (NaN equals NaN)."""
    if isinstance(first, dict) and isinstance(second, dict):
        if first.keys() != second.keys():
            return f"{place}: other names {sorted(first.keys() ^ second.keys())[:3]}"
        each = (difference(first[key], second[key], f"{place}/{key}") for key in first)
        return next(filter(None, each), "")
    if isinstance(first, list) and isinstance(second, list):
        if len(first) != len(second):
            return f"{place}: {len(first)} and {len(second)} entries"
        each = (difference(*pair, f"{place}/{number}") for number, pair in enumerate(zip(first, second)))
        return next(filter(None, each), "")
    both_nan = all(isinstance(value, float) and math.isnan(value) for value in (first, second))
    return "" if first == second or both_nan else f"{place}: {str(first)[:60]} and {str(second)[:60]}"


def compare(folder: Path, other: Path) -> str:
    """Says how a stored result differs from another, or that it cannot be read; empty if it does not."""
    try:
        return difference(numbers(folder), numbers(other))
    except (ValueError, OSError, KeyError) as error:
        return f"no readable result: {type(error).__name__}: {error}"
