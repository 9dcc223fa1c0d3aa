"""Runs that repeat what the paper shows, and some that look further; one file a run."""

from .fates import Fates
from .long_sequences import LongSequences
from .recall import Recall
from .syn_medium import SynMedium
from .syn_small import SynSmall, SynSmallAdam

EXPERIMENTS = (Fates, SynSmall, SynSmallAdam, SynMedium, Recall, LongSequences)

__all__ = ["EXPERIMENTS", "Fates", "LongSequences", "Recall", "SynMedium", "SynSmall", "SynSmallAdam"]
