"""Numbers of several runs: which are finite, which are one number, their mean and standard deviation."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

SAME = 1e-9  # relative: numbers that differ by less are one number, rounded by another machine


def close(left: float | None, right: float | None, scale: float = 0.0) -> bool:
    """Whether both are one number, or both are none."""
    first, second = finite([left]), finite([right])
    if not first or not second:
        return len(first) == len(second)
    return math.isclose(first[0], second[0], rel_tol=SAME, abs_tol=SAME * scale)


def finite(numbers: Iterable[float | int | None]) -> list[float]:
    """Those that are neither None nor NaN nor infinite."""
    return [float(number) for number in numbers if number is not None and math.isfinite(number)]


def mean(numbers: Sequence[float]) -> float | None:
    """None of none; equal numbers to the last digit."""
    if not numbers or len(set(numbers)) == 1:
        return numbers[0] if numbers else None
    try:
        return fmean(numbers)
    except OverflowError:  # their sum is beyond what a float can hold, their mean is not
        return math.fsum(number / len(numbers) for number in numbers)


def spread(numbers: Sequence[float]) -> float | None:
    """None of fewer than two, and where it is beyond what a float can hold."""
    try:
        return stdev(numbers) if len(numbers) > 1 else None
    except OverflowError:
        return None


def exactly(value: float | int | None) -> str:
    """Six digits, which tell two numbers apart that :func:`~.wording.number` rounds to one."""
    return "none" if value is None or not math.isfinite(value) else f"{value:.6g}"
