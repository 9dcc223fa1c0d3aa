"""The ladder: how far the optimum of the rate reduction extends beyond the setting of the theory. Its rungs are not written yet.

Source: :cite:t:`yu2020learning` (the optimum).
"""

from ...core.ladder import Ladder
from ...metrics.class_features import NULL_KIND
from .in_networks import SHARE

LADDER = Ladder(quantity=SHARE, unit="share", side=">=", null_kind=NULL_KIND)
