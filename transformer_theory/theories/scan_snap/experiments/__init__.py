"""Runs that repeat what the paper shows, and some that look further; one file a run."""

from .b_growth import BGrowth
from .chi import Chi
from .decoder_gain import DecoderGain
from .exponents import Exponents
from .fates import Fates
from .long_sequences import LongSequences
from .recall import Recall
from .regime_map import RegimeMap
from .syn_medium import SynMedium
from .syn_small import SynSmall, SynSmallAdam
from .text_attention import TextAttention
from .text_depth import TextDepth
from .text_rates import TextRates

EXPERIMENTS = (
    Fates,
    Chi,
    DecoderGain,
    BGrowth,
    Exponents,
    RegimeMap,
    SynSmall,
    SynSmallAdam,
    SynMedium,
    Recall,
    LongSequences,
    TextAttention,
    TextRates,
    TextDepth,
)

__all__ = [
    "EXPERIMENTS",
    "BGrowth",
    "Chi",
    "DecoderGain",
    "Exponents",
    "Fates",
    "LongSequences",
    "Recall",
    "RegimeMap",
    "SynMedium",
    "SynSmall",
    "SynSmallAdam",
    "TextAttention",
    "TextDepth",
    "TextRates",
]
