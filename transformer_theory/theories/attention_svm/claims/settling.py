"""Distances that vanish in the limit, held against a bound at finite time: far away and still falling is no verdict.

The theorems of :cite:t:`tarzanagh2023transformers` are limits; when a finite run is far enough is this library's.
"""

from collections.abc import Mapping

from ....core.claims import Evidence


def settling(
    before: float,
    after: float,
    bound: float,
    *,
    detail: Mapping[str, float],
    falling: float = 0.8,
    done: bool = True,
    in_assumptions: bool = True,
) -> Evidence:
    """The distance at the end, undecided while it is above the bound and still falling.

    Args:
        before: the distance earlier in the run, usually half-way.
        after: the distance at the end, the value that is held against the bound.
        bound: the largest distance that is consistent with the claim.
        detail: further numbers worth keeping; the earlier distance is added.
        falling: a distance is still falling if less than this share of the earlier one is left. Nearer to one where it falls slowly.
        done: whether the run is far enough for the distance to mean anything, for instance whether attention is saturated.
        in_assumptions: whether the run is one that the statement speaks of.
    Returns:
        The evidence.
    """
    settled = after <= bound or after > falling * before
    kept = {"distance before": before, **detail}
    return Evidence(after, bound, "<=", converged=done and settled, covered=in_assumptions, detail=kept)
