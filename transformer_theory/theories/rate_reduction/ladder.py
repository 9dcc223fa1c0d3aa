"""The reach of the theory: its rate reduction as assumptions are relaxed. The rungs are not written yet.

Source: :cite:t:`yu2020learning` (the optimum).
"""

from ...core.ladder import Ladder
from .in_networks import SHARE
from .on_data import PERMUTED

LADDER = Ladder(quantity=SHARE, unit="share", side=">=", null_kind=PERMUTED)
