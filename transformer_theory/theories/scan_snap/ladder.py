"""The ladder of scan-and-snap. Its rungs do not exist yet."""

from ...core.ladder import Ladder
from .orders import PERMUTED_HELD_OUT

LADDER = Ladder(
    quantity="rank agreement of predicted and measured logit change on held-out sequences",
    unit="",
    side=">=",
    null_kind=PERMUTED_HELD_OUT,
)
