r"""When attention scans and when it has snapped, estimated from how alike its successive maps are.

Between readings at steps :math:`s_{k-1} < s_k` with overlap :math:`\rho_k` (the cosine of two centred maps) attention moved by the chord
:math:`\sqrt{2 (1 - \rho_k)}`, so at the speed :math:`v_k = \sqrt{2 (1 - \rho_k)} / (s_k - s_{k-1})`. It *scans* where v is largest; it
*has snapped* from the first step on after which v stays below a tenth of that. The theory gives :math:`t_0' = K \ln M / \eta_Y` for the
turn between the two.

Source: :cite:t:`tian2023scan` (the phases; the estimate is ours).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SLOW = 0.1  # share of the largest speed below which attention counts as frozen


@dataclass(frozen=True)
class Phases:
    """The two phases of a head.

    Attributes:
        scanning: the step around which attention moves fastest; None if it never moved.
        snapped: the step from which on it stays slow; None if it does not within the readings, or never moved.
    """

    scanning: float | None
    snapped: int | None


def phases(steps: Sequence[int], overlaps: Sequence[float], *, slow: float = SLOW) -> Phases:
    """The phases of one head.

    Args:
        steps: of the readings, rising, at least two.
        overlaps: of each reading but the first with the one before, in [-1, 1].
        slow: share of the largest speed.
    Raises:
        ValueError: the two do not fit, or steps do not rise. Source: :cite:t:`tian2023scan`.
    """
    if len(steps) != len(overlaps) + 1 or len(steps) < 2:
        raise ValueError(f"steps must be one more than overlaps, and at least two, got {len(steps)} and {len(overlaps)}")
    lengths = [later - earlier for earlier, later in pairwise(steps)]
    if min(lengths) <= 0:
        raise ValueError("steps must rise, got a reading that is not later than the one before; sort them")
    speeds = [math.sqrt(2 * max(0.0, 1 - overlap)) / length for overlap, length in zip(overlaps, lengths)]
    top = max(speeds)
    if top == 0:
        return Phases(None, None)
    fastest = speeds.index(top)
    fast = [k for k, speed in enumerate(speeds) if speed > slow * top]
    last = fast[-1] if fast else -1
    snapped = steps[last + 1] if last + 1 < len(speeds) else None
    return Phases((steps[fastest] + steps[fastest + 1]) / 2, snapped)
