"""What the tests of a summary over seeds say: shared by the findings of a comparison and by the reach of
theories.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ..core.measurement import Measurement, Side
from ..core.statistics import LEVEL, RANGE_DRAWS, false_discoveries, over_seeds, student_interval
from .aggregate import Entry

if TYPE_CHECKING:
    from .findings import Finding
    from .reached import Reached

OTHER_SIDE: dict[str | None, Side] = {">=": "<=", "<=": ">=", "==": "!="}
Tested = TypeVar("Tested", "Finding", "Reached")


def enough_draws(row: Measurement) -> bool:
    """Returns whether the null of a row has enough draws for a p-value of 5 %."""
    return row.null is not None and len(row.null.draws) >= RANGE_DRAWS


def side_of_null(row: Measurement) -> int | None:
    """Returns 1 if a value leaves the draws of its null on the predicted side, with a p-value of at most 5 %,
    -1 if it leaves them on the opposite side, 0 if it stays within; None without a value, or if the null has
    too few draws.
    """
    if row.null is None or row.value is None or row.side is None or not enough_draws(row):
        return None
    if row.null.p(row.value, row.side, predicted=row.predicted) <= LEVEL:
        return 1
    other = OTHER_SIDE.get(row.side)
    return -1 if other is not None and row.null.p(row.value, other, predicted=row.predicted) <= LEVEL else 0


def side_of_own_null(entry: Entry) -> int | None:
    """Returns the side of a metric's own null on which networks lie: 1, -1, 0 or None, as
    :func:`side_of_null`.

    Draws of such a null differ in a permutation within each network, not in the network, so the null of a
    mean over networks is narrow. A side therefore counts only if every network leaves its own null on it, or
    if the interval of the difference over networks excludes 0.
    """
    side = side_of_null(entry.row)
    rows = [row for row in entry.rows if row.value is not None and row.null is not None and row.null.draws]
    if not side or len(rows) < 2 or all(side_of_null(row) == side for row in rows):
        return side
    ends = student_interval(
        [row.value - row.null.median for row in rows if row.value is not None and row.null is not None]
    )
    return side if ends is not None and not ends[0] <= 0 <= ends[1] else 0


def adjusted(family: "Sequence[Tested]") -> "list[Tested]":
    """Returns the members of a family of tests, those with p-values with ``q`` and ``other_q`` adjusted for
    the false discovery rate.
    """
    tested = [one for one in family if one.row.p is not None]
    q = false_discoveries([1.0 if one.row.p is None else one.row.p for one in tested])
    other_q = false_discoveries([1.0 if one.other_p is None else one.other_p for one in tested])
    numbers = zip(q, other_q)
    family_with_q = []
    for one in family:
        if one.row.p is None:
            family_with_q.append(one)
        else:
            q_of_one, other_q_of_one = next(numbers)
            family_with_q.append(replace(one, q=q_of_one, other_q=other_q_of_one))
    return family_with_q


def other_p(entry: Entry) -> float | None:
    """Returns the p-value on the side opposite to the prediction; None if there is no such side."""
    other = OTHER_SIDE.get(entry.row.side)
    return (
        None
        if other is None or entry.row.p is None
        else over_seeds([replace(row, side=other) for row in entry.rows]).p
    )
