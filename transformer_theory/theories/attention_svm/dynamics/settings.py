"""Numbers that every kind of descent takes: refused, before a step is taken, where no run is meant by them.

Source: the settings are those of the runs of :cite:t:`tarzanagh2023transformers`.
"""

import math
from numbers import Integral

from ....core.validation import number, positive


def check_steps(steps: object, name: str = "steps", *, least: int = 0) -> None:
    """Refuses what is no number of steps.

    Raises:
        ValueError: it is too small, or not a whole number.
        TypeError: it is no number.
    """
    if not number(name, steps) >= least or not isinstance(steps, Integral):
        raise ValueError(f"{name} must be at least {least} and whole, got {steps}")


def check_rate(rate: object, name: str = "rate") -> None:
    """Refuses a length that is not positive and finite.

    Raises:
        ValueError: says what came.
        TypeError: it is no number.
    """
    positive(**{name: rate})


def check_amount(**amounts: object) -> None:
    """Refuses what is not finite and at least zero.

    Raises:
        ValueError: says which and what came.
        TypeError: it is no number.
    """
    for name, value in amounts.items():
        if not 0 <= number(name, value) < math.inf:
            raise ValueError(f"{name} must be at least 0 and finite, got {value}")
