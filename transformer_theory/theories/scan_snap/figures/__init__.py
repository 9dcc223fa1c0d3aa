"""Pictures of scan-and-snap, drawn from the stored arrays alone."""

from .analysis import draw
from .fates import fates
from .syn_small import syn_small

__all__ = ["draw", "fates", "syn_small"]
