"""The ladder: the rate reduction as a share of its optimum, beyond the setting of the theory. There are no rungs yet.

Source: :cite:t:`yu2020learning` (the optimum).
"""

from ...core.ladder import Ladder
from ...metrics.class_features import NULL_KIND
from .in_networks import SHARE

LADDER = Ladder(quantity=SHARE, unit="share", side=">=", null_kind=NULL_KIND)
