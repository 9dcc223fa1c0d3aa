"""Pictures of scan-and-snap, drawn from the stored arrays alone."""

from .analysis import draw
from .b_growth import b_growth
from .chi import chi
from .decoder_gain import decoder_gain
from .exponents import exponents
from .fates import fates
from .long_sequences import long_sequences
from .regime_map import regime_map
from .syn_medium import recall, syn_medium
from .syn_small import adam, syn_small

__all__ = [
    "adam",
    "b_growth",
    "chi",
    "decoder_gain",
    "draw",
    "exponents",
    "fates",
    "long_sequences",
    "recall",
    "regime_map",
    "syn_medium",
    "syn_small",
]
