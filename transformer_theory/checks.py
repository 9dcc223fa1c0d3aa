"""What more than one part of the library asks of a number, each said in one line."""

import math
from numbers import Real


def number(name: str, value: object) -> float:
    """The value as a float.

    Raises:
        TypeError: it is no number; the message names it.
    """
    if not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    return float(value)


def positive(**values: object) -> None:
    """Step sizes, distortions and the like: numbers above zero, no unit.

    Raises:
        ValueError: one is zero, negative, infinite or NaN; the message names it.
        TypeError: one is no number.
    """
    for name, value in values.items():
        if not 0 < number(name, value) < math.inf:
            hint = "; it is the distortion, squared inside" if name == "eps" else ""
            raise ValueError(f"{name} must be positive and finite, got {value}{hint}")
