"""The ladder of scan-and-snap; its rungs are not written yet."""

from ...core.ladder import Ladder
from .comparison import SHUFFLED

LADDER = Ladder(
    quantity="rank agreement of predicted and measured logit change on held-out sequences",
    unit="",
    side=">=",
    null_kind=SHUFFLED,
)
