"""Instances that are drawn again until they serve: a claim that waits for one in vain is inconclusive on that seed, and does not hang.

The theorems of :cite:t:`tarzanagh2023transformers` are on every instance that meets their assumptions; how to find one is this library's.
"""

from ....core.errors import NotConverged

MOST = 200  # draws; of those waited for at most 19 were drawn in vain on 25 seeds


def never(wanted: str) -> NotConverged:
    """To raise after :data:`MOST` draws."""
    return NotConverged(f"an instance must be drawn {wanted}, got none in {MOST} draws")
