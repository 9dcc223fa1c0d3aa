"""What a parameter of an experiment may hold, declared once beside its default: checked before it is used, told by ``--help``."""

import dataclasses
import math
import numbers
import operator
from collections.abc import Iterator
from typing import Any

BOUNDS = {
    "at_least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "at_most": ("at most", operator.le),
    "below": ("below", operator.lt),
    "multiple_of": ("a multiple of", lambda value, unit: value % unit == 0),
}


def parameter(
    default: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    multiple_of: int | None = None,
    says: str = "",
) -> Any:
    """A dataclass field that holds a finite number within bounds, or a tuple of at least one of them; whole ones if the default is.

    Args:
        says: what the parameter is, for ``--help``.
    """
    given = {"at_least": at_least, "above": above, "at_most": at_most, "below": below, "multiple_of": multiple_of}
    bounds = {name: bound for name, bound in given.items() if bound is not None}
    return dataclasses.field(default=default, metadata={"bounds": bounds, "says": says})


def bounded(kind: Any) -> Iterator[dataclasses.Field]:
    """Fields of a dataclass, or of an instance of one, that were made by :func:`parameter`."""
    return (field for field in dataclasses.fields(kind) if "bounds" in field.metadata)


def range_of(field: dataclasses.Field) -> str:
    """The bounds in words, such as "above 0 and at most 1"; nothing if there are none."""
    return " and ".join(f"{BOUNDS[name][0]} {bound:.15g}" for name, bound in field.metadata.get("bounds", {}).items())


def check_parameters(holder: Any) -> None:
    """Holds the fields of a dataclass instance to what :func:`parameter` declared.

    Raises:
        ValueError: one is beyond its bounds, not finite, no number, not whole where the default is, or a tuple without entries.
    """
    for field in bounded(holder):
        value, default = getattr(holder, field.name), field.default
        usual = default if isinstance(default, tuple) else (default,)
        entries = value if isinstance(value, tuple) else (value,)
        whole = all(isinstance(entry, int) for entry in usual)
        alike = isinstance(value, tuple) == isinstance(default, tuple)
        if alike and entries and all(_within(entry, whole, field.metadata["bounds"]) for entry in entries):
            continue
        what = "whole number" if whole else "finite number"
        expected = f"a tuple of {what}s" if isinstance(default, tuple) else f"a {what}"
        shown = " ".join(map(str, usual))
        told = f"{expected} {range_of(field)}".strip()
        raise ValueError(f"{field.name} must be {told}, got {value!r}; give such a value, or leave it out (default: {shown})")


def _within(value: Any, whole: bool, bounds: dict[str, float]) -> bool:
    a_number = not isinstance(value, bool) and isinstance(value, numbers.Integral if whole else numbers.Real)
    # strictly between the infinities: neither they nor NaN pass
    limits = {"above": -math.inf, "below": math.inf} | bounds
    return a_number and all(BOUNDS[name][1](value, limit) for name, limit in limits.items())
