"""The ladder: the optimum of the rate reduction beyond the setting of the theory. Its rungs do not exist yet.

Source: :cite:t:`yu2020learning` (the optimum).
"""

from ...core.ladder import Ladder
from ...metrics.class_features import NULL_KIND
from .in_networks import SHARE

LADDER = Ladder(quantity=SHARE, unit="share", side=">=", null_kind=NULL_KIND)
