"""The ladder: how far compression by attention extends beyond the setting of the theory. It has no rungs yet."""

from ...core.ladder import Ladder
from .in_networks import RANDOM_SUBSPACES

LADDER = Ladder(quantity="fall of R^c in its own subspaces beyond random subspaces", unit="", side=">=", null_kind=RANDOM_SUBSPACES)
