"""Runs that repeat what the paper shows, and some that look further; one file a run."""

from .fates import Fates
from .syn_small import SynSmall

EXPERIMENTS = (Fates, SynSmall)

__all__ = ["EXPERIMENTS", "Fates", "SynSmall"]
