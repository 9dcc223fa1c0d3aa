"""What the figures of trained networks share: the mean over seeds."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....core.figure import Reading, reading


def seed_mean(
    quantity: str, values: Sequence[float], *, digits: int = 3, more: str = "", **columns: Any
) -> Reading:
    """Returns the mean over seeds, with the range of its values in the note.

    Args:
        quantity: name of the quantity.
        values: one value per seed.
        digits: digits of the range.
        more: end of the note.
        columns: further columns of the row.
    """
    note = f"mean of the seeds, {min(values):.{digits}g} to {max(values):.{digits}g}{more}"
    return reading(quantity, float(np.mean(values)), n=len(values), note=note, **columns)
