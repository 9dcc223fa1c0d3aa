"""Runs of the room: layers unrolled on tokens of known subspaces, and networks that are trained; one file a run.

Source: :cite:t:`yu2023white`.
"""

from .departures import Departures
from .emergence import Emergence
from .layers import Layers
from .unrolled import Unrolled
from .variants import Variants

EXPERIMENTS = (Unrolled, Layers, Variants, Departures, Emergence)

__all__ = ["EXPERIMENTS", "Departures", "Emergence", "Layers", "Unrolled", "Variants"]
