"""Pictures of scan-and-snap, drawn from the stored arrays alone."""

from .analysis import draw
from .fates import fates
from .long_sequences import long_sequences
from .syn_medium import recall, syn_medium
from .syn_small import adam, syn_small

__all__ = ["adam", "draw", "fates", "long_sequences", "recall", "syn_medium", "syn_small"]
