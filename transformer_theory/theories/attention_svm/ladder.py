"""How far the theory extends; the rungs are not written yet."""

from ...core.ladder import Ladder
from .in_networks import NULL_KIND

LADDER = Ladder(quantity="cosine to the max-margin direction", unit="", side=">=", null_kind=NULL_KIND)
