"""The ladder of this theory: the quantity that it measures. There are no rungs yet."""

from ...core.ladder import Ladder
from .in_networks import NULL_KIND

LADDER = Ladder(quantity="cosine to the max-margin direction", unit="", side=">=", null_kind=NULL_KIND)
